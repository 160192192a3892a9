//! Presence entries, between the registry of this process and the node.

use std::sync::Arc;
use std::time::Instant;

use cluster::{Node, PRESENCE_PACKET_BYTES, PRESENCE_US, PresenceRequest};
use model::NodeId;
use presence::{Change, Page, Presence as _, Updates};
use throttle::Throttle;

/// Entries of other nodes that change in one turn of the driver: about 3 ms.
const TURN_ENTRIES_MAX: usize = 2_048;

/// Bytes of changes of this node's entries that the driver publishes in one turn.
const TURN_BYTES_MAX: usize = 512 << 10;

/// How long further changes wait, in microseconds. Packets leave meanwhile.
const REST_US: u64 = 1_000;

/// Bytes of changes of other nodes' entries that may wait for the next turns. Beyond it the driver reads no packets.
const WAITING_BYTES_MAX: usize = 8 << 20;

/// The registry, which all nodes share.
#[derive(Clone)]
pub struct Registry {
    /// The present users, with entries of other nodes ([`presence::Local::with_nodes`]).
    pub presence: Arc<presence::Local>,
    /// The start of the registry's clock.
    pub started: Instant,
}

impl Registry {
    /// Returns the time of the registry's clock, in microseconds.
    pub(crate) fn now_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// Passes changes from the registry to the node and back.
pub(crate) struct Entries {
    registry: Registry,
    /// Changes of other nodes' entries that wait for a turn.
    updates: Updates,
    other_bytes_max: usize,
    /// When the driver next takes changes of this node's entries, by the link's clock.
    pub due_us: u64,
    full: Throttle,
}

impl Entries {
    pub fn new(registry: Registry, other_bytes_max: usize) -> Self {
        Entries {
            registry,
            updates: Updates::default(),
            other_bytes_max,
            due_us: 0,
            full: Throttle::new(1, 10_000_000),
        }
    }

    /// Returns counts of the registry.
    pub fn stats(&self) -> presence::Stats {
        self.registry.presence.stats()
    }

    /// Publishes changes of this node's entries, as many as fit into one turn. Returns true if there are more.
    pub fn publish(&mut self, node: &mut Node, now_us: u64) -> bool {
        let changes = self.registry.presence.take_changes(TURN_BYTES_MAX);
        self.due_us = now_us + if changes.has_more { REST_US } else { PRESENCE_US };
        let has_more = changes.has_more;
        node.publish_presence(changes, now_us);
        has_more
    }

    /// Reads a page for another node.
    pub fn read(&self, request: &PresenceRequest) -> Page {
        self.registry.presence.read_page(request.from, PRESENCE_PACKET_BYTES)
    }

    /// Queues changes of another node's entries for one of the next turns.
    pub fn push_changes(&mut self, of: NodeId, changes: Vec<Change>) {
        self.updates.push_changes(of, changes);
    }

    /// Queues a page, which replaces another node's entries.
    pub fn push_page(&mut self, of: NodeId, page: Page) {
        self.updates.push_page(of, page);
    }

    /// Queues the removal of all entries of another node.
    pub fn push_expire(&mut self, of: NodeId) {
        self.updates.push_expire(of);
    }

    /// Returns true if changes of other nodes' entries wait for the next turn.
    pub fn has_pending(&self) -> bool {
        !self.updates.is_empty()
    }

    /// Returns true if changes of this node's entries wait for the next turn.
    pub fn has_pending_of(&self, of: NodeId) -> bool {
        self.updates.has(of)
    }

    /// Returns true if too many changes wait.
    pub fn is_behind(&self) -> bool {
        self.updates.bytes() > WAITING_BYTES_MAX
    }

    /// Applies changes of other nodes' entries, as many as fit into one turn.
    pub fn advance(&mut self, node: &mut Node, now_us: u64) {
        let registry_us = self.registry.now_us();
        let presence = &self.registry.presence;
        for (of, bytes) in presence.advance(&mut self.updates, TURN_ENTRIES_MAX, registry_us) {
            self.on_dropped(of, bytes, node, now_us);
        }
    }

