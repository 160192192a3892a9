//! Calls that a node of a cluster does for all: it makes the others do them as well, and merges their replies. With
//! `?node=` one node does the call.
//!
//! Another node gets the call unchanged, with its method, path and body. It trusts the calling node to have checked
//! the key, as it trusts it with messages: NATS has admitted both.

mod commands;
mod merge;
mod retained;
mod revocations;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use link::{Call, CallReply, Link, PeerState};
use model::{ConnectionId, ErrorCode, NodeId};
use serde_json::{Map, Value};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};
use tower::ServiceExt;

use super::calls;
use crate::http::Rejection;
use crate::http::gate::Pass;
use crate::node::Node;
pub(super) use commands::{OtherNodes, PendingCommand};
use merge::Merge;
pub(crate) use retained::sync_retained;
pub(crate) use revocations::sync_revocations;

/// How long another node may take to reply.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Calls of other nodes that are done at a time; the others wait.
const CALLS_MAX: usize = 16;

/// The largest body of a call that goes to other nodes, in bytes.
const BODY_BYTES_MAX: usize = 64 << 10;

/// The largest reply to another node, in bytes: NATS carries 1 MiB.
const REPLY_BYTES_MAX: usize = 512 << 10;

/// Connections or topics in the reply to a call without `limit`.
const LIMIT: usize = 100;

/// The calls that all nodes do: method, path, and how to merge the replies.
pub(super) const CALLS: &[(&str, &str, Merge)] = &[
    ("GET", "/api/stats", Merge::Sum),
    ("GET", "/api/cluster/nodes", Merge::Sum),
    ("GET", "/api/topics", Merge::Topics),
    ("GET", "/api/topics/{topic}", Merge::Sum),
    ("GET", "/api/topics/{topic}/members", Merge::Sum),
    ("GET", "/api/users/{user}", Merge::Sum),
    ("POST", "/api/disconnect", Merge::Sum),
    ("POST", "/api/subscribe", Merge::Sum),
    ("POST", "/api/unsubscribe", Merge::Sum),
    ("POST", "/api/login", Merge::Owner),
    ("POST", "/api/logout", Merge::Owner),
    ("POST", "/api/revoke", Merge::Sum),
    ("GET", "/api/revocations", Merge::One),
    ("GET", "/api/mqtt/retained", Merge::One),
    ("GET", "/api/mqtt/retained/{topic}", Merge::One),
    ("DELETE", DELETE_RETAINED, Merge::Sum),
    ("GET", "/api/drain", Merge::One),
    ("POST", "/api/drain", Merge::One),
    ("DELETE", "/api/drain", Merge::One),
    ("GET", "/api/rebalance", Merge::One),
    ("POST", "/api/rebalance", Merge::One),
    ("DELETE", "/api/rebalance", Merge::One),
];

/// The call that one node does for all if they share their retained messages.
const DELETE_RETAINED: &str = "/api/mqtt/retained/{topic}";

/// Returns how to merge the replies to a request, or `None` if this node does it alone.
fn merge_of(request: &Request) -> Option<Merge> {
    let path = request.extensions().get::<MatchedPath>()?.as_str();
    let method = request.method().as_str();
    CALLS.iter().find(|call| (call.0, call.1) == (method, path)).map(|call| call.2)
}

/// The other nodes, as [`spread`] uses them.
#[derive(Clone)]
pub(super) struct Cluster {
    /// The link to them.
    pub link: Arc<Link>,
    /// True if all nodes share their retained messages.
    pub shares_retained: bool,
}

/// A call as other nodes get it.
struct Spread<'a> {
    link: &'a Link,
    method: Method,
    target: String,
    body: Bytes,
    until: Instant,
}

