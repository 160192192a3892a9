//! Descriptions of the first anomalies of a run. A count alone says little about an anomaly that
//! happens once in a million messages.

use std::sync::Mutex;

use super::lock;

/// Anomalies that are described in words.
const DESCRIBED_MAX: usize = 20;

/// The first anomalies of a run: gaps, repeats, late and stray messages.
#[derive(Debug, Default)]
pub(super) struct Anomalies(Mutex<Vec<String>>);

impl Anomalies {
    /// Adds a description. Does not even compose it when the list is full.
    pub fn add(&self, describe: impl FnOnce() -> String) {
        let mut texts = lock(&self.0);
        if texts.len() < DESCRIBED_MAX {
            texts.push(describe());
        }
    }

    /// Returns all descriptions.
    pub fn list(&self) -> Vec<String> {
        lock(&self.0).clone()
    }
}
