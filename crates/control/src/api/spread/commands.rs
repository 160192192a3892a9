//! Commands of a batch that a node does for all.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::http::StatusCode;
use link::{CallReply, Link, PeerState};
use model::NodeId;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::{CALL_TIMEOUT, label};
use crate::node::Node;

/// The other nodes of a cluster, for the commands of one batch.
pub(in crate::api) struct OtherNodes {
    /// `None` where the node is alone.
    link: Option<Arc<Link>>,
    /// Nodes that did not reply to a command: the batch waits for each of them once.
    silent: BTreeSet<NodeId>,
}

/// A command that other nodes do.
pub(in crate::api) struct PendingCommand {
    replies: Vec<(PeerState, Option<oneshot::Receiver<CallReply>>)>,
    until: Instant,
}

/// What other nodes did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::api) struct DoneByOthers {
    /// To so many connections.
    pub count: u64,
    /// Nodes that did not reply, or could not do it. They may have done it all the same.
    pub missing: Vec<String>,
}

impl OtherNodes {
    pub fn new(node: &Node) -> Self {
        OtherNodes { link: node.cluster.clone(), silent: BTreeSet::new() }
    }

    /// Has the others do the call of this path with this body: all of them, or the one of a connection if `owner` says
    /// whose it is. `None` where the node is alone.
    pub fn begin(
        &self,
        path: &str,
        body: &impl Serialize,
        owner: Option<NodeId>,
    ) -> Option<PendingCommand> {
        let link = self.link.as_deref()?;
        // What was read from JSON can be written.
        let body = serde_json::to_vec(body).unwrap_or_default();
        let status = link.status();
        let is_connected = status.connection.is_connected;
        let peers = status.peers.into_iter().filter(|peer| peer.is_up);
        let peers = peers.filter(|peer| owner.is_none_or(|owner| owner == peer.node));
        let call = |peer: PeerState| {
            let is_silent = self.silent.contains(&peer.node);
            let can_reply = is_connected && peer.has_calls && !is_silent;
            let reply = can_reply.then(|| link.call(peer.node, "POST", path, &body));
            (peer, reply)
        };
        let replies = peers.map(call).collect();
        Some(PendingCommand { replies, until: Instant::now() + CALL_TIMEOUT })
    }

    /// Waits for a command. Replies have `count` in the field of this name.
    pub async fn done(&mut self, pending: PendingCommand, field: &str) -> DoneByOthers {
        let mut done = DoneByOthers::default();
        for (peer, reply) in pending.replies {
            match count(reply, pending.until, field).await {
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

/// The count that a node replied, if it did the command in time.
async fn count(
    reply: Option<oneshot::Receiver<CallReply>>,
    until: Instant,
    field: &str,
) -> Option<u64> {
    let reply = timeout_at(until, reply?).await.ok()?.ok()?;
    if reply.status != StatusCode::OK.as_u16() {
        return None;
    }
    let object: Map<String, Value> = serde_json::from_slice(&reply.body).ok()?;
    object.get(field)?.as_u64()
}
