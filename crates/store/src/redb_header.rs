//! The commit slots in redb's file header, and which of them is active.
//!
//! redb returns to the previous commit if the last one is incomplete. After a power loss that is right, because no
//! caller had a reply for the last one. But after damage it drops acknowledged data. The file alone does not tell the
//! two cases apart, so the store reports a possible gap in both. If the newer commit is complete but not active yet,
//! the store activates it.
//!
//! redb does not document this layout. This description is of redb 4.5.0, whose file format is version 3
//! (`src/tree_store/page_store/header.rs` in its source), and `Cargo.toml` pins that version. Before the pin moves,
//! compare with the new version:
//!
//! - the layout of the header: the constants below, and that a slot ends with the XXH3-128 of the bytes before;
//! - that a repair adds exactly one commit ([`RedbHeader::may_lack_commit`]), and that the bit which
//!   selects the slot is all that activates a commit ([`RedbHeader::activate_other_slot`]);
//! - that a file which was not closed is repaired before anything is read (`staged_file.rs`), and that the
//!   length of a file that grows doubles (`compact.rs`, `open.rs`);
//! - that panics over damage come from files with `redb` in their path (`panics.rs`).

use redb::StorageBackend;
use xxhash_rust::xxh3::xxh3_128;

use crate::error::InternalError;

const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";
const LENGTH: usize = 320;
const SLOTS: [usize; 2] = [64, 192];
const SLOT: usize = 128;
const SLOT_ID: usize = 104;
const SLOT_SUM: usize = 112;
const PRIMARY_BIT: u8 = 1;
const RECOVERY_BIT: u8 = 2;

/// The two commit slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RedbHeader {
    /// The transaction id of the active slot.
    pub primary: u64,
    /// The newest transaction id. `None` if a slot is incomplete, so that the id is unknown.
    newest: Option<u64>,
    /// The byte that selects the active slot. Its other bits are redb's.
    state: u8,
}

impl RedbHeader {
    /// Reads the header. `None` if the file is not a redb file.
    pub fn read(file: &impl StorageBackend) -> Result<Option<Self>, InternalError> {
        let mut bytes = [0; LENGTH];
        if file.len()? < LENGTH as u64 {
            return Ok(None);
        }
        file.read(0, &mut bytes)?;
        Ok(RedbHeader::parse(&bytes))
    }

    fn parse(bytes: &[u8; LENGTH]) -> Option<Self> {
        if bytes[..MAGIC.len()] != MAGIC {
            return None;
        }
        let slots = SLOTS.map(|at| &bytes[at..at + SLOT]);
        let id =
            |slot: &[u8]| slot[SLOT_ID..].first_chunk().map_or(0, |id| u64::from_le_bytes(*id));
        let is_complete = |slot: &[u8]| {
            let sum = slot[SLOT_SUM..].first_chunk().map_or(0, |sum| u128::from_le_bytes(*sum));
            sum == xxh3_128(&slot[..SLOT_SUM])
        };
        let complete = slots.iter().all(|slot| is_complete(slot));
        let primary = slots[usize::from(bytes[MAGIC.len()] & PRIMARY_BIT != 0)];
        Some(RedbHeader {
            primary: id(primary),
            state: bytes[MAGIC.len()],
            newest: complete.then(|| slots.iter().map(|slot| id(slot)).max()).flatten(),
        })
    }

    /// Returns true if the last process did not close the file.
    pub fn is_unclean(&self) -> bool {
        self.state & RECOVERY_BIT != 0
    }

    /// Returns true if the inactive slot is complete and newer. Either the process was killed after it wrote the
    /// whole commit, or the bit that selects the slot is damaged.
    pub fn has_newer_slot(&self) -> bool {
        self.newest.is_some_and(|newest| newest > self.primary)
    }

    /// Activates the other slot.
    pub fn activate_other_slot(&self, file: &impl StorageBackend) -> Result<(), InternalError> {
        Ok(file.write(MAGIC.len() as u64, &[self.state ^ PRIMARY_BIT])?)
    }

    /// Returns true if the newest commit of this header may be missing from the opened file. `opened` is the header
    /// after redb opened the file, and `repaired` is true if redb added a commit of its own.
    pub fn may_lack_commit(&self, opened: &RedbHeader, repaired: bool) -> bool {
        self.newest.is_none_or(|newest| opened.primary.saturating_sub(repaired.into()) < newest)
    }
}

#[cfg(test)]
mod tests {
    use redb::backends::FileBackend;
    use redb::{Database, TableDefinition};

    use super::*;

    /// The version of redb that this file describes.
    const REDB: &str = "4.5.0";

    #[test]
    fn the_pinned_version_is_the_one_described_here() {
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).unwrap();
        let pin = format!("\nredb = \"={REDB}\"\n");
        assert!(manifest.contains(&pin), "compare redb_header.rs with the source of the new redb");
    }

    #[test]
    fn each_commit_makes_the_other_slot_the_newest() {
        const TABLE: TableDefinition<'_, u32, u32> = TableDefinition::new("t");
        let path = std::env::temp_dir().join(format!("throng-header-{}", std::process::id()));
        let db = Database::create(&path).unwrap();
        let read = || {
            // redb locks its own file.
            let copy = path.with_extension("copy");
            std::fs::copy(&path, &copy).unwrap();
            let slot_version = std::fs::read(&copy).unwrap()[SLOTS[0]];
            let file = FileBackend::new(std::fs::File::open(&copy).unwrap()).unwrap();
            let header = RedbHeader::read(&file).unwrap().unwrap();
            std::fs::remove_file(&copy).unwrap();
            assert_eq!(slot_version, 3, "the version of the file format");
            header
        };
        let mut before = read();
        for number in 0..4 {
            let transaction = db.begin_write().unwrap();
            transaction.open_table(TABLE).unwrap().insert(number, number).unwrap();
            transaction.commit().unwrap();
            let header = read();
            assert_eq!(header.newest, Some(header.primary));
            assert!(header.primary > before.primary);
            assert_ne!(header.state & PRIMARY_BIT, before.state & PRIMARY_BIT);
            assert!(!header.has_newer_slot() && header.is_unclean());
            before = header;
        }
        drop(db);
        assert!(!read().is_unclean());
        std::fs::remove_file(&path).unwrap();
    }
}
