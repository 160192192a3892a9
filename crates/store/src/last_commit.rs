//! The number of the last commit that was acknowledged to a caller, in a file beside the store's.
//! If redb drops a newer commit than this one, no caller had a reply for it, as after any kill.
//!
//! The writer updates the file after each commit, but syncs it only once, for a new store. After a power loss it may
//! have an older number, but never a newer one. If the file is missing, as in a copy of the store's file alone, only
//! redb's header counts, and the store treats an incomplete commit as lost.
//!
//! The file also has the state of this process's [`AgeClock`](crate::AgeClock) for the next one: the file's own time
//! is that by which ages are counted, and while the time of day is doubted, the file is longer and says for how long
//! still. An earlier version, which knows no longer file, counts it as missing.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, UNIX_EPOCH};

use crate::checksum;
use crate::clock::Age;
use crate::disk;
use crate::files::owner_only;
use crate::metadata::Metadata;

/// The file's name in the store's directory.
pub(crate) const FILE: &str = "throng.mark";

/// The length of the commit's part, in bytes.
const LENGTH: usize = 24;

/// The length of the file while the time of day is doubted.
const DOUBT_LENGTH: usize = LENGTH + 16;

/// The open file.
pub(crate) struct LastCommitFile {
    file: File,
    path: PathBuf,
    /// The state of the clock of the process before when it recorded a commit.
    pub earlier: Option<Age>,
    /// True if the file says that the time of day is doubted.
    has_doubt: AtomicBool,
}

fn doubt_sum(doubt_ms: u64) -> u64 {
    checksum::of(b"doubt", &doubt_ms.to_le_bytes())
}

/// Returns the number at a position of the file.
fn number(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

impl LastCommitFile {
    /// Opens the file or creates it.
    pub fn open(dir: &Path) -> std::io::Result<Self> {
        let path = dir.join(FILE);
        let file = disk::open(&owner_only(), &path)?;
        let metadata = file.metadata()?;
        let mut bytes = [0; DOUBT_LENGTH];
        let is_long = file.read_exact_at(&mut bytes, 0).is_ok();
        let doubt_ms = number(&bytes, LENGTH)
            .filter(|doubt_ms| is_long && number(&bytes, LENGTH + 8) == Some(doubt_sum(*doubt_ms)));
        let modified = metadata.modified().ok().filter(|_| metadata.len() > 0);
        let since_1970 = modified.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let now_ms = since_1970.and_then(|since| u64::try_from(since.as_millis()).ok());
        let earlier = now_ms.map(|now_ms| Age { now_ms, doubt_ms: doubt_ms.unwrap_or(0) });
        Ok(LastCommitFile {
            file,
            path,
            earlier,
            has_doubt: AtomicBool::new(metadata.len() > LENGTH as u64),
        })
    }

    /// Records a commit, with the time by which ages are counted as the file's own. The caller acknowledges it only
    /// afterwards.
    pub fn record(&self, metadata: &Metadata, age: Age) {
        let mut bytes = [0; LENGTH];
        bytes[..16].copy_from_slice(&checksum::pair_key(metadata.epoch.into(), metadata.commits));
        let sum = checksum::of(FILE.as_bytes(), &bytes[..16]);
        bytes[16..].copy_from_slice(&sum.to_le_bytes());
        // Without this file the store only knows less, so an error here must not stop a write.
        let _ = disk::write_at(&self.file, &self.path, 0, &bytes);
        self.write_doubt(age);
        let _ = self.file.set_modified(UNIX_EPOCH + Duration::from_millis(age.now_ms));
    }

    /// Records that the time of day is doubted, or is no longer, if no commit has recorded it. Records nothing before
    /// the first commit.
    pub fn record_doubt(&self, age: Age) {
        let is_known = self.has_doubt.load(Relaxed) == (age.doubt_ms > 0);
        if is_known || self.file.metadata().is_ok_and(|metadata| metadata.len() < LENGTH as u64) {
            return;
        }
        self.write_doubt(age);
        let _ = self.file.set_modified(UNIX_EPOCH + Duration::from_millis(age.now_ms));
    }

    /// Syncs the record of a new file: without any record its first start after a power cut would have to report
    /// messages that may be lost.
    pub fn sync(&self) {
        // As with a record, an error must not stop a write.
        let _ = disk::sync(&self.file, &self.path);
    }

    fn write_doubt(&self, Age { now_ms: _, doubt_ms }: Age) {
        if doubt_ms > 0 {
            let bytes = [doubt_ms, doubt_sum(doubt_ms)].map(u64::to_le_bytes).concat();
            let _ = disk::write_at(&self.file, &self.path, LENGTH as u64, &bytes);
        } else if self.has_doubt.load(Relaxed) {
            let _ = disk::set_len(&self.file, &self.path, LENGTH as u64);
        }
        self.has_doubt.store(doubt_ms > 0, Relaxed);
    }
}

/// Returns the number of the last acknowledged commit, for a store of this epoch.
pub(crate) fn last_acknowledged(dir: &Path, epoch: u32) -> Option<u64> {
    let bytes = std::fs::read(dir.join(FILE)).ok()?;
    if number(&bytes, 16) != Some(checksum::of(FILE.as_bytes(), bytes.get(..16)?)) {
        return None;
    }
    number(&bytes, 8).filter(|_| number(&bytes, 0) == Some(epoch.into()))
}

/// Returns true if the opened file lacks acknowledged commits. `by_header` is the result of redb's header.
pub(crate) fn is_missing(dir: &Path, metadata: &Metadata, by_header: bool) -> bool {
    last_acknowledged(dir, metadata.epoch).map_or(by_header, |commits| metadata.commits < commits)
}
