//! Input that is not whole: what connections hold of it, alone and together, and when a socket is
//! left unread.

use std::cmp::Reverse;

use wire::session::{self, Respond};
use wire::{Close, Variant};

use crate::batch::Outboxes;
use crate::connection::{Connection, Flag};
use crate::metrics::{Limited, Metrics};
use crate::shard::Shard;

/// Input that is read while a request waits for its answer, in bytes: so its client's end is seen.
/// More stays in the socket, which holds its sender up.
const AHEAD_BYTES: usize = 16 << 10;

/// When all together hold too much, so large a part of what the shard holds is let go at once.
const RELIEF_PART: u64 = 8;

/// True while nothing of what the connection sends can be served.
pub(crate) fn is_held(connection: &Connection) -> bool {
    let waits = || connection.extra.as_ref().is_some_and(|extra| extra.waits);
    match connection.variant {
        _ if connection.is(Flag::Closing) => false,
        Variant::Poll | Variant::Asking => true,
        // Whoever doesn't take the answers is asked to before the next is made.
        Variant::Http => connection.outbox().is_some() || waits(),
        _ => waits(),
    }
}

/// How much of its input may be read now, in bytes.
pub(crate) fn ahead(connection: &Connection, whole: usize) -> usize {
    let asks = matches!(connection.variant, Variant::Poll | Variant::Asking);
    match is_held(connection) {
        false => return whole,
        true if !asks => return 0,
        true => {}
    }
    let held = connection.extra.as_ref().map_or(0, |extra| extra.input.len());
    AHEAD_BYTES.saturating_sub(held).min(whole)
}

impl Shard {
    /// Leaves a socket unread, until [`Shard::resume`].
    pub(crate) fn pause(&mut self, slot: u32) {
        if let Some(connection) = self.table.get_mut(slot) {
            connection.extra().paused = true;
        }
    }

    pub(crate) fn is_paused(&self, slot: u32) -> bool {
        let extra = self.table.get(slot).and_then(|connection| connection.extra.as_ref());
        extra.is_some_and(|extra| extra.paused)
    }

    /// Goes on with a socket that was left unread, if its connection can be served now. Its events
    /// were edges: it is read in the next turn without one.
    pub(crate) fn resume(&mut self, slot: u32) {
        if let Some(connection) = self.table.get_mut(slot)
            && !is_held(connection)
            && let Some(extra) = &mut connection.extra
            && std::mem::take(&mut extra.paused)
        {
            self.unread.push(slot);
        }
    }

    /// Keeps input that can't be served yet.
    pub(crate) fn stash(&mut self, slot: u32, bytes: &[u8]) {
        if let Some(connection) = self.table.get_mut(slot) {
            connection.extra().input.extend_from_slice(bytes);
            self.count_input(slot);
        }
    }

    /// Counts what a connection holds of its input, as it is now.
    pub(crate) fn count_input(&mut self, slot: u32) {
        let extra = self.table.get_mut(slot).and_then(|connection| connection.extra.as_mut());
        let Some(extra) = extra else {
            return;
        };
        let decoder = extra.decoder.as_ref().map_or(0, |decoder| decoder.held_bytes());
        let bytes = (extra.input.capacity() + decoder) as u32;
        let before = std::mem::replace(&mut extra.counted, bytes);
        self.metrics.input_bytes.add(u64::from(bytes));
        self.metrics.input_bytes.sub(u64::from(before));
    }

    /// True when all shards together hold more than they may, and this one more than its share: so
    /// a shard asks the others only when it holds much itself.
    fn is_beyond(&self, max: usize, held: impl Fn(&Metrics) -> u64) -> bool {
        let max = max as u64;
        held(&self.metrics) > max / self.shards.len().max(1) as u64
            && self.shards.iter().map(|shard| held(&shard.metrics)).sum::<u64>() > max
    }

    /// Lets go of half-read input when all connections together hold too much: those that hold most
    /// are refused.
    pub(crate) fn relieve_input(&mut self) {
        let held = |metrics: &Metrics| metrics.input_bytes.get();
        if !self.is_beyond(self.settings.input_bytes_max, held) {
            return;
        }
        let counted = |slot| Some(self.table.get(slot)?.extra.as_ref()?.counted);
        let holders = (0..self.table.end()).filter_map(|slot| Some((counted(slot)?, slot)));
        let mut holders: Vec<(u32, u32)> = holders.filter(|(bytes, _)| *bytes > 0).collect();
        holders.sort_unstable_by_key(|holder| Reverse(*holder));
        let enough = held(&self.metrics) - held(&self.metrics) / RELIEF_PART;
        for (_, slot) in holders {
            if held(&self.metrics) <= enough {
                return;
            }
            // Who waits for the disk holds little, and is answered soon.
            if !self.is_publishing(slot) {
                self.refuse_input(slot);
            }
        }
    }

    /// What a connection has sent so far is let go, and it is told to come back.
    fn refuse_input(&mut self, slot: u32) {
        let Some(connection) = self.table.get(slot) else {
            return;
        };
        self.metrics.limited[Limited::Input as usize].add(1);
        let mut out = Vec::new();
        if connection.variant == Variant::Http {
            let message = "the server holds as much unfinished input as it may: try later";
            let refused = wire::http::refused(503, "overloaded", message);
            let input = connection.extra.as_ref().map_or(&[][..], |extra| &extra.input);
            if session::asks_longpoll(input) {
                let respond = Respond { cors: session::ANY_ORIGIN.into(), keep_alive: false };
                let post = wire::http::Method::Post;
                session::longpoll_refusal(&refused, post, &respond, &mut out);
            } else {
                session::refuse(&refused, session::ANY_ORIGIN, false, false, &mut out);
            }
            self.count_answer(&out);
        } else {
            out = self.goodbye(slot, Close::Overloaded);
        }
        self.close(slot, Close::Overloaded, &out);
    }

    /// Closes slow consumers when what waits for all of them together is too much: first who has
    /// stopped reading, then those for whom most waits.
    pub(crate) fn relieve_outboxes(&mut self) {
        let held = |metrics: &Metrics| metrics.outbox_held.get();
        if !self.is_beyond(self.settings.outboxes_bytes_max, held) {
            return;
        }
        let (settings, metrics, now_us) = (&self.settings, &self.metrics, self.now_us);
        let limits = Outboxes { settings, metrics, now_us };
        let outbox = |slot| self.table.get(slot)?.outbox();
        let holders = (0..self.table.end()).filter_map(|slot| Some((outbox(slot)?, slot)));
        let mut holders: Vec<(bool, Reverse<usize>, u32)> = holders
            .filter(|(outbox, _)| !outbox.is_empty())
            .map(|(outbox, slot)| (limits.keeps_pace(outbox), Reverse(outbox.bytes()), slot))
            .collect();
        holders.sort_unstable();
        let enough = held(metrics) - held(metrics) / RELIEF_PART;
        for (.., slot) in holders {
            if held(&self.metrics) <= enough {
                return;
            }
            self.metrics.limited[Limited::Outboxes as usize].add(1);
            match self.table.get(slot) {
                // It was about to end with what waits for it.
                Some(found) if found.is(Flag::Closing) => self.end(slot, Close::SlowConsumer),
                _ => self.close(slot, Close::SlowConsumer, &[]),
            }
        }
    }
}
