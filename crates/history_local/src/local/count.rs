//! Finds where the newest messages of topics begin that memory no longer has, by counting back on the disk.
//!
//! The store must read a message whole to count it: its position and its time are beside its payload, and the
//! checksum covers all of it. So a short request can cause much work, before its client has read a byte. The work is
//! done in steps of about a page: all counting requests share one position in the queue of the store's reader, and
//! take turns in it, so that other reads wait for one step at most. A request ends when its client has left, and the
//! steps of a request have a common limit.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use history::{Completion, HistoryError};
use model::Name;
use store::{CountedMessages, ReadLimits, Reader, StoreError};

use super::{Local, unix_ms};
use crate::error::{queue_error, store_error};

/// Bytes of messages that one step counts. The message that reaches them is the last.
const STEP_BYTES_MAX: usize = 1 << 20;

/// Messages that one step counts, with the expired ones that it skips; the read that reaches them is the last.
const STEP_MESSAGES_MAX: usize = 4_096;

/// Topics that one step looks up.
const STEP_TOPICS_MAX: usize = 64;

/// Bytes of messages that are counted for all topics of a request. Each topic gets a share, and at least one message;
/// if a share is used up, fewer messages count as its newest.
const REQUEST_BYTES_MAX: usize = if cfg!(test) { 3 << 20 } else { 64 << 20 };

/// Requests that may wait.
const REQUESTS_MAX: usize = 65_536;

/// A topic whose newest messages are requested, and of which memory has fewer.
pub(super) struct RequestedTopic {
    pub hash: u64,
    pub topic: Name,
    pub messages: usize,
}

/// The counting requests, in the order of their turns.
#[derive(Default)]
pub(super) struct Counting {
    waiting: VecDeque<Count>,
    /// True if a step is in the queue of the store's reader, or runs.
    is_queued: bool,
}

impl Counting {
    /// Returns true if no request counts.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && !self.is_queued
    }
}

/// A counting request.
pub(super) struct Count {
    /// The topics to count, the next of them last.
    requested: Vec<RequestedTopic>,
    topic: Option<Topic>,
    /// The offsets before the newest messages of topics, by hash.
    found: Vec<(u64, u64)>,
    bytes_left: usize,
    /// The tracing span of the request, for its log lines.
    span: tracing::Span,
    waiter: Box<dyn CountWaiter>,
}

/// The topic being counted, and its rest.
struct Topic {
    hash: u64,
    topic: Name,
    before: u64,
    messages: usize,
    /// Its share of the request's bytes.
    bytes: usize,
}

/// A pending count; `reply` makes the reply from the found offsets.
struct PendingCount<T, F> {
    completion: Completion<T>,
    reply: F,
}

trait CountWaiter: Send {
    fn is_awaited(&self) -> bool;
    /// Completes the request with the offsets.
    fn found(self: Box<Self>, history: &Local, reader: &Reader, found: &[(u64, u64)]);
    fn fail(self: Box<Self>, error: HistoryError);
}

impl<T, F> CountWaiter for PendingCount<T, F>
where
    F: FnOnce(&Local, &Reader, &[(u64, u64)]) -> Result<T, HistoryError> + Send,
{
    fn is_awaited(&self) -> bool {
        self.completion.is_awaited()
    }

    fn found(self: Box<Self>, history: &Local, reader: &Reader, found: &[(u64, u64)]) {
        let PendingCount { completion, reply } = *self;
        // The caller waits for the reply, even after a panic.
        let reply = catch_unwind(AssertUnwindSafe(|| reply(history, reader, found)));
        completion.complete(reply.unwrap_or_else(|_| Err(panicked())));
    }

    fn fail(self: Box<Self>, error: HistoryError) {
        self.completion.complete(Err(error));
    }
}

