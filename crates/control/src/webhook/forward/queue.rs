//! The queue of a rule, and its counters.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::name::personal;
use shard::{ForwardRequest, QueueFull, WebhookResponse};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::super::client::Proof;
use super::super::error::ErrorKind;
use super::super::gate::{Gate, later};
use super::super::queue::BATCH_BYTES_MAX;
use super::super::signature::RequestId;
use super::{Forward, ReplyTo, Restored, body};

/// The counters and gauges of a rule's messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardStats {
    /// Messages that the back end has taken.
    pub taken: u64,
    /// Messages that the back end has not taken in time, or has rejected.
    pub failed: u64,
    /// Messages that the queue rejected, at a limit or after its end, and whose clients got an error.
    pub refused: u64,
    /// Messages that the queue rejected, at a limit or after its end, and for whose results no client waited.
    pub dropped: u64,
    /// HTTP requests that were sent, or could not be.
    pub requests: u64,
    /// HTTP requests that were sent again.
    pub retries: u64,
    /// Bytes of the bodies of all requests.
    pub bytes: u64,
    /// Replies that were published.
    pub replies_published: u64,
    /// Replies, and whole responses, that could not be published.
    pub rejected: u64,
    /// Gauge: messages that the back end has not taken yet.
    pub waiting: u64,
    /// Gauge: bytes of these messages.
    pub waiting_bytes: u64,
}

/// Counts the replies of a back end, by their result.
#[derive(Debug, Default)]
pub struct ReplyCounts {
    /// Replies that were published.
    pub published: AtomicU64,
    /// Replies, and whole responses, that could not be published.
    pub rejected: AtomicU64,
}

/// A message that gets one result. If it is dropped without one, its result is that the node shuts down.
pub(in crate::webhook) struct Pending {
    pub request: ForwardRequest,
    pub id: String,
    /// Its number. Later messages have higher ones.
    pub number: u64,
    pub accepted_at: Instant,
    pub bytes: usize,
    queue: Arc<ForwardQueue>,
}

impl Pending {
    /// Reports that the back end has taken the message.
    pub fn taken(mut self) {
        self.queue.taken.fetch_add(1, Ordering::Relaxed);
        self.end(WebhookResponse::yes());
    }

    /// Reports that the message has failed, for this reason.
    pub fn fail(mut self, kind: ErrorKind) {
        self.end(kind.response());
    }

    /// Returns the destination of the reply to the message.
    pub fn reply_to(&self) -> Option<ReplyTo> {
        let properties = self.request.publication.properties();
        let named = properties.and_then(|it| it.response_topic.clone());
        let topic = named.or_else(|| self.request.users.first().map(|user| personal(user)))?;
        let correlation_data = properties.and_then(|it| it.correlation_data.clone());
        Some(ReplyTo { topic, correlation_data })
    }

    fn end(&mut self, response: WebhookResponse) {
        if !matches!(response, WebhookResponse::Ok { .. }) {
            self.queue.failed.fetch_add(1, Ordering::Relaxed);
        }
        self.queue.left(std::mem::take(&mut self.bytes));
        if let Some(reply) = self.request.reply.take() {
            reply(response);
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // A message with a result has no bytes. While the gate is closed, another process takes over the message.
        if self.bytes > 0 && !self.queue.gate.is_closed() {
            self.end(ErrorKind::Stopped.response());
        }
    }
}

/// A rule's queue.
pub(in crate::webhook) struct ForwardQueue {
    state: Mutex<State>,
    gate: Arc<Gate>,
    /// Notified when there is something to poll.
    pub ready: Notify,
    pub taken: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    dropped: AtomicU64,
    pub requests: AtomicU64,
    pub retries: AtomicU64,
    pub bytes: AtomicU64,
    pub reply_counts: Arc<ReplyCounts>,
}

struct State {
    rule: Arc<Forward>,
    proof: Proof,
    open: bool,
    /// The messages that are sent until the back end takes them, or their time is over.
    under_way: Option<UnderWay>,
    waiting: VecDeque<Pending>,
    /// The number of messages that wait or are under way.
    queued: usize,
    queued_bytes: usize,
}

/// Messages of one request.
pub(super) struct UnderWay {
    pub id: RequestId,
    /// True if its messages were sent before, in this request or another one.
    pub is_again: bool,
    pub messages: VecDeque<Pending>,
}

/// A message that the back end has not taken yet.
#[derive(Clone, Copy)]
pub(in crate::webhook) struct Waits<'a> {
    pub pending: &'a Pending,
    /// The request in which it is under way, if it is.
    pub sent_in: Option<&'a RequestId>,
}

