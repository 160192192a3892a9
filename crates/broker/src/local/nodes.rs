//! Inputs from other nodes: their messages, and their members of groups that share messages.

use std::sync::Arc;

use model::name::of_filter;
use model::{Envelope, FilterKey, GroupChoice, Message, NodeId, Position, Publication};

use super::{HistoryRoute, Local, Origin};
use crate::{Append, Broker, GroupChanges, Options, Passed, PublishError, Routes};

impl Local {
    /// Returns the groups whose members here have changed since the last call.
    pub fn take_group_changes(&self) -> GroupChanges {
        self.router.take_group_changes()
    }

    /// Sets the number of members that another node has of a group. Ignores a name that is not a group's.
    pub fn set_group(&self, node: NodeId, group: &str, members: usize) {
        let is_group = matches!(of_filter(group), Some((Some(_), filter)) if !filter.is_empty());
        if is_group && self.relay.as_ref().is_some_and(|(own, _)| *own != node) {
            self.router.set_group(node, (self.hash(group), group), members);
        }
    }

    /// Sets whether other nodes can't be reached; meanwhile members of this node get the messages of their groups.
    pub fn set_alone(&self, is_alone: bool) {
        self.router.set_alone(is_alone);
    }

    /// Publishes a message of another node. It goes to the members here, and to no other node. Groups that share it
    /// get it if that node has chosen this one for them; for groups that it did not know, the message's number
    /// decides, which is the same at each node.
    ///
    /// # Errors
    /// If a shard or the store is behind: no member has got it, and the caller tries again.
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
            // A message that another node appends to a shared log arrives by that log.
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

    /// Passes a message of another node to a member of a group here alone. If this node has none any more, the
    /// message passes to a node that it has not passed yet. Returns false if no member gets it.
    ///
    /// # Errors
    /// If a shard is behind: no member has got it, and the caller tries again.
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

    /// Finds the destinations of a message at this node, besides its topic's members.
    pub(super) fn routes_here(&self, topic: &str, origin: Origin<'_>) -> Routes {
        match origin {
            Origin::Here => self.router.routes_here(topic),
            Origin::OtherNode(choices, number) => {
                self.router.routes_from_node(topic, choices, number)
            }
        }
    }

    /// Passes a message to other nodes with members of groups that have left this one.
    pub(super) fn pass_left(&self, message: &Arc<Envelope>, left: &[Arc<FilterKey>]) {
        for key in left {
            self.pass_to_node(message, &key.name, &[]);
        }
    }
}
