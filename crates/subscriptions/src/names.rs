//! The table of topic names and their numbers, for lookups in both directions. An entry takes the
//! name's bytes and about 11 more.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;

use ::tables::PageTable;
use hashbrown::HashTable;
use model::name::NAME_BYTES_MAX;

use crate::{LoadNameError, NamesFullError};

/// Names are stored in blocks of this size, and no name crosses the end of a block, so that the
/// table grows without copying.
const BLOCK_BYTES: usize = 1 << 16;
/// The number of blocks that a 32-bit position can address: 4 GiB of names.
const BLOCKS_MAX: usize = 1 << 16;
/// The number of hash tables in the index, so that each grows quickly.
pub(crate) const TABLES: usize = 256;

/// Returns the hash table for a hash. The tables themselves use the top and low bits of the hash.
pub(crate) fn table_of(hash: u64) -> usize {
    (hash >> 32) as usize % TABLES
}

/// Returns the bytes that the allocator takes for `bytes` bytes (glibc's rules).
pub(crate) fn allocated(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes + 8).next_multiple_of(16).max(32) }
}

/// The position of a name in the blocks, plus one, so that an `Option` of it takes no more bytes.
#[derive(Clone, Copy)]
struct Position(NonZeroU32);

impl Position {
    fn new(bytes: usize) -> Result<Self, NamesFullError> {
        let one_more = u32::try_from(bytes + 1).ok().and_then(NonZeroU32::new);
        one_more.map(Position).ok_or(NamesFullError)
    }

    fn bytes(self) -> usize {
        self.0.get() as usize - 1
    }
}

pub(crate) struct Names {
    keys: RandomState,
    /// For each name: a byte with its length, and the name.
    blocks: Vec<Vec<u8>>,
    /// The position of each number's name.
    positions: PageTable<Position>,
    /// Maps a name's hash to its number.
    index: Vec<HashTable<u32>>,
    /// One more than the highest number in use.
    next: u64,
    len: usize,
}

impl Default for Names {
    fn default() -> Self {
        Names {
            keys: RandomState::new(),
            blocks: Vec::new(),
            positions: PageTable::default(),
            index: (0..TABLES).map(|_| HashTable::new()).collect(),
            next: 0,
            len: 0,
        }
    }
}

impl Names {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns a bound: all numbers are below it.
    pub fn end(&self) -> u32 {
        self.positions.end()
    }

    pub fn get(&self, number: u32) -> Option<&str> {
        std::str::from_utf8(self.bytes(number)?).ok()
    }

    pub fn has(&self, number: u32) -> bool {
        self.positions.get(number).is_some()
    }

    fn bytes(&self, number: u32) -> Option<&[u8]> {
        bytes_of(&self.blocks, &self.positions, number)
    }

    pub fn find(&self, name: &str) -> Option<u32> {
        let hash = self.keys.hash_one(name.as_bytes());
        let is = |number: &u32| self.bytes(*number) == Some(name.as_bytes());
        self.index[table_of(hash)].find(hash, is).copied()
    }

    /// Returns the name's number, and true if the name is new and got this number now.
    pub fn intern(&mut self, name: &str) -> Result<(u32, bool), NamesFullError> {
        if let Some(number) = self.find(name) {
            return Ok((number, false));
        }
        let number = u32::try_from(self.next).map_err(|_| NamesFullError)?;
        self.add(number, name)?;
        Ok((number, true))
    }

