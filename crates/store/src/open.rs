//! Finding the file, or making it; and what a process finds in it.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use redb::backends::FileBackend;
use redb::{Builder, Database, ReadableDatabase, TableError};

use crate::base::Base;
use crate::check;
use crate::disk::Disk;
use crate::facts::Node;
use crate::fault::{OpenError, Trouble};
use crate::header::Header;
use crate::mark::{self, Mark};
use crate::quiet::quietly;
use crate::rewrite;
use crate::tables::{
    CURSORS, EXPIRIES, FACTS, FORMAT, FORMAT_BEFORE, IDEMPOTENCY, KEYS, MESSAGES, NAMES, NODE,
    NODE_FORMAT, SUBSCRIPTIONS, TOPICS,
};

/// The file's name in the store's directory.
pub const FILE: &str = "throng.redb";

/// The name of the file that a process locks.
pub(crate) const LOCK: &str = "throng.lock";

/// A new file's name until it is whole.
const NEW: &str = "throng.redb.new";

/// The name of the file that is given up when a deletion finds the disk full.
const RESERVE: &str = "throng.reserve";

/// Its length. A deletion writes the pages anew on the way to what it deletes, a few hundred rows
/// at a time.
const RESERVE_BYTES: usize = 2 << 20;

/// How far the numbering jumps when the last process did not close the store: offsets that it drew
/// and did not commit are not drawn again.
pub const OFFSETS_SKIPPED: u64 = 1 << 20;

/// Damaged places that a refusal names; `throng store check` names all.
const NAMED_MAX: usize = 5;

/// Files are their owner's: they hold everybody's messages.
const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;

/// How files are opened that may have to be made.
pub(crate) fn private() -> OpenOptions {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
    options
}

/// Takes a file from everybody else, where it was made with wider rights.
fn narrow(path: &Path) {
    let Ok(metadata) = std::fs::metadata(path) else { return };
    if metadata.permissions().mode() & 0o077 == 0 {
        return;
    }
    match std::fs::set_permissions(path, Permissions::from_mode(FILE_MODE)) {
        Ok(()) => tracing::warn!(
            "{} could be read by others (mode {:o}): it is its owner's only now",
            path.display(),
            metadata.mode() & 0o777,
        ),
        Err(error) => tracing::warn!(
            "{} can be read by others (mode {:o}), and holds everybody's messages: chmod 600 it as \
             its owner ({error})",
            path.display(),
            metadata.mode() & 0o777,
        ),
    }
}

/// An open file that was not let through to the disk yet.
pub(crate) struct Opened {
    pub db: Base,
    pub disk: Disk,
    /// Its last commit may not be in it.
    pub is_lost: bool,
}

/// Opens redb's file, and looks at the whole of it if `verify`. Nothing is written to it until it
/// is let through.
pub(crate) fn database(
    file: impl Fn() -> Result<Disk, Trouble>,
    cache_bytes_max: usize,
    verify: bool,
) -> Result<Opened, Trouble> {
    let disk = file()?;
    let before = Header::read(&disk)?;
    if let Some(header) = before.filter(Header::has_newer) {
        let newer = file()?;
        header.take_other(&newer)?;
        let opened = open_disk(newer, None, cache_bytes_max, true);
        if let Some(opened) = opened.ok().filter(|opened| quietly(|| Node::of(&opened.db)).is_ok())
        {
            return Ok(Opened { is_lost: false, ..opened });
        }
    }
    open_disk(disk, before, cache_bytes_max, verify)
}

fn open_disk(
    disk: Disk,
    before: Option<Header>,
    cache_bytes_max: usize,
    verify: bool,
) -> Result<Opened, Trouble> {
    let repaired = Arc::new(AtomicBool::new(false));
    let (backend, repairs) = (disk.clone(), repaired.clone());
    let open = || {
        let mut builder = Builder::new();
        builder.set_cache_size(cache_bytes_max).set_check_integrity_on_open(verify);
        builder.set_repair_callback(move |_| repairs.store(true, Relaxed));
        Ok(builder.create_with_backend(backend)?)
    };
    // redb trusts a file that was closed, so that damage in it may end in a panic.
    let db = Base::new(quietly(open)?);
    let opened = Header::read(&disk)?;
    let is_lost = before
        .zip(opened)
        .is_none_or(|(before, opened)| before.is_lost(&opened, repaired.load(Relaxed)));
    Ok(Opened { db, disk, is_lost })
}

/// What was true when the store was opened.
pub(crate) struct Start {
    pub node: Node,
    pub clean: bool,
    /// Room for deletions is held.
    pub has_room: bool,
}

/// A directory that this process has for itself.
pub(crate) struct Directory {
    dir: PathBuf,
    /// Its lock is let go when the store is closed, also where other descriptor tables hold it.
    lock: File,
    mark: Mark,
}

