//! The number of the last commit that was acknowledged to a caller, in a file beside the store's.
//! If redb drops a newer commit than this one, nobody was told about it, as after any kill.
//!
//! The writer updates the file after each commit and never syncs it. After a power loss it may hold
//! an older number, but never a newer one. If the file is missing, as in a copy of the store's file
//! alone, only redb's header counts, and the store treats an incomplete commit as lost.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use crate::checksum;
use crate::files::owner_only;
use crate::metadata::Metadata;

/// The file's name in the store's directory.
pub(crate) const FILE: &str = "throng.mark";

const LENGTH: usize = 24;

/// The open file.
pub(crate) struct LastCommitFile {
    file: File,
    /// When the process before recorded a commit, in milliseconds since 1970.
    pub earlier_ms: Option<u64>,
}

impl LastCommitFile {
    /// Opens the file or creates it.
    pub fn open(dir: &Path) -> std::io::Result<Self> {
        let file = owner_only().open(dir.join(FILE))?;
        let metadata = file.metadata()?;
        let modified = metadata.modified().ok().filter(|_| metadata.len() > 0);
        let since_1970 = modified.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let earlier_ms = since_1970.and_then(|since| u64::try_from(since.as_millis()).ok());
        Ok(LastCommitFile { file, earlier_ms })
    }

    /// Records a commit, with the time by which ages are counted as the file's own. The caller acknowledges it only
    /// afterwards.
    pub fn record(&self, metadata: &Metadata, now_ms: u64) {
        let mut bytes = [0; LENGTH];
        bytes[..16].copy_from_slice(&checksum::pair_key(metadata.epoch.into(), metadata.commits));
        let sum = checksum::of(FILE.as_bytes(), &bytes[..16]);
        bytes[16..].copy_from_slice(&sum.to_le_bytes());
        // Without this file the store only knows less, so an error here must not stop a write.
        let _ = self.file.write_all_at(&bytes, 0);
        let _ = self.file.set_modified(UNIX_EPOCH + Duration::from_millis(now_ms));
    }
}

/// The number of the last acknowledged commit, for a store of this epoch.
pub(crate) fn last_acknowledged(dir: &Path, epoch: u32) -> Option<u64> {
    let bytes = std::fs::read(dir.join(FILE)).ok()?;
    let (place, sum) = bytes.split_first_chunk::<16>()?;
    if *sum != checksum::of(FILE.as_bytes(), place).to_le_bytes() {
        return None;
    }
    let number = |at: usize| place[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    number(8).filter(|_| number(0) == Some(epoch.into()))
}

/// Whether the opened file lacks acknowledged commits. `by_header` is the answer of redb's header.
pub(crate) fn is_missing(dir: &Path, metadata: &Metadata, by_header: bool) -> bool {
    last_acknowledged(dir, metadata.epoch).map_or(by_header, |commits| metadata.commits < commits)
}
