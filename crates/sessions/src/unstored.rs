//! Names of records that a store has rejected, to give it the current records later.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::Name;

use crate::contract::Done;

/// Names that are remembered, at most. The records of further names stay as they are.
const NAMES_MAX: usize = 1 << 20;

/// Names whose records in the store may be out of date.
#[derive(Clone, Default)]
pub(crate) struct Unstored(Arc<Mutex<Names>>);

#[derive(Default)]
struct Names {
    noted: BTreeSet<Name>,
    /// Names whose records are being given to the store, by one thread each.
    in_progress: Vec<Name>,
}

impl Names {
    fn is_empty(&self) -> bool {
        self.noted.is_empty() && self.in_progress.is_empty()
    }
}

impl Unstored {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn len(&self) -> usize {
        self.names().noted.len()
    }

    pub fn is_empty(&self) -> bool {
        self.names().is_empty()
    }

    /// Returns true if a further name can be noted.
    pub fn has_capacity(&self) -> bool {
        self.names().noted.len() < NAMES_MAX
    }

    pub fn contains(&self, name: &str) -> bool {
        let names = self.names();
        // Most often it is empty.
        !names.is_empty()
            && (names.noted.contains(name) || names.in_progress.iter().any(|it| **it == *name))
    }

    pub fn all(&self) -> Vec<Name> {
        let names = self.names();
        let all: BTreeSet<&Name> = names.noted.iter().chain(&names.in_progress).collect();
        all.into_iter().cloned().collect()
    }

    pub fn remove(&self, name: &str) {
        self.names().noted.remove(name);
    }

    pub fn insert(&self, name: &str) {
        let mut names = self.names();
        if names.noted.len() < NAMES_MAX {
            names.noted.insert(name.into());
        }
    }

    /// Returns a callback that records the name if its record is not stored, and then calls `done`.
    pub fn unless_stored(&self, name: &str, done: Option<Done>) -> Done {
        let (unstored, name) = (self.clone(), Name::from(name));
        Box::new(move |is_stored| {
            if !is_stored {
                unstored.insert(&name);
            }
            done.into_iter().for_each(|done| done(is_stored));
        })
    }

    /// Stores the records of a name again. The name counts as unstored until the store has taken them all, and stays
    /// if `store` adds it again. Returns true if it does not stay.
    pub fn retry(&self, name: &Name, store: impl FnOnce()) -> bool {
        let mut names = self.names();
        names.noted.remove(name);
        names.in_progress.push(name.clone());
        drop(names);
        store();
        let mut names = self.names();
        if let Some(at) = names.in_progress.iter().position(|it| it == name) {
            names.in_progress.swap_remove(at);
        }
        !names.noted.contains(name)
    }

    /// Returns the first name after this one; the first of all without one.
    pub fn next_after(&self, name: Option<&Name>) -> Option<Name> {
        let after = name.map_or(Bound::Unbounded, |name| Bound::Excluded(name.clone()));
        self.names().noted.range((after, Bound::Unbounded)).next().cloned()
    }

    /// Stores some of the records again, until one is rejected.
    pub fn store_again(&self, count: usize, mut store: impl FnMut(&Name)) {
        let mut last = None;
        for _ in 0..count {
            let Some(name) = self.next_after(last.as_ref()) else { return };
            if !self.retry(&name, || store(&name)) {
                return;
            }
            last = Some(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_noted_until_their_records_are_given_to_the_store() {
        let all = Unstored::default();
        ["a", "b", "c"].iter().for_each(|name| all.insert(name));
        let mut given = Vec::new();
        all.store_again(9, |name| {
            assert!(all.contains(name) && all.contains("c"), "{name} is not with the store");
            given.push(name.to_string());
            if &**name == "b" {
                all.insert(name);
            }
        });
        assert_eq!(given, ["a", "b"], "what comes after one that is not taken waits");
        assert_eq!(all.all(), ["b", "c"]);
    }
}
