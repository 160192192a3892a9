//! Copies of a store that is in use, or that no process has open.
//!
//! A backup has the store as of one commit. The store goes on meanwhile: a backup reads one snapshot and writes with
//! a cache of its own. Until it ends, redb can't reuse the pages that commits free in the store's file, so the file
//! may grow by as much as commits write meanwhile.
//!
//! A server that serves a backup goes back in time, and assigns offsets again that clients have seen. So a backup has
//! an epoch of its own: a client that comes back with a position of the old epoch learns that messages may be missing.

use std::path::{Path, PathBuf};
use std::time::Instant;

use redb::ReadTransaction;

use crate::backups::Backup;
use crate::check::{self, Report};
use crate::copy_rows::{copy_rows, count_rows, snapshot_metadata};
use crate::destination::{has_store, require_no_store, write_copy};
use crate::error::{BackupError, InternalError, OpenError, QueueError};
use crate::files::FILE;
use crate::metadata::{Metadata, OFFSETS_SKIPPED};
use crate::panics::catch_redb_panics;
use crate::reader::Reader;
use crate::shared::Shared;
use crate::store::Store;

impl Store {
    /// Starts to copy the store into the directory `to`, on a thread of its own. [`Store::last_backup`] returns its
    /// progress. The copy gets `new_epoch`, a random number. Publishers wait for the disk at most as long as for
    /// another commit.
    ///
    /// # Errors
    /// If a backup runs, `to` has a store, or the store takes no reads. [`Backup::result`] has later errors.
    pub fn begin_backup(&self, to: &Path, new_epoch: u32) -> Result<(), BackupError> {
        if has_store(to).unwrap_or(false) {
            return Err(BackupError::Exists { dir: to.into() });
        }
        self.shared.backups.begin(to)?;
        let (store, dir) = (self.clone(), to.to_path_buf());
        // The reader's thread shares the store's descriptor table, and so does a thread that it starts.
        let queued =
            self.read_later(Box::new(move |reader| store.start_backup(reader, dir, new_epoch)));
        queued.map_err(|error| {
            let error = match error {
                QueueError::Closed => BackupError::Closed,
                QueueError::Full | QueueError::Away | QueueError::Unavailable(_) => {
                    BackupError::Busy
                }
            };
            self.shared.backups.finish(Err(error.to_string()));
            error
        })
    }

    /// Returns the last backup that this process began.
    pub fn last_backup(&self) -> Option<Backup> {
        self.shared.backups.last().clone()
    }

    /// Takes the snapshot and starts the thread that copies it.
    fn start_backup(&self, reader: &Reader, to: PathBuf, new_epoch: u32) {
        let shared = self.shared.clone();
        let started = reader.snapshot().map_err(|error| error.to_string()).and_then(|snapshot| {
            let run = move || copy_and_log(&shared, snapshot, &to, new_epoch);
            let thread = std::thread::Builder::new().name("store-backup".into()).spawn(run);
            thread.map_err(|error| format!("the system can't start a thread for it: {error}"))
        });
        match started {
            Ok(thread) => {
                let mut threads = self.threads();
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
            }
            Err(error) => self.shared.backups.finish(Err(error)),
        }
    }
}

/// Copies the snapshot of a store that is in use, and records the result.
fn copy_and_log(shared: &Shared, snapshot: ReadTransaction, to: &Path, new_epoch: u32) {
    let started = Instant::now();
    let backups = &shared.backups;
    if let Ok(total) = catch_redb_panics(|| count_rows(&snapshot)) {
        backups.update(|backup| backup.rows_total = total);
    }
    let mut progress = |rows, bytes| backups.progress(rows, bytes);
    let file = shared.directory.file();
    let copied = write(&snapshot, &file, to, new_epoch, &mut progress);
    let (path, duration_ms) = (to.display(), started.elapsed().as_millis() as u64);
    match &copied {
        Ok(()) => tracing::info!(%path, duration_ms, "the store is backed up"),
        Err(error) => tracing::error!(%path, %error, "the store could not be backed up"),
    }
    backups.finish(copied.map_err(|error| error.to_string()));
}

/// Copies the store in the directory `from`, which no process has open, into the directory `to`, which has no store.
/// Nothing changes in `from`, and no server can open it meanwhile. The copy gets `new_epoch`, a random number.
/// Returns what a check found in `from`: a damaged store is not copied.
///
/// # Errors
/// If a process has `from` open, `from` has no store or one of the first format, or `to` has a store or no capacity.
pub fn back_up(from: &Path, to: &Path, new_epoch: u32) -> Result<Report, OpenError> {
    require_no_store(to)?;
    let _lock = check::lock(from)?;
    let report = check::check_before_copy(from)?;
    if report.damages.is_empty() {
        let file = from.join(FILE);
        check::read_snapshot(&file, |snapshot| {
            write(snapshot, &file, to, new_epoch, &mut |_, _| Ok(()))
        })?;
    }
    Ok(report)
}

/// Writes a backup of the store in `file` into the directory `to`.
fn write(
    snapshot: &ReadTransaction,
    file: &Path,
    to: &Path,
    new_epoch: u32,
    progress: &mut dyn FnMut(u64, u64) -> Result<(), InternalError>,
) -> Result<(), OpenError> {
    write_copy(file, to, |directory| {
        catch_redb_panics(|| {
            let metadata = backup_metadata(&snapshot_metadata(snapshot)?, new_epoch);
            // A mark of an earlier store in this directory must not outlive it.
            directory.record_commit(&metadata);
            directory.replace(|new| copy_rows(snapshot, new, &metadata, progress))
        })
    })
}

/// Returns the metadata of a backup. Later events are unknown, except how far the offsets may have come when it
/// began.
pub(crate) fn backup_metadata(metadata: &Metadata, new_epoch: u32) -> Metadata {
    let Metadata { epoch, last_offset: last, lost_through, lost_after, .. } = *metadata;
    let lost_after = if lost_through == 0 { last } else { lost_after.min(last) };
    let last_offset = last.saturating_add(OFFSETS_SKIPPED);
    // 0 means no epoch in a resume token.
    let is_usable = |new: &u32| *new != 0 && *new != epoch;
    let new_epoch = [new_epoch, epoch ^ 1].into_iter().find(is_usable).unwrap_or(2);
    Metadata {
        epoch: new_epoch,
        clean: true,
        last_offset,
        lost_after,
        lost_through: last_offset,
        ..*metadata
    }
}
