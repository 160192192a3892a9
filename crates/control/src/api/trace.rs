//! What happens to the connections of one user, or to one connection, as it happens.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, State};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use model::name::check_name;
use model::{ConnectionId, ErrorCode};
use serde::{Deserialize, Serialize};
use shard::{Command, Target, TraceEvent, TraceKind, TraceSink, TracedConnection, TracedMessage};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;
use utoipa::{IntoParams, ToSchema};

use crate::http::access::{Access, Caller, RequiredScope};
use crate::http::gate::Gate;
use crate::http::listener::On;
use crate::http::{ErrorBody, QueryParams, Rejection, stream_headers};
use crate::monitor::{Figure, Monitor, process};
use crate::node::{Node, ShardReplies};

/// Events of a trace that wait for its reader. More are left out and counted.
pub(crate) const EVENTS_MAX: usize = 1_024;

/// Lines in one write, at most.
const LINES: usize = 64;

/// After this time without an event, an empty line shows that the trace continues.
const SILENCE: Duration = Duration::from_secs(5);

/// The media type of the stream.
const MEDIA_TYPE: &str = "application/x-ndjson";

/// The user or the connection to follow.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct TraceQuery {
    /// All connections of this user, including later ones.
    user: Option<String>,
    /// This connection, by the name that /api/users gives.
    connection: Option<String>,
}

/// An event of a trace. Fields that do not apply to it are left out.
#[derive(Default, Serialize, ToSchema)]
pub(crate) struct TraceLine {
    /// When, in milliseconds since 1970.
    at: u64,
    /// `trace`: the trace has begun; `open`: a connection that was open then; `connected`, `disconnected`; `login`,
    /// `logout`; `subscribed`, `unsubscribed`; `publish`: the client publishes; `delivered`: a message goes to the
    /// connection, into its socket or its outbox; `not_delivered`; `acknowledged`: by the user, on any connection;
    /// `blocked`: the kernel takes no more for the connection, so messages wait in its outbox; `drained`: its outbox
    /// is empty; `left_out`.
    #[schema(example = "delivered")]
    event: &'static str,
    /// The connection.
    #[schema(example = "5f3a91c2-0-12-345", nullable = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<String>,
    /// Its transport.
    #[schema(nullable = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    transport: Option<&'static str>,
    /// Its users.
    #[schema(nullable = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    users: Option<Vec<String>>,
    /// How many topics it is in, users' own left out.
    #[schema(nullable = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    topics: Option<usize>,
    /// How long it has been open, in seconds.
    #[schema(nullable = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    age_seconds: Option<u32>,
    /// Why it ends.
    #[schema(nullable = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// The user who logs in or out.
    #[schema(nullable = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    /// The topic.
    #[schema(nullable = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<String>,
    /// The message.
    #[schema(nullable = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// The name of the message's event.
    #[schema(nullable = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// Its payload, in bytes.
    #[schema(nullable = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<usize>,
    /// The time since it was published, in milliseconds.
    #[schema(value_type = f64, nullable = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    age_ms: Option<Figure>,
    /// Why the message does not go to the connection: `own`, `catching_up` (it comes from the history, in its turn),
    /// `tags`, `duplicate`, `conflated`, `queued`, `queue_full`, `too_large`, `expired`, `given_up`.
    #[schema(nullable = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'static str>,
    /// Bytes in the connection's outbox at that time.
    #[schema(nullable = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    outbox_bytes: Option<usize>,
    /// Of `trace`: the connections that are open.
    #[schema(nullable = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    connections: Option<u32>,
    /// Of `left_out`: the number of events that were over 1,000 in a second on one shard, or more than the reader
    /// took.
    #[schema(nullable = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<u64>,
}

