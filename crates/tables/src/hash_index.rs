//! Numbers by hash.

use std::array::from_fn;

use hashbrown::HashTable;

/// Numbers of four bytes by a hash of the values that they stand for, in many small tables, so that none takes long
/// to grow. The caller stores these values.
///
/// An entry is the number alone, and the caller computes its hash again when a table grows; or [`Hashed`], for
/// callers that can't compute it quickly.
pub struct HashIndex<E = u32, const SEGMENTS: usize = 64> {
    segments: Box<[HashTable<E>; SEGMENTS]>,
}

/// A number and its hash: for four bytes more, a table can grow without the caller.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hashed {
    hash: u32,
    id: u32,
}

impl<E, const SEGMENTS: usize> Default for HashIndex<E, SEGMENTS> {
    fn default() -> Self {
        HashIndex { segments: Box::new(from_fn(|_| HashTable::new())) }
    }
}

/// The top bits choose a segment. All bits are spread over 64 for the table, which needs entropy at both ends.
fn spread<const SEGMENTS: usize>(hash: u32) -> (usize, u64) {
    const { assert!(SEGMENTS.is_power_of_two()) };
    let hash = u64::from(hash);
    (((hash * SEGMENTS as u64) >> 32) as usize, hash.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

impl<const SEGMENTS: usize> HashIndex<u32, SEGMENTS> {
    /// Returns the number with this hash that `is` accepts.
    #[inline]
    pub fn find(&self, hash: u32, is: impl Fn(u32) -> bool) -> Option<u32> {
        self.find_entry(hash, is)
    }

    /// Inserts a number that the index does not have. A table that grows calls `hash_of` for its numbers.
    #[inline]
    pub fn insert(&mut self, hash: u32, id: u32, hash_of: impl Fn(u32) -> u32) {
        self.insert_entry(hash, id, hash_of);
    }

    /// Removes a number; false when the index does not have it. A table that shrinks calls `hash_of` for the
    /// remaining numbers.
    #[inline]
    pub fn remove(&mut self, hash: u32, id: u32, hash_of: impl Fn(u32) -> u32) -> bool {
        self.remove_entry(hash, id, hash_of)
    }
}

impl<const SEGMENTS: usize> HashIndex<Hashed, SEGMENTS> {
    /// Returns the number with this hash that `is` accepts.
    #[inline]
    pub fn find(&self, hash: u32, is: impl Fn(u32) -> bool) -> Option<u32> {
        self.find_entry(hash, |entry| entry.hash == hash && is(entry.id)).map(|entry| entry.id)
    }

    /// Inserts a number that the index does not have.
    #[inline]
    pub fn insert(&mut self, hash: u32, id: u32) {
        self.insert_entry(hash, Hashed { hash, id }, |entry| entry.hash);
    }

    /// Removes a number; false when the index does not have it.
    #[inline]
    pub fn remove(&mut self, hash: u32, id: u32) -> bool {
        self.remove_entry(hash, Hashed { hash, id }, |entry| entry.hash)
    }
}

impl<E: Copy + PartialEq, const SEGMENTS: usize> HashIndex<E, SEGMENTS> {
    #[inline]
    fn find_entry(&self, hash: u32, is: impl Fn(E) -> bool) -> Option<E> {
        let (segment, hash) = spread::<SEGMENTS>(hash);
        self.segments[segment].find(hash, |entry| is(*entry)).copied()
    }

    #[inline]
    fn insert_entry(&mut self, hash: u32, entry: E, hash_of: impl Fn(E) -> u32) {
        let (segment, hash) = spread::<SEGMENTS>(hash);
        let hash_of = |entry: &E| spread::<SEGMENTS>(hash_of(*entry)).1;
        self.segments[segment].insert_unique(hash, entry, hash_of);
    }

    #[inline]
    fn remove_entry(&mut self, hash: u32, entry: E, hash_of: impl Fn(E) -> u32) -> bool {
        let (segment, hash) = spread::<SEGMENTS>(hash);
        let segment = &mut self.segments[segment];
        let found = segment.find_entry(hash, |other| *other == entry);
        let is_removed = found.map(|entry| entry.remove()).is_ok();
        // Shrinks far from where the table grows again, so that a number that comes and goes copies nothing.
        if segment.num_buckets() > 8 * segment.len().max(1) {
            let hash_of = |entry: &E| spread::<SEGMENTS>(hash_of(*entry)).1;
            segment.shrink_to((2 * segment.len()).max(1), hash_of);
        }
        is_removed
    }

    /// Returns the bytes that the tables take.
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(HashTable::allocation_size).sum()
    }
}

/// The part of a hash that a [`HashIndex`] uses.
pub fn fold(hash: u64) -> u32 {
    (hash ^ (hash >> 32)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash_of(id: u32) -> u32 {
        (id / 2).wrapping_mul(0x9e37_79b1)
    }

    #[test]
    fn numbers_with_one_hash_are_distinguished_and_all_memory_goes_back() {
        let mut index = HashIndex::<u32>::default();
        for id in 0..10_000 {
            index.insert(hash_of(id), id, hash_of);
        }
        let full = index.bytes();
        for id in 0..10_000 {
            assert_eq!(index.find(hash_of(id), |other| other == id), Some(id));
            assert!(index.remove(hash_of(id), id, hash_of));
            assert_eq!(index.find(hash_of(id), |other| other == id), None);
            assert!(!index.remove(hash_of(id), id, hash_of));
        }
        assert!(full > 40_000 && index.bytes() < full / 10, "{full} {}", index.bytes());
    }

    #[test]
    fn one_segment_of_numbers_with_their_hashes_does_the_same() {
        let mut index = HashIndex::<Hashed, 1>::default();
        assert_eq!(size_of_val(&index), size_of::<usize>());
        (0..10_000).for_each(|id| index.insert(hash_of(id), id));
        let full = index.bytes();
        for id in 0..10_000 {
            assert_eq!(index.find(hash_of(id), |other| other == id), Some(id));
            assert_eq!(index.find(hash_of(id) ^ 1, |other| other == id), None);
            assert!(index.remove(hash_of(id), id) && !index.remove(hash_of(id), id));
        }
        assert!(full > 80_000 && index.bytes() < full / 10, "{full} {}", index.bytes());
    }
}
