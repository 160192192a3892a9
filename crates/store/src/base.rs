//! redb's database, which also writes when it is dropped, and may panic then over damage.

use std::ops::Deref;

use redb::Database;

use crate::fault::Trouble;
use crate::quiet::quietly;

/// An open database.
pub(crate) struct Base(Option<Database>);

impl Base {
    pub fn new(db: Database) -> Self {
        Base(Some(db))
    }

    /// Closes it, and says what goes wrong.
    pub fn close(mut self) -> Result<(), Trouble> {
        match self.0.take() {
            Some(db) => quietly(|| Ok(db.close()?)),
            None => Ok(()),
        }
    }
}

impl Deref for Base {
    type Target = Database;

    fn deref(&self) -> &Database {
        // Only `close` and the end take it.
        match &self.0 {
            Some(db) => db,
            None => unreachable!("a database that was closed is used"),
        }
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        if let Some(db) = self.0.take() {
            let _ = quietly(|| {
                drop(db);
                Ok(())
            });
        }
    }
}
