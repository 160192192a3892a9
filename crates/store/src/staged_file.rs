//! The store's file for redb. redb repairs a file that was not closed as soon as it opens it. Until this program
//! knows that it can use the file, those writes stay in memory, so that a file which it rejects stays unchanged.

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

use crate::disk::{self, Change};
use crate::error::InternalError;
use crate::files::owner_only;
use crate::unsynced::Unsynced;

/// The next sync of this file reports an error although the data reached the disk.
#[cfg(test)]
pub(crate) static SYNC_FAILS: std::sync::Mutex<Option<PathBuf>> = std::sync::Mutex::new(None);

/// A file whose writes stay in memory until [`StagedFile::write_through`].
#[derive(Clone, Debug)]
pub(crate) struct StagedFile {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: FileBackend,
    path: PathBuf,
    unsynced: Arc<Unsynced>,
    /// True if redb takes no locks on this file. The caller ensures that no process writes to it.
    read_only: bool,
    /// The writes that stay in memory; `None` after [`StagedFile::write_through`].
    staged: RwLock<Option<Staged>>,
}

/// The staged writes, in order.
#[derive(Debug)]
struct Staged {
    ops: Vec<FileOp>,
    /// The length that the file will have after them.
    len: u64,
}

#[derive(Debug)]
enum FileOp {
    Write(u64, Box<[u8]>),
    SetLen(u64),
    Sync,
}

impl StagedFile {
    /// Opens an existing file. `unsynced` records its writes until they are synced.
    pub fn open(path: &Path, unsynced: &Arc<Unsynced>) -> Result<Self, InternalError> {
        let file = File::options().read(true).write(true).open(path)?;
        StagedFile::new(path, file, false, unsynced.clone())
    }

    /// Opens an existing file for reading only. [`StagedFile::write_through`] fails on it.
    pub fn open_to_read(path: &Path) -> Result<Self, InternalError> {
        StagedFile::new(path, File::open(path)?, true, Arc::default())
    }

    /// Creates a file, whose writes pass directly to it.
    pub fn create(path: &Path) -> Result<Self, InternalError> {
        let file = FileBackend::new(disk::open(owner_only().create_new(true), path)?)?;
        let (path, unsynced, staged) = (path.into(), Arc::default(), RwLock::new(None));
        let inner = Inner { file, path, unsynced, read_only: false, staged };
        Ok(StagedFile { inner: Arc::new(inner) })
    }

    fn new(
        path: &Path,
        file: File,
        read_only: bool,
        unsynced: Arc<Unsynced>,
    ) -> Result<Self, InternalError> {
        let file = FileBackend::new(file)?;
        let len = file.len()?;
        if len == 0 {
            // redb would create a new database in an empty file.
            return Err(Error::new(ErrorKind::InvalidData, "it is empty").into());
        }
        let staged = RwLock::new(Some(Staged { ops: Vec::new(), len }));
        let inner = Inner { file, path: path.into(), unsynced, read_only, staged };
        Ok(StagedFile { inner: Arc::new(inner) })
    }

    fn staged(&self) -> RwLockWriteGuard<'_, Option<Staged>> {
        self.inner.staged.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies the staged writes, after a sync of the file, and passes later writes directly to the file.
    pub fn write_through(&self) -> Result<(), InternalError> {
        if self.inner.read_only {
            return Err(Error::from(ErrorKind::PermissionDenied).into());
        }
        let mut staged = self.staged();
        let ops = staged.take().map_or(Vec::new(), |staged| staged.ops);
        if !ops.is_empty() {
            // The process before may have been killed after its last writes and before their sync. Its commit becomes
            // the active one by the first of these operations, which must not reach the disk before them.
            self.inner.sync()?;
        }
        for op in ops {
            match op {
                FileOp::Write(offset, data) => self.inner.write(offset, &data)?,
                FileOp::SetLen(len) => self.inner.set_len(len)?,
                FileOp::Sync => self.inner.sync()?,
            }
        }
        Ok(())
    }

    /// Stages an operation. Returns false if the caller must apply it to the file.
    fn stage(&self, op: impl FnOnce(&mut Staged) -> FileOp) -> bool {
        let is_written_through =
            self.inner.staged.read().unwrap_or_else(PoisonError::into_inner).is_none();
        if is_written_through {
            return false;
        }
        match &mut *self.staged() {
            Some(staged) => {
                let op = op(staged);
                staged.ops.push(op);
                true
            }
            None => false,
        }
    }
}

impl Inner {
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        disk::record(Change::Write(&self.path, offset, data))?;
        self.unsynced.add(offset, data.len() as u64);
        self.file.write(offset, data)
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        disk::record(Change::SetLen(&self.path, len))?;
        self.file.set_len(len)
    }

    fn sync(&self) -> Result<(), Error> {
        let written = self.unsynced.count();
        let synced = self.sync_file();
        self.unsynced.on_synced(written, synced.is_ok());
        synced
    }

    fn sync_file(&self) -> Result<(), Error> {
        self.file.sync_data()?;
        #[cfg(test)]
        if SYNC_FAILS.lock().unwrap().take_if(|path| *path == self.path).is_some() {
            return Err(Error::other("as it should in this test"));
        }
        disk::record(Change::Sync(&self.path))
    }
}

