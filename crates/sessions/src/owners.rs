//! The number of sessions of clients that are away, by user.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::session_key::SessionKey;

/// The parts of the counts, each with a lock of its own.
const SEGMENTS: usize = 64;

/// Counts by the hash of the owner: names would take more memory than all the rest, and two owners with one hash of
/// 64 bits, keyed anew by each process, are not to be expected.
pub struct Owners {
    segments: Vec<Mutex<HashMap<u64, u32>>>,
    hasher: RandomState,
}

impl Owners {
    pub fn new() -> Self {
        let segments = (0..SEGMENTS).map(|_| Mutex::default()).collect();
        Owners { segments, hasher: RandomState::new() }
    }

    fn counts(&self, key: &str) -> Option<(u64, MutexGuard<'_, HashMap<u64, u32>>)> {
        let hash = self.hasher.hash_one(SessionKey::parse(key).owner?);
        let segment = &self.segments[(hash >> 48) as usize % SEGMENTS];
        Some((hash, segment.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Counts a session by its key. Returns false without counting it if its owner has `max` already. 0 is no limit.
    /// A session without an owner always has capacity.
    pub fn enter(&self, key: &str, max: usize) -> bool {
        let Some((owner, mut counts)) = self.counts(key) else { return true };
        let count = counts.entry(owner).or_default();
        if max > 0 && *count as usize >= max {
            return false;
        }
        *count = count.saturating_add(1);
        true
    }

    /// Removes a counted session.
    pub fn leave(&self, key: &str) {
        let Some((owner, mut counts)) = self.counts(key) else { return };
        match counts.get_mut(&owner) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(counts.remove(&owner)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_owner_has_as_many_as_may_be() {
        let owners = Owners::new();
        let key = |owner, client| SessionKey { client, owner }.encode();
        let enter = |owner, client| owners.enter(&key(owner, client), 2);
        assert!(enter(Some("al"), "1") && enter(Some("al"), "2") && !enter(Some("al"), "3"));
        assert!(enter(Some("bo"), "1") && enter(None, "1") && enter(None, "2") && enter(None, "3"));
        owners.leave(&key(Some("al"), "2"));
        assert!(enter(Some("al"), "3") && !enter(Some("al"), "4"));
        assert!(owners.enter(&key(Some("al"), "4"), 0), "0 is no limit");
        for client in ["1", "3", "4"] {
            owners.leave(&key(Some("al"), client));
        }
        owners.leave(&key(Some("bo"), "1"));
        assert!(owners.segments.iter().all(|counts| counts.lock().unwrap().is_empty()));
    }
}
