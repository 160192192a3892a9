//! A row of the outbox, and its outcome.

/// A row of the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its number, which orders the rows of one transaction, and transactions one after the other.
    pub id: i64,
    /// An identifier that no other row has, in any database and at any time.
    pub uid: Box<str>,
    /// The message, as a command of `POST /api/batch`; `None` if it is larger than a request may be.
    pub message: Option<Box<str>>,
    /// The message's length, in bytes.
    pub bytes: u64,
}

/// The outcome of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The row is published, and as safe as its topic promises.
    Published,
    /// The row can't be published now: it waits, and all rows behind it.
    Wait(Box<str>),
    /// The row can never be published.
    Refused(Reason),
}

/// Why a row can't be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The code for programs, as in the API.
    pub code: Box<str>,
    /// The text for people.
    pub text: Box<str>,
}

/// Takes the outcome of a row. It is called once, from any thread.
pub type Done = Box<dyn FnOnce(Outcome) + Send>;

/// Publishes rows.
pub trait Publisher: Send + Sync {
    /// Publishes a row, and returns at once. Rows of one topic are published in the order of the calls.
    fn publish(&self, row: &Row, done: Done);
}
