//! Entries in presence, between the registry of this process and the node.

use std::sync::Arc;
use std::time::Instant;

use cluster::{Node, PRESENCE_PACKET_BYTES, PRESENCE_US, PresenceRequest};
use model::NodeId;
use presence::{Change, Page, Presence as _};
use throttle::Throttle;

/// The registry, which all nodes share.
pub struct Registry {
    /// Who is present, with entries of other nodes ([`presence::Local::with_nodes`]).
    pub presence: Arc<presence::Local>,
    /// When the clock began that the registry goes by.
    pub started: Instant,
}

/// Takes changes from the registry and to it.
pub(crate) struct Entries {
    registry: Registry,
    other_bytes_max: usize,
    /// When changes of this node's entries are taken next, by the link's clock.
    pub due_us: u64,
    full: Throttle,
}

impl Entries {
    pub fn new(registry: Registry, other_bytes_max: usize) -> Self {
        Entries { registry, other_bytes_max, due_us: 0, full: Throttle::new(1, 10_000_000) }
    }

    /// Figures of the registry.
    pub fn stats(&self) -> presence::Stats {
        self.registry.presence.stats()
    }

    /// Publishes what has changed of this node's entries.
    pub fn publish(&mut self, node: &mut Node, now_us: u64) {
        self.due_us = now_us + PRESENCE_US;
        node.publish_presence(self.registry.presence.take_changes(), now_us);
    }

    /// Entries of other nodes fit again when a quarter of the memory for them is free.
    pub fn has_capacity(&self) -> bool {
        self.stats().other_nodes_bytes <= self.other_bytes_max / 4 * 3
    }

    /// Reads a page for another node.
    pub fn read(&self, request: &PresenceRequest) -> Page {
        self.registry.presence.read_page(request.from, PRESENCE_PACKET_BYTES)
    }

    pub fn apply(&mut self, of: NodeId, changes: &[Change], node: &mut Node, now_us: u64) {
        let dropped = self.registry.presence.apply(of, changes, self.registry_us());
        self.on_applied(of, dropped, node, now_us);
    }

    pub fn apply_page(&mut self, of: NodeId, page: &Page, node: &mut Node, now_us: u64) {
        let dropped = self.registry.presence.apply_page(of, page, self.registry_us());
        self.on_applied(of, dropped, node, now_us);
    }

    pub fn expire(&self, of: NodeId) {
        self.registry.presence.expire(of, self.registry_us());
    }

    fn on_applied(&mut self, of: NodeId, dropped: usize, node: &mut Node, now_us: u64) {
        if dropped == 0 {
            return;
        }
        node.on_presence_full(of, now_us);
        if let Some(suppressed) = self.full.pass(now_us, 1) {
            tracing::warn!(
                node = %of,
                limit_bytes = self.other_bytes_max,
                suppressed,
                "users of another node are missing from lists of presence here: raise cluster.presence_bytes_max"
            );
        }
    }

    fn registry_us(&self) -> u64 {
        u64::try_from(self.registry.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}
