//! Conditional publishes: if memory can't decide, the history reads the disk, and later publishes to the topic wait
//! meanwhile, except for those with a record.

use std::collections::{HashMap, VecDeque};

use broker::{Append, Done, PublishError};
use store::{ReadJob, Reader};

use super::{Local, State};
use crate::error::store_error;

/// Publishes that may wait for a read of the disk, over all topics.
const WAITING_MAX: usize = 65_536;

/// Publishes that wait for a read of the disk.
#[derive(Default)]
pub(super) struct Conditions {
    /// The publishes by the hash of the topic: the disk decides the condition of the first one.
    waiting: HashMap<u64, VecDeque<(Append, Done)>>,
    /// The number of waiting publishes, over all topics.
    count: usize,
}

impl Conditions {
    /// Returns true if no publish waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl State {
    /// Returns true if the disk must decide: memory does not know the topic's newest message.
    fn must_request(&self, append: &Append) -> bool {
        append.options.if_offset.is_some()
            && self.windows.last(append.hash, &append.publication.topic).is_none()
            && !self.writing.contains_key(&append.hash)
    }
}

impl Local {
    /// Publishes by the options. `done` is called once: here, or on a thread of the store. Never waits for the disk.
    pub(super) fn append_if(&self, append: Append, done: Done) {
        let Some(store) = &self.0.store else { return self.put_done(append, 0, done) };
        if append.options.with.is_some() && append.options.if_offset.is_none() {
            // Its record, if written later, would replace a record that was written since.
            return self.put_done(append, 0, done);
        }
        let mut state = self.state();
        let Conditions { waiting, count } = &mut state.conditions;
        if let Some(waiting) = waiting.get_mut(&append.hash) {
            if *count >= WAITING_MAX {
                drop(state);
                return done(Err(PublishError::StoreBusy));
            }
            waiting.push_back((append, done));
            *count += 1;
            return;
        }
        if !state.must_request(&append) {
            drop(state);
            return self.put_done(append, 0, done);
        }
        let hash = append.hash;
        let job = self.newest_job(&append);
        state.conditions.waiting.insert(hash, VecDeque::from([(append, done)]));
        state.conditions.count += 1;
        drop(state);
        if store.read_later(job).is_err() {
            self.replied(hash, Err(PublishError::StoreBusy));
        }
    }

    /// Returns a job that reads the topic's newest offset from the disk for a publish.
    fn newest_job(&self, append: &Append) -> ReadJob {
        let (history, hash, topic) = (self.clone(), append.hash, append.publication.topic.clone());
        let if_offset = append.options.if_offset.unwrap_or_default();
        Box::new(move |reader: &Reader| {
            let newest = newest_on_disk(reader, &topic, if_offset);
            history.replied(hash, newest);
        })
    }

    /// Continues the first waiting publish with the disk's result, and then the others one by one. While one is left,
    /// later publishes wait behind it.
    fn replied(&self, hash: u64, newest: Result<u64, PublishError>) {
        let mut newest = Some(newest);
        loop {
            let mut state = self.state();
            let Some((first, _)) = state.conditions.waiting.get(&hash).and_then(VecDeque::front)
            else {
                state.conditions.waiting.remove(&hash);
                return;
            };
            if newest.is_none() && state.must_request(first) {
                let job = self.newest_job(first);
                drop(state);
                match self.0.store.as_ref().map(|store| store.read_later(job)) {
                    Some(Ok(())) => return,
                    _ => newest = Some(Err(PublishError::StoreBusy)),
                }
                continue;
            }
            let next = state.conditions.waiting.get_mut(&hash).and_then(VecDeque::pop_front);
            state.conditions.count -= usize::from(next.is_some());
            drop(state);
            match (next, newest.take()) {
                (Some((_, done)), Some(Err(error))) => done(Err(error)),
                (Some((next, done)), Some(Ok(newest))) => self.put_done(next, newest, done),
                (Some((next, done)), None) => self.put_done(next, 0, done),
                (None, _) => {}
            }
        }
    }

    fn put_done(&self, append: Append, on_disk: u64, done: Done) {
        // `done` gets an error, too.
        let _ = self.put(append, on_disk, Some(done));
    }
}

/// Returns the offset of a topic's newest message on disk. A topic that the disk has forgotten had none after the
/// floor that such topics share, so a publisher that expects no message at all is right.
fn newest_on_disk(reader: &Reader, topic: &str, if_offset: u64) -> Result<u64, PublishError> {
    let newest = match reader.last(topic) {
        Ok(None) if if_offset > 0 => reader.floor(topic),
        other => other.map(Option::unwrap_or_default),
    };
    newest.map_err(|error| store_error(error).into())
}
