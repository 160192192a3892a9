//! Carries clients' events to the application and its responses back, by HTTP.
//!
//! A shard hands over each event as a request and gets one response for it. The request waits in the
//! request queue until the control thread puts it into one of the `requests_max` queues of its URL, which
//! exist while something is in them. Each queue has one HTTP request under way at a time, a batch;
//! what waits in the queue goes out together in the next batch. All requests of a connection for a
//! URL are in one queue, and so stay in order, while a slow answer holds up one queue only, and a URL
//! where nobody answers none of the others.
//!
//! All URLs share one bound. Of three quarters of it, a URL may have as many requests as there is
//! room for yet. So however many wait for one that does not answer, as many can wait for the others.
//! The last quarter is for those that have little: 64 requests of 256 KiB each.
//!
//! The timeout is from the request to its response, waiting included: a request whose time is over
//! fails, whether it was sent or not, and a batch is aborted when all of its requests failed.
//! Those that came later go on with it.
//!
//! What is told (`event_sender.rs`) and what is forwarded (`forward/`) go other ways, with the same client.
//!
//! Bounds, besides those of the configuration: no event joins a batch that has 512 KiB; an answer
//! may have 1 MiB, and 16 KiB more for each event it answers; unused connections are closed after a
//! second. A status of 200 or 204 is an answer, any other an error.

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

/// What stays as it is while the node runs.
#[derive(Clone, Debug)]
pub struct Fixed {
    /// Whose servers are trusted.
    pub authorities: Authorities,
    /// How many requests may be without a response at a time, those included that are under way;
    /// more are rejected. Of one URL no more than there is capacity for yet in three quarters of
    /// this, so that one which does not answer leaves as much to the others; the rest is for URLs
    /// with fewer than 64.
    pub queue_events_max: usize,
    /// How many of them may be of one URL.
    pub queue_events_per_url_max: usize,
    /// How many bytes their payloads and names may have together, of one URL no more than there is
    /// room for yet in three quarters of this; the rest is for URLs with less than 256 KiB. More
    /// are rejected, but for a request that is alone.
    pub queue_bytes_max: usize,
    /// How many HTTP requests are under way at a time to each URL; at least one.
    pub requests_max: usize,
    /// The bounds of the queue of events.
    pub events: EventLimits,
    /// Begins a span of each request, where a collector is configured.
    pub tracer: Option<Arc<Tracer>>,
}

/// What may change while the node runs: the URL for the requests that come after, the timeout for
/// all, and the others for the batches that begin after.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where to send events of topics whose rule names no URL: `http://` or `https://`.
    pub url: Option<Arc<str>>,
    /// What proves to the application who sends; goes as bearer token.
    pub secret: Option<String>,
    /// Signs each request.
    pub signing_key: Option<SigningKey>,
    /// How long a request may take, from the shard that makes it to the last byte of the answer.
    pub timeout: Duration,
    /// How many events an HTTP request may carry.
    pub batch_events_max: usize,
    /// The events that the application gets.
    pub events: HookEvents,
    /// How long an event is offered.
    pub event_retry: Duration,
    /// How long a topic must stay occupied or vacated before an event says so.
    pub occupancy: Duration,
    /// Where messages of clients go.
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

/// What was counted so far.
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

/// The shards' side: accepts requests.
pub struct Dispatcher {
    counts: Arc<Counts>,
    request_queue: RequestQueue,
    /// Those with something in them. The worker's; others look at what another process is to go on with.
    queues: Mutex<HashMap<QueueKey, Queue>>,
    http_requests: AtomicU64,
    latency: Histogram,
    settings: RwLock<Arc<Settings>>,
    events: Arc<Events>,
    event_queue: SharedEventQueue,
    forwards: Arc<Forwards>,
    /// Each completes when its queue has ended: that of events, and that of forwarded messages.
    ends: Mutex<Option<[oneshot::Receiver<()>; 2]>>,
}

/// The control thread's side: what it runs.
pub struct Workers {
    /// Asks.
    pub worker: Worker,
    /// Tells.
    pub event_sender: EventSender,
    /// Forwards.
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

    /// Takes new settings.
    pub fn set(&self, settings: Settings) {
        self.events.set_occupancy(settings.occupancy);
        self.forwards.set(&settings.forwards, &settings.proof());
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        // The timeout may have become shorter.
        self.request_queue.ready.notify_one();
        self.events.ready.notify_one();
    }

    /// Ends the workers: what waits gets an error as response, and nothing is accepted any more. Waits
    /// some seconds for the events that wait; not to be called on the thread that runs the workers.
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

    /// From now on nothing goes on: no request to the application begins, whatever it answers is kept and told
    /// nobody, and nobody's time is over. Shards may ask and tell still. What is there is for the parts
    /// [`Hooks`], [`Forwarded`] and [`EventsPart`] to write down, and another process goes on with it. One that
    /// takes over stands still from its beginning until it is to go on.
    ///
    /// Returns when nothing goes on any more. Whoever ends while all stands still answers nobody, and waits
    /// for nothing.
    pub fn stand_still(&self) {
        self.counts.gate.close();
    }

    /// All goes on where it stood; the time in between counts for nothing.
    pub fn go_on(&self) {
        self.counts.gate.open();
    }

    /// The same without waiting.
    pub fn stop(&self) {
        self.request_queue.close();
        self.events.close();
        self.forwards.close();
    }

    /// Counts of the events for the application.
    pub fn event_stats(&self) -> EventStats {
        self.events.stats()
    }

    /// What was counted of the rules that forward, by filter.
    pub fn forward_stats(&self) -> Vec<(Arc<str>, ForwardStats)> {
        self.forwards.stats()
    }

    /// The counters now; each is right, but they may be of different moments.
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

    /// What waits for each URL, at most so many of them, those first for which most wait. Names are
    /// without what may be secret.
    pub fn urls(&self, max: usize) -> Vec<(String, UrlStats)> {
        self.request_queue.urls(max)
    }

    /// From request to response or error, of all that were accepted.
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
