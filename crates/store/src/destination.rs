//! The directory that gets a copy of a store: it has none yet, and a copy that fails leaves no files in it.

use std::io::{ErrorKind, Result as IoResult};
use std::path::Path;

use crate::disk::create_directories;
use crate::error::{InternalError, OpenError};
use crate::files::{FILE, copy_owner};
use crate::open::Directory;

/// Returns true if a directory has a store.
pub(crate) fn has_store(dir: &Path) -> IoResult<bool> {
    match dir.join(FILE).symlink_metadata() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Requires that a directory has no store.
pub(crate) fn require_no_store(dir: &Path) -> Result<(), OpenError> {
    match has_store(dir) {
        Ok(false) => Ok(()),
        Ok(true) => Err(OpenError::Exists { dir: dir.into() }),
        Err(error) => Err(OpenError::Directory { dir: dir.into(), error }),
    }
}

/// Creates the directory `to` if it is missing, locks it, and lets `write` fill it with a copy of the store in the
/// file `from`. The copy belongs to the owner of `from`. After an error it is removed.
pub(crate) fn write_copy(
    from: &Path,
    to: &Path,
    write: impl FnOnce(&Directory) -> Result<(), InternalError>,
) -> Result<(), OpenError> {
    write_new(to, Some(from), |error| copy_error(error, from, to), write)
}

/// Creates the directory `to` if it is missing, locks it, and lets `write` fill it with a store, which belongs to the
/// owner of the file `like`. After an error, which `to_error` makes, it is removed.
pub(crate) fn write_new(
    to: &Path,
    like: Option<&Path>,
    to_error: impl FnOnce(InternalError) -> OpenError,
    write: impl FnOnce(&Directory) -> Result<(), InternalError>,
) -> Result<(), OpenError> {
    require_no_store(to)?;
    let mut created = Vec::new();
    let written = create_directories(to, &mut created)
        .map_err(|error| OpenError::Directory { dir: to.into(), error })
        .and_then(|()| Directory::claim(to))
        .and_then(|directory| {
            // A process may have created a store before this one locked the directory.
            let result = require_no_store(to).and_then(|()| {
                let result = write(&directory);
                if result.is_err() {
                    directory.remove_files();
                }
                result.map_err(to_error)
            });
            if let (Ok(()), Some(like)) = (&result, like) {
                // The copy is as good on a disk that has no owners.
                let _ = copy_owner(like, directory.paths().into_iter().chain(created.clone()));
            }
            directory.release();
            result
        });
    if written.is_err() {
        // The system refuses to remove a directory that is not empty.
        created.iter().rev().for_each(|dir| drop(std::fs::remove_dir(dir)));
    }
    written
}

/// Makes the error of a copy from the file `from` into the directory `to`.
pub(crate) fn copy_error(error: InternalError, from: &Path, to: &Path) -> OpenError {
    let (file, name) = (to.join(FILE), to.display());
    if let Some(error) = error.disk_full() {
        let reason = format!(
            "the disk is full ({error}): free space for {name}, or make the copy on another disk. \
             The incomplete copy was removed"
        );
        return OpenError::Disk { file, reason };
    }
    if matches!(error, InternalError::Redb(redb::Error::DatabaseClosed)) {
        return OpenError::Interrupted { file: from.into() };
    }
    if error.is_rejected_by_system() {
        let reason = format!(
            "the disk reported an error ({error}): check the disks that hold {} and {name}. The \
             incomplete copy was removed",
            from.display()
        );
        return OpenError::Disk { file, reason };
    }
    OpenError::NotCopied { file: from.into(), reason: error.to_string() }
}
