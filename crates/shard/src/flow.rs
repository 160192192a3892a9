//! How much a connection may ask of others: what it publishes and enters in a second, and that it
//! waits while a topic's members catch up with it.
//!
//! Who asks for more than its share is not refused but left unread for a while, so that its own
//! sender is held up; requests that can't be left waiting are answered with a refusal.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use wire::Message;

use crate::batch::{Outboxes, Room};
use crate::connection::Flag;
use crate::metrics::Limited;
use crate::shard::Shard;

/// What is on its way is counted by topic in so many places. Two topics in one place slow each
/// other's publishers for the time of a fan-out.
const PLACES: usize = 1024;

/// What a message on its way counts beside its payload, in bytes: few large ones hold up as much as
/// many small ones.
const MESSAGE_BYTES: u64 = 1 << 10;

/// So many connections may be in the table of those that have asked for something lately before it is
/// looked at who has been quiet.
const ASKERS: usize = 64;

/// Connections that wait, and members that must catch up, are looked at again after so long, and
/// later the more there are: as much again for each [`LOOKS`].
const LOOK_US: u64 = 1_000;
const LOOKS: usize = 256;

/// So long one publish waits at the most for a topic's members. Who reads slowly enough slows those
/// who publish; nobody stops them.
const BEHIND_US_MAX: u64 = 250_000;

/// So long in a row a member that is out of room has those refused who can't wait.
const FULL_US_MAX: u64 = 2_000_000;

/// A member that was short of room is remembered for so long: until then it has no new time.
const REMEMBERED_US: u64 = 10_000_000;

/// Who waited for its rate goes on when it is so far below it, for more than one message at a time.
const SLACK_US: u64 = 50_000;

/// The part of an outbox's limit that may be on its way to a topic's members before who publishes
/// more of it has to wait.
const WAY_PART: u64 = 4;

/// What is on its way to the members of topics in one shard, and whether they keep up. Written to by
/// the broker and the shard, read by whoever publishes.
pub(crate) struct Waiting {
    /// Bytes, by a topic's place.
    bytes: Box<[AtomicU64]>,
    /// There is something in `short`.
    any_short: AtomicBool,
    /// Topics of which a member that keeps pace is short of room, by hash: the least room.
    short: Mutex<HashMap<u64, Room>>,
}

impl Default for Waiting {
    fn default() -> Self {
        Waiting {
            bytes: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
            any_short: AtomicBool::new(false),
            short: Mutex::default(),
        }
    }
}

impl Waiting {
    fn place(&self, hash: u64) -> &AtomicU64 {
        &self.bytes[hash as usize % PLACES]
    }

    /// The least room that a member of the topic has.
    fn room(&self, hash: u64) -> Room {
        if !self.any_short.load(Ordering::Relaxed) {
            return Room::Enough;
        }
        let short = self.short.lock().unwrap_or_else(PoisonError::into_inner);
        short.get(&hash).copied().unwrap_or(Room::Enough)
    }

    fn set_room(&self, hash: u64, room: Room) {
        let mut short = self.short.lock().unwrap_or_else(PoisonError::into_inner);
        match room {
            Room::Enough => short.remove(&hash),
            room => short.insert(hash, room),
        };
        self.any_short.store(!short.is_empty(), Ordering::Relaxed);
    }

    /// The shard has ended: nobody is held up by what it had.
    pub fn end(&self) {
        self.bytes.iter().for_each(|bytes| bytes.store(0, Ordering::Relaxed));
        self.any_short.store(false, Ordering::Relaxed);
    }

    fn bytes(message: &Message) -> u64 {
        message.draft.data.bytes() as u64 + MESSAGE_BYTES
    }

    /// A message is on its way to its members.
    pub fn enter(&self, message: &Message) {
        self.place(message.topic_hash).fetch_add(Self::bytes(message), Ordering::Relaxed);
    }

