//! Opens the store's file or creates it, and records how the last process left it.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use random::Random;
use redb::{Builder, Database, WriteTransaction};

use crate::check;
use crate::clock::{Age, AgeClock};
use crate::database::{GuardedDatabase, Opened, file_format, open_database};
use crate::disk::{self, Change};
use crate::error::{InternalError, OpenError};
use crate::files::{FILE, LOCK, owner_only, restrict_to_owner};
use crate::last_commit::{self, LastCommitFile};
use crate::metadata::{Metadata, OFFSETS_SKIPPED};
use crate::panics::catch_redb_panics;
use crate::passed::Passed;
use crate::redb_header::RedbHeader;
use crate::rewrite;
use crate::staged_file::StagedFile;
use crate::tables::{
    CURSORS, EXPIRIES, FIRST_FORMAT, FORMAT, FORMAT_KEY, FORMAT_TABLE, IDEMPOTENCY, KEYS, MESSAGES,
    METADATA, NAMES, RECORDS, SUBSCRIPTIONS, TOPICS, is_known,
};
use crate::unsynced::{Unsynced, forget_cached};

/// The name of a new file until it is complete.
const NEW: &str = "throng.redb.new";

/// Bytes of a new file that redb may cache in memory. The file is written from its beginning to its end.
const NEW_CACHE_BYTES: usize = 16 << 20;

/// The file that the store removes to free space, if a deletion finds the disk full.
const RESERVE: &str = "throng.reserve";

/// Its length in bytes. A deletion copies the pages above the rows that it deletes, a few hundred rows at a time, and
/// needs capacity for that.
const RESERVE_BYTES: usize = 2 << 20;

/// Damaged positions that an error lists, at most. `throng store check` lists them all.
const LISTED_DAMAGES_MAX: usize = 5;

/// The state of the store when it was opened.
pub(crate) struct OpenState {
    pub metadata: Metadata,
    pub clean: bool,
    /// True if the reserve file exists.
    pub has_reserve: bool,
    /// True if the file has an earlier format, which the first commit raises to this one.
    pub raises_format: bool,
}

/// A directory, which this process locks as long as its store is open.
pub(crate) struct Directory {
    dir: PathBuf,
    /// The failed syncs of the store's file.
    unsynced: Arc<Unsynced>,
    locked: Mutex<Option<Locked>>,
}

/// The files of a directory that this process has locked.
struct Locked {
    /// `release` unlocks this file explicitly, because other descriptor tables may hold a copy of
    /// it.
    lock: File,
    last_commit: LastCommitFile,
    /// The clock by which the store counts ages before it deletes something.
    clock: AgeClock,
}

impl Directory {
    /// Makes the directory without reading it.
    pub fn new(dir: &Path) -> Self {
        Directory { dir: dir.into(), unsynced: Arc::default(), locked: Mutex::new(None) }
    }

    /// Creates the directory if it is missing, and locks it.
    pub fn claim(dir: &Path) -> Result<Self, OpenError> {
        let directory = Directory::new(dir);
        directory.lock()?;
        Ok(directory)
    }

