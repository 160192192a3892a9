//! Connected clients: a table of 12 bytes for each client, with little spare capacity, that grows in small steps.

use model::ConnectionId;

/// A connected client. Two clients that share all 48 bits of the hash count as one here; the shard distinguishes them.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry {
    hash: [u16; 3],
    shard: u16,
    slot: [u16; 2],
}

const _: () = assert!(size_of::<Entry>() == 12);

/// Entries of a page.
const PAGE: usize = if cfg!(test) { 8 } else { 128 };

/// How many pages before and behind a page without capacity may take an entry for it.
const REACH: usize = 4;

/// Entries in the order of their hashes, in pages of one size.
///
/// A page without capacity moves entries to those before and behind it, and splits only if they have no capacity
/// either. So nine tenths of the capacity are in use at any time. A table that doubles is half empty at times, and
/// frees a block that nothing else may fit into.
#[derive(Default)]
pub(crate) struct Connected {
    /// The pages; none is empty.
    pages: Vec<Vec<Entry>>,
}

impl Connected {
    /// Returns the shard and the slot of the connected client.
    pub(crate) fn owner(&self, hash: u64) -> Option<(u16, u32)> {
        let (page, at) = self.find(low(hash));
        let entry = self.pages.get(page)?.get(at.ok()?)?;
        Some((entry.shard, entry.slot()))
    }

    /// Sets the owner, and replaces the one before.
    pub(crate) fn set_owner(&mut self, hash: u64, id: ConnectionId) {
        let entry = Entry::new(hash, id);
        match self.find(entry.hash) {
            (page, Ok(at)) => self.pages[page][at] = entry,
            (page, Err(at)) => self.insert(page, at, entry),
        }
    }

    /// Removes the owner. Returns true if the connection was the owner.
    pub(crate) fn clear_owner(&mut self, hash: u64, id: ConnectionId) -> bool {
        let entry = Entry::new(hash, id);
        let (page, Ok(at)) = self.find(entry.hash) else { return false };
        if self.pages[page][at] != entry {
            return false;
        }
        self.pages[page].remove(at);
        // Joins pages only far below the size at which they split.
        for left in [page.saturating_sub(1), page] {
            if let Some([one, other]) = self.pages.get_mut(left..left + 2)
                && one.len() + other.len() <= PAGE / 2
            {
                one.append(other);
                self.pages.remove(left + 1);
            }
        }
        if self.pages.get(page).is_some_and(Vec::is_empty) {
            self.pages.remove(page);
        }
        let most = self.pages.capacity();
        if most > 4 * self.pages.len().max(4) {
            self.pages.shrink_to(most / 2);
        }
        true
    }

    /// Returns the page for a hash, and its position there, which may not contain it.
    fn find(&self, hash: [u16; 3]) -> (usize, Result<usize, usize>) {
        let begins = |page: &Vec<Entry>| page.first().is_some_and(|first| first.hash <= hash);
        let page = self.pages.partition_point(begins).saturating_sub(1);
        let found = self.pages.get(page).map(|page| page.binary_search_by_key(&hash, |it| it.hash));
        (page, found.unwrap_or(Err(0)))
    }

    fn capacity(&self, page: usize) -> usize {
        self.pages.get(page).map_or(0, |page| PAGE - page.len())
    }

    /// Inserts an entry at its position. From a full page on each page moves an entry to the next one, up to one that
    /// has capacity; if that is too far, the page splits.
    fn insert(&mut self, page: usize, at: usize, mut entry: Entry) {
        if self.pages.is_empty() {
            self.pages.push(Vec::with_capacity(PAGE));
        }
        let has_capacity = |page: &usize| self.capacity(*page) > 0;
        let behind = (page..=page + REACH).find(has_capacity);
        let before = (page.saturating_sub(REACH)..page).rev().find(has_capacity);
        let mut at = at;
        if let Some(behind) = behind {
            for full in &mut self.pages[page..behind] {
                if at < PAGE {
                    full[at..].rotate_right(1);
                    std::mem::swap(&mut full[at], &mut entry);
                }
                at = 0;
            }
            self.pages[behind].insert(at, entry);
        } else if let Some(before) = before {
            for full in self.pages[before + 1..=page].iter_mut().rev() {
                if at > 0 {
                    full[..at].rotate_left(1);
                    std::mem::swap(&mut full[at - 1], &mut entry);
                }
                at = PAGE;
            }
            self.pages[before].push(entry);
        } else {
            let mut half = Vec::with_capacity(PAGE);
            half.extend(self.pages[page].drain(PAGE / 2..));
            match at.checked_sub(PAGE / 2) {
                Some(at) => half.insert(at, entry),
                None => self.pages[page].insert(at, entry),
            }
            self.pages.insert(page + 1, half);
        }
    }
}

impl Entry {
    fn new(hash: u64, id: ConnectionId) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "two halves")]
        let slot = [(id.slot >> 16) as u16, id.slot as u16];
        Entry { hash: low(hash), shard: id.shard, slot }
    }

    fn slot(&self) -> u32 {
        u32::from(self.slot[0]) << 16 | u32::from(self.slot[1])
    }
}

/// Returns the 48 bits of a hash that the table stores.
fn low(hash: u64) -> [u16; 3] {
    #[expect(clippy::cast_possible_truncation, reason = "three parts")]
    [(hash >> 32) as u16, (hash >> 16) as u16, hash as u16]
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use model::NodeId;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn id(shard: u16, slot: u32) -> ConnectionId {
        ConnectionId { node: NodeId(1), shard, slot, serial: 0 }
    }

    /// Generates hashes that crowd at both ends and in the middle, and some that are far apart.
    fn hash() -> impl Strategy<Value = u64> {
        prop_oneof![
            0..40_u64,
            (1_u64 << 48) - 40..1 << 48,
            any::<u8>().prop_map(|part| u64::from(part) << 40),
        ]
    }

    proptest! {
        #[test]
        fn it_is_a_map(steps in vec((hash(), 0_u16..3, any::<bool>()), 0..600)) {
            let (mut table, mut map) = (Connected::default(), HashMap::new());
            for (hash, shard, comes) in steps {
                if comes {
                    table.set_owner(hash, id(shard, 70_000));
                    map.insert(hash, shard);
                } else {
                    let was_owner = map.get(&hash) == Some(&shard);
                    if was_owner {
                        map.remove(&hash);
                    }
                    prop_assert_eq!(table.clear_owner(hash, id(shard, 70_000)), was_owner);
                }
                prop_assert_eq!(table.pages.iter().map(Vec::len).sum::<usize>(), map.len());
                prop_assert!(table.pages.iter().all(|page| !page.is_empty()));
                for (hash, shard) in &map {
                    prop_assert_eq!(table.owner(*hash), Some((*shard, 70_000)));
                }
                prop_assert_eq!(table.owner(hash), map.get(&hash).map(|shard| (*shard, 70_000)));
            }
        }
    }

    #[test]
    fn it_is_nearly_full_and_goes_away() {
        let mut table = Connected::default();
        let hash_of = |n: u32| u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let capacity = |table: &Connected| table.pages.iter().map(Vec::capacity).sum::<usize>();
        for n in 0..20_000_u32 {
            table.set_owner(hash_of(n), id(0, n));
            let capacity = capacity(&table);
            assert!(n < 1_000 || capacity * 100 <= (n as usize + 1) * 120, "{capacity} for {n}");
        }
        for n in 0..20_000_u32 {
            assert!(table.clear_owner(hash_of(n), id(0, n)));
        }
        assert!(capacity(&table) == 0 && table.pages.capacity() < 100);
    }
}