    /// Restores the number that a name had in an earlier process.
    pub fn load(&mut self, number: u32, name: &str) -> Result<(), LoadNameError> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(LoadNameError::Length);
        }
        match (self.bytes(number), self.find(name)) {
            (None, None) => self.add(number, name).map_err(|NamesFullError| LoadNameError::Full),
            (Some(current), _) if current == name.as_bytes() => Ok(()),
            (Some(_), _) => Err(LoadNameError::Renamed),
            (None, Some(_)) => Err(LoadNameError::Twice),
        }
    }

    /// Adds an entry. Neither the number nor the name is in use, and the name fits into a block.
    fn add(&mut self, number: u32, name: &str) -> Result<(), NamesFullError> {
        // The table of positions needs a number above each of its own.
        if number == u32::MAX {
            return Err(NamesFullError);
        }
        let position = self.write(name)?;
        self.positions.insert(number, position);
        let hash = self.keys.hash_one(name.as_bytes());
        let (blocks, positions, keys) = (&self.blocks, &self.positions, &self.keys);
        self.index[table_of(hash)].insert_unique(hash, number, |number| {
            keys.hash_one(bytes_of(blocks, positions, *number).unwrap_or_default())
        });
        self.next = self.next.max(u64::from(number) + 1);
        self.len += 1;
        Ok(())
    }

    fn write(&mut self, name: &str) -> Result<Position, NamesFullError> {
        let length = u8::try_from(name.len()).map_err(|_| NamesFullError)?;
        if self.blocks.last().is_none_or(|block| BLOCK_BYTES - block.len() <= name.len()) {
            if self.blocks.len() == BLOCKS_MAX {
                return Err(NamesFullError);
            }
            self.blocks.push(Vec::with_capacity(BLOCK_BYTES));
        }
        let at = self.blocks.len() - 1;
        let block = &mut self.blocks[at];
        let position = at * BLOCK_BYTES + block.len();
        block.push(length);
        block.extend_from_slice(name.as_bytes());
        Position::new(position)
    }

    pub fn memory_bytes(&self) -> usize {
        let blocks: usize = self.blocks.iter().map(|block| allocated(block.capacity())).sum();
        let lists = self.blocks.capacity() * size_of::<Vec<u8>>() + self.positions.bytes();
        let index: usize = self.index.iter().map(|table| allocated(table.allocation_size())).sum();
        let tables = self.index.capacity() * size_of::<HashTable<u32>>();
        blocks + lists + index + tables
    }
}

fn bytes_of<'a>(
    blocks: &'a [Vec<u8>],
    positions: &PageTable<Position>,
    number: u32,
) -> Option<&'a [u8]> {
    let position = positions.get(number)?.bytes();
    let block = blocks.get(position / BLOCK_BYTES)?;
    let (length, rest) = block.get(position % BLOCK_BYTES..)?.split_first()?;
    rest.get(..usize::from(*length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_map_both_ways_across_many_blocks() {
        let mut names = Names::default();
        let name = |n: u32| format!("topic:{n}:{}", "x".repeat(n as usize % 200));
        for n in 0..20_000 {
            assert_eq!(names.intern(&name(n)).unwrap(), (n, true));
        }
        assert!(names.blocks.len() > 20);
        for n in 0..20_000 {
            assert_eq!(names.get(n), Some(name(n).as_str()));
            assert_eq!(names.find(&name(n)), Some(n));
            assert_eq!(names.intern(&name(n)).unwrap(), (n, false));
        }
        assert_eq!((names.get(20_000), names.find("other"), names.len()), (None, None, 20_000));
        let longest = "y".repeat(NAME_BYTES_MAX);
        assert_eq!(names.intern(&longest).unwrap(), (20_000, true));
        assert_eq!(names.get(20_000), Some(longest.as_str()));
        assert!(names.memory_bytes() > 20_000 * 110);
    }

    #[test]
    fn loaded_names_preserve_their_numbers() {
        let mut names = Names::default();
        names.load(7, "seven").unwrap();
        names.load(u32::MAX - 2, "far").unwrap();
        names.load(7, "seven").unwrap();
        assert_eq!(names.load(7, "other"), Err(LoadNameError::Renamed));
        assert_eq!(names.load(8, "seven"), Err(LoadNameError::Twice));
        assert_eq!(names.load(8, ""), Err(LoadNameError::Length));
        assert_eq!((names.get(6), names.get(7), names.len()), (None, Some("seven"), 2));
        assert_eq!(names.intern("last").unwrap(), (u32::MAX - 1, true));
        assert_eq!(names.load(u32::MAX, "none"), Err(LoadNameError::Full));
        assert_eq!(names.intern("none"), Err(NamesFullError));
        assert_eq!(names.find("none"), None);
    }
}