/// What the sender of a queue does next.
pub(super) enum NextStep {
    /// It sends these messages.
    Send(VecDeque<Pending>),
    /// It polls again at this time, or when a message comes.
    Until(Option<Instant>),
    /// It ends: no message will come.
    Ended,
}

impl ForwardQueue {
    pub fn new(rule: Forward, proof: Proof, gate: Arc<Gate>) -> Self {
        let state = State {
            rule: rule.into(),
            proof,
            open: true,
            under_way: None,
            waiting: VecDeque::new(),
            queued: 0,
            queued_bytes: 0,
        };
        ForwardQueue {
            state: state.into(),
            gate,
            ready: Notify::new(),
            taken: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            reply_counts: Arc::default(),
        }
    }

    /// Replaces the rule, and the proof for its requests.
    pub fn set(&self, rule: Forward, proof: Proof) {
        let mut state = self.lock();
        (state.rule, state.proof) = (rule.into(), proof);
        drop(state);
        self.ready.notify_one();
    }

    /// Returns the rule in force, and the proof for its requests.
    pub fn rule(&self) -> (Arc<Forward>, Proof) {
        let state = self.lock();
        (state.rule.clone(), state.proof.clone())
    }

    /// Accepts no more messages.
    pub fn close(&self) {
        self.lock().open = false;
        self.ready.notify_one();
    }

    /// Accepts no more messages, and drops those in the queue, so that their clients get an error. Called when the
    /// queue has no sender any more.
    pub fn abandon(&self) {
        let mut state = self.lock();
        state.open = false;
        let gone = (state.under_way.take(), std::mem::take(&mut state.waiting));
        drop(state);
        // The drop calls the replies, which must not run under the lock.
        drop(gone);
    }

