//! The store's errors. Their texts tell the operator what to do.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::Name;

/// The bytes don't have the form of this format version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a row of the store does not have the form that this version writes")]
pub struct RowError;

/// The file does not contain what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The table.
    pub table: &'static str,
    /// The topic, if it is known.
    pub topic: Option<Name>,
    /// The damage covers the topic's messages after this offset ...
    pub after: u64,
    /// ... up to this one. Both are 0 if no messages are affected.
    pub through: u64,
    /// What is damaged.
    pub what: String,
}

impl Damage {
    /// Makes damage in a table other than that of the messages.
    pub(crate) fn in_table(table: &'static str, what: impl Into<String>) -> Self {
        Damage { table, topic: None, after: 0, through: 0, what: what.into() }
    }

    /// Makes damage in a topic's messages after one offset and up to another.
    pub(crate) fn in_messages(
        topic: &str,
        after: u64,
        through: u64,
        what: impl Into<String>,
    ) -> Self {
        let topic = Some(Name::from(topic));
        Damage { table: "messages", topic, after, through, what: what.into() }
    }
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Damage { table, topic, after, through, what } = self;
        match topic {
            Some(topic) if *through == u64::MAX => {
                write!(f, "messages of {topic} after offset {after}: {what}")
            }
            Some(topic) if *through > 0 => {
                write!(f, "messages of {topic} after offset {after} up to {through}: {what}")
            }
            Some(topic) => write!(f, "{table}, topic {topic}: {what}"),
            None => write!(f, "{table}: {what}"),
        }
    }
}

/// A write or a read failed. The text is for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The disk rejected the operation.
    #[error("{0}")]
    Disk(Arc<str>),
    /// The disk returned something other than what was written.
    #[error(
        "the store is damaged: {0}. `throng store check` lists the damage; restore the store from \
         a backup, or continue without the damaged data: delete the topic's history, or let \
         `throng store salvage` write a new store with all that is intact"
    )]
    Damaged(Arc<Damage>),
    /// The store is closed.
    #[error("the store is closed: the process is ending")]
    Closed,
}

/// The queue did not accept the operation. The same call may succeed later.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The queue has no capacity.
    #[error("the store's queue is full: publish slower, or raise the limit")]
    Full,
    /// The last write failed, and none has succeeded since.
    #[error("{0}")]
    Unavailable(Arc<str>),
    /// The store is closed.
    #[error("the store is closed: the process is ending")]
    Closed,
    /// The store's file is passing from one process to another.
    #[error("the store is being passed to another process: try again in a second")]
    Away,
}

/// A backup did not begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackupError {
    /// Another backup of the store runs.
    #[error("a backup to {dir} is running, and only one runs at a time: try again when it is done")]
    Running {
        /// The directory of the other one.
        dir: PathBuf,
    },
    /// The directory has a store.
    #[error("{dir} already has a store, which is not overwritten: choose another name")]
    Exists {
        /// The directory.
        dir: PathBuf,
    },
    /// The queue of reads has no capacity.
    #[error("too many reads are queued for the store: try again later")]
    Busy,
    /// The store is closed.
    #[error("the store is closed, because the server is ending: back it up after the restart")]
    Closed,
}

/// The store can't be opened or copied. Nothing on the disk was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The process can't create the directory or write to it.
    #[error("{dir}: {error}. The store needs a directory that this user may write to")]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// Another process has the store open.
    #[error(
        "{dir} is in use by another process: a store belongs to one process at a time. End the \
         other one, or give this one a directory of its own"
    )]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory has no store.
    #[error("{dir} has no store: name the directory of one, as in throng serve --data DIR")]
    Missing {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory for a copy has a store.
    #[error("{dir} already has a store, which is not overwritten: name a directory without one")]
    Exists {
        /// The directory.
        dir: PathBuf,
    },
    /// A later version of Throng wrote the file.
    #[error(
        "{file} has format version {found}, and this version of Throng supports {known}: use the \
         version of Throng that wrote it, or a newer one. Nothing was changed"
    )]
    Format {
        /// The file.
        file: PathBuf,
        /// The file's format version.
        found: u64,
        /// The newest format version that this program knows.
        known: u64,
    },
    /// The file has the first format, whose rows can't be copied as they are.
    #[error(
        "{file} has format version {found}, whose rows have no checksums: start a server with it \
         once, which rewrites it, and repeat this. Nothing was changed"
    )]
    Earlier {
        /// The file.
        file: PathBuf,
        /// The file's format version.
        found: u64,
    },
    /// The file was closed while it was copied.
    #[error(
        "{file} was closed before all of it was copied, because the server ended, passed it to \
         another process, or its disk failed. The incomplete copy was removed: try again"
    )]
    Interrupted {
        /// The file.
        file: PathBuf,
    },
    /// The file is damaged, so it was not copied.
    #[error(
        "{file} is damaged, so it was not copied ({reason}). Nothing was changed, and the \
         incomplete copy was removed: `throng store check` lists the damage; continue without the \
         damaged data by deleting the history of its topic, or let `throng store salvage` write a \
         new store with all that is intact"
    )]
    NotCopied {
        /// The file.
        file: PathBuf,
        /// What the copy found.
        reason: String,
    },
    /// A row for a new store is damaged, so that the store was not written.
    #[error(
        "the history has a row that can't be read ({reason}): delete the history of its topic, or \
         use the newer version that wrote it. The incomplete store was removed"
    )]
    NotImported {
        /// What the import found.
        reason: String,
    },
    /// The file is not a store, or it is damaged.
    #[error(
        "{file} is not a store of Throng or is damaged ({reason}). Nothing was changed: restore \
         the file from a backup, or move it away to begin with an empty store; `throng store \
         check` lists the damage, and `throng store salvage` writes a new store with all that is \
         intact, also from a file that an earlier version wrote"
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What the store found.
        reason: String,
    },
    /// The file's format can't be read, so that not even a salvage is possible.
    #[error(
        "{file} is not a store of Throng, or so damaged that its format can't be read ({reason}). \
         Nothing was changed: restore the file from a backup, or move it away to begin with an \
         empty store"
    )]
    Unknown {
        /// The file.
        file: PathBuf,
        /// What the store found.
        reason: String,
    },
    /// The file has changed since the other process passed it on.
    #[error(
        "{file} is not as the process that passed it on has left it: something else has changed \
         it since. Nothing was changed: end the program that has it open, and check it with \
         `throng store check`"
    )]
    NotPassed {
        /// The file.
        file: PathBuf,
    },
    /// The disk rejected the operation.
    #[error("{file}: {reason}")]
    Disk {
        /// The file.
        file: PathBuf,
        /// What happened and what to do.
        reason: String,
    },
}

