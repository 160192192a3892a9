//! Gives memory back after a spike: collections that have become far too large shrink.

use std::collections::{HashMap, HashSet, VecDeque};

/// A collection that retains its memory until [`Shrink::shrink`].
pub trait Shrink {
    /// Frees most of the memory if the collection uses a small part of it. It copies the remaining entries, which are
    /// few.
    fn shrink(&mut self);
}

impl<K: Eq + std::hash::Hash, V> Shrink for HashMap<K, V> {
    fn shrink(&mut self) {
        // Does nothing until the map uses less than a quarter of its memory. `capacity()` can't decide that, because a
        // removal may reduce it.
        self.shrink_to(self.len() * 4);
    }
}

impl<K: Eq + std::hash::Hash> Shrink for HashSet<K> {
    fn shrink(&mut self) {
        self.shrink_to(self.len() * 4);
    }
}

impl<T> Shrink for VecDeque<T> {
    fn shrink(&mut self) {
        if self.len() < self.capacity() / 8 {
            self.shrink_to(self.len() * 2);
        }
    }
}

impl<T> Shrink for Vec<T> {
    fn shrink(&mut self) {
        tables::shrink(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_small_again_after_a_crowd_and_lose_nothing() {
        let mut map: HashMap<u32, u32> = (0..100_000).map(|n| (n, n)).collect();
        let mut set: HashSet<u32> = (0..100_000).collect();
        let mut queue: VecDeque<u32> = (0..100_000).collect();
        let mut list: Vec<u32> = (0..100_000).collect();
        map.retain(|n, _| *n < 10);
        set.retain(|n| *n < 10);
        queue.truncate(10);
        list.truncate(10);
        map.shrink();
        set.shrink();
        queue.shrink();
        list.shrink();
        let capacities = [map.capacity(), set.capacity(), queue.capacity(), list.capacity()];
        assert!(capacities.iter().all(|capacity| *capacity < 100), "{capacities:?}");
        assert!((0..10).all(|n| map[&n] == n && set.contains(&n) && queue[n as usize] == n));
        assert_eq!((map.len(), list.len()), (10, 10));
        // Capacity in use stays.
        let mut map: HashMap<u32, u32> = (0..1_000).map(|n| (n, n)).collect();
        let before = map.capacity();
        map.shrink();
        assert_eq!(map.capacity(), before);
    }
}
