//! What can go wrong, told so that somebody can do something about it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wire::Name;

use crate::record::BadRow;

/// Something in the file is not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The table.
    pub table: &'static str,
    /// The topic, where it is known.
    pub topic: Option<Name>,
    /// Of that topic the messages after this offset ...
    pub after: u64,
    /// ... up to this one; both 0 where it is not about messages.
    pub through: u64,
    /// What was met.
    pub what: String,
}

impl Damage {
    /// In a table, elsewhere than in the messages of a topic.
    pub(crate) fn table(table: &'static str, what: impl Into<String>) -> Self {
        Damage { table, topic: None, after: 0, through: 0, what: what.into() }
    }

    /// In the messages of a topic after one offset, up to another.
    pub(crate) fn of(topic: &str, after: u64, through: u64, what: impl Into<String>) -> Self {
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

/// Something was not written or not read. What is in the text is for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The disk refused.
    #[error("{0}")]
    Disk(Arc<str>),
    /// The disk gave back something else than was written.
    #[error(
        "the store is damaged: {0}. `throng store check` lists what is gone; restore the store from \
         a backup, or go on without: delete the topic's history, or let `throng store salvage` \
         write a new store of all that is whole"
    )]
    Damaged(Arc<Damage>),
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
         file from a backup, or move it away to begin with an empty store; `throng store check` \
         lists what is gone, and `throng store salvage` writes a new store of all that is whole, \
         also of a file that the version before wrote"
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What was met.
        reason: String,
    },
    /// Nothing can be said of it, so that nothing can be salvaged.
    #[error(
        "{file} is not a store of Throng, or so damaged that its format can't be read ({reason}). \
         Nothing was changed: restore the file from a backup, or move it away to begin with an \
         empty store"
    )]
    Unknown {
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
    Damaged(Box<Damage>),
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

    /// What the system says, if that is that there is no room.
    pub fn full(&self) -> Option<&std::io::Error> {
        let full = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded];
        self.io().filter(|error| full.contains(&error.kind()))
    }

    /// True where the system refused, rather than that the file is too short or no database.
    pub fn is_refusal(&self) -> bool {
        let of_the_file = [ErrorKind::InvalidData, ErrorKind::UnexpectedEof];
        self.io().is_some_and(|error| !of_the_file.contains(&error.kind()))
    }

    /// True where the disk did what it should, but gave back something else than was written.
    pub fn is_damage(&self) -> bool {
        self.io().is_none()
            && !matches!(
                self,
                Trouble::Redb(redb::Error::DatabaseClosed | redb::Error::DatabaseAlreadyOpen)
            )
    }

    /// The same, said of the messages of a topic; what is no damage stays as it is.
    pub fn of(self, topic: &str, after: u64, through: u64) -> Self {
        match self {
            Trouble::Damaged(damage) => Trouble::Damaged(damage),
            damage if damage.is_damage() => {
                Damage::of(topic, after, through, damage.to_string()).into()
            }
            other => other,
        }
    }

    /// For whoever called.
    pub fn fault(self, dir: &Path) -> Fault {
        match self {
            Trouble::Damaged(damage) => Fault::Damaged(Arc::from(damage)),
            damage if damage.is_damage() => {
                Fault::Damaged(Arc::new(Damage::table("the file", damage.to_string())))
            }
            other => Fault::Disk(other.advice(dir).into()),
        }
    }

    /// The same for a store that is not open yet: nothing goes on by itself.
    pub fn advice_at_start(&self, dir: &Path) -> String {
        match self.full() {
            Some(error) => format!(
                "the disk is full ({error}): free space in {}, and start again; nothing that was \
                 acknowledged is lost",
                dir.display()
            ),
            None => self.advice(dir),
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
                "the store in {dir} is damaged ({self}): stop the server, look at it with `throng \
                 store check {dir}`, and restore the file from a backup or write a new one of all \
                 that is whole with `throng store salvage`"
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
            Trouble::Damaged(damage) => damage.fmt(f),
            Trouble::Panic => f.write_str("what lies in it can't be what was written"),
        }
    }
}

impl From<Damage> for Trouble {
    fn from(damage: Damage) -> Self {
        Trouble::Damaged(Box::new(damage))
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
