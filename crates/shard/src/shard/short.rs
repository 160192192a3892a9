//! Members that keep pace but are short of outbox capacity: publishers to their topics must slow down.

use std::collections::HashMap;

use super::Shard;
use engine::Capacity;
use engine::{FULL_US_MAX, SCAN_ITEMS, SCAN_US, SHORTAGE_US, ShardBacklog};

/// Members that keep pace but are short of capacity, or were lately, by their topics' hashes and their
/// slots.
#[derive(Default)]
pub(crate) struct Short {
    topics: HashMap<u64, HashMap<u32, Shortage>>,
    /// The number of these members, over all topics.
    members: usize,
    scanned_us: u64,
}

/// When a member's shortage began, and when the shard saw it last.
#[derive(Clone, Copy)]
struct Shortage {
    began_us: u64,
    last_us: u64,
}

impl Shortage {
    /// The capacity that publishers see now for a member with this capacity.
    fn counts(self, capacity: Capacity, now_us: u64) -> Capacity {
        match capacity {
            Capacity::Burst if now_us.saturating_sub(self.began_us) > FULL_US_MAX => Capacity::Half,
            Capacity::Enough | Capacity::Half | Capacity::Burst | Capacity::None => capacity,
        }
    }
}

impl Short {
    /// Adds members of a topic that are short of capacity.
    pub fn add(
        &mut self,
        backlog: &ShardBacklog,
        hash: u64,
        members: &[(u32, Capacity)],
        now_us: u64,
    ) {
        let topic = self.topics.entry(hash).or_default();
        let before = backlog.capacity(hash);
        let mut least = before;
        for (slot, capacity) in members {
            let shortage = topic.entry(*slot).or_insert_with(|| {
                self.members += 1;
                Shortage { began_us: now_us, last_us: now_us }
            });
            shortage.last_us = now_us;
            least = least.max(shortage.counts(*capacity, now_us));
        }
        if least != before {
            backlog.set_capacity(hash, least);
        }
    }

    /// Scans which members have capacity again; `capacity` gives the capacity of a slot.
    fn scan(&mut self, backlog: &ShardBacklog, now_us: u64, capacity: impl Fn(u32) -> Capacity) {
        let mut left = 0;
        self.topics.retain(|hash, members| {
            let mut least = Capacity::Enough;
            members.retain(|slot, shortage| {
                let capacity = capacity(*slot);
                if matches!(capacity, Capacity::Half | Capacity::Burst) {
                    shortage.last_us = now_us;
                    least = least.max(shortage.counts(capacity, now_us));
                }
                now_us.saturating_sub(shortage.last_us) < SHORTAGE_US
            });
            left += members.len();
            if least != backlog.capacity(*hash) {
                backlog.set_capacity(*hash, least);
            }
            !members.is_empty()
        });
        self.members = left;
    }
}

impl Shard {
    /// Scans which members have capacity again, when that is due.
    pub(crate) fn scan_short(&mut self) {
        let now_us = self.engine.now_us();
        if now_us < self.short_due_us() {
            return;
        }
        self.short.scanned_us = now_us;
        let Shard { engine, sockets, short, .. } = self;
        let capacity = |slot| match sockets.outbox(slot) {
            Some(outbox) if !engine.is_unlimited(slot) => {
                outbox.capacity(engine.settings(), now_us)
            }
            _ => Capacity::Enough,
        };
        short.scan(engine.handle().backlog(), now_us, capacity);
    }

    /// When the next scan is due.
    pub(crate) fn short_due_us(&self) -> u64 {
        let members = self.short.members;
        match self.engine.handle().backlog().any_short() {
            _ if members == 0 => u64::MAX,
            // No publisher waits for these members any more.
            false => self.short.scanned_us + SHORTAGE_US / 10,
            true => self.short.scanned_us + SCAN_US * (1 + members / SCAN_ITEMS) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_without_capacity_concerns_its_topic_only_and_not_for_ever() {
        let (backlog, mut short) = (ShardBacklog::default(), Short::default());
        let (topic, other) = (7, 8);
        short.add(&backlog, topic, &[(1, Capacity::Burst)], 1);
        assert_eq!(
            (backlog.capacity(topic), backlog.capacity(other)),
            (Capacity::Burst, Capacity::Enough)
        );
        // The member stays full with short breaks: publishers wait, and get no error.
        for ms in 0..60_000 {
            let now_us = ms * 1_000;
            let capacity = if ms % 100 < 90 { Capacity::Burst } else { Capacity::Enough };
            short.scan(&backlog, now_us, |_| capacity);
            let is_full = backlog.capacity(topic) == Capacity::Burst;
            assert!(!is_full || now_us <= FULL_US_MAX + 1, "{ms} ms");
        }
        // Long after, the scan has forgotten the member and its shortage.
        short.scan(&backlog, 100_000_000, |_| Capacity::Enough);
        assert_eq!((short.members, backlog.capacity(topic)), (0, Capacity::Enough));
        assert!(!backlog.any_short());
        short.add(&backlog, topic, &[(1, Capacity::Burst)], 100_000_001);
        assert_eq!(backlog.capacity(topic), Capacity::Burst);
    }
}
