//! The messages that memory retains: a window for each topic, within its own limits and those of all topics together.
//!
//! One slab has the messages, and one list goes through them from the globally oldest to the newest. A topic has the
//! numbers of its messages; the usual one, a user's own topic with one message or none, takes about 110 bytes beside
//! the message.
//!
//! Every topic has a *floor*, the offset of the newest message that it lost: a client that has seen that one misses
//! nothing. Unknown topics share the floor *gone*.

mod for_sessions;
mod handover;
mod ring;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use history::{DroppedBy, Gone};
use model::Data;
use model::{Envelope, HistoryRule, Name, Publication};
use tables::{HashIndex, Hashed, fold};

use crate::slab::{List, NONE, Slab};
pub use for_sessions::ForSessions;
pub use handover::{Bounds, TopicRecord, Walk};
use ring::{Messages, TopicMessages, counted_bytes};

/// Messages, at most, whatever the limits: numbers have 32 bits.
const MESSAGES_MAX: usize = 1 << 31;

/// Messages that one sweep scans, for each topic that it may scan.
const SWEPT_MESSAGES: usize = 4;

/// The limits of all topics together.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The bytes of the messages, as `model::Message::bytes` counts them.
    pub bytes_max: usize,
    /// Known topics, also those without a message.
    pub topics_max: usize,
}

/// The retained messages of all topics. Callers pass the time, in milliseconds since 1970.
pub struct Windows {
    limits: Limits,
    messages: Messages,
    /// All messages, in the order of their offsets.
    order: List,
    bytes: usize,
    /// Counts of messages for sessions alone.
    for_sessions: ForSessions,
    topics: Slab<Topic>,
    index: HashIndex<Hashed, 256>,
    /// Topics with messages; first the one that got none for the longest time.
    active: List,
    /// Topics without messages, in the order in which they lost their last.
    idle: List,
    gone: u64,
    last_gone: u64,
    keys: RandomState,
    sweep: Sweep,
    dropped_by: DroppedBy,
}

struct Topic {
    name: Name,
    /// The newest message that the topic lost.
    floor: u64,
    /// The newest message that the topic ever had.
    last: u64,
    retained: TopicMessages,
    hash: u32,
    compact: bool,
    /// True if the message at the floor certainly existed.
    has_lost: bool,
    /// True if the limits of the topic's rule, or a deletion, have set the floor, and not those of all topics: with a
    /// store, messages before it are gone there, too.
    is_by_rule: bool,
    /// True if no rule retains its messages, only sessions.
    for_sessions: bool,
}

/// The position at which the next sweep continues.
#[derive(Default)]
struct Sweep {
    topic: u32,
    /// In that topic: messages up to this offset were scanned.
    after: u64,
}

/// A topic to read, and the offset after which to read it.
#[derive(Clone, Copy, Debug)]
pub struct TopicCursor<'a> {
    /// The hash of its name.
    pub hash: u64,
    /// Its name.
    pub topic: &'a str,
    /// The offset after which the reader needs messages.
    pub after: u64,
    /// The reader needs no removals of keys up to this offset.
    pub state_top: u64,
}

impl<'a> From<&'a history::TopicCursor> for TopicCursor<'a> {
    fn from(it: &'a history::TopicCursor) -> Self {
        TopicCursor { hash: it.hash, topic: &it.topic, after: it.after, state_top: it.state_top }
    }
}

/// The result of [`Windows::collect`].
#[derive(Debug)]
pub struct Collected {
    /// The messages, in the order of their offsets, over all topics.
    pub messages: Vec<Arc<Envelope>>,
    /// For each topic, the offset of its first message, among these or after them.
    pub first: Vec<Option<u64>>,
    /// All topics are complete up to this offset, and have more messages; `None` if these were all.
    pub through: Option<u64>,
}

/// The result of [`Windows::page`].
#[derive(Debug)]
pub struct Page {
    /// The messages: forwards the oldest first, backwards the newest first.
    pub messages: Vec<Arc<Envelope>>,
    /// True if the topic has further messages in this direction.
    pub more: bool,
}

