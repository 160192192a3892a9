//! The table read the other way: for each topic the numbers of its subscribers.

use std::collections::HashMap;

use tables::PageTable;

use crate::list::{Long, Short};
use crate::names::allocated;
use crate::row;

/// The subscribers of each topic, by numbers of topics and users. A topic without any has no entry.
#[derive(Default)]
pub(crate) struct Followers {
    /// Most topics have few: one piece each.
    short: PageTable<Short>,
    long: HashMap<u32, Long>,
    /// Topics and users of whom the lists don't know yet, as [`pair`]s.
    waiting: Vec<u64>,
    /// What the lists' allocations take.
    bytes: usize,
}

/// Pairs that wait at most: 16 MiB. The more wait, the seldomer each list is changed.
const WAITING_PAIRS_MAX: usize = if cfg!(test) { 100 } else { 2 << 20 };

/// A topic and a user in one number, which is quicker to sort.
fn pair(topic: u32, user: u32) -> u64 {
    u64::from(topic) << 32 | u64::from(user)
}

impl Followers {
    /// Whether the lists know of all.
    pub fn is_settled(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Has the lists know of all.
    pub fn settle(&mut self) {
        self.add_waiting();
        self.waiting = Vec::new();
    }

    fn add_waiting(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.sort_unstable();
        let mut users = Vec::new();
        for pairs in waiting.chunk_by(|one, other| one >> 32 == other >> 32) {
            users.clear();
            // The lower half.
            users.extend(pairs.iter().map(|pair| *pair as u32));
            if let [first, ..] = pairs {
                self.add((first >> 32) as u32, &users);
            }
        }
        waiting.clear();
        self.waiting = waiting;
    }

    /// A user has other topics than before. Both rows are valid. The lists learn later what came, with many
    /// others; until then nobody gets the user's number.
    pub fn change(&mut self, user: u32, before: &[u8], now: &[u8]) {
        let (mut before, mut now) = (row::unpack(before).peekable(), row::unpack(now).peekable());
        loop {
            match (before.peek().copied(), now.peek().copied()) {
                (None, None) => break,
                (Some(old), Some(new)) if old == new => {
                    before.next();
                    now.next();
                }
                (Some(old), new) if new.is_none_or(|new| old < new) => {
                    self.remove(old, user);
                    before.next();
                }
                (_, Some(new)) => {
                    self.waiting.push(pair(new, user));
                    now.next();
                }
                (Some(_), None) => break,
            }
        }
        if self.waiting.len() >= WAITING_PAIRS_MAX {
            self.add_waiting();
        }
    }

    /// How many a topic has.
    pub fn count(&self, topic: u32) -> u64 {
        match self.short.get(topic) {
            Some(short) => short.count(),
            None => self.long.get(&topic).map_or(0, Long::count),
        }
    }

    /// A topic's subscribers from this number on, in order; at most so many.
    pub fn from(&self, topic: u32, number: u32, max: usize) -> Vec<u32> {
        match (self.short.get(topic), self.long.get(&topic)) {
            (Some(short), _) => short.numbers().filter(|it| *it >= number).take(max).collect(),
            (None, Some(long)) => long.from(number).take(max).collect(),
            (None, None) => Vec::new(),
        }
    }

    /// Users have subscribed to a topic. Their numbers are sorted, and none has it yet.
    fn add(&mut self, topic: u32, users: &[u32]) {
        if let Some(short) = self.short.get_mut(topic) {
            self.bytes -= short.memory_bytes();
            match (short.last(), users) {
                (Some(last), [first, ..]) if last >= *first => {
                    users.iter().for_each(|user| short.insert(*user));
                }
                _ => short.append(users),
            }
            self.bytes += short.memory_bytes();
            if short.is_long() {
                self.lengthen(topic);
            }
        } else if let Some(long) = self.long.get_mut(&topic) {
            self.bytes -= long.memory_bytes();
            match (long.last(), users) {
                (Some(last), [first, ..]) if last >= *first => {
                    users.iter().for_each(|user| _ = long.insert(*user));
                }
                _ => long.append(users),
            }
            self.bytes += long.memory_bytes();
        } else {
            let short = Short::new(users);
            self.bytes += short.memory_bytes();
            let is_long = short.is_long();
            self.short.insert(topic, short);
            if is_long {
                self.lengthen(topic);
            }
        }
    }

    fn lengthen(&mut self, topic: u32) {
        let Some(short) = self.short.remove(topic) else { return };
        let long = Long::new(&short.numbers().collect::<Vec<_>>());
        self.bytes = self.bytes - short.memory_bytes() + long.memory_bytes();
        self.long.insert(topic, long);
    }

    /// A user has left a topic.
    fn remove(&mut self, topic: u32, user: u32) {
        if let Some(short) = self.short.get_mut(topic) {
            self.bytes -= short.memory_bytes();
            short.remove(user);
            self.bytes += short.memory_bytes();
            if short.last().is_none() {
                self.short.remove(topic);
            }
        } else if let Some(long) = self.long.get_mut(&topic) {
            self.bytes -= long.memory_bytes();
            long.remove(user);
            if let Some(short) = long.as_short() {
                self.long.remove(&topic);
                self.bytes += short.memory_bytes();
                self.short.insert(topic, short);
            } else {
                self.bytes += long.memory_bytes();
            }
        }
    }

    /// Frees what was held for more topics.
    pub fn shrink(&mut self) {
        self.short.shrink();
        if self.long.len() < self.long.capacity() / 8 {
            self.long.shrink_to_fit();
        }
    }

    /// The memory of the table in bytes.
    pub fn memory_bytes(&self) -> usize {
        let waiting = allocated(self.waiting.capacity() * size_of::<u64>());
        // A byte more for each place, and an eighth of them free, as hash tables have it.
        let long = self.long.capacity() * (size_of::<(u32, Long)>() + 1) * 8 / 7;
        self.bytes + self.short.bytes() + long + waiting
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn lists_equal_sets_and_leave_nothing_behind(
            topics in 1..4_u32,
            steps in prop::collection::vec((0..4_u32, 0..60_000_u32, 0..8_u8), 0..3_000),
        ) {
            let mut followers = Followers::default();
            let empty = followers.memory_bytes();
            let mut model: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
            for (topic, user, kind) in steps {
                // Far apart, so that tables have pages.
                let (topic, set) = (topic % topics * 5_000, model.entry(topic % topics * 5_000));
                let set = set.or_default();
                match kind {
                    0..5 => {
                        if set.insert(user) {
                            followers.change(user, &[], &row::pack(&[topic]));
                        }
                    }
                    5..7 => {
                        followers.settle();
                        let user = set.range(user..).next().copied().unwrap_or(user);
                        followers.change(user, &row::pack(&[topic]), &[]);
                        set.remove(&user);
                    }
                    _ => {
                        let last = set.last().copied().unwrap_or(0);
                        let more: Vec<u32> = (1..40).map(|n| last + n * n).collect();
                        followers.settle();
                        followers.add(topic, &more);
                        set.extend(more);
                    }
                }
                let waiting = followers.waiting.iter().filter(|it| *it >> 32 == topic.into()).count();
                prop_assert_eq!(followers.count(topic), (set.len() - waiting) as u64);
            }
            followers.settle();
            for (topic, set) in &model {
                let all = followers.from(*topic, 0, usize::MAX);
                prop_assert!(all.iter().eq(set));
                let (from, max) = (30_000, 7);
                let some = followers.from(*topic, from, max);
                prop_assert!(some.iter().eq(set.range(from..).take(max)));
                prop_assert!(followers.short.get(*topic).is_none_or(|short| !short.is_long()));
            }
            let long: usize = followers.long.values().map(Long::memory_bytes).sum();
            let short = (0..20_000).filter_map(|topic| followers.short.get(topic));
            let short: usize = short.map(Short::memory_bytes).sum();
            prop_assert_eq!(followers.bytes, long + short);
            for (topic, set) in model {
                for user in set {
                    followers.remove(topic, user);
                }
            }
            followers.shrink();
            prop_assert_eq!((followers.bytes, followers.short.count(), followers.long.len()), (0, 0, 0));
            prop_assert!(followers.memory_bytes() < empty + 1_000);
        }
    }
}