    fn on_dropped(&mut self, of: NodeId, bytes: usize, node: &mut Node, now_us: u64) {
        node.on_presence_full(of, bytes, now_us);
        if let Some(suppressed) = self.full.pass(now_us, 1) {
            tracing::warn!(
                node = %of,
                limit_bytes = self.other_bytes_max,
                suppressed,
                "users of another node are missing from this node's presence lists: raise \
                 cluster.presence_bytes_max"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use cluster::Settings;
    use presence::{Limits, Local, SharedEntry};

    use super::*;

    const OTHER: NodeId = NodeId(2);

    /// Makes the entries of a second node in the registry of a first one.
    fn entries() -> (Entries, Node) {
        let limits =
            Limits { users_max: 9, list_bytes_max: 1_000, interval_us: 1, members_per_ms: 0 };
        let presence = Arc::new(Local::new(limits, NodeId(1)).with_nodes(1 << 30));
        let registry = Registry { presence, started: Instant::now() };
        let settings = Settings {
            node: NodeId(1),
            name: String::new(),
            version: "1".into(),
            replay_bytes_max: 1 << 20,
        };
        (Entries::new(registry, 1 << 30), Node::new(settings, 0))
    }

    fn entry(number: u64, meta: &str) -> SharedEntry {
        SharedEntry { number, topic: "t".into(), user: "al".into(), meta: meta.into() }
    }

    fn enter(number: u64, meta: &str) -> Change {
        Change { gone: None, entry: Some(entry(number, meta)) }
    }

    #[test]
    fn a_turn_is_short_while_many_entries_go_and_come_back() {
        let (mut entries, mut node) = entries();
        let count = |entries: &Entries| entries.stats().other_nodes;
        let most = 10 * TURN_ENTRIES_MAX;
        entries.push_changes(OTHER, (0..most as u64).map(|number| enter(number, "")).collect());
        for turn in 1..=10 {
            entries.advance(&mut node, 0);
            assert_eq!(
                (count(&entries), entries.has_pending()),
                (turn * TURN_ENTRIES_MAX, turn < 10)
            );
        }
        entries.push_expire(OTHER);
        entries.advance(&mut node, 0);
        assert_eq!((count(&entries), entries.has_pending_of(OTHER)), (9 * TURN_ENTRIES_MAX, true));
        let page = Page { from: 0, to: None, entries: vec![entry(5, ""), entry(most as u64, "")] };
        entries.push_page(OTHER, page);
        let mut turns = 0;
        while entries.has_pending() {
            entries.advance(&mut node, 0);
            turns += 1;
        }
        assert_eq!((count(&entries), turns), (2, 10));
    }

    #[test]
    fn a_turn_publishes_a_bounded_part_of_what_has_changed_and_the_next_one_goes_on() {
        let (mut entries, mut node) = entries();
        let meta = format!(r#"{{"x":"{}"}}"#, "x".repeat(1_000));
        for _ in 0..2_000 {
            entries.registry.presence.enter("t", "al", &meta, 0);
        }
        let (mut sent, mut now_us) = (Vec::new(), 0);
        while now_us < PRESENCE_US {
            entries.publish(&mut node, now_us);
            sent.push(node.counts().presence_sent - sent.iter().sum::<u64>());
            now_us = entries.due_us;
        }
        assert_eq!(sent.iter().sum::<u64>(), 2_000);
        assert_eq!(now_us, 4 * REST_US + PRESENCE_US);
        assert!(sent.len() == 5 && sent.iter().all(|part| *part <= 512), "{sent:?}");
    }

    #[test]
    fn too_many_bytes_that_wait_are_behind() {
        let (mut entries, mut node) = entries();
        let meta = format!(r#"{{"x":"{}"}}"#, "x".repeat(1 << 20));
        (0..9).for_each(|number| entries.push_changes(OTHER, vec![enter(number, &meta)]));
        assert!(entries.is_behind());
        entries.advance(&mut node, 0);
        assert!(!entries.is_behind() && !entries.has_pending());
    }
}
