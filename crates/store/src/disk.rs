//! The file as redb sees it. Until it is known to be a store that this program understands, what
//! redb writes (it mends a file that was not closed) stays in memory: a file that is refused is as
//! it was.

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

use crate::fault::Trouble;

/// The file whose next sync says that it failed, though the data is on disk.
#[cfg(test)]
pub(crate) static SYNC_FAILS: std::sync::Mutex<Option<std::path::PathBuf>> =
    std::sync::Mutex::new(None);

/// A file that redb may have, and that can be let through to the disk.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: FileBackend,
    #[cfg(test)]
    path: std::path::PathBuf,
    /// Nothing is locked: whoever opened it sees to it that nobody writes.
    reads_only: bool,
    /// What is held back; `None` once it was let through.
    held: RwLock<Option<Held>>,
}

/// Writes in their order.
#[derive(Debug)]
struct Held {
    acts: Vec<Act>,
    /// The length of the file with them.
    len: u64,
}

#[derive(Debug)]
enum Act {
    Write(u64, Box<[u8]>),
    SetLen(u64),
    Sync,
}

impl Disk {
    /// Opens a file that is there.
    pub fn open(path: &Path) -> Result<Self, Trouble> {
        Disk::new(path, File::options().read(true).write(true).open(path)?, false)
    }

    /// Opens a file that is there to look at it: it can't be let through.
    pub fn open_to_read(path: &Path) -> Result<Self, Trouble> {
        Disk::new(path, File::open(path)?, true)
    }

    #[cfg_attr(not(test), expect(unused_variables))]
    fn new(path: &Path, file: File, reads_only: bool) -> Result<Self, Trouble> {
        let file = FileBackend::new(file)?;
        let len = file.len()?;
        if len == 0 {
            // redb would begin a new one in it.
            return Err(Error::new(ErrorKind::InvalidData, "it is empty").into());
        }
        let held = RwLock::new(Some(Held { acts: Vec::new(), len }));
        let inner = Inner {
            file,
            #[cfg(test)]
            path: path.into(),
            reads_only,
            held,
        };
        Ok(Disk { inner: Arc::new(inner) })
    }

    fn held(&self) -> RwLockWriteGuard<'_, Option<Held>> {
        self.inner.held.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what was held back, and holds nothing back from here on.
    pub fn let_through(&self) -> Result<(), Trouble> {
        if self.inner.reads_only {
            return Err(Error::from(ErrorKind::PermissionDenied).into());
        }
        let mut held = self.held();
        let acts = held.take().map_or(Vec::new(), |held| held.acts);
        for act in acts {
            match act {
                Act::Write(offset, data) => self.inner.file.write(offset, &data)?,
                Act::SetLen(len) => self.inner.file.set_len(len)?,
                Act::Sync => self.inner.file.sync_data()?,
            }
        }
        Ok(())
    }

    /// Gives an act to `held`, or says that it is for the file.
    fn hold(&self, act: impl FnOnce(&mut Held) -> Act) -> bool {
        let is_through = self.inner.held.read().unwrap_or_else(PoisonError::into_inner).is_none();
        if is_through {
            return false;
        }
        match &mut *self.held() {
            Some(held) => {
                let act = act(held);
                held.acts.push(act);
                true
            }
            None => false,
        }
    }
}

impl Held {
    fn read(&self, file: &FileBackend, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > self.len) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let in_file = file.len()?.saturating_sub(offset).min(out.len() as u64) as usize;
        let (first, rest) = out.split_at_mut(in_file);
        file.read(offset, first)?;
        rest.fill(0);
        for act in &self.acts {
            match act {
                Act::Write(at, data) => overlay(out, offset, data, *at),
                Act::SetLen(len) => {
                    let kept = len.saturating_sub(offset).min(out.len() as u64) as usize;
                    out[kept..].fill(0);
                }
                Act::Sync => {}
            }
        }
        Ok(())
    }
}

/// Copies of `data`, which lies at `at`, what belongs to `out`, which lies at `offset`.
fn overlay(out: &mut [u8], offset: u64, data: &[u8], at: u64) {
    let first = offset.max(at);
    let end = (offset + out.len() as u64).min(at + data.len() as u64);
    if first < end {
        let length = (end - first) as usize;
        let (to, from) = ((first - offset) as usize, (first - at) as usize);
        out[to..to + length].copy_from_slice(&data[from..from + length]);
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64, Error> {
        let held = self.inner.held.read().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().map_or_else(|| self.inner.file.len(), |held| Ok(held.len))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        match &*self.inner.held.read().unwrap_or_else(PoisonError::into_inner) {
            None => self.inner.file.read(offset, out),
            Some(held) => held.read(&self.inner.file, offset, out),
        }
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        let act = |held: &mut Held| {
            held.len = len;
            Act::SetLen(len)
        };
        if self.hold(act) { Ok(()) } else { self.inner.file.set_len(len) }
    }

    fn sync_data(&self) -> Result<(), Error> {
        if self.hold(|_| Act::Sync) {
            return Ok(());
        }
        self.inner.file.sync_data()?;
        #[cfg(test)]
        if SYNC_FAILS.lock().unwrap().take_if(|path| *path == self.inner.path).is_some() {
            return Err(Error::other("as it should in this test"));
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let act = |held: &mut Held| {
            held.len = held.len.max(offset + data.len() as u64);
            Act::Write(offset, data.into())
        };
        if self.hold(act) { Ok(()) } else { self.inner.file.write(offset, data) }
    }

    fn close(&self) -> Result<(), Error> {
        self.inner.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        if self.inner.reads_only {
            return Ok(true);
        }
        self.inner.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        if self.inner.reads_only {
            return Ok(true);
        }
        self.inner.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        if self.inner.reads_only {
            return Ok(());
        }
        self.inner.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        if self.inner.reads_only {
            return Ok(());
        }
        self.inner.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        if self.inner.reads_only {
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
        /// What is held back reads as if it were written, and then is.
        #[test]
        fn what_is_held_back_reads_as_written(
            start in prop::collection::vec(any::<u8>(), 1..120),
            calls in calls(),
            reads in prop::collection::vec((0..200u64, 1..60usize), 8),
        ) {
            let name = format!("throng-store-disk-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::write(&path, &start).unwrap();
            let disk = Disk::open(&path).unwrap();
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
            disk.let_through().unwrap();
            prop_assert_eq!(std::fs::read(&path).unwrap(), want);
            std::fs::remove_file(&path).unwrap();
        }
    }
}
