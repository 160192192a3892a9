//! The status of the cluster, for operators.

use cluster::{Counts, PeerState};
use model::NodeId;

/// The connection to NATS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connection {
    /// True while NATS is connected.
    pub is_connected: bool,
    /// Why NATS is not connected, if the link knows it.
    pub error: Option<String>,
    /// When NATS was connected or lost, in microseconds of the link's clock.
    pub since_us: u64,
    /// How often it was lost.
    pub losses: u64,
}

/// The status of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkStatus {
    /// The connection to NATS.
    pub connection: Connection,
    /// Other nodes, in the order of their ids; also those that have been gone for less than ten minutes.
    pub peers: Vec<PeerState>,
    /// Counters of the node.
    pub counts: Counts,
    /// Streams that the node subscribes to.
    pub streams: usize,
    /// Bytes of its messages that the node retains for others.
    pub replay_bytes: usize,
    /// Nodes that are up, but whose entries in presence are incomplete here.
    pub incomplete: Vec<NodeId>,
    /// For each node of `peers`, the number of groups that share messages and have members there.
    pub groups: Vec<usize>,
    /// For each node of `peers`, the number of its streams whose messages, or whose reply about missing messages,
    /// this node awaits.
    pub pending_streams: Vec<usize>,
    /// Counts of presence.
    pub presence: presence::Stats,
    /// The time of the link's clock, in microseconds.
    pub now_us: u64,
}
