//! What a crowd leaves behind when it is gone: room in tables, which goes back once a second.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::engine::Engine;

const EVERY_US: u64 = 1_000_000;

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

impl Engine {
    /// Gives back, once a second, what was held for connections that are gone. What is left to do
    /// is never much: the large tables are in pages that go back by themselves.
    pub fn tidy(&mut self) {
        if self.connections.core.now_us < self.tidy_due_us {
            return;
        }
        self.tidy_due_us = self.connections.core.now_us + EVERY_US;
        self.connections.core.table.tidy();
        self.connections.core.hub.tidy();
        self.connections.core.joins.tidy();
        self.connections.recovery.tidy();
        self.connections.core.entries.tidy();
        self.connections.core.lists_due.tidy();
        self.connections.chosen.tidy();
        self.connections.core.commands.tidy();
        self.connections.core.woken.tidy();
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
