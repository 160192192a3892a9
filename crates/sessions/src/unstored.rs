//! What a store did not take: by name, so that it is given what is known then.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::Name;

use crate::contract::Done;

/// Names that are noted. A record of which there are more stays as it was.
const NAMES_MAX: usize = 1 << 20;

/// Names of which the store may have another record than it should.
#[derive(Clone, Default)]
pub(crate) struct Unstored(Arc<Mutex<BTreeSet<Name>>>);

impl Unstored {
    fn names(&self) -> MutexGuard<'_, BTreeSet<Name>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn len(&self) -> usize {
        self.names().len()
    }

    pub fn is_empty(&self) -> bool {
        self.names().is_empty()
    }

    pub fn contains(&self, name: &str) -> bool {
        self.names().contains(name)
    }

    pub fn all(&self) -> Vec<Name> {
        self.names().iter().cloned().collect()
    }

    pub fn remove(&self, name: &str) {
        self.names().remove(name);
    }

    pub fn insert(&self, name: &str) {
        let mut names = self.names();
        if names.len() < NAMES_MAX {
            names.insert(name.into());
        }
    }

    /// Notes a name if its record is not stored.
    pub fn unless_stored(&self, name: &str) -> Done {
        let (unstored, name) = (self.clone(), Name::from(name));
        Box::new(move |is_stored| {
            if !is_stored {
                unstored.insert(&name);
            }
        })
    }

    /// Has some of the records stored again, until one is not taken.
    pub fn store_again(&self, count: usize, mut store: impl FnMut(&Name)) {
        let mut left = std::mem::take(&mut *self.names());
        for _ in 0..count {
            let Some(name) = left.pop_first() else { return };
            store(&name);
            if !self.is_empty() {
                break;
            }
        }
        self.names().append(&mut left);
    }
}
