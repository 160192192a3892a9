//! What redb's header says of the last commits: its commit slots, and which of them is in force.
//!
//! redb goes back to the commit before when it meets a last one that is not whole. After a loss of
//! power that is right: nobody was told that it was stored. After damage it takes away what was
//! acknowledged. The file does not tell the two apart, so both are noticed here, and who comes back
//! is told that something may be missing. A commit that is whole but not in force yet is taken.

use redb::StorageBackend;
use xxhash_rust::xxh3::xxh3_128;

use crate::fault::Trouble;

const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";
const LENGTH: usize = 320;
const SLOTS: [usize; 2] = [64, 192];
const SLOT: usize = 128;
const SLOT_ID: usize = 104;
const SLOT_SUM: usize = 112;
const PRIMARY_BIT: u8 = 1;

/// The two commit slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The number of the commit in force.
    pub primary: u64,
    /// The number of the newest; `None` where a slot is not whole, so that it is not known.
    newest: Option<u64>,
    /// The byte that says which of the slots is in force, and other things.
    state: u8,
}

impl Header {
    /// Reads it; `None` if it is no redb file.
    pub fn read(file: &impl StorageBackend) -> Result<Option<Self>, Trouble> {
        let mut bytes = [0; LENGTH];
        if file.len()? < LENGTH as u64 {
            return Ok(None);
        }
        file.read(0, &mut bytes)?;
        Ok(Header::parse(&bytes))
    }

    fn parse(bytes: &[u8; LENGTH]) -> Option<Self> {
        if bytes[..MAGIC.len()] != MAGIC {
            return None;
        }
        let slots = SLOTS.map(|at| &bytes[at..at + SLOT]);
        let id =
            |slot: &[u8]| slot[SLOT_ID..].first_chunk().map_or(0, |id| u64::from_le_bytes(*id));
        let is_whole = |slot: &[u8]| {
            let sum = slot[SLOT_SUM..].first_chunk().map_or(0, |sum| u128::from_le_bytes(*sum));
            sum == xxh3_128(&slot[..SLOT_SUM])
        };
        let whole = slots.iter().all(|slot| is_whole(slot));
        let primary = slots[usize::from(bytes[MAGIC.len()] & PRIMARY_BIT != 0)];
        Some(Header {
            primary: id(primary),
            state: bytes[MAGIC.len()],
            newest: whole.then(|| slots.iter().map(|slot| id(slot)).max()).flatten(),
        })
    }

    /// True where the slot that is not in force is whole and newer: a kill left it when all of the
    /// commit was written, or damage in the one bit that puts it in force.
    pub fn has_newer(&self) -> bool {
        self.newest.is_some_and(|newest| newest > self.primary)
    }

    /// Puts the other slot in force.
    pub fn take_other(&self, file: &impl StorageBackend) -> Result<(), Trouble> {
        Ok(file.write(MAGIC.len() as u64, &[self.state ^ PRIMARY_BIT])?)
    }

    /// True where the newest commit of this header may not be in a file that was opened: it has
    /// this header now, and `repaired` says that redb added a commit of its own.
    pub fn is_lost(&self, opened: &Header, repaired: bool) -> bool {
        self.newest.is_none_or(|newest| opened.primary.saturating_sub(repaired.into()) < newest)
    }
}
