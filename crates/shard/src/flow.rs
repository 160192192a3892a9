//! How much a connection may ask of others: what it publishes and enters in a second, and that it
//! waits while a topic's members catch up with it.
//!
//! Who asks for more than its share is not refused but left unread for a while, so that its own
//! sender is held up; requests that can't be left waiting are answered with a refusal.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use wire::Message;

use crate::batch::{Outboxes, Room};
use crate::connection::Flag;
use crate::metrics::Limited;
use crate::shard::Shard;

/// Topics are told apart by so many places of a table; two in one place slow each other's
/// publishers, and nothing else.
const PLACES: usize = 1024;

/// What a message on its way counts beside its payload, in bytes: few large ones hold up as much as
/// many small ones.
const MESSAGE_BYTES: u64 = 1 << 10;

/// A connection that waits, and members that must catch up, are looked at again after so long.
const LOOK_US: u64 = 1_000;

/// The part of an outbox's limit that may be on its way to a topic's members before who publishes
/// more of it has to wait.
const WAY_PART: u64 = 4;

/// What is on its way to the members of topics in one shard, and whether they keep up. Written to by
/// the broker and the shard, read by whoever publishes.
pub(crate) struct Waiting(Box<[Place]>);

#[derive(Default)]
struct Place {
    bytes: AtomicU64,
    /// The room of the member that has the least: 0 is enough; see [`Room`].
    short: AtomicU8,
}

impl Default for Waiting {
    fn default() -> Self {
        Waiting((0..PLACES).map(|_| Place::default()).collect())
    }
}

impl Waiting {
    fn place(&self, hash: u64) -> &Place {
        &self.0[hash as usize % PLACES]
    }

    fn bytes(message: &Message) -> u64 {
        message.draft.data.bytes() as u64 + MESSAGE_BYTES
    }

    /// A message is on its way to its members.
    pub fn enter(&self, message: &Message) {
        let place = self.place(message.topic_hash);
        place.bytes.fetch_add(Self::bytes(message), Ordering::Relaxed);
    }

    /// It has reached them all.
    pub fn leave(&self, message: &Message) {
        let place = self.place(message.topic_hash);
        place.bytes.fetch_sub(Self::bytes(message), Ordering::Relaxed);
    }
}

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

/// Members that keep pace and are short of room all the same, by the place of a topic.
#[derive(Default)]
pub(crate) struct Short {
    places: HashMap<usize, HashSet<u32>>,
    looked_us: u64,
}

impl Short {
    /// These members of a topic are short of room.
    pub fn add(&mut self, waiting: &Waiting, hash: u64, members: &[(u32, Room)]) {
        let slots = self.places.entry(hash as usize % PLACES).or_default();
        slots.extend(members.iter().map(|(slot, _)| *slot));
        let least = members.iter().map(|(_, room)| *room as u8).max().unwrap_or(0);
        waiting.place(hash).short.fetch_max(least, Ordering::Relaxed);
    }
}

/// What one connection has asked for lately.
#[derive(Default)]
pub(crate) struct Asked {
    published: Rate,
    joined: Rate,
    /// The topic whose members it waits for.
    behind: Option<u64>,
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

    fn is_idle(self, now_us: u64) -> bool {
        self.0 <= now_us * 1_000
    }
}

impl Shard {
    /// How the members of a topic are doing.
    pub(crate) fn pressure(&self, hash: u64) -> Pressure {
        let max = self.settings.outbox_bytes_max as u64;
        let of = |place: &Place| {
            let bytes = place.bytes.load(Ordering::Relaxed);
            match place.short.load(Ordering::Relaxed) {
                short if short >= Room::Full as u8 || bytes > max => Pressure::Refuse,
                0 if bytes <= max / WAY_PART => Pressure::None,
                _ => Pressure::Wait,
            }
        };
        let places = self.shards.iter().map(|shard| of(shard.inbox.waiting.place(hash)));
        places.max().unwrap_or(Pressure::None)
    }

