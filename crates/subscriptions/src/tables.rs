//! Who has subscribed to what, in numbers and names, behind one lock.

use std::collections::HashSet;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

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

/// The tables and their lock.
#[derive(Default)]
pub(crate) struct LockedTables(RwLock<Tables>);

impl LockedTables {
    pub fn read(&self) -> RwLockReadGuard<'_, Tables> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, Tables> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
