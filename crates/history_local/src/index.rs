//! Finds an entry's number by its hash.

use hashbrown::HashTable;

const SEGMENTS: usize = 256;

/// One table of numbers. It stores the hashes too, so that it can grow without the entries.
#[derive(Default)]
pub struct Table(HashTable<(u32, u32)>);

impl Table {
    /// The number with this hash for which `is` holds.
    pub fn find(&self, hash: u32, is: impl Fn(u32) -> bool) -> Option<u32> {
        self.0.find(spread(hash), |(of, id)| *of == hash && is(*id)).map(|(_, id)| *id)
    }

    /// Adds a number that is not there.
    pub fn insert(&mut self, hash: u32, id: u32) {
        self.0.insert_unique(spread(hash), (hash, id), |(hash, _)| spread(*hash));
    }

    /// Removes a number; false when it was not there.
    pub fn remove(&mut self, hash: u32, id: u32) -> bool {
        let found = self.0.find_entry(spread(hash), |entry| *entry == (hash, id));
        let removed = found.map(|entry| entry.remove()).is_ok();
        // The table shrinks far below the size at which it grows, so that a few entries more or less
        // don't copy it each time.
        if self.0.num_buckets() > 8 * self.0.len().max(1) {
            self.0.shrink_to((2 * self.0.len()).max(1), |(hash, _)| spread(*hash));
        }
        removed
    }
}

/// Many tables, so that none takes long to grow.
pub struct Index(Box<[Table]>);

impl Index {
    /// Holds nothing.
    pub fn new() -> Self {
        Index((0..SEGMENTS).map(|_| Table::default()).collect())
    }

    /// The number with this hash for which `is` holds.
    pub fn find(&self, hash: u32, is: impl Fn(u32) -> bool) -> Option<u32> {
        self.0[segment(hash)].find(hash, is)
    }

    /// Adds a number that is not there.
    pub fn insert(&mut self, hash: u32, id: u32) {
        self.0[segment(hash)].insert(hash, id);
    }

    /// Removes a number; false when it was not there.
    pub fn remove(&mut self, hash: u32, id: u32) -> bool {
        self.0[segment(hash)].remove(hash, id)
    }
}

/// The part of a hash that the tables use.
pub fn fold(hash: u64) -> u32 {
    (hash ^ (hash >> 32)) as u32
}

fn segment(hash: u32) -> usize {
    hash as usize >> (32 - SEGMENTS.trailing_zeros())
}

/// Spreads the hash over 64 bits for the table, which wants entropy at both ends.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
