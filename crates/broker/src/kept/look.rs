//! History for applications and operators.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use store::{Amount, Reader, Stored};
use wire::Message;

use super::{Kept, kind, unix_ms};
use crate::{Activity, Latest, PublishError};

/// Messages that are counted in one hold of the lock.
const COUNTED: usize = 256;

/// Bytes of payload in a page from the disk.
const PAGE_BYTES: usize = 16 << 20;

/// Reads that one page may take where much has expired.
const PASSES: usize = 64;

/// Topics whose windows one sweep goes over.
const SWEPT: usize = 4_096;

/// Told that a topic's history is gone, or why not.
pub type Deleted = Box<dyn FnOnce(Result<(), PublishError>) + Send>;

/// A page of a topic's history.
#[derive(Debug, Default)]
pub struct Page {
    /// Forwards the oldest first, backwards the newest first.
    pub messages: Vec<Arc<Message>>,
    /// There are more in this direction.
    pub more: bool,
    /// Messages that were asked for are gone: the place is older than what is kept, or they are
    /// among what was lost.
    pub gone: bool,
    /// Messages that came after the first offset and up to the second may have been lost: the
    /// store's file did not keep its last commit. Only where they were asked for.
    pub lost: Option<(u64, u64)>,
}

/// Told of a page, or why it can't be had.
pub type Paged = Box<dyn FnOnce(Result<Page, PublishError>) + Send>;

/// What the topics with history hold and did.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeptStats {
    /// Messages in memory.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Topics that something is known of.
    pub topics: u64,
    /// Users' cursors.
    pub cursors: u64,
    /// Idempotency keys.
    pub idempotency_keys: u64,
    /// Messages that were published to topics with history.
    pub published: u64,
    /// Publishes that were answered with an earlier message, for they had its idempotency key.
    pub repeated: u64,
    /// Messages that the store could not write although their publishers had been told that they
    /// are on their way; never of a durable topic.
    pub lost: u64,
    /// Acknowledgements that moved a cursor.
    pub acknowledged: u64,
    /// Messages that were delivered again to a connection that had them, for they were not
    /// acknowledged in time.
    pub redelivered: u64,
    /// Messages that nobody acknowledged in all their tries, and that went to a dead-letter topic.
    pub dead_lettered: u64,
    /// The same where there is no such topic.
    pub dropped: u64,
    /// Clients that came back and were told that they have everything.
    pub recovered: u64,
    /// Clients that came back and were told that something is missing.
    pub unrecovered: u64,
    /// Looks that memory could not answer.
    pub disk_reads: u64,
}

impl Kept {
    /// A page of a topic's history, given to `reply` once: at once when memory has it, else on the
    /// store's reader. Forwards are the messages after the offset `from`, or all; backwards those
    /// before it, or all.
    pub fn page(
        &self,
        hash: u64,
        topic: &str,
        from: Option<u64>,
        backwards: bool,
        limit: usize,
        reply: Paged,
    ) -> Result<(), PublishError> {
        let (page, whole) = {
            let state = self.state();
            let oldest = if backwards { 0 } else { from.unwrap_or(0) };
            let page = state.windows.page(hash, topic, from, backwards, limit, unix_ms());
            // What a page backwards has is right when it is full, however far the window reaches.
            let full = backwards && page.messages.len() == limit && page.more;
            (page, full || state.windows.reaches(hash, topic, oldest))
        };
        let (Some(store), false) = (&self.0.store, whole) else {
            reply(Ok(Page {
                messages: page.messages,
                more: page.more,
                gone: !whole && from.is_some(),
                lost: None,
            }));
            return Ok(());
        };
        let (kept, topic) = (self.clone(), wire::Name::from(topic));
        self.0.counts.disk_reads.fetch_add(1, Ordering::Relaxed);
        let job = move |reader: &Reader| {
            reply(kept.read_page(reader, hash, &topic, from, backwards, limit));
        };
        store.read_later(Box::new(job)).map_err(|_| PublishError::StoreBusy)
    }

    fn read_page(
        &self,
        reader: &Reader,
        hash: u64,
        topic: &str,
        from: Option<u64>,
        backwards: bool,
        limit: usize,
    ) -> Result<Page, PublishError> {
        let now_ms = unix_ms();
        let delivered = self.state().delivered;
        let amount = Amount { messages_max: limit, bytes_max: PAGE_BYTES };
        let read = |from: Option<u64>| match backwards {
            true => reader.before(topic, from.unwrap_or(u64::MAX), amount, now_ms),
            false => reader.after(topic, from.unwrap_or(0), amount, now_ms),
        };
        let mut stored = read(from);
        // What has expired is passed over, a piece at a time.
        for _ in 0..PASSES {
            match &stored {
                Ok(found) if found.records.is_empty() && found.more => {
                    stored = read(Some(found.through));
                }
                _ => break,
            }
        }
        let stored =
            stored.inspect_err(|error| tracing::error!("the store can't be read: {error}"))?;
        let Some(keep) = self.rule(topic) else { return Err(PublishError::NoHistory) };
        let lost = lost(&stored, from, backwards);
        // What is on disk and not handed on yet is told with the next look.
        let records = stored.records.into_iter().filter(|record| record.offset <= delivered);
        let messages = records.map(|record| {
            let message = Message::new(record.draft, self.id(record.offset), hash, 0);
            Arc::new(message.kept(kind(&keep), record.at_ms))
        });
        let gone = from.is_some_and(|from| !backwards && stored.floor > from);
        let gone = gone || lost.is_some();
        Ok(Page { messages: messages.collect(), more: stored.more, gone, lost })
    }

