//! The names of topics, and a number for each: both ways, in about 11 bytes and the name itself.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use wire::message::NAME_BYTES_MAX;

use crate::{BadName, Full};

/// Names lie in blocks of this size, none over an edge, so that growing copies nothing.
const BLOCK: usize = 1 << 16;
/// Blocks that a place of 32 bits can tell apart: 4 GiB of names.
const BLOCKS_MAX: usize = 1 << 16;
/// Places are in pages, which are made when a number in them is first given away.
const PAGE: usize = 1 << 12;
/// No name has this place: it would be the last byte of the last block.
const NOWHERE: u32 = u32::MAX;
/// Tables of the index, so that none takes long to grow.
pub(crate) const TABLES: usize = 256;

/// The table for a hash. Tables themselves use a hash's top and low bits.
pub(crate) fn table_of(hash: u64) -> usize {
    (hash >> 32) as usize % TABLES
}

/// Bytes that the allocator takes for a piece of `bytes` (as glibc's does).
pub(crate) fn allocated(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes + 8).next_multiple_of(16).max(32) }
}

pub(crate) struct Names {
    keys: RandomState,
    /// A byte for the length, and the name.
    blocks: Vec<Vec<u8>>,
    /// Where each number's name lies.
    places: Vec<Option<Box<[u32; PAGE]>>>,
    /// From a name's hash to its number.
    index: Vec<HashTable<u32>>,
    /// Above every number in use.
    next: u64,
    len: usize,
}

impl Default for Names {
    fn default() -> Self {
        Names {
            keys: RandomState::new(),
            blocks: Vec::new(),
            places: Vec::new(),
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

    pub fn get(&self, number: u32) -> Option<&str> {
        std::str::from_utf8(self.bytes(number)?).ok()
    }

    pub fn has(&self, number: u32) -> bool {
        let page = self.places.get(number as usize / PAGE);
        let page = page.and_then(Option::as_ref);
        page.is_some_and(|page| page[number as usize % PAGE] != NOWHERE)
    }

    fn bytes(&self, number: u32) -> Option<&[u8]> {
        bytes_of(&self.blocks, &self.places, number)
    }

    pub fn find(&self, name: &str) -> Option<u32> {
        let hash = self.keys.hash_one(name.as_bytes());
        let is = |number: &u32| self.bytes(*number) == Some(name.as_bytes());
        self.index[table_of(hash)].find(hash, is).copied()
    }

    /// The name's number, a new one if it has none; true if it is new.
    pub fn intern(&mut self, name: &str) -> Result<(u32, bool), Full> {
        if let Some(number) = self.find(name) {
            return Ok((number, false));
        }
        let number = u32::try_from(self.next).map_err(|_| Full)?;
        self.add(number, name)?;
        Ok((number, true))
    }

    /// Gives a name the number that it had in another life.
    pub fn load(&mut self, number: u32, name: &str) -> Result<(), BadName> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(BadName::Length);
        }
        match (self.bytes(number), self.find(name)) {
            (None, None) => self.add(number, name).map_err(|Full| BadName::Full),
            (Some(known), _) if known == name.as_bytes() => Ok(()),
            (Some(_), _) => Err(BadName::Renamed),
            (None, Some(_)) => Err(BadName::Twice),
        }
    }

    /// Neither the number nor the name is in use, and the name fits a block.
    fn add(&mut self, number: u32, name: &str) -> Result<(), Full> {
        let place = self.write(name)?;
        let page = number as usize / PAGE;
        if self.places.len() <= page {
            self.places.resize_with(page + 1, || None);
        }
        let page = self.places[page].get_or_insert_with(|| Box::new([NOWHERE; PAGE]));
        page[number as usize % PAGE] = place;
        let hash = self.keys.hash_one(name.as_bytes());
        let (blocks, places, keys) = (&self.blocks, &self.places, &self.keys);
        self.index[table_of(hash)].insert_unique(hash, number, |number| {
            keys.hash_one(bytes_of(blocks, places, *number).unwrap_or_default())
        });
        self.next = self.next.max(u64::from(number) + 1);
        self.len += 1;
        Ok(())
    }

    fn write(&mut self, name: &str) -> Result<u32, Full> {
        let length = u8::try_from(name.len()).map_err(|_| Full)?;
        if self.blocks.last().is_none_or(|block| BLOCK - block.len() <= name.len()) {
            if self.blocks.len() == BLOCKS_MAX {
                return Err(Full);
            }
            self.blocks.push(Vec::with_capacity(BLOCK));
        }
        let at = self.blocks.len() - 1;
        let block = &mut self.blocks[at];
        let place = at * BLOCK + block.len();
        block.push(length);
        block.extend_from_slice(name.as_bytes());
        Ok(place as u32)
    }

    pub fn memory_bytes(&self) -> usize {
        let blocks: usize = self.blocks.iter().map(|block| allocated(block.capacity())).sum();
        let lists = self.blocks.capacity() * size_of::<Vec<u8>>()
            + self.places.capacity() * size_of::<Option<Box<[u32; PAGE]>>>();
        let pages = self.places.iter().flatten().count() * allocated(size_of::<[u32; PAGE]>());
        let index: usize = self.index.iter().map(|table| allocated(table.allocation_size())).sum();
        let tables = self.index.capacity() * size_of::<HashTable<u32>>();
        blocks + lists + pages + index + tables
    }
}

fn bytes_of<'a>(
    blocks: &'a [Vec<u8>],
    places: &[Option<Box<[u32; PAGE]>>],
    number: u32,
) -> Option<&'a [u8]> {
    let page = places.get(number as usize / PAGE)?.as_ref()?;
    let place = page[number as usize % PAGE] as usize;
    let block = blocks.get(place / BLOCK)?;
    let (length, rest) = block.get(place % BLOCK..)?.split_first()?;
    rest.get(..usize::from(*length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_numbers_both_ways_over_many_blocks() {
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
    fn loaded_names_keep_their_numbers_and_leave_gaps() {
        let mut names = Names::default();
        names.load(7, "seven").unwrap();
        names.load(u32::MAX - 1, "far").unwrap();
        names.load(7, "seven").unwrap();
        assert_eq!(names.load(7, "other"), Err(BadName::Renamed));
        assert_eq!(names.load(8, "seven"), Err(BadName::Twice));
        assert_eq!(names.load(8, ""), Err(BadName::Length));
        assert_eq!((names.get(6), names.get(7), names.len()), (None, Some("seven"), 2));
        assert_eq!(names.intern("last").unwrap(), (u32::MAX, true));
        assert_eq!(names.intern("none"), Err(Full));
        assert_eq!(names.find("none"), None);
    }
}
