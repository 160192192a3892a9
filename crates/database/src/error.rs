//! What goes wrong with the database, and what an operator does about it.

use std::error::Error;

use tokio_postgres::error::SqlState;

/// What goes wrong with the database.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatabaseError {
    /// It can't be reached, or the connection broke, or it does not let the user in.
    #[error("{0}")]
    Connection(String),
    /// A statement took too long.
    #[error("PostgreSQL did not reply in {0} seconds")]
    Timeout(u64),
    /// Its version is too old.
    #[error("PostgreSQL {0} is too old: 14 or later is needed")]
    OldServer(String),
    /// The schema is not there, and this user may not make it.
    #[error(
        "the schema {schema:?} has no {part} (version {found} of {wanted}), and the user {user:?} may not make it \
         ({cause}): have its owner apply it, throng {part} migrate --print | psql, and grant this user what \
         the documentation says"
    )]
    NotMigrated {
        /// What the schema is of.
        part: &'static str,
        /// The schema.
        schema: String,
        /// The version that is there; 0 is none.
        found: i32,
        /// The version of this program.
        wanted: i32,
        /// The user of the connection.
        user: String,
        /// What PostgreSQL said.
        cause: String,
    },
    /// A newer program has made the schema.
    #[error(
        "the {part} in the schema {schema:?} is of version {found}, and this program knows {wanted}: start the newer \
         program that has migrated it"
    )]
    Newer {
        /// What the schema is of.
        part: &'static str,
        /// The schema.
        schema: String,
        /// The version that is there.
        found: i32,
        /// The version of this program.
        wanted: i32,
    },
    /// The user lacks a right.
    #[error("{0}: grant it to the user of the URL as the documentation says")]
    Denied(String),
    /// A statement failed.
    #[error("{0}")]
    Statement(String),
    /// PostgreSQL has ended a statement: it took too long, or somebody has canceled it.
    #[error("{0}")]
    Canceled(String),
}

impl From<tokio_postgres::Error> for DatabaseError {
    fn from(error: tokio_postgres::Error) -> Self {
        let text = text(&error);
        match error.code() {
            Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => DatabaseError::Denied(text),
            // Of the class 57, but the session goes on.
            Some(code) if *code == SqlState::QUERY_CANCELED => DatabaseError::Canceled(text),
            Some(code) if is_of_connection(code) => DatabaseError::Connection(text),
            Some(_) => DatabaseError::Statement(text),
            None => DatabaseError::Connection(text),
        }
    }
}

impl DatabaseError {
    /// Whether the operator must do something: to try again does not help by itself.
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

/// Errors of the server that speak of the connection: its classes 08, 53 and 57.
fn is_of_connection(code: &SqlState) -> bool {
    ["08", "53", "57"].iter().any(|class| code.code().starts_with(class))
}

/// The error with its causes, on one line.
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