impl Directory {
    /// Makes the directory if there is none, and locks it.
    pub fn claim(dir: &Path) -> Result<Self, OpenError> {
        let refused = |error| OpenError::Directory { dir: dir.into(), error };
        DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir).map_err(refused)?;
        let lock = private().open(dir.join(LOCK)).map_err(refused)?;
        match lock.try_lock() {
            Ok(()) => {
                let mark = Mark::open(dir).map_err(refused)?;
                Ok(Directory { dir: dir.into(), lock, mark })
            }
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

    /// Notes a commit of which somebody may be told from now on.
    pub fn mark(&self, node: &Node) {
        self.mark.put(node);
    }

    pub fn release(&self) {
        let _ = self.lock.unlock();
    }

    /// Holds room on the disk for deletions; false where there is none.
    pub fn reserve(&self) -> bool {
        let path = self.dir.join(RESERVE);
        if std::fs::metadata(&path).is_ok_and(|file| file.len() == RESERVE_BYTES as u64) {
            return true;
        }
        // Noise, for zeros may take no room.
        let mut noise = 0x9e37_79b9_7f4a_7c15_u64;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            noise as u8
        })
        .take(RESERVE_BYTES)
        .collect();
        let made = private().truncate(true).open(&path).and_then(|mut file| {
            std::io::Write::write_all(&mut file, &bytes)?;
            file.sync_all()
        });
        if made.is_err() {
            let _ = std::fs::remove_file(&path);
        }
        made.is_ok()
    }

    /// Gives that room up.
    pub fn give_up_reserve(&self) {
        let _ = std::fs::remove_file(self.dir.join(RESERVE));
    }

    /// Opens the file, or makes it with this epoch, and marks it as in use. A file of up to so many
    /// bytes is looked at whole.
    pub fn open(
        &self,
        new_epoch: u32,
        cache_bytes_max: usize,
        verify_bytes_max: u64,
    ) -> Result<(Base, Start), OpenError> {
        let file = self.file();
        let is_there = file.try_exists().map_err(|error| self.error(error.into()))?;
        if !is_there {
            self.create(new_epoch).map_err(|trouble| self.error(trouble))?;
        }
        for name in [FILE, LOCK, mark::FILE] {
            narrow(&self.dir.join(name));
        }
        let length = std::fs::metadata(&file).map_err(|error| self.error(error.into()))?.len();
        let opened = self.try_open(cache_bytes_max, length <= verify_bytes_max);
        let mut opened = opened.map_err(|trouble| self.error(trouble))?;
        if self.check_format(format(&opened.db))? == FORMAT_BEFORE {
            drop(opened);
            opened =
                self.rewrite(cache_bytes_max).map_err(|trouble| self.no_copy(trouble, length))?;
        }
        let Opened { db, disk, is_lost } = opened;
        // Before anything is written: they may be damaged.
        let node = quietly(|| Node::of(&db)).map_err(|trouble| self.error(trouble))?;
        let is_lost = mark::is_lost(&self.dir, &node, is_lost);
        disk.let_through().map_err(|trouble| self.error(trouble))?;
        let start = quietly(|| begin(&db, is_lost)).map_err(|trouble| self.error(trouble))?;
        self.mark(&start.node);
        let has_room = self.reserve();
        if !has_room {
            tracing::warn!(
                "{} can't be made: while the disk is full, messages can't be deleted. It is tried \
                 again every minute",
                self.dir.join(RESERVE).display(),
            );
        }
        Ok((db, Start { has_room, ..start }))
    }

    fn try_open(&self, cache_bytes_max: usize, verify: bool) -> Result<Opened, Trouble> {
        database(|| Disk::open(&self.file()), cache_bytes_max, verify)
    }

    /// Brings a file of the format before up to this one: a new file takes its place once it is
    /// whole.
    fn rewrite(&self, cache_bytes_max: usize) -> Result<Opened, Trouble> {
        tracing::info!("the store's file is of the version before: it is written anew");
        // The format before has no checksums of its own.
        let old = self.try_open(cache_bytes_max, true)?;
        self.replace(|new| rewrite::from_format_before(&old.db, new, old.is_lost))?;
        drop(old);
        self.try_open(cache_bytes_max, true)
    }

    /// Makes the file under another name first: it is whole or it is not there.
    fn create(&self, epoch: u32) -> Result<(), Trouble> {
        self.replace(|db| {
            let txn = db.begin_write()?;
            Node { epoch, clean: true, ..Node::default() }.put(&txn)?;
            Ok(txn.commit()?)
        })
    }

    /// Puts a new file in the place of the store's, once it is filled and whole. One that is not is
    /// removed: its room may be what is missing.
    pub(crate) fn replace<T>(
        &self,
        fill: impl FnOnce(&Database) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        let made = || {
            let new = Base::new(self.begin_new()?);
            let filled = fill(&new)?;
            self.end_new(new)?;
            Ok(filled)
        };
        let made = made();
        if made.is_err() {
            let _ = std::fs::remove_file(self.dir.join(NEW));
        }
        made
    }

    /// A file that will take the place of the store's, with all its tables.
    fn begin_new(&self) -> Result<Database, Trouble> {
        let new = self.dir.join(NEW);
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let file = FileBackend::new(private().create_new(true).open(&new)?)?;
        let db = Builder::new().create_with_backend(file)?;
        let txn = db.begin_write()?;
        txn.open_table(NODE)?.insert(NODE_FORMAT, FORMAT)?;
        txn.open_table(FACTS)?;
        txn.open_table(TOPICS)?;
        txn.open_table(MESSAGES)?;
        txn.open_table(KEYS)?;
        txn.open_table(EXPIRIES)?;
        txn.open_table(IDEMPOTENCY)?;
        txn.open_table(CURSORS)?;
        txn.open_table(SUBSCRIPTIONS)?;
        txn.open_table(NAMES)?;
        txn.commit()?;
        Ok(db)
    }

    /// Puts it in its place.
    fn end_new(&self, db: Base) -> Result<(), Trouble> {
        db.close()?;
        std::fs::rename(self.dir.join(NEW), self.file())?;
        File::open(&self.dir)?.sync_all()?;
        Ok(())
    }

    fn check_format(&self, found: Result<Option<u64>, Trouble>) -> Result<u64, OpenError> {
        match found.map_err(|trouble| self.error(trouble))? {
            Some(known @ (FORMAT | FORMAT_BEFORE)) => Ok(known),
            Some(found) => Err(OpenError::Format { file: self.file(), found, known: FORMAT }),
            None => {
                let reason = "it says nothing of its format".into();
                Err(OpenError::Unknown { file: self.file(), reason })
            }
        }
    }

    /// The damaged places, as far as they can be told.
    fn places(&self) -> String {
        let Ok(report) = check::look(&self.file(), false) else { return String::new() };
        let places: Vec<String> =
            report.damages.iter().take(NAMED_MAX).map(|damage| format!("; {damage}")).collect();
        let more = report.damages.len().saturating_sub(NAMED_MAX);
        let more = if more > 0 { format!("; and {more} more places") } else { String::new() };
        places.concat() + &more
    }

    /// The file of the version before, of this length, could not be written anew.
    fn no_copy(&self, trouble: Trouble, length: u64) -> OpenError {
        let Some(error) = trouble.full() else { return self.error(trouble) };
        let reason = format!(
            "the disk is full ({error}), and a file of the version before is written anew at the \
             start, which takes about as much room again: free {length} bytes or more in {}, and \
             start again. Nothing was changed",
            self.dir.display()
        );
        OpenError::Disk { file: self.file(), reason }
    }

    fn error(&self, trouble: Trouble) -> OpenError {
        let file = self.file();
        let reason = trouble.to_string();
        match &trouble {
            Trouble::Redb(redb::Error::DatabaseAlreadyOpen) => {
                OpenError::InUse { dir: self.dir.clone() }
            }
            refusal if refusal.is_refusal() => {
                OpenError::Disk { file, reason: trouble.advice_at_start(&self.dir) }
            }
            // The file is too short or no database: there is nothing to look at.
            Trouble::Redb(redb::Error::Io(_)) | Trouble::Io(_) => {
                OpenError::Damaged { file, reason }
            }
            _ => OpenError::Damaged { file, reason: reason + &self.places() },
        }
    }
}

