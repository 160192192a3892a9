//! Whose turn it is to change subscriptions.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};

/// Lets the changes of a user go one after the other, and those of others meanwhile: a lock for
/// each of 64 groups of users.
pub struct Turns {
    keys: RandomState,
    locks: [Arc<Mutex<()>>; 64],
}

/// As long as it lives, nobody else changes the subscriptions of these users.
pub(crate) type Turn = Vec<OwnedMutexGuard<()>>;

impl Default for Turns {
    fn default() -> Self {
        Turns { keys: RandomState::new(), locks: std::array::from_fn(|_| Arc::default()) }
    }
}

impl Turns {
    /// Waits for the turn of these users.
    pub(crate) async fn of(&self, users: impl Iterator<Item = &str>) -> Turn {
        let group = |user| self.keys.hash_one(user) as usize % self.locks.len();
        self.take(users.map(group).collect()).await
    }

    /// Waits for the turn of all users.
    pub(crate) async fn of_all(&self) -> Turn {
        self.take((0..self.locks.len()).collect()).await
    }

    /// Everybody takes the locks in the same order, so that nobody waits for ever.
    async fn take(&self, groups: BTreeSet<usize>) -> Turn {
        let mut turn = Vec::with_capacity(groups.len());
        for group in groups {
            turn.push(self.locks[group].clone().lock_owned().await);
        }
        turn
    }
}
