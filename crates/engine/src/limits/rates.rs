//! How much a connection may ask of others: what it publishes and enters in a second, and that it
//! waits while a topic's members catch up with it.
//!
//! Who asks for more than its share is not refused but left unread for a while, so that its own
//! sender is held up; requests that can't be left waiting are answered with a refusal.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use minicbor::{Decode, Encode};
use protocol::Delivery;

use crate::core::Core;
use crate::core::metrics::Limited;
use crate::delivery::backpressure::{SCAN_ITEMS, SCAN_US, Waiting};
use crate::delivery::outbox::Capacity;
use crate::limits::quota::Quota;

/// So many connections may be in the table of those that have asked for something lately before it is
/// scanned for those who have been quiet.
const ASKERS: usize = 64;

/// So long one publish waits at the most for a topic's members. Who reads slowly enough slows those
/// who publish; nobody stops them.
const BEHIND_US_MAX: u64 = 250_000;

/// So long a connection waits for the keys of its token's issuer before it is looked at again.
const KEYS_US_MAX: u64 = 10_000_000;

/// A connection is refused so much a second for the limits of its users and its address; then it is left
/// unread for a while. A refusal costs nearly what a command costs.
const REFUSALS_PER_SECOND: u32 = 100;

/// Who waited for its rate goes on when it is so far below it, for more than one message at a time.
const SLACK_US: u64 = 50_000;

/// The part of an outbox's limit that may be on its way to a topic's members before who publishes
/// more of it has to wait.
const WAY_PART: u64 = 4;

/// How a topic's members are doing, over all shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pressure {
    /// They keep up.
    None,
    /// Who publishes has to wait for them.
    Wait,
    /// Who can't wait is refused.
    Refuse,
}

/// What one connection has asked for lately.
#[derive(Default)]
struct Recent {
    published: Rate,
    joined: Rate,
    /// What it was refused for the limits of its users and its address.
    refused: Rate,
    /// The topic whose members it waits for, and until when at the most.
    behind: Option<(u64, u64)>,
    /// It waits for keys until their version is another one than this, and until when at the most.
    keys: Option<(u64, u64)>,
}

/// The same on its way to another engine: when it is at its rates again, in nanoseconds of the node's
/// clock.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct RatesRecord {
    #[n(0)]
    published: u64,
    #[n(1)]
    joined: u64,
}

/// How much each connection asks of others, and which have to wait.
#[derive(Default)]
pub(crate) struct Rates {
    /// What connections have published and entered lately, by slot.
    recent: HashMap<u32, Recent>,
    /// What users and addresses may do.
    pub quota: Quota,
    /// Connections that have to wait.
    waiters: Vec<u32>,
    /// When it was last checked whether they may go on, in microseconds of the node's clock.
    waiters_seen_us: u64,
}

/// So many a second, and at most a second's worth at once: when that is used up, in nanoseconds of
/// the node's clock.
#[derive(Clone, Copy, Default)]
struct Rate(u64);

impl Rate {
    fn take(&mut self, per_second: u32, now_us: u64) {
        if per_second > 0 {
            self.0 = self.0.max(now_us * 1_000) + 1_000_000_000 / u64::from(per_second);
        }
    }

    fn is_over(self, now_us: u64) -> bool {
        self.0 > (now_us + 1_000_000) * 1_000
    }

    /// True while who was over it is not so far below it that going on is worth it.
    fn must_wait(self, now_us: u64) -> bool {
        self.is_over(now_us.saturating_sub(SLACK_US))
    }

    fn is_idle(self, now_us: u64) -> bool {
        self.0 <= now_us * 1_000
    }
}

impl Rates {
    /// What a connection has asked for lately. Nearly all have been quiet again since: before the
    /// table grows they make room, so that a crowd that comes takes none.
    fn recent_of(&mut self, core: &mut Core, slot: u32) -> &mut Recent {
        let before = self.recent.len();
        if before >= ASKERS && before == self.recent.capacity() {
            self.forget_idle(core);
            if self.recent.len() > before / 2 {
                self.recent.reserve(before);
            }
        }
        self.recent.entry(slot).or_default()
    }

