//! Sends the requests of shards to the application by HTTP, and returns its responses.
//!
//! A shard gets one response for each request. A request waits in the request queue until the control thread puts it
//! into one of the `requests_max` queues of its URL. These queues exist while they have requests. Each queue has one
//! HTTP request under way at a time, a batch; what waits meanwhile goes into the next batch. All requests of a
//! connection to a URL are in one queue, which keeps their order. A slow response holds up one queue only, and a URL
//! that does not respond holds up no other URL.
//!
//! All URLs share one limit. In three quarters of it, a URL may have at most as many requests as are still free. So a
//! URL that does not respond leaves as much to the others as it takes. The last quarter is for URLs with few requests:
//! 64 requests of 256 KiB each.
//!
//! The timeout is from the request to its response, and includes the time in queues. A request whose time is over
//! fails, whether it was sent or not. A batch is aborted when all of its requests have failed.
//!
//! Events (`event_sender.rs`) and forwarded messages (`forward/`) have queues of their own, and the same client.
//!
//! Limits besides those of the configuration: no request is added to a batch of 512 KiB; a response may have 1 MiB, and
//! 16 KiB more for each request of its batch; unused connections are closed after a second. A status of 200 or 204 is a
//! response, any other status is an error.

mod body;
mod client;
mod error;
mod event_sender;
mod events;
mod forward;
mod gate;
mod handover;
#[cfg(any(test, feature = "testing"))]
mod invariants;
mod queue;
mod request_queue;
mod response;
mod signature;
#[cfg(test)]
mod tests;
mod time_limit;
mod worker;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use shard::{ForwardRequest, Histogram, HookEvent, HookEvents, QueueFull, Webhook, WebhookRequest};
use tokio::sync::oneshot;

use crate::outgoing::Authorities;
use crate::spans::Tracer;
use client::{Clients, LazyClient};
use event_sender::SharedEventQueue;
use events::Events;
use forward::Forwards;
use queue::{Queue, QueueKey};
use request_queue::{Counts, RequestQueue};

pub use self::handover::{EventsPart, Forwarded, Hooks, ToShard};
pub use error::ErrorKind;
pub use event_sender::{EventSender, EventStart};
pub use events::{EventLimits, EventStats, EventStore};
pub use forward::{Forward, ForwardStats, Forwarder, PublishReplies, ReplyCounts, ReplyTo};
#[cfg(any(test, feature = "testing"))]
pub use invariants::check_response;
pub use request_queue::UrlStats;
pub use signature::SigningKey;
pub use worker::Worker;

/// Settings that do not change while the node runs.
#[derive(Clone, Debug)]
pub struct Fixed {
    /// Which certificates of servers are trusted.
    pub authorities: Authorities,
    /// The limit on requests without a response, those under way included. More are rejected. In three quarters of
    /// this, a URL may have at most as many as are still free, so that a URL which does not respond leaves as much to
    /// the others. The rest is for URLs with fewer than 64 requests.
    pub queue_events_max: usize,
    /// The limit on those of one URL.
    pub queue_events_per_url_max: usize,
    /// The limit on bytes of their payloads and names. In three quarters of this, a URL may have at most as much as is
    /// still free; the rest is for URLs with less than 256 KiB. More are rejected, but for a request that is alone.
    pub queue_bytes_max: usize,
    /// The limit on HTTP requests under way to each URL; at least one.
    pub requests_max: usize,
    /// The bounds of the queue of events.
    pub events: EventLimits,
    /// Begins a span of each request, where a collector is configured.
    pub tracer: Option<Arc<Tracer>>,
}

