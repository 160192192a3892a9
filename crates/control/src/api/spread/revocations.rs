//! Revoked tokens of other nodes.
//!
//! `POST /api/revoke` goes to all nodes that are there. A node that comes, or comes back, has missed some, and others may
//! have missed those of its own: each reads those of the other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use link::{Link, PeerState};
use model::NodeId;
use token::Added;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{CALL_TIMEOUT, object_of, peers_of};
use crate::api::tokens::{RevocationItem, RevocationList, enforce, of_shards};
use crate::node::Node;

/// How often the node looks for nodes that have come.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Revocations that the node requests at a time.
const PAGE: usize = 500;

/// Reads the revocations of each node that comes or comes back, until the process ends.
pub(crate) async fn read(node: Arc<Node>, link: Arc<Link>) {
    let mut clock = interval(POLL_INTERVAL);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // How often each node had come or come back when all of its revocations were read.
    let mut read_at: HashMap<NodeId, u64> = HashMap::new();
    loop {
        clock.tick().await;
        if !node.live().has_tokens {
            read_at.clear();
            continue;
        }
        let peers = peers_of(&link).filter(|(_, can_reply)| *can_reply);
        let peers: Vec<PeerState> = peers.map(|(peer, _)| peer).collect();
        read_at.retain(|known, _| peers.iter().any(|peer| peer.node == *known));
        for PeerState { node: peer, comings, .. } in peers {
            if read_at.get(&peer) != Some(&comings) && read_all(&node, &link, peer).await.is_some()
            {
                read_at.insert(peer, comings);
            }
        }
    }
}

/// Reads all revocations of another node, a page at a time. `None` where a page did not come: the next look begins anew.
async fn read_all(node: &Node, link: &Link, peer: NodeId) -> Option<()> {
    let mut after = String::new();
    loop {
        let query = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("limit", &PAGE.to_string())
            .append_pair("after", &after)
            .finish();
        let reply = link.call(peer, "GET", &format!("/api/revocations?{query}"), b"");
        let page = object_of(Some(reply), Instant::now() + CALL_TIMEOUT).await?;
        let page: RevocationList = serde_json::from_value(page.into()).ok()?;
        for item in page.revocations {
            take(node, item).await?;
        }
        match page.next {
            Some(next) => after = next,
            None => return Some(()),
        }
    }
}

/// Takes a revocation of another node. `None` where this process can't work now.
async fn take(node: &Node, item: RevocationItem) -> Option<()> {
    let Some(revocation) = item.revocation() else { return Some(()) };
    // What is being passed to another process stands still.
    let _working = node.upgrades.gate.work()?;
    let max = node.live().revocations_max;
    match node.revocations.add(&revocation, max) {
        Added::Known => return Some(()),
        Added::New => {}
        Added::Full => {
            tracing::warn!(
                revocations_max = max,
                "another node has revoked more tokens than this one remembers: raise auth.revocations_max"
            );
            return Some(());
        }
    }
    if let Err(rejection) = enforce(node, &revocation, of_shards(&revocation.revoked)).await {
        tracing::warn!(
            error = rejection.message,
            "a revocation of another node is not stored here"
        );
    }
    Some(())
}