    /// It has reached them all.
    pub fn leave(&self, message: &Message) {
        self.place(message.topic_hash).fetch_sub(Self::bytes(message), Ordering::Relaxed);
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

/// Members that keep pace and are short of room all the same, or were lately, by their topics'
/// hashes and their slots.
#[derive(Default)]
pub(crate) struct Short {
    topics: HashMap<u64, HashMap<u32, Since>>,
    /// How many there are, over all topics.
    members: usize,
    looked_us: u64,
}

/// When a member began to be short of room, and was so last.
#[derive(Clone, Copy)]
struct Since {
    began_us: u64,
    last_us: u64,
}

impl Since {
    /// What the member's room means for those who publish now.
    fn counts(self, room: Room, now_us: u64) -> Room {
        match room {
            Room::Full if now_us.saturating_sub(self.began_us) > FULL_US_MAX => Room::Half,
            room => room,
        }
    }
}

impl Short {
    /// These members of a topic are short of room.
    pub fn add(&mut self, waiting: &Waiting, hash: u64, members: &[(u32, Room)], now_us: u64) {
        let topic = self.topics.entry(hash).or_default();
        let before = waiting.room(hash);
        let mut least = before;
        for (slot, room) in members {
            let since = topic.entry(*slot).or_insert_with(|| {
                self.members += 1;
                Since { began_us: now_us, last_us: now_us }
            });
            since.last_us = now_us;
            least = least.max(since.counts(*room, now_us));
        }
        if least != before {
            waiting.set_room(hash, least);
        }
    }

    /// Looks who has room again, as `room` says of a slot.
    fn look(&mut self, waiting: &Waiting, now_us: u64, room: impl Fn(u32) -> Room) {
        let mut left = 0;
        self.topics.retain(|hash, members| {
            let mut least = Room::Enough;
            members.retain(|slot, since| {
                let room = room(*slot);
                if matches!(room, Room::Half | Room::Full) {
                    since.last_us = now_us;
                    least = least.max(since.counts(room, now_us));
                }
                now_us.saturating_sub(since.last_us) < REMEMBERED_US
            });
            left += members.len();
            if least != waiting.room(*hash) {
                waiting.set_room(*hash, least);
            }
            !members.is_empty()
        });
        self.members = left;
    }
}

/// What one connection has asked for lately.
#[derive(Default)]
pub(crate) struct Asked {
    published: Rate,
    joined: Rate,
    /// The topic whose members it waits for, and until when at the most.
    behind: Option<(u64, u64)>,
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

impl Shard {
    /// How the members of a topic are doing.
    pub(crate) fn pressure(&self, hash: u64) -> Pressure {
        let max = self.settings.outbox_bytes_max as u64;
        let of = |waiting: &Waiting| {
            let bytes = waiting.place(hash).load(Ordering::Relaxed);
            match waiting.room(hash) {
                Room::Enough if bytes <= max / WAY_PART => Pressure::None,
                Room::Enough | Room::Half if bytes <= max => Pressure::Wait,
                _ => Pressure::Refuse,
            }
        };
        self.shards.iter().map(|shard| of(&shard.inbox.waiting)).max().unwrap_or(Pressure::None)
    }

    /// What a connection has asked for lately. Nearly all have been quiet again since: before the
    /// table grows they make room, so that a crowd that comes takes none.
    fn asked(&mut self, slot: u32) -> &mut Asked {
        let held = self.asked.len();
        if held >= ASKERS && held == self.asked.capacity() {
            self.forget_askers();
            if self.asked.len() > held / 2 {
                self.asked.reserve(held);
            }
        }
        self.asked.entry(slot).or_default()
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
        let per_second = self.settings.publishes_per_second_max;
        let asked = self.asked(slot);
        asked.published.take(per_second, now_us);
        if behind {
            let waits = self.wait(slot, Limited::Behind);
            self.asked(slot).behind = waits.then_some((hash, now_us + BEHIND_US_MAX));
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
        let per_second = self.settings.joins_per_second_max;
        let asked = self.asked(slot);
        asked.joined.take(per_second, now_us);
        if asked.joined.is_over(now_us) {
            self.wait(slot, Limited::Joins);
        }
    }

    /// Nothing more is read from the connection until its time has come. False for one that can't be
    /// left unread.
    fn wait(&mut self, slot: u32, why: Limited) -> bool {
        let Some(connection) = self.table.get_mut(slot) else {
            return false;
        };
        // A session has no socket to leave unread.
        if connection.variant.is_polled() || connection.is(Flag::Closing) {
            return false;
        }
        let extra = connection.extra();
        if !extra.waits {
            extra.waits = true;
            self.waiters.push(slot);
            self.metrics.limited[why as usize].add(1);
        }
        true
    }

    /// Whether a connection has to wait still.
    fn must_wait(&mut self, slot: u32) -> bool {
        let now_us = self.now_us;
        let Some(asked) = self.asked.get(&slot) else {
            return false;
        };
        let over = asked.published.must_wait(now_us) || asked.joined.must_wait(now_us);
        let behind = asked.behind.is_some_and(|(hash, until_us)| {
            now_us < until_us && self.pressure(hash) > Pressure::None
        });
        if let Some(asked) = self.asked.get_mut(&slot).filter(|_| !behind) {
            asked.behind = None;
        }
        over || behind
    }

    /// Looks whether members have caught up, and goes on with connections that have waited for it.
    pub(crate) fn go_on_waiting(&mut self) {
        if self.now_us < self.waiting_due_us() {
            return;
        }
        self.short.looked_us = self.now_us;
        self.look_at_short();
        // A slot that was used anew may be there twice.
        self.waiters.sort_unstable();
        self.waiters.dedup();
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
        let room = |slot| table.get(slot).map_or(Room::Enough, |found| limits.room(found));
        self.short.look(&self.handle.inbox.waiting, *now_us, room);
    }

    /// How long this turn may wait for something that [`Shard::go_on_waiting`] looks at.
    pub(crate) fn waiting_due_us(&self) -> u64 {
        let looks = self.waiters.len() + self.short.members;
        match self.waiters.is_empty()
            && !self.handle.inbox.waiting.any_short.load(Ordering::Relaxed)
        {
            true if looks == 0 => u64::MAX,
            // Only remembered: nobody waits for them.
            true => self.short.looked_us + REMEMBERED_US / 10,
            false => self.short.looked_us + LOOK_US * (1 + looks / LOOKS) as u64,
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
        if self.asked.capacity() > 4 * self.asked.len().max(ASKERS) {
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

    #[test]
    fn a_member_without_room_concerns_its_topic_only_and_not_for_ever() {
        let (waiting, mut short) = (Waiting::default(), Short::default());
        let (topic, other) = (7, 7 + PLACES as u64);
        short.add(&waiting, topic, &[(1, Room::Full)], 1);
        assert_eq!((waiting.room(topic), waiting.room(other)), (Room::Full, Room::Enough));
        // It stays full, or is now and then for a moment: those who publish wait, and are not refused.
        for ms in 0..60_000 {
            let now_us = ms * 1_000;
            let room = if ms % 100 < 90 { Room::Full } else { Room::Enough };
            short.look(&waiting, now_us, |_| room);
            let refused = waiting.room(topic) == Room::Full;
            assert!(!refused || now_us <= FULL_US_MAX + 1, "{ms} ms");
        }
        // Long after it is forgotten, and so is what it did.
        short.look(&waiting, 100_000_000, |_| Room::Enough);
        assert_eq!((short.members, waiting.room(topic)), (0, Room::Enough));
        assert!(!waiting.any_short.load(Ordering::Relaxed));
        short.add(&waiting, topic, &[(1, Room::Full)], 100_000_001);
        assert_eq!(waiting.room(topic), Room::Full);
    }
}
