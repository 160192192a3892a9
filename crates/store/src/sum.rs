//! Checksums of rows. What they cover is part of the store's format version.
//!
//! redb's own lie beside the pointers to its pages; it looks at them when a file is checked whole
//! and not when a page is read. These are looked at with each row, and say of which row it is.

use xxhash_rust::xxh3::xxh3_64;

use crate::record::BadRow;

/// Bytes of a checksum before what it is of.
pub(crate) const BYTES: usize = 8;

/// The checksum of a row: of its key and of its value, so that no row passes for another one.
pub(crate) fn of(key: &[u8], value: &[u8]) -> u64 {
    let mut both = [0; 16];
    both[..8].copy_from_slice(&xxh3_64(key).to_le_bytes());
    both[8..].copy_from_slice(&xxh3_64(value).to_le_bytes());
    xxh3_64(&both)
}

/// The same where the key is two texts or numbers.
pub(crate) fn of_pair(first: &[u8], second: &[u8], value: &[u8]) -> u64 {
    of(&place(xxh3_64(first), xxh3_64(second)), value)
}

/// What stands for a name in the row after it; never 0, which stands for none.
pub(crate) fn of_name(name: &str) -> u64 {
    xxh3_64(name.as_bytes()).max(1)
}

/// Puts the checksum before the value.
pub(crate) fn seal(key: &[u8], value: &[u8]) -> Vec<u8> {
    [&of(key, value).to_le_bytes()[..], value].concat()
}

/// The value behind its checksum.
pub(crate) fn open<'a>(key: &[u8], row: &'a [u8]) -> Result<&'a [u8], BadRow> {
    let (sum, value) = row.split_first_chunk::<BYTES>().ok_or(BadRow)?;
    if u64::from_le_bytes(*sum) == of(key, value) { Ok(value) } else { Err(BadRow) }
}

/// Two numbers as a key.
pub(crate) fn place(number: u64, offset: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key[8..].copy_from_slice(&offset.to_le_bytes());
    key
}

/// How many rows a table has and the sum of their checksums: a row that is missing is noticed.
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
    fn what_a_checksum_is_stays() {
        assert_eq!(of(b"key", b"value"), 64_355_250_298_195_290);
        assert_eq!(of_name("room:1"), 12_130_477_941_714_874_424);
    }

    #[test]
    fn any_bit_is_noticed() {
        let row = seal(b"key", b"a value of some length");
        assert_eq!(open(b"key", &row), Ok(&b"a value of some length"[..]));
        assert_eq!(open(b"kez", &row), Err(BadRow));
        for bit in 0..row.len() * 8 {
            let mut bad = row.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(b"key", &bad), Err(BadRow), "bit {bit}");
        }
        assert_eq!(open(b"key", &row[..7]), Err(BadRow));
    }
}
