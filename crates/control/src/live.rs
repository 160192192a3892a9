//! The node's figures as they change: one sample a second, for every page that looks, and those
//! of the last 15 minutes.

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures_util::stream;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::MissedTickBehavior;
use utoipa::ToSchema;
use wire::{Close, Variant};

use crate::error::{ErrorBody, Refused, refused};
use crate::history::{Counters, Figure, Gauges, History, Reading, Sample, Transports};
use crate::inspect::merged;
use crate::listener::On;
use crate::top::Tops;
use crate::{Node, process};

/// Readers of the live figures at the same time.
pub(crate) const READERS_MAX: usize = 64;

/// Between two samples, in seconds.
const INTERVAL_SECONDS: u64 = 1;

/// What those who watch the node share, so that many of them cost as much as one.
pub(crate) struct Monitor {
    pub node: Arc<Node>,
    /// The biggest and the busiest topics, as they were a moment ago.
    pub tops: Tops,
    history: Mutex<History>,
    /// The newest sample as an event's bytes; empty before the first.
    newest: watch::Receiver<Bytes>,
    readers: Arc<Semaphore>,
}

/// What takes the samples. Streams of them end when it is dropped.
pub(crate) struct Sampler {
    monitor: Arc<Monitor>,
    before: Reading,
    sender: watch::Sender<Bytes>,
}

impl Monitor {
    pub fn new(node: Arc<Node>) -> (Arc<Self>, Sampler) {
        let (sender, newest) = watch::channel(Bytes::new());
        let before = read(&node);
        let history = Mutex::new(History::new());
        let readers = Arc::new(Semaphore::new(READERS_MAX));
        let monitor = Monitor { node, tops: Tops::default(), history, newest, readers };
        let monitor = Arc::new(monitor);
        (monitor.clone(), Sampler { monitor, before, sender })
    }
}

impl Sampler {
    /// Takes a sample every second, whoever watches or not.
    pub async fn run(mut self) {
        let mut clock = tokio::time::interval(Duration::from_secs(INTERVAL_SECONDS));
        // A second that came late is followed by a whole one: rates over an instant say little.
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        clock.tick().await;
        loop {
            clock.tick().await;
            self.sample();
        }
    }

    /// Takes a sample over the time since the one before.
    pub fn sample(&mut self) {
        let after = read(&self.monitor.node);
        let sample = Sample::between(&self.before, after.clone());
        self.before = after;
        let mut event = b"event: sample\ndata: ".to_vec();
        // Numbers and names: neither can fail.
        let _ = serde_json::to_writer(&mut event, &sample);
        event.extend_from_slice(b"\n\n");
        self.monitor.history.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
        self.sender.send_replace(event.into());
    }
}

/// limits.connections_max, which a reload may change.
fn connections_max(node: &Node) -> u64 {
    let live = node.live.read().unwrap_or_else(PoisonError::into_inner);
    let limit = live.limits.iter().find(|(name, _)| *name == "limits.connections_max");
    limit.map_or(0, |(_, max)| *max)
}

