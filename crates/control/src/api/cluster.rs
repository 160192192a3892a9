//! The nodes of the cluster, as this one knows them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use model::ErrorCode;
use serde::Serialize;
use utoipa::ToSchema;

use crate::Node;
use crate::http::{ErrorBody, Rejection};

/// The cluster, as this node sees it.
#[derive(Serialize, ToSchema)]
pub(crate) struct ClusterState {
    /// The cluster's name.
    #[schema(example = "throng")]
    cluster: String,
    /// This node.
    node: ClusterNode,
    /// The other nodes, including those that are gone for less than ten minutes.
    nodes: Vec<OtherNode>,
    /// The connection to NATS.
    nats: NatsState,
    /// Messages between nodes since this one began.
    messages: ClusterMessages,
    /// Users in topics with presence.
    presence: ClusterPresence,
}

/// A node.
#[derive(Serialize, ToSchema)]
pub(crate) struct ClusterNode {
    /// Its id, which is new at each start.
    #[schema(example = "5f3a91c2")]
    id: String,
    /// The name that its operator gave it; empty if it has none.
    #[schema(example = "a")]
    name: String,
    /// The version of its program.
    version: String,
    /// Its open connections.
    connections: u64,
    /// True while it drains: it is not ready for new connections.
    draining: bool,
}

/// Another node.
#[derive(Serialize, ToSchema)]
pub(crate) struct OtherNode {
    #[serde(flatten)]
    node: ClusterNode,
    /// `up`, `left` if it announced its end, or `silent`.
    #[schema(example = "up")]
    state: &'static str,
    /// Seconds since its last packet.
    silent_seconds: f64,
    /// Whether this node has all its users in topics with presence.
    presence_complete: bool,
    /// Groups of MQTT (`$share/…`) with members there, as far as this node knows.
    groups: usize,
    /// Streams of that node (each is a part of all topics) for which this node still waits for messages, or for the
    /// reply that none is missing. While it is 0, nothing is lost if that node dies.
    pending_streams: usize,
}

/// The connection to NATS.
#[derive(Serialize, ToSchema)]
pub(crate) struct NatsState {
    /// Whether it is open.
    connected: bool,
    /// Seconds since that changed.
    seconds: f64,
    /// How often it was lost.
    losses: u64,
    /// The last error since it was lost.
    error: Option<String>,
    /// Subscriptions of this node for messages: parts of all topics, 1,027 at the most.
    subscriptions: usize,
    /// The largest packet that it takes, in bytes: `max_payload` in its configuration; null before the first connect.
    max_payload_bytes: Option<usize>,
    /// Bytes that wait to be sent.
    queue_bytes: usize,
    /// Bytes of its newest messages that this node retains for nodes that have missed some.
    replay_bytes: usize,
}

/// Messages between nodes, since this one began.
#[derive(Serialize, ToSchema)]
pub(crate) struct ClusterMessages {
    /// Messages of this node for others.
    published: u64,
    /// Messages of other nodes that were delivered here.
    delivered: u64,
    /// Messages that came a second time and were dropped.
    duplicates: u64,
    /// Messages that this node sent once more, to nodes that had missed them.
    replayed: u64,
    /// Requests of this node for messages that it missed.
    requests: u64,
    /// Times that messages were lost for good.
    gaps: u64,
    /// Packets that could not be read.
    damaged: u64,
    /// Messages, and users in topics with presence, that are larger than NATS takes and were not sent.
    too_large: u64,
}

/// Users in topics with presence. A user counts once for each connection and topic.
#[derive(Serialize, ToSchema)]
pub(crate) struct ClusterPresence {
    /// Those of this node.
    entries: usize,
    /// Those of other nodes that this one knows.
    other_entries: usize,
    /// Bytes that these take in memory, roughly.
    other_bytes: usize,
    /// Changes that this node sent since it began.
    sent: u64,
    /// Changes that came from others.
    received: u64,
    /// How often it read all users of another node: once for each node that joined or came back, and once for each
    /// loss of changes.
    reads: u64,
}

/// The link of a node to the others.
///
/// # Errors
/// When it is alone.
pub(crate) fn link_of(node: &Node) -> Result<&link::Link, Rejection> {
    node.cluster.as_deref().ok_or_else(|| {
        let message =
            "this node is not in a cluster: set cluster.urls (--cluster) and restart it to join \
             one";
        Rejection::new(ErrorCode::NoCluster, message)
    })
}

/// The nodes of the cluster as this one sees them, and its connection to NATS.
#[utoipa::path(get, path = "/api/cluster", tag = "operate", responses(
    (status = 200, body = ClusterState),
    (status = 409, body = ErrorBody, description = "The node is not in a cluster")))]
pub(crate) async fn cluster(
    State(node): State<Arc<Node>>,
) -> Result<Json<ClusterState>, Rejection> {
    let link = link_of(&node)?;
    let (settings, status) = (link.settings(), link.status());
    let seconds = |since_us: u64| status.now_us.saturating_sub(since_us) as f64 / 1e6;
    let peers = status.peers.iter().zip(status.groups.iter().zip(&status.pending_streams));
    let nodes = peers.map(|(peer, (groups, pending_streams))| OtherNode {
        node: ClusterNode {
            id: peer.node.to_string(),
            name: peer.name.clone(),
            version: peer.version.clone(),
            connections: peer.connections,
            draining: peer.is_draining,
        },
        state: match (peer.is_up, peer.has_left) {
            (true, _) => "up",
            (false, true) => "left",
            (false, false) => "silent",
        },
        silent_seconds: seconds(peer.received_us),
        presence_complete: peer.is_up && !status.incomplete.contains(&peer.node),
        groups: *groups,
        pending_streams: *pending_streams,
    });
    let shared = &node.shared;
    let order = std::sync::atomic::Ordering::Relaxed;
    Ok(Json(ClusterState {
        cluster: settings.cluster.clone(),
        node: ClusterNode {
            id: settings.node.to_string(),
            name: settings.name.clone(),
            version: settings.version.clone(),
            connections: shared.connections.load(order),
            draining: shared.draining.load(order),
        },
        nodes: nodes.collect(),
        nats: NatsState {
            connected: status.connection.is_connected,
            seconds: seconds(status.connection.since_us),
            losses: status.connection.losses,
            error: status.connection.error.clone(),
            subscriptions: status.streams,
            max_payload_bytes: link.packet_bytes_max(),
            queue_bytes: link.queued_bytes(),
            replay_bytes: status.replay_bytes,
        },
        messages: ClusterMessages {
            published: status.counts.published,
            delivered: status.counts.delivered,
            duplicates: status.counts.duplicates,
            replayed: status.counts.replayed,
            requests: status.counts.requests,
            gaps: status.counts.gaps,
            damaged: status.counts.damaged,
            too_large: status.counts.too_large,
        },
        presence: ClusterPresence {
            entries: status.presence.connections,
            other_entries: status.presence.other_nodes,
            other_bytes: status.presence.other_nodes_bytes,
            sent: status.counts.presence_sent,
            received: status.counts.presence_received,
            reads: status.counts.presence_reads,
        },
    }))
}
