//! The inverse of the table of users: for each topic the numbers of its subscribers.

use std::collections::HashMap;

use tables::PageTable;

use crate::list::{Long, Short};
use crate::names::allocated;
use crate::row;

/// The subscribers of each topic, by numbers of topics and users. A topic without subscribers has no entry.
#[derive(Default)]
pub(crate) struct Followers {
    /// The lists of one piece; most topics have few subscribers.
    short: PageTable<Short>,
    long: HashMap<u32, Long>,
    /// Topics and users that the lists do not contain yet, as [`pair`]s.
    waiting: Vec<u64>,
    /// The bytes of the lists' allocations.
    bytes: usize,
}

/// Pairs that wait, at most: 16 MiB. More waiting pairs mean fewer changes of each list.
const WAITING_PAIRS_MAX: usize = if cfg!(test) { 100 } else { 2 << 20 };

/// Returns a topic and a user as one number, which is quicker to sort.
fn pair(topic: u32, user: u32) -> u64 {
    u64::from(topic) << 32 | u64::from(user)
}

impl Followers {
    /// Returns true if no pairs wait.
    pub fn is_settled(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds all waiting pairs to the lists.
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

    /// Changes a user's topics. Both rows are valid. The lists get added topics later, with many others; until then
    /// no other user may get the user's number.
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

    /// Returns the number of a topic's subscribers.
    pub fn count(&self, topic: u32) -> u64 {
        match self.short.get(topic) {
            Some(short) => short.count(),
            None => self.long.get(&topic).map_or(0, Long::count),
        }
    }

    /// Returns at most `max` subscribers of a topic from this number on, in order.
    pub fn from(&self, topic: u32, number: u32, max: usize) -> Vec<u32> {
        match (self.short.get(topic), self.long.get(&topic)) {
            (Some(short), _) => short.numbers().filter(|it| *it >= number).take(max).collect(),
            (None, Some(long)) => long.from(number).take(max).collect(),
            (None, None) => Vec::new(),
        }
    }

    /// Adds subscribers to a topic. Their numbers are sorted and new to the topic.
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

    /// Removes a subscriber from a topic.
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

    /// Frees memory of former topics.
    pub fn shrink(&mut self) {
        self.short.shrink();
        if self.long.len() < self.long.capacity() / 8 {
            self.long.shrink_to_fit();
        }
    }

    /// Returns the memory of the table in bytes.
    pub fn memory_bytes(&self) -> usize {
        let waiting = allocated(self.waiting.capacity() * size_of::<u64>());
        // A hash table has a byte more for each slot, and an eighth of its slots free.
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
                // Numbers far apart give the table several pages.
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
