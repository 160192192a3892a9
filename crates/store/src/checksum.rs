//! Checksums of rows. What they cover is part of the store's format version.
//!
//! redb stores its own checksums beside the pointers to its pages. It verifies them when it checks
//! a whole file, and not when it reads a page. The checksums of this module are verified with each
//! row, and they cover the row's key as well.

use xxhash_rust::xxh3::xxh3_64;

use crate::error::RowError;

/// The length of a checksum in bytes. It precedes the value.
pub(crate) const BYTES: usize = 8;

/// Returns the checksum of a row. It covers the key and the value, so that no row passes for another one.
pub(crate) fn of(key: &[u8], value: &[u8]) -> u64 {
    let mut both = [0; 16];
    both[..8].copy_from_slice(&xxh3_64(key).to_le_bytes());
    both[8..].copy_from_slice(&xxh3_64(value).to_le_bytes());
    xxh3_64(&both)
}

/// Returns the checksum of a row whose key consists of two parts.
pub(crate) fn of_pair(first: &[u8], second: &[u8], value: &[u8]) -> u64 {
    of(&pair_key(xxh3_64(first), xxh3_64(second)), value)
}

/// Returns the hash by which a topic's row names the topic before it. It is never 0, which means no topic.
pub(crate) fn of_name(name: &str) -> u64 {
    xxh3_64(name.as_bytes()).max(1)
}

/// Puts the checksum before the value.
pub(crate) fn prepend(key: &[u8], value: &[u8]) -> Vec<u8> {
    [&of(key, value).to_le_bytes()[..], value].concat()
}

/// Verifies the checksum and returns the value behind it.
pub(crate) fn verify<'a>(key: &[u8], row: &'a [u8]) -> Result<&'a [u8], RowError> {
    let (sum, value) = row.split_first_chunk::<BYTES>().ok_or(RowError)?;
    if u64::from_le_bytes(*sum) == of(key, value) { Ok(value) } else { Err(RowError) }
}

/// Encodes a key of two numbers.
pub(crate) fn pair_key(number: u64, offset: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key[8..].copy_from_slice(&offset.to_le_bytes());
    key
}

/// The number of a table's rows and the sum of their checksums, by which a read notices a missing
/// row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub rows: u64,
    pub sum: u64,
}

impl Tally {
    pub fn add(&mut self, sum: u64) {
        self.rows = self.rows.wrapping_add(1);
        self.sum = self.sum.wrapping_add(sum);
    }

    pub fn remove(&mut self, sum: u64) {
        self.rows = self.rows.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_stable() {
        assert_eq!(of(b"key", b"value"), 64_355_250_298_195_290);
        assert_eq!(of_name("room:1"), 12_130_477_941_714_874_424);
    }

    #[test]
    fn a_changed_bit_is_an_error() {
        let row = prepend(b"key", b"a value of some length");
        assert_eq!(verify(b"key", &row), Ok(&b"a value of some length"[..]));
        assert_eq!(verify(b"kez", &row), Err(RowError));
        for bit in 0..row.len() * 8 {
            let mut changed = row.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(verify(b"key", &changed), Err(RowError), "bit {bit}");
        }
        assert_eq!(verify(b"key", &row[..7]), Err(RowError));
    }
}
