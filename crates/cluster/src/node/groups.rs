//! A node's part in groups that share messages: it sends others its number of members of each, and passes messages on
//! if it has no member of a group any more.

use model::NodeId;

use super::Node;
use crate::groups::{GroupMembers, parts};
use crate::{
    GroupDiff, GroupMessage, GroupsPage, GroupsRequest, MqttEvent, Output, Packet, Stream, Target,
    TooLarge,
};

/// The approximate limit on bytes of groups in one packet.
const PACKET_BYTES: usize = 64 << 10;

/// Bytes of a packet of groups besides them, at most.
const HEAD_BYTES: usize = 128;

impl Node {
    /// Publishes changed numbers of members that groups have at this node. With `is_whole` these are all groups with
    /// members: others have none.
    pub fn publish_groups(&mut self, is_whole: bool, changes: Vec<GroupMembers>, now_us: u64) {
        if is_whole {
            let is_reset = self.groups.number > 0;
            self.groups.replace(changes);
            if is_reset {
                return self.publish_group_diff(Vec::new(), true, now_us);
            }
            // No other node knows groups of a node that begins.
            let groups = self.groups.parts(self.groups_bytes_max());
            return groups.into_iter().for_each(|it| self.publish_group_diff(it, false, now_us));
        }
        let changes = self.groups.change(changes);
        if changes.is_empty() {
            return;
        }
        for part in parts(changes, self.groups_bytes_max()) {
            self.publish_group_diff(part, false, now_us);
        }
    }

    fn publish_group_diff(&mut self, changes: Vec<GroupMembers>, is_reset: bool, now_us: u64) {
        self.groups.number += 1;
        let diff = Some(GroupDiff { number: self.groups.number, changes, is_reset });
        let event = MqttEvent { diff, ..MqttEvent::default() };
        self.publish_mqtt_event(&event, TooLarge::Other, now_us);
    }

    /// Makes another node pass a message to a member of a group there alone.
    pub fn pass_to_group(&mut self, message: GroupMessage, now_us: u64) {
        self.counts.groups_passed += 1;
        let event = MqttEvent { message: Some(message), ..MqttEvent::default() };
        self.publish_mqtt_event(&event, TooLarge::Message, now_us);
    }

    pub(super) fn publish_mqtt_event(&mut self, event: &MqttEvent, content: TooLarge, now_us: u64) {
        let bytes = self.replay.publish(Stream::MQTT, now_us, |out| event.encode_into(out));
        self.send_or_report(Target::Stream(Stream::MQTT), bytes, content);
    }

    /// Returns the limit on bytes of groups in one packet.
    fn groups_bytes_max(&self) -> usize {
        self.packet_bytes_max.saturating_sub(HEAD_BYTES).min(PACKET_BYTES)
    }

    pub(super) fn on_groups_request(&mut self, request: GroupsRequest) {
        let parts = self.groups.parts(self.groups_bytes_max());
        let (node, number, last) = (self.settings.node.0, self.groups.number, parts.len() - 1);
        for (part, groups) in (0..).zip(parts) {
            let is_last = part as usize == last;
            let page = GroupsPage { node, id: request.id, number, part, is_last, groups };
            self.send(Target::Node(NodeId(request.node)), Packet::GroupsPage(page).encode());
        }
    }

    pub(super) fn on_groups_page(&mut self, page: GroupsPage, now_us: u64) {
        let node = NodeId(page.node);
        let Some(peer) = self.peers.get_mut(&node) else { return };
        peer.state.received_us = now_us;
        let changes = peer.groups.on_page(page, now_us);
        self.on_groups_changed(node, changes);
    }

    /// Handles the part about groups of a message of the MQTT stream.
    pub(super) fn on_group_event(
        &mut self,
        node: NodeId,
        diff: Option<GroupDiff>,
        message: Option<GroupMessage>,
    ) {
        let own = self.settings.node.0;
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let changes = diff.map(|diff| peer.groups.on_diff(diff));
        self.on_groups_changed(node, changes.unwrap_or_default());
        if let Some(message) = message.filter(|message| message.to == own) {
            self.counts.groups_received += 1;
            self.outputs.push(Output::DeliverToGroup { node, message });
        }
    }

    /// Handles lost messages of the MQTT stream.
    pub(super) fn on_groups_gap(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.groups.on_gap();
        }
    }

    pub(super) fn on_groups_changed(&mut self, node: NodeId, changes: Vec<GroupMembers>) {
        if !changes.is_empty() {
            self.outputs.push(Output::GroupsChanged { node, changes });
        }
    }
}