impl Windows {
    /// Makes empty windows, which know nothing of messages up to the offset `floor`.
    pub fn new(limits: Limits, floor: u64) -> Self {
        Windows {
            limits,
            messages: Slab::new(),
            order: List::EMPTY,
            bytes: 0,
            for_sessions: ForSessions::default(),
            topics: Slab::new(),
            index: HashIndex::default(),
            active: List::EMPTY,
            idle: List::EMPTY,
            gone: floor,
            last_gone: floor,
            keys: RandomState::new(),
            sweep: Sweep::default(),
            dropped_by: DroppedBy::default(),
        }
    }

    /// Forgets all topics and messages, and knows nothing of messages up to the offset `floor` any more. Returns the
    /// old windows: dropping them frees their memory.
    #[must_use]
    pub fn reset(&mut self, floor: u64) -> Windows {
        let mut new = Windows::new(self.limits, floor);
        new.dropped_by = self.dropped_by;
        std::mem::replace(self, new)
    }

    /// Retains a message, whose offset is above all others', by the topic's rule. Then drops messages beyond the
    /// limits: the topic's own oldest messages, and the oldest of all topics. Drops a message at once that exceeds a
    /// limit alone. Ages are counted by `now_ms`, in milliseconds since 1970.
    pub fn push(&mut self, message: Arc<Envelope>, rule: &HistoryRule, now_ms: u64) {
        let offset = message.id.offset;
        let at = self.enter(message.topic_hash, &message.publication.topic);
        debug_assert!(
            self.order.newest == NONE || offset > self.messages[self.order.newest].id.offset,
            "offsets grow",
        );
        self.topics[at].last = offset;
        self.set_compact(at, rule.compact);
        let key = message.publication.key().filter(|_| rule.compact);
        if let Some(former) = key.and_then(|key| self.of_key(at, key)) {
            // No client misses a key's former state.
            self.take(at, former);
        }
        self.trim(at, rule, 1, counted_bytes(&message), now_ms, usize::MAX);
        // The rule has capacity for the largest payload, whatever its properties.
        let fits = rule.messages_max > 0
            && message.publication.data.bytes() as u64 <= rule.bytes_max
            && message.bytes() <= self.limits.bytes_max;
        if fits {
            self.add(at, message);
        } else if !message.is_expired(now_ms) {
            self.dropped_by.bytes += 1;
            let topic = &mut self.topics[at];
            (topic.floor, topic.has_lost, topic.is_by_rule) = (offset, true, false);
        }
        while self.bytes > self.limits.bytes_max || self.messages.len() > MESSAGES_MAX {
            self.evict(now_ms);
        }
        while self.topics.len() > self.limits.topics_max {
            self.forget(now_ms);
        }
    }

    /// Visits the names of the topics in a range of numbers that had messages after an offset, with their last
    /// offsets. Returns where the next range begins; `None` at the end.
    pub fn topics_after(
        &self,
        from: u32,
        count: u32,
        after: u64,
        mut each: impl FnMut(&Name, u64),
    ) -> Option<u32> {
        let to = from.saturating_add(count).min(self.topics.slots());
        let topics = (from..to).filter_map(|at| self.topics.get(at));
        topics.filter(|topic| topic.last > after).for_each(|topic| each(&topic.name, topic.last));
        (to < self.topics.slots()).then_some(to)
    }

    /// Returns true if every message that the topic had after this offset is present, except for expired ones and
    /// former states of keys.
    pub fn reaches(&self, hash: u64, name: &str, after: u64) -> bool {
        after >= self.floor(hash, name)
    }

    /// Returns true if a store may have more messages up to the floor.
    pub fn may_be_elsewhere(&self, hash: u64, name: &str) -> bool {
        self.find(hash, name).is_none_or(|at| !self.topics[at].is_by_rule)
    }

    /// Returns whether the topic has lost messages after this offset.
    pub fn gone_after(&self, hash: u64, name: &str, after: u64) -> Gone {
        let has_lost = self.find(hash, name).is_some_and(|at| self.topics[at].has_lost);
        match self.reaches(hash, name, after) {
            true => Gone::Nothing,
            false if has_lost => Gone::Some,
            false => Gone::Maybe,
        }
    }

    /// Returns counts of the messages that limits have dropped.
    pub fn dropped_by(&self) -> DroppedBy {
        self.dropped_by
    }

