//! The redb database with a guarded close: redb also writes when it is dropped, and may panic then
//! if the file is damaged.

use std::ops::Deref;

use redb::Database;

use crate::error::InternalError;
use crate::panics::catch_redb_panics;

/// An open database.
pub(crate) struct GuardedDatabase(Option<Database>);

impl GuardedDatabase {
    pub fn new(db: Database) -> Self {
        GuardedDatabase(Some(db))
    }

    /// Closes the database and returns the error that redb may meet while doing so.
    pub fn close(mut self) -> Result<(), InternalError> {
        match self.0.take() {
            Some(db) => catch_redb_panics(|| Ok(db.close()?)),
            None => Ok(()),
        }
    }
}

impl Deref for GuardedDatabase {
    type Target = Database;

    fn deref(&self) -> &Database {
        // Only `close` and `drop` take the database out, and both end this value.
        match &self.0 {
            Some(db) => db,
            None => unreachable!("a database that was closed is used"),
        }
    }
}

impl Drop for GuardedDatabase {
    fn drop(&mut self) {
        if let Some(db) = self.0.take() {
            let _ = catch_redb_panics(|| {
                drop(db);
                Ok(())
            });
        }
    }
}
