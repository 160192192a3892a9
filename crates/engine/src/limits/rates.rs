//! Rates: how many messages a connection publishes and topics it joins in a second. A publisher also waits while
//! members of a topic are slow.
//!
//! A connection above its rate is not rejected. Its socket is not read for a while, which slows its sender down. A
//! request that can't wait is rejected.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use minicbor::{Decode, Encode};
use protocol::Delivery;

use crate::core::Core;
use crate::core::metrics::Limited;
use crate::delivery::backpressure::{SCAN_ITEMS, SCAN_US, ShardBacklog};
use crate::delivery::outbox::Capacity;
use crate::limits::quota::Quota;

/// The table of connections that have made requests lately is not scanned for idle ones while it has no more than this.
const RECENT_SCAN_MIN: usize = 64;

/// The longest time that one publish waits for a topic's members. Slow members slow publishers down, and can't stop
/// them.
const BEHIND_US_MAX: u64 = 250_000;

/// The longest time that a connection waits for the keys of its token's issuer before it is checked again.
const KEYS_US_MAX: u64 = 10_000_000;

/// The rejections of a connection in a second for limits of its users and its address. With more, its socket is not
/// read for a while: a rejection costs nearly what a command costs.
const REFUSALS_PER_SECOND: u32 = 100;

/// A connection that waited for its rate goes on when it is so far below the rate, so that it has more than one message
/// at a time.
const SLACK_US: u64 = 50_000;

/// The part of an outbox's limit that may wait for a topic's members before publishers to the topic wait.
const WAY_PART: u64 = 4;

/// Whether the members of a topic keep up, over all shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pressure {
    /// They keep up.
    None,
    /// Publishers wait for them.
    Wait,
    /// Requests that can't wait are rejected.
    Refuse,
}

/// The recent requests of a connection.
#[derive(Default)]
struct Recent {
    published: Rate,
    joined: Rate,
    /// Rejections for limits of its users and its address.
    refused: Rate,
    /// The topic whose members it waits for, and until when at most.
    behind: Option<(u64, u64)>,
    /// The version of the keys that it has waited for since, and until when at most.
    keys: Option<(u64, u64)>,
}

/// The export to another engine: when the connection is at its rates again, in nanoseconds of the node's clock.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct RatesRecord {
    #[n(0)]
    published: u64,
    #[n(1)]
    joined: u64,
}

/// The rates of all connections, and the connections that wait.
#[derive(Default)]
pub(crate) struct Rates {
    /// The recent requests of connections, by slot.
    recent: HashMap<u32, Recent>,
    /// The quotas of users and addresses.
    pub quota: Quota,
    /// Connections that wait.
    waiters: Vec<u32>,
    /// When it was last checked whether they may go on, in microseconds of the node's clock.
    waiters_seen_us: u64,
}

/// A rate, with at most a second's worth at once: when that is used up, in nanoseconds of the node's clock.
#[derive(Clone, Copy, Default)]
struct Rate(u64);

impl Rate {
    fn take(&mut self, per_second: u32, now_us: u64) {
        if per_second > 0 {
            self.0 = self.0.max(now_us * 1_000) + 1_000_000_000 / u64::from(per_second);
        }
    }

    fn is_exceeded(self, now_us: u64) -> bool {
        self.0 > (now_us + 1_000_000) * 1_000
    }

    /// Returns true while a connection that was above the rate is not far enough below it to go on.
    fn must_wait(self, now_us: u64) -> bool {
        self.is_exceeded(now_us.saturating_sub(SLACK_US))
    }

    fn is_idle(self, now_us: u64) -> bool {
        self.0 <= now_us * 1_000
    }
}

impl Rates {
    /// Returns the recent requests of a connection. Nearly all connections are idle again soon: they are removed before
    /// the table grows, so that many new connections need no large table.
    fn recent_of(&mut self, core: &mut Core, slot: u32) -> &mut Recent {
        let before = self.recent.len();
        if before >= RECENT_SCAN_MIN && before == self.recent.capacity() {
            self.forget_idle(core);
            if self.recent.len() > before / 2 {
                self.recent.reserve(before);
            }
        }
        self.recent.entry(slot).or_default()
    }

