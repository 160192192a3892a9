//! A node reads the revocations of tokens that it has missed.
//!
//! `POST /api/revoke` goes to all nodes that are up. A node that joins or comes back has missed the calls meanwhile, and
//! the others may have missed the calls at that node. So each reads the revocations of the other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use link::{Link, PeerState};
use model::NodeId;
use token::AddOutcome;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{CALL_TIMEOUT, object_of, peers_with_calls};
use crate::api::tokens::{RevocationItem, RevocationList, enforce, of_shards};
use crate::node::Node;

/// Time between two attempts to find nodes that have joined.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Revocations in one page.
const PAGE_REVOCATIONS: usize = 500;

/// Reads the revocations of each node that joins or comes back, until the process ends.
pub(crate) async fn sync_revocations(node: Arc<Node>, link: Arc<Link>) {
    let mut clock = interval(POLL_INTERVAL);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // For each node whose revocations were all read, how often it had joined before.
    let mut read_at: HashMap<NodeId, u64> = HashMap::new();
    loop {
        clock.tick().await;
        if !node.live().has_tokens {
            read_at.clear();
            continue;
        }
        let peers = peers_with_calls(&link);
        read_at.retain(|known, _| peers.iter().any(|peer| peer.node == *known));
        for PeerState { node: peer, joins, .. } in peers {
            if read_at.get(&peer) != Some(&joins) && read_all(&node, &link, peer).await.is_some() {
                read_at.insert(peer, joins);
            }
        }
    }
}

/// Reads all pages of another node. Returns `None` if a page did not come: the next attempt begins with the first page.
async fn read_all(node: &Node, link: &Link, peer: NodeId) -> Option<()> {
    let mut after = String::new();
    loop {
        let query = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("limit", &PAGE_REVOCATIONS.to_string())
            .append_pair("after", &after)
            .finish();
        let reply = link.call(peer, "GET", &format!("/api/revocations?{query}"), b"");
        let page = object_of(Some(reply), Instant::now() + CALL_TIMEOUT).await?;
        let page: RevocationList = serde_json::from_value(page.into()).ok()?;
        for item in page.revocations {
            apply(node, item).await?;
        }
        match page.next {
            Some(next) => after = next,
            None => return Some(()),
        }
    }
}

/// Applies a revocation of another node. Returns `None` while an upgrade pauses this process.
async fn apply(node: &Node, item: RevocationItem) -> Option<()> {
    let Some(revocation) = item.revocation() else { return Some(()) };
    let _working = node.upgrades.gate.work()?;
    let max = node.live().revocations_max;
    match node.revocations.add(&revocation, max) {
        AddOutcome::Known => return Some(()),
        AddOutcome::New => {}
        AddOutcome::Full => {
            tracing::warn!(
                revocations_max = max,
                "another node has more token revocations than this node may remember: raise \
                 auth.revocations_max"
            );
            return Some(());
        }
    }
    if let Err(rejection) = enforce(node, &revocation, of_shards(&revocation.revoked)).await {
        tracing::warn!(
            error = rejection.message,
            "a revocation from another node was not stored at this node"
        );
    }
    Some(())
}
