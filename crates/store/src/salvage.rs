//! Rescues the intact part of a damaged store: writes it into a new one.

use std::path::Path;

use crate::check::{self, Report};
use crate::database::open_database;
use crate::destination::{require_no_store, write_copy};
use crate::error::OpenError;
use crate::files::FILE;
use crate::rewrite::copy;
use crate::source::Source;
use crate::staged_file::StagedFile;

/// Writes a new store into the directory `to` from everything that is intact in the store in
/// `from`, which may have the first format. Clients that come back to a topic which lost
/// messages learn about the gap. `new_epoch` is the new store's epoch if the old one can't be read.
/// Returns what the check found in the old store. The old store stays unchanged, and no server can
/// open it meanwhile.
pub fn salvage(from: &Path, to: &Path, new_epoch: u32) -> Result<Report, OpenError> {
    require_no_store(to)?;
    let _lock = check::lock(from)?;
    let mut report = check::check_locked(from)?;
    let file = from.join(FILE);
    let mut damages = Vec::new();
    write_copy(&file, to, |directory| {
        let opened = open_database(|| StagedFile::open_to_read(&file), check::CACHE_BYTES, false)?;
        let is_verified = report.damages.iter().all(|damage| damage.table != "the file");
        let source = Source::new(&opened.db, report.format, is_verified);
        damages = directory.replace(|new| copy(&source, new, &report, new_epoch))?;
        Ok(())
    })
    .map_err(|error| match error {
        OpenError::NotCopied { file, reason } => OpenError::Damaged { file, reason },
        other => other,
    })?;
    for damage in damages {
        if !report.damages.contains(&damage) {
            report.damages.push(damage);
        }
    }
    Ok(report)
}
