//! The number of messages published to each target: the sequence numbers.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use serde::{Deserialize, Serialize};

use super::{Part, lock};
use crate::payload::To;
use crate::sequence::Tracker;

/// The number of messages published to each target so far. These are the sequence numbers.
///
/// If agents share a run, each publishes to its own users and topics, and learns at the end how much the others have
/// published.
#[derive(Debug, Default)]
pub struct Published {
    /// By user, from the first. Empty when the run publishes nothing to users.
    pub users: Box<[AtomicU32]>,
    /// By topic.
    pub topics: Box<[AtomicU32]>,
    /// To all connections.
    pub all: AtomicU32,
    /// Nodes that publish, in turn. Messages from two nodes may arrive in another order.
    pub nodes: u32,
    /// The share of the run whose messages this process publishes.
    pub part: Part,
    /// Set before anything is published. Until then every sequence begins with its first message.
    begun: AtomicBool,
    /// Messages without a reply to their publish: they may or may not have been published.
    unsure: Mutex<HashSet<(To, u32)>>,
    /// Messages that another node published than the one whose turn it was.
    moved: Mutex<HashSet<(To, u32)>>,
}

impl Published {
    /// Returns zeroed counters for this many users and topics.
    pub fn new(users: u32, topics: u32) -> Self {
        let zeros = |count| (0..count).map(|_| AtomicU32::new(0)).collect();
        let (users, topics) = (zeros(users), zeros(topics));
        Self { users, topics, nodes: 1, ..Self::default() }
    }

    /// Sets the share of the run, and the number of nodes that publish.
    #[must_use]
    pub fn of(self, part: Part, nodes: u32) -> Self {
        Self { part, nodes, ..self }
    }

    /// Notes that messages may be published from now on.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// Records that the server sent no reply to the publish of the message with this number.
    pub fn mark_unsure(&self, to: To, number: u32) {
        lock(&self.unsure).insert((to, number));
        self.mark_moved(to, number);
    }

    /// Records that a message was published out of its node's turn.
    pub fn mark_moved(&self, to: To, number: u32) {
        if self.nodes > 1 {
            lock(&self.moved).insert((to, number));
        }
    }

    /// Returns the index of the node whose turn it is to publish the message with this number.
    pub fn turn(&self, to: To, number: u32) -> usize {
        let target = match to {
            To::User(target) | To::Topic(target) => target,
            To::All => 0,
        };
        (target.wrapping_add(number) % self.nodes.max(1)) as usize
    }

    /// Returns true if a message may arrive late: other nodes may have published the messages that overtook it.
    pub(super) fn may_be_overtaken(&self, to: To, number: u32, tracker: &Tracker) -> bool {
        if self.nodes <= 1 {
            return false;
        }
        let moved = lock(&self.moved);
        let is_strict = |number: u32| self.is_own(to) && !moved.contains(&(to, number));
        !is_strict(number) || !tracker.overtakers(number, self.nodes).any(is_strict)
    }

    /// Returns how many of the `count` messages up to number `last` were certainly published.
    pub(super) fn count_sure(&self, to: To, last: u32, count: u32) -> u32 {
        let unsure = lock(&self.unsure);
        let within =
            |(of, number): &&(To, u32)| *of == to && *number <= last && last - number < count;
        count - unsure.iter().filter(within).count() as u32
    }

    /// Returns the tracker of a connection that receives a user's messages from now on.
    pub(super) fn user_tracker(&self, index: u32) -> Tracker {
        self.tracker(To::User(index), self.user(index))
    }

    /// Returns the tracker for a topic's messages.
    pub(super) fn topic_tracker(&self, room: u32) -> Tracker {
        self.tracker(To::Topic(room), self.topic(room))
    }

    /// Returns the tracker for messages to all.
    pub(super) fn all_tracker(&self) -> Tracker {
        self.tracker(To::All, self.all())
    }

    /// Returns a tracker that accepts any first message once publishing has begun, if another agent publishes (its
    /// count is unknown here), or if other nodes may not know of the new member yet.
    fn tracker(&self, to: To, published: u32) -> Tracker {
        let is_known = self.nodes <= 1 && self.is_own(to);
        match is_known || !self.begun.load(Ordering::Relaxed) {
            true => Tracker::begin(published),
            false => Tracker::anywhere(),
        }
    }

