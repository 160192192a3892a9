//! Groups that share messages, between the broker of this process and the node.

use std::sync::Arc;

use broker::{GroupChanges, GroupMessage, Local};
use cluster::{GroupMembers, Node};
use handover::message::encode_publication;
use model::NodeId;

/// Passes changes from the broker to the node and back.
pub(crate) struct Groups {
    broker: Arc<Local>,
}

impl Groups {
    pub fn new(broker: Arc<Local>) -> Self {
        broker.set_alone(true);
        Groups { broker }
    }

    /// Sends other nodes the new numbers of members here of groups that have changed.
    pub fn publish(&self, node: &mut Node, now_us: u64) {
        let GroupChanges { is_whole, groups } = self.broker.take_group_changes();
        if !is_whole && groups.is_empty() {
            return;
        }
        let count = |members| u32::try_from(members).unwrap_or(u32::MAX);
        let groups = groups.into_iter().map(|(members, name)| (name.into(), count(members)));
        node.publish_groups(is_whole, groups.collect(), now_us);
    }

    /// Passes a message to a member of a group at another node.
    pub fn pass(&self, node: &mut Node, message: &GroupMessage, now_us: u64) {
        let GroupMessage { message, group, to, passed } = message;
        let passed = cluster::GroupMessage {
            to: to.0,
            group: group.to_string(),
            passed: passed.iter().map(|node| node.0).collect(),
            publication: encode_publication(&message.publication),
        };
        node.pass_to_group(passed, now_us);
    }

    /// Takes another node's new numbers of members of groups.
    pub fn on_changed(&self, node: NodeId, changes: &[GroupMembers]) {
        for (group, members) in changes {
            self.broker.set_group(node, group, usize::try_from(*members).unwrap_or(usize::MAX));
        }
    }

    /// Sets whether other nodes can be reached. While they can't, members here get all messages of their groups.
    pub fn set_connected(&self, is_connected: bool) {
        self.broker.set_alone(!is_connected);
    }
}

impl Drop for Groups {
    /// When the thread ends, members at other nodes get nothing any more.
    fn drop(&mut self) {
        self.broker.set_alone(true);
    }
}