/// Settings that may change while the node runs. A new URL holds for later requests, a new timeout for all, and the
/// others for batches that begin later.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// The URL for topics whose rule names none: `http://` or `https://`.
    pub url: Option<Arc<str>>,
    /// A bearer token that proves to the application that this server sends.
    pub secret: Option<String>,
    /// The key that signs each request.
    pub signing_key: Option<SigningKey>,
    /// The time limit of a request, from the shard that makes it to the last byte of the response.
    pub timeout: Duration,
    /// The limit on requests in one HTTP request.
    pub batch_events_max: usize,
    /// The events that the application gets.
    pub events: HookEvents,
    /// How long an event is sent again before it is dropped.
    pub event_retry: Duration,
    /// How long a topic must stay occupied or vacated before an event says so.
    pub occupancy: Duration,
    /// The back ends of clients' messages.
    pub forwards: Vec<Forward>,
}

impl Settings {
    /// Whether the application gets events.
    fn has_events(&self) -> bool {
        self.events != HookEvents::default()
    }

    fn proof(&self) -> client::Proof {
        client::Proof { secret: self.secret.clone(), key: self.signing_key.clone() }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("url", &self.url.as_deref().map(error::shown))
            .field("secret", &self.secret.as_ref().map(|_| "(secret)"))
            .field("signing_key", &self.signing_key)
            .field("timeout", &self.timeout)
            .field("batch_events_max", &self.batch_events_max)
            .field("events", &self.events)
            .field("event_retry", &self.event_retry)
            .field("occupancy", &self.occupancy)
            .field("forwards", &self.forwards)
            .finish()
    }
}

/// The counters and gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests that were accepted.
    pub accepted: u64,
    /// Those with the response ok.
    pub ok: u64,
    /// Those with the response error.
    pub error: u64,
    /// Those without a response of the application, by [`ErrorKind`]. ([`ErrorKind::Full`] ones were
    /// not accepted.)
    pub failures: [u64; ErrorKind::ALL.len()],
    /// HTTP requests that were sent, or could not be.
    pub http_requests: u64,
    /// Gauge: requests without a response so far.
    pub waiting: u64,
    /// Gauge: bytes of their payloads and names.
    pub waiting_bytes: u64,
}

/// The side of the shards: accepts requests.
pub struct Dispatcher {
    counts: Arc<Counts>,
    request_queue: RequestQueue,
    /// The queues with requests. The worker changes them, and a hand-over reads them.
    queues: Mutex<HashMap<QueueKey, Queue>>,
    http_requests: AtomicU64,
    latency: Histogram,
    settings: RwLock<Arc<Settings>>,
    events: Arc<Events>,
    event_queue: SharedEventQueue,
    forwards: Arc<Forwards>,
    /// Complete when the queue of events and that of forwarded messages have ended.
    ends: Mutex<Option<[oneshot::Receiver<()>; 2]>>,
}

/// The side of the control thread: its workers.
pub struct Workers {
    /// Sends requests.
    pub worker: Worker,
    /// Sends events.
    pub event_sender: EventSender,
    /// Sends forwarded messages.
    pub forwarder: Forwarder,
}

impl Dispatcher {
    /// The dispatcher accepts requests and events at once; they are sent while the workers run.
    pub fn new(fixed: Fixed, settings: Settings, start: EventStart) -> (Arc<Dispatcher>, Workers) {
        let counts = Arc::new(Counts::default());
        let (done, ended) = oneshot::channel();
        let (carried, forwarded) = oneshot::channel();
        let EventStart { store, left, node } = start;
        let forwards = Arc::new(Forwards::new(node.clone(), counts.gate.clone()));
        forwards.set(&settings.forwards, &settings.proof());
        let events = Arc::new(Events::new(fixed.events));
        events.set_occupancy(settings.occupancy);
        let queue = events::Queue::new(events.clone(), store, left, node);
        let dispatcher = Arc::new(Dispatcher {
            request_queue: RequestQueue::new(&fixed, counts.clone()),
            counts,
            queues: Mutex::default(),
            http_requests: AtomicU64::new(0),
            latency: Histogram::default(),
            settings: RwLock::new(Arc::new(settings)),
            event_queue: SharedEventQueue::new(queue),
            events,
            forwards: forwards.clone(),
            ends: Mutex::new(Some([ended, forwarded])),
        });
        let requests_max = fixed.requests_max.max(1);
        let clients = Clients { authorities: fixed.authorities, tracer: fixed.tracer };
        let client = |connections_max| LazyClient::new(connections_max, clients.clone());
        let worker = Worker::new(dispatcher.clone(), requests_max, client(requests_max));
        let event_sender = EventSender::new(dispatcher.clone(), client(1), done);
        let forwarder = Forwarder::new(forwards, clients, carried);
        (dispatcher, Workers { worker, event_sender, forwarder })
    }

