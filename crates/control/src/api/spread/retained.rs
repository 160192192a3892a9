//! A node that joins a cluster reads the retained messages of MQTT of another node.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use link::{Call, Link};
use model::NodeId;
use sessions::SyncPage;
use tokio::time::{Instant, sleep, timeout_at};

use super::{CALL_TIMEOUT, peers_with_calls};
use crate::monitor::process::unix_ms;
use crate::node::Node;

/// The target of a call for a page, whose body is the topic before the page. It is no call of the API.
const TARGET: &str = "/internal/retained";

/// Time between two attempts to find a node with all messages.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// How long a connected node looks for a node with all messages. Then it is the first node of its cluster.
const FIRST_NODE_WAIT: Duration = Duration::from_secs(10);

/// Bytes of the messages of one page. A single message may be larger.
const PAGE_BYTES: usize = 256 << 10;

/// Reads the retained messages of a node that has all of them, if this node joins its cluster. Those in a table that all
/// nodes share are here already.
pub(crate) async fn sync_retained(node: Arc<Node>, link: Arc<Link>) {
    if !node.is_new || node.shared.retained.is_shared() {
        return;
    }
    let mut connected: Option<Instant> = None;
    while connected.is_none_or(|since| since.elapsed() < FIRST_NODE_WAIT) {
        if link.status().connection.is_connected {
            connected.get_or_insert_with(Instant::now);
        }
        for peer in peers_with_calls(&link) {
            if let Some(messages) = read_all(&node, &link, peer.node).await {
                tracing::info!(
                    node = %peer.node,
                    messages,
                    "the retained messages of the cluster were read"
                );
                return node.shared.retained.end_sync();
            }
        }
        sleep(POLL_INTERVAL).await;
    }
    node.shared.retained.end_sync();
}

/// Reads all pages of another node. Returns how many messages were new here, or `None` if a page did not come or the
/// other node lacks messages itself.
async fn read_all(node: &Node, link: &Link, peer: NodeId) -> Option<usize> {
    let (mut after, mut messages) = (String::new(), 0);
    loop {
        let reply = link.call(peer, "GET", TARGET, after.as_bytes());
        let reply = timeout_at(Instant::now() + CALL_TIMEOUT, reply).await.ok()?.ok()?;
        if reply.status != StatusCode::OK.as_u16() {
            return None;
        }
        let page: SyncPage = handover::decode(&reply.body).ok()?;
        if !page.is_complete {
            return None;
        }
        messages += apply(node, &page)?;
        match page.after {
            Some(next) => after = next,
            None => return Some(messages),
        }
    }
}

/// Applies a page. Returns how many messages were new here, or `None` while an upgrade pauses this process.
fn apply(node: &Node, page: &SyncPage) -> Option<usize> {
    let _working = node.upgrades.gate.work()?;
    match node.shared.retained.apply_page(page, &|topic| node.broker.hash(topic)) {
        Ok(messages) => Some(messages),
        Err(error) => {
            tracing::warn!(
                %error,
                "retained messages from another node could not be applied and are missing at this \
                 node"
            );
            Some(0)
        }
    }
}

/// Returns the reply to another node's call for a page, or `None` for another call.
pub(super) fn page_of(node: &Node, call: &Call) -> Option<(StatusCode, Vec<u8>)> {
    if call.target != TARGET {
        return None;
    }
    let Ok(after) = std::str::from_utf8(&call.body) else {
        return Some((StatusCode::BAD_REQUEST, Vec::new()));
    };
    let after = Some(after).filter(|after| !after.is_empty());
    let page = node.shared.retained.sync_page(after, PAGE_BYTES, unix_ms());
    Some((StatusCode::OK, handover::encode(page)))
}
