//! The replies of the called node about its cluster. Fields that a node of another version leaves out are 0.

use admin::{Admin, AdminError};
use serde::Deserialize;

/// One poll.
#[derive(Clone, Debug, Default)]
pub struct Poll {
    /// The nodes of the cluster.
    pub cluster: Cluster,
    /// The numbers of the nodes that have replied.
    pub figures: Vec<Figures>,
}

/// The cluster as the called node sees it: `/api/cluster`.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Cluster {
    /// Its name.
    #[serde(rename = "cluster", default)]
    pub name: String,
    /// The called node.
    pub node: KnownNode,
    /// The others.
    #[serde(default)]
    pub nodes: Vec<KnownNode>,
}

/// A node, as another node knows it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct KnownNode {
    /// Its id, which is new at each start.
    pub id: String,
    /// Its operator's name for it.
    pub name: String,
    /// The version of its program.
    pub version: String,
    /// Connections at its last packet.
    pub connections: f64,
    /// The node ends soon.
    pub draining: bool,
    /// `up`, `silent` or `left`; empty for the called node.
    pub state: String,
    /// Seconds since its last packet.
    pub silent_seconds: f64,
}

/// A node's own numbers: `/api/cluster/nodes`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Its id.
    pub id: String,
    /// Seconds since it started.
    pub uptime_seconds: f64,
    /// Connections that are open.
    pub connections: f64,
    /// Messages that its shards received since the start.
    pub messages_in: f64,
    /// Messages that it passed to connections since the start.
    pub messages_delivered: f64,
    /// Messages published at it since the start.
    pub published: f64,
    /// Resident memory, in bytes.
    pub rss_bytes: f64,
    /// True while it is connected to NATS.
    pub connected: bool,
    /// Bytes in its queue to NATS.
    pub queue_bytes: f64,
}

#[derive(Deserialize)]
struct Reply {
    nodes: Vec<Figures>,
}

impl Poll {
    /// Polls a node.
    ///
    /// # Errors
    /// If the node can't be reached, is alone, or does not respond as expected.
    pub fn get(admin: &mut Admin) -> Result<Self, AdminError> {
        let cluster = admin.get("/api/cluster")?;
        let Reply { nodes } = admin.get("/api/cluster/nodes")?;
        Ok(Poll { cluster, figures: nodes })
    }
}
