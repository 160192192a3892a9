//! From a topic's hash to its number: many small tables, so that none takes long to grow.

use hashbrown::HashTable;

const SEGMENTS: usize = 64;

/// Holds four-byte numbers; names and hashes stay with the topics.
pub(crate) struct Index {
    segments: Vec<HashTable<u32>>,
}

impl Default for Index {
    fn default() -> Self {
        Index { segments: (0..SEGMENTS).map(|_| HashTable::new()).collect() }
    }
}

/// The top bits choose a segment, and all of them are spread over 64 for the table, which wants
/// entropy at both ends.
fn spread(hash: u32) -> (usize, u64) {
    let segment = hash as usize >> (32 - SEGMENTS.trailing_zeros());
    (segment, u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

impl Index {
    pub fn find(&self, hash: u32, is: impl Fn(u32) -> bool) -> Option<u32> {
        let (segment, hash) = spread(hash);
        self.segments[segment].find(hash, |id| is(*id)).copied()
    }

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

    /// Bytes that the tables take.
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(HashTable::allocation_size).sum()
    }
}
