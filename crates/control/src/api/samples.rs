//! A stream of the node's figures, and the samples of the last 15 minutes.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures_util::stream;
use model::ErrorCode;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, watch};
use utoipa::ToSchema;

use crate::http::access::{Access, Caller, RequiredScope};
use crate::http::gate::Gate;
use crate::http::listener::On;
use crate::http::{ErrorBody, Rejection, stream_headers};
use crate::monitor::{INTERVAL_SECONDS, Monitor, Sample, SampleRing, connections_max, process};

/// The media type of the stream.
const MEDIA_TYPE: &str = "text/event-stream";

/// The node's figures, once a second: server-sent events `sample`, the newest one at once. At most 64 readers at a
/// time. The stream ends when the server stops, when an upgrade has made another process the server, and when the key
/// or the session is no longer valid.
#[utoipa::path(get, path = "/api/live", tag = "operate", responses(
    (status = 200, body = Sample, content_type = "text/event-stream"),
    (status = 503, body = ErrorBody, description = "The limit of 64 readers is reached")))]
pub(crate) async fn live(
    State(monitor): State<Arc<Monitor>>,
    caller: Caller,
    on: Option<Extension<ConnectInfo<On>>>,
) -> Result<Response, Rejection> {
    if let Some(ended) = monitor.node.upgrades.gate.ended_stream(MEDIA_TYPE) {
        return Ok(ended);
    }
    let permit = monitor.readers.clone().try_acquire_owned().map_err(|_| {
        let message = "the limit of 64 readers of live figures is reached: close a dashboard, or \
                       poll /api/samples or /metrics instead";
        Rejection::new(ErrorCode::TooManyReaders, message)
    })?;
    if let Some(Extension(ConnectInfo(On(peer, ..)))) = on {
        peer.set_stream();
    }
    let (newest, access) = (monitor.newest.clone(), monitor.node.access.clone());
    let gate = monitor.node.upgrades.gate.clone();
    let reader = Reader { newest, caller, access, gate, is_first: true, _permit: permit };
    let events = stream::unfold(reader, Reader::next);
    Ok((stream_headers(MEDIA_TYPE), Body::from_stream(events)).into_response())
}

/// One reader of the live figures. A slow reader misses samples.
struct Reader {
    newest: watch::Receiver<Bytes>,
    caller: Caller,
    access: Arc<Access>,
    gate: Arc<Gate>,
    is_first: bool,
    _permit: OwnedSemaphorePermit,
}

impl Reader {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        let has_one = self.is_first && !self.newest.borrow().is_empty();
        self.is_first = false;
        if !has_one {
            tokio::select! {
                changed = self.newest.changed() => changed.ok()?,
                () = self.gate.forwarded() => return None,
            }
        }
        // A removed key and an ended session show no more.
        if !self.access.is_valid(&self.caller, RequiredScope::Read) {
            return None;
        }
        let event = self.newest.borrow_and_update().clone();
        Some((Ok(event), self))
    }
}

/// The recent samples, and their node.
#[derive(Serialize, ToSchema)]
#[schema(as = Samples)]
struct RecentSamples<'a> {
    version: &'static str,
    /// All ids of messages without history begin with it.
    epoch: String,
    /// Seconds since 1970.
    started_at: u64,
    /// Processors that this process may use.
    cores: usize,
    /// limits.connections_max.
    connections_max: u64,
    /// Whether it is one of several nodes: /api/cluster has them.
    is_clustered: bool,
    /// Whether applications publish through PostgreSQL: /api/outbox has the state.
    has_outbox: bool,
    /// Seconds between two samples.
    interval_seconds: u64,
    /// The figures of /api/live in columns, the oldest first: `at` and every other one is an
    /// array, with one element for each sample; `transports` and `closed_by` have an array for each
    /// name, `p50`, `p90` and `p99` milliseconds or null.
    #[schema(value_type = Object)]
    samples: &'a SampleRing,
}

/// The figures of the last 15 minutes, one sample a second.
#[utoipa::path(get, path = "/api/samples", tag = "operate", responses(
    (status = 200, body = RecentSamples)))]
pub(crate) async fn samples(State(monitor): State<Arc<Monitor>>) -> Response {
    let node = &monitor.node;
    Json(RecentSamples {
        version: env!("CARGO_PKG_VERSION"),
        epoch: node.broker.epoch().to_string(),
        started_at: process::unix_seconds().saturating_sub(node.started.elapsed().as_secs()),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        connections_max: connections_max(node),
        is_clustered: node.cluster.is_some(),
        has_outbox: node.outbox.is_some(),
        interval_seconds: INTERVAL_SECONDS,
        samples: &monitor.samples.lock(),
    })
    .into_response()
}
