//! Rewrites a store's file without its free pages.

use std::path::Path;

use crate::check::{self, Report};
use crate::copy_rows::{copy_rows, snapshot_metadata};
use crate::destination::has_store;
use crate::error::{InternalError, OpenError};
use crate::files::{FILE, copy_owner};
use crate::open::Directory;
use crate::panics::catch_redb_panics;

/// The result of [`compact`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// What the check found. A damaged file stays as it is.
    pub report: Report,
    /// The length that the file had, in bytes.
    pub bytes_before: u64,
    /// The length that the file has now, in bytes.
    pub bytes: u64,
}

/// Rewrites the file of the store in a directory that no process has open. The new file replaces the old one once it
/// is complete and on the disk; until then, and after an error or a kill, the old one stays. The disk needs capacity
/// for both.
///
/// # Errors
/// If a process has the directory open, it has no store or one of the first format, or the disk has no capacity.
pub fn compact(dir: &Path) -> Result<Compacted, OpenError> {
    let file = dir.join(FILE);
    let length = || {
        let metadata = std::fs::metadata(&file).map(|metadata| metadata.len());
        metadata.map_err(|error| OpenError::Directory { dir: file.clone(), error })
    };
    // A directory without a store gets no lock file.
    if matches!(has_store(dir), Ok(false)) {
        return Err(OpenError::Missing { dir: dir.into() });
    }
    let directory = Directory::claim(dir)?;
    let compacted = check::check_before_copy(dir).and_then(|report| {
        let bytes_before = length()?;
        if report.damages.is_empty() {
            check::read_snapshot(&file, |snapshot| {
                let copied = catch_redb_panics(|| {
                    let metadata = snapshot_metadata(snapshot)?;
                    directory.replace(|new| {
                        // Root may compact a file of another user.
                        copy_owner(&file, directory.paths())?;
                        copy_rows(snapshot, new, &metadata, &mut |_, _| Ok(()))?;
                        // redb doubles the length of a file that grows.
                        new.shorten()
                    })
                });
                copied.map_err(|error| compact_error(error, dir, bytes_before))
            })?;
        }
        Ok(Compacted { report, bytes_before, bytes: length()? })
    });
    directory.release();
    compacted
}

/// Makes the error of a file of this length in bytes that can't be rewritten.
fn compact_error(error: InternalError, dir: &Path, bytes: u64) -> OpenError {
    let (file, name) = (dir.join(FILE), dir.display());
    let reason = match error.disk_full() {
        Some(error) => format!(
            "the disk is full ({error}), and the new file needs up to {bytes} bytes in addition \
             to the old one: free that much in {name}, or write the short file to another disk \
             with `throng store salvage {name} DIR`. Nothing was changed"
        ),
        None if error.is_rejected_by_system() => {
            format!(
                "the disk reported an error ({error}): check the disk that holds {name}. Nothing \
                 was changed"
            )
        }
        None => return OpenError::NotCopied { file, reason: error.to_string() },
    };
    OpenError::Disk { file, reason }
}
