//! The interest set of a shard: which topics have members on it, as one bit for each hash. The broker reads it
//! before it wakes the shard for a message.

use crate::sync::atomic::{AtomicU64, Ordering};

/// A set of hashes. A lookup may find a hash that was not inserted, but never misses one that was.
///
/// With 8 bits for each connection and one topic of its own for each, a lookup finds about one in nine hashes that
/// are not in the set, which costs the shard a lookup in its index. Only the shard writes.
pub struct Filter {
    words: Box<[AtomicU64]>,
}

impl Filter {
    /// Creates a filter for about so many topics.
    pub fn new(topics: usize) -> Self {
        let words = (topics * 8).next_power_of_two().max(1024) / 64;
        Filter { words: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    #[expect(clippy::cast_possible_truncation, reason = "only the low bits of a hash count")]
    fn bit(&self, hash: u64) -> usize {
        hash as usize & (self.words.len() * 64 - 1)
    }

    fn word_and_mask(&self, hash: u64) -> (&AtomicU64, u64) {
        let bit = self.bit(hash);
        (&self.words[bit / 64], 1 << (bit % 64))
    }

    /// Returns false only if no member's topic has this hash.
    pub fn holds(&self, hash: u64) -> bool {
        let (word, mask) = self.word_and_mask(hash);
        word.load(Ordering::Acquire) & mask != 0
    }

    /// Inserts a hash. Only for the owning shard. The broker finds it for every message that is published after the
    /// return.
    pub fn insert(&self, hash: u64) {
        let (word, mask) = self.word_and_mask(hash);
        let bits = word.load(Ordering::Relaxed);
        if bits & mask == 0 {
            // Sequentially consistent, because the promise above is about a load of another thread that follows the
            // broker's lock.
            word.store(bits | mask, Ordering::SeqCst);
        }
    }

    /// Removes all hashes but these. Only for the owning shard. A concurrent reader sees each word before or after the
    /// change, and both have every hash that stays.
    pub fn rebuild(&self, hashes: impl Iterator<Item = u64>) {
        let mut fresh = vec![0u64; self.words.len()];
        for hash in hashes {
            let bit = self.bit(hash);
            fresh[bit / 64] |= 1 << (bit % 64);
        }
        for (word, bits) in self.words.iter().zip(fresh) {
            word.store(bits, Ordering::Release);
        }
    }

    /// Returns how many topics may leave before a rebuild is worth its cost.
    pub fn slack(&self) -> usize {
        self.words.len() * 4
    }
}
