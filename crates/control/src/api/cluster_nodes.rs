//! Each node of the cluster in numbers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::cluster::link_of;
use crate::Node;
use crate::http::{ErrorBody, Rejection};
use crate::monitor::{connections_max, process};

/// The nodes of the cluster in numbers.
#[derive(Serialize, ToSchema)]
pub(crate) struct ClusterNodes {
    /// The nodes that have replied, in no order.
    nodes: Vec<NodeFigures>,
}

/// A node in numbers. For a rate, divide the differences between two responses by that of `uptime_seconds`.
#[derive(Serialize, ToSchema)]
pub(crate) struct NodeFigures {
    /// Its id, which is new at each start.
    #[schema(example = "5f3a91c2")]
    id: String,
    /// The name that its operator gave it; empty if it has none.
    #[schema(example = "a")]
    name: String,
    /// The version of its program.
    version: String,
    /// Seconds since it started.
    uptime_seconds: f64,
    /// True while it drains: it is not ready for new connections.
    draining: bool,
    /// Connections that are open.
    connections: u64,
    /// limits.connections_max.
    connections_max: u64,
    /// Messages that its shards took in since the start: one that goes to three shards counts three times.
    messages_in: u64,
    /// Messages that it handed to connections since the start.
    messages_delivered: u64,
    /// Messages that were published at it since the start, and go to other nodes.
    published: u64,
    /// Times that messages of other nodes were lost for good since the start.
    gaps: u64,
    /// Resident memory (VmRSS).
    rss_bytes: u64,
    /// Processor time that it has used since the start.
    cpu_seconds: f64,
    /// Whether it is connected to NATS.
    connected: bool,
    /// Bytes that wait to be sent to NATS.
    queue_bytes: usize,
}

/// Each node of the cluster in numbers. /api/cluster says which nodes are up and which are silent.
#[utoipa::path(get, path = "/api/cluster/nodes", tag = "operate", responses(
    (status = 200, body = ClusterNodes),
    (status = 409, body = ErrorBody, description = "The node is not in a cluster")))]
pub(crate) async fn cluster_nodes(
    State(node): State<Arc<Node>>,
) -> Result<Json<ClusterNodes>, Rejection> {
    let link = link_of(&node)?;
    let (settings, status) = (link.settings(), link.status());
    let figures = NodeFigures {
        id: settings.node.to_string(),
        name: settings.name.clone(),
        version: settings.version.clone(),
        uptime_seconds: node.started.elapsed().as_secs_f64(),
        draining: node.shared.draining.load(Ordering::Relaxed),
        connections: node.shared.connections.load(Ordering::Relaxed),
        connections_max: connections_max(&node),
        messages_in: node.sum(|metrics| metrics.messages_in.get()),
        messages_delivered: node.sum(|metrics| metrics.delivered.get()),
        published: status.counts.published,
        gaps: status.counts.gaps,
        rss_bytes: process::memory().resident,
        cpu_seconds: process::cpu_seconds(),
        connected: status.connection.is_connected,
        queue_bytes: link.queued_bytes(),
    };
    Ok(Json(ClusterNodes { nodes: vec![figures] }))
}