/// What the node's counters say now.
fn read(node: &Node) -> Reading {
    let (mut counters, mut transports) = (Counters::default(), Transports::default());
    let (memory, tcp) = (process::memory(), process::tcp());
    let connections = node.shared.connections.load(Ordering::Relaxed);
    // A session of Phoenix's long poll is a connection without a socket of its own.
    let sessions = node.shared.sessions.load(Ordering::Relaxed);
    let kernel_bytes = tcp.kernel_bytes(connections.saturating_sub(sessions));
    let mut gauges = Gauges {
        connections,
        connections_max: connections_max(node),
        rss_bytes: memory.resident,
        user_bytes: memory.anonymous,
        user_bytes_per_connection: Figure::new(node.bytes_per_connection(memory.anonymous)),
        kernel_bytes,
        kernel_bytes_per_connection: Figure::new(kernel_bytes as f64 / connections.max(1) as f64),
        ..Gauges::default()
    };
    for metrics in node.metrics() {
        counters.opened += metrics.admitted.get();
        counters.messages_in += metrics.messages_in.get();
        counters.delivered += metrics.delivered.get();
        counters.bytes_in += metrics.bytes_in.get();
        counters.bytes_out += metrics.bytes_out.get();
        counters.refused += metrics.refused.iter().map(shard::Counter::get).sum::<u64>();
        counters.answers += metrics.answers.iter().map(shard::Counter::get).sum::<u64>();
        for close in Close::ALL {
            counters.closed[close as usize] += metrics.closed[close as usize].get();
        }
        for variant in Variant::ALL {
            let held = metrics.connections[variant as usize].get();
            transports.0[variant as usize] += held as u32;
        }
        gauges.outboxes += metrics.outboxes.get();
        gauges.outbox_bytes += metrics.outbox_bytes.get();
        gauges.topics += metrics.topics.get();
        gauges.fanouts += metrics.fanouts.get();
    }
    counters.latency = merged(node.metrics().map(|metrics| &metrics.delivery_latency));
    counters.cpu_seconds = process::cpu_seconds();
    gauges.transports = transports;
    let shards = node.metrics().map(|metrics| metrics.held.get()).collect();
    Reading { taken: Instant::now(), at: process::unix_ms(), counters, gauges, shards }
}

/// The node's figures, once a second: server-sent events `sample`, at once the newest one. At most
/// 64 at a time; it ends when the server stops.
#[utoipa::path(get, path = "/api/live", tag = "operate", responses(
    (status = 200, body = Sample, content_type = "text/event-stream"),
    (status = 503, body = ErrorBody, description = "64 others read it already")))]
pub(crate) async fn live(
    State(monitor): State<Arc<Monitor>>,
    on: Option<Extension<ConnectInfo<On>>>,
) -> Result<Response, Refused> {
    let place = monitor.readers.clone().try_acquire_owned().map_err(|_| {
        let message = "as many read the live figures as may (64): close a dashboard, or ask \
                       /api/history or /metrics now and then";
        refused(StatusCode::SERVICE_UNAVAILABLE, "too_many_readers", message)
    })?;
    if let Some(Extension(ConnectInfo(On(peer)))) = on {
        peer.streams();
    }
    let newest = monitor.newest.clone();
    let events = stream::unfold(Reader { newest, is_first: true, _place: place }, Reader::next);
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(events)).into_response())
}

/// One who reads the live figures. Whoever reads slowly misses samples.
struct Reader {
    newest: watch::Receiver<Bytes>,
    is_first: bool,
    _place: OwnedSemaphorePermit,
}

impl Reader {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        let has_one = self.is_first && !self.newest.borrow().is_empty();
        self.is_first = false;
        if !has_one {
            self.newest.changed().await.ok()?;
        }
        let event = self.newest.borrow_and_update().clone();
        Some((Ok(event), self))
    }
}

/// What was sampled, and on what node.
#[derive(Serialize, ToSchema)]
struct Past<'a> {
    version: &'static str,
    /// The life of the numbering of messages.
    epoch: String,
    /// Seconds since 1970.
    started_at: u64,
    /// Processors that this process may use.
    cores: usize,
    /// limits.connections_max.
    connections_max: u64,
    /// Between two samples.
    interval_seconds: u64,
    /// The figures of /api/live in columns, the oldest first: `at` and every other one is an
    /// array, with one place for each sample; `transports` and `closed_by` hold an array for each
    /// name, `p50`, `p90` and `p99` milliseconds or null.
    #[schema(value_type = Object)]
    samples: &'a History,
}

/// The figures of the last 15 minutes, one sample a second.
#[utoipa::path(get, path = "/api/history", tag = "operate", responses(
    (status = 200, body = Past)))]
pub(crate) async fn history(State(monitor): State<Arc<Monitor>>) -> Response {
    let node = &monitor.node;
    Json(Past {
        version: env!("CARGO_PKG_VERSION"),
        epoch: node.broker.epoch().to_string(),
        started_at: process::unix_seconds().saturating_sub(node.started.elapsed().as_secs()),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        connections_max: connections_max(node),
        interval_seconds: INTERVAL_SECONDS,
        samples: &monitor.history.lock().unwrap_or_else(PoisonError::into_inner),
    })
    .into_response()
}
