//! Topics and their messages.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use handover::{Again, Part, PartError, decode, message};
use history::{History, TopicHash};
use minicbor::{Decode, Encode};
use model::{Envelope, Name};
use store::Age;

use super::{Local, PIECE, encoded};
use crate::windows::{Bounds, TopicRecord, Walk};

const NAME: &str = "history";

/// The record of everything but topics and messages.
const STATE: &[u8] = b"s";

/// The first byte of a topic's key; its name follows.
const TOPIC: u8 = b't';

/// The first byte of a message's key; its offset follows, 8 bytes, the highest first. Its record never changes.
/// Messages come in the order of their offsets.
const MESSAGE: u8 = b'm';

/// The first byte of the key of a message that only operators still see; its offset follows, 8 bytes, the highest
/// first.
const SHOWN: u8 = b'n';

/// Topics and their messages.
pub(super) struct HistoryPart {
    history: Local,
    hash: TopicHash,
    coming: Mutex<Coming>,
}

/// Imported state that is not in the windows yet.
#[derive(Default)]
struct Coming {
    state: Option<StateRecord>,
    /// The numbers of messages by their offsets, in order.
    numbers: Vec<(u64, u32)>,
    /// Messages that only operators see.
    shown: BTreeMap<u64, Arc<Envelope>>,
}

#[derive(Clone, Copy, Encode, Decode)]
#[cbor(map)]
struct StateRecord {
    #[n(0)]
    epoch: u32,
    /// The last offset that was drawn.
    #[n(1)]
    last: u64,
    /// The last offset that was delivered.
    #[n(2)]
    delivered: u64,
    /// See [`Bounds`].
    #[n(3)]
    gone: u64,
    #[n(4)]
    last_gone: u64,
    /// The first offset that operators see.
    #[cbor(n(5), default)]
    shown_from: u64,
    /// The time up to which operators miss messages, by the time of their publish, in microseconds of the node's
    /// clock.
    #[cbor(n(6), default)]
    shown_gone_us: u64,
    /// The time by which ages are counted, and for how long the time of day is still doubted, in milliseconds; `None`
    /// if it is not doubted.
    #[n(7)]
    age: Option<(u64, u64)>,
}

fn damaged(what: impl ToString) -> PartError {
    PartError::new(NAME, what)
}

/// Returns the key of a message.
fn key(kind: u8, offset: u64) -> [u8; 9] {
    let mut key = [kind; 9];
    key[1..].copy_from_slice(&offset.to_be_bytes());
    key
}

impl HistoryPart {
    pub fn new(history: Local, hash: TopicHash) -> Self {
        HistoryPart { history, hash, coming: Mutex::default() }
    }

    fn coming(&self) -> MutexGuard<'_, Coming> {
        self.coming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn export_topics(&self, each: &mut Again<'_>) {
        let (mut from, mut found) = (Some(0), Vec::new());
        let (mut key, mut buffer) = (Vec::new(), Vec::new());
        while let Some(at) = from {
            let state = self.history.state();
            let topic = |name: &Name, record| found.push((name.clone(), record));
            from = state.windows.each_topic(at, PIECE as u32, topic);
            drop(state);
            for (name, record) in found.drain(..) {
                key.clear();
                key.push(TOPIC);
                key.extend(name.as_bytes());
                each(&key, Some(encoded(record, &mut buffer)));
            }
        }
    }

    fn export_messages(&self, each: &mut Again<'_>) {
        let mut walk = Walk::default();
        loop {
            let piece = walk.next(&self.history.state().windows, PIECE);
            if piece.is_empty() {
                return;
            }
            piece.iter().for_each(|found| give(MESSAGE, found, each));
        }
    }

    /// Exports messages that operators see, and that no window has any more.
    fn export_shown(&self, each: &mut Again<'_>) {
        let mut after = 0;
        loop {
            let state = self.history.state();
            let piece: Vec<_> = state.newest.after(after, PIECE).cloned().collect();
            let Some(last) = piece.last() else { return };
            after = last.id.offset;
            let windows = &state.windows;
            let is_apart = |found: &Arc<Envelope>| {
                let topic = &found.publication.topic;
                !windows.holds(found.topic_hash, topic, found.id.offset)
            };
            let apart: Vec<_> = piece.into_iter().filter(is_apart).collect();
            drop(state);
            apart.iter().for_each(|found| give(SHOWN, found, each));
        }
    }

