//! The export of events for the application.

use std::sync::Arc;

use handover::{Part, PartError, encode};
use minicbor::{Decode, Encode};
use model::{CloseReason, Name};
use shard::{EventSource, HookEvent};

use super::super::Dispatcher;
use super::super::events::{QueueState, TopicState, Waiting};
use super::{Id, Staged, connection, decode, id_record, names, number, numbered, texts, transport};

/// The limit on topics or events that are copied while a lock is held once.
const PIECE: usize = 256;

/// The kinds of keys. They never change.
const WAITING: u8 = b'w';
const UNNUMBERED: u8 = b'i';
const TOPIC: u8 = b't';
const STATE: u8 = b's';

/// The name of the part. It never changes.
const EVENTS: &str = "events";

/// Events that the application has not taken yet, and occupied topics, for another process, which continues with the
/// same numbers and in the same order. A request without a response is sent again unchanged.
///
/// The other process gets everything from here, also if events are stored: it need not read the store, which has them
/// already.
pub struct EventsPart {
    dispatcher: Arc<Dispatcher>,
    staged: Staged,
}

impl EventsPart {
    /// The events of this dispatcher.
    pub fn new(dispatcher: Arc<Dispatcher>) -> Self {
        EventsPart { dispatcher, staged: Staged::default() }
    }
}

/// An event that has no number yet.
#[derive(Encode, Decode)]
#[cbor(map)]
struct EventRecord {
    #[n(0)]
    at_ms: u64,
    #[n(1)]
    kind: u8,
    #[n(2)]
    connection: Id,
    #[cbor(n(3), default)]
    users: Vec<String>,
    #[n(4)]
    transport: String,
    #[n(5)]
    topic: Option<String>,
    /// The name of the reason for its end.
    #[n(6)]
    reason: Option<String>,
    /// How long it was open.
    #[cbor(n(7), default)]
    seconds: u32,
}

impl EventRecord {
    /// Returns `None` for events without a source.
    fn new(at_ms: u64, event: &HookEvent) -> Option<Self> {
        let (kind, source, topic, end) = match event {
            HookEvent::Connected(source) => (0, source, None, None),
            HookEvent::Disconnected { source, reason, seconds } => {
                (1, source, None, Some((reason.name(), *seconds)))
            }
            HookEvent::Joined(source, topic) => (2, source, Some(topic), None),
            HookEvent::Left(source, topic) => (3, source, Some(topic), None),
            HookEvent::Occupied(_) | HookEvent::Vacated(_) => return None,
        };
        Some(EventRecord {
            at_ms,
            kind,
            connection: id_record(source.connection),
            users: texts(&source.users),
            transport: source.transport.into(),
            topic: topic.map(Name::to_string),
            reason: end.map(|(reason, _)| reason.into()),
            seconds: end.map_or(0, |(_, seconds)| seconds),
        })
    }

    fn import(self) -> Result<(u64, HookEvent), PartError> {
        let source = EventSource {
            connection: connection(self.connection),
            users: names(self.users),
            transport: transport(&self.transport),
        };
        let topic = self.topic.map(Name::from).unwrap_or_default();
        let reasons = CloseReason::ALL.into_iter();
        let reason = reasons.clone().find(|it| Some(it.name()) == self.reason.as_deref());
        let event = match (self.kind, reason) {
            (0, _) => HookEvent::Connected(source),
            (1, Some(reason)) => HookEvent::Disconnected { source, reason, seconds: self.seconds },
            (2, _) => HookEvent::Joined(source, topic),
            (3, _) => HookEvent::Left(source, topic),
            _ => return Err(PartError::new(EVENTS, "an event has an unknown kind")),
        };
        Ok((self.at_ms, event))
    }
}

/// What shards have reported about a topic.
#[derive(Encode, Decode)]
#[cbor(map)]
struct TopicRecord {
    #[n(0)]
    shards: Vec<u16>,
    /// The state that the application knows.
    #[n(1)]
    is_occupied: bool,
    /// When the next event about it is due, in milliseconds since 1970.
    #[n(2)]
    due_ms: Option<u64>,
}

