//! Locks by user, for changes of subscriptions.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};

/// Lets the changes of one user run one after the other, and those of other users meanwhile: a lock for each of 64
/// groups of users.
pub struct UserLocks {
    keys: RandomState,
    locks: [Arc<Mutex<()>>; 64],
}

/// While it exists, no other call changes the subscriptions of these users.
pub(crate) type UserLock = Vec<OwnedMutexGuard<()>>;

impl Default for UserLocks {
    fn default() -> Self {
        UserLocks { keys: RandomState::new(), locks: std::array::from_fn(|_| Arc::default()) }
    }
}

impl UserLocks {
    /// Waits for the locks of these users.
    pub(crate) async fn of(&self, users: impl Iterator<Item = &str>) -> UserLock {
        let group = |user| self.keys.hash_one(user) as usize % self.locks.len();
        self.take(users.map(group).collect()).await
    }

    /// Waits for the locks of all users.
    pub(crate) async fn of_all(&self) -> UserLock {
        self.take((0..self.locks.len()).collect()).await
    }

    /// All callers take the locks in the same order, so that none waits for ever.
    async fn take(&self, groups: BTreeSet<usize>) -> UserLock {
        let mut lock = Vec::with_capacity(groups.len());
        for group in groups {
            lock.push(self.locks[group].clone().lock_owned().await);
        }
        lock
    }
}
