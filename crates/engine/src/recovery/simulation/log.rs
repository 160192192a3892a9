//! The topics of a run, and what was published to them.

use std::ops::Index;

use model::Position;

use super::state::{Changes, KEYS};

/// The kind of a topic: what the history retains of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Big,
    /// So many messages are retained.
    Small(usize),
    Plain,
    /// Users acknowledge the topic, and so many messages are retained.
    Ack(usize),
    /// The last message of each key is retained, for so many keys.
    State(usize),
    /// Slow clients get the newest message of each key. Retained like `Big`, or not at all.
    Newest {
        retained: bool,
    },
    /// Only the application puts clients in this topic. It has no history.
    Extra,
    /// The topic of all connections.
    All,
    /// Messages that bypass the history of their topic and have no position.
    Passing,
}

impl What {
    pub fn has_history(self) -> bool {
        matches!(
            self,
            What::Big | What::Small(_) | What::State(_) | What::Newest { retained: true }
        )
    }

    pub fn is_acknowledged(self) -> bool {
        matches!(self, What::Ack(_))
    }

    /// Returns true if the topic's messages are retained, so that some can bypass the history.
    pub fn is_retained(self) -> bool {
        self.has_history() || self.is_acknowledged()
    }
}

pub(super) const TOPICS: [(&str, What); 17] = [
    ("big/a", What::Big),
    ("big/b", What::Big),
    ("big/c", What::Big),
    ("small/a", What::Small(3)),
    ("small/b", What::Small(7)),
    ("plain/a", What::Plain),
    ("plain/b", What::Plain),
    ("ack/a", What::Ack(1_000_000)),
    ("ack/b", What::Ack(1_000_000)),
    ("ack/c", What::Ack(WINDOW + 1)),
    ("state/a", What::State(KEYS)),
    ("state/b", What::State(KEYS - 2)),
    ("state/c", What::State(KEYS)),
    ("newest/a", What::Newest { retained: false }),
    ("newest/b", What::Newest { retained: true }),
    ("extra", What::Extra),
    ("*", What::All),
];
/// The topic whose rule redelivers: a client that can acknowledge on its connection gets messages again that it has not
/// acknowledged.
pub(super) const AGAIN: usize = 8;
pub(super) const EXTRA: usize = 15;
pub(super) const ALL: usize = 16;
/// In the topics from this one up to [`EXTRA`], slow clients get the newest message of each key.
pub(super) const CONFLATED: usize = 12;
/// Messages that bypass a topic's history have a log of their own, at this distance.
pub(super) const PASSING: usize = TOPICS.len();

/// Messages of an acknowledged topic that may be in flight.
pub(super) const WINDOW: usize = 3;
pub(super) const REDELIVERY_SECONDS: u32 = 5;

/// The offsets of each topic's messages, and the changes by messages of compacted topics.
pub(super) struct Log {
    pub offsets: Vec<Vec<u64>>,
    pub changes: Vec<Changes>,
}

impl Log {
    pub fn new() -> Self {
        let changes = TOPICS.iter().map(|_| Changes::default());
        Log { offsets: vec![Vec::new(); PASSING + TOPICS.len()], changes: changes.collect() }
    }

    /// Returns the topic and the number of the message with history that has this offset.
    pub fn find(&self, offset: u64) -> (usize, usize) {
        let with_history = (0..TOPICS.len()).filter(|topic| what(*topic).has_history());
        let mut found = with_history
            .filter_map(|topic| Some((topic, self[topic].binary_search(&offset).ok()?)));
        found.next().expect("a message")
    }
}

impl Index<usize> for Log {
    type Output = Vec<u64>;

    fn index(&self, topic: usize) -> &Vec<u64> {
        &self.offsets[topic]
    }
}

pub(super) fn what(topic: usize) -> What {
    TOPICS.get(topic).map_or(What::Passing, |topic| topic.1)
}

/// Returns true if slow clients get only the newest message of each key.
pub(super) fn conflates(topic: usize) -> bool {
    (CONFLATED..EXTRA).contains(&topic)
}

pub(super) fn name(topic: usize) -> &'static str {
    TOPICS[topic % TOPICS.len()].0
}

/// Returns how many of these messages are not after a position.
pub(super) fn count(offsets: &[u64], since: &str) -> usize {
    let id: Position = since.split('/').next().unwrap().parse().unwrap();
    offsets.partition_point(|offset| *offset <= id.offset)
}
