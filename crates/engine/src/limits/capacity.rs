//! Whether the node has capacity for one more topic, and for one more presence entry.
//!
//! Each shard has its share of the topics, and needs no other shard to decide. Subscriptions by the application, and
//! the topics of users who log in, are never rejected.

use model::Name;
use model::name::personal;

use crate::core::Core;
use crate::core::metrics::Limited;

impl Core {
    /// Returns the limit that keeps a connection of these users from joining these topics, if any, and counts it.
    /// Topics with members always have capacity.
    pub(crate) fn capacity_reached<'a>(
        &self,
        users: &[Name],
        topics: impl ExactSizeIterator<Item = &'a Name> + Clone,
    ) -> Option<Limited> {
        let presence_full = || self.presence_full(topics.clone());
        let limited = self.topics_full(users, topics.clone()).or_else(presence_full)?;
        self.metrics.limited[limited as usize].add(1);
        Some(limited)
    }

    fn topics_full<'a>(
        &self,
        users: &[Name],
        topics: impl ExactSizeIterator<Item = &'a Name>,
    ) -> Option<Limited> {
        let max = self.settings.topics_max as usize;
        if max == 0 {
            return None;
        }
        let (here, share) = (self.hub.topics() as usize, max.div_ceil(self.engines.len()));
        if here + users.len() + topics.len() <= share {
            return None;
        }
        let is_new = |name: &str| self.hub.members(self.broker.hash(name), name) == 0;
        let new = topics.filter(|topic| is_new(topic)).count()
            + users.iter().filter(|user| is_new(&personal(user))).count();
        (new > 0 && here + new > share).then_some(Limited::AllTopics)
    }

    fn presence_full<'a>(&self, mut topics: impl Iterator<Item = &'a Name>) -> Option<Limited> {
        let max = self.settings.presence_connections_max as usize;
        if max == 0 || self.shared.presence.connections() < max {
            return None;
        }
        let policy = &self.settings.session.policy;
        let has_presence = |topic: &Name| policy.topic(topic).presence();
        topics.any(has_presence).then_some(Limited::Presences)
    }
}