impl From<TraceEvent> for TraceLine {
    fn from(event: TraceEvent) -> Self {
        let TraceEvent { at_ms, connection, outbox_bytes, kind } = event;
        let base = TraceLine {
            at: at_ms,
            outbox_bytes: connection.map(|_| outbox_bytes),
            connection: connection.map(|id| id.to_string()),
            ..TraceLine::default()
        };
        match kind {
            TraceKind::Open(it) => base.of("open").with_connection(*it),
            TraceKind::Connected(it) => base.of("connected").with_connection(*it),
            TraceKind::LoggedIn(user) => TraceLine { user: Some(user.into()), ..base.of("login") },
            TraceKind::LoggedOut(user) => {
                TraceLine { user: Some(user.into()), ..base.of("logout") }
            }
            TraceKind::Disconnected { reason, age_seconds } => TraceLine {
                reason: Some(reason.name()),
                age_seconds: Some(age_seconds),
                ..base.of("disconnected")
            },
            TraceKind::Subscribed(topic) => {
                TraceLine { topic: Some(topic.into()), ..base.of("subscribed") }
            }
            TraceKind::Unsubscribed(topic) => {
                TraceLine { topic: Some(topic.into()), ..base.of("unsubscribed") }
            }
            TraceKind::Published { topic, bytes } => {
                TraceLine { topic: Some(topic.into()), bytes: Some(bytes), ..base.of("publish") }
            }
            TraceKind::Delivered(it) => base.of("delivered").with_message(it),
            TraceKind::NotDelivered(it, why) => {
                TraceLine { why: Some(why.name()), ..base.of("not_delivered").with_message(it) }
            }
            TraceKind::Acknowledged { topic, id } => TraceLine {
                topic: Some(topic.into()),
                id: Some(id.to_string()),
                ..base.of("acknowledged")
            },
            TraceKind::Blocked => base.of("blocked"),
            TraceKind::Drained => base.of("drained"),
            TraceKind::LeftOut(events) => TraceLine { events: Some(events), ..base.of("left_out") },
        }
    }
}

impl TraceLine {
    fn of(self, event: &'static str) -> Self {
        TraceLine { event, ..self }
    }

    fn with_connection(self, connection: TracedConnection) -> Self {
        TraceLine {
            transport: Some(connection.transport),
            age_seconds: Some(connection.age_seconds),
            users: Some(connection.users.into_iter().map(String::from).collect()),
            topics: Some(connection.topics),
            ..self
        }
    }

    fn with_message(self, message: TracedMessage) -> Self {
        TraceLine {
            id: Some(message.id.to_string()),
            topic: Some(message.topic.into()),
            name: Some(message.event.into()),
            bytes: Some(message.bytes),
            age_ms: Some(Figure::new(message.age_us as f64 / 1e3)),
            ..self
        }
    }

    fn append_to(&self, out: &mut Vec<u8>) {
        // Numbers and names always serialize.
        let _ = serde_json::to_writer(&mut *out, self);
        out.push(b'\n');
    }
}

impl TraceQuery {
    fn target(&self) -> Result<Target, Rejection> {
        match (&self.user, &self.connection) {
            (Some(user), None) => {
                check_name(user).map_err(|error| Rejection::new(ErrorCode::BadUser, error))?;
                Ok(Target::User(user.as_str().into()))
            }
            (None, Some(connection)) => connection.parse().map(Target::Connection).map_err(|_| {
                let message = "the name of a connection has the form 5f3a91c2-0-12-345";
                Rejection::new(ErrorCode::BadConnection, message)
            }),
            _ => {
                let message = "send either user or connection";
                Err(Rejection::new(ErrorCode::BadRequest, message))
            }
        }
    }
}

/// Follow a user or one connection. Each event on this node is a line of JSON, and an empty line comes after 5
/// seconds without one. Payloads are not shown. At most 8 traces run at a time. A trace ends when the server stops,
/// when an upgrade has made another process the server, and when the key or the session is no longer valid.
#[utoipa::path(get, path = "/api/trace", tag = "inspect", params(TraceQuery), responses(
    (status = 200, body = TraceLine, content_type = "application/x-ndjson"),
    (status = 404, body = ErrorBody, description = "The connection is not open at this node"),
    (status = 503, body = ErrorBody, description = "The limit of 8 traces is reached")))]
