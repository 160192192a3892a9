//! Durable subscriptions: the topics that a user enters on connect, saved by the server.
//!
//! [`Subscriptions`] is the table in memory. Topics have numbers, and a user's row is the packed
//! list of the user's topic numbers. A subscription (an edge) takes 3 to 5 bytes in all if users
//! have 50 each. One lock protects the table. A call takes it for one user, or for [`ROWS_A_LOCK`] rows,
//! at a time.
//!
//! A second, optional table has for each topic the packed list of its subscribers' numbers. It has a lock of its own,
//! which no login takes. [`Subscriptions::search`] finds a page of subscribers, by name.
//!
//! A change has two steps, so that the table never contains what the store does not: a [`Plan`]
//! computes the [`Change`], the caller has the store save it (see [`SubscriptionStore`]), and then
//! [`Subscriptions::apply`] applies it. Plans for one user must not overlap: the later one would
//! undo the earlier one (the control API serializes the changes of each user). Without a store,
//! [`Subscriptions::edit`] and [`Subscriptions::set`] do both steps.
//!
//! A name's number never changes, and a name stays in the table without followers: it takes its own bytes and about
//! 11 more. A change that is rejected or fails may leave unused names behind, too.
//!
//! This crate has no socket, no thread and no file: [`csv`] parses and writes texts, and
//! [`generate`] makes a follower graph for tests.

#![forbid(unsafe_code)]

pub mod csv;
mod followers;
pub mod generate;
mod handover;
mod list;
mod load;
mod locked;
mod names;
mod plan;
mod row;
mod subscribers;
mod table;
#[cfg(test)]
mod tests;
mod users;

pub use self::handover::SubscriptionsPart;
pub use load::{LoadError, Loader};
pub use plan::{Plan, check_names};
pub use subscribers::{Page, Search};
pub use table::{ROWS_A_LOCK, Subscriptions};

use model::Name;
use model::name::NAME_BYTES_MAX;

/// What the store must save, all of it or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Users and their complete new rows. An empty row removes the user.
    pub puts: Vec<(Name, Box<[u8]>)>,
    /// Names with their numbers that the store may not have yet. Several changes may contain the
    /// same name, always with the same number.
    pub names: Vec<(u32, Name)>,
}

impl Change {
    /// Returns true if the change is empty.
    pub fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.names.is_empty()
    }
}

/// The effect of an edit on one user's topics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edited {
    /// Topics that the user did not have.
    pub added: Vec<Name>,
    /// Topics that the user had.
    pub removed: Vec<Name>,
    /// The number of topics that the user has now.
    pub count: usize,
}

/// Why a user's topics were not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// The user would have more topics than before and than the limit allows.
    #[error("{user:?} would have {count} subscriptions; a user may have {max}")]
    TooMany {
        /// The user.
        user: Name,
        /// How many topics the user would have.
        count: usize,
        /// The limit.
        max: usize,
    },
    /// The user's name is not valid.
    #[error("the user's name: {0}")]
    User(&'static str),
    /// A topic's name is not valid.
    #[error("the topic {0:?}: {1}")]
    Topic(Name, &'static str),
    /// The table has no capacity for another topic's name.
    #[error(transparent)]
    Full(#[from] NamesFullError),
}

/// The table of names has no capacity: it has 4 GiB, or 4,294,967,296 names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the table of topic names is full (4 GiB): no new topic can be subscribed to")]
pub struct NamesFullError;

/// Why a saved name can't be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadNameError {
    /// The name is empty or too long.
    #[error("a topic's name must have 1 to {NAME_BYTES_MAX} bytes")]
    Length,
    /// The number already has another name.
    #[error("two topics have the same number")]
    Renamed,
    /// The name already has another number.
    #[error("a topic has two numbers")]
    Twice,
    /// The table of names has no capacity.
    #[error("{NamesFullError}")]
    Full,
}

/// Why a saved row can't be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadRowError {
    /// The row ends in the middle of a number.
    #[error("a user's row ends in the middle of a number")]
    Cut,
    /// A number is longer than necessary, or longer than any valid number.
    #[error("a user's row has a number that is longer than it can be")]
    Long,
    /// A number is over `u32::MAX`.
    #[error("a user's row has a number that is too large")]
    Large,
    /// A topic number has no name.
    #[error("a user's row has topic number {0}, which has no name")]
    Unnamed(u32),
    /// The user's name is empty or too long.
    #[error("a user's name must have 1 to {NAME_BYTES_MAX} bytes")]
    User,
}

/// The store, as the code that changes subscriptions sees it.
pub trait SubscriptionStore: Send + Sync {
    /// Saves a change without blocking. `done` is called once, on any thread, after the commit or
    /// with the reason why the change was not saved. The store commits changes in the order of the
    /// calls.
    ///
    /// # Errors
    /// If the store has no capacity at the moment. Then it does not call `done`, and the caller may try
    /// again later.
    fn save(&self, change: Change, done: OnSaved) -> Result<(), String>;
}

/// The callback with the result of a save.
pub type OnSaved = Box<dyn FnOnce(Result<(), String>) + Send>;