/// An error inside the store, before it is translated for the caller.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InternalError {
    #[error(transparent)]
    Redb(redb::Error),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Row(#[from] RowError),
    #[error("{0}")]
    Damaged(Box<Damage>),
    #[error("what lies in it can't be what was written")]
    Panic,
}

impl InternalError {
    /// Returns the system's error, if there is one.
    fn io(&self) -> Option<&std::io::Error> {
        match self {
            InternalError::Redb(redb::Error::Io(error)) | InternalError::Io(error) => Some(error),
            _ => None,
        }
    }

    /// Returns the system's error, if it says that the disk is full.
    pub fn disk_full(&self) -> Option<&std::io::Error> {
        let full = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded];
        self.io().filter(|error| full.contains(&error.kind()))
    }

    /// Returns true if the system rejected the operation. False if the file is too short or not a database.
    pub fn is_rejected_by_system(&self) -> bool {
        let of_the_file = [ErrorKind::InvalidData, ErrorKind::UnexpectedEof];
        self.io().is_some_and(|error| !of_the_file.contains(&error.kind()))
    }

    /// Returns true if the disk worked but returned something other than what was written.
    pub fn is_damage(&self) -> bool {
        self.io().is_none()
            && !matches!(
                self,
                InternalError::Redb(redb::Error::DatabaseClosed | redb::Error::DatabaseAlreadyOpen)
            )
    }

    /// Attributes damage to the messages of a topic. Other errors stay as they are.
    pub fn in_topic(self, topic: &str, after: u64, through: u64) -> Self {
        match self {
            InternalError::Damaged(damage) => InternalError::Damaged(damage),
            damage if damage.is_damage() => {
                Damage::in_messages(topic, after, through, damage.to_string()).into()
            }
            other => other,
        }
    }

    /// Translates the error for the caller of the store.
    pub fn into_store_error(self, dir: &Path) -> StoreError {
        match self {
            InternalError::Damaged(damage) => StoreError::Damaged(Arc::from(damage)),
            damage if damage.is_damage() => {
                StoreError::Damaged(Arc::new(Damage::in_table("the file", damage.to_string())))
            }
            other => StoreError::Disk(other.advice(dir).into()),
        }
    }

    /// Returns what happened and what to do, for a store that is not open yet and does not retry by itself.
    pub fn advice_at_start(&self, dir: &Path) -> String {
        match self.disk_full() {
            Some(error) => format!(
                "the disk is full ({error}): free space in {}, and start again; nothing that was \
                 acknowledged is lost",
                dir.display()
            ),
            None => self.advice(dir),
        }
    }

    /// Returns what happened and what to do, for an open store in this directory.
    pub fn advice(&self, dir: &Path) -> String {
        let dir = dir.display();
        match self.io().map(|error| (error.kind(), error)) {
            Some((ErrorKind::StorageFull | ErrorKind::QuotaExceeded, error)) => format!(
                "the disk is full ({error}): free space in {dir}; nothing that was acknowledged \
                 is lost, and the store then resumes writing by itself"
            ),
            Some((ErrorKind::FileTooLarge, error)) => format!(
                "the store's file in {dir} may not grow ({error}): raise the limit on file sizes \
                 (ulimit -f); nothing that was acknowledged is lost"
            ),
            Some((_, error)) => format!(
                "the disk reported an error ({error}): check the disk that holds {dir} and its \
                 permissions; nothing that was acknowledged is lost as long as the disk can be \
                 read"
            ),
            None => format!(
                "the store in {dir} is damaged ({self}): stop the server, check it with `throng \
                 store check {dir}`, and restore the file from a backup, or write a new one with \
                 all that is intact with `throng store salvage`"
            ),
        }
    }
}

impl From<Damage> for InternalError {
    fn from(damage: Damage) -> Self {
        InternalError::Damaged(Box::new(damage))
    }
}

macro_rules! from_redb {
    ($($error:ident),*) => {$(
        impl From<redb::$error> for InternalError {
            fn from(error: redb::$error) -> Self {
                InternalError::Redb(error.into())
            }
        }
    )*};
}

from_redb!(StorageError, TableError, TransactionError, CommitError, DatabaseError);