    /// Returns the limit that rejects a publish that can't wait, if any.
    pub(crate) fn publish_refusal(
        &mut self,
        core: &mut Core,
        slot: u32,
        topic: &str,
    ) -> Option<&'static str> {
        let now_us = core.now_us;
        if self.recent.get(&slot).is_some_and(|recent| recent.published.is_exceeded(now_us)) {
            core.metrics.limited[Limited::Publishes as usize].add(1);
            return Some(
                "too many messages in a second (limits.publishes_per_second_max): send fewer, or try again in a moment",
            );
        }
        if core.pressure(core.broker.hash(topic)) < Pressure::Refuse {
            return None;
        }
        core.metrics.limited[Limited::Behind as usize].add(1);
        Some("the members of the topic receive messages too slowly: try again in a moment")
    }

    /// Counts a publish. The connection waits if it is above its rate.
    pub(crate) fn has_published(&mut self, core: &mut Core, slot: u32, topic: &str) {
        let (hash, now_us) = (core.broker.hash(topic), core.now_us);
        if !core.is_open(slot) {
            return;
        }
        let behind = core.pressure(hash) > Pressure::None;
        let per_second = core.settings.publishes_per_second_max;
        let recent = self.recent_of(core, slot);
        recent.published.take(per_second, now_us);
        if behind {
            let waits = self.wait(core, slot, Limited::Behind);
            self.recent_of(core, slot).behind = waits.then_some((hash, now_us + BEHIND_US_MAX));
        } else if recent.published.is_exceeded(now_us) {
            self.wait(core, slot, Limited::Publishes);
        }
    }

    /// Returns the limit that rejects a join of a connection whose requests can't wait, if any.
    pub(crate) fn join_refusal(&mut self, core: &mut Core, slot: u32) -> Option<&'static str> {
        let now_us = core.now_us;
        let is_exceeded =
            self.recent.get(&slot).is_some_and(|recent| recent.joined.is_exceeded(now_us));
        if is_exceeded {
            core.metrics.limited[Limited::Joins as usize].add(1);
        }
        is_exceeded.then_some(
            "too many joins in a second (limits.joins_per_second_max): try again in a moment",
        )
    }

    /// Counts a join, or a request for a session. The connection waits if it is above its rate.
    pub(crate) fn has_joined(&mut self, core: &mut Core, slot: u32) {
        let now_us = core.now_us;
        if !core.is_open(slot) {
            return;
        }
        let per_second = core.settings.joins_per_second_max;
        let recent = self.recent_of(core, slot);
        recent.joined.take(per_second, now_us);
        if recent.joined.is_exceeded(now_us) {
            self.wait(core, slot, Limited::Joins);
        }
    }

    /// Counts a rejection for a limit of the users or the address of a connection. It waits if there were too many.
    pub(crate) fn has_refused(&mut self, core: &mut Core, slot: u32, why: Limited) {
        let now_us = core.now_us;
        if !core.is_open(slot) {
            return;
        }
        let recent = self.recent_of(core, slot);
        recent.refused.take(REFUSALS_PER_SECOND, now_us);
        if recent.refused.is_exceeded(now_us) {
            self.wait(core, slot, why);
        }
    }

    /// Makes a connection wait for the keys of a token's issuer, which have this version now.
    pub(crate) fn wait_for_keys(&mut self, core: &mut Core, slot: u32, version: u64) {
        let until_us = core.now_us + KEYS_US_MAX;
        self.recent_of(core, slot).keys = Some((version, until_us));
        if let Some(cold) = core.table.cold_or_new(slot)
            && !cold.waits
        {
            cold.waits = true;
            self.waiters.push(slot);
        }
    }

    /// Stops reading a connection until its time has come. Returns false if it has no socket of its own.
    pub(crate) fn wait(&mut self, core: &mut Core, slot: u32, why: Limited) -> bool {
        let Some(connection) = core.table.get_mut(slot) else {
            return false;
        };
        // A session has no socket of its own.
        if core.shared.protocols.delivery(connection.encoding) == Delivery::Gathered
            || connection.is_closing()
        {
            return false;
        }
        if let Some(cold) = core.table.cold_or_new(slot)
            && !cold.waits
        {
            cold.waits = true;
            self.waiters.push(slot);
            core.metrics.limited[why as usize].add(1);
        }
        true
    }

    /// Returns whether a connection must still wait.
    fn must_wait(&mut self, core: &mut Core, slot: u32) -> bool {
        let now_us = core.now_us;
        let is_exceeded = self.quota.bytes_exceeded(core, slot).is_some();
        let Some(recent) = self.recent.get(&slot) else {
            return is_exceeded;
        };
        let rates = [recent.published, recent.joined, recent.refused];
        let is_exceeded = is_exceeded || rates.iter().any(|rate| rate.must_wait(now_us));
        let behind = recent.behind.is_some_and(|(hash, until_us)| {
            now_us < until_us && core.pressure(hash) > Pressure::None
        });
        let version = || core.settings.session.auth.as_ref().map(|auth| auth.keys_version());
        let keys = recent.keys.is_some_and(|(awaited, until_us)| {
            now_us < until_us && version().is_some_and(|version| version == awaited)
        });
        if let Some(recent) = self.recent.get_mut(&slot) {
            recent.behind = recent.behind.filter(|_| behind);
            recent.keys = recent.keys.filter(|_| keys);
        }
        is_exceeded || behind || keys
    }

    /// Returns the connections that wait, when a check is due. The engine checks each of them.
    pub(crate) fn take_waiters(&mut self, core: &mut Core) -> Vec<u32> {
        if core.now_us < self.waiters_due_us() {
            return Vec::new();
        }
        self.waiters_seen_us = core.now_us;
        // A slot that another connection has got may be there twice.
        self.waiters.sort_unstable();
        self.waiters.dedup();
        std::mem::take(&mut self.waiters)
    }

    /// Returns true if a connection need not wait any longer. Otherwise it goes on waiting.
    pub(crate) fn has_waited(&mut self, core: &mut Core, slot: u32) -> bool {
        let must_wait = self.must_wait(core, slot);
        let now_s = core.now_wrapping_s();
        let Some(cold) = core.table.cold_mut(slot).filter(|cold| cold.waits) else {
            return false;
        };
        cold.waits = must_wait;
        if let Some(connection) = core.table.get_mut(slot) {
            // Its socket is not read meanwhile.
            connection.last_received_s = now_s;
        }
        if must_wait {
            self.waiters.push(slot);
        }
        !must_wait
    }

    /// Exports the recent requests of a connection. Whether it waits is in its cold state.
    pub(crate) fn export(&self, slot: u32) -> Option<RatesRecord> {
        // The topic whose members it waits for and the rejections are not exported: it goes on at once, and waits again
        // with its next command if it must.
        let Recent { published, joined, .. } = self.recent.get(&slot)?;
        Some(RatesRecord { published: published.0, joined: joined.0 })
    }

    /// Imports the recent requests of a connection, and whether it waits.
    pub(crate) fn import(
        &mut self,
        slot: u32,
        record: Option<RatesRecord>,
        waits: bool,
        now_us: u64,
    ) {
        if let Some(RatesRecord { published, joined }) = record {
            // No connection is ahead of its time by more than a second and one message.
            let rate = |until: u64| Rate(until.min((now_us + 3_000_000) * 1_000));
            let (published, joined) = (rate(published), rate(joined));
            self.recent.insert(slot, Recent { published, joined, ..Recent::default() });
        }
        if waits {
            self.waiters.push(slot);
        }
    }

    /// The connection has ended.
    pub(crate) fn forget(&mut self, slot: u32) {
        self.recent.remove(&slot);
    }

    /// When [`Rates::take_waiters`] returns connections, in microseconds of the node's clock.
    pub(crate) fn waiters_due_us(&self) -> u64 {
        match self.waiters.len() {
            0 => u64::MAX,
            waiters => self.waiters_seen_us + SCAN_US * (1 + waiters / SCAN_ITEMS) as u64,
        }
    }

    /// Removes idle connections. Called now and then.
    pub(crate) fn forget_idle(&mut self, core: &mut Core) {
        let now_us = core.now_us;
        self.recent.retain(|_, recent| {
            let rates = [recent.published, recent.joined, recent.refused];
            let idle = rates.iter().all(|rate| rate.is_idle(now_us));
            !(idle && recent.behind.is_none() && recent.keys.is_none())
        });
        // Gives memory back after many connections have ended.
        if self.recent.capacity() > 4 * self.recent.len().max(RECENT_SCAN_MIN) {
            self.recent.shrink_to(2 * self.recent.len());
        }
    }
}

