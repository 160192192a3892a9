//! Users and their rows. Each user has one allocation with the name and the packed row.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use crate::names::{TABLES, allocated, table_of};
use crate::row;

pub(crate) struct Users {
    keys: RandomState,
    /// For each user: a byte with the name's length, the name, and the packed row.
    tables: Vec<HashTable<Box<[u8]>>>,
    users: usize,
    edges: u64,
    /// The bytes that the allocations take.
    bytes: usize,
}

impl Default for Users {
    fn default() -> Self {
        let tables = (0..TABLES).map(|_| HashTable::new()).collect();
        Users { keys: RandomState::new(), tables, users: 0, edges: 0, bytes: 0 }
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

impl Users {
    pub fn len(&self) -> usize {
        self.users
    }

    pub fn edges(&self) -> u64 {
        self.edges
    }

    pub fn get(&self, user: &str) -> Option<&[u8]> {
        let hash = self.keys.hash_one(user.as_bytes());
        let table = &self.tables[table_of(hash)];
        let piece = table.find(hash, |piece| parts(piece).0 == user.as_bytes());
        piece.map(|piece| parts(piece).1)
    }

    /// Sets a valid row; an empty one removes the user. The name has at most
    /// [`model::name::NAME_BYTES_MAX`] bytes.
    pub fn put(&mut self, user: &str, packed: &[u8]) {
        let Users { keys, tables, users, edges, bytes } = self;
        let hash = keys.hash_one(user.as_bytes());
        let table = &mut tables[table_of(hash)];
        let Some(new) = piece(user, packed) else { return };
        let mut subtract = |old: &[u8]| {
            *edges -= row::count(parts(old).1) as u64;
            *bytes -= allocated(old.len());
            *users -= 1;
        };
        match table.find_entry(hash, |piece| parts(piece).0 == user.as_bytes()) {
            Ok(entry) if packed.is_empty() => return subtract(&entry.remove().0),
            Ok(mut entry) => {
                subtract(entry.get());
                *entry.get_mut() = new;
            }
            Err(_) if packed.is_empty() => return,
            Err(_) => {
                table.insert_unique(hash, new, |piece| keys.hash_one(parts(piece).0));
            }
        }
        *users += 1;
        *edges += row::count(packed) as u64;
        *bytes += allocated(1 + user.len() + packed.len());
    }

    pub fn memory_bytes(&self) -> usize {
        let tables: usize =
            self.tables.iter().map(|table| allocated(table.allocation_size())).sum();
        self.bytes + tables + self.tables.capacity() * size_of::<HashTable<Box<[u8]>>>()
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
        assert_eq!(users.get("u7"), None);
    }
}