/// The state besides the events.
#[derive(Encode, Decode)]
#[cbor(map)]
struct StateRecord {
    #[n(0)]
    next: u64,
    #[n(1)]
    lost: u64,
    /// The event that the node has begun was added.
    #[n(2)]
    begun: bool,
    /// The number of events of the batch that was not taken, and of dropped events that it reports.
    #[n(3)]
    again: Option<(u64, u64)>,
}

/// A waiting event: when it happened, and its JSON.
fn row(event: &Waiting) -> Vec<u8> {
    [&event.at_ms.to_le_bytes()[..], &event.json].concat()
}

impl Part for EventsPart {
    fn name(&self) -> &'static str {
        EVENTS
    }

    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        let (events, queue) = (&self.dispatcher.events, &self.dispatcher.event_queue);
        let mut after = None;
        loop {
            let some = queue.lock().after(after, PIECE, |event| (event.number, row(event)));
            some.iter().for_each(|(number, row)| each(&numbered(WAITING, *number), row));
            after = some.last().map(|(number, _)| *number);
            if some.len() < PIECE {
                break;
            }
        }
        // These events have no lasting keys, and soon get numbers while the process serves.
        if self.dispatcher.counts.gate.is_closed() {
            let inbox = events.unnumbered(EventRecord::new);
            for (at, record) in (0..).zip(inbox) {
                each(&numbered(UNNUMBERED, at), &encode(&record));
            }
        }
        let mut after = None;
        loop {
            let some = events.topics_after(after.as_ref(), PIECE);
            for (name, TopicState { shards, is_occupied, due_ms }) in &some {
                let record = TopicRecord {
                    shards: shards.clone(),
                    is_occupied: *is_occupied,
                    due_ms: *due_ms,
                };
                each(&[&[TOPIC], name.as_bytes()].concat(), &encode(&record));
            }
            let is_last = some.len() < PIECE;
            after = some.into_iter().last().map(|(name, _)| name);
            if is_last {
                break;
            }
        }
        let QueueState { next, lost, begun, again } = queue.lock().state();
        let again = again.map(|(events, lost)| (events as u64, lost));
        let record = StateRecord { next, lost, begun, again };
        each(&[STATE], &encode(&record));
    }

    fn import(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
        match key {
            [WAITING | UNNUMBERED, ..] => {
                number(EVENTS, key)?;
                self.staged.put(key, value);
            }
            [STATE] => self.staged.put(key, value),
            [TOPIC, name @ ..] => {
                let name = std::str::from_utf8(name)
                    .map_err(|_| PartError::new(EVENTS, "a topic's name is not text"))?;
                let record = value.map(|value| decode(EVENTS, value)).transpose()?;
                let state = record.map(|TopicRecord { shards, is_occupied, due_ms }| TopicState {
                    shards,
                    is_occupied,
                    due_ms,
                });
                self.dispatcher.events.set_topic(name.into(), state);
            }
            // A newer version may know more.
            _ => {}
        }
        Ok(())
    }

    fn complete(&self) -> Result<(), PartError> {
        let (mut waiting, mut unnumbered, mut state) = (Vec::new(), Vec::new(), None);
        for (key, value) in self.staged.take() {
            match key.first() {
                Some(&WAITING) => {
                    let (at_ms, json) = value
                        .split_first_chunk()
                        .ok_or_else(|| PartError::new(EVENTS, "an event has no time"))?;
                    let (number, at_ms) = (number(EVENTS, &key)?, u64::from_le_bytes(*at_ms));
                    waiting.push(Waiting { number, at_ms, json: json.into() });
                }
                Some(&UNNUMBERED) => {
                    unnumbered.push(decode::<EventRecord>(EVENTS, &value)?.import()?);
                }
                _ => state = Some(decode::<StateRecord>(EVENTS, &value)?),
            }
        }
        let Some(StateRecord { next, lost, begun, again }) = state else {
            return Err(PartError::new(EVENTS, "the number of the next event is missing"));
        };
        let size = |events| usize::try_from(events).unwrap_or(usize::MAX);
        let again = again.map(|(events, lost)| (size(events), lost));
        let state = QueueState { next, lost, begun, again };
        self.dispatcher.event_queue.lock().restore(waiting, state);
        self.dispatcher.events.restore(unnumbered);
        Ok(())
    }
}