    /// Returns the offset of the newest message that the topic lost, or that an unknown topic may have lost.
    pub fn floor(&self, hash: u64, name: &str) -> u64 {
        self.find(hash, name).map_or(self.gone, |at| self.topics[at].floor)
    }

    /// Returns true if the topic's message with exactly this offset is present.
    pub fn holds(&self, hash: u64, name: &str, offset: u64) -> bool {
        let found = self.find(hash, name);
        found.is_some_and(|at| self.topics[at].retained.at(offset, &self.messages).is_some())
    }

    /// Returns the offset of the topic's newest message, present or not; `None` if the topic is unknown, and then the
    /// offset is at most [`Windows::last_gone`].
    pub fn last(&self, hash: u64, name: &str) -> Option<u64> {
        self.find(hash, name).map(|at| self.topics[at].last)
    }

    /// Returns the offset up to which unknown topics may have lost messages.
    #[cfg(test)]
    pub fn gone(&self) -> u64 {
        self.gone
    }

    /// Returns the offset after which unknown topics had no message. It is above `gone` if a topic was forgotten
    /// whose last message had expired.
    pub fn last_gone(&self) -> u64 {
        self.last_gone
    }

    /// Returns the offset before the topic's newest `messages` messages, of those that are not expired and are after
    /// the offset `above`; `None` if it has fewer.
    pub fn before_newest(
        &self,
        hash: u64,
        name: &str,
        above: u64,
        messages: usize,
        now_ms: u64,
    ) -> Option<u64> {
        let retained = &self.topics[self.find(hash, name)?].retained;
        // Most topics have no message that expires: theirs are not scanned.
        let expire = retained.expiring(&self.messages) > 0;
        let newest = retained.after(above, &self.messages).rev();
        let mut live = newest.filter(|(_, message)| !(expire && message.is_expired(now_ms)));
        live.nth(messages.checked_sub(1)?).map(|(_, message)| message.id.offset - 1)
    }