impl Core {
    /// Returns whether the members of a topic keep up.
    pub(crate) fn pressure(&self, hash: u64) -> Pressure {
        let max = self.settings.outbox_bytes_max as u64;
        let of = |backlog: &ShardBacklog| {
            let bytes = backlog.counter(hash).load(Ordering::Relaxed);
            match backlog.capacity(hash) {
                Capacity::Enough if bytes <= max / WAY_PART => Pressure::None,
                Capacity::Enough | Capacity::Half if bytes <= max => Pressure::Wait,
                Capacity::Enough | Capacity::Half | Capacity::Burst | Capacity::None => {
                    Pressure::Refuse
                }
            }
        };
        self.engines.iter().map(|shard| of(&shard.inbox.backlog)).max().unwrap_or(Pressure::None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_lets_a_second_pass_at_once_and_then_its_share() {
        let (mut rate, mut passed) = (Rate::default(), 0);
        for ms in 5_000..7_000 {
            for _ in 0..10 {
                if !rate.is_exceeded(ms * 1_000) {
                    rate.take(100, ms * 1_000);
                    passed += 1;
                }
            }
        }
        assert!((295..=305).contains(&passed), "{passed}");
        assert!(!rate.is_idle(7_000_000) && rate.is_idle(9_000_000));
        (0..10_000).for_each(|_| rate.take(0, 9_000_000));
        assert!(rate.is_idle(9_000_000), "0 is no limit");
    }
}
