//! The state in which one process passes the file to the next.

use crate::metadata::Metadata;

/// The state in which a process has passed its file on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The store's epoch.
    pub epoch: u32,
    /// The last offset that was assigned.
    pub last_offset: u64,
    /// The number of committed transactions.
    pub commits: u64,
}

impl Passed {
    /// The length of [`Passed::to_bytes`].
    pub const BYTES: usize = 20;

    pub(crate) fn of(metadata: &Metadata) -> Self {
        let Metadata { epoch, last_offset, commits, .. } = *metadata;
        Passed { epoch, last_offset, commits }
    }

    /// Encodes it for another process.
    pub fn to_bytes(&self) -> [u8; Passed::BYTES] {
        let mut bytes = [0; Passed::BYTES];
        bytes[..4].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.last_offset.to_le_bytes());
        bytes[12..].copy_from_slice(&self.commits.to_le_bytes());
        bytes
    }

    /// Decodes [`Passed::to_bytes`]; `None` if the bytes are invalid.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (epoch, numbers) = bytes.split_first_chunk::<4>()?;
        let (last, rest) = numbers.split_first_chunk::<8>()?;
        let (commits, rest) = rest.split_first_chunk::<8>()?;
        rest.is_empty().then(|| Passed {
            epoch: u32::from_le_bytes(*epoch),
            last_offset: u64::from_le_bytes(*last),
            commits: u64::from_le_bytes(*commits),
        })
    }
}