/// Makes other nodes do a call as well, or one of them alone.
pub(super) async fn spread(
    State(Cluster { link, shares_retained }): State<Cluster>,
    request: Request,
    next: Next,
) -> Response {
    let Some(merge) = merge_of(&request) else { return next.run(request).await };
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let merge = match shares_retained && path == Some(DELETE_RETAINED) {
        true => Merge::One,
        false => merge,
    };
    let (mut parts, body) = request.into_parts();
    let (target, node) = split_node(&parts.uri);
    if node.is_some() {
        // It is part of a URI that was parsed.
        parts.uri = target.parse().unwrap_or_default();
    }
    let Ok(body) = to_bytes(body, BODY_BYTES_MAX).await else {
        let message =
            format!("the body did not arrive completely, or has more than {BODY_BYTES_MAX} bytes");
        return Rejection::new(ErrorCode::BodyTooLarge, message).into_response();
    };
    let limit = limit_of(&target);
    let call = Spread {
        link: &link,
        method: parts.method.clone(),
        target,
        body: body.clone(),
        until: Instant::now() + CALL_TIMEOUT,
    };
    let request = Request::from_parts(parts, Body::from(body));
    let owner = || owner_of(&call.body).map(|id| id.to_string());
    let by_one = matches!(merge, Merge::Owner | Merge::One) || owner().is_some();
    match (node, by_one) {
        (Some(node), _) => match call.find(&node) {
            Ok(Some(peer)) => call.pass(&peer).await,
            Ok(None) => next.run(request).await,
            Err(rejection) => rejection.into_response(),
        },
        (None, true) => match owner().map(|node| call.find(&node)) {
            Some(Ok(Some(peer))) => call.pass(&peer).await,
            // The node of the connection is gone, or the id is invalid: this node's response says so.
            _ => next.run(request).await,
        },
        (None, false) => {
            let replies = call.begin();
            let own = next.run(request).await;
            call.merge(own, replies, merge, limit).await
        }
    }
}

impl Spread<'_> {
    /// Returns the node with this id or name, or `None` for this one.
    fn find(&self, node: &str) -> Result<Option<PeerState>, Rejection> {
        let own = self.link.settings();
        // A node without a name has its id alone.
        let has_name = |name: &str| !name.is_empty() && name == node;
        let is_it = |peer: &PeerState| peer.node.to_string() == node || has_name(&peer.name);
        if node == "self" || node == own.node.to_string() || has_name(&own.name) {
            return Ok(None);
        }
        let mut up = self.link.status().peers.into_iter().filter(|peer| peer.is_up);
        up.find(is_it).map(Some).ok_or_else(|| {
            let message = "no reachable node of the cluster has this id or name: see /api/cluster";
            Rejection::new(ErrorCode::NoNode, message)
        })
    }

    fn call(&self, node: NodeId) -> oneshot::Receiver<CallReply> {
        self.link.call(node, self.method.as_str(), &self.target, &self.body)
    }

    /// Makes one other node do the call.
    async fn pass(&self, peer: &PeerState) -> Response {
        let reply = timeout_at(self.until, self.call(peer.node)).await;
        let Ok(Ok(reply)) = reply else {
            let message = format!(
                "node {} did not reply in {} seconds: it may still carry out the request",
                label(peer),
                CALL_TIMEOUT.as_secs()
            );
            return Rejection::new(ErrorCode::NoShardReply, message).into_response();
        };
        let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::BAD_GATEWAY);
        (status, json(), reply.body).into_response()
    }

    /// Makes all other nodes do the call. Returns the name of each with its reply.
    fn begin(&self) -> Vec<(String, Option<oneshot::Receiver<CallReply>>)> {
        let call = |(peer, can_reply): (PeerState, bool)| {
            (label(&peer), can_reply.then(|| self.call(peer.node)))
        };
        peers_of(self.link).map(call).collect()
    }

    /// Merges the replies of other nodes into the own one, and adds which of them did not reply.
    async fn merge(
        &self,
        own: Response,
        replies: Vec<(String, Option<oneshot::Receiver<CallReply>>)>,
        merge: Merge,
        limit: usize,
    ) -> Response {
        if own.status() != StatusCode::OK {
            return own;
        }
        let (mut all, mut missing) = (Vec::new(), Vec::new());
        for (label, reply) in replies {
            match object_of(reply, self.until).await {
                Some(object) => all.push(object),
                None => missing.push(Value::from(label)),
            }
        }
        let (mut parts, body) = own.into_parts();
        let Ok(body) = to_bytes(body, usize::MAX).await else {
            return Rejection::going_down().into_response();
        };
        let Ok(Value::Object(own)) = serde_json::from_slice(&body) else {
            return Response::from_parts(parts, Body::from(body));
        };
        let mut merged = merge.merge(own, all, limit);
        merged.insert("missing".into(), missing.into());
        parts.headers.remove(header::CONTENT_LENGTH);
        Response::from_parts(parts, Body::from(Value::Object(merged).to_string()))
    }
}

