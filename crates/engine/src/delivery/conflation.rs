//! Messages that wait for connections that don't keep up with a topic whose rule has `conflate`: of each key only the
//! newest. A connection gets them when it reads again, in the order of publication.
//!
//! While a connection has unsent bytes, such a topic's messages are not sent to it but queued here, and a message
//! replaces the queued one with the same key. So a client gets a topic's messages in ascending order. Once it has a
//! message, it has the newest earlier message of every other key, unless a newer one of that key still waits. A client
//! that resumes after that message, in a topic with history, misses no key.
//!
//! Presence notices come from the server, not from the application: each change waits by itself.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use minicbor::{Decode, Encode};
use model::event::is_reserved;
use model::{Attributes, Envelope, Message, Name, Position, Publication, Retention};
use protocol::phoenix::ClientMessage;

use crate::core::metrics::Metrics;
use crate::core::shrink::Shrink;
use crate::handover::value::{self, Text};

/// The most keys, over all topics, that may wait for one connection.
const KEYS_MAX: usize = 4_096;

/// Bytes of memory of a waiting message besides what all connections share.
const ENTRY_BYTES: u64 = 160;

/// The messages that wait for a connection.
#[derive(Default)]
struct Pending {
    /// In the order in which they came.
    messages: BTreeMap<u64, Arc<Envelope>>,
    /// The key in `messages` of the newest of each kind.
    newest: HashMap<Newest, u64>,
    /// Bytes of their payloads.
    bytes: usize,
    number: u64,
}

impl Pending {
    /// Called when a message does not wait any more.
    fn has_left(&mut self, message: &Envelope) {
        self.bytes -= message.publication.bytes();
        if let Some(newest) = Newest::of(message) {
            self.newest.remove(&newest);
        }
    }
}

/// A kind of messages of which only the newest counts.
#[derive(PartialEq, Eq, Hash)]
enum Newest {
    /// By the topic's hash and the key.
    Key(u64, Option<Name>),
    /// Counts of a topic's members, by its hash.
    PresenceCount(u64),
}

impl Newest {
    /// Returns `None` for a presence notice that the next notice builds on.
    fn of(message: &Envelope) -> Option<Self> {
        let event = message.event();
        if event == presence::COUNT {
            return Some(Newest::PresenceCount(message.topic_hash));
        }
        (!is_reserved(event))
            .then(|| Newest::Key(message.topic_hash, message.publication.key().cloned()))
    }
}

/// The messages that wait for connections, by slot. Nearly no connection has any.
#[derive(Default)]
pub(crate) struct Conflation(HashMap<u32, Pending>);

impl Conflation {
    /// True when messages wait for a connection.
    pub fn holds(&self, slot: u32) -> bool {
        !self.0.is_empty() && self.0.contains_key(&slot)
    }

    /// Queues a message, in place of an older one with its key. False when a limit is exceeded: `KEYS_MAX` keys, or
    /// `bytes_max` bytes of payload.
    pub fn push(
        &mut self,
        slot: u32,
        message: Arc<Envelope>,
        bytes_max: usize,
        metrics: &Metrics,
    ) -> bool {
        let pending = self.0.entry(slot).or_default();
        pending.number += 1;
        pending.bytes += message.publication.bytes();
        let newest = Newest::of(&message);
        let before = newest.and_then(|newest| pending.newest.insert(newest, pending.number));
        match before.and_then(|number| pending.messages.remove(&number)) {
            Some(older) => {
                pending.bytes -= older.publication.bytes();
                metrics.conflated.add(1);
            }
            None => metrics.outbox_memory.add(ENTRY_BYTES),
        }
        pending.messages.insert(pending.number, message);
        pending.bytes <= bytes_max && pending.messages.len() <= KEYS_MAX
    }

    /// Returns what waits for a connection, in order.
    pub fn of(&self, slot: u32) -> impl Iterator<Item = &Arc<Envelope>> {
        self.0.get(&slot).into_iter().flat_map(|pending| pending.messages.values())
    }

    /// Takes the first messages, at most so many and with so many bytes of payload, but at least one.
    pub fn take(
        &mut self,
        slot: u32,
        messages_max: usize,
        bytes_max: usize,
        metrics: &Metrics,
    ) -> Vec<Arc<Envelope>> {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        let Some(pending) = self.0.get_mut(&slot) else {
            return taken;
        };
        while let Some(entry) = pending.messages.first_entry() {
            let size = entry.get().publication.bytes();
            let full = taken.len() >= messages_max || bytes + size > bytes_max;
            if full && !taken.is_empty() {
                break;
            }
            let message = entry.remove();
            bytes += size;
            pending.has_left(&message);
            taken.push(message);
        }
        metrics.outbox_memory.sub(ENTRY_BYTES * taken.len() as u64);
        if pending.messages.is_empty() {
            self.0.remove(&slot);
        }
        taken
    }

