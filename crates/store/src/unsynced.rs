//! Writes to the store's file since the last sync.
//!
//! When a sync fails, Linux counts the written pages as clean, though some never reached the disk. Programs read them
//! from memory, later syncs succeed without them, and a loss of power removes them, with all commits that depend on
//! them. So before the store builds on a file whose sync has failed, it writes all of these ranges once more and
//! syncs them.

use std::fs::File;
use std::io::Result as IoResult;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::disk;

/// Bytes that are read and written at a time.
const CHUNK_BYTES: u64 = 1 << 20;

/// The ranges of a file that were written since its last successful sync.
#[derive(Debug, Default)]
pub(crate) struct Unsynced(Mutex<Writes>);

#[derive(Debug, Default)]
struct Writes {
    /// Offsets and lengths: 16 bytes for each write of a transaction.
    ranges: Vec<(u64, u64)>,
    /// True if a sync has failed.
    has_failed: bool,
}

impl Unsynced {
    fn writes(&self) -> MutexGuard<'_, Writes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a write, before it happens.
    pub fn add(&self, offset: u64, length: u64) {
        self.writes().ranges.push((offset, length));
    }

    /// Returns the number of writes, before a sync.
    pub fn count(&self) -> usize {
        self.writes().ranges.len()
    }

    /// Handles the end of a sync, before which there were `count` writes.
    pub fn on_synced(&self, count: usize, succeeded: bool) {
        let mut writes = self.writes();
        if !succeeded {
            writes.has_failed = true;
        } else if !writes.has_failed {
            let count = count.min(writes.ranges.len());
            writes.ranges.drain(..count);
        }
    }

    /// Returns true if a sync has failed, so that nothing may build on the file before [`Unsynced::write_again`].
    pub fn has_failed(&self) -> bool {
        self.writes().has_failed
    }

    /// After a failed sync: writes the ranges once more, and syncs them. Does nothing if none has failed.
    ///
    /// # Errors
    /// If the disk still rejects it: the call can be repeated.
    pub fn write_again(&self, path: &Path) -> IoResult<()> {
        let mut writes = self.writes();
        if !writes.has_failed {
            return Ok(());
        }
        let file = File::options().read(true).write(true).open(path)?;
        let end = file.metadata()?.len();
        for (offset, length) in &writes.ranges {
            let through = offset.saturating_add(*length).min(end);
            let mut at = *offset;
            while at < through {
                let mut bytes = vec![0; (through - at).min(CHUNK_BYTES) as usize];
                file.read_exact_at(&mut bytes, at)?;
                disk::write_at(&file, path, at, &bytes)?;
                at += bytes.len() as u64;
            }
        }
        disk::sync(&file, path)?;
        *writes = Writes::default();
        Ok(())
    }
}

/// Makes the kernel write its cached pages of a file to the disk, and forget them, so that reads return the content
/// of the disk. The process that wrote the file may have been killed after a failed sync.
pub(crate) fn forget_cached(path: &Path) -> IoResult<()> {
    let file = File::open(path)?;
    // The process before may not have seen this error. Reads find its damage.
    let _ = file.sync_all();
    Ok(rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?)
}

#[cfg(test)]
mod tests {
    use std::io::IoSliceMut;
    use std::time::{Duration, Instant};

    use rustix::io::{Errno, ReadWriteFlags, preadv2};

    use super::*;

    #[test]
    fn reads_come_from_the_disk_after_the_kernel_has_forgotten_a_file() {
        let path = std::env::temp_dir().join(format!("throng-forget-{}", std::process::id()));
        std::fs::write(&path, vec![7; 100_000]).unwrap();
        let file = File::open(&path).unwrap();
        let cached = || {
            let mut bytes = [0; 4096];
            preadv2(&file, &mut [IoSliceMut::new(&mut bytes)], 0, ReadWriteFlags::NOWAIT)
        };
        let started = Instant::now();
        while cached() != Err(Errno::AGAIN) {
            if cached() == Err(Errno::OPNOTSUPP) || !is_on_disk(&path) {
                println!("this file system is in memory: left out");
                break;
            }
            // The kernel does not forget a page that is busy at this moment.
            assert!(started.elapsed() < Duration::from_secs(60), "the file stays in memory");
            forget_cached(&path).unwrap();
        }
        assert!(std::fs::read(&path).unwrap() == vec![7; 100_000]);
        std::fs::remove_file(&path).unwrap();
    }

    /// Returns true if a file is on a disk, and not in memory.
    fn is_on_disk(path: &Path) -> bool {
        const TMPFS: i64 = 0x0102_1994;
        const RAMFS: i64 = 0x8584_58f6;
        let kind = rustix::fs::statfs(path).unwrap().f_type as i64;
        kind != TMPFS && kind != RAMFS
    }

    #[test]
    fn what_was_not_synced_is_written_again_and_nothing_else_changes() {
        let path = std::env::temp_dir().join(format!("throng-unsynced-{}", std::process::id()));
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| at as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let unsynced = Unsynced::default();
        unsynced.add(0, 5);
        let count = unsynced.count();
        unsynced.add(5, 5);
        unsynced.on_synced(count, true);
        assert_eq!((unsynced.count(), unsynced.has_failed()), (1, false));
        unsynced.add(10, 2_500_000);
        unsynced.add(2_999_999, 100);
        unsynced.add(u64::MAX, 1);
        unsynced.on_synced(unsynced.count(), false);
        // A later successful sync proves nothing about the pages that the failed one left.
        unsynced.on_synced(unsynced.count(), true);
        assert_eq!((unsynced.count(), unsynced.has_failed()), (4, true));
        std::fs::rename(&path, path.with_extension("away")).unwrap();
        assert!(unsynced.write_again(&path).is_err() && unsynced.has_failed());
        std::fs::rename(path.with_extension("away"), &path).unwrap();
        unsynced.write_again(&path).unwrap();
        assert_eq!((unsynced.count(), unsynced.has_failed()), (0, false));
        assert!(std::fs::read(&path).unwrap() == bytes);
        std::fs::remove_file(&path).unwrap();
    }
}
