//! Rescues what is intact in a damaged store: writes it into a new one.

use std::path::Path;

use crate::check::{self, Report};
use crate::database::open_database;
use crate::error::{Damage, InternalError, OpenError};
use crate::files::FILE;
use crate::open::Directory;
use crate::rewrite::copy;
use crate::source::Source;
use crate::staged_file::StagedFile;

/// Writes a new store into the directory `to` from everything that is intact in the store in
/// `from`, which may have the first format. Clients that come back to a topic which lost
/// messages learn about the gap. `new_epoch` is the new store's epoch if the old one can't be read.
/// Returns what the check found in the old store. The old store stays unchanged, and no server can
/// open it meanwhile.
pub fn salvage(from: &Path, to: &Path, new_epoch: u32) -> Result<Report, OpenError> {
    ensure_absent(to)?;
    let _lock = check::lock(from)?;
    let mut report = check::check_locked(from)?;
    let directory = Directory::claim(to)?;
    let file = from.join(FILE);
    let written = || -> Result<Vec<Damage>, InternalError> {
        let opened = open_database(|| StagedFile::open_to_read(&file), check::CACHE_BYTES, false)?;
        let is_verified = report.damages.iter().all(|damage| damage.table != "the file");
        let source = Source::new(&opened.db, report.format, is_verified);
        directory.replace(|new| copy(&source, new, &report, new_epoch))
    };
    // Another process may have created a store before this one locked the directory.
    let written = ensure_absent(to).map(|()| written());
    directory.release();
    let damages = written?.map_err(|error| match error.disk_full() {
        Some(error) => {
            let (file, dir) = (directory.file(), to.display());
            let reason = format!(
                "the disk is full ({error}): free space in {dir}, or name a directory on another \
                 disk. The half copy was removed"
            );
            OpenError::Disk { file, reason }
        }
        None => OpenError::Damaged { file: file.clone(), reason: error.to_string() },
    })?;
    for damage in damages {
        if !report.damages.contains(&damage) {
            report.damages.push(damage);
        }
    }
    Ok(report)
}

fn ensure_absent(to: &Path) -> Result<(), OpenError> {
    if !to.join(FILE).exists() {
        return Ok(());
    }
    let what = "there is a store already, and salvage writes a new one";
    let error = std::io::Error::new(std::io::ErrorKind::AlreadyExists, what);
    Err(OpenError::Directory { dir: to.into(), error })
}
