//! Incomplete input: how much of it connections buffer, and when a socket is not read.

use std::cmp::Reverse;

use model::{CloseReason, ErrorCode};
use protocol::http;

use crate::connection::{Phase, Table};
use crate::core::Core;
use crate::core::count::count;
use crate::core::metrics::{Limited, Metrics};
use crate::core::output::Output;
use crate::engine::Engine;

/// The limit on input that is read while a request waits for its reply, in bytes. It is read to see the client's end.
/// More input stays in the socket, which slows the sender down.
const AHEAD_BYTES: usize = 16 << 10;

/// The part of its buffered input that a shard frees at once when all shards together have reached the limit.
const RELIEF_PART: u64 = 8;

/// Returns true while no request of the connection can be processed.
pub(crate) fn is_paused(table: &Table, slot: u32) -> bool {
    let Some(connection) = table.get(slot) else {
        return false;
    };
    let waits = || table.cold(slot).is_some_and(|cold| cold.waits);
    match connection.phase() {
        Phase::Closing | Phase::HalfClosed => false,
        Phase::Waiting => true,
        // While replies are not sent, no further requests are processed.
        Phase::Request | Phase::Idle => connection.is_backlogged() || waits(),
        Phase::Open => waits(),
    }
}

impl Engine {
    /// Frees incomplete input when all connections together have reached the limit. Requests with the most input are
    /// rejected.
    pub fn relieve_input(&mut self) {
        let used = |metrics: &Metrics| metrics.input_bytes.get();
        if !self.core.is_beyond(self.core.settings.input_bytes_max, used) {
            return;
        }
        let counted = |slot| Some(self.core.table.cold(slot)?.counted);
        let holders = (0..self.core.table.end()).filter_map(|slot| Some((counted(slot)?, slot)));
        let mut holders: Vec<(u32, u32)> = holders.filter(|(bytes, _)| *bytes > 0).collect();
        holders.sort_unstable_by_key(|holder| Reverse(*holder));
        let enough = used(&self.core.metrics) - used(&self.core.metrics) / RELIEF_PART;
        for (_, slot) in holders {
            if used(&self.core.metrics) <= enough {
                return;
            }
            // Such a request has little input.
            if !self.core.has_reply_soon(slot) {
                self.refuse_input(slot);
            }
        }
    }

    /// Drops the input of a connection, and rejects its request: the client should retry later.
    fn refuse_input(&mut self, slot: u32) {
        let Some(connection) = self.core.table.get(slot) else {
            return;
        };
        self.core.metrics.limited[Limited::Input as usize].add(1);
        let mut out = Vec::new();
        let between = matches!(connection.phase(), Phase::Request | Phase::Idle);
        if between && self.core.speaks_first(slot) {
            let message = "the server's limit on unfinished input is reached \
                           (limits.input_bytes_max): try again later";
            let refused = http::Rejection::new(ErrorCode::Overloaded, message);
            let input = self.core.table.cold(slot).map_or(&[][..], |cold| &cold.input);
            let protocols = self.core.shared.protocols;
            http::reject_unread(protocols, input, &refused, http::Method::Post, &mut out);
            self.core.count_reply(&out);
        } else {
            out = self
                .recover(|recovery, core| recovery.goodbye(core, slot, CloseReason::Overloaded));
        }
        self.close(slot, CloseReason::Overloaded, &out);
    }
}

impl Core {
    /// Returns whether buffered input of the connection may be processed without more bytes.
    pub(crate) fn has_gathered(&self, slot: u32) -> bool {
        let decoder = self.table.cold(slot).and_then(|cold| cold.decoder.as_ref());
        decoder.is_some_and(|decoder| decoder.has_gathered())
    }

    /// Stops reading a socket, until [`Core::resume`].
    pub fn pause(&mut self, slot: u32) {
        if let Some(cold) = self.table.cold_or_new(slot) {
            cold.paused = true;
        }
    }

    /// Returns true while the driver does not read the socket.
    pub fn is_paused(&self, slot: u32) -> bool {
        self.table.cold(slot).is_some_and(|cold| cold.paused)
    }

    /// Reads a paused socket again, if requests of its connection can be processed now. Events are edge-triggered: the
    /// socket is read in the next turn without an event.
    pub(crate) fn resume(&mut self, slot: u32) {
        if !is_paused(&self.table, slot)
            && let Some(cold) = self.table.cold_mut(slot)
            && std::mem::take(&mut cold.paused)
        {
            self.outputs.push(Output::Resume { slot });
        }
    }

    /// Buffers input that can't be processed yet.
    pub(crate) fn buffer_input(&mut self, slot: u32, bytes: &[u8]) {
        if let Some(cold) = self.table.cold_or_new(slot) {
            cold.input.extend_from_slice(bytes);
            self.count_input(slot);
        }
    }

    /// Counts the buffered input of a connection anew.
    pub(crate) fn count_input(&mut self, slot: u32) {
        let Some(cold) = self.table.cold_mut(slot) else {
            return;
        };
        let decoder = cold.decoder.as_ref().map_or(0, |decoder| decoder.buffered_bytes());
        let bytes = count(cold.input.capacity() + decoder);
        let before = std::mem::replace(&mut cold.counted, bytes);
        self.metrics.input_bytes.add(u64::from(bytes));
        self.metrics.input_bytes.sub(u64::from(before));
    }

    /// Returns true if all shards together have reached a limit and this one has more than its share. A shard adds up
    /// the others only if it has much itself.
    pub fn is_beyond(&self, max: usize, used: impl Fn(&Metrics) -> u64) -> bool {
        let max = max as u64;
        used(&self.metrics) > max / self.engines.len().max(1) as u64
            && self.engines.iter().map(|shard| used(&shard.metrics)).sum::<u64>() > max
    }

    /// Returns how many bytes of a connection's input may be read now, at most `whole`.
    pub fn input_capacity(&self, slot: u32, whole: usize) -> usize {
        if !is_paused(&self.table, slot) {
            return whole;
        }
        if self.table.get(slot).is_none_or(|connection| connection.phase() != Phase::Waiting) {
            return 0;
        }
        let input_bytes = self.table.cold(slot).map_or(0, |cold| cold.input.len());
        AHEAD_BYTES.saturating_sub(input_bytes).min(whole)
    }
}
