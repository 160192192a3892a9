//! The errors of an export and an import, and the session for much data that both use.

use database::DatabaseError;

/// Settings of a session for much data: a statement may take long, and the other side may write to a slow disk
/// meanwhile. Locks keep their time limit.
pub(crate) const BULK: &str = "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; \
     SET tcp_user_timeout = '10min'";

/// Why a whole history could not be written to a database, or read from it.
#[derive(Debug, thiserror::Error)]
pub enum LogTransferError {
    /// The database failed. Nothing was written.
    #[error("{0}")]
    Database(#[from] DatabaseError),
    /// The commit got no reply.
    #[error(
        "{0}: PostgreSQL did not confirm the commit, so the history is either complete or absent: \
         repeat the command, which reports a history that exists"
    )]
    Unknown(DatabaseError),
    /// The database has a history.
    #[error(
        "the history in the schema {schema:?} is not empty ({topics} topics, and offsets that \
         clients may have seen), and is not overwritten: name an empty database, or another \
         schema with history.schema"
    )]
    NotEmpty {
        /// The schema.
        schema: String,
        /// The number of its topics.
        topics: u64,
    },
    /// The database has subscriptions.
    #[error(
        "the schema {schema:?} has stored subscriptions, and nothing is written over them: name an empty database, or \
         another schema with history.schema"
    )]
    HasSubscriptions {
        /// The schema.
        schema: String,
    },
    /// The database has no history.
    #[error(
        "the schema {schema:?} has no history that this version can read (version {found} of \
         {expected}): name the database and the schema (history.schema) that servers use, or use \
         the program of the other version"
    )]
    NoHistory {
        /// The schema.
        schema: String,
        /// The version in the database; 0 is none.
        found: i32,
        /// The version of this program.
        expected: i32,
    },
    /// Messages came before their topic.
    #[error("messages came before their topic: this is a bug in Throng, please report it")]
    OutOfOrder,
    /// The system gives no descriptors.
    #[error("the system can't start a connection: {0}")]
    System(#[from] std::io::Error),
}

impl From<tokio_postgres::Error> for LogTransferError {
    fn from(error: tokio_postgres::Error) -> Self {
        LogTransferError::Database(error.into())
    }
}

/// Creates the runtime of a connection that one thread uses.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, LogTransferError> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
