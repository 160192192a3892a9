//! The TLS records of a shard's open connections, by slot.

use std::num::NonZeroU32;

use tables::{PageTable, Slab};
use tls::Records;

/// Records by slot. Connections without TLS have none.
///
/// The records are in pages of their own and not in a box each: a connection's box would stay between what
/// handshakes allocate and free, and the allocator could not return that memory. Records never move, and are
/// dropped in place, so that no copy of a key stays in free memory.
#[derive(Default)]
pub(crate) struct RecordTable {
    /// By slot, the number in `records`, plus 1.
    numbers: PageTable<NonZeroU32>,
    records: PageTable<Records>,
    /// The numbers in use. A new one is from the lowest page with a free number, so that the higher pages empty
    /// out.
    used: Slab<()>,
}

/// Bytes that a connection takes: a value in each table.
const BYTES: usize =
    size_of::<Option<Records>>() + size_of::<Option<NonZeroU32>>() + Slab::<()>::SLOT_BYTES;
const _: () = assert!(BYTES <= 232);

impl RecordTable {
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// True if the connection has records.
    pub fn has(&self, slot: u32) -> bool {
        self.numbers.get(slot).is_some()
    }

    pub fn get(&self, slot: u32) -> Option<&Records> {
        self.records.get(number(*self.numbers.get(slot)?))
    }

    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Records> {
        self.records.get_mut(number(*self.numbers.get(slot)?))
    }

    /// Stores a connection's records, in place of earlier ones.
    pub fn insert(&mut self, slot: u32, records: Records) {
        self.remove(slot);
        let number = self.used.insert(());
        self.numbers.insert(slot, NonZeroU32::MIN.saturating_add(number));
        self.records.insert(number, records);
    }

    /// Forgets a connection's records.
    pub fn remove(&mut self, slot: u32) {
        if let Some(number) = self.numbers.remove(slot).map(number) {
            self.records.drop_in_place(number);
            self.used.remove(number);
        }
    }

    /// Gives memory back after many connections have left.
    pub fn shrink(&mut self) {
        self.numbers.shrink();
        self.records.shrink();
        self.used.shrink();
    }
}

fn number(stored: NonZeroU32) -> u32 {
    stored.get() - 1
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use tls::testing::{KINDS, pair};

    use super::*;

    /// Checks that the peer can read what its connection sends.
    fn is_peer(table: &mut RecordTable, slot: u32, peer: &mut Records) -> bool {
        let (mut sealed, mut plain) = (Vec::new(), Vec::new());
        let records = table.get_mut(slot).unwrap();
        records.seal(b"to you", &mut sealed).unwrap();
        let opened = peer.open(&mut Vec::new(), &mut sealed, &mut plain, &mut Vec::new());
        opened.is_ok() && plain == b"to you"
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn each_connection_has_its_own_records(steps in prop::collection::vec((0_u32..40, any::<bool>()), 0..200)) {
            let (mut table, mut peers) = (RecordTable::default(), BTreeMap::new());
            for (at, (slot, comes)) in steps.into_iter().enumerate() {
                if comes {
                    let (server, client) = pair(KINDS[at % KINDS.len()], at as u8);
                    table.insert(slot, server);
                    peers.insert(slot, client);
                } else {
                    table.remove(slot);
                    peers.remove(&slot);
                }
                prop_assert_eq!(table.is_empty(), peers.is_empty());
                prop_assert!((0..40).all(|slot| table.has(slot) == peers.contains_key(&slot)));
                prop_assert_eq!(table.records.count(), peers.len());
                prop_assert_eq!(table.used.count(), peers.len());
                if let Some(peer) = peers.get_mut(&slot) {
                    prop_assert!(is_peer(&mut table, slot, peer));
                }
            }
            for (slot, peer) in &mut peers {
                prop_assert!(is_peer(&mut table, *slot, peer));
            }
        }
    }
}
