//! Descriptions of the first anomalies of a run, and the server's reasons for rejections. A count alone says little
//! about an anomaly that happens once in a million messages.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::lock;
use crate::record::Named;

/// Anomalies that are described in words.
const DESCRIBED_MAX: usize = 20;

/// Causes that are counted, each separately.
const CAUSES_MAX: usize = 20;

/// The first anomalies of a run: gaps, repeats, late and stray messages.
#[derive(Debug, Default)]
pub(super) struct Anomalies {
    described: Mutex<Vec<String>>,
    causes: Mutex<BTreeMap<String, u64>>,
}

impl Anomalies {
    /// Adds a description. Does not compose it if the list is complete.
    pub fn add(&self, describe: impl FnOnce() -> String) {
        let mut texts = lock(&self.described);
        if texts.len() < DESCRIBED_MAX {
            texts.push(describe());
        }
    }

    /// Returns all descriptions.
    pub fn list(&self) -> Vec<String> {
        lock(&self.described).clone()
    }

    /// Counts the server's reason for a rejection. New reasons beyond the limit are not counted.
    pub fn cause(&self, cause: String) {
        let mut causes = lock(&self.causes);
        if causes.len() < CAUSES_MAX || causes.contains_key(&cause) {
            *causes.entry(cause).or_default() += 1;
        }
    }

    /// Returns all causes, with how often each was given.
    pub fn causes(&self) -> Vec<Named> {
        lock(&self.causes).iter().map(|(cause, count)| (cause.clone(), *count)).collect()
    }
}
