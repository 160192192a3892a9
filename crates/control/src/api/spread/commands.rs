//! Commands of a batch that other nodes carry out as well.

use std::collections::BTreeSet;
use std::sync::Arc;

use link::{CallReply, Link, PeerState};
use model::NodeId;
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{CALL_TIMEOUT, label, object_of, peers_of};
use crate::node::Node;

/// The other nodes of a cluster, for the commands of one batch.
pub(in crate::api) struct OtherNodes {
    /// `None` if the node is alone.
    link: Option<Arc<Link>>,
    /// Nodes that did not reply to a command: the batch waits for each of them once.
    silent: BTreeSet<NodeId>,
}

/// A command that other nodes carry out.
pub(in crate::api) struct PendingCommand {
    replies: Vec<(PeerState, Option<oneshot::Receiver<CallReply>>)>,
    until: Instant,
}

/// The result of other nodes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::api) struct DoneByOthers {
    /// The number of connections.
    pub count: u64,
    /// Nodes that did not reply, or could not do it. They may have done it all the same.
    pub missing: Vec<String>,
}

impl OtherNodes {
    pub fn new(node: &Node) -> Self {
        OtherNodes { link: node.cluster.clone(), silent: BTreeSet::new() }
    }

    /// Makes other nodes do the call of this path with this body: all of them, or only `owner`, the node of a
    /// connection. Returns `None` if the node is alone.
    pub fn begin(
        &self,
        path: &str,
        body: &impl Serialize,
        owner: Option<NodeId>,
    ) -> Option<PendingCommand> {
        let link = self.link.as_deref()?;
        // A body that was read from JSON always serializes.
        let body = serde_json::to_vec(body).unwrap_or_default();
        let is_meant = |peer: &PeerState| owner.is_none_or(|owner| owner == peer.node);
        let peers = peers_of(link).filter(|(peer, _)| is_meant(peer));
        let call = |(peer, can_reply): (PeerState, bool)| {
            let is_called = can_reply && !self.silent.contains(&peer.node);
            let reply = is_called.then(|| link.call(peer.node, "POST", path, &body));
            (peer, reply)
        };
        let replies = peers.map(call).collect();
        Some(PendingCommand { replies, until: Instant::now() + CALL_TIMEOUT })
    }

    /// Waits for a command. Replies have `count` in the field of this name.
    pub async fn done(&mut self, pending: PendingCommand, field: &str) -> DoneByOthers {
        let mut done = DoneByOthers::default();
        for (peer, reply) in pending.replies {
            let object = object_of(reply, pending.until).await;
            match object.and_then(|object| object.get(field)?.as_u64()) {
                Some(count) => done.count += count,
                None => {
                    self.silent.insert(peer.node);
                    done.missing.push(label(&peer));
                }
            }
        }
        done
    }
}
