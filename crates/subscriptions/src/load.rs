//! Loading of a store's subscriptions into a new table.

use std::cell::RefCell;

use crate::{LoadNameError, LoadRowError, Subscriptions};

/// Loads the names and then the rows that a store passes to its callbacks, which can't fail. It skips what is not
/// valid, and reports the first error at the end.
pub struct Loader<'a> {
    subscriptions: &'a Subscriptions,
    error: RefCell<Option<LoadError>>,
}

/// Why the subscriptions of a store can't be loaded: the store is damaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A name is not valid.
    #[error(transparent)]
    Name(#[from] LoadNameError),
    /// A row is not valid.
    #[error("the subscriptions of {user}: {error}")]
    Row {
        /// The user of the row.
        user: String,
        /// Why the row can't be loaded.
        error: LoadRowError,
    },
}

impl<'a> Loader<'a> {
    /// Returns a loader into this table, which has no users yet.
    pub fn new(subscriptions: &'a Subscriptions) -> Self {
        Loader { subscriptions, error: RefCell::new(None) }
    }

    /// Loads a saved name.
    pub fn name(&self, number: u32, name: &str) {
        if let Err(error) = self.subscriptions.load_name(number, name) {
            self.error.borrow_mut().get_or_insert(error.into());
        }
    }

    /// Loads a saved row, after the names that it refers to.
    pub fn row(&self, user: &str, packed: &[u8]) {
        if let Err(error) = self.subscriptions.load_row(user, packed) {
            let user = user.to_owned();
            self.error.borrow_mut().get_or_insert(LoadError::Row { user, error });
        }
    }

    /// Ends loading.
    ///
    /// # Errors
    /// If a name or a row was not valid.
    pub fn finish(self) -> Result<(), LoadError> {
        self.subscriptions.loaded();
        self.error.into_inner().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_is_reported_and_the_rest_is_loaded() {
        let subscriptions = Subscriptions::new(false);
        let loader = Loader::new(&subscriptions);
        loader.name(5, "five");
        loader.row("al", &[4]);
        loader.name(5, "other");
        loader.row("bo", &[5]);
        let error = loader.finish().unwrap_err();
        assert_eq!(error, LoadError::Row { user: "al".into(), error: LoadRowError::Unnamed(4) });
        assert!(error.to_string().starts_with("the subscriptions of al: "), "{error}");
        assert_eq!(subscriptions.of("bo"), ["five"]);
        let loader = Loader::new(&subscriptions);
        loader.name(5, "other");
        assert_eq!(loader.finish(), Err(LoadError::Name(LoadNameError::Renamed)));
        assert_eq!(Loader::new(&subscriptions).finish(), Ok(()));
    }
}
