//! The request queue, into which shards put their requests, and the one response of each request.

#[cfg(test)]
pub(super) mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shard::{QueueFull, WebhookRequest, WebhookResponse};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::error::{ErrorKind, shown};
use super::gate::{Gate, later};
use super::signature::RequestId;
use super::{Fixed, body};

/// The counters, which any thread may write.
#[derive(Default)]
pub(super) struct Counts {
    pub accepted: AtomicU64,
    pub ok: AtomicU64,
    pub error: AtomicU64,
    pub failures: [AtomicU64; ErrorKind::ALL.len()],
    pub waiting: AtomicUsize,
    /// Bytes of the waiting requests: see [`body::memory_bytes`].
    pub waiting_bytes: AtomicUsize,
    /// Closed while another process takes over the waiting requests.
    pub gate: Arc<Gate>,
}

/// The requests that wait for one URL.
pub(super) struct Share {
    url: Arc<str>,
    waiting: AtomicUsize,
    bytes: AtomicUsize,
    rejected: AtomicU64,
}

/// The requests that wait for one URL, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UrlStats {
    /// Gauge: requests without a response so far.
    pub waiting: u64,
    /// Gauge: bytes of their payloads and names.
    pub waiting_bytes: u64,
    /// Requests that were rejected because too many waited. When the node knows 1,000 URLs, it forgets those for which
    /// no request waits, and their counts begin anew.
    pub rejected: u64,
}

/// An accepted request, which gets one response. If it is dropped without one, it gets the response that the node shuts
/// down, unless another process takes it over.
pub(super) struct PendingRequest {
    pub hook_request: WebhookRequest,
    /// When a shard put it into the request queue.
    pub accepted_at: Instant,
    /// The destination; `None` if no URL was configured when the request came.
    pub url: Option<Arc<str>>,
    /// Its number. Later requests have higher ones.
    pub number: u64,
    /// The id of the batch in which another process has sent it, and how many requests that batch had.
    pub sent_in: Option<(RequestId, usize)>,
    bytes: usize,
    share: Arc<Share>,
    counts: Arc<Counts>,
    has_response: bool,
}

impl PendingRequest {
    /// Passes on the application's response.
    pub fn respond(mut self, response: WebhookResponse) {
        let count = match response {
            WebhookResponse::Ok { .. } => &self.counts.ok,
            WebhookResponse::Error(_) | WebhookResponse::Silent(_) => &self.counts.error,
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.end(response);
    }

    /// Responds in the application's place, with the reason why the application has not responded.
    pub fn fail(mut self, kind: ErrorKind) {
        self.counts.failures[kind as usize].fetch_add(1, Ordering::Relaxed);
        self.end(kind.response());
    }

    /// How long it has waited.
    pub fn age(&self) -> Duration {
        self.accepted_at.elapsed()
    }

    fn end(&mut self, response: WebhookResponse) {
        self.has_response = true;
        self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
        self.counts.waiting_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.share.waiting.fetch_sub(1, Ordering::Relaxed);
        self.share.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        let reply = std::mem::replace(&mut self.hook_request.reply, Box::new(|_| ()));
        reply(response);
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if !self.has_response && !self.counts.gate.is_closed() {
            self.counts.failures[ErrorKind::Stopped as usize].fetch_add(1, Ordering::Relaxed);
            self.end(ErrorKind::Stopped.response());
        }
    }
}

/// A request that another process had accepted.
pub(super) struct Restored {
    pub hook_request: WebhookRequest,
    /// The destination; `None` if no URL was configured when the request came.
    pub url: Option<Arc<str>>,
    /// See [`PendingRequest::sent_in`].
    pub sent_in: Option<(RequestId, usize)>,
}

/// The queue between the shards and the worker of the control thread.
pub(super) struct RequestQueue {
    events: Bound,
    events_per_url_max: usize,
    bytes: Bound,
    /// Stands for the URL of requests that have none.
    nowhere: Arc<str>,
    counts: Arc<Counts>,
    state: Mutex<State>,
    /// Notified when there is something to take, and at the end.
    pub ready: Notify,
}

struct State {
    open: bool,
    requests: VecDeque<PendingRequest>,
    /// The number of the next request.
    next: u64,
    shares: HashMap<Arc<str>, Arc<Share>>,
    /// The URL of the request that was rejected last.
    rejected: Option<Arc<str>>,
}

/// Requests that a URL may always have within the limit of all URLs, however many wait for others.
const URL_EVENTS: usize = 64;

/// Bytes of these requests.
const URL_BYTES: usize = 256 << 10;

/// If the limits are small, the share of each URL is reduced so that this many URLs can have it.
const URLS_MIN: usize = 16;

/// One part in this many is reserved for these shares.
const RESERVED_PART: usize = 4;

/// The limits on what waits, in requests or bytes: for all URLs, and for one.
#[derive(Clone, Copy)]
struct Bound {
    all: usize,
    /// What a URL may always have, out of the reserved part.
    of_url: usize,
}

impl Bound {
    fn new(all: usize, of_url: usize) -> Self {
        Bound { all, of_url: of_url.min(all / RESERVED_PART / URLS_MIN) }
    }

