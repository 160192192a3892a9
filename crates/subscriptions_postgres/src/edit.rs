//! Edits of users' topics, and their results.

use model::Name;

/// An edit of one user's topics. Its names are valid ([`model::name`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserEdit {
    /// The user.
    pub user: Name,
    /// True to remove all topics that the user has.
    pub removes_all: bool,
    /// Topics that the user loses, before those of `adds` are added.
    pub removes: Vec<Name>,
    /// Topics that the user gets.
    pub adds: Vec<Name>,
}

/// Edits that one commit makes, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edits {
    /// The edits.
    pub edits: Vec<UserEdit>,
    /// True if no edit is made where one is rejected. Otherwise the others are made.
    pub all_or_nothing: bool,
    /// The most topics of a user. An edit that gives a user more than that, and more than before, is rejected.
    pub topics_max: usize,
    /// The most subscriptions of all users together; 0 is no limit.
    pub total_max: u64,
}

/// The result of one edit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditOutcome {
    /// It was made.
    Edited {
        /// Topics that the user did not have.
        added: usize,
        /// Topics that the user has no longer.
        removed: usize,
        /// Topics that the user has now.
        count: usize,
    },
    /// It was rejected: the user would have so many topics.
    TooMany {
        /// How many topics the user would have.
        count: usize,
    },
}

/// The result of edits that are committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EditReply {
    /// One for each edit.
    pub outcomes: Vec<EditOutcome>,
    /// True if this node has applied them: its connections have their topics. Otherwise it does so as soon as it can.
    pub is_applied: bool,
}

/// Why no edit was made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatabaseEditError {
    /// With `all_or_nothing`: a user would have too many topics.
    #[error("a user would have {count} subscriptions")]
    TooMany {
        /// The index of the edit.
        index: usize,
        /// How many topics the user would have.
        count: usize,
    },
    /// All users together would have too many topics.
    #[error("all users together would have {more} more subscriptions")]
    Full {
        /// How many more than before.
        more: u64,
    },
    /// Too many edits wait for the database.
    #[error("too many changes are queued for PostgreSQL: repeat this one later")]
    Busy,
    /// The database can't be reached, or has rejected the edits.
    #[error("{0}")]
    Failed(String),
    /// The connection broke before the reply came: the edits may be committed.
    #[error(
        "PostgreSQL did not confirm the changes, so they may or may not be stored ({0}): repeat \
         them"
    )]
    Unconfirmed(String),
}
