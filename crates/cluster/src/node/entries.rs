//! A node's part in presence: it publishes changes of its own entries, replies to requests for them, and applies
//! those of others.

use bytes::Bytes;
use model::NodeId;
use presence::{Change, Changes, Page};

use super::Node;
use crate::entries::PresenceMemory;
use crate::{
    Output, Packet, PresenceDiff, PresencePage, PresenceRequest, Stream, Target, TooLarge,
};

/// The interval at which the shell calls [`Node::publish_presence`] with changes of this node's entries, in
/// microseconds: the changes of an interval share packets.
pub const PRESENCE_US: u64 = 50_000;

/// The approximate limit on bytes of entries in one packet. One entry may have more.
pub const PRESENCE_PACKET_BYTES: usize = 64 << 10;

/// Bytes of a presence packet besides its entries or changes, at most.
const PRESENCE_HEAD_BYTES: usize = 128;

/// How long entries of other nodes stay while the connection to NATS is gone, in microseconds. The others count a
/// node that is cut off as silent, and it can't know whether they are up.
const UNREACHABLE_US: u64 = 30_000_000;

impl Node {
    /// Publishes changes of this node's entries in presence.
    pub fn publish_presence(&mut self, changes: Changes, now_us: u64) {
        if !changes.is_whole {
            self.publish_diff(Vec::new(), true, now_us);
        }
        let bytes_max = self.presence_bytes_max();
        let part_bytes_max = PRESENCE_PACKET_BYTES.min(bytes_max);
        let (mut part, mut bytes) = (Vec::new(), 0);
        for mut change in changes.list {
            if change.bytes() > bytes_max {
                self.leave_out_entry(change.bytes());
                change.entry = None;
                if change.gone.is_none() {
                    continue;
                }
            }
            bytes += change.bytes();
            if bytes > part_bytes_max && !part.is_empty() {
                self.publish_diff(std::mem::take(&mut part), false, now_us);
                bytes = change.bytes();
            }
            part.push(change);
        }
        if !part.is_empty() {
            self.publish_diff(part, false, now_us);
        }
    }

    fn publish_diff(&mut self, changes: Vec<Change>, is_reset: bool, now_us: u64) {
        self.presence_diffs += 1;
        self.counts.presence_sent += changes.len() as u64;
        let diff = PresenceDiff { number: self.presence_diffs, changes, is_reset };
        let write = |out: &mut Vec<u8>| diff.encode_into(out);
        let bytes = self.replay.publish(Stream::PRESENCE, now_us, write);
        self.send(Target::Stream(Stream::PRESENCE), bytes);
    }

    /// Returns the limit on bytes of entries or changes in one packet.
    fn presence_bytes_max(&self) -> usize {
        self.packet_bytes_max.saturating_sub(PRESENCE_HEAD_BYTES)
    }

    /// Excludes an entry of `bytes` bytes from other nodes: NATS would reject it each time that they request it.
    fn leave_out_entry(&mut self, bytes: usize) {
        self.has_left_out_entries = true;
        self.report_too_large(TooLarge::PresenceEntry, bytes);
    }

    /// Handles that NATS takes larger packets than before: other nodes read all entries anew if some were excluded.
    pub(super) fn share_left_out_entries(&mut self, now_us: u64) {
        if std::mem::take(&mut self.has_left_out_entries) {
            self.publish_diff(Vec::new(), true, now_us);
        }
    }

    /// Returns the page, or its beginning if NATS does not take all of it in one packet. Excludes entries that no
    /// packet can contain.
    fn fit_page(&mut self, page: Page) -> Page {
        let bytes_max = self.presence_bytes_max();
        let Page { from, mut to, entries } = page;
        let (mut fitting, mut bytes) = (Vec::with_capacity(entries.len()), 0);
        for entry in entries {
            if entry.bytes() > bytes_max {
                self.leave_out_entry(entry.bytes());
                continue;
            }
            bytes += entry.bytes();
            if bytes > bytes_max {
                // The reading node continues from here.
                to = Some(entry.number);
                break;
            }
            fitting.push(entry);
        }
        Page { from, to, entries: fitting }
    }

    /// Handles the page that another node has requested. It has all changes that were published before.
    pub fn on_presence_read(&mut self, request: &PresenceRequest, page: Page) {
        let PresenceRequest { node, id, .. } = *request;
        let Page { from, to, entries } = self.fit_page(page);
        let (own, number) = (self.settings.node.0, self.presence_diffs);
        let page = PresencePage { node: own, id, number, from, to, entries };
        self.send(Target::Node(NodeId(node)), Packet::PresencePage(page).encode());
    }

    /// Handles that entries of another node, of `bytes` bytes, did not fit into the memory for them.
    pub fn on_presence_full(&mut self, node: NodeId, bytes: usize, now_us: u64) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.entries.on_full(bytes, now_us);
        }
    }

    /// Sets how many bytes of memory entries of other nodes take and may take. Entries that did not fit are read once
    /// they fit.
    pub fn set_presence_memory(&mut self, bytes: usize, bytes_max: usize) {
        self.presence_memory = PresenceMemory { bytes, bytes_max };
    }

    pub(super) fn on_presence_request(&mut self, request: PresenceRequest) {
        self.outputs.push(Output::ReadPresence(request));
    }

    pub(super) fn on_presence_page(&mut self, page: PresencePage, now_us: u64) {
        let node = NodeId(page.node);
        let Some(peer) = self.peers.get_mut(&node) else { return };
        peer.state.received_us = now_us;
        if let Some(page) = peer.entries.on_page(page, now_us) {
            self.outputs.push(Output::PresencePage { node, page });
        }
    }

    pub(super) fn on_presence_diff(&mut self, node: NodeId, payload: &Bytes, now_us: u64) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let Ok(diff) = PresenceDiff::decode(payload) else {
            self.counts.damaged += 1;
            return peer.entries.on_gap(now_us);
        };
        self.counts.presence_received += diff.changes.len() as u64;
        let changes = peer.entries.on_diff(diff, now_us);
        if !changes.is_empty() {
            self.outputs.push(Output::PresenceChanged { node, changes });
        }
    }

    pub(super) fn on_presence_gap(&mut self, node: NodeId, now_us: u64) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.entries.on_gap(now_us);
        }
    }

    /// Removes the entries of all other nodes if NATS has been gone for long.
    pub(super) fn expire_unreachable(&mut self, now_us: u64) {
        if self.disconnected_us.is_none_or(|since_us| now_us < since_us + UNREACHABLE_US) {
            return;
        }
        for peer in self.peers.values_mut() {
            if peer.entries.on_down() {
                self.outputs.push(Output::PresenceExpired(peer.state.node));
            }
        }
    }
}