    /// Why something that can't wait may not be published by a connection now, if so.
    pub(crate) fn publish_refusal(&mut self, slot: u32, topic: &str) -> Option<&'static str> {
        let now_us = self.now_us;
        if self.asked.get(&slot).is_some_and(|asked| asked.published.is_over(now_us)) {
            self.metrics.limited[Limited::Publishes as usize].add(1);
            return Some("too many messages in a second: send fewer, or try again in a moment");
        }
        if self.pressure(self.broker.hash(topic)) < Pressure::Refuse {
            return None;
        }
        self.metrics.limited[Limited::Behind as usize].add(1);
        Some("the members of the topic are behind: try again in a moment")
    }

    /// A connection has published: it waits if that was too much.
    pub(crate) fn has_published(&mut self, slot: u32, topic: &str) {
        let (hash, now_us) = (self.broker.hash(topic), self.now_us);
        if !self.is_open(slot) {
            return;
        }
        let behind = self.pressure(hash) > Pressure::None;
        let asked = self.asked.entry(slot).or_default();
        asked.published.take(self.settings.publishes_per_second_max, now_us);
        if behind {
            asked.behind = Some(hash);
            self.wait(slot, Limited::Behind);
        } else if asked.published.is_over(now_us) {
            self.wait(slot, Limited::Publishes);
        }
    }

    /// Why a connection whose requests can't wait may not enter a topic now, if so.
    pub(crate) fn join_refusal(&mut self, slot: u32) -> Option<&'static str> {
        let now_us = self.now_us;
        let over = self.asked.get(&slot).is_some_and(|asked| asked.joined.is_over(now_us));
        if over {
            self.metrics.limited[Limited::Joins as usize].add(1);
        }
        over.then_some("too many joins in a second: try again in a moment")
    }

    /// A connection has entered a topic, or asked for a session: it waits if that was too much.
    pub(crate) fn has_joined(&mut self, slot: u32) {
        let now_us = self.now_us;
        if !self.is_open(slot) {
            return;
        }
        let asked = self.asked.entry(slot).or_default();
        asked.joined.take(self.settings.joins_per_second_max, now_us);
        if asked.joined.is_over(now_us) {
            self.wait(slot, Limited::Joins);
        }
    }

    /// Nothing more is read from the connection until its time has come.
    fn wait(&mut self, slot: u32, why: Limited) {
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        // A session has no socket to leave unread.
        if connection.variant.is_polled() || connection.is(Flag::Closing) {
            return;
        }
        let extra = connection.extra();
        if !extra.waits {
            extra.waits = true;
            self.waiters.push(slot);
            self.metrics.limited[why as usize].add(1);
        }
    }

    /// Whether a connection has to wait still.
    fn must_wait(&mut self, slot: u32) -> bool {
        let now_us = self.now_us;
        let Some(asked) = self.asked.get(&slot) else {
            return false;
        };
        let over = asked.published.is_over(now_us) || asked.joined.is_over(now_us);
        let behind = asked.behind.is_some_and(|hash| self.pressure(hash) > Pressure::None);
        if let Some(asked) = self.asked.get_mut(&slot).filter(|_| !behind) {
            asked.behind = None;
        }
        over || behind
    }

    /// Looks whether members have caught up, and goes on with connections that have waited for it.
    pub(crate) fn go_on_waiting(&mut self) {
        if self.now_us < self.short.looked_us + LOOK_US {
            return;
        }
        self.short.looked_us = self.now_us;
        self.look_at_short();
        for slot in std::mem::take(&mut self.waiters) {
            let must_wait = self.must_wait(slot);
            let now_s = self.now_s() as u16;
            let Some(connection) = self.table.get_mut(slot) else {
                continue;
            };
            let Some(extra) = connection.extra.as_mut().filter(|extra| extra.waits) else {
                continue;
            };
            extra.waits = must_wait;
            // What it says meanwhile is not heard.
            connection.heard_s = now_s;
            if must_wait {
                self.waiters.push(slot);
            } else {
                self.go_on(slot);
            }
        }
    }

    fn look_at_short(&mut self) {
        let Shard { table, settings, metrics, now_us, .. } = self;
        let limits = Outboxes { settings, metrics, now_us: *now_us };
        let waiting = &self.handle.inbox.waiting;
        self.short.places.retain(|place, slots| {
            let mut least = Room::Enough;
            slots.retain(|slot| {
                let room = table.get(*slot).map_or(Room::Enough, |found| limits.room(found));
                let short = matches!(room, Room::Half | Room::Full);
                least = if short { least.max(room) } else { least };
                short
            });
            waiting.0[*place].short.store(least as u8, Ordering::Relaxed);
            !slots.is_empty()
        });
    }

    /// How long this turn may wait for something that [`Shard::go_on_waiting`] looks at.
    pub(crate) fn waiting_due_us(&self) -> u64 {
        match self.waiters.is_empty() && self.short.places.is_empty() {
            true => u64::MAX,
            false => self.short.looked_us + LOOK_US,
        }
    }

    /// Once in a while: who has been quiet begins anew.
    pub(crate) fn forget_askers(&mut self) {
        let now_us = self.now_us;
        self.asked.retain(|_, asked| {
            let idle = asked.published.is_idle(now_us) && asked.joined.is_idle(now_us);
            !(idle && asked.behind.is_none())
        });
        // A crowd that came and went leaves no room behind.
        if self.asked.capacity() > 4 * self.asked.len().max(64) {
            self.asked.shrink_to(2 * self.asked.len());
        }
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