pub(crate) async fn trace(
    State(monitor): State<Arc<Monitor>>,
    caller: Caller,
    on: Option<Extension<ConnectInfo<On>>>,
    QueryParams(query): QueryParams<TraceQuery>,
) -> Result<Response, Rejection> {
    let target = query.target()?;
    if let Some(ended) = monitor.node.upgrades.gate.ended_stream(MEDIA_TYPE) {
        return Ok(ended);
    }
    let permit = monitor.traces.clone().try_acquire_owned().map_err(|_| {
        let message = "the limit of 8 traces is reached: end one first";
        Rejection::new(ErrorCode::TooManyReaders, message)
    })?;
    let node = monitor.node.clone();
    let number = monitor.traces_begun.fetch_add(1, Ordering::Relaxed);
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let left_out = Arc::<AtomicU64>::default();
    let sink: Arc<dyn TraceSink> = Arc::new(Sink { sender, left_out: left_out.clone() });
    let running = Running { node: node.clone(), number, _permit: permit };
    let is_one = matches!(target, Target::Connection(_));
    let open: u32 = begin(&node, number, target, &sink).all().await?.into_iter().sum();
    if is_one && open == 0 {
        let message = "this node has no open connection with this name: /api/users lists the connections of \
             a user";
        return Err(Rejection::new(ErrorCode::NoConnection, message));
    }
    // The shards own the sink: the channel closes when the last of them drops it.
    drop(sink);
    if let Some(Extension(ConnectInfo(On(peer, ..)))) = on {
        peer.set_stream();
    }
    let first = TraceLine {
        at: process::unix_ms(),
        connections: Some(open),
        ..TraceLine::default().of("trace")
    };
    let (access, gate) = (node.access.clone(), node.upgrades.gate.clone());
    let reader =
        Reader { events, left_out, first: Some(first), caller, access, gate, _running: running };
    let lines = stream::unfold(reader, Reader::next);
    Ok((stream_headers(MEDIA_TYPE), Body::from_stream(lines)).into_response())
}

/// Makes the shards report: all of them about a user, one about a connection.
fn begin(node: &Node, number: u64, target: Target, sink: &Arc<dyn TraceSink>) -> ShardReplies<u32> {
    match target {
        Target::User(user) => node.request_all(|reply| {
            let (target, sink) = (Target::User(user.clone()), sink.clone());
            Command::Trace { number, target, sink, reply }
        }),
        Target::Connection(id) => {
            let ConnectionId { shard, .. } = id;
            if usize::from(shard) >= node.shards.count() {
                return ShardReplies::none();
            }
            node.request(shard.into(), |reply| {
                let (target, sink) = (Target::Connection(id), sink.clone());
                Command::Trace { number, target, sink, reply }
            })
        }
    }
}

/// Takes the events of the shards, and never makes them wait.
struct Sink {
    sender: mpsc::Sender<TraceEvent>,
    left_out: Arc<AtomicU64>,
}

impl TraceSink for Sink {
    fn push(&self, event: TraceEvent) {
        if self.sender.try_send(event).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A trace that is under way. The shards end it when the reader is dropped.
struct Running {
    node: Arc<Node>,
    number: u64,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Running {
    fn drop(&mut self) {
        for shard in 0..self.node.shards.count() {
            self.node.shards.send(shard, Command::TraceEnd { number: self.number });
        }
    }
}

/// The body of the response.
struct Reader {
    events: mpsc::Receiver<TraceEvent>,
    left_out: Arc<AtomicU64>,
    first: Option<TraceLine>,
    caller: Caller,
    access: Arc<Access>,
    gate: Arc<Gate>,
    _running: Running,
}

impl Reader {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        let mut out = Vec::new();
        if let Some(first) = self.first.take() {
            first.append_to(&mut out);
            return Some((Ok(out.into()), self));
        }
        let event = tokio::select! {
            event = timeout(SILENCE, self.events.recv()) => event,
            () = self.gate.forwarded() => return None,
        };
        // A removed key and an ended session show no more.
        if !self.access.is_valid(&self.caller, RequiredScope::Read) {
            return None;
        }
        match event {
            Ok(event) => TraceLine::from(event?).append_to(&mut out),
            Err(_) => out.push(b'\n'),
        }
        for _ in 1..LINES {
            let Ok(event) = self.events.try_recv() else { break };
            TraceLine::from(event).append_to(&mut out);
        }
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        if left_out > 0 {
            let line = TraceLine {
                at: process::unix_ms(),
                events: Some(left_out),
                ..TraceLine::default().of("left_out")
            };
            line.append_to(&mut out);
        }
        Some((Ok(out.into()), self))
    }
}
