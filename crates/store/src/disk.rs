//! Every change of the disk that a start of the store depends on. Tests record the changes and replay them on a model
//! of a disk that loses its power (`tests/power`). A server records nothing.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Result as IoResult};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};

use crate::files::DIR_MODE;

/// A change of the disk.
#[derive(Debug)]
#[cfg_attr(not(test), expect(dead_code, reason = "only tests read what a change does"))]
pub(crate) enum Change<'a> {
    CreateDir(&'a Path),
    /// Creates an empty file if it is missing.
    Create(&'a Path),
    Write(&'a Path, u64, &'a [u8]),
    SetLen(&'a Path, u64),
    /// The content and the length of the file are on the disk.
    Sync(&'a Path),
    /// The entries of the directory are on the disk.
    SyncDir(&'a Path),
    Rename(&'a Path, &'a Path),
    Remove(&'a Path),
}

#[cfg(not(test))]
#[expect(clippy::unnecessary_wraps, reason = "in tests a sync may fail")]
#[inline]
pub(crate) fn record(_: Change<'_>) -> IoResult<()> {
    Ok(())
}

/// Records each change in a test. Its error makes a sync fail.
#[cfg(test)]
pub(crate) static RECORDER: std::sync::OnceLock<fn(Change<'_>) -> IoResult<()>> =
    std::sync::OnceLock::new();

/// Passes a change to the test that records it.
#[cfg(test)]
pub(crate) fn record(change: Change<'_>) -> IoResult<()> {
    RECORDER.get().map_or(Ok(()), |recorder| recorder(change))
}

/// Creates the missing directories of a path, for their owner only, and syncs the directory above each, so that they
/// survive a power loss. Adds each to `created`.
pub(crate) fn create_directories(path: &Path, created: &mut Vec<PathBuf>) -> IoResult<()> {
    let is_missing = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.exists();
    let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    for dir in missing.into_iter().rev() {
        DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir)?;
        record(Change::CreateDir(dir))?;
        created.push(dir.into());
        let above = dir.parent().filter(|above| !above.as_os_str().is_empty());
        sync_dir(above.unwrap_or(Path::new(".")))?;
    }
    Ok(())
}

/// Opens a file, which the options may create.
pub(crate) fn open(options: &OpenOptions, path: &Path) -> IoResult<File> {
    let file = options.open(path)?;
    record(Change::Create(path))?;
    Ok(file)
}

pub(crate) fn write_at(file: &File, path: &Path, offset: u64, bytes: &[u8]) -> IoResult<()> {
    record(Change::Write(path, offset, bytes))?;
    file.write_all_at(bytes, offset)
}

pub(crate) fn set_len(file: &File, path: &Path, len: u64) -> IoResult<()> {
    record(Change::SetLen(path, len))?;
    file.set_len(len)
}

/// Waits until the file's content and length are on the disk.
pub(crate) fn sync(file: &File, path: &Path) -> IoResult<()> {
    file.sync_all()?;
    record(Change::Sync(path))
}

/// Waits until the entries of a directory are on the disk.
pub(crate) fn sync_dir(dir: &Path) -> IoResult<()> {
    File::open(dir)?.sync_all()?;
    record(Change::SyncDir(dir))
}

pub(crate) fn rename(from: &Path, to: &Path) -> IoResult<()> {
    record(Change::Rename(from, to))?;
    std::fs::rename(from, to)
}

/// Removes a file that may exist.
pub(crate) fn remove(path: &Path) -> IoResult<()> {
    match std::fs::remove_file(path) {
        Ok(()) => record(Change::Remove(path)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
