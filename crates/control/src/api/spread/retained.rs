//! Retained messages of MQTT: a node that joins others reads those that were published before.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use link::{Call, Link, PeerState};
use model::NodeId;
use sessions::FillPage;
use tokio::time::{Instant, sleep, timeout_at};

use super::{CALL_TIMEOUT, peers_of};
use crate::monitor::process::unix_ms;
use crate::node::Node;

/// What nodes call each other for pages. It is no call of the API.
const TARGET: &str = "/internal/retained";

/// How often the node looks for others.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// How long a node that finds no other one with all messages waits, once it is connected: then it is the first one.
const FIRST_WAIT: Duration = Duration::from_secs(10);

/// Bytes of the messages of one page; one alone may be larger.
const PAGE_BYTES: usize = 256 << 10;

/// Reads the retained messages of a node that has all of them.
pub(crate) async fn read(node: Arc<Node>, link: Arc<Link>) {
    if !node.is_new {
        return;
    }
    let mut connected: Option<Instant> = None;
    while connected.is_none_or(|since| since.elapsed() < FIRST_WAIT) {
        if link.status().connection.is_connected {
            connected.get_or_insert_with(Instant::now);
        }
        let peers: Vec<PeerState> =
            peers_of(&link).filter(|(_, can_reply)| *can_reply).map(|(peer, _)| peer).collect();
        for peer in peers {
            if let Some(messages) = read_all(&node, &link, peer.node).await {
                tracing::info!(node = %peer.node, messages, "retained messages were read");
                return node.shared.retained.end_fill();
            }
        }
        sleep(POLL_INTERVAL).await;
    }
    node.shared.retained.end_fill();
}

/// Reads all of another node, a page at a time. Returns how many messages were new here. `None` where a page did not come, or
/// where the other node has not all itself.
async fn read_all(node: &Node, link: &Link, peer: NodeId) -> Option<usize> {
    let (mut after, mut messages) = (String::new(), 0);
    loop {
        let reply = link.call(peer, "GET", TARGET, after.as_bytes());
        let reply = timeout_at(Instant::now() + CALL_TIMEOUT, reply).await.ok()?.ok()?;
        if reply.status != StatusCode::OK.as_u16() {
            return None;
        }
        let page: FillPage = handover::decode(&reply.body).ok()?;
        if !page.is_complete {
            return None;
        }
        messages += take(node, &page)?;
        match page.after {
            Some(next) => after = next,
            None => return Some(messages),
        }
    }
}

/// Takes a page. `None` where this process can't work now.
fn take(node: &Node, page: &FillPage) -> Option<usize> {
    // What is being passed to another process stands still.
    let _working = node.upgrades.gate.work()?;
    match node.shared.retained.fill(page, &|topic| node.broker.hash(topic)) {
        Ok(messages) => Some(messages),
        Err(error) => {
            tracing::warn!(%error, "retained messages of another node are missing here");
            Some(0)
        }
    }
}

/// The reply to a call for a page, if it is one.
pub(super) fn page_of(node: &Node, call: &Call) -> Option<(StatusCode, Vec<u8>)> {
    if call.target != TARGET {
        return None;
    }
    let Ok(after) = std::str::from_utf8(&call.body) else {
        return Some((StatusCode::BAD_REQUEST, Vec::new()));
    };
    let after = Some(after).filter(|after| !after.is_empty());
    let page = node.shared.retained.fill_page(after, PAGE_BYTES, unix_ms());
    Some((StatusCode::OK, handover::encode(page)))
}