    /// Locks a directory that this process has not locked.
    pub fn lock(&self) -> Result<(), OpenError> {
        let dir = &self.dir;
        let directory_error = |error| OpenError::Directory { dir: dir.clone(), error };
        disk::create_directories(dir, &mut Vec::new()).map_err(directory_error)?;
        let path = dir.join(LOCK);
        let lock = disk::open(&owner_only(), &path).map_err(directory_error)?;
        // A copy that fails removes its lock file, and a process that opened it before must not count it as locked.
        let is_current = |lock: &File| -> std::io::Result<bool> {
            Ok(std::fs::metadata(&path)?.ino() == lock.metadata()?.ino())
        };
        match lock.try_lock() {
            Ok(()) if !is_current(&lock).unwrap_or(false) => {
                Err(OpenError::InUse { dir: dir.into() })
            }
            Ok(()) => {
                let last_commit = LastCommitFile::open(dir).map_err(directory_error)?;
                let clock = AgeClock::new(last_commit.earlier, true);
                *self.locked() = Some(Locked { lock, last_commit, clock });
                Ok(())
            }
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse { dir: dir.clone() }),
            Err(TryLockError::Error(error)) => Err(directory_error(error)),
        }
    }

    fn locked(&self) -> MutexGuard<'_, Option<Locked>> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn file(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    /// Records a commit before callers get their replies for it.
    pub fn record_commit(&self, metadata: &Metadata) {
        if let Some(locked) = &*self.locked() {
            locked.last_commit.record(metadata, locked.clock.age());
        }
    }

    /// Returns the time by which the store counts ages before it deletes something, in milliseconds since 1970; 0
    /// while the directory is not locked.
    pub fn now_ms(&self) -> u64 {
        self.age().map_or(0, |age| age.now_ms)
    }

    /// Returns that time with the state for the next process's clock; `None` while the directory is not locked.
    pub fn age(&self) -> Option<Age> {
        let locked = self.locked();
        let Locked { clock, last_commit, .. } = locked.as_ref()?;
        let age = clock.age();
        last_commit.record_doubt(age);
        Some(age)
    }

    /// Logs if the store does not count ages by the time of day yet.
    pub fn log_clock(&self) {
        if let Some(locked) = &*self.locked() {
            locked.clock.log_doubt();
        }
    }

    /// Moves the time of day that the store sees.
    #[cfg(test)]
    pub fn move_wall(&self, by_ms: i64) {
        if let Some(locked) = &*self.locked() {
            locked.clock.move_wall(by_ms);
        }
    }

    pub fn release(&self) {
        if let Some(locked) = self.locked().take() {
            let _ = locked.lock.unlock();
        }
    }

    /// Returns true if the reserve file exists.
    fn has_reserve(&self) -> bool {
        let reserve = std::fs::metadata(self.dir.join(RESERVE));
        reserve.is_ok_and(|file| file.len() == RESERVE_BYTES as u64)
    }

    /// Returns the store's existing files.
    pub fn paths(&self) -> Vec<PathBuf> {
        let all = [FILE, NEW, LOCK, last_commit::FILE].map(|name| self.dir.join(name));
        all.into_iter().filter(|path| path.exists()).collect()
    }

    /// Removes the store's files, after a copy that failed.
    pub fn remove_files(&self) {
        self.paths().iter().for_each(|path| drop(disk::remove(path)));
    }

    /// Creates the reserve file. Returns false if the disk has no capacity for it.
    pub fn create_reserve(&self) -> bool {
        if self.has_reserve() {
            return true;
        }
        let path = self.dir.join(RESERVE);
        // The content is noise, because a file system may store zeros without using space.
        let bytes = Random::new(1).bytes(RESERVE_BYTES);
        let result = disk::open(owner_only().truncate(true), &path).and_then(|mut file| {
            // Only its length matters.
            disk::record(Change::SetLen(&path, RESERVE_BYTES as u64))?;
            std::io::Write::write_all(&mut file, &bytes)?;
            disk::sync(&file, &path)
        });
        if result.is_err() {
            let _ = disk::remove(&path);
        }
        result.is_ok()
    }

    /// Removes the reserve file to free its space.
    pub fn remove_reserve(&self) {
        let _ = disk::remove(&self.dir.join(RESERVE));
    }

    /// Opens the file, or creates it with this epoch, and marks it as in use. Verifies a file of up
    /// to `verify_bytes_max` completely.
    pub fn open(
        &self,
        new_epoch: u32,
        cache_bytes_max: usize,
        verify_bytes_max: u64,
    ) -> Result<(GuardedDatabase, OpenState), OpenError> {
        // A process that was killed may have left an incomplete file.
        let _ = disk::remove(&self.dir.join(NEW));
        let file = self.file();
        let is_there = file.try_exists().map_err(|error| self.open_error(error.into()))?;
        if !is_there {
            self.create(new_epoch).map_err(|error| self.open_error(error))?;
        }
        for name in [FILE, LOCK, last_commit::FILE] {
            restrict_to_owner(&self.dir.join(name));
        }
        let length = std::fs::metadata(&file).map_err(|error| self.open_error(error.into()))?.len();
        self.forget_unclean();
        let opened = self.try_open(cache_bytes_max, length <= verify_bytes_max);
        let mut opened = opened.map_err(|error| self.open_error(error))?;
        if self.check_format(file_format(&opened.db))? == FIRST_FORMAT {
            drop(opened);
            opened =
                self.rewrite(cache_bytes_max).map_err(|error| self.rewrite_error(error, length))?;
        }
        let Opened { db, disk, may_lack_commit } = opened;
        // Reads the metadata before anything is written, because it may be damaged.
        let metadata =
            catch_redb_panics(|| Metadata::load(&db)).map_err(|error| self.open_error(error))?;
        let may_lack_commit = last_commit::is_missing(&self.dir, &metadata, may_lack_commit);
        disk.write_through().map_err(|error| self.open_error(error))?;
        let start = catch_redb_panics(|| mark_open(&db, may_lack_commit))
            .map_err(|error| self.open_error(error))?;
        self.record_commit(&start.metadata);
        let has_reserve = self.create_reserve();
        if !has_reserve {
            tracing::warn!(
                path = %self.dir.join(RESERVE).display(),
                "the file that reserves space for deletions can't be created: while the disk is \
                 full, messages can't be deleted. The server tries again every minute"
            );
        }
        Ok((db, OpenState { has_reserve, ..start }))
    }

    /// Makes the kernel forget a file that the process before did not close: its cache may have pages that a failed
    /// sync has not written to the disk.
    fn forget_unclean(&self) {
        let file = self.file();
        let header = StagedFile::open_to_read(&file).and_then(|file| RedbHeader::read(&file));
        if header.ok().flatten().is_some_and(|header| header.is_unclean()) {
            // If this is impossible, the start uses the cached pages.
            let _ = forget_cached(&file);
        }
    }

    /// Opens a file that the process before, or this one, has passed on: verifies nothing, and writes nothing but
    /// redb's marks of an open file. So the other process can take the file back, and the call takes little time. The
    /// file must have the commit `expected`, if there is one.
    pub fn open_passed(
        &self,
        expected: Option<&Passed>,
        cache_bytes_max: usize,
    ) -> Result<(GuardedDatabase, OpenState), OpenError> {
        self.write_again().map_err(|error| self.open_error(error))?;
        let opened = self.try_open(cache_bytes_max, false);
        let Opened { db, disk, .. } = opened.map_err(|error| self.open_error(error))?;
        let format = self.check_format(file_format(&db))?;
        let metadata =
            catch_redb_panics(|| Metadata::load(&db)).map_err(|error| self.open_error(error))?;
        let found = Passed::of(&metadata);
        if format == FIRST_FORMAT || expected.is_some_and(|expected| *expected != found) {
            return Err(OpenError::NotPassed { file: self.file() });
        }
        disk.write_through().map_err(|error| self.open_error(error))?;
        let (has_reserve, raises_format) = (self.has_reserve(), format != FORMAT);
        Ok((db, OpenState { metadata, clean: true, has_reserve, raises_format }))
    }

    pub fn try_open(&self, cache_bytes_max: usize, verify: bool) -> Result<Opened, InternalError> {
        let file = self.file();
        open_database(|| StagedFile::open(&file, &self.unsynced), cache_bytes_max, verify)
    }

    /// Returns true if a sync of the file has failed, so that [`Directory::write_again`] must come before the next
    /// commit.
    pub fn has_failed_sync(&self) -> bool {
        self.unsynced.has_failed()
    }

    /// Writes pages to the disk that a failed sync may have left in memory. Open the file anew after that.
    pub fn write_again(&self) -> Result<(), InternalError> {
        Ok(self.unsynced.write_again(&self.file())?)
    }

    /// Upgrades a file of the first format: a new file replaces it once it is complete.
    fn rewrite(&self, cache_bytes_max: usize) -> Result<Opened, InternalError> {
        let path = self.file();
        tracing::info!(
            path = %path.display(),
            format = FIRST_FORMAT,
            "the store's file has an earlier format: the server rewrites it"
        );
        // Its rows have no checksums of their own.
        let old = self.try_open(cache_bytes_max, true)?;
        self.replace(|new| rewrite::upgrade(&old.db, new, old.may_lack_commit))?;
        drop(old);
        self.try_open(cache_bytes_max, true)
    }

    /// Creates the file under another name and renames it, so that it is either complete or absent.
    fn create(&self, epoch: u32) -> Result<(), InternalError> {
        let metadata = Metadata { epoch, clean: true, ..Metadata::default() };
        // If the first commit is incomplete, the next start knows that it was not acknowledged.
        self.record_commit(&metadata);
        self.replace(|db| {
            let txn = db.begin_write()?;
            metadata.save(&txn)?;
            Ok(txn.commit()?)
        })
    }

    /// Replaces the store's file with a new one once `fill` has completed it. After an error it removes the new file,
    /// because the disk may lack its space.
    pub(crate) fn replace<T>(
        &self,
        fill: impl FnOnce(&mut GuardedDatabase) -> Result<T, InternalError>,
    ) -> Result<T, InternalError> {
        let fill_and_install = || {
            let mut new = GuardedDatabase::new(self.create_new_file()?);
            let filled = fill(&mut new)?;
            self.install_new_file(new)?;
            Ok(filled)
        };
        let result = fill_and_install();
        if result.is_err() {
            let _ = disk::remove(&self.dir.join(NEW));
        }
        result
    }

    /// Creates the new file with all its tables.
    fn create_new_file(&self) -> Result<Database, InternalError> {
        let new = self.dir.join(NEW);
        disk::remove(&new)?;
        let file = StagedFile::create(&new)?;
        let db = Builder::new().set_cache_size(NEW_CACHE_BYTES).create_with_backend(file)?;
        let txn = db.begin_write()?;
        txn.open_table(FORMAT_TABLE)?.insert(FORMAT_KEY, FORMAT)?;
        txn.open_table(METADATA)?;
        txn.open_table(TOPICS)?;
        txn.open_table(MESSAGES)?;
        txn.open_table(KEYS)?;
        txn.open_table(EXPIRIES)?;
        txn.open_table(IDEMPOTENCY)?;
        txn.open_table(CURSORS)?;
        txn.open_table(SUBSCRIPTIONS)?;
        txn.open_table(NAMES)?;
        txn.open_table(RECORDS)?;
        txn.commit()?;
        Ok(db)
    }

    /// Renames the new file to the store's file name.
    fn install_new_file(&self, db: GuardedDatabase) -> Result<(), InternalError> {
        db.close()?;
        let new = self.dir.join(NEW);
        disk::sync(&File::open(&new)?, &new)?;
        if let Some(locked) = &*self.locked() {
            locked.last_commit.sync();
        }
        disk::rename(&new, &self.file())?;
        Ok(disk::sync_dir(&self.dir)?)
    }

    fn check_format(&self, found: Result<Option<u64>, InternalError>) -> Result<u64, OpenError> {
        match found.map_err(|error| self.open_error(error))? {
            Some(known) if is_known(known) => Ok(known),
            Some(found) => Err(OpenError::Format { file: self.file(), found, known: FORMAT }),
            None => {
                let reason = "it does not name its format".into();
                Err(OpenError::Unknown { file: self.file(), reason })
            }
        }
    }

    /// Lists the damaged positions, as far as the check finds them.
    fn describe_damage(&self) -> String {
        let Ok(report) = check::scan_file(&self.file(), false) else { return String::new() };
        let positions: Vec<String> = report
            .damages
            .iter()
            .take(LISTED_DAMAGES_MAX)
            .map(|damage| format!("; {damage}"))
            .collect();
        let more = report.damages.len().saturating_sub(LISTED_DAMAGES_MAX);
        let more = if more > 0 { format!("; and {more} more places") } else { String::new() };
        positions.concat() + &more
    }

    /// Makes the error for a file of the first format, of this length in bytes, that could not be rewritten.
    fn rewrite_error(&self, error: InternalError, length: u64) -> OpenError {
        let Some(error) = error.disk_full() else { return self.open_error(error) };
        let reason = format!(
            "the disk is full ({error}), and a file of format version {FIRST_FORMAT} is rewritten \
             at the start, which needs about as much space again: free {length} bytes or more in \
             {}, and start again. Nothing was changed",
            self.dir.display()
        );
        OpenError::Disk { file: self.file(), reason }
    }

    fn open_error(&self, error: InternalError) -> OpenError {
        let file = self.file();
        let reason = error.to_string();
        match &error {
            InternalError::Redb(redb::Error::DatabaseAlreadyOpen) => {
                OpenError::InUse { dir: self.dir.clone() }
            }
            rejected if rejected.is_rejected_by_system() => {
                OpenError::Disk { file, reason: error.advice_at_start(&self.dir) }
            }
            // The file is too short or not a database, so there is nothing to check.
            InternalError::Redb(redb::Error::Io(_)) | InternalError::Io(_) => {
                OpenError::Damaged { file, reason }
            }
            _ => OpenError::Damaged { file, reason: reason + &self.describe_damage() },
        }
    }
}

