//! Publishing on a condition that only the disk may know. It is asked on the store's reader, and
//! the message is published there; what comes to the same topic meanwhile waits its turn behind it.

use std::collections::VecDeque;
use std::sync::Arc;

use store::{ReadJob, Reader};
use wire::{Draft, History};

use super::{Kept, State};
use crate::{Done, Options, PublishError, Receipt};

/// Publishes that may wait, over all topics, for what the disk says of one before them.
const LOOKING_MAX: usize = 65_536;

/// A publish to a topic with history.
pub(crate) struct Submit {
    pub hash: u64,
    pub draft: Draft,
    pub keep: Arc<History>,
    pub options: Options,
    pub receipt: Option<Receipt>,
    pub done: Done,
}

impl State {
    /// The disk must be asked: memory knows nothing of the topic's newest message.
    fn must_look(&self, submit: &Submit) -> bool {
        submit.options.if_offset.is_some()
            && self.windows.last(submit.hash, &submit.draft.topic).is_none()
            && !self.writing.contains_key(&submit.hash)
    }
}

impl Kept {
    /// Publishes as the options say. `done` is called once: here, or on a thread of the store. Never
    /// waits for the disk.
    pub(crate) fn submit(&self, submit: Submit) {
        let Some(store) = &self.0.store else { return self.put(submit, 0) };
        let mut state = self.state();
        let is_full = state.looked_for >= LOOKING_MAX;
        if let Some(waiting) = state.looking.get_mut(&submit.hash) {
            if is_full {
                drop(state);
                return (submit.done)(Err(PublishError::StoreBusy));
            }
            waiting.push_back(submit);
            state.looked_for += 1;
            return;
        }
        if !state.must_look(&submit) {
            drop(state);
            return self.put(submit, 0);
        }
        let hash = submit.hash;
        let job = self.look_job(&submit);
        state.looking.insert(hash, VecDeque::from([submit]));
        state.looked_for += 1;
        drop(state);
        if store.read_later(job).is_err() {
            self.looked(hash, Err(PublishError::StoreBusy));
        }
    }

    /// Asks the disk for what a publish must know.
    fn look_job(&self, submit: &Submit) -> ReadJob {
        let (kept, hash, topic) = (self.clone(), submit.hash, submit.draft.topic.clone());
        let if_offset = submit.options.if_offset.unwrap_or_default();
        Box::new(move |reader: &Reader| {
            let newest = newest_on_disk(reader, &topic, if_offset);
            kept.looked(hash, newest);
        })
    }

    /// What the disk says of the first that waits. Then the others have their turns, one by one: as
    /// long as any is left, what comes meanwhile waits behind it.
    fn looked(&self, hash: u64, newest: Result<u64, PublishError>) {
        let mut newest = Some(newest);
        loop {
            let mut state = self.state();
            let Some(first) = state.looking.get(&hash).and_then(VecDeque::front) else {
                state.looking.remove(&hash);
                return;
            };
            if newest.is_none() && state.must_look(first) {
                let job = self.look_job(first);
                drop(state);
                match self.0.store.as_ref().map(|store| store.read_later(job)) {
                    Some(Ok(())) => return,
                    _ => newest = Some(Err(PublishError::StoreBusy)),
                }
                continue;
            }
            let next = state.looking.get_mut(&hash).and_then(VecDeque::pop_front);
            state.looked_for -= usize::from(next.is_some());
            drop(state);
            match (next, newest.take()) {
                (Some(next), Some(Err(error))) => (next.done)(Err(error)),
                (Some(next), Some(Ok(newest))) => self.put(next, newest),
                (Some(next), None) => self.put(next, 0),
                (None, _) => {}
            }
        }
    }

    fn put(&self, submit: Submit, on_disk: u64) {
        let Submit { hash, draft, keep, options, receipt, done } = submit;
        // `done` is told of a failure, too.
        let _ = self.publish(hash, draft, &keep, &options, on_disk, receipt, Some(done));
    }
}

/// The offset of a topic's newest message on disk. One that the disk has forgotten had none after
/// the floor that such topics share; who says that there never was one is believed.
fn newest_on_disk(reader: &Reader, topic: &str, if_offset: u64) -> Result<u64, PublishError> {
    let newest = match reader.last(topic) {
        Ok(None) if if_offset > 0 => reader.floor(topic),
        other => other.map(Option::unwrap_or_default),
    };
    newest.map_err(PublishError::from)
}
