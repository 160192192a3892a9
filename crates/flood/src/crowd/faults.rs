//! What went wrong, in words, for the first few: a count alone says little about a fault that comes
//! once in a million messages.

use std::sync::{Mutex, PoisonError};

/// Faults that are told in words.
const TOLD_MAX: usize = 20;

/// The first faults of a run.
#[derive(Debug, Default)]
pub(super) struct Faults(Mutex<Vec<String>>);

impl Faults {
    /// Tells one, if there is room.
    pub fn tell(&self, text: impl FnOnce() -> String) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < TOLD_MAX {
            let text = text();
            told.push(text);
        }
    }

    /// Those that were told.
    pub fn list(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
