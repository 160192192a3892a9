//! Opens the redb database, and closes it with a guard: redb also writes when it is dropped, and may
//! panic then if the file is damaged.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use redb::{Builder, Database, ReadableDatabase, TableError};

use crate::error::InternalError;
use crate::metadata::Metadata;
use crate::panics::catch_redb_panics;
use crate::redb_header::RedbHeader;
use crate::staged_file::StagedFile;
use crate::tables::{FORMAT_KEY, FORMAT_TABLE};

/// An open database.
pub(crate) struct GuardedDatabase(Option<Database>);

impl GuardedDatabase {
    pub fn new(db: Database) -> Self {
        GuardedDatabase(Some(db))
    }

    /// Moves pages from the end of the file to free places before them, and shortens the file.
    pub fn shorten(&mut self) -> Result<(), InternalError> {
        let compact = |db: &mut Database| match db.compact() {
            Ok(_) => Ok(()),
            Err(error) => Err(InternalError::Redb(error.into())),
        };
        self.0.as_mut().map_or(Ok(()), |db| catch_redb_panics(|| compact(db)))
    }

    /// Closes the database and returns the error that redb may meet while doing so.
    pub fn close(mut self) -> Result<(), InternalError> {
        match self.0.take() {
            Some(db) => catch_redb_panics(|| Ok(db.close()?)),
            None => Ok(()),
        }
    }
}

impl Deref for GuardedDatabase {
    type Target = Database;

    fn deref(&self) -> &Database {
        // Only `close` and `drop` take the database out, and both end this value.
        match &self.0 {
            Some(db) => db,
            None => unreachable!("the database is already closed"),
        }
    }
}

impl Drop for GuardedDatabase {
    fn drop(&mut self) {
        if let Some(db) = self.0.take() {
            let _ = catch_redb_panics(|| {
                drop(db);
                Ok(())
            });
        }
    }
}

/// An opened file, before its staged writes reach the disk.
pub(crate) struct Opened {
    pub db: GuardedDatabase,
    pub disk: StagedFile,
    /// True if the file may lack its last commit.
    pub may_lack_commit: bool,
}

/// Opens redb's file, and verifies all of it if `verify` is set. The disk stays unchanged until the
/// caller writes the staged operations through.
pub(crate) fn open_database(
    file: impl Fn() -> Result<StagedFile, InternalError>,
    cache_bytes_max: usize,
    verify: bool,
) -> Result<Opened, InternalError> {
    let disk = file()?;
    let before = RedbHeader::read(&disk)?;
    if let Some(header) = before.filter(RedbHeader::has_newer_slot) {
        let newer = file()?;
        header.activate_other_slot(&newer)?;
        let opened = open_disk(newer, None, cache_bytes_max, true);
        if let Some(opened) =
            opened.ok().filter(|opened| catch_redb_panics(|| Metadata::load(&opened.db)).is_ok())
        {
            return Ok(Opened { may_lack_commit: false, ..opened });
        }
    }
    open_disk(disk, before, cache_bytes_max, verify)
}

fn open_disk(
    disk: StagedFile,
    before: Option<RedbHeader>,
    cache_bytes_max: usize,
    verify: bool,
) -> Result<Opened, InternalError> {
    let repaired = Arc::new(AtomicBool::new(false));
    let (backend, repairs) = (disk.clone(), repaired.clone());
    let open = || {
        let mut builder = Builder::new();
        builder.set_cache_size(cache_bytes_max).set_check_integrity_on_open(verify);
        builder.set_repair_callback(move |_| repairs.store(true, Relaxed));
        Ok(builder.create_with_backend(backend)?)
    };
    // redb trusts a file that was closed, so it may panic if that file is damaged.
    let db = GuardedDatabase::new(catch_redb_panics(open)?);
    let opened = RedbHeader::read(&disk)?;
    let may_lack_commit = before
        .zip(opened)
        .is_none_or(|(before, opened)| before.may_lack_commit(&opened, repaired.load(Relaxed)));
    Ok(Opened { db, disk, may_lack_commit })
}

/// Returns the file's format version, if it has one.
pub(crate) fn file_format(db: &Database) -> Result<Option<u64>, InternalError> {
    catch_redb_panics(|| {
        let txn = db.begin_read()?;
        match txn.open_table(FORMAT_TABLE) {
            Ok(metadata) => Ok(metadata.get(FORMAT_KEY)?.map(|row| row.value())),
            Err(TableError::Storage(error)) => Err(error.into()),
            Err(_) => Ok(None),
        }
    })
}
