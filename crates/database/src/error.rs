//! Errors of the database, and what an operator does about them.

use std::error::Error;

use tokio_postgres::error::SqlState;

/// An error of the database.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatabaseError {
    /// The database can't be reached, or the connection broke, or the database rejects the user.
    #[error("{0}")]
    Connection(String),
    /// A statement took too long.
    #[error("PostgreSQL did not reply in {0} seconds")]
    Timeout(u64),
    /// The server's version is too old.
    #[error("PostgreSQL {0} is too old: 14 or later is needed")]
    OldServer(String),
    /// The schema does not exist, and this user may not make it.
    #[error(
        "the schema {schema:?} has no {part} (version {found} of {expected}), and the user \
         {user:?} may not create it ({cause}): have its owner apply it, throng {part} migrate \
         --print | psql, and grant this user the privileges that the documentation lists"
    )]
    NotMigrated {
        /// The part of Throng that needs the schema.
        part: &'static str,
        /// The schema.
        schema: String,
        /// The version in the database; 0 is none.
        found: i32,
        /// The version of this program.
        expected: i32,
        /// The user of the connection.
        user: String,
        /// The reason that PostgreSQL gave.
        cause: String,
    },
    /// A newer program has made the schema.
    #[error(
        "the {part} in the schema {schema:?} has version {found}, and this program supports \
         {expected}: start the newer program that has migrated it"
    )]
    Newer {
        /// The part of Throng that needs the schema.
        part: &'static str,
        /// The schema.
        schema: String,
        /// The version in the database.
        found: i32,
        /// The version of this program.
        expected: i32,
    },
    /// The user lacks a right.
    #[error("{0}: grant it to the user of the URL as the documentation says")]
    Denied(String),
    /// A statement failed.
    #[error("{0}")]
    Statement(String),
    /// PostgreSQL has ended a statement: it took too long, or an operator has canceled it.
    #[error("{0}")]
    Canceled(String),
}

impl From<tokio_postgres::Error> for DatabaseError {
    fn from(error: tokio_postgres::Error) -> Self {
        let text = text(&error);
        match error.code() {
            Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => DatabaseError::Denied(text),
            // It is in class 57, but the session goes on.
            Some(code) if *code == SqlState::QUERY_CANCELED => DatabaseError::Canceled(text),
            Some(code) if is_of_connection(code) => DatabaseError::Connection(text),
            Some(_) => DatabaseError::Statement(text),
            None => DatabaseError::Connection(text),
        }
    }
}

impl DatabaseError {
    /// Returns true if the operator must act: a retry alone does not help.
    pub fn needs_operator(&self) -> bool {
        match self {
            DatabaseError::Connection(_)
            | DatabaseError::Timeout(_)
            | DatabaseError::Canceled(_) => false,
            DatabaseError::OldServer(_)
            | DatabaseError::NotMigrated { .. }
            | DatabaseError::Newer { .. }
            | DatabaseError::Denied(_)
            | DatabaseError::Statement(_) => true,
        }
    }
}

/// Returns true for the server's errors of the connection: its classes 08, 53 and 57.
fn is_of_connection(code: &SqlState) -> bool {
    ["08", "53", "57"].iter().any(|class| code.code().starts_with(class))
}

/// Returns the error with its causes, on one line.
pub(crate) fn text(error: &tokio_postgres::Error) -> String {
    if let Some(error) = error.as_db_error() {
        let detail = error.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
        return format!("{}{detail}", error.message()).replace('\n', " ");
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text += &format!(": {inner}");
        cause = inner.source();
    }
    text.replace('\n', " ")
}