    /// Changes the settings.
    pub fn set(&self, settings: Settings) {
        self.events.set_occupancy(settings.occupancy);
        self.forwards.set(&settings.forwards, &settings.proof());
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        // The timeout may have become shorter.
        self.request_queue.ready.notify_one();
        self.events.ready.notify_one();
    }

    /// Ends the workers. Requests that wait get an error as response, and no more are accepted. Waits some seconds
    /// until the events are sent. Must not be called on the thread that runs the workers.
    pub fn end(&self) {
        self.stop();
        if self.counts.gate.is_closed() {
            return;
        }
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner).take();
        for end in ends.into_iter().flatten() {
            // An error is the end as well.
            let _ = end.blocking_recv();
        }
    }

    /// Closes the gate: no request to the application begins, no response takes effect, and no time limit passes.
    /// Shards may still send requests and events. The parts [`Hooks`], [`Forwarded`] and [`EventsPart`] export the
    /// pending work, with which another process continues. The dispatcher of that process stands still from its
    /// beginning until [`Dispatcher::go_on`].
    ///
    /// Returns when no worker has a turn any more. If the dispatcher ends while it stands still, it sends no replies
    /// and waits for nothing.
    pub fn stand_still(&self) {
        self.counts.gate.close();
    }

    /// Opens the gate: the work continues, and the time in between does not count for time limits.
    pub fn go_on(&self) {
        self.counts.gate.open();
    }

    /// Ends the workers like [`Dispatcher::end`], but does not wait.
    pub fn stop(&self) {
        self.request_queue.close();
        self.events.close();
        self.forwards.close();
    }

    /// Counts of the events for the application.
    pub fn event_stats(&self) -> EventStats {
        self.events.stats()
    }

    /// Returns the counters of the rules that forward, by filter.
    pub fn forward_stats(&self) -> Vec<(Arc<str>, ForwardStats)> {
        self.forwards.stats()
    }

    /// Returns the counters. Each one is right, but they may be of different moments.
    pub fn stats(&self) -> Stats {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Stats {
            accepted: get(&self.counts.accepted),
            ok: get(&self.counts.ok),
            error: get(&self.counts.error),
            failures: std::array::from_fn(|kind| get(&self.counts.failures[kind])),
            http_requests: get(&self.http_requests),
            waiting: self.counts.waiting.load(Ordering::Relaxed) as u64,
            waiting_bytes: self.counts.waiting_bytes.load(Ordering::Relaxed) as u64,
        }
    }

    /// Returns the requests that wait for each URL, for `max` URLs at most, the one with the most requests first. Names
    /// of URLs have no secret parts.
    pub fn urls(&self, max: usize) -> Vec<(String, UrlStats)> {
        self.request_queue.urls(max)
    }

    /// The time from request to response or error, of all accepted requests.
    pub fn latency(&self) -> &Histogram {
        &self.latency
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<QueueKey, Queue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settings(&self) -> Arc<Settings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Webhook for Dispatcher {
    fn send(&self, requests: Vec<WebhookRequest>) -> Result<(), QueueFull> {
        let settings = self.settings();
        let with_url = |request: WebhookRequest| {
            let url = request.url.clone().or_else(|| settings.url.clone());
            (request, url)
        };
        self.request_queue.put(requests.into_iter().map(with_url).collect())
    }

    fn forward(&self, request: ForwardRequest) -> Result<(), QueueFull> {
        self.forwards.put(request)
    }

    fn notify(&self, shard: u16, events: Vec<HookEvent>) {
        self.events.put(shard, events);
    }
}
