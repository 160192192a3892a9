//! Replaces a store by a backup.

use std::path::Path;

use crate::backup::{back_up, backup_metadata};
use crate::check::{self, Report};
use crate::copy_rows::{copy_rows, snapshot_metadata};
use crate::destination::{copy_error, has_store};
use crate::error::OpenError;
use crate::files::{FILE, copy_owner};
use crate::open::Directory;
use crate::panics::catch_redb_panics;

/// Verifies the backup in the directory `from`, and copies it into the directory `to`, which no process has open. If
/// `to` has a store and `replaces` is true, the backup replaces it once the new file is complete and on the disk.
/// After an error or a loss of power before that, the old file stays.
///
/// The store gets `new_epoch`, a random number: a server assigns offsets again that clients may have seen after the
/// backup, or after an earlier restore of it. So clients that come back learn that messages may be missing.
///
/// Returns what a check found in `from`: a damaged backup is not restored.
///
/// # Errors
/// If a process has one of the directories open, `from` has no store or one of the first format, `to` has a store that
/// must not be replaced, or the disk has no capacity for both files.
pub fn restore(
    from: &Path,
    to: &Path,
    replaces: bool,
    new_epoch: u32,
) -> Result<Report, OpenError> {
    let directory_error = |error| OpenError::Directory { dir: to.into(), error };
    if !has_store(to).map_err(directory_error)? {
        return back_up(from, to, new_epoch);
    }
    if !replaces {
        return Err(OpenError::Exists { dir: to.into() });
    }
    let _lock = check::lock(from)?;
    let report = check::check_before_copy(from)?;
    if report.damages.is_empty() {
        let directory = Directory::claim(to)?;
        let restored = replace_store(from, to, &directory, new_epoch);
        directory.release();
        restored?;
    }
    Ok(report)
}

/// Replaces the store in a directory that this process has locked.
fn replace_store(
    from: &Path,
    to: &Path,
    directory: &Directory,
    new_epoch: u32,
) -> Result<(), OpenError> {
    let file = from.join(FILE);
    check::read_snapshot(&file, |snapshot| {
        let copied = catch_redb_panics(|| {
            let metadata = backup_metadata(&snapshot_metadata(snapshot)?, new_epoch);
            directory.replace(|new| {
                // Root may restore a backup into the store of another user.
                copy_owner(&directory.file(), directory.paths())?;
                copy_rows(snapshot, new, &metadata, &mut |_, _| Ok(()))
            })?;
            // The mark of the old store does not match this one, which has another epoch.
            directory.record_commit(&metadata);
            Ok(())
        });
        copied.map_err(|error| copy_error(error, &file, to))
    })
}