    /// Returns true if this process publishes the messages of this target.
    fn is_own(&self, to: To) -> bool {
        match to {
            // A user's own agent publishes to the user.
            To::User(_) => true,
            To::Topic(room) => self.part.has(room),
            To::All => self.part.has(0),
        }
    }

    pub(super) fn user(&self, index: u32) -> u32 {
        self.users.get(index as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    pub(super) fn topic(&self, room: u32) -> u32 {
        self.topics.get(room as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    pub(super) fn all(&self) -> u32 {
        self.all.load(Ordering::Relaxed)
    }

    /// Returns how many messages this process published to topics and to all.
    pub fn own(&self) -> PublishedHere {
        let part = self.part;
        let own = (part.number..self.topics.len() as u32).step_by(part.of as usize);
        PublishedHere {
            topics: own.map(|room| self.topic(room)).collect(),
            all: if part.has(0) { self.all() } else { 0 },
        }
    }

    /// Stores how many messages another part has published.
    pub fn learn(&self, of: Part, published: &PublishedHere) {
        let rooms = (of.number as usize..).step_by(of.of.max(1) as usize);
        for (room, count) in rooms.zip(&published.topics) {
            if let Some(topic) = self.topics.get(room) {
                topic.store(*count, Ordering::Relaxed);
            }
        }
        if of.has(0) {
            self.all.store(published.all, Ordering::Relaxed);
        }
    }
}

/// The number of messages that one part of a run has published.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct PublishedHere {
    /// To each of its topics: the one with the part's number, and every `of`th after it.
    pub topics: Vec<u32>,
    /// To all.
    pub all: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_learn_what_others_have_published() {
        let part = |number| Part { number, of: 3 };
        let parts = [0, 1, 2].map(|number| Published::new(0, 7).of(part(number), 1));
        for (of, published) in parts.iter().enumerate() {
            for (room, topic) in published.topics.iter().enumerate().filter(|it| it.0 % 3 == of) {
                topic.store(10 + room as u32, Ordering::Relaxed);
            }
        }
        parts[0].all.store(5, Ordering::Relaxed);
        let own: Vec<PublishedHere> = parts.iter().map(Published::own).collect();
        assert_eq!(own[1].topics, [11, 14]);
        for published in &parts {
            (0..3).zip(&own).for_each(|(number, own)| published.learn(part(number), own));
            assert!((0..7).all(|room| published.topic(room) == 10 + room));
            assert_eq!(published.all(), 5);
        }
        // A part that reports too many topics changes nothing else.
        parts[2].learn(part(1), &PublishedHere { topics: vec![1; 99], all: 9 });
        assert_eq!((parts[2].topic(4), parts[2].topic(6), parts[2].all()), (1, 16, 5));
    }

    #[test]
    fn of_two_nodes_messages_may_come_in_another_order() {
        let published = Published::new(0, 1).of(Part::default(), 3);
        let mut tracker = Tracker::begin(0);
        [1, 3, 5].into_iter().for_each(|number| {
            tracker.arrive(number);
        });
        let to = To::Topic(0);
        assert!(!published.may_be_overtaken(to, 2, &tracker), "5 is of the same node");
        assert!(published.may_be_overtaken(to, 4, &tracker));
        published.mark_moved(to, 5);
        assert!(published.may_be_overtaken(to, 2, &tracker));
        assert!(!Published::new(0, 1).may_be_overtaken(to, 4, &tracker));
    }

    #[test]
    fn a_topic_of_others_begins_anywhere_once_agents_publish() {
        let published = Published::new(0, 2).of(Part { number: 0, of: 2 }, 1);
        published.topics[0].store(7, Ordering::Relaxed);
        assert_eq!(published.topic_tracker(1), Tracker::begin(0));
        published.begin();
        assert_eq!(published.topic_tracker(0), Tracker::begin(7));
        assert!(published.topic_tracker(1).is_anywhere());
    }
}