impl Staged {
    fn read(&self, file: &FileBackend, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > self.len) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let in_file = file.len()?.saturating_sub(offset).min(out.len() as u64) as usize;
        let (first, rest) = out.split_at_mut(in_file);
        file.read(offset, first)?;
        rest.fill(0);
        for op in &self.ops {
            match op {
                FileOp::Write(at, data) => overlay(out, offset, data, *at),
                FileOp::SetLen(len) => {
                    let end = len.saturating_sub(offset).min(out.len() as u64) as usize;
                    out[end..].fill(0);
                }
                FileOp::Sync => {}
            }
        }
        Ok(())
    }
}

/// Copies the part of `data` (at file offset `at`) that overlaps `out` (at file offset `offset`).
fn overlay(out: &mut [u8], offset: u64, data: &[u8], at: u64) {
    let first = offset.max(at);
    let end = (offset + out.len() as u64).min(at + data.len() as u64);
    if first < end {
        let length = (end - first) as usize;
        let (to, from) = ((first - offset) as usize, (first - at) as usize);
        out[to..to + length].copy_from_slice(&data[from..from + length]);
    }
}

impl StorageBackend for StagedFile {
    fn len(&self) -> Result<u64, Error> {
        let staged = self.inner.staged.read().unwrap_or_else(PoisonError::into_inner);
        staged.as_ref().map_or_else(|| self.inner.file.len(), |staged| Ok(staged.len))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        match &*self.inner.staged.read().unwrap_or_else(PoisonError::into_inner) {
            None => self.inner.file.read(offset, out),
            Some(staged) => staged.read(&self.inner.file, offset, out),
        }
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        let op = |staged: &mut Staged| {
            staged.len = len;
            FileOp::SetLen(len)
        };
        if self.stage(op) { Ok(()) } else { self.inner.set_len(len) }
    }

    fn sync_data(&self) -> Result<(), Error> {
        if self.stage(|_| FileOp::Sync) { Ok(()) } else { self.inner.sync() }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let op = |staged: &mut Staged| {
            staged.len = staged.len.max(offset + data.len() as u64);
            FileOp::Write(offset, data.into())
        };
        if self.stage(op) { Ok(()) } else { self.inner.write(offset, data) }
    }

    fn close(&self) -> Result<(), Error> {
        self.inner.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        if self.inner.read_only {
            return Ok(true);
        }
        self.inner.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        if self.inner.read_only {
            return Ok(true);
        }
        self.inner.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        if self.inner.read_only {
            return Ok(());
        }
        self.inner.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        if self.inner.read_only {
            return Ok(());
        }
        self.inner.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        if self.inner.read_only {
            return Ok(());
        }
        self.inner.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.file.query_lock_range(start, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Call {
        Write(u64, Vec<u8>),
        SetLen(u64),
    }

    fn calls() -> impl Strategy<Value = Vec<Call>> {
        let write = (0..150u64, prop::collection::vec(any::<u8>(), 1..40));
        prop::collection::vec(
            prop_oneof![
                3 => write.prop_map(|(offset, data)| Call::Write(offset, data)),
                1 => (0..200u64).prop_map(Call::SetLen),
            ],
            0..12,
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// A staged file reads as if it had been written, and `write_through` writes exactly that.
        #[test]
        fn staged_writes_read_back_and_reach_the_file(
            start in prop::collection::vec(any::<u8>(), 1..120),
            calls in calls(),
            reads in prop::collection::vec((0..200u64, 1..60usize), 8),
        ) {
            let name = format!("throng-store-disk-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::write(&path, &start).unwrap();
            let disk = StagedFile::open(&path, &Arc::default()).unwrap();
            let mut want = start.clone();
            for call in calls {
                match call {
                    Call::Write(offset, data) => {
                        disk.write(offset, &data).unwrap();
                        let end = offset as usize + data.len();
                        want.resize(want.len().max(end), 0);
                        want[offset as usize..end].copy_from_slice(&data);
                    }
                    Call::SetLen(len) => {
                        disk.set_len(len).unwrap();
                        want.resize(len as usize, 0);
                    }
                }
            }
            prop_assert_eq!(disk.len().unwrap(), want.len() as u64);
            for (offset, length) in reads {
                let mut out = vec![0xee; length];
                let is_read = disk.read(offset, &mut out).is_ok();
                let there = want.get(offset as usize..offset as usize + length);
                prop_assert_eq!(there, is_read.then_some(&*out));
            }
            prop_assert_eq!(std::fs::read(&path).unwrap(), start);
            disk.write_through().unwrap();
            prop_assert_eq!(std::fs::read(&path).unwrap(), want);
            std::fs::remove_file(&path).unwrap();
        }
    }
}
