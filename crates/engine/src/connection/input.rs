//! Input that is not whole: what connections hold of it, alone and together, and when a socket is
//! left unread.

use std::cmp::Reverse;

use model::{CloseReason, ErrorCode};
use protocol::http;

use crate::connection::{Phase, Table};
use crate::core::Core;
use crate::core::count::count;
use crate::core::metrics::{Limited, Metrics};
use crate::core::output::Output;
use crate::engine::Engine;

/// Input that is read while a request waits for its answer, in bytes: so its client's end is seen.
/// More stays in the socket, which holds its sender up.
const AHEAD_BYTES: usize = 16 << 10;

/// When all together hold too much, so large a part of what the shard holds is let go at once.
const RELIEF_PART: u64 = 8;

/// True while no request of the connection can be served.
pub(crate) fn is_paused(table: &Table, slot: u32) -> bool {
    let Some(connection) = table.get(slot) else {
        return false;
    };
    let waits = || table.cold(slot).is_some_and(|cold| cold.waits);
    match connection.phase() {
        Phase::Closing | Phase::HalfClosed => false,
        Phase::Waiting => true,
        // A client that doesn't take the answers gets no further ones.
        Phase::Request | Phase::Idle => connection.is_backlogged() || waits(),
        Phase::Open => waits(),
    }
}

impl Engine {
    /// Lets go of half-read input when all connections together hold too much: those that hold most
    /// are refused.
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
            // Such a request holds little.
            if !self.core.has_reply_soon(slot) {
                self.refuse_input(slot);
            }
        }
    }

    /// What a connection has sent so far is let go, and it is told to come back.
    fn refuse_input(&mut self, slot: u32) {
        let Some(connection) = self.core.table.get(slot) else {
            return;
        };
        self.core.metrics.limited[Limited::Input as usize].add(1);
        let mut out = Vec::new();
        let between = matches!(connection.phase(), Phase::Request | Phase::Idle);
        if between && self.core.speaks_first(slot) {
            let message = "the server holds as much unfinished input as it may (limits.input_bytes_max): try later";
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
    /// Whether something has come of the connection that may be read without more bytes.
    pub(crate) fn has_gathered(&self, slot: u32) -> bool {
        let decoder = self.table.cold(slot).and_then(|cold| cold.decoder.as_ref());
        decoder.is_some_and(|decoder| decoder.has_gathered())
    }

    /// Leaves a socket unread, until [`Core::resume`].
    pub fn pause(&mut self, slot: u32) {
        if let Some(cold) = self.table.cold_or_new(slot) {
            cold.paused = true;
        }
    }

    /// True while the driver leaves the socket unread.
    pub fn is_paused(&self, slot: u32) -> bool {
        self.table.cold(slot).is_some_and(|cold| cold.paused)
    }

    /// Goes on with a socket that was left unread, if its connection can be served now. Its events
    /// were edges: it is read in the next turn without one.
    pub(crate) fn resume(&mut self, slot: u32) {
        if !is_paused(&self.table, slot)
            && let Some(cold) = self.table.cold_mut(slot)
            && std::mem::take(&mut cold.paused)
        {
            self.outputs.push(Output::Resume { slot });
        }
    }

    /// Keeps input that can't be served yet.
    pub(crate) fn buffer_input(&mut self, slot: u32, bytes: &[u8]) {
        if let Some(cold) = self.table.cold_or_new(slot) {
            cold.input.extend_from_slice(bytes);
            self.count_input(slot);
        }
    }

    /// Counts what a connection holds of its input, as it is now.
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

    /// True when all shards together hold more than they may, and this one more than its share: so
    /// a shard asks the others only when it holds much itself.
    pub fn is_beyond(&self, max: usize, used: impl Fn(&Metrics) -> u64) -> bool {
        let max = max as u64;
        used(&self.metrics) > max / self.engines.len().max(1) as u64
            && self.engines.iter().map(|shard| used(&shard.metrics)).sum::<u64>() > max
    }

    /// How much of a connection's input may be read now, in bytes, at most `whole`.
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
