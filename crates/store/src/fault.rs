//! What can go wrong, told so that somebody can do something about it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::record::BadRow;

/// Something was not written or not read. What is in the text is for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The disk refused, or gave back something else than was written.
    #[error("{0}")]
    Disk(Arc<str>),
    /// The store is closed.
    #[error("the store is closed: the process is ending")]
    Closed,
}

/// Nothing was taken in. The same call may succeed later.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// More waits for the disk than may wait.
    #[error("more waits for the disk than may wait: publish slower, or raise the limit")]
    Full,
    /// The last write failed, and none has succeeded since.
    #[error("{0}")]
    Failed(Arc<str>),
    /// The store is closed.
    #[error("the store is closed: the process is ending")]
    Closed,
}

/// The store can't be opened. Nothing on disk was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory can't be made or written to.
    #[error("{dir}: {error}. The store needs a directory that this user may write to")]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// A process has it open.
    #[error(
        "{dir} is in use by another process: a store belongs to one process at a time. End the \
         other one, or give this one a directory of its own"
    )]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// A later version of Throng wrote it.
    #[error(
        "{file} has format version {found}, and this version of Throng knows {known}: use the \
         version of Throng that wrote it, or a newer one. Nothing was changed"
    )]
    Format {
        /// The file.
        file: PathBuf,
        /// The file's format version.
        found: u64,
        /// The one that is known.
        known: u64,
    },
    /// It is no store, or a damaged one.
    #[error(
        "{file} is not a store of Throng or is damaged ({reason}). Nothing was changed: restore the \
         file from a backup, or move it away to begin with an empty store"
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What was met.
        reason: String,
    },
    /// The disk refused.
    #[error("{file}: {reason}")]
    Disk {
        /// The file.
        file: PathBuf,
        /// What was met, and what to do.
        reason: String,
    },
}

/// An error inside of the store, before it is told to anyone.
#[derive(Debug)]
pub(crate) enum Trouble {
    Redb(redb::Error),
    Io(std::io::Error),
    Row(BadRow),
    Panic,
}

impl Trouble {
    /// The system's error, if that is what it is.
    fn io(&self) -> Option<&std::io::Error> {
        match self {
            Trouble::Redb(redb::Error::Io(error)) | Trouble::Io(error) => Some(error),
            _ => None,
        }
    }

    /// What happened and what to do, for a store in this directory.
    pub fn advice(&self, dir: &Path) -> String {
        let dir = dir.display();
        match self.io().map(|error| (error.kind(), error)) {
            Some((ErrorKind::StorageFull | ErrorKind::QuotaExceeded, error)) => format!(
                "the disk is full ({error}): free space in {dir}; nothing that was acknowledged is \
                 lost, and writing goes on by itself"
            ),
            Some((ErrorKind::FileTooLarge, error)) => format!(
                "the store's file in {dir} may not grow ({error}): raise the limit on file sizes \
                 (ulimit -f); nothing that was acknowledged is lost"
            ),
            Some((_, error)) => format!(
                "the disk refuses ({error}): look after the disk that holds {dir} and its \
                 permissions; nothing that was acknowledged is lost as long as the disk can be read"
            ),
            None => format!(
                "the store in {dir} is damaged ({self}): stop the server, and restore the file from \
                 a backup or move it away"
            ),
        }
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Trouble::Redb(error) => error.fmt(f),
            Trouble::Io(error) => error.fmt(f),
            Trouble::Row(error) => error.fmt(f),
            Trouble::Panic => f.write_str("what lies in it can't be what was written"),
        }
    }
}

impl From<BadRow> for Trouble {
    fn from(error: BadRow) -> Self {
        Trouble::Row(error)
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Trouble::Io(error)
    }
}

macro_rules! from_redb {
    ($($error:ident),*) => {$(
        impl From<redb::$error> for Trouble {
            fn from(error: redb::$error) -> Self {
                Trouble::Redb(error.into())
            }
        }
    )*};
}

from_redb!(StorageError, TableError, TransactionError, CommitError, DatabaseError);
