//! The progress of a process's last backup.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{BackupError, InternalError};

/// A backup that this process makes or has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    /// The directory of the copy.
    pub dir: PathBuf,
    /// The number of rows that are done.
    pub rows: u64,
    /// The number of rows of the snapshot; 0 until they are counted.
    pub rows_total: u64,
    /// The bytes of the copied rows.
    pub bytes: u64,
    /// The result; `None` while the backup runs.
    pub result: Option<Result<(), String>>,
}

/// The last backup of a process.
#[derive(Default)]
pub(crate) struct Backups {
    last: Mutex<Option<Backup>>,
    /// True if the store closes, so that its backup must end.
    is_stopped: AtomicBool,
}

impl Backups {
    pub fn last(&self) -> MutexGuard<'_, Option<Backup>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the running backup, and any that begins later, or lets backups begin again.
    pub fn set_stopped(&self, is_stopped: bool) {
        self.is_stopped.store(is_stopped, Relaxed);
    }

    pub fn begin(&self, dir: &Path) -> Result<(), BackupError> {
        let mut last = self.last();
        if let Some(Backup { dir, result: None, .. }) = &*last {
            return Err(BackupError::Running { dir: dir.clone() });
        }
        *last = Some(Backup { dir: dir.into(), rows: 0, rows_total: 0, bytes: 0, result: None });
        Ok(())
    }

    pub fn update(&self, change: impl FnOnce(&mut Backup)) {
        if let Some(backup) = &mut *self.last() {
            change(backup);
        }
    }

    pub fn finish(&self, result: Result<(), String>) {
        self.update(|backup| backup.result = Some(result));
    }

    pub fn progress(&self, rows: u64, bytes: u64) -> Result<(), InternalError> {
        if self.is_stopped.load(Relaxed) {
            return Err(InternalError::Redb(redb::Error::DatabaseClosed));
        }
        self.update(|backup| {
            backup.rows += rows;
            backup.bytes += bytes;
        });
        Ok(())
    }
}
