//! Storage that outlives the server. It writes records and messages in the order in which they come; a crash loses
//! those that still wait.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use broker::{Activity, Append, HistoryLog, Latest, PublishError};
use model::{Envelope, HistoryRule, Position, Publication};
use sessions::{Done, Part, Storage};

/// A disk that takes its time.
#[derive(Default)]
pub(super) struct Disk(Mutex<State>);

#[derive(Default)]
struct State {
    /// Writes that wait.
    waiting: Vec<Write>,
    /// Completions of finished writes, to be called.
    completed: VecDeque<Done>,
    written: Written,
    /// How many records of sessions came.
    puts: usize,
    /// The disk has capacity only for records that clients wait for.
    is_half_full: bool,
}

/// What a new server finds on disk.
#[derive(Clone, Default)]
pub(super) struct Written {
    /// Records by part of the server and key.
    pub records: BTreeMap<(&'static str, String), Vec<u8>>,
    /// Messages of topics with history, in their order.
    pub messages: Vec<(Publication, Arc<HistoryRule>)>,
}

/// A write that is not split.
#[derive(Default)]
struct Write {
    record: Option<(&'static str, String, Option<Vec<u8>>)>,
    message: Option<(Publication, Arc<HistoryRule>)>,
    done: Option<Done>,
}

impl Disk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Takes a record of a part of the server, or removes it if it has no value.
    pub fn put_record(
        &self,
        part: &'static str,
        key: &str,
        value: Option<Vec<u8>>,
        done: Option<Done>,
    ) {
        let record = Some((part, key.into(), value));
        self.state().waiting.push(Write { record, message: None, done });
    }

    /// Returns how many records of sessions came.
    pub fn puts(&self) -> usize {
        self.state().puts
    }

    /// Sets whether the disk has capacity only for records that clients wait for.
    pub fn set_half_full(&self, is_half_full: bool) {
        self.state().is_half_full = is_half_full;
    }

    /// Writes all that waits, and calls no completion yet. Returns false if nothing waited.
    pub fn commit(&self) -> bool {
        let state = &mut *self.state();
        let is_some = !state.waiting.is_empty();
        for Write { record, message, done } in state.waiting.drain(..) {
            match record {
                Some((part, key, Some(value))) => {
                    drop(state.written.records.insert((part, key), value));
                }
                Some((part, key, None)) => drop(state.written.records.remove(&(part, key))),
                None => {}
            }
            state.written.messages.extend(message);
            state.completed.extend(done);
        }
        is_some
    }

    /// Calls the next completion. Returns false if none is left.
    pub fn complete(&self) -> bool {
        let next = self.state().completed.pop_front();
        let is_some = next.is_some();
        next.into_iter().for_each(|done| done(true));
        is_some
    }

    /// Drops unwritten data and the completions, as when the server dies. Returns the written data.
    pub fn crash(&self) -> Written {
        let state = &mut *self.state();
        state.waiting.clear();
        state.completed.clear();
        state.written.clone()
    }
}

impl Storage for Disk {
    fn put(&self, part: Part, key: &str, value: Option<Vec<u8>>, done: Option<Done>) -> bool {
        self.put_record(part.name(), key, value, done);
        self.state().puts += 1;
        true
    }

    fn has_capacity(&self) -> bool {
        !self.state().is_half_full
    }

    fn settle(&self, done: Done) {
        self.state().waiting.push(Write { done: Some(done), ..Write::default() });
    }
}

/// A history on the disk: once written, a message gets its offset and goes to its members.
pub(super) struct OnDisk {
    pub local: history_local::Local,
    pub disk: Arc<Disk>,
}

impl HistoryLog for OnDisk {
    fn rule(&self, topic: &str) -> Option<Arc<HistoryRule>> {
        self.local.rule(topic)
    }

    fn rule_for(&self, publication: &Publication) -> Option<Arc<HistoryRule>> {
        self.local.rule_for(publication)
    }

    fn append(&self, mut append: Append, done: broker::Done) {
        let record = append.options.with.take().map(|record| {
            let broker::StoredRecord { part, key, value } = *record;
            (part, key.into(), value.map(Into::into))
        });
        let message = Some((append.publication.clone(), append.rule.clone()));
        let local = self.local.clone();
        let hand_on = move |_| {
            local.append(
                append,
                Box::new(move |published| {
                    assert!(published.is_ok(), "what is written is handed on: {published:?}");
                    done(published);
                }),
            );
        };
        self.disk.state().waiting.push(Write { record, message, done: Some(Box::new(hand_on)) });
    }

    fn append_now(&self, _: Append) -> Result<Position, PublishError> {
        panic!("no client needs an offset before the message is written")
    }

    fn latest(&self, limit: usize) -> Vec<Arc<Envelope>> {
        self.local.latest(limit)
    }

    fn latest_of(&self, hash: u64, topic: &str, limit: usize) -> Latest {
        self.local.latest_of(hash, topic, limit)
    }

    fn count_newest(&self, from_us: u64, messages_max: usize, activity: &mut Activity) -> u64 {
        self.local.count_newest(from_us, messages_max, activity)
    }
}
