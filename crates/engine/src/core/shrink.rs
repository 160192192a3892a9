//! What a crowd leaves behind when it is gone: room in tables, which goes back once a second.

use std::collections::{HashMap, HashSet, VecDeque};

/// A collection that keeps its room until it is told otherwise.
pub trait Roomy {
    /// Gives most of the room back where it has become far too large. Copies what is left, which
    /// is little.
    fn tidy(&mut self);
}

impl<K: Eq + std::hash::Hash, V> Roomy for HashMap<K, V> {
    fn tidy(&mut self) {
        // Does nothing until it is under a quarter of its size: the capacity that a map tells is
        // no guide, since it shrinks with what was removed.
        self.shrink_to(self.len() * 4);
    }
}

impl<K: Eq + std::hash::Hash> Roomy for HashSet<K> {
    fn tidy(&mut self) {
        self.shrink_to(self.len() * 4);
    }
}

impl<T> Roomy for VecDeque<T> {
    fn tidy(&mut self) {
        if self.len() < self.capacity() / 8 {
            self.shrink_to(self.len() * 2);
        }
    }
}

impl<T> Roomy for Vec<T> {
    fn tidy(&mut self) {
        tables::tidy(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_held_a_crowd_is_small_again_and_keeps_what_is_left() {
        let mut map: HashMap<u32, u32> = (0..100_000).map(|n| (n, n)).collect();
        let mut set: HashSet<u32> = (0..100_000).collect();
        let mut queue: VecDeque<u32> = (0..100_000).collect();
        let mut list: Vec<u32> = (0..100_000).collect();
        map.retain(|n, _| *n < 10);
        set.retain(|n| *n < 10);
        queue.truncate(10);
        list.truncate(10);
        map.tidy();
        set.tidy();
        queue.tidy();
        list.tidy();
        let rooms = [map.capacity(), set.capacity(), queue.capacity(), list.capacity()];
        assert!(rooms.iter().all(|room| *room < 100), "{rooms:?}");
        assert!((0..10).all(|n| map[&n] == n && set.contains(&n) && queue[n as usize] == n));
        assert_eq!((map.len(), list.len()), (10, 10));
        // Room that is in use stays.
        let mut map: HashMap<u32, u32> = (0..1_000).map(|n| (n, n)).collect();
        let before = map.capacity();
        map.tidy();
        assert_eq!(map.capacity(), before);
    }
}
