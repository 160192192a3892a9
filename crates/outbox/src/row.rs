//! A row of the outbox, and what comes of it.

/// A row of the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its number: the order of the rows of one transaction, and of transactions one after the other.
    pub id: i64,
    /// What no other row has, in any database and at any time.
    pub uid: Box<str>,
    /// The message, as a command of `POST /api/batch`; `None` where it is larger than what a request may be.
    pub message: Option<Box<str>>,
    /// The message's length, in bytes.
    pub bytes: u64,
}

/// What came of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is published, and as safe as its topic promises.
    Published,
    /// It can't be published now: the row waits, and all behind it.
    Wait(Box<str>),
    /// It can never be published.
    Refused(Reason),
}

/// Why a row can't be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The code for programs, as the API has it.
    pub code: Box<str>,
    /// The text for people.
    pub text: Box<str>,
}

/// Gets what came of a row. It is called once, from any thread.
pub type Done = Box<dyn FnOnce(Outcome) + Send>;

/// Publishes rows.
pub trait Publisher: Send + Sync {
    /// Publishes a row, and returns at once. Rows of one topic are published in the order of the calls.
    fn publish(&self, row: &Row, done: Done);
}
