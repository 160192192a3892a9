//! Users and their rows. Each user has a number, and one allocation with the name and the packed row.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use tables::Slab;

use crate::names::{TABLES, allocated, table_of};
use crate::row;

pub(crate) struct Users {
    keys: RandomState,
    /// For each user: a byte with the name's length, the name, and the packed row.
    pieces: Slab<Box<[u8]>>,
    /// Maps a name's hash to the user's number.
    index: Vec<HashTable<u32>>,
    edges: u64,
    /// The bytes of the allocations.
    bytes: usize,
}

impl Default for Users {
    fn default() -> Self {
        let index = (0..TABLES).map(|_| HashTable::new()).collect();
        let (keys, pieces) = (RandomState::new(), Slab::default());
        Users { keys, pieces, index, edges: 0, bytes: 0 }
    }
}

/// Splits an allocation into name and row.
fn parts(piece: &[u8]) -> (&[u8], &[u8]) {
    let (length, rest) = piece.split_first().unwrap_or((&0, &[]));
    rest.split_at_checked(usize::from(*length)).unwrap_or_default()
}

fn piece(user: &str, packed: &[u8]) -> Option<Box<[u8]>> {
    let mut piece = Vec::with_capacity(1 + user.len() + packed.len());
    piece.push(u8::try_from(user.len()).ok()?);
    piece.extend_from_slice(user.as_bytes());
    piece.extend_from_slice(packed);
    Some(piece.into_boxed_slice())
}

/// A user whose row was set.
pub(crate) struct Put {
    /// The user's number. It is free again if the new row is empty.
    pub number: u32,
    before: Box<[u8]>,
}

impl Put {
    /// Returns the row that the user had before.
    pub fn row_before(&self) -> &[u8] {
        parts(&self.before).1
    }
}

impl Users {
    pub fn len(&self) -> usize {
        self.pieces.count()
    }

    pub fn edges(&self) -> u64 {
        self.edges
    }

    pub fn get(&self, user: &str) -> Option<&[u8]> {
        let hash = self.keys.hash_one(user.as_bytes());
        let is = |number: &u32| self.name(*number) == user.as_bytes();
        let number = self.index[table_of(hash)].find(hash, is)?;
        self.pieces.get(*number).map(|piece| parts(piece).1)
    }

    /// Returns the name of the user with this number, if the user exists.
    pub fn name_of(&self, number: u32) -> Option<&str> {
        let name = std::str::from_utf8(self.name(number)).ok();
        name.filter(|name| !name.is_empty())
    }

    /// Returns a bound: all numbers are below it.
    pub fn end(&self) -> u32 {
        self.pieces.end()
    }

    /// Returns the name and the row of the user with this number, if the user exists.
    pub fn row_of(&self, number: u32) -> Option<(&[u8], &[u8])> {
        self.pieces.get(number).map(|piece| parts(piece))
    }

    fn name(&self, number: u32) -> &[u8] {
        self.pieces.get(number).map(|piece| parts(piece).0).unwrap_or_default()
    }

    /// Sets a valid row; an empty one removes the user. The name has at most
    /// [`model::name::NAME_BYTES_MAX`] bytes. `None` if there is no such user and no row.
    pub fn put(&mut self, user: &str, packed: &[u8]) -> Option<Put> {
        let new = piece(user, packed)?;
        let hash = self.keys.hash_one(user.as_bytes());
        let Users { keys, pieces, index, edges, bytes } = self;
        let table = &mut index[table_of(hash)];
        let name = |number: u32| pieces.get(number).map(|piece| parts(piece).0).unwrap_or_default();
        let put = match table.find_entry(hash, |number| name(*number) == user.as_bytes()) {
            Ok(entry) if packed.is_empty() => {
                let number = entry.remove().0;
                Put { number, before: pieces.remove(number) }
            }
            Ok(entry) => {
                let number = *entry.get();
                Put { number, before: std::mem::replace(&mut pieces[number], new) }
            }
            Err(_) if packed.is_empty() => return None,
            Err(_) => {
                let number = pieces.insert(new);
                table.insert_unique(hash, number, |number| {
                    keys.hash_one(
                        pieces.get(*number).map(|piece| parts(piece).0).unwrap_or_default(),
                    )
                });
                Put { number, before: Box::default() }
            }
        };
        *edges -= row::count(put.row_before()) as u64;
        *bytes -= allocated(put.before.len());
        if !packed.is_empty() {
            *edges += row::count(packed) as u64;
            *bytes += allocated(1 + user.len() + packed.len());
        }
        Some(put)
    }

    /// Frees memory of former users.
    pub fn shrink(&mut self) {
        let Users { keys, pieces, index, .. } = self;
        pieces.shrink();
        // Also shrinks empty tables of a small capacity, because there are many.
        let is_large = |table: &HashTable<u32>| table.len() < table.capacity().div_ceil(8);
        for table in index.iter_mut().filter(|table| is_large(table)) {
            let name =
                |number: &u32| pieces.get(*number).map(|piece| parts(piece).0).unwrap_or_default();
            table.shrink_to(table.len() * 2, |number| keys.hash_one(name(number)));
        }
    }

    pub fn memory_bytes(&self) -> usize {
        let index: usize = self.index.iter().map(|table| allocated(table.allocation_size())).sum();
        let tables = self.index.capacity() * size_of::<HashTable<u32>>();
        self.bytes + self.pieces.bytes() + index + tables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_the_rows() {
        let mut users = Users::default();
        let empty = users.memory_bytes();
        for n in 0..1000u32 {
            users.put(&format!("u{n}"), &row::pack(&[n, n + 1]));
        }
        assert_eq!((users.len(), users.edges()), (1000, 2000));
        assert!(users.memory_bytes() > empty + 32_000);
        users.put("u7", &row::pack(&[1, 2, 3]));
        users.put("nobody", &[]);
        assert_eq!((users.len(), users.edges()), (1000, 2001));
        assert_eq!(row::unpack(users.get("u7").unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
        for n in 0..1000u32 {
            users.put(&format!("u{n}"), &[]);
        }
        assert_eq!((users.len(), users.edges(), users.bytes), (0, 0, 0));
        users.shrink();
        assert!(users.memory_bytes() < empty + 1_000, "{}", users.memory_bytes());
        assert_eq!(users.get("u7"), None);
    }
}
