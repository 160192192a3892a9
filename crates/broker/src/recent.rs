//! The recent window: the last messages of all topics, for a long poll that returns, and for operators.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use model::{Envelope, Message, Name, Position};
use siphasher::sip::SipHasher13;
use tables::Prehashed;

/// The result of [`crate::Broker::recent`].
#[derive(Debug)]
pub struct Recent {
    /// The messages after the given position, oldest first.
    pub messages: Vec<Arc<Envelope>>,
    /// The newest position of the whole node when the scan began.
    pub top: Position,
    /// False if messages of these topics may be missing: the given position is of another epoch, or the window has
    /// dropped some since.
    pub complete: bool,
}

/// The result of [`crate::Broker::latest`].
#[derive(Debug)]
pub struct Latest {
    /// The messages, newest first.
    pub messages: Vec<Arc<Envelope>>,
    /// False if the scan stopped before the limit and before the window's end: it may have missed older messages.
    pub complete: bool,
}

/// How often topics occur among the newest messages: the result of [`crate::Broker::activity`].
#[derive(Clone, Debug, Default)]
pub struct Activity {
    /// The time that the counts cover, up to now, in microseconds: all messages published in it
    /// are counted, and none before it.
    pub span_us: u64,
    /// Topics by the hash of their name, each with at least one message.
    pub topics: HashMap<u64, TopicActivity>,
}

/// One topic's part of the newest messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicActivity {
    /// Its name; `*` is a broadcast, `@alice` the user `alice`.
    pub topic: Name,
    /// Its messages in the time covered.
    pub messages: u64,
}

impl Activity {
    /// Counts a message for its topic.
    pub fn count(&mut self, message: &Message) {
        let topic = self.topics.entry(message.topic_hash);
        let topic = topic.or_insert_with(|| TopicActivity {
            topic: message.publication.topic.clone(),
            messages: 0,
        });
        topic.messages += 1;
    }

    /// Returns the number of messages that the topic had.
    pub fn messages(&self, topic_hash: u64) -> u64 {
        self.topics.get(&topic_hash).map_or(0, |topic| topic.messages)
    }
}

/// The limits of a window; the first one that is reached counts.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Messages in the recent window.
    pub recent_messages_max: usize,
    /// Their bytes.
    pub recent_bytes_max: usize,
    /// Their age in seconds.
    pub recent_seconds_max: u64,
}

/// A ring of the last messages, in the order of their offsets.
pub struct Window {
    limits: Limits,
    ring: VecDeque<Arc<Envelope>>,
    /// The same messages by the hashes of their topics: a poll finds those of its own among all others.
    by_topic: HashMap<u64, TopicMessages, BuildHasherDefault<Prehashed>>,
    bytes: usize,
    /// When the newest dropped message was published.
    pub(crate) gone_us: u64,
    pub(crate) dropped: Dropped,
}

/// The messages of the topics that share a hash, oldest first: at least one.
enum TopicMessages {
    /// Most topics have one message in the window, which needs no memory of its own.
    One(Arc<Envelope>),
    Many(VecDeque<Arc<Envelope>>),
}

impl TopicMessages {
    fn len(&self) -> usize {
        match self {
            TopicMessages::One(_) => 1,
            TopicMessages::Many(messages) => messages.len(),
        }
    }

    fn get(&self, at: usize) -> Option<&Arc<Envelope>> {
        match self {
            TopicMessages::One(message) => Some(message).filter(|_| at == 0),
            TopicMessages::Many(messages) => messages.get(at),
        }
    }

    /// Returns the number of messages with an offset up to `offset`.
    fn count_up_to(&self, offset: u64) -> usize {
        match self {
            TopicMessages::One(message) => usize::from(message.id.offset <= offset),
            TopicMessages::Many(messages) => {
                messages.partition_point(|message| message.id.offset <= offset)
            }
        }
    }

