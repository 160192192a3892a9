//! From hashes to numbers.

use hashbrown::HashTable;

const SEGMENTS: usize = 64;

/// Numbers of four bytes by a hash of what they stand for, in many small tables, so that none takes
/// long to grow. What they stand for, and its hash, stay with the caller.
pub struct HashIndex {
    segments: Vec<HashTable<u32>>,
}

impl Default for HashIndex {
    fn default() -> Self {
        HashIndex { segments: (0..SEGMENTS).map(|_| HashTable::new()).collect() }
    }
}

/// The top bits choose a segment, and all of them are spread over 64 for the table, which wants
/// entropy at both ends.
fn spread(hash: u32) -> (usize, u64) {
    let segment = hash as usize >> (32 - SEGMENTS.trailing_zeros());
    (segment, u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

impl HashIndex {
    /// Returns the number with this hash that `is` accepts.
    pub fn find(&self, hash: u32, is: impl Fn(u32) -> bool) -> Option<u32> {
        let (segment, hash) = spread(hash);
        self.segments[segment].find(hash, |id| is(*id)).copied()
    }

    /// Inserts a number that it does not hold. The table calls `hash_of` for those that it holds when it
    /// grows.
    pub fn insert(&mut self, hash: u32, id: u32, hash_of: impl Fn(u32) -> u32) {
        let (segment, hash) = spread(hash);
        self.segments[segment].insert_unique(hash, id, |id| spread(hash_of(*id)).1);
    }

    /// Removes a number. The table calls `hash_of` for those that stay when it shrinks.
    pub fn remove(&mut self, hash: u32, id: u32, hash_of: impl Fn(u32) -> u32) {
        let (segment, hash) = spread(hash);
        let segment = &mut self.segments[segment];
        if let Ok(entry) = segment.find_entry(hash, |other| *other == id) {
            entry.remove();
        }
        // Far from where it grows again, so that what comes and goes copies nothing.
        if segment.num_buckets() > 8 * segment.len().max(1) {
            segment.shrink_to((2 * segment.len()).max(1), |id| spread(hash_of(*id)).1);
        }
    }

    /// Returns the bytes that the tables take.
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(HashTable::allocation_size).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_one_hash_are_told_apart_and_all_memory_goes_back() {
        let mut index = HashIndex::default();
        let hash_of = |id: u32| (id / 2).wrapping_mul(0x9e37_79b1);
        for id in 0..10_000 {
            index.insert(hash_of(id), id, hash_of);
        }
        let full = index.bytes();
        for id in 0..10_000 {
            assert_eq!(index.find(hash_of(id), |other| other == id), Some(id));
            index.remove(hash_of(id), id, hash_of);
            assert_eq!(index.find(hash_of(id), |other| other == id), None);
        }
        assert!(full > 40_000 && index.bytes() < full / 10, "{full} {}", index.bytes());
    }
}