    /// Returns the messages of some topics after some offset in each, without the expired ones: at most
    /// `messages_max`, or 1 if that is 0, and no more once their payloads have over `bytes_max` bytes.
    pub fn collect(
        &self,
        topics: &[TopicCursor<'_>],
        messages_max: usize,
        bytes_max: usize,
        now_ms: u64,
    ) -> Collected {
        let mut first_of_each = vec![None; topics.len()];
        let mut runs = Vec::with_capacity(topics.len());
        let mut next = BinaryHeap::with_capacity(topics.len());
        for (cursor, first_of_topic) in topics.iter().zip(&mut first_of_each) {
            let Some(at) = self.find(cursor.hash, cursor.topic) else { continue };
            let topic = &self.topics[at];
            let is_needed = move |found: &Envelope| {
                found.id.offset > cursor.state_top || !is_removal(&found.publication)
            };
            let mut run = topic
                .retained
                .after(cursor.after, &self.messages)
                .filter(move |(_, found)| !found.is_expired(now_ms) && is_needed(found));
            if let Some((number, first)) = run.next() {
                *first_of_topic = Some(first.id.offset);
                next.push(Reverse((first.id.offset, number, runs.len())));
                runs.push(run);
            }
        }
        let mut messages: Vec<Arc<Envelope>> = Vec::new();
        let (mut bytes, mut last) = (0, None);
        while let Some(mut first) = next.peek_mut() {
            let Reverse((offset, number, run)) = *first;
            // A topic that is named twice has its messages twice.
            if last != Some(offset) {
                if messages.len() >= messages_max.max(1) || bytes > bytes_max {
                    return Collected { messages, first: first_of_each, through: last };
                }
                let message = &self.messages[number];
                bytes += message.publication.data.bytes();
                messages.push(message.clone());
                last = Some(offset);
            }
            match runs[run].next() {
                Some((number, message)) => *first = Reverse((message.id.offset, number, run)),
                None => {
                    PeekMut::pop(first);
                }
            }
        }
        Collected { messages, first: first_of_each, through: None }
    }

    /// Returns up to `limit` messages of a topic, without the expired ones. Forwards they are those after the offset
    /// `from`, or from the start; backwards those before it, or from the end.
    pub fn page(
        &self,
        hash: u64,
        name: &str,
        from: Option<u64>,
        backwards: bool,
        limit: usize,
        now_ms: u64,
    ) -> Page {
        let Some(at) = self.find(hash, name) else {
            return Page { messages: Vec::new(), more: false };
        };
        let retained = &self.topics[at].retained;
        let live = |(_, message): (u32, _)| {
            Some(message).filter(|m: &&Arc<Envelope>| !m.is_expired(now_ms))
        };
        if backwards {
            let before = retained.before(from.unwrap_or(u64::MAX), &self.messages);
            Page::of(before.rev().filter_map(live), limit)
        } else {
            Page::of(retained.after(from.unwrap_or(0), &self.messages).filter_map(live), limit)
        }
    }

    /// Removes the topic's messages up to an offset: a client that has not seen them misses them. Returns their
    /// number.
    pub fn delete(&mut self, hash: u64, name: &str, through: u64) -> u64 {
        let Some(at) = self.find(hash, name) else { return 0 };
        let mut removed = 0;
        while let Some(oldest) = self.topics[at].retained.oldest()
            && self.messages[oldest].id.offset <= through
        {
            self.take(at, oldest);
            removed += 1;
        }
        // Later messages stay.
        let topic = &mut self.topics[at];
        topic.floor = topic.floor.max(through.min(topic.last));
        topic.has_lost |= removed > 0;
        topic.is_by_rule |= removed > 0;
        removed
    }

    /// Notes a message that is not retained here, and whose offset is above all others': a client that has not seen it
    /// misses it. Removes the topic's messages.
    pub fn pass(&mut self, hash: u64, name: &Name, offset: u64, now_ms: u64) {
        let at = self.enter(hash, name);
        self.topics[at].last = offset;
        self.delete(hash, name, offset);
        while self.topics.len() > self.limits.topics_max {
            self.forget(now_ms);
        }
    }

    /// Continues over at most `topics_max` topics, and a few messages for each on average: drops messages beyond the
    /// limits of the topic's rule, expired ones, and all of topics without a rule. Returns the number of dropped
    /// messages.
    pub fn sweep(
        &mut self,
        now_ms: u64,
        rule_of: &dyn Fn(&str) -> Option<Arc<HistoryRule>>,
        topics_max: usize,
    ) -> usize {
        let before = self.messages.len();
        let mut scans = topics_max.saturating_mul(SWEPT_MESSAGES);
        for _ in 0..topics_max.min(self.topics.slots() as usize) {
            if self.sweep.topic >= self.topics.slots() {
                self.sweep = Sweep::default();
            }
            let at = self.sweep.topic;
            let done = match self.topics.get(at) {
                Some(topic) if !topic.retained.is_empty() => {
                    let rule = rule_of(&topic.name);
                    self.sweep_topic(at, rule.as_deref(), now_ms, &mut scans)
                }
                _ => true,
            };
            if !done {
                break;
            }
            self.sweep = Sweep { topic: at + 1, after: 0 };
        }
        before - self.messages.len()
    }

    /// Returns the number of present messages.
    pub fn messages(&self) -> usize {
        self.messages.len()
    }

    /// Returns their bytes, as `model::Message::bytes` counts them.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of known topics.
    pub fn topics(&self) -> usize {
        self.topics.len()
    }

    fn find(&self, hash: u64, name: &str) -> Option<u32> {
        self.index.find(fold(hash), |at| self.topics[at].name == name)
    }

    /// Returns the topic, and makes it if it is unknown.
    fn enter(&mut self, hash: u64, name: &Name) -> u32 {
        if let Some(at) = self.find(hash, name) {
            return at;
        }
        let hash = fold(hash);
        let at = self.topics.insert(Topic {
            name: name.clone(),
            floor: self.gone,
            last: self.gone,
            retained: TopicMessages::Nothing,
            hash,
            compact: false,
            has_lost: false,
            is_by_rule: false,
            for_sessions: false,
        });
        self.index.insert(hash, at);
        self.topics.link(&mut self.idle, at);
        at
    }

    fn add(&mut self, at: u32, message: Arc<Envelope>) {
        let key = message.publication.key().map(|key| self.key_hash(key));
        self.bytes += message.bytes();
        if self.topics[at].for_sessions {
            self.for_sessions.add(message.bytes());
        }
        let number = self.messages.insert(message);
        self.messages.link(&mut self.order, number);
        let topic = &mut self.topics[at];
        let list = if topic.retained.is_empty() { &mut self.idle } else { &mut self.active };
        let is_first_ring = topic.retained.push(number, &self.messages);
        let compact = topic.compact;
        if let (TopicMessages::Many(ring), Some(key)) = (&mut topic.retained, key)
            && let Some(keys) = &mut ring.keys
        {
            keys.insert(key, number);
        }
        self.topics.unlink(list, at);
        self.topics.link(&mut self.active, at);
        if is_first_ring && compact {
            self.index_keys(at);
        }
    }

    /// Removes a message from a topic, and leaves the floor as it is.
    fn take(&mut self, at: u32, number: u32) -> Arc<Envelope> {
        let key = self.messages[number].publication.key().map(|key| self.key_hash(key));
        let topic = &mut self.topics[at];
        if let (TopicMessages::Many(ring), Some(key)) = (&mut topic.retained, key)
            && let Some(keys) = &mut ring.keys
        {
            keys.remove(key, number);
        }
        topic.retained.remove(number, &self.messages);
        if topic.retained.is_empty() {
            self.topics.unlink(&mut self.active, at);
            self.topics.link(&mut self.idle, at);
        }
        self.messages.unlink(&mut self.order, number);
        let message = self.messages.remove(number);
        self.bytes -= message.bytes();
        if self.topics[at].for_sessions {
            self.for_sessions.remove(message.bytes());
        }
        message
    }

    /// Removes a message from a topic, and raises the floor unless the message has expired. Returns true if it raises
    /// the floor.
    fn lose(&mut self, at: u32, number: u32, now_ms: u64) -> bool {
        let message = self.take(at, number);
        let topic = &mut self.topics[at];
        // A key's former states are gone with the state that replaced them.
        let state = topic.compact && message.publication.key().is_some();
        let is_missed = state || !message.is_expired(now_ms);
        if is_missed {
            topic.floor = topic.floor.max(message.id.offset);
            (topic.has_lost, topic.is_by_rule) = (true, false);
        }
        is_missed
    }

    /// Loses the oldest messages of a topic, at most `messages_max`, until `more` messages with `more_bytes` bytes
    /// fit in. Returns how many it lost.
    fn trim(
        &mut self,
        at: u32,
        rule: &HistoryRule,
        more: u64,
        more_bytes: u64,
        now_ms: u64,
        messages_max: usize,
    ) -> usize {
        let mut dropped = 0;
        while dropped < messages_max
            && let retained = &self.topics[at].retained
            && let Some(oldest) = retained.oldest()
        {
            let age_ms = now_ms.saturating_sub(self.messages[oldest].at_ms);
            let bytes = retained.bytes(&self.messages);
            let by = &mut self.dropped_by;
            let count = if (retained.len() as u64).saturating_add(more) > rule.messages_max {
                &mut by.messages
            } else if bytes.saturating_add(more_bytes) > rule.bytes_max {
                &mut by.bytes
            } else if age_ms > rule.seconds_max.saturating_mul(1_000) {
                &mut by.seconds
            } else {
                break;
            };
            *count += u64::from(!self.messages[oldest].is_expired(now_ms));
            if self.lose(at, oldest, now_ms) {
                self.topics[at].is_by_rule = true;
            }
            dropped += 1;
        }
        dropped
    }

    /// Loses the oldest message of all.
    fn evict(&mut self, now_ms: u64) {
        let number = self.order.oldest;
        let message = &self.messages[number];
        let found = self.find(message.topic_hash, &message.publication.topic);
        let is_missed = self.lose(found.expect("a message's topic is known"), number, now_ms);
        self.dropped_by.memory += u64::from(is_missed);
    }

    /// Forgets a topic: one without messages, or else the one that got none for the longest time.
    fn forget(&mut self, now_ms: u64) {
        let at = if self.idle.oldest != NONE { self.idle.oldest } else { self.active.oldest };
        while let Some(oldest) = self.topics[at].retained.oldest() {
            let is_missed = self.lose(at, oldest, now_ms);
            self.dropped_by.memory += u64::from(is_missed);
        }
        self.topics.unlink(&mut self.idle, at);
        let topic = self.topics.remove(at);
        self.index.remove(topic.hash, at);
        self.gone = self.gone.max(topic.floor);
        self.last_gone = self.last_gone.max(topic.last);
    }

    /// Returns false if the topic needs another sweep.
    fn sweep_topic(
        &mut self,
        at: u32,
        rule: Option<&HistoryRule>,
        now_ms: u64,
        scans: &mut usize,
    ) -> bool {
        let Some(rule) = rule else {
            while let Some(oldest) = self.topics[at].retained.oldest() {
                if *scans == 0 {
                    return false;
                }
                *scans -= 1;
                self.lose(at, oldest, now_ms);
            }
            return true;
        };
        *scans -= self.trim(at, rule, 0, 0, now_ms, *scans);
        if *scans == 0 {
            return false;
        }
        let Topic { ref retained, compact, .. } = self.topics[at];
        if retained.expiring(&self.messages) == 0 {
            return true;
        }
        let mut rest = retained.after(self.sweep.after, &self.messages);
        let mut expired = Vec::new();
        let mut after = self.sweep.after;
        for (number, message) in rest.by_ref().take(*scans) {
            *scans -= 1;
            after = message.id.offset;
            if message.is_expired(now_ms) || (compact && is_old_removal(message, now_ms)) {
                expired.push(number);
            }
        }
        let done = rest.next().is_none();
        drop(rest);
        for number in expired {
            self.lose(at, number, now_ms);
        }
        self.sweep.after = after;
        done
    }

    fn key_hash(&self, key: &str) -> u32 {
        fold(self.keys.hash_one(key))
    }

    /// Returns the number of the message that is the state of a key, in a compact topic.
    fn of_key(&self, at: u32, key: &Name) -> Option<u32> {
        let is = |number: u32| self.messages[number].publication.key() == Some(key);
        match &self.topics[at].retained {
            TopicMessages::Nothing => None,
            TopicMessages::One(number) => Some(*number).filter(|number| is(*number)),
            TopicMessages::Many(ring) => ring.keys.as_ref()?.find(self.key_hash(key), is),
        }
    }

    /// Changes whether the topic is compact, because a reload can change the rule.
    fn set_compact(&mut self, at: u32, compact: bool) {
        let topic = &mut self.topics[at];
        if topic.compact == compact {
            return;
        }
        topic.compact = compact;
        if compact {
            self.index_keys(at);
        } else if let TopicMessages::Many(ring) = &mut topic.retained {
            ring.keys = None;
        }
    }

    /// Indexes the keys of a topic's messages, and removes all messages of a key but the last.
    fn index_keys(&mut self, at: u32) {
        let mut keys = HashIndex::<Hashed, 1>::default();
        let mut former = Vec::new();
        for (number, message) in self.topics[at].retained.after(0, &self.messages).rev() {
            let Some(key) = message.publication.key() else { continue };
            let hash = self.key_hash(key);
            let is = |other: u32| self.messages[other].publication.key() == Some(key);
            match keys.find(hash, is) {
                Some(_) => former.push(number),
                None => keys.insert(hash, number),
            }
        }
        if let TopicMessages::Many(ring) = &mut self.topics[at].retained {
            ring.keys = Some(keys);
        }
        for number in former {
            self.take(at, number);
        }
    }
}

impl Page {
    fn of<'a>(mut found: impl Iterator<Item = &'a Arc<Envelope>>, limit: usize) -> Page {
        let messages = found.by_ref().take(limit).cloned().collect();
        Page { messages, more: found.next().is_some() }
    }
}

/// Returns true if a removal is old enough to be dropped: otherwise it would take a state's capacity for ever.
fn is_old_removal(message: &Envelope, now_ms: u64) -> bool {
    let goes_ms = message.at_ms.saturating_add(store::REMOVAL_SECONDS * 1_000);
    is_removal(&message.publication) && goes_ms <= now_ms
}

/// Returns true if a message of a compacted topic removes the state of its key: its data is `null`.
pub fn is_removal(publication: &Publication) -> bool {
    publication.key().is_some()
        && matches!(&publication.data, Data::Json(text) if **text == *"null")
}