    /// Adds a message that is newer than all others.
    fn push(&mut self, message: Arc<Envelope>) {
        match self {
            TopicMessages::One(first) => {
                *self = TopicMessages::Many(VecDeque::from([first.clone(), message]));
            }
            TopicMessages::Many(messages) => messages.push_back(message),
        }
    }

    /// Removes the message with this offset, unless it is the only one. Returns false if it is.
    fn remove(&mut self, offset: u64) -> bool {
        match self {
            TopicMessages::Many(messages) if messages.len() > 1 => {
                // Nearly always the oldest one is removed.
                let at = match messages.front() {
                    Some(oldest) if oldest.id.offset == offset => 0,
                    _ => messages.partition_point(|message| message.id.offset < offset),
                };
                messages.remove(at).is_some()
            }
            TopicMessages::One(_) | TopicMessages::Many(_) => false,
        }
    }
}

/// The number of buckets in `Dropped`: topics that share a bucket count as one.
pub(crate) const DROPPED_BUCKETS: usize = 4_096;

/// The newest dropped message of each topic.
pub(crate) struct Dropped {
    /// The key of the hash that gives a topic its bucket, if that is not the node's: an imported window continues to
    /// use its old buckets.
    pub key: Option<(u64, u64)>,
    /// The offset of the newest dropped message of the topics that share a bucket.
    pub offsets: Box<[u64; DROPPED_BUCKETS]>,
}

impl Dropped {
    fn bucket(&self, topic_hash: u64, topic: &str) -> usize {
        let hash = self.key.map_or(topic_hash, |key| keyed_hash(key, topic));
        (hash % DROPPED_BUCKETS as u64) as usize
    }
}

/// Hashes a topic's name with a key.
pub(crate) fn keyed_hash(key: (u64, u64), topic: &str) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(key.0, key.1);
    hasher.write(topic.as_bytes());
    hasher.finish()
}

impl Window {
    /// Makes an empty window.
    pub fn new(limits: Limits) -> Self {
        let dropped = Dropped { key: None, offsets: Box::new([0; DROPPED_BUCKETS]) };
        let (ring, by_topic) = (VecDeque::new(), HashMap::default());
        Window { limits, ring, by_topic, bytes: 0, gone_us: 0, dropped }
    }

    /// Adds a message that is newer than all others, and drops messages beyond the limits.
    pub fn push(&mut self, message: Arc<Envelope>) {
        self.append(message);
        self.drop_excess();
    }

    fn append(&mut self, message: Arc<Envelope>) {
        self.bytes += message.bytes();
        match self.by_topic.entry(message.topic_hash) {
            Entry::Occupied(mut messages) => messages.get_mut().push(message.clone()),
            Entry::Vacant(entry) => {
                entry.insert(TopicMessages::One(message.clone()));
            }
        }
        self.ring.push_back(message);
    }

    /// Drops messages beyond the limits; ages count up to the newest message.
    fn drop_excess(&mut self) {
        let now_us = self.ring.back().map_or(0, |newest| newest.published_us);
        let age_us_max = self.limits.recent_seconds_max * 1_000_000;
        while let Some(oldest) = self.ring.front() {
            let exceeds_limits = self.ring.len() > self.limits.recent_messages_max
                || self.bytes > self.limits.recent_bytes_max
                || now_us.saturating_sub(oldest.published_us) > age_us_max;
            if !exceeds_limits {
                break;
            }
            self.bytes -= oldest.bytes();
            self.gone_us = oldest.published_us;
            let bucket = self.dropped.bucket(oldest.topic_hash, &oldest.publication.topic);
            self.dropped.offsets[bucket] = oldest.id.offset;
            if let Some(oldest) = self.ring.pop_front() {
                self.remove_from_index(&oldest);
            }
        }
    }

