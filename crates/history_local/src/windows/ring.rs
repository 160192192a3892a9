//! The messages of one topic, in the order of their offsets.

use std::collections::VecDeque;
use std::sync::Arc;

use model::{Envelope, Message};
use tables::{HashIndex, Hashed};

use super::is_removal;
use crate::slab::{NONE, Slab};

/// All retained messages, by number.
pub type Messages = Slab<Arc<Envelope>>;

/// A topic's messages. Most topics have none or one: those need no memory of their own.
#[derive(Default)]
pub enum TopicMessages {
    /// None.
    #[default]
    Nothing,
    /// One, by its number.
    One(u32),
    /// Several.
    Many(Box<Ring>),
}

/// Several messages of a topic.
#[derive(Default)]
pub struct Ring {
    /// The messages and holes. Neither the first nor the last is a hole.
    entries: VecDeque<Entry>,
    holes: usize,
    /// The bytes of their payloads and properties.
    bytes: u64,
    /// The number of messages that expire.
    expiring: usize,
    /// In a compact topic: the message of each key.
    pub keys: Option<HashIndex<Hashed, 1>>,
}

#[derive(Clone, Copy)]
struct Entry {
    offset: u64,
    /// [`NONE`] is a hole: a message was removed from the middle.
    number: u32,
}

impl TopicMessages {
    pub fn len(&self) -> usize {
        match self {
            TopicMessages::Nothing => 0,
            TopicMessages::One(_) => 1,
            TopicMessages::Many(ring) => ring.entries.len() - ring.holes,
        }
    }

    pub fn is_empty(&self) -> bool {
        matches!(self, TopicMessages::Nothing)
    }

    /// Returns the number of the oldest message.
    pub fn oldest(&self) -> Option<u32> {
        match self {
            TopicMessages::Nothing => None,
            TopicMessages::One(number) => Some(*number),
            TopicMessages::Many(ring) => ring.entries.front().map(|entry| entry.number),
        }
    }

    /// Returns the bytes of the payloads and properties.
    pub fn bytes(&self, messages: &Messages) -> u64 {
        match self {
            TopicMessages::Nothing => 0,
            TopicMessages::One(number) => counted_bytes(&messages[*number]),
            TopicMessages::Many(ring) => ring.bytes,
        }
    }

    /// Returns the number of messages that expire.
    pub fn expiring(&self, messages: &Messages) -> usize {
        match self {
            TopicMessages::Nothing => 0,
            TopicMessages::One(number) => usize::from(expires(&messages[*number])),
            TopicMessages::Many(ring) => ring.expiring,
        }
    }

    /// Adds a message, which is newer than all others. Returns true when the topic has several for the first time.
    pub fn push(&mut self, number: u32, messages: &Messages) -> bool {
        match self {
            TopicMessages::Nothing => *self = TopicMessages::One(number),
            TopicMessages::One(first) => {
                let mut ring = Box::<Ring>::default();
                ring.push(*first, &messages[*first]);
                ring.push(number, &messages[number]);
                *self = TopicMessages::Many(ring);
                return true;
            }
            TopicMessages::Many(ring) => ring.push(number, &messages[number]),
        }
        false
    }

    /// Removes a message that the topic has.
    pub fn remove(&mut self, number: u32, messages: &Messages) {
        if let TopicMessages::Many(ring) = self {
            ring.remove(&messages[number]);
            if ring.entries.len() == 1 {
                *self = TopicMessages::One(ring.entries[0].number);
            }
        } else {
            *self = TopicMessages::Nothing;
        }
    }

    /// Returns the messages after an offset, oldest first, with their numbers.
    pub fn after<'a>(
        &'a self,
        after: u64,
        messages: &'a Messages,
    ) -> impl DoubleEndedIterator<Item = (u32, &'a Arc<Envelope>)> + use<'a> {
        self.range(after.checked_add(1), None, messages)
    }

    /// Returns the messages before an offset, oldest first, with their numbers.
    pub fn before<'a>(
        &'a self,
        before: u64,
        messages: &'a Messages,
    ) -> impl DoubleEndedIterator<Item = (u32, &'a Arc<Envelope>)> + use<'a> {
        self.range(Some(0), Some(before), messages)
    }

    /// Returns the messages at `from` and after, and before `until`; none without `from`, and all without `until`.
    fn range<'a>(
        &'a self,
        from: Option<u64>,
        until: Option<u64>,
        messages: &'a Messages,
    ) -> impl DoubleEndedIterator<Item = (u32, &'a Arc<Envelope>)> + use<'a> {
        let from = from.unwrap_or(u64::MAX);
        let (mut one, mut many) = (None, None);
        match self {
            TopicMessages::Nothing => {}
            TopicMessages::One(number) => {
                let offset = messages[*number].id.offset;
                let is_in = offset >= from && until.is_none_or(|until| offset < until);
                one = is_in.then_some(*number);
            }
            TopicMessages::Many(ring) => {
                let at = |offset| ring.entries.partition_point(|entry| entry.offset < offset);
                let from = at(from);
                let until = until.map_or(ring.entries.len(), at);
                many = Some(ring.entries.range(from..until.max(from)));
            }
        }
        let many = many.into_iter().flatten().map(|entry| entry.number);
        let all = one.into_iter().chain(many.filter(|number| *number != NONE));
        all.map(|number| (number, &messages[number]))
    }

    /// Returns the number of the message with this offset.
    pub fn at(&self, offset: u64, messages: &Messages) -> Option<u32> {
        match self {
            TopicMessages::Nothing => None,
            TopicMessages::One(number) => {
                (messages[*number].id.offset == offset).then_some(*number)
            }
            TopicMessages::Many(ring) => {
                let at = ring.entries.binary_search_by_key(&offset, |entry| entry.offset).ok()?;
                Some(ring.entries[at].number).filter(|number| *number != NONE)
            }
        }
    }
}

impl Ring {
    fn push(&mut self, number: u32, message: &Message) {
        self.bytes += counted_bytes(message);
        self.expiring += usize::from(expires(message));
        self.entries.push_back(Entry { offset: message.id.offset, number });
    }

    fn remove(&mut self, message: &Message) {
        let offset = message.id.offset;
        let Ok(at) = self.entries.binary_search_by_key(&offset, |entry| entry.offset) else {
            return;
        };
        self.bytes -= counted_bytes(message);
        self.expiring -= usize::from(expires(message));
        self.entries[at].number = NONE;
        self.holes += 1;
        while self.entries.front().is_some_and(|entry| entry.number == NONE) {
            self.entries.pop_front();
            self.holes -= 1;
        }
        while self.entries.back().is_some_and(|entry| entry.number == NONE) {
            self.entries.pop_back();
            self.holes -= 1;
        }
        if self.holes * 2 > self.entries.len() {
            self.entries.retain(|entry| entry.number != NONE);
            self.holes = 0;
        }
        if self.entries.capacity() > 16 && self.entries.len() * 4 < self.entries.capacity() {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }
}

/// Returns the bytes that a topic's limit counts: the payload, and the properties of an MQTT publisher.
pub fn counted_bytes(message: &Message) -> u64 {
    message.publication.bytes() as u64
}

/// Returns true if a sweep must scan the message: it expires, or it removes a key and is dropped some day.
fn expires(message: &Message) -> bool {
    let attributes = message.publication.attributes.as_ref();
    attributes.is_some_and(|attributes| attributes.expires_ms.is_some())
        || is_removal(&message.publication)
}