    /// Returns true if a URL that has `own` of the `waiting` requests or bytes may get `more`.
    ///
    /// A URL may have at most as much as is still free. So a URL that does not respond leaves as much to the others as
    /// it takes, and none of them can take all of that, either. What is free halves with each such URL and is soon
    /// small, so a part is reserved for URLs that have little.
    fn has_capacity(self, own: usize, waiting: usize, more: usize) -> bool {
        let own = own.saturating_add(more);
        let shared = self.all - self.all / RESERVED_PART;
        own <= shared.saturating_sub(waiting)
            || own <= self.of_url && waiting.saturating_add(more) <= self.all
    }
}

/// The most URLs to remember. At this limit, the node forgets URLs for which no request waits.
const URLS_MAX: usize = 1_000;

impl State {
    fn share(&mut self, url: &Arc<str>) -> Arc<Share> {
        if let Some(share) = self.shares.get(url) {
            return share.clone();
        }
        if self.shares.len() >= URLS_MAX {
            self.shares.retain(|_, share| share.waiting.load(Ordering::Relaxed) > 0);
        }
        let share = Share {
            url: url.clone(),
            waiting: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            rejected: AtomicU64::new(0),
        };
        self.shares.entry(url.clone()).or_insert(Arc::new(share)).clone()
    }
}

impl RequestQueue {
    /// Creates a request queue with the limits of all URLs and of each.
    pub fn new(fixed: &Fixed, counts: Arc<Counts>) -> Self {
        let state = State {
            open: true,
            requests: VecDeque::new(),
            next: 0,
            shares: HashMap::new(),
            rejected: None,
        };
        RequestQueue {
            events: Bound::new(fixed.queue_events_max, URL_EVENTS),
            events_per_url_max: fixed.queue_events_per_url_max,
            bytes: Bound::new(fixed.queue_bytes_max, URL_BYTES),
            nowhere: "".into(),
            counts,
            state: Mutex::new(state),
            ready: Notify::new(),
        }
    }

