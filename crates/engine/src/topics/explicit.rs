//! Topics that clients entered themselves.

use std::collections::HashMap;

use model::Name;

use crate::core::shrink::Shrink;
use crate::handover::value::Text;

/// By slot: hashes of topics that the client entered itself although its users' stored subscriptions include them. A
/// logout does not leave them. Nearly no connection has any.
#[derive(Default)]
pub(crate) struct ExplicitTopics(HashMap<u32, Vec<u64>>);

impl ExplicitTopics {
    /// The client has entered the topic itself.
    pub fn insert(&mut self, slot: u32, hash: u64) {
        let topics = self.0.entry(slot).or_default();
        if !topics.contains(&hash) {
            topics.push(hash);
        }
    }

    /// True when the client has entered the topic itself.
    pub fn holds(&self, slot: u32, hash: u64) -> bool {
        self.0.get(&slot).is_some_and(|topics| topics.contains(&hash))
    }

    /// The connection has left the topic.
    pub fn remove(&mut self, slot: u32, hash: u64) {
        if let Some(topics) = self.0.get_mut(&slot) {
            topics.retain(|topic| *topic != hash);
            if topics.is_empty() {
                self.0.remove(&slot);
            }
        }
    }

    /// The connection has left all topics.
    pub fn clear(&mut self, slot: u32) {
        self.0.remove(&slot);
    }

    /// Exports a connection's topics; `name` returns the name of a topic that it is in.
    pub fn export(&self, slot: u32, name: &dyn Fn(u64) -> Option<Name>) -> Vec<Text<Name>> {
        let topics = self.0.get(&slot).into_iter().flatten();
        topics.filter_map(|hash| name(*hash).map(Text)).collect()
    }

    /// Gives memory back after a spike.
    pub fn shrink(&mut self) {
        self.0.shrink();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_chose_is_known_until_it_leaves() {
        let mut explicit = ExplicitTopics::default();
        explicit.insert(1, 7);
        explicit.insert(1, 7);
        explicit.insert(1, 8);
        assert!(explicit.holds(1, 7) && !explicit.holds(2, 7));
        explicit.remove(1, 7);
        assert!(!explicit.holds(1, 7) && explicit.holds(1, 8));
        explicit.remove(1, 8);
        explicit.insert(2, 9);
        explicit.clear(2);
        assert!(explicit.0.is_empty());
    }
}