/// The file's format version, if it has one.
pub(crate) fn format(db: &Database) -> Result<Option<u64>, Trouble> {
    quietly(|| {
        let txn = db.begin_read()?;
        match txn.open_table(NODE) {
            Ok(node) => Ok(node.get(NODE_FORMAT)?.map(|row| row.value())),
            Err(TableError::Storage(error)) => Err(error.into()),
            Err(_) => Ok(None),
        }
    })
}

/// Reads what is true of the whole store, and marks it as not closed.
fn begin(db: &Database, is_lost: bool) -> Result<Start, Trouble> {
    let mut node = Node::of(db)?;
    let clean = node.clean && !is_lost;
    let last = node.last;
    if !clean {
        node.last = last.saturating_add(OFFSETS_SKIPPED);
    }
    if is_lost {
        tracing::warn!(
            "the store's file did not keep its last commit: messages after offset {last} may be \
             lost. A loss of power leaves a file like this, and then nobody was told that they \
             were stored; so does damage"
        );
        node.lost_after = if node.lost_through == 0 { last } else { node.lost_after.min(last) };
        node.lost_through = node.last;
    }
    node.clean = false;
    node.commits += 1;
    let mut txn = db.begin_write()?;
    txn.set_quick_repair(true);
    node.put(&txn)?;
    txn.commit()?;
    Ok(Start { node, clean, has_room: false })
}

/// Marks the store as closed.
pub(crate) fn end(db: &Database, last: u64) -> Result<Node, Trouble> {
    let before = Node::of(db)?;
    let node = Node { clean: true, last, commits: before.commits + 1, ..before };
    let txn = db.begin_write()?;
    node.put(&txn)?;
    txn.commit()?;
    Ok(node)
}
