//! Which commit was the last that somebody was told of, in a file beside the store's: so that a
//! commit that redb went back from is known to have been nobody's, as after any kill.
//!
//! It is written after each commit and never synced: after a loss of power it may say less than is
//! true, and never more. Where it is missing, as in a copy of the store's file alone, only the
//! header is asked, and a commit that is not whole counts as lost.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::facts::Node;
use crate::open::private;
use crate::sum;

/// Its name in the store's directory.
pub(crate) const FILE: &str = "throng.mark";

const LENGTH: usize = 24;

/// The open file.
pub(crate) struct Mark(File);

impl Mark {
    /// Opens it, or makes it.
    pub fn open(dir: &Path) -> std::io::Result<Self> {
        private().open(dir.join(FILE)).map(Mark)
    }

    /// Notes a commit of which somebody may be told from now on.
    pub fn put(&self, node: &Node) {
        let mut bytes = [0; LENGTH];
        bytes[..16].copy_from_slice(&sum::place(node.epoch.into(), node.commits));
        let sum = sum::of(FILE.as_bytes(), &bytes[..16]);
        bytes[16..].copy_from_slice(&sum.to_le_bytes());
        // Without it less is known, which is no reason to refuse anything.
        let _ = self.0.write_all_at(&bytes, 0);
    }
}

/// The last commit that was noted for a store of this epoch.
pub(crate) fn read(dir: &Path, epoch: u32) -> Option<u64> {
    let bytes = std::fs::read(dir.join(FILE)).ok()?;
    let (place, sum) = bytes.split_first_chunk::<16>()?;
    if *sum != sum::of(FILE.as_bytes(), place).to_le_bytes() {
        return None;
    }
    let number = |at: usize| place[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    number(8).filter(|_| number(0) == Some(epoch.into()))
}

/// Whether commits that somebody was told of are not in the file that was opened.
pub(crate) fn is_lost(dir: &Path, node: &Node, by_header: bool) -> bool {
    read(dir, node.epoch).map_or(by_header, |commits| node.commits < commits)
}