    /// Appends a message. Fails at the limits of the rule, and after the end.
    pub fn put(
        self: Arc<Self>,
        request: ForwardRequest,
        id: String,
        number: u64,
    ) -> Result<(), QueueFull> {
        let bytes = body::memory_bytes(&request);
        let mut state = self.lock();
        let fits = state.queued < state.rule.queue_messages_max
            && (state.queued == 0
                || state.queued_bytes.saturating_add(bytes) <= state.rule.queue_bytes_max);
        if !state.open || !fits {
            let count = if request.reply.is_some() { &self.refused } else { &self.dropped };
            count.fetch_add(1, Ordering::Relaxed);
            return Err(QueueFull);
        }
        (state.queued, state.queued_bytes) = (state.queued + 1, state.queued_bytes + bytes);
        let queue = self.clone();
        let accepted_at = Instant::now();
        state.waiting.push_back(Pending { request, id, number, accepted_at, bytes, queue });
        let waiting = state.waiting.len();
        // A wake-up is a system call, so only a message that begins or completes a batch wakes the sender.
        let wakes = waiting == 1 || waiting == state.rule.batch_messages_max;
        drop(state);
        if wakes {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// Returns the next step of the sender.
    pub(super) fn poll(&self, now: Instant) -> NextStep {
        let mut state = self.lock();
        let Some(first) = state.waiting.front() else {
            return if state.open { NextStep::Until(None) } else { NextStep::Ended };
        };
        let due = first.accepted_at + state.rule.batch_wait;
        let max = state.rule.batch_messages_max.max(1);
        if state.open && state.waiting.len() < max && due > now {
            return NextStep::Until(Some(due));
        }
        let mut bytes = 0;
        let fitting = state.waiting.iter().take(max).take_while(|pending| {
            let fits = bytes < BATCH_BYTES_MAX;
            bytes += pending.bytes;
            fits
        });
        let fitting = fitting.count();
        NextStep::Send(state.waiting.drain(..fitting).collect())
    }

    /// Puts a batch under way, until the back end takes its messages or their time is over.
    pub fn begin(&self, messages: VecDeque<Pending>) {
        let under_way = UnderWay { id: RequestId::random(), is_again: false, messages };
        self.lock().under_way = Some(under_way);
    }

    /// Returns true if a batch is under way.
    pub fn is_under_way(&self) -> bool {
        self.lock().under_way.is_some()
    }

    /// Passes the batch under way to `visit`, which may change it. A batch that has no messages left is no longer under
    /// way.
    pub(super) fn under_way<T>(&self, visit: impl FnOnce(&mut UnderWay) -> T) -> Option<T> {
        let mut state = self.lock();
        let visited = visit(state.under_way.as_mut()?);
        state.under_way.take_if(|under_way| under_way.messages.is_empty());
        Some(visited)
    }

    /// Removes and returns the messages that are under way.
    pub fn take_under_way(&self) -> VecDeque<Pending> {
        self.lock().under_way.take().map(|it| it.messages).unwrap_or_default()
    }

    /// Visits all messages that the back end has not taken yet.
    pub fn each(&self, visit: &mut dyn FnMut(Waits<'_>)) {
        let state = self.lock();
        for UnderWay { id, messages, .. } in state.under_way.iter() {
            messages.iter().for_each(|pending| visit(Waits { pending, sent_in: Some(id) }));
        }
        state.waiting.iter().for_each(|pending| visit(Waits { pending, sent_in: None }));
    }

    /// Imports a message of another process. The caller imports messages in their order.
    pub fn restore(self: Arc<Self>, message: Restored) {
        let Restored { request, id, number, sent_in } = message;
        let bytes = body::memory_bytes(&request);
        let (queue, accepted_at) = (self.clone(), Instant::now());
        let pending = Pending { request, id, number, accepted_at, bytes, queue };
        let mut state = self.lock();
        (state.queued, state.queued_bytes) = (state.queued + 1, state.queued_bytes + bytes);
        match (sent_in, &mut state.under_way) {
            (Some(id), Some(under_way)) if under_way.id == id => {
                under_way.messages.push_back(pending);
            }
            (Some(id), none @ None) => {
                *none = Some(UnderWay { id, is_again: true, messages: [pending].into() });
            }
            // Only one request is under way at a time.
            (Some(_) | None, _) => state.waiting.push_back(pending),
        }
        drop(state);
        self.ready.notify_one();
    }

    /// Moves the arrival of each message by the time that the gate was closed, so that this time does not count.
    pub fn later(&self, by: Duration, now: Instant) {
        let mut state = self.lock();
        let State { under_way, waiting, .. } = &mut *state;
        let sent = under_way.iter_mut().flat_map(|it| &mut it.messages);
        let all = sent.chain(waiting);
        all.for_each(|pending| pending.accepted_at = later(pending.accepted_at, by, now));
    }

    /// Removes and returns messages that have waited for longer than `patience`. The caller fails them without the
    /// lock.
    pub fn take_late(&self, now: Instant, patience: Duration) -> Vec<Pending> {
        let mut state = self.lock();
        let late = |it: &&Pending| now.saturating_duration_since(it.accepted_at) > patience;
        let count = state.waiting.iter().take_while(late).count();
        state.waiting.drain(..count).collect()
    }

    pub fn stats(&self) -> ForwardStats {
        let (waiting, waiting_bytes) = {
            let state = self.lock();
            (state.queued as u64, state.queued_bytes as u64)
        };
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ForwardStats {
            taken: get(&self.taken),
            failed: get(&self.failed),
            refused: get(&self.refused),
            dropped: get(&self.dropped),
            requests: get(&self.requests),
            retries: get(&self.retries),
            bytes: get(&self.bytes),
            replies_published: get(&self.reply_counts.published),
            rejected: get(&self.reply_counts.rejected),
            waiting,
            waiting_bytes,
        }
    }

    fn left(&self, bytes: usize) {
        let mut state = self.lock();
        state.queued = state.queued.saturating_sub(1);
        state.queued_bytes = state.queued_bytes.saturating_sub(bytes);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