    /// Why something that can't wait may not be published by a connection now, if so.
    pub(crate) fn publish_refusal(
        &mut self,
        core: &mut Core,
        slot: u32,
        topic: &str,
    ) -> Option<&'static str> {
        let now_us = core.now_us;
        if self.recent.get(&slot).is_some_and(|recent| recent.published.is_over(now_us)) {
            core.metrics.limited[Limited::Publishes as usize].add(1);
            return Some(
                "too many messages in a second (limits.publishes_per_second_max): send fewer, or try again in a moment",
            );
        }
        if core.pressure(core.broker.hash(topic)) < Pressure::Refuse {
            return None;
        }
        core.metrics.limited[Limited::Behind as usize].add(1);
        Some("the members of the topic are behind: try again in a moment")
    }

    /// A connection has published: it waits if that was too much.
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
        } else if recent.published.is_over(now_us) {
            self.wait(core, slot, Limited::Publishes);
        }
    }

    /// Why a connection whose requests can't wait may not enter a topic now, if so.
    pub(crate) fn join_refusal(&mut self, core: &mut Core, slot: u32) -> Option<&'static str> {
        let now_us = core.now_us;
        let over = self.recent.get(&slot).is_some_and(|recent| recent.joined.is_over(now_us));
        if over {
            core.metrics.limited[Limited::Joins as usize].add(1);
        }
        over.then_some(
            "too many joins in a second (limits.joins_per_second_max): try again in a moment",
        )
    }

    /// A connection has entered a topic, or asked for a session: it waits if that was too much.
    pub(crate) fn has_joined(&mut self, core: &mut Core, slot: u32) {
        let now_us = core.now_us;
        if !core.is_open(slot) {
            return;
        }
        let per_second = core.settings.joins_per_second_max;
        let recent = self.recent_of(core, slot);
        recent.joined.take(per_second, now_us);
        if recent.joined.is_over(now_us) {
            self.wait(core, slot, Limited::Joins);
        }
    }

    /// A connection was refused something for a limit of its users or its address: it waits if that was
    /// too often.
    pub(crate) fn has_refused(&mut self, core: &mut Core, slot: u32, why: Limited) {
        let now_us = core.now_us;
        if !core.is_open(slot) {
            return;
        }
        let recent = self.recent_of(core, slot);
        recent.refused.take(REFUSALS_PER_SECOND, now_us);
        if recent.refused.is_over(now_us) {
            self.wait(core, slot, why);
        }
    }

    /// The connection waits for the keys of a token's issuer, which are of this version so far.
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

    /// Nothing more is read from the connection until its time has come. False for one that can't be
    /// left unread.
    pub(crate) fn wait(&mut self, core: &mut Core, slot: u32, why: Limited) -> bool {
        let Some(connection) = core.table.get_mut(slot) else {
            return false;
        };
        // A session has no socket to leave unread.
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

    /// Whether a connection has to wait still.
    fn must_wait(&mut self, core: &mut Core, slot: u32) -> bool {
        let now_us = core.now_us;
        let over = self.quota.over_bytes(core, slot).is_some();
        let Some(recent) = self.recent.get(&slot) else {
            return over;
        };
        let rates = [recent.published, recent.joined, recent.refused];
        let over = over || rates.iter().any(|rate| rate.must_wait(now_us));
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
        over || behind || keys
    }

    /// The connections that wait, when they are to be checked again; the engine checks each of them.
    pub(crate) fn take_waiters(&mut self, core: &mut Core) -> Vec<u32> {
        if core.now_us < self.waiters_due_us() {
            return Vec::new();
        }
        self.waiters_seen_us = core.now_us;
        // A slot that was used anew may be there twice.
        self.waiters.sort_unstable();
        self.waiters.dedup();
        std::mem::take(&mut self.waiters)
    }

    /// True when a connection that waits need not do so any longer; else it goes on waiting.
    pub(crate) fn has_waited(&mut self, core: &mut Core, slot: u32) -> bool {
        let must_wait = self.must_wait(core, slot);
        let now_s = core.now_wrapping_s();
        let Some(cold) = core.table.cold_mut(slot).filter(|cold| cold.waits) else {
            return false;
        };
        cold.waits = must_wait;
        if let Some(connection) = core.table.get_mut(slot) {
            // What it says meanwhile is not heard.
            connection.last_received_s = now_s;
        }
        if must_wait {
            self.waiters.push(slot);
        }
        !must_wait
    }

    /// Writes out what a connection has asked for lately. Whether it waits is in its cold state.
    pub(crate) fn export(&self, slot: u32) -> Option<RatesRecord> {
        // For whose members it waits is not said, nor how often it was refused: it goes on at once, and
        // waits again with its next command if it has to.
        let Recent { published, joined, .. } = self.recent.get(&slot)?;
        Some(RatesRecord { published: published.0, joined: joined.0 })
    }

    /// Takes up what a connection has asked for lately, and whether it waits.
    pub(crate) fn import(
        &mut self,
        slot: u32,
        record: Option<RatesRecord>,
        waits: bool,
        now_us: u64,
    ) {
        if let Some(RatesRecord { published, joined }) = record {
            // Nobody is further ahead of its time than a second and one more message.
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

    /// When [`Rates::take_waiters`] gives some, in microseconds of the node's clock.
    pub(crate) fn waiters_due_us(&self) -> u64 {
        match self.waiters.len() {
            0 => u64::MAX,
            waiters => self.waiters_seen_us + SCAN_US * (1 + waiters / SCAN_ITEMS) as u64,
        }
    }

    /// Once in a while: who has been quiet begins anew.
    pub(crate) fn forget_idle(&mut self, core: &mut Core) {
        let now_us = core.now_us;
        self.recent.retain(|_, recent| {
            let rates = [recent.published, recent.joined, recent.refused];
            let idle = rates.iter().all(|rate| rate.is_idle(now_us));
            !(idle && recent.behind.is_none() && recent.keys.is_none())
        });
        // A crowd that came and went leaves no capacity behind.
        if self.recent.capacity() > 4 * self.recent.len().max(ASKERS) {
            self.recent.shrink_to(2 * self.recent.len());
        }
    }
}

impl Core {
    /// How the members of a topic are doing.
    pub(crate) fn pressure(&self, hash: u64) -> Pressure {
        let max = self.settings.outbox_bytes_max as u64;
        let of = |waiting: &Waiting| {
            let bytes = waiting.place(hash).load(Ordering::Relaxed);
            match waiting.capacity(hash) {
                Capacity::Enough if bytes <= max / WAY_PART => Pressure::None,
                Capacity::Enough | Capacity::Half if bytes <= max => Pressure::Wait,
                Capacity::Enough | Capacity::Half | Capacity::Full | Capacity::None => {
                    Pressure::Refuse
                }
            }
        };
        self.engines.iter().map(|shard| of(&shard.inbox.waiting)).max().unwrap_or(Pressure::None)
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
                if !rate.is_over(ms * 1_000) {
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