    /// Removes a message that the ring has lost from the index by topic.
    fn remove_from_index(&mut self, message: &Envelope) {
        let Entry::Occupied(mut messages) = self.by_topic.entry(message.topic_hash) else { return };
        if !messages.get_mut().remove(message.id.offset) {
            messages.remove();
        }
    }

    /// Returns up to `count` messages with an offset below `before`, newest first.
    pub fn before(&self, before: u64, count: usize) -> impl Iterator<Item = &Arc<Envelope>> {
        let end = self.ring.partition_point(|message| message.id.offset < before);
        self.ring.range(end.saturating_sub(count)..end).rev()
    }

    /// Returns a time in microseconds of the node's clock. The window has each message that was published after it.
    pub fn complete_after_us(&self) -> u64 {
        self.gone_us
    }

    /// Replaces the messages by those of another process, in the order of their offsets, which dropped those up to
    /// this time, in microseconds of the node's clock. Drops messages beyond the limits.
    pub fn restore(&mut self, gone_us: u64, messages: impl IntoIterator<Item = Arc<Envelope>>) {
        (self.bytes, self.gone_us) = (0, gone_us);
        self.ring.clear();
        self.by_topic.clear();
        messages.into_iter().for_each(|message| self.push(message));
    }

    /// Makes an empty window with the same limits.
    pub fn new_alike(&self) -> Self {
        Window::new(self.limits)
    }

    /// Adds a message of another process's window, if it is newer than all others here, and drops nothing until this
    /// process takes over the window. Returns true if it is newer.
    pub fn push_imported(&mut self, message: Arc<Envelope>) -> bool {
        let is_newest = self.ring.back().is_none_or(|newest| newest.id.offset < message.id.offset);
        if is_newest {
            self.append(message);
        }
        is_newest
    }

    /// Removes the message with this offset, if it exists.
    pub fn remove(&mut self, offset: u64) {
        let at = self.ring.partition_point(|message| message.id.offset < offset);
        if self.ring.get(at).is_some_and(|message| message.id.offset == offset)
            && let Some(message) = self.ring.remove(at)
        {
            self.bytes -= message.bytes();
            self.remove_from_index(&message);
        }
    }

    /// Replaces the messages by those of another process's window, which dropped those up to this time, in
    /// microseconds of the node's clock, and those in these buckets. Drops messages beyond the limits.
    pub(crate) fn go_on_with(&mut self, imported: Window, gone_us: u64, dropped: Dropped) {
        let Window { ring, by_topic, bytes, .. } = imported;
        (self.ring, self.by_topic, self.bytes) = (ring, by_topic, bytes);
        (self.gone_us, self.dropped) = (gone_us, dropped);
        self.drop_excess();
    }

    /// Returns up to `count` messages with an offset over `after`, oldest first.
    pub fn after(&self, after: u64, count: usize) -> impl Iterator<Item = &Arc<Envelope>> {
        let from = self.ring.partition_point(|message| message.id.offset <= after);
        self.ring.range(from..self.ring.len().min(from.saturating_add(count)))
    }

    /// Returns the messages of these topics, which are sorted, with offsets over `after` and up to `to`, oldest
    /// first. Scans at most `count` messages of each topic; also returns the offset up to which these are all.
    pub fn of_topics(
        &self,
        topics: &[(u64, &str)],
        after: u64,
        mut to: u64,
        count: usize,
    ) -> (Vec<Arc<Envelope>>, u64) {
        let mut found = Vec::new();
        // Groups topics by hash: names are compared only if hashes are the same.
        for topics in topics.chunk_by(|one, other| one.0 == other.0) {
            let Some(messages) = self.by_topic.get(&topics[0].0) else { continue };
            let from = messages.count_up_to(after);
            let end = messages.len().min(from.saturating_add(count));
            for message in (from..end).filter_map(|at| messages.get(at)) {
                let name = message.publication.topic.as_str();
                if topics.iter().any(|(_, topic)| *topic == name) {
                    found.push(message.clone());
                }
            }
            if end < messages.len()
                && let Some(last) = messages.get(end - 1)
            {
                to = to.min(last.id.offset);
            }
        }
        found.retain(|message| message.id.offset <= to);
        found.sort_unstable_by_key(|message| message.id.offset);
        (found, to)
    }

