//! Finding the file, or making it; and what a process finds in it.

use std::fs::{File, TryLockError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::{Builder, Database, ReadableDatabase, ReadableTable, TableError};

use crate::batch::Node;
use crate::disk::Disk;
use crate::fault::{OpenError, Trouble};
use crate::tables::{
    CURSORS, EXPIRIES, FORMAT, IDEMPOTENCY, KEYS, MESSAGES, NAMES, NODE, NODE_CLEAN, NODE_EMPTY,
    NODE_EPOCH, NODE_FORMAT, NODE_GONE, NODE_LAST, NODE_NEXT, SUBSCRIPTIONS, TOPICS,
};

/// The file's name in the store's directory.
pub const FILE: &str = "throng.redb";

/// The name of the file that a process locks.
const LOCK: &str = "throng.lock";

/// A new file's name until it is whole.
const NEW: &str = "throng.redb.new";

/// How far the numbering jumps when the last process did not close the store: offsets that it drew
/// and did not commit are not drawn again.
pub const OFFSETS_SKIPPED: u64 = 1 << 20;

/// Opens redb's file. Nothing is written to it until it is let through.
pub(crate) fn database(file: &Path, cache_bytes_max: usize) -> Result<(Database, Disk), Trouble> {
    let disk = Disk::open(file)?;
    let backend = disk.clone();
    let open = || Builder::new().set_cache_size(cache_bytes_max).create_with_backend(backend);
    // redb trusts a file that was closed, so that damage in it may end in a panic.
    match catch_unwind(AssertUnwindSafe(open)) {
        Ok(opened) => Ok((opened?, disk)),
        Err(_) => Err(Trouble::Panic),
    }
}

/// What was true when the store was opened.
pub(crate) struct Start {
    pub epoch: u32,
    pub node: Node,
    pub clean: bool,
}

/// A directory that this process has for itself.
pub(crate) struct Directory {
    dir: PathBuf,
    /// Its lock is let go when the store is closed, also where other descriptor tables hold it.
    lock: File,
}

impl Directory {
    /// Makes the directory if there is none, and locks it.
    pub fn claim(dir: &Path) -> Result<Self, OpenError> {
        let refused = |error| OpenError::Directory { dir: dir.into(), error };
        std::fs::create_dir_all(dir).map_err(refused)?;
        let mut options = File::options();
        let lock = options.read(true).write(true).create(true).truncate(false);
        let lock = lock.open(dir.join(LOCK)).map_err(refused)?;
        match lock.try_lock() {
            Ok(()) => Ok(Directory { dir: dir.into(), lock }),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse { dir: dir.into() }),
            Err(TryLockError::Error(error)) => Err(refused(error)),
        }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn file(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    pub fn release(&self) {
        let _ = self.lock.unlock();
    }

    /// Opens the file, or makes it with this epoch, and marks it as in use.
    pub fn open(
        &self,
        new_epoch: u32,
        cache_bytes_max: usize,
    ) -> Result<(Database, Start), OpenError> {
        let file = self.file();
        let is_there = file.try_exists().map_err(|error| self.error(error.into()))?;
        if !is_there {
            self.create(new_epoch).map_err(|trouble| self.error(trouble))?;
        }
        let opened = database(&file, cache_bytes_max);
        let (db, disk) = opened.map_err(|trouble| self.error(trouble))?;
        self.check_format(format(&db))?;
        disk.let_through().map_err(|trouble| self.error(trouble))?;
        let start = begin(&db).map_err(|trouble| self.error(trouble))?;
        Ok((db, start))
    }

    /// Makes the file under another name first: it is whole or it is not there.
    fn create(&self, epoch: u32) -> Result<(), Trouble> {
        let new = self.dir.join(NEW);
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let db = Builder::new().create(&new)?;
        let txn = db.begin_write()?;
        {
            let mut node = txn.open_table(NODE)?;
            for (name, number) in
                [(NODE_FORMAT, FORMAT), (NODE_EPOCH, u64::from(epoch)), (NODE_CLEAN, 1)]
            {
                node.insert(name, number)?;
            }
            txn.open_table(TOPICS)?;
            txn.open_table(MESSAGES)?;
            txn.open_table(KEYS)?;
            txn.open_table(EXPIRIES)?;
            txn.open_table(IDEMPOTENCY)?;
            txn.open_table(CURSORS)?;
            txn.open_table(SUBSCRIPTIONS)?;
            txn.open_table(NAMES)?;
        }
        txn.commit()?;
        db.close()?;
        std::fs::rename(&new, self.file())?;
        File::open(&self.dir)?.sync_all()?;
        Ok(())
    }

    fn check_format(&self, found: Result<Option<u64>, Trouble>) -> Result<(), OpenError> {
        match found.map_err(|trouble| self.error(trouble))? {
            Some(FORMAT) => Ok(()),
            Some(found) => Err(OpenError::Format { file: self.file(), found, known: FORMAT }),
            None => {
                let reason = "it says nothing of its format".into();
                Err(OpenError::Damaged { file: self.file(), reason })
            }
        }
    }

    fn error(&self, trouble: Trouble) -> OpenError {
        let file = self.file();
        let reason = trouble.to_string();
        match &trouble {
            Trouble::Redb(redb::Error::DatabaseAlreadyOpen) => {
                OpenError::InUse { dir: self.dir.clone() }
            }
            // What redb and the standard library say of a file that is too short or no database.
            Trouble::Redb(redb::Error::Io(error)) | Trouble::Io(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof
                ) =>
            {
                OpenError::Damaged { file, reason }
            }
            Trouble::Redb(redb::Error::Io(_)) | Trouble::Io(_) => {
                OpenError::Disk { file, reason: trouble.advice(&self.dir) }
            }
            _ => OpenError::Damaged { file, reason },
        }
    }
}

/// The file's format version, if it has one.
fn format(db: &Database) -> Result<Option<u64>, Trouble> {
    let txn = db.begin_read()?;
    match txn.open_table(NODE) {
        Ok(node) => Ok(node.get(NODE_FORMAT)?.map(|row| row.value())),
        Err(TableError::Storage(error)) => Err(error.into()),
        Err(_) => Ok(None),
    }
}

/// A fact about the whole store; 0 where nothing is said.
fn fact(table: &impl ReadableTable<&'static str, u64>, name: &str) -> Result<u64, Trouble> {
    Ok(table.get(name)?.map_or(0, |row| row.value()))
}

fn read_node(table: &impl ReadableTable<&'static str, u64>) -> Result<Node, Trouble> {
    Ok(Node {
        last: fact(table, NODE_LAST)?,
        gone: fact(table, NODE_GONE)?,
        next: fact(table, NODE_NEXT)?,
        empty: fact(table, NODE_EMPTY)?,
    })
}

/// What is true of the whole store as of its last transaction.
pub(crate) fn node(db: &Database) -> Result<Node, Trouble> {
    read_node(&db.begin_read()?.open_table(NODE)?)
}

/// Reads what is true of the whole store, and marks it as not closed.
fn begin(db: &Database) -> Result<Start, Trouble> {
    let mut txn = db.begin_write()?;
    txn.set_quick_repair(true);
    let start = {
        let mut table = txn.open_table(NODE)?;
        let clean = fact(&table, NODE_CLEAN)? == 1;
        let found = read_node(&table)?;
        let skipped = if clean { 0 } else { OFFSETS_SKIPPED };
        let node = Node { last: found.last.saturating_add(skipped), ..found };
        table.insert(NODE_CLEAN, 0)?;
        table.insert(NODE_LAST, node.last)?;
        Start { epoch: fact(&table, NODE_EPOCH)? as u32, node, clean }
    };
    txn.commit()?;
    Ok(start)
}

/// Marks the store as closed.
pub(crate) fn end(db: &Database, last: u64) -> Result<(), Trouble> {
    let txn = db.begin_write()?;
    {
        let mut node = txn.open_table(NODE)?;
        node.insert(NODE_CLEAN, 1)?;
        node.insert(NODE_LAST, last)?;
    }
    Ok(txn.commit()?)
}