/// Reads the metadata and marks the store as not closed.
fn mark_open(db: &Database, may_lack_commit: bool) -> Result<OpenState, InternalError> {
    let mut metadata = Metadata::load(db)?;
    let clean = metadata.clean && !may_lack_commit;
    let last = metadata.last_offset;
    if !clean {
        metadata.last_offset = last.saturating_add(OFFSETS_SKIPPED);
    }
    if may_lack_commit {
        tracing::warn!(
            offset = last,
            "the store's file lacks its last commit: messages after this offset may be lost. \
             Either a power failure has left such a file, and then no publisher was told that they \
             were stored; or the file is damaged"
        );
        metadata.lost_after =
            if metadata.lost_through == 0 { last } else { metadata.lost_after.min(last) };
        metadata.lost_through = metadata.last_offset;
    }
    metadata.clean = false;
    metadata.commits += 1;
    let mut txn = db.begin_write()?;
    txn.set_quick_repair(true);
    metadata.save(&txn)?;
    // A file of the version before gets this version, whose writes the earlier one can't read.
    raise_format(&txn)?;
    txn.commit()?;
    Ok(OpenState { metadata, clean, has_reserve: false, raises_format: false })
}

/// Records this format in the file.
pub(crate) fn raise_format(txn: &WriteTransaction) -> Result<(), InternalError> {
    txn.open_table(FORMAT_TABLE)?.insert(FORMAT_KEY, FORMAT)?;
    Ok(())
}

/// Marks the store as closed.
pub(crate) fn mark_closed(db: &Database, last: u64) -> Result<Metadata, InternalError> {
    mark(db, last, true)
}

/// Marks the store as in use, for the process that opens it next: that one need not write before it can go on, and if
/// it ends without a close, the next one knows that offsets may have been assigned.
pub(crate) fn mark_passed(db: &Database, last: u64) -> Result<Metadata, InternalError> {
    mark(db, last, false)
}

fn mark(db: &Database, last: u64, clean: bool) -> Result<Metadata, InternalError> {
    let before = Metadata::load(db)?;
    let metadata = Metadata { clean, last_offset: last, commits: before.commits + 1, ..before };
    let txn = db.begin_write()?;
    metadata.save(&txn)?;
    txn.commit()?;
    Ok(metadata)
}