    /// Returns true if the window has dropped a message with an offset over `offset` of this topic, or of another
    /// that shares its bucket.
    pub fn has_dropped(&self, topic_hash: u64, topic: &str, offset: u64) -> bool {
        self.dropped.offsets[self.dropped.bucket(topic_hash, topic)] > offset
    }
}

#[cfg(test)]
mod tests {
    use model::{Data, Epoch, Publication};
    use random::Random;

    use super::*;

    /// Makes topics 0 to 5; the last two have the same hash.
    fn topic(number: u64) -> (u64, String) {
        (number.min(4), format!("t{number}"))
    }

    fn message(offset: u64, number: u64) -> Arc<Envelope> {
        let (hash, name) = topic(number);
        let publication = Publication::new(&name, Data::Text("x".into()));
        let id = Position { epoch: Epoch(1), offset };
        Arc::new(Message::new(publication, id, hash, offset).into())
    }

    #[test]
    fn messages_of_topics_are_those_that_a_scan_finds() {
        let mut random = Random::new(7);
        let mut below = |limit: u64| random.below(limit);
        let limits =
            Limits { recent_messages_max: 40, recent_bytes_max: 1 << 20, recent_seconds_max: 60 };
        let (mut window, mut offset) = (Window::new(limits), 0);
        for round in 0..2_000 {
            // Offsets may leave gaps.
            offset += 1 + below(3);
            window.push(message(offset, below(6)));
            let requested: Vec<(u64, String)> =
                (0..6).filter(|_| below(2) == 0).map(topic).collect();
            let mut topics: Vec<(u64, &str)> =
                requested.iter().map(|(hash, name)| (*hash, name.as_str())).collect();
            topics.sort_unstable();
            let (from, count) = (offset.saturating_sub(below(100)), 1 + below(9) as usize);
            let to = from + below(offset - from + 1);
            let scan = |to: u64| {
                let is_requested = |found: &&Arc<Envelope>| {
                    let key = (found.topic_hash, found.publication.topic.as_str());
                    found.id.offset <= to && topics.contains(&key)
                };
                let found = window.after(from, usize::MAX).filter(is_requested);
                found.map(|found| found.id.offset).collect::<Vec<_>>()
            };
            let (mut found, mut seen) = (Vec::new(), from);
            while seen < to {
                let (part, until) = window.of_topics(&topics, seen, to, count);
                assert!(until > seen && until <= to, "round {round}: {seen} to {until} of {to}");
                found.extend(part.iter().map(|found| found.id.offset));
                assert_eq!(found, scan(until), "round {round}");
                seen = until;
            }
            let indexed: usize = window.by_topic.values().map(TopicMessages::len).sum();
            assert_eq!(indexed, window.ring.len());
            assert!(window.by_topic.values().all(|messages| messages.len() > 0));
        }
        let mut imported = Window::new(limits);
        (1..=50).for_each(|at| assert!(imported.push_imported(message(at, at % 6))));
        assert!(!imported.push_imported(message(50, 1)), "it is not newer");
        [1, 30, 99].iter().for_each(|at| imported.remove(*at));
        let dropped = Dropped { key: None, offsets: Box::new([0; DROPPED_BUCKETS]) };
        window.go_on_with(imported, 0, dropped);
        let offsets: Vec<u64> = window.ring.iter().map(|message| message.id.offset).collect();
        assert_eq!(offsets, (10..=50).filter(|at| *at != 30).collect::<Vec<_>>());
        let indexed: usize = window.by_topic.values().map(TopicMessages::len).sum();
        assert_eq!((indexed, window.gone_us), (offsets.len(), 9));
    }
}