    /// Takes all waiting messages of one topic, or of all topics.
    pub fn take_topic(
        &mut self,
        slot: u32,
        hash: Option<u64>,
        metrics: &Metrics,
    ) -> Vec<Arc<Envelope>> {
        self.take_if(slot, |it| hash.is_none_or(|hash| it.topic_hash == hash), metrics)
    }

    /// Drops a topic's waiting messages that now come from its history.
    pub fn drop_retained(&mut self, slot: u32, hash: u64, metrics: &Metrics) {
        self.take_if(slot, |it| it.topic_hash == hash && it.is_retained(), metrics);
    }

    fn take_if(
        &mut self,
        slot: u32,
        predicate: impl Fn(&Envelope) -> bool,
        metrics: &Metrics,
    ) -> Vec<Arc<Envelope>> {
        let Some(pending) = self.0.get_mut(&slot) else {
            return Vec::new();
        };
        let taken: Vec<Arc<Envelope>> = pending
            .messages
            .extract_if(.., |_, message| predicate(message))
            .map(|(_, message)| message)
            .collect();
        taken.iter().for_each(|message| pending.has_left(message));
        metrics.outbox_memory.sub(ENTRY_BYTES * taken.len() as u64);
        if pending.messages.is_empty() {
            self.0.remove(&slot);
        }
        taken
    }

    /// Called when the connection has ended.
    pub fn forget(&mut self, slot: u32, metrics: &Metrics) {
        if self.holds(slot) {
            self.take_topic(slot, None, metrics);
        }
    }

    /// Gives memory back after a spike.
    pub fn shrink(&mut self) {
        self.0.shrink();
    }

    pub fn export(&self, slot: u32) -> Option<Vec<ConflatedRecord>> {
        self.holds(slot)
            .then(|| self.of(slot).map(|message| ConflatedRecord::new(message)).collect())
    }

    pub fn import(
        &mut self,
        slot: u32,
        records: Option<Vec<ConflatedRecord>>,
        hash: impl Fn(&str) -> u64,
        metrics: &Metrics,
    ) {
        for record in records.into_iter().flatten() {
            self.push(slot, record.message(&hash), usize::MAX, metrics);
        }
    }
}

/// A waiting message on its way to another engine.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct ConflatedRecord {
    /// Topic, event and payload.
    #[n(0)]
    content: value::Message,
    #[n(1)]
    id: Text<Position>,
    #[n(2)]
    published_us: u64,
    #[n(3)]
    at_ms: u64,
    /// True when the publication names its event.
    #[n(4)]
    named: bool,
    /// 0 for a message without history, 1 for one in the history, 2 for one that bypasses it.
    #[n(5)]
    retention: u8,
    #[n(6)]
    key: Option<Text<Name>>,
    #[n(7)]
    sender: Option<Text<Name>>,
    #[n(8)]
    tags: Vec<Text<Name>>,
}

impl ConflatedRecord {
    fn new(envelope: &Envelope) -> Self {
        let Message { id, topic_hash: _, published_us, at_ms, retention, publication } =
            &envelope.message;
        // The fan-out has already left `except` out.
        let Publication { topic, event, data, except: _, attributes: _, qos: _, retain: _ } =
            publication;
        let content = ClientMessage {
            join_ref: None,
            ref_: None,
            topic: topic.clone(),
            event: event.clone().unwrap_or(Name::const_new("")),
            payload: data.clone(),
        };
        ConflatedRecord {
            content: (&content).into(),
            id: Text(*id),
            published_us: *published_us,
            at_ms: *at_ms,
            named: event.is_some(),
            retention: match retention {
                Retention::None => 0,
                Retention::History | Retention::Acknowledged => 1,
                Retention::Passing => 2,
            },
            key: publication.key().cloned().map(Text),
            sender: publication.sender().cloned().map(Text),
            tags: Text::all(publication.tags()),
        }
    }

    fn message(self, hash: impl Fn(&str) -> u64) -> Arc<Envelope> {
        let ConflatedRecord {
            content,
            id,
            published_us,
            at_ms,
            named,
            retention,
            key,
            sender,
            tags,
        } = self;
        let ClientMessage { topic, event, payload, .. } = content.into();
        let hash = hash(&topic);
        let mut publication = Publication::new(topic, payload);
        publication.event = named.then_some(event);
        if key.is_some() || sender.is_some() || !tags.is_empty() {
            publication.attributes = Some(Box::new(Attributes {
                tags: Text::values(tags),
                key: key.map(|key| key.0),
                sender: sender.map(|sender| sender.0),
                ..Attributes::default()
            }));
        }
        let message = Message::new(publication, id.0, hash, published_us);
        let message = match retention {
            1 => message.retained(Retention::History, at_ms),
            2 => message.passing(),
            _ => message,
        };
        Arc::new(message.into())
    }
}

#[cfg(test)]
mod tests {
    use model::{Data, Epoch};

    use super::*;