    fn state_record(&self) -> StateRecord {
        let Age { now_ms, doubt_ms } = self.history.0.clock.age();
        let state = self.history.state();
        let Bounds { gone, last_gone } = state.windows.bounds();
        let first = state.newest.after(0, 1).next().map(|message| message.id.offset);
        StateRecord {
            epoch: self.history.epoch().0,
            last: state.last,
            delivered: state.delivered,
            gone,
            last_gone,
            shown_from: first.unwrap_or(u64::MAX),
            shown_gone_us: state.newest.complete_after_us(),
            age: (doubt_ms > 0).then_some((now_ms, doubt_ms)),
        }
    }

    fn import_topic(&self, name: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
        let name: Name = std::str::from_utf8(name).map_err(damaged)?.into();
        let record = value.map(decode::<TopicRecord>).transpose().map_err(damaged)?;
        let hash = (self.hash)(&name);
        let windows = &mut self.history.state().windows;
        match record {
            Some(record) => windows.put_topic(hash, &name, record),
            None => windows.remove_topic(hash, &name),
        }
        Ok(())
    }

    fn import_message(&self, kind: u8, offset: u64, value: Option<&[u8]>) -> Result<(), PartError> {
        let found = value.map(|value| message::decode(value, &*self.hash));
        let found = found.transpose().map_err(damaged)?.map(Arc::new);
        if found.as_ref().is_some_and(|found| found.id.offset != offset) {
            return Err(damaged(format!("offset {offset} has another message")));
        }
        let mut coming = self.coming();
        let windows = &mut self.history.state().windows;
        match (kind, found) {
            (MESSAGE, Some(found)) => {
                let number = windows.put_message(found);
                let number = number.ok_or_else(|| damaged("messages are not in order"))?;
                coming.numbers.push((offset, number));
            }
            (MESSAGE, None) => {
                if let Ok(at) = coming.numbers.binary_search_by_key(&offset, |(of, _)| *of) {
                    windows.remove_message(coming.numbers[at].1, offset);
                }
            }
            (_, Some(found)) => drop(coming.shown.insert(offset, found)),
            (_, None) => drop(coming.shown.remove(&offset)),
        }
        Ok(())
    }
}

/// Exports a message's record, without its value if the receiver has it.
fn give(kind: u8, found: &Envelope, each: &mut Again<'_>) {
    let key = key(kind, found.id.offset);
    if !each(&key, None) {
        each(&key, Some(&message::encode(found)));
    }
}

impl Part for HistoryPart {
    fn name(&self) -> &'static str {
        NAME
    }

    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        handover::export_all(self, each);
    }

    fn export_again(&self, each: &mut Again<'_>) {
        self.export_topics(each);
        self.export_messages(each);
        self.export_shown(each);
        let mut buffer = Vec::new();
        each(STATE, Some(encoded(self.state_record(), &mut buffer)));
    }

    fn import(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
        self.history.0.is_coming.store(true, Ordering::Relaxed);
        match key.split_first() {
            Some((&kind @ (MESSAGE | SHOWN), offset)) => {
                let offset = offset.try_into().map(u64::from_be_bytes).map_err(damaged)?;
                self.import_message(kind, offset, value)?;
            }
            Some((&TOPIC, name)) => self.import_topic(name, value)?,
            _ if key == STATE => {
                let state = value.map(decode).transpose().map_err(damaged)?;
                self.coming().state = state;
            }
            // The record is of a later version, whose process reports beforehand what this one would lose.
            _ => {}
        }
        Ok(())
    }

    fn complete(&self) -> Result<(), PartError> {
        let Coming { state: record, numbers, mut shown } = std::mem::take(&mut *self.coming());
        let missing = || damaged("the record with the position of the log is missing");
        let record = record.ok_or_else(missing)?;
        let newest = numbers.last().map_or(0, |(offset, _)| *offset);
        if newest > record.delivered || record.delivered > record.last {
            return Err(damaged("the offsets of the messages contradict the position of the log"));
        }
        self.history.0.epoch.store(record.epoch, Ordering::Relaxed);
        if let Some((now_ms, doubt_ms)) = record.age {
            self.history.0.clock.go_on(Age { now_ms, doubt_ms });
        }
        let mut state = self.history.state();
        (state.last, state.delivered) = (record.last, record.delivered);
        let from = numbers.partition_point(|(offset, _)| *offset < record.shown_from);
        for (offset, number) in &numbers[from..] {
            if let Some(message) = state.windows.message(*number, *offset) {
                shown.insert(*offset, message.clone());
            }
        }
        state.newest.restore(record.shown_gone_us, shown.into_values());
        let bounds = Bounds { gone: record.gone, last_gone: record.last_gone };
        state.windows.settle(bounds, self.history.0.clock.now_ms());
        drop(state);
        self.history.0.is_coming.store(false, Ordering::Relaxed);
        Ok(())
    }
}
