//! Passes windows to another process: the state of topics, and their messages.

use std::sync::Arc;

use minicbor::{Decode, Encode};
use model::{Envelope, Name};

use super::Windows;
use crate::slab::{List, NONE};

/// The state of a topic without its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct TopicRecord {
    /// The newest message that was lost.
    #[n(0)]
    pub floor: u64,
    /// The newest message that the topic ever had.
    #[n(1)]
    pub last: u64,
    #[cbor(n(2), default)]
    compact: bool,
    #[cbor(n(3), default)]
    has_lost: bool,
    #[cbor(n(4), default)]
    is_by_rule: bool,
    #[cbor(n(5), default)]
    for_sessions: bool,
}

/// Bounds for all unknown topics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// They may have lost messages up to this offset.
    pub gone: u64,
    /// They had no message after this offset.
    pub last_gone: u64,
}

/// A walk over all messages, in the order of their offsets; other threads may change them in between.
#[derive(Default)]
pub struct Walk {
    /// The numbers and offsets of the last piece.
    last: Vec<(u32, u64)>,
    after: u64,
}

impl Walk {
    /// Returns the next messages, at most `count`; none at the end. They include messages that came since.
    pub fn next(&mut self, windows: &Windows, count: usize) -> Vec<Arc<Envelope>> {
        let Windows { messages, order, .. } = windows;
        let is_here = |(number, offset): &&(u32, u64)| {
            messages.get(*number).is_some_and(|message| message.id.offset == *offset)
        };
        // If the last piece is gone, all messages before it are gone: the walk begins at the oldest. Nearly always it
        // is present.
        let last = self.last.iter().rev().find(is_here);
        let mut at = last.map_or(order.oldest, |(number, _)| messages.newer(*number));
        let mut found = Vec::with_capacity(count);
        self.last.clear();
        while at != NONE && found.len() < count {
            let message = &messages[at];
            if message.id.offset > self.after {
                self.last.push((at, message.id.offset));
                found.push(message.clone());
            }
            at = messages.newer(at);
        }
        self.after = found.last().map_or(self.after, |message| message.id.offset);
        found
    }
}

impl Windows {
    /// Visits the state of the topics in a range of numbers. Returns where the next range begins; `None` at the end.
    pub fn each_topic(
        &self,
        from: u32,
        count: u32,
        mut each: impl FnMut(&Name, TopicRecord),
    ) -> Option<u32> {
        let to = from.saturating_add(count).min(self.topics.slots());
        for topic in (from..to).filter_map(|at| self.topics.get(at)) {
            let record = TopicRecord {
                floor: topic.floor,
                last: topic.last,
                compact: topic.compact,
                has_lost: topic.has_lost,
                is_by_rule: topic.is_by_rule,
                for_sessions: topic.for_sessions,
            };
            each(&topic.name, record);
        }
        (to < self.topics.slots()).then_some(to)
    }

    /// Returns the bounds for all unknown topics.
    pub fn bounds(&self) -> Bounds {
        Bounds { gone: self.gone, last_gone: self.last_gone }
    }

    /// Imports another process's state of a topic.
    pub fn put_topic(&mut self, hash: u64, name: &Name, record: TopicRecord) {
        let TopicRecord { floor, last, compact, has_lost, is_by_rule, for_sessions } = record;
        let at = self.enter(hash, name);
        self.set_compact(at, compact);
        let topic = &mut self.topics[at];
        (topic.floor, topic.last) = (floor, last);
        (topic.has_lost, topic.is_by_rule) = (has_lost, is_by_rule);
        self.set_for_sessions(hash, name, for_sessions);
    }

    /// Removes a topic that the other process no longer knows.
    pub fn remove_topic(&mut self, hash: u64, name: &str) {
        let Some(at) = self.find(hash, name) else { return };
        while let Some(oldest) = self.topics[at].retained.oldest() {
            self.take(at, oldest);
        }
        self.topics.unlink(&mut self.idle, at);
        let topic = self.topics.remove(at);
        self.index.remove(topic.hash, at);
    }

    /// Imports a message of another process, and returns its number; `None` if its offset is not above all others'.
    /// Limits apply only in [`Windows::settle`].
    pub fn put_message(&mut self, message: Arc<Envelope>) -> Option<u32> {
        let newest = self.messages.get(self.order.newest);
        if newest.is_some_and(|newest| newest.id.offset >= message.id.offset) {
            return None;
        }
        let at = self.enter(message.topic_hash, &message.publication.topic);
        self.add(at, message);
        Some(self.order.newest)
    }

    /// Returns the message with this number, if it still has it: another message may have the number by now.
    pub fn message(&self, number: u32, offset: u64) -> Option<&Arc<Envelope>> {
        self.messages.get(number).filter(|message| message.id.offset == offset)
    }

    /// Removes an imported message that the other process no longer has.
    pub fn remove_message(&mut self, number: u32, offset: u64) {
        let Some(message) = self.message(number, offset) else { return };
        let found = self.find(message.topic_hash, &message.publication.topic);
        if let Some(at) = found {
            self.take(at, number);
        }
    }

    /// Ends the import: drops messages beyond this process's limits for all topics. The limits of a topic's rule
    /// apply when a message comes and in the sweep, as after a change of the rules.
    pub fn settle(&mut self, bounds: Bounds, now_ms: u64) {
        (self.gone, self.last_gone) = (bounds.gone, bounds.last_gone);
        if self.topics.len() > self.limits.topics_max / 2 {
            // Restores the order in which topics are forgotten, nearly.
            self.order_idle();
        }
        while self.bytes > self.limits.bytes_max {
            self.evict(now_ms);
        }
        while self.topics.len() > self.limits.topics_max {
            self.forget(now_ms);
        }
    }

    fn order_idle(&mut self) {
        let mut idle = Vec::new();
        let mut at = self.idle.oldest;
        while at != NONE {
            idle.push((self.topics[at].last, at));
            at = self.topics.newer(at);
        }
        idle.sort_by_key(|(last, _)| *last);
        self.idle = List::EMPTY;
        for (_, at) in idle {
            self.topics.link(&mut self.idle, at);
        }
    }
}