impl Count {
    /// Makes a request that counts the newest messages of topics; `reply` makes the reply from the offsets before
    /// them, by hash.
    pub fn new<T: 'static>(
        mut requested: Vec<RequestedTopic>,
        completion: Completion<T>,
        reply: impl FnOnce(&Local, &Reader, &[(u64, u64)]) -> Result<T, HistoryError> + Send + 'static,
    ) -> Self {
        requested.reverse();
        let waiter = Box::new(PendingCount { completion, reply });
        let (topic, found, bytes_left) = (None, Vec::new(), REQUEST_BYTES_MAX);
        Count { requested, topic, found, bytes_left, span: tracing::Span::current(), waiter }
    }

    /// Counts one step. Returns true when it is finished.
    fn step(&mut self, history: &Local, reader: &Reader) -> Result<bool, HistoryError> {
        let now_ms = unix_ms();
        let (mut bytes, mut messages) = (STEP_BYTES_MAX, STEP_MESSAGES_MAX);
        for _ in 0..STEP_TOPICS_MAX {
            let Some(mut topic) = self.topic.take().or_else(|| self.next_topic(history)) else {
                return Ok(true);
            };
            let bytes_max = bytes.min(topic.bytes);
            let counted = topic.count(history, reader, bytes_max, now_ms)?;
            self.bytes_left = self.bytes_left.saturating_sub(counted.bytes);
            bytes = bytes.saturating_sub(counted.bytes);
            messages = messages.saturating_sub(counted.rows);
            match topic.found(&counted) {
                Some(after) => self.found.push((topic.hash, after)),
                None => self.topic = Some(topic),
            }
            if bytes == 0 || messages == 0 {
                break;
            }
        }
        Ok(self.topic.is_none() && self.requested.is_empty())
    }

    fn next_topic(&mut self, history: &Local) -> Option<Topic> {
        let share = self.bytes_left / self.requested.len().max(1);
        let RequestedTopic { hash, topic, messages } = self.requested.pop()?;
        // Later messages may be on disk, but are not delivered yet.
        let before = history.state().delivered.saturating_add(1);
        Some(Topic { hash, topic, before, messages, bytes: share })
    }
}

impl Topic {
    /// Counts a part of the topic.
    fn count(
        &mut self,
        history: &Local,
        reader: &Reader,
        bytes_max: usize,
        now_ms: u64,
    ) -> Result<CountedMessages, HistoryError> {
        let limits = ReadLimits { messages_max: self.messages, bytes_max };
        match reader.count_before(&self.topic, self.before, limits, now_ms) {
            Ok(counted) => Ok(counted),
            Err(StoreError::Damaged(damage)) => {
                history.0.log.damage(&self.topic, &damage);
                // Only messages after the damage can be read.
                let after = damage.through.min(self.before.saturating_sub(1));
                let through = after.saturating_add(1);
                self.messages = 0;
                Ok(CountedMessages { messages: 0, rows: 0, bytes: 0, through, more: false })
            }
            Err(error) => {
                history.0.log.failed_read(&self.topic, &error);
                Err(store_error(error))
            }
        }
    }

    /// Takes a result. Returns the offset before the newest messages once it is found.
    fn found(&mut self, counted: &CountedMessages) -> Option<u64> {
        self.messages = self.messages.saturating_sub(counted.messages);
        self.bytes = self.bytes.saturating_sub(counted.bytes);
        self.before = counted.through;
        let is_complete = self.messages == 0 || (counted.more && self.bytes == 0);
        match is_complete {
            true => Some(self.before.saturating_sub(1)),
            // The topic has fewer messages.
            false => (!counted.more).then_some(0),
        }
    }
}

impl Local {
    /// Queues a count for the store's reader. An error is the reply to the request.
    pub(super) fn count_later(&self, count: Count) -> Result<(), HistoryError> {
        let mut counting = self.counting();
        if counting.waiting.len() >= REQUESTS_MAX {
            return Err(HistoryError::Busy);
        }
        if !counting.is_queued {
            self.queue_step()?;
            counting.is_queued = true;
        }
        counting.waiting.push_back(count);
        self.0.counts.disk_reads.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn counting(&self) -> std::sync::MutexGuard<'_, Counting> {
        // No code under this lock panics between two related changes.
        self.0.counting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue_step(&self) -> Result<(), HistoryError> {
        let Some(store) = &self.0.store else { return Err(HistoryError::Busy) };
        let history = self.clone();
        let step = Box::new(move |reader: &Reader| history.count_step(reader));
        store.read_later(step).map_err(queue_error)
    }

    /// Performs a step of the request whose turn it is.
    fn count_step(&self, reader: &Reader) {
        let next = || self.counting().waiting.pop_front();
        if let Some(mut count) = std::iter::from_fn(next).find(|count| count.waiter.is_awaited()) {
            let span = count.span.clone();
            let _entered = span.enter();
            let step = catch_unwind(AssertUnwindSafe(|| count.step(self, reader)));
            match step.unwrap_or_else(|_| Err(panicked())) {
                Ok(true) => count.waiter.found(self, reader, &count.found),
                Ok(false) => self.counting().waiting.push_back(count),
                Err(error) => count.waiter.fail(error),
            }
        }
        let mut counting = self.counting();
        let queued =
            if counting.waiting.is_empty() { Ok(false) } else { self.queue_step().map(|()| true) };
        counting.is_queued = queued == Ok(true);
        if let Err(error) = queued {
            let waiting = std::mem::take(&mut counting.waiting);
            drop(counting);
            waiting.into_iter().for_each(|count| count.waiter.fail(error.clone()));
        }
    }
}

/// Returns the error for a caller whose read panicked.
pub(super) fn panicked() -> HistoryError {
    HistoryError::Unavailable("the reader of the store panicked".into())
}
