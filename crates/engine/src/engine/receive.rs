//! Bytes that come from peers, and the ends of their streams.

use model::CloseReason;
use protocol::Delivery;

use super::Engine;
use crate::connection::Phase;
use crate::connection::input::is_held;
use crate::connection::lifecycle::Connections;
use crate::engine::dispatch::OUT_BYTES;

impl Engine {
    /// The peer has shut its side.
    pub fn peer_closed(&mut self, slot: u32) {
        let Some(connection) = self.connections.core.table.get(slot) else {
            return;
        };
        // Half-closed peers (`printf … | nc`) still want the answers that are under way.
        let (backlogged, closing) = (connection.is_backlogged(), connection.is_closing());
        let between = matches!(connection.phase(), Phase::Request | Phase::Idle);
        if backlogged && between {
            return self.connections.close(slot, CloseReason::ByClient, &[]);
        }
        if !(backlogged && closing) {
            self.connections.end(slot, CloseReason::ByClient);
        }
    }

    /// The peer of a connection that is left unread has shut its side. Its input has its turn later,
    /// and so has the end behind it; but nobody waits for an answer whose reader is gone.
    pub fn hung_up(&mut self, slot: u32) {
        let found = self.connections.core.table.get(slot);
        let waits = found.is_some_and(|connection| connection.phase() == Phase::Waiting);
        if waits {
            self.connections.end(slot, CloseReason::ByClient);
        }
    }

    /// Bytes have come. They may be changed: a WebSocket's are unmasked in place.
    pub fn received(&mut self, slot: u32, bytes: &mut [u8]) {
        let now_s = self.connections.core.now_wrapping_s();
        let Connections { core, rates, .. } = &mut self.connections;
        if let Some(limited) = rates.quota.took(core, slot, bytes.len()) {
            rates.wait(core, slot, limited);
        }
        let core = &mut self.connections.core;
        let held = is_held(&core.table, slot);
        let protocols = core.shared.protocols;
        let Some(connection) = core.table.get_mut(slot) else {
            return;
        };
        match connection.phase() {
            Phase::Closing | Phase::HalfClosed => return,
            // A request has its own time, from its first byte on.
            Phase::Idle if !held => {
                connection.enter(Phase::Request);
                connection.heard_s = now_s;
            }
            // A client that must beat by itself is heard by whole packets.
            Phase::Open if protocols.delivery(connection.encoding) == Delivery::Subscribed => {}
            Phase::Open if !held => connection.heard_s = now_s,
            Phase::Request | Phase::Idle | Phase::Waiting | Phase::Open => {}
        }
        if held {
            return self.connections.core.buffer_input(slot, bytes);
        }
        let buffered = match self.connections.core.table.cold_mut(slot) {
            // Nothing of it means anything before it is whole.
            Some(cold) if (cold.needs as usize) > cold.input.len() + bytes.len() => {
                return self.connections.core.buffer_input(slot, bytes);
            }
            Some(cold) => std::mem::take(&mut cold.input),
            None => Vec::new(),
        };
        if buffered.is_empty() {
            self.process_input(slot, bytes);
        } else {
            let mut all = buffered;
            all.extend_from_slice(bytes);
            self.process_input(slot, &mut all);
        }
    }

    /// What held the connection up is over: what it asked for meanwhile has its turn.
    pub(crate) fn resume_input(&mut self, slot: u32) {
        if !self.connections.core.is_open(slot) || is_held(&self.connections.core.table, slot) {
            return;
        }
        if let Some(cold) = self.connections.core.table.cold_mut(slot) {
            let mut input = std::mem::take(&mut cold.input);
            self.process_input(slot, &mut input);
        }
    }

    /// Does what whole requests and frames say, sends the answers, and keeps what is not whole.
    pub(crate) fn process_input(&mut self, slot: u32, bytes: &mut [u8]) {
        let mut at = 0;
        let mut out = std::mem::take(&mut self.out);
        while at < bytes.len() || self.connections.core.has_gathered(slot) {
            let Some(connection) = self.connections.core.table.get(slot) else {
                break;
            };
            if connection.is_closing() {
                at = bytes.len();
                break;
            }
            if is_held(&self.connections.core.table, slot) {
                break;
            }
            // One request, frame or line at a time: after each it may have to wait.
            let (taken, again) = self.actions().read(slot, &mut bytes[at..], &mut out);
            self.connections.flush_if_large(slot, &mut out);
            at += taken;
            if taken == 0 && !again {
                break;
            }
        }
        if !out.is_empty() {
            self.connections.send(slot, &out, 0);
            out.clear();
        }
        out.shrink_to(OUT_BYTES);
        self.out = out;
        let now_s = self.connections.core.now_wrapping_s();
        if let Some(connection) = self.connections.core.table.get_mut(slot)
            && at < bytes.len()
            && !connection.is_closing()
        {
            if connection.phase() == Phase::Idle {
                // The next request has begun, and has its own time.
                connection.enter(Phase::Request);
                connection.heard_s = now_s;
            }
            if let Some(cold) = self.connections.core.table.cold_or_new(slot) {
                cold.input = bytes[at..].to_vec();
            }
        }
        // Most connections have taken everything, and hold nothing that needs any of this.
        if self.connections.core.table.cold(slot).is_some() {
            self.connections.core.count_input(slot);
            self.connections.core.resume(slot);
            self.connections.core.table.trim(slot);
        }
        self.resume_inputs();
    }
}
