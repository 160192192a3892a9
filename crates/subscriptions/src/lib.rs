//! Durable subscriptions: which topics a user enters on connect, kept by the server.
//!
//! [`Subscriptions`] is the table in memory: topics have numbers, a user's row is the packed list
//! of theirs, and a subscription (an edge) takes 3 to 5 bytes in all with 50 of them a user. It
//! has one lock, which is held for one user, or for [`ROWS_A_HOLD`] rows, at a time; nothing else is
//! locked while it is held.
//!
//! A change has two steps, so that the table never says what the store doesn't: a [`Plan`] finds
//! out what would change, whoever plans has the store keep the [`Change`] (see [`Keep`]), and
//! [`Subscriptions::apply`] makes it so. Two plans for one user must not overlap: the later one
//! would undo the earlier (the control API lets each user's changes go one after the other).
//! Without a store, [`Subscriptions::edit`] and [`Subscriptions::set`] do both steps.
//!
//! Names are never numbered anew, and stay when nobody follows them any more: a name takes its
//! bytes and about 11 more. A change that is refused or fails may leave unused names too.
//!
//! No socket, no thread, no file is in here: [`csv`] reads and writes texts, [`generate`] makes a
//! graph of followers for tests.

pub mod csv;
pub mod generate;
mod names;
mod plan;
mod row;
mod table;
#[cfg(test)]
mod tests;
mod users;

pub use plan::Plan;
pub use table::{ROWS_A_HOLD, Subscriptions};

use wire::Name;
use wire::message::NAME_BYTES_MAX;

/// What the store has to keep, all of it or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Users and their whole new rows; an empty row means that the user has none any more.
    pub puts: Vec<(Name, Box<[u8]>)>,
    /// Names that are not known to be kept, with their numbers. The same name may come in several
    /// changes, always with the same number.
    pub names: Vec<(u32, Name)>,
}

impl Change {
    /// True when there is nothing to keep.
    pub fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.names.is_empty()
    }
}

/// What became of one user's topics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edited {
    /// Topics that the user didn't have.
    pub added: Vec<Name>,
    /// Topics that the user had.
    pub removed: Vec<Name>,
    /// Topics that the user has now.
    pub count: usize,
}

/// Why a user's topics were not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// The user would have more topics than before and than are allowed.
    #[error("{user:?} would have {count} subscriptions; a user may have {max}")]
    TooMany {
        /// Whose they are.
        user: Name,
        /// How many there would be.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// The user's name can't be one.
    #[error("the user's name: {0}")]
    BadUser(&'static str),
    /// A topic's name can't be one.
    #[error("the topic {0:?}: {1}")]
    BadTopic(Name, &'static str),
    /// There is no room for another topic's name.
    #[error(transparent)]
    Full(#[from] Full),
}

/// The table of names is full: it holds 4 GiB, or 4,294,967,296 names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the table of topic names is full (4 GiB): no new topic can be subscribed to")]
pub struct Full;

/// Why a name that was kept can't be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// It is empty or too long.
    #[error("a topic's name must have 1 to {NAME_BYTES_MAX} bytes")]
    Length,
    /// Its number has another name.
    #[error("two topics have the same number")]
    Renamed,
    /// It has another number.
    #[error("a topic has two numbers")]
    Twice,
    /// There is no more room.
    #[error("{Full}")]
    Full,
}

/// Why a row that was kept can't be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRow {
    /// It ends in the middle of a number.
    #[error("a user's row ends in the middle of a number")]
    Cut,
    /// A number is longer than it has to be, or than any.
    #[error("a user's row has a number that is longer than it can be")]
    Long,
    /// A number is over `u32::MAX`.
    #[error("a user's row has a number that is too large")]
    Large,
    /// A number has no name.
    #[error("a user's row has topic number {0}, which has no name")]
    Unnamed(u32),
    /// The user's name is empty or too long.
    #[error("a user's name must have 1 to {NAME_BYTES_MAX} bytes")]
    User,
}

/// Where changes are kept, if they are: the store, as those who change subscriptions see it.
pub trait Keep: Send + Sync {
    /// Keeps a change; never blocks. `done` is called once, on any thread, when the change is
    /// committed, or with the reason when it is not and will not be. Changes are committed in the
    /// order of the calls.
    ///
    /// # Errors
    /// When there is no room for it now: nothing was done, `done` will not be called, and trying
    /// again later helps.
    fn keep(&self, change: Change, done: Kept) -> Result<(), String>;
}

/// Told what became of a change.
pub type Kept = Box<dyn FnOnce(Result<(), String>) + Send>;