/// Returns the other nodes that are up, each with whether it can reply to a call.
fn peers_of(link: &Link) -> impl Iterator<Item = (PeerState, bool)> {
    let status = link.status();
    let is_connected = status.connection.is_connected;
    let peers = status.peers.into_iter().filter(|peer| peer.is_up);
    peers.map(move |peer| {
        let can_reply = is_connected && peer.has_calls;
        (peer, can_reply)
    })
}

/// Returns the other nodes that can reply to a call.
fn peers_with_calls(link: &Link) -> Vec<PeerState> {
    peers_of(link).filter(|(_, can_reply)| *can_reply).map(|(peer, _)| peer).collect()
}

/// Returns the reply of a node, if it did the call in time.
async fn object_of(
    reply: Option<oneshot::Receiver<CallReply>>,
    until: Instant,
) -> Option<Map<String, Value>> {
    let reply = timeout_at(until, reply?).await.ok()?.ok()?;
    if reply.status != StatusCode::OK.as_u16() {
        return None;
    }
    serde_json::from_slice(&reply.body).ok()
}

fn json() -> [(header::HeaderName, HeaderValue); 1] {
    [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))]
}

/// Returns a node's name, or its id if it has none.
fn label(peer: &PeerState) -> String {
    if peer.name.is_empty() { peer.node.to_string() } else { peer.name.clone() }
}

/// Splits `node` from the path and query.
fn split_node(uri: &Uri) -> (String, Option<String>) {
    let query = uri.query().unwrap_or_default();
    // The key may be percent-encoded.
    let is_node =
        |pair: &&str| protocol::query::pairs(pair).flatten().any(|(key, _)| key == "node");
    let pairs = protocol::query::pairs(query).flatten();
    let node = pairs.filter(|(key, _)| key == "node").map(|(_, value)| value.into_owned()).last();
    let rest: Vec<&str> = query.split('&').filter(|pair| !is_node(pair)).collect();
    let rest = rest.join("&");
    let mark = if rest.is_empty() { "" } else { "?" };
    (format!("{}{mark}{rest}", uri.path()), node)
}

/// Returns how many connections or topics a call requests.
fn limit_of(target: &str) -> usize {
    let (_, query) = target.split_once('?').unwrap_or_default();
    let mut pairs = protocol::query::pairs(query).flatten();
    let limit = pairs.find(|(key, _)| key == "limit");
    limit.and_then(|(_, value)| value.parse().ok()).unwrap_or(LIMIT)
}

/// Returns the node of the connection that a body names, if it names one.
fn owner_of(body: &[u8]) -> Option<NodeId> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let id: ConnectionId = body.get("connection")?.as_str()?.parse().ok()?;
    Some(id.node)
}

/// Does the calls of other nodes, and replies to them, until the link ends.
pub(crate) async fn serve(node: Arc<Node>, link: Arc<Link>, mut calls: mpsc::Receiver<Call>) {
    let gate = node.upgrades.gate.clone();
    let router = router(node.clone());
    let permits = Arc::new(Semaphore::new(CALLS_MAX));
    while let Some(call) = calls.recv().await {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let (node, router, link, gate) = (node.clone(), router.clone(), link.clone(), gate.clone());
        tokio::spawn(async move {
            // A call passes the gate as a request does. If another process takes this one's place, the caller gets no
            // reply.
            if let Pass::Here(working) = gate.pass().await {
                let (status, body) = match retained::page_of(&node, &call) {
                    Some(reply) => reply,
                    None => perform(router, &call).await,
                };
                link.reply(&call, status.as_u16(), body);
                drop(working);
            }
            drop(permit);
        });
    }
}

