//! The table, and its lock.

use std::collections::HashSet;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use wire::Name;
use wire::message::NAME_BYTES_MAX;

use crate::names::Names;
use crate::plan::Plan;
use crate::users::Users;
use crate::{BadName, BadRow, Change, EditError, Edited, row};

/// Rows that are put in one hold of the lock.
pub const ROWS_A_HOLD: usize = 64;

/// All users' subscriptions. Shards read it at each login, the control thread changes it.
#[derive(Default)]
pub struct Subscriptions {
    tables: RwLock<Tables>,
}

#[derive(Default)]
pub(crate) struct Tables {
    pub names: Names,
    pub users: Users,
    /// Numbers that have a name here and, for all we know, none in the store: a change that uses
    /// one carries its name. So no row that is kept has a number whose name is not.
    pub unsaved: HashSet<u32>,
}

impl Subscriptions {
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Tables> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The user's topics, in no order that means anything; none for somebody who is not known.
    pub fn of(&self, user: &str) -> Vec<Name> {
        let tables = self.read();
        let Some(packed) = tables.users.get(user) else {
            return Vec::new();
        };
        let mut topics = Vec::with_capacity(row::count(packed));
        topics.extend(row::unpack(packed).filter_map(|n| tables.names.get(n)).map(Name::from));
        topics
    }

    /// Users with at least one topic.
    pub fn users(&self) -> usize {
        self.read().users.len()
    }

    /// Subscriptions of all users.
    pub fn edges(&self) -> u64 {
        self.read().users.edges()
    }

    /// Topics that have a number, followed or not.
    pub fn topics(&self) -> usize {
        self.read().names.len()
    }

    /// What all of it takes, in bytes: every capacity, each piece rounded up as glibc's allocator
    /// does.
    pub fn memory_bytes(&self) -> usize {
        let tables = self.read();
        let unsaved = tables.unsaved.capacity() * (size_of::<u32>() + 1) * 8 / 7;
        tables.names.memory_bytes() + tables.users.memory_bytes() + unsaved
    }

    /// Begins a change after which no user has more than `max` topics that had fewer before.
    pub fn plan(&self, max: usize) -> Plan<'_> {
        Plan::new(self, max)
    }

    /// Makes a change that was planned here so. Call it after the change is kept.
    pub fn apply(&self, change: &Change) {
        if !change.names.is_empty() {
            let mut tables = self.write();
            for (number, _) in &change.names {
                tables.unsaved.remove(number);
            }
            if tables.unsaved.is_empty() {
                tables.unsaved = HashSet::new();
            }
        }
        for puts in change.puts.chunks(ROWS_A_HOLD) {
            let mut tables = self.write();
            for (user, packed) in puts {
                tables.users.put(user, packed);
            }
        }
    }

    /// Takes topics from a user, then gives others, at once and in memory only: what is in both
    /// lists the user has then.
    ///
    /// # Errors
    /// If that is too many, or a name can't be one: nothing was changed.
    pub fn edit(
        &self,
        user: &str,
        add: &[&str],
        remove: &[&str],
        max: usize,
    ) -> Result<Edited, EditError> {
        let mut plan = self.plan(max);
        let edited = plan.edit(user, add, remove)?;
        self.apply(&plan.change());
        Ok(edited)
    }

    /// Gives a user just these topics, at once and in memory only.
    ///
    /// # Errors
    /// As [`Subscriptions::edit`].
    pub fn set(&self, user: &str, topics: &[&str], max: usize) -> Result<Edited, EditError> {
        let mut plan = self.plan(max);
        let edited = plan.set(user, topics)?;
        self.apply(&plan.change());
        Ok(edited)
    }

    /// Takes back a name that was kept. Names come before the rows that use them.
    ///
    /// # Errors
    /// If it contradicts what was taken back before: the store is damaged.
    pub fn load_name(&self, number: u32, name: &str) -> Result<(), BadName> {
        self.write().names.load(number, name)
    }

    /// Takes back a row that was kept, in place of one that the user has.
    ///
    /// # Errors
    /// If it is no row, or has a topic without a name: the store is damaged.
    pub fn load_row(&self, user: &str, packed: &[u8]) -> Result<(), BadRow> {
        if user.is_empty() || user.len() > NAME_BYTES_MAX {
            return Err(BadRow::User);
        }
        let mut tables = self.write();
        for number in row::numbers(packed) {
            let number = number?;
            if !tables.names.has(number) {
                return Err(BadRow::Unnamed(number));
            }
        }
        tables.users.put(user, packed);
        Ok(())
    }
}
