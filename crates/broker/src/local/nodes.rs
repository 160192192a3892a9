//! What comes from other nodes: their messages, and their members of groups that share messages.

use std::sync::Arc;

use model::name::of_filter;
use model::{Envelope, FilterKey, GroupChoice, Message, NodeId, Position, Publication};

use super::{HistoryRoute, Local, Origin};
use crate::{Append, Broker, GroupChanges, Options, Passed, PublishError, Routes};

impl Local {
    /// Groups whose members here have changed since the call before.
    pub fn take_group_changes(&self) -> GroupChanges {
        self.router.take_group_changes()
    }

    /// Another node has so many members of a group. What is no group's name is passed over.
    pub fn set_group(&self, node: NodeId, group: &str, members: usize) {
        let is_group = matches!(of_filter(group), Some((Some(_), filter)) if !filter.is_empty());
        if is_group && self.relay.as_ref().is_some_and(|(own, _)| *own != node) {
            self.router.set_group(node, (self.hash(group), group), members);
        }
    }

    /// Other nodes can't be reached for now, or can again: meanwhile members of this node get the messages of their groups.
    pub fn set_alone(&self, is_alone: bool) {
        self.router.set_alone(is_alone);
    }

    /// Publishes what another node has published. It goes to the members here, and to no other node. Of the groups that
    /// share it, those get it for which that node has chosen this one; of groups that it did not know, the message's
    /// number decides, which is the same at each node.
    ///
    /// # Errors
    /// When a shard or the store is behind: no member has got it, and the caller tries again.
    pub fn publish_from_node(
        &self,
        publication: Publication,
        choices: &[GroupChoice],
        number: u64,
    ) -> Result<(), PublishError> {
        let hash = self.hash(&publication.topic);
        let origin = Origin::OtherNode(choices, number);
        match self.history_route(&publication, false)? {
            HistoryRoute::None => self.pass_on(hash, publication, None, (false, origin)).map(drop),
            HistoryRoute::Bypass => self.pass_on(hash, publication, None, (true, origin)).map(drop),
            // What another node appends to a log that all share comes by that log.
            HistoryRoute::Append(_) if self.history.is_shared() => {
                self.pass_on(hash, publication, None, (true, origin)).map(drop)
            }
            HistoryRoute::Append(rule) => {
                let mut routes = self.routes_here(&publication.topic, origin);
                let left = routes.take_left();
                let for_groups = (!left.is_empty()).then(|| publication.clone());
                let options = Options::default();
                let append = Append { hash, publication, rule, options, receipt: None, routes };
                let id = self.history.append_now(append)?;
                if let Some(publication) = for_groups {
                    let message = Arc::new(Message::new(publication, id, hash, 0).into());
                    self.pass_left(&message, &left);
                }
                Ok(())
            }
        }
    }

    /// Gives a message of another node to a member of a group here, and to no one else. Where there is none any more, it
    /// passes to a node that it has not passed yet. False where no member gets it.
    ///
    /// # Errors
    /// When a shard is behind: no member has got it, and the caller tries again.
    pub fn publish_to_group(
        &self,
        publication: Publication,
        group: &str,
        nodes: Vec<NodeId>,
    ) -> Result<bool, PublishError> {
        let hash = self.hash(&publication.topic);
        let chosen = self.router.choose_shard(group);
        let groups: Vec<_> = chosen.iter().cloned().collect();
        let message = |offset| {
            let id = Position { epoch: self.epoch(), offset };
            Envelope::from(Message::new(publication, id, hash, self.now_us()))
        };
        let Some((_, key)) = chosen else {
            let message = Arc::new(message(self.skip_offset()));
            return Ok(self.pass_to_node(&message, &group.into(), &nodes));
        };
        if !self.router.has_capacity_for_groups(&groups) {
            return Err(PublishError::Overloaded);
        }
        let message = Arc::new(message(self.skip_offset()));
        let passed = Passed { is_left: true, nodes, ..Passed::default() };
        Ok(self.router.pass_on(&message, &key, passed))
    }

    /// Where a message goes at this node, beside its topic's members.
    pub(super) fn routes_here(&self, topic: &str, origin: Origin<'_>) -> Routes {
        match origin {
            Origin::Here => self.router.routes_here(topic),
            Origin::OtherNode(choices, number) => {
                self.router.routes_from_node(topic, choices, number)
            }
        }
    }

    /// Gives a message to other nodes with members of groups that have left this one.
    pub(super) fn pass_left(&self, message: &Arc<Envelope>, left: &[Arc<FilterKey>]) {
        for key in left {
            self.pass_to_node(message, &key.name, &[]);
        }
    }
}