/// The calls that other nodes may make here.
fn router(node: Arc<Node>) -> Router {
    let only_spread = async |request: Request, next: Next| match merge_of(&request) {
        Some(_) => next.run(request).await,
        None => StatusCode::NOT_FOUND.into_response(),
    };
    calls().into_router().layer(middleware::from_fn(only_spread)).with_state(node)
}

async fn perform(router: Router, call: &Call) -> (StatusCode, Vec<u8>) {
    let request = Request::builder().method(call.method.as_str()).uri(&call.target);
    let request = request.header(header::CONTENT_TYPE, "application/json");
    let Ok(request) = request.body(Body::from(call.body.clone())) else {
        return (StatusCode::BAD_REQUEST, Vec::new());
    };
    let response = router.oneshot(request).await.unwrap_or_else(|error| match error {});
    let (status, body) = (response.status(), response.into_body());
    match to_bytes(body, REPLY_BYTES_MAX).await {
        Ok(body) => (status, body.into()),
        Err(_) => (StatusCode::PAYLOAD_TOO_LARGE, Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tests::fake::{Mood, bench};

    #[test]
    fn a_query_names_a_node_beside_what_the_call_takes() {
        let split = |uri: &str| split_node(&uri.parse().unwrap());
        assert_eq!(split("/api/stats"), ("/api/stats".into(), None));
        assert_eq!(split("/a?node=b%20c"), ("/a".into(), Some("b c".into())));
        assert_eq!(split("/a?nod%65=b&x=1"), ("/a?x=1".into(), Some("b".into())));
        let both = ("/a?limit=3&x=node=4".into(), Some("self".into()));
        assert_eq!(split("/a?limit=3&node=self&x=node=4"), both);
        assert_eq!((limit_of("/a?limit=3"), limit_of("/a?x=1"), limit_of("/a")), (3, 100, 100));
    }

    #[test]
    fn a_connection_names_its_node() {
        let owner = |body: Value| owner_of(body.to_string().as_bytes());
        assert_eq!(owner(json!({"connection": "5f3a91c2-0-12-345"})), Some(NodeId(0x5f3a_91c2)));
        for body in [json!({"user": "alice"}), json!({"connection": "x"}), json!([])] {
            assert_eq!(owner(body), None);
        }
        assert_eq!(owner_of(b"{"), None);
    }

    #[tokio::test]
    async fn other_nodes_may_do_calls_for_the_cluster_and_no_others() {
        let bench = bench(Mood::Willing);
        let call = async |method: &str, target: &str, body: Value| {
            let (method, target) = (method.into(), target.into());
            let call = Call { node: 2, id: 1, method, target, body: body.to_string().into() };
            let (status, body) = perform(router(bench.node.clone()), &call).await;
            (status.as_u16(), serde_json::from_slice(&body).unwrap_or(Value::Null))
        };
        let user = json!({"user": "alice"});
        let disconnected = (200, json!({"disconnected": 4}));
        assert_eq!(call("POST", "/api/disconnect", user.clone()).await, disconnected);
        assert_eq!(call("POST", "/api/disconnect", json!({})).await.0, 400);
        let (status, topic) = call("GET", "/api/topics/news", Value::Null).await;
        assert_eq!((status, &topic["topic"]), (200, &json!("news")));
        for (method, target) in [
            ("POST", "/api/publish"),
            ("POST", "/api/upgrade"),
            ("GET", "/api/config"),
            ("DELETE", "/api/disconnect"),
            ("GET", "/metrics"),
            ("GET", "no path"),
        ] {
            let (status, _) = call(method, target, user.clone()).await;
            assert!((400..500).contains(&status), "{method} {target}: {status}");
        }
    }
}
