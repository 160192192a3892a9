//! The recent window: the last messages of all topics, for a long poll that comes back.

use std::collections::VecDeque;
use std::sync::Arc;

use wire::{Id, Message};

/// What [`crate::Broker::recent`] found.
#[derive(Debug)]
pub struct Recent {
    /// The messages after the asked place, oldest first.
    pub messages: Vec<Arc<Message>>,
    /// The newest place of the whole node.
    pub top: Id,
    /// False when messages may be missing: the asked place is of another epoch, or older than
    /// the window.
    pub complete: bool,
}

/// How much the window holds; the first limit that is reached counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub messages_max: usize,
    pub bytes_max: usize,
    pub age_us_max: u64,
}

/// A ring of the last messages. Offsets in it have no gaps.
pub(crate) struct Window {
    bounds: Bounds,
    ring: VecDeque<Arc<Message>>,
    bytes: usize,
}

impl Window {
    pub fn new(bounds: Bounds) -> Self {
        Window { bounds, ring: VecDeque::new(), bytes: 0 }
    }

    pub fn push(&mut self, message: Arc<Message>) {
        let now_us = message.published_us;
        self.bytes += message.bytes();
        self.ring.push_back(message);
        while let Some(oldest) = self.ring.front() {
            let over = self.ring.len() > self.bounds.messages_max
                || self.bytes > self.bounds.bytes_max
                || now_us.saturating_sub(oldest.published_us) > self.bounds.age_us_max;
            if !over {
                break;
            }
            self.bytes -= oldest.bytes();
            self.ring.pop_front();
        }
    }

    /// Messages of the topics (hash and name) with an offset over `since`, and whether the window
    /// reaches back that far. `top` is the newest offset given out.
    pub fn after(&self, topics: &[(u64, &str)], since: u64, top: u64) -> (Vec<Arc<Message>>, bool) {
        let from = self.ring.partition_point(|message| message.id.offset <= since);
        let messages = self
            .ring
            .range(from..)
            .filter(|message| {
                topics
                    .iter()
                    .any(|(hash, name)| *hash == message.topic_hash && *name == message.draft.topic)
            })
            .cloned()
            .collect();
        let oldest = self.ring.front().map_or(top + 1, |message| message.id.offset);
        (messages, since + 1 >= oldest && since <= top)
    }
}