    fn message(topic: u64, key: &str, offset: u64) -> Arc<Envelope> {
        let mut publication = Publication::new("t", Data::Text(key.into()));
        publication.attributes = (!key.is_empty())
            .then(|| Box::new(Attributes { key: Some(key.into()), ..Attributes::default() }));
        Arc::new(Message::new(publication, id(offset), topic, 0).into())
    }

    fn id(offset: u64) -> Position {
        Position { epoch: Epoch(1), offset }
    }

    fn offsets<'a>(messages: impl IntoIterator<Item = &'a Arc<Envelope>>) -> Vec<u64> {
        messages.into_iter().map(|message| message.id.offset).collect()
    }

    #[test]
    fn the_newest_of_each_key_waits_in_order() {
        let (mut conflation, metrics) = (Conflation::default(), Metrics::default());
        for (offset, (topic, key)) in
            [(1, "a"), (1, "b"), (1, ""), (2, "a"), (1, "a"), (1, ""), (2, "c")].iter().enumerate()
        {
            assert!(conflation.push(7, message(*topic, key, offset as u64), 100, &metrics));
        }
        assert_eq!(offsets(conflation.of(7)), [1, 3, 4, 5, 6]);
        assert_eq!((metrics.conflated.get(), metrics.outbox_memory.get()), (2, 5 * ENTRY_BYTES));
        assert_eq!(offsets(&conflation.take(7, 2, 100, &metrics)), [1, 3]);
        // A key waits anew after its message was taken.
        assert!(conflation.push(7, message(1, "b", 9), 100, &metrics));
        assert_eq!(offsets(&conflation.take_topic(7, Some(2), &metrics)), [6]);
        assert_eq!(offsets(&conflation.take(7, 9, 0, &metrics)), [4], "one in any case");
        assert_eq!(offsets(&conflation.take(7, 9, 100, &metrics)), [5, 9]);
        assert!(!conflation.holds(7) && metrics.outbox_memory.get() == 0);
    }

    #[test]
    fn changes_of_who_is_there_wait_each_by_itself() {
        let (mut conflation, metrics) = (Conflation::default(), Metrics::default());
        let events = ["", presence::DIFF, "", presence::STATE, presence::DIFF, presence::COUNT];
        for (at, event) in events.into_iter().chain([presence::STATE, presence::COUNT]).enumerate()
        {
            let mut publication = Publication::new("t", Data::Text("x".into()));
            publication.event = (!event.is_empty()).then(|| event.into());
            let message = Message::new(publication, id(at as u64), 1, 0);
            assert!(conflation.push(7, Arc::new(message.into()), 100, &metrics));
        }
        assert_eq!(offsets(conflation.of(7)), [1, 2, 3, 4, 6, 7]);
        // A message that comes from the history does not come from here, too.
        let message = Message::new(Publication::new("t", Data::Text("x".into())), id(8), 1, 0);
        let message = message.retained(Retention::History, 0);
        assert!(conflation.push(7, Arc::new(message.into()), 100, &metrics));
        conflation.drop_retained(7, 1, &metrics);
        assert_eq!(offsets(conflation.of(7)), [1, 3, 4, 6, 7]);
        assert_eq!(conflation.take(7, 9, 100, &metrics).len(), 5);
        assert!(!conflation.holds(7) && metrics.outbox_memory.get() == 0);
    }

    #[test]
    fn what_waits_is_bounded() {
        let (mut conflation, metrics) = (Conflation::default(), Metrics::default());
        let fits = |at: usize| {
            let key = format!("{at:05}");
            conflation.push(1, message(1, &key, at as u64), 5 * 100, &metrics)
        };
        assert_eq!((0..200).map(fits).filter(|fits| *fits).count(), 100);
        conflation.forget(1, &metrics);
        assert_eq!(metrics.outbox_memory.get(), 0);
        let push = |at: usize| {
            let key = format!("{at:05}");
            conflation.push(1, message(1, &key, at as u64), usize::MAX, &metrics)
        };
        assert_eq!((0..KEYS_MAX + 9).map(push).filter(|fits| *fits).count(), KEYS_MAX);
    }

    #[test]
    fn what_waits_goes_to_another_engine() {
        let (mut conflation, metrics) = (Conflation::default(), Metrics::default());
        for (at, key) in ["a", "", "b"].iter().enumerate() {
            conflation.push(3, message(8, key, at as u64), 100, &metrics);
        }
        let bytes = minicbor::to_vec(conflation.export(3)).unwrap();
        let mut other = Conflation::default();
        other.import(3, minicbor::decode(&bytes).unwrap(), |_| 9, &metrics);
        let (before, after): (Vec<_>, Vec<_>) = (conflation.of(3).collect(), other.of(3).collect());
        for (before, after) in before.iter().zip(&after) {
            assert_eq!((before.id, &before.publication), (after.id, &after.publication));
            assert_eq!((after.topic_hash, after.retention), (9, before.retention));
        }
        assert_eq!((before.len(), after.len()), (3, 3));
    }
}