    /// Appends requests, each with its URL. Rejects all of them if one exceeds a limit, and after the end.
    pub fn put(
        &self,
        hook_requests: Vec<(WebhookRequest, Option<Arc<str>>)>,
    ) -> Result<(), QueueFull> {
        let mut state = self.lock();
        // The URLs of these requests, with how many requests and bytes each URL gets.
        let mut shares: Vec<(Arc<Share>, usize, usize)> = Vec::with_capacity(1);
        let (mut all, mut all_bytes) = (0, 0);
        for (hook_request, url) in &hook_requests {
            let bytes = body::memory_bytes(hook_request);
            let share = state.share(url.as_ref().unwrap_or(&self.nowhere));
            let at = shares.iter().position(|(known, ..)| Arc::ptr_eq(known, &share));
            let at = at.unwrap_or_else(|| {
                shares.push((share, 0, 0));
                shares.len() - 1
            });
            let (share, events, waiting_bytes) = &mut shares[at];
            (*events, *waiting_bytes) = (*events + 1, *waiting_bytes + bytes);
            let (share, events, waiting_bytes) = (share.clone(), *events, *waiting_bytes);
            (all, all_bytes) = (all + 1, all_bytes + bytes);
            if !state.open || !self.has_capacity(&share, (events, waiting_bytes), (all, all_bytes))
            {
                let rejected = hook_requests.len() as u64;
                self.counts.failures[ErrorKind::Full as usize]
                    .fetch_add(rejected, Ordering::Relaxed);
                share.rejected.fetch_add(rejected, Ordering::Relaxed);
                state.rejected = Some(share.url.clone());
                return Err(QueueFull);
            }
        }
        // The worker takes all requests at once, so only the first one must wake it: a wake-up is a system call.
        let first = state.requests.is_empty();
        // The lock is held, so that the oldest requests come first.
        let accepted_at = Instant::now();
        for (hook_request, url) in hook_requests {
            self.push(&mut state, hook_request, url, None, accepted_at);
        }
        drop(state);
        if first {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// Imports requests of another process, in their order and without limits; after the end, it drops them. Their time
    /// begins anew.
    pub fn restore(&self, hook_requests: Vec<Restored>) {
        let mut state = self.lock();
        if !state.open {
            return;
        }
        let accepted_at = Instant::now();
        for Restored { hook_request, url, sent_in } in hook_requests {
            self.push(&mut state, hook_request, url, sent_in, accepted_at);
        }
        drop(state);
        self.ready.notify_one();
    }

    fn push(
        &self,
        state: &mut State,
        hook_request: WebhookRequest,
        url: Option<Arc<str>>,
        sent_in: Option<(RequestId, usize)>,
        accepted_at: Instant,
    ) {
        let bytes = body::memory_bytes(&hook_request);
        let share = state.share(url.as_ref().unwrap_or(&self.nowhere));
        self.counts.waiting.fetch_add(1, Ordering::Relaxed);
        self.counts.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.counts.accepted.fetch_add(1, Ordering::Relaxed);
        share.waiting.fetch_add(1, Ordering::Relaxed);
        share.bytes.fetch_add(bytes, Ordering::Relaxed);
        let (number, counts) = (state.next, self.counts.clone());
        state.next += 1;
        state.requests.push_back(PendingRequest {
            hook_request,
            accepted_at,
            url,
            number,
            sent_in,
            bytes,
            share,
            counts,
            has_response: false,
        });
    }

    /// Visits all requests that no worker has taken yet.
    pub fn each(&self, visit: &mut dyn FnMut(&PendingRequest)) {
        self.lock().requests.iter().for_each(visit);
    }

    /// Moves the arrival of each request by the time that the gate was closed, so that this time does not count.
    pub fn later(&self, by: Duration, now: Instant) {
        let mut state = self.lock();
        let all = state.requests.iter_mut();
        all.for_each(|request| request.accepted_at = later(request.accepted_at, by, now));
    }

    /// Returns true if the URL may have `more` requests and bytes, when all URLs together get `all`. The caller holds
    /// the lock, because the numbers grow only under it.
    fn has_capacity(
        &self,
        share: &Share,
        (more, more_bytes): (usize, usize),
        (all, all_bytes): (usize, usize),
    ) -> bool {
        let waiting = self.counts.waiting.load(Ordering::Relaxed) + all - more;
        let waiting_bytes =
            self.counts.waiting_bytes.load(Ordering::Relaxed) + all_bytes - more_bytes;
        let own = share.waiting.load(Ordering::Relaxed);
        let own_bytes = share.bytes.load(Ordering::Relaxed);
        let few =
            own + more <= self.events_per_url_max && self.events.has_capacity(own, waiting, more);
        // A request that is alone is accepted whatever its size: otherwise it could never be sent.
        let alone = waiting == 0 && more == 1;
        few && (alone || self.bytes.has_capacity(own_bytes, waiting_bytes, more_bytes))
    }

    /// Returns the requests that wait for each URL, by the name that a log may show, for `max` URLs at most, the one
    /// with the most requests first.
    pub fn urls(&self, max: usize) -> Vec<(String, UrlStats)> {
        let mut urls: HashMap<String, UrlStats> = HashMap::new();
        for (url, share) in self.lock().shares.iter().filter(|(url, _)| !url.is_empty()) {
            let stats = urls.entry(shown(url)).or_default();
            stats.waiting += share.waiting.load(Ordering::Relaxed) as u64;
            stats.waiting_bytes += share.bytes.load(Ordering::Relaxed) as u64;
            stats.rejected += share.rejected.load(Ordering::Relaxed);
        }
        let mut urls: Vec<_> = urls.into_iter().collect();
        urls.sort_by(|(a, x), (b, y)| y.waiting.cmp(&x.waiting).then_with(|| a.cmp(b)));
        urls.truncate(max);
        urls
    }

    /// The URL of the request that was rejected last.
    pub fn last_rejected(&self) -> Option<Arc<str>> {
        self.lock().rejected.clone()
    }

    /// Takes all requests that came since the last call; `None` after the end.
    pub fn take(&self) -> Option<VecDeque<PendingRequest>> {
        let mut state = self.lock();
        state.open.then(|| std::mem::take(&mut state.requests))
    }

    /// Rejects later requests, and fails those in the queue.
    pub fn close(&self) {
        let mut state = self.lock();
        state.open = false;
        let requests = std::mem::take(&mut state.requests);
        drop(state);
        // The drop calls the replies, which must not run under the lock.
        drop(requests);
        self.ready.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
