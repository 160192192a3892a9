//! The tables of users, names and followers, behind locks.

use std::collections::HashSet;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::followers::Followers;
use crate::names::Names;
use crate::users::Users;

#[derive(Default)]
pub(crate) struct Tables {
    pub names: Names,
    pub users: Users,
    /// Numbers whose names the store may not have yet. A change that uses such a number carries its
    /// name, so that no saved row has a number without a name.
    pub unsaved: HashSet<u32>,
}

/// The tables and their locks. A thread that takes both takes that of the followers first.
pub(crate) struct LockedTables {
    tables: RwLock<Tables>,
    /// The inverse table, if it is configured. Logins don't need it, so it has a lock of its own, which may be taken
    /// for longer.
    followers: Option<RwLock<Followers>>,
}

impl LockedTables {
    pub fn new(by_topic: bool) -> Self {
        LockedTables { tables: RwLock::default(), followers: by_topic.then(RwLock::default) }
    }

    pub fn read(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, Tables> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the followers for reading, after all waiting pairs are added.
    pub fn read_followers(&self) -> Option<RwLockReadGuard<'_, Followers>> {
        let lock = self.followers.as_ref()?;
        loop {
            let followers = lock.read().unwrap_or_else(PoisonError::into_inner);
            if followers.is_settled() {
                return Some(followers);
            }
            drop(followers);
            lock.write().unwrap_or_else(PoisonError::into_inner).settle();
        }
    }

    pub fn write_followers(&self) -> Option<RwLockWriteGuard<'_, Followers>> {
        Some(self.followers.as_ref()?.write().unwrap_or_else(PoisonError::into_inner))
    }
}
