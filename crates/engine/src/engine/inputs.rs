//! All inputs of an engine that come from sockets: what the driver saw of a connection. [`Engine::poll_outputs`] says
//! what to do then. An input for a slot without a connection does nothing.

use std::net::IpAddr;

use model::{CloseReason, Name};
use protocol::Delivery;

use super::Engine;
use crate::connection::input::is_paused;
use crate::connection::{Flag, Phase};
use crate::core::Core;
use crate::trace::event::TraceKind;

impl Engine {
    /// Bytes have come. The engine may change them: it unmasks WebSocket frames in place.
    pub fn on_received(&mut self, slot: u32, bytes: &mut [u8]) {
        let now_s = self.core.now_wrapping_s();
        let Engine { core, rates, .. } = self;
        if let Some(limited) = rates.quota.took(core, slot, bytes.len()) {
            rates.wait(core, slot, limited);
        }
        let core = &mut self.core;
        let is_paused = is_paused(&core.table, slot);
        let protocols = core.shared.protocols;
        let Some(connection) = core.table.get_mut(slot) else {
            return;
        };
        match connection.phase() {
            Phase::Closing | Phase::HalfClosed => return,
            // The time-out of a request begins with its first byte.
            Phase::Idle if !is_paused => {
                connection.enter(Phase::Request);
                connection.last_received_s = now_s;
            }
            // An MQTT client counts as alive by whole packets: see `mqtt_received`.
            Phase::Open if protocols.delivery(connection.encoding) == Delivery::Subscribed => {}
            Phase::Open if !is_paused => connection.last_received_s = now_s,
            Phase::Request | Phase::Idle | Phase::Waiting | Phase::Open => {}
        }
        if is_paused {
            return self.core.buffer_input(slot, bytes);
        }
        let buffered = match self.core.table.cold_mut(slot) {
            // None of it can be read before it is complete.
            Some(cold) if (cold.needs as usize) > cold.input.len() + bytes.len() => {
                return self.core.buffer_input(slot, bytes);
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

    /// The peer has shut its side.
    pub fn on_peer_closed(&mut self, slot: u32) {
        let Some(connection) = self.core.table.get(slot) else {
            return;
        };
        // Half-closed peers (`printf … | nc`) still want their pending replies.
        let (backlogged, closing) = (connection.is_backlogged(), connection.is_closing());
        let between = matches!(connection.phase(), Phase::Request | Phase::Idle);
        if backlogged && between {
            return self.close(slot, CloseReason::ByClient, &[]);
        }
        if !(backlogged && closing) {
            self.end(slot, CloseReason::ByClient);
        }
    }

    /// The peer has shut its side while the driver leaves the socket unread. The driver reads the rest, and the end,
    /// later. A request that waits for its reply ends now: its reader is gone.
    pub fn on_hung_up(&mut self, slot: u32) {
        let found = self.core.table.get(slot);
        let waits = found.is_some_and(|connection| connection.phase() == Phase::Waiting);
        if waits {
            self.end(slot, CloseReason::ByClient);
        }
    }

    /// The driver replies to [`Output::Address`](crate::Output::Address): the address of the peer whose request opens
    /// a Phoenix session.
    pub fn on_address(&mut self, slot: u32, address: Option<IpAddr>) {
        let known = self.core.peers.address(slot);
        let address = known.or(address);
        self.rates.quota.locate(&self.core, slot, address);
        self.longpoll_address(slot, address);
        self.resume_inputs();
    }

    /// The connection's certificate names a user. Called before anything of the connection is received.
    pub fn on_certificate(&mut self, slot: u32, user: Name) {
        if self.core.table.get(slot).is_some() {
            self.core.peers.set_certificate_user(slot, user);
        }
    }

    /// The driver has bytes for the connection that its peer doesn't take.
    pub fn on_blocked(&mut self, slot: u32) {
        self.core.set(slot, Flag::Blocked, true);
        self.core.trace(slot, || TraceKind::Blocked);
    }

    /// Some of those bytes have left.
    pub fn on_written(&mut self, slot: u32) {
        let now_s = self.core.now_wrapping_s();
        let Core { table, shared, .. } = &mut self.core;
        if let Some(connection) = table.get_mut(slot)
            && shared.protocols.delivery(connection.encoding) == Delivery::Nothing
        {
            // A client that reads counts as alive while a reply is long.
            connection.last_received_s = now_s;
        }
    }

    /// All bytes have left: the connection gets what has waited for that.
    pub fn on_drained(&mut self, slot: u32) {
        if self.core.traces.has(slot) && self.core.is(slot, Flag::Blocked) {
            self.core.trace(slot, || TraceKind::Drained);
        }
        self.core.set(slot, Flag::Blocked, false);
        self.core.set(slot, Flag::Awaiting, false);
        self.core.table.trim(slot);
        if self.core.is_open(slot) {
            self.serve_conflated(slot);
            self.core.flush_due_lists(slot);
            self.recover(|recovery, core| recovery.pull_more(core, slot));
            self.mqtt_serve(slot);
            self.read_next_page(slot);
            self.resume_input(slot);
        }
    }

    /// The server's side is shut, after [`Output::Close`](crate::Output::Close); the peer's is not yet.
    pub fn on_half_closed(&mut self, slot: u32) {
        self.core.enter(slot, Phase::HalfClosed);
    }

    /// All bytes have left after [`Output::Close`](crate::Output::Close), and the peer has closed too or the driver
    /// does not wait for it. It counts with the reason for which the close began, and as [`CloseReason::Internal`] if
    /// there is none.
    pub fn on_ended(&mut self, slot: u32) {
        self.end(slot, CloseReason::Internal);
    }

    /// More bytes wait for the connection than its limits allow: it is a slow consumer.
    pub fn on_slow(&mut self, slot: u32) {
        self.close(slot, CloseReason::SlowConsumer, &[]);
    }

    /// The socket has failed.
    pub fn on_lost(&mut self, slot: u32) {
        self.end(slot, CloseReason::Lost);
    }

    /// The kernel can't watch the connection.
    pub fn on_unwatched(&mut self, slot: u32) {
        self.end(slot, CloseReason::Overloaded);
    }
}