    /// The newest messages of all topics, newest first: at most `limit`, and 1,024.
    pub(crate) fn latest(&self, limit: usize) -> Vec<Arc<Message>> {
        self.state().newest.before(u64::MAX, limit.min(1_024)).cloned().collect()
    }

    /// The newest messages of one topic that are in memory, newest first.
    pub(crate) fn latest_of(&self, hash: u64, topic: &str, limit: usize) -> Latest {
        let page = self.state().windows.page(hash, topic, None, true, limit, unix_ms());
        Latest { messages: page.messages, complete: true }
    }

    /// Counts the newest messages since a time, in microseconds of the node's clock. Gives the time
    /// after which all were counted. Publishers get their turns meanwhile.
    pub(crate) fn count_newest(
        &self,
        from_us: u64,
        messages_max: usize,
        activity: &mut Activity,
    ) -> u64 {
        let (mut before, mut counted, mut oldest_us) = (u64::MAX, 0, u64::MAX);
        loop {
            let state = self.state();
            let part = state.newest.before(before, COUNTED);
            let (mut is_end, mut passed) = (true, false);
            for message in part {
                before = message.id.offset;
                is_end = false;
                passed = message.published_us < from_us;
                if passed {
                    break;
                }
                counted += 1;
                oldest_us = message.published_us;
                activity.count(message);
            }
            if counted >= messages_max {
                return oldest_us;
            }
            if is_end || passed {
                return state.newest.complete_after_us();
            }
        }
    }

    /// Deletes what is kept of a topic up to now; whoever comes back to it from before is told that
    /// it is gone. `done` is called when it is off the disk, or cannot be.
    pub fn delete(&self, hash: u64, topic: &str, done: Deleted) {
        let through = {
            let mut state = self.state();
            // With a store, also what is being written: it comes before this to the disk.
            let through = state.last;
            state.windows.delete(hash, topic, through);
            through
        };
        match &self.0.store {
            None => done(Ok(())),
            Some(store) => {
                // Told by whoever comes to it first: the writer, or the refusal.
                let done = Arc::new(Mutex::new(Some(done)));
                let tell = |done: &Mutex<Option<Deleted>>, result: Result<(), PublishError>| {
                    let done = done.lock().ok().and_then(|mut done| done.take());
                    done.into_iter().for_each(|done| done(result.clone()));
                };
                let later = done.clone();
                let (kept, name) = (self.clone(), wire::Name::from(topic));
                let written = move |result: Result<(), store::Fault>| {
                    // What was written meanwhile has entered the window since.
                    kept.state().windows.delete(hash, &name, through);
                    let result = result.map_err(PublishError::from);
                    tell(&later, result);
                };
                let topic = wire::Name::from(topic);
                if let Err(refused) = store.delete_history(&topic, through, Box::new(written)) {
                    tell(&done, Err(super::refusal(refused)));
                }
            }
        }
    }

    /// Lets go what is too old. To be called about once a second.
    pub fn sweep(&self) {
        let rules = self.0.rules.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let keep = |topic: &str| rules.history(topic).cloned();
        self.state().windows.sweep(unix_ms(), &keep, SWEPT);
    }

    /// What is held, and what was done so far.
    pub fn stats(&self) -> KeptStats {
        let counts = &self.0.counts;
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let cursors = self.cursors().len() as u64;
        let state = self.state();
        KeptStats {
            messages: state.windows.messages() as u64,
            bytes: state.windows.bytes() as u64,
            topics: state.windows.topics() as u64,
            cursors,
            idempotency_keys: state.idempotency.len() as u64,
            published: count(&counts.published),
            repeated: count(&counts.repeated),
            lost: count(&counts.lost),
            acknowledged: count(&counts.acknowledged),
            redelivered: count(&counts.redelivered),
            dead_lettered: count(&counts.dead_lettered),
            dropped: count(&counts.dropped),
            recovered: count(&counts.recovered),
            unrecovered: count(&counts.unrecovered),
            disk_reads: count(&counts.disk_reads),
        }
    }
}

/// What was lost of the messages that were asked for. Backwards without a place these are the last.
fn lost(stored: &Stored, from: Option<u64>, backwards: bool) -> Option<(u64, u64)> {
    let (after, through) = stored.lost?;
    let is_asked_for = match backwards {
        true => from.is_none_or(|from| from > after + 1) && stored.through <= through,
        false => from.unwrap_or(0) < through && (!stored.more || stored.through > after),
    };
    is_asked_for.then_some((after, through))
}
