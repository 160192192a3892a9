//! How it stands with the cluster, for operators.

use cluster::{Counts, PeerState};
use model::NodeId;

/// The connection to NATS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connection {
    /// It is there.
    pub is_connected: bool,
    /// Why it is not, as far as that is known.
    pub error: Option<String>,
    /// Since when it is there or gone, in microseconds of the link's clock.
    pub since_us: u64,
    /// How often it was lost.
    pub losses: u64,
}

/// How it stands with the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The connection to NATS.
    pub connection: Connection,
    /// Other nodes, in the order of their ids; also those that are gone for less than ten minutes.
    pub peers: Vec<PeerState>,
    /// What the node has counted.
    pub counts: Counts,
    /// Streams that the node subscribes to.
    pub streams: usize,
    /// Bytes of its messages that the node retains for others.
    pub replay_bytes: usize,
    /// Nodes that are there, but not all of whose entries in presence are here.
    pub incomplete: Vec<NodeId>,
    /// How many groups that share messages have members at each node of `peers`.
    pub groups: Vec<usize>,
    /// Of how many streams of each node of `peers` this node awaits messages, or a reply that says whether some are
    /// missing.
    pub pending_streams: Vec<usize>,
    /// Figures of presence.
    pub presence: presence::Stats,
    /// The time of the link's clock, in microseconds.
    pub now_us: u64,
}
