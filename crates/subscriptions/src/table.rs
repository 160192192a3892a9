//! The table of subscriptions.

use std::collections::HashSet;

use model::Name;
use model::name::NAME_BYTES_MAX;

use crate::plan::Plan;
use crate::tables::LockedTables;
use crate::{Change, EditError, Edited, LoadNameError, LoadRowError, row};

/// How many rows are changed while the lock is held once.
pub const ROWS_A_HOLD: usize = 64;

/// All users' subscriptions. Shards read the table at each login, and the control thread changes
/// it.
#[derive(Default)]
pub struct Subscriptions {
    tables: LockedTables,
}

impl Subscriptions {
    /// The user's topics in arbitrary order. Empty for an unknown user.
    pub fn of(&self, user: &str) -> Vec<Name> {
        let tables = self.tables.read();
        let Some(packed) = tables.users.get(user) else {
            return Vec::new();
        };
        let mut topics = Vec::with_capacity(row::count(packed));
        topics.extend(row::unpack(packed).filter_map(|n| tables.names.get(n)).map(Name::from));
        topics
    }

    /// The number of users with at least one topic.
    pub fn users(&self) -> usize {
        self.tables.read().users.len()
    }

    /// The number of subscriptions of all users.
    pub fn edges(&self) -> u64 {
        self.tables.read().users.edges()
    }

    /// The number of topics that have a number, with or without subscribers.
    pub fn topics(&self) -> usize {
        self.tables.read().names.len()
    }

    /// The memory of the table in bytes: all capacities, each rounded up as glibc's allocator does.
    pub fn memory_bytes(&self) -> usize {
        let tables = self.tables.read();
        let unsaved = tables.unsaved.capacity() * (size_of::<u32>() + 1) * 8 / 7;
        tables.names.memory_bytes() + tables.users.memory_bytes() + unsaved
    }

    /// Starts a change. It gives no user more than `max` topics, except users who already had more.
    pub fn plan(&self, max: usize) -> Plan<'_> {
        Plan::new(&self.tables, max)
    }

    /// Applies a planned change. Call it after the store has saved the change.
    pub fn apply(&self, change: &Change) {
        if !change.names.is_empty() {
            let mut tables = self.tables.write();
            for (number, _) in &change.names {
                tables.unsaved.remove(number);
            }
            if tables.unsaved.is_empty() {
                tables.unsaved = HashSet::new();
            }
        }
        for puts in change.puts.chunks(ROWS_A_HOLD) {
            let mut tables = self.tables.write();
            for (user, packed) in puts {
                tables.users.put(user, packed);
            }
        }
    }

    /// Removes topics from a user and then adds others, at once and in memory only: the user has
    /// what is in both lists.
    ///
    /// # Errors
    /// If the user would have too many topics, or a name is not valid. Nothing was changed.
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

    /// Gives a user exactly these topics, at once and in memory only.
    ///
    /// # Errors
    /// As [`Subscriptions::edit`].
    pub fn set(&self, user: &str, topics: &[&str], max: usize) -> Result<Edited, EditError> {
        let mut plan = self.plan(max);
        let edited = plan.set(user, topics)?;
        self.apply(&plan.change());
        Ok(edited)
    }

    /// Loads a saved name. Load names before the rows that use them.
    ///
    /// # Errors
    /// If the name contradicts one that was loaded before, which means that the store is damaged.
    pub fn load_name(&self, number: u32, name: &str) -> Result<(), LoadNameError> {
        self.tables.write().names.load(number, name)
    }

    /// Loads a saved row. It replaces the user's current row.
    ///
    /// # Errors
    /// If the row is not valid, or has a topic number without a name, which means that the store is
    /// damaged.
    pub fn load_row(&self, user: &str, packed: &[u8]) -> Result<(), LoadRowError> {
        if user.is_empty() || user.len() > NAME_BYTES_MAX {
            return Err(LoadRowError::User);
        }
        let mut tables = self.tables.write();
        for number in row::numbers(packed) {
            let number = number?;
            if !tables.names.has(number) {
                return Err(LoadRowError::Unnamed(number));
            }
        }
        tables.users.put(user, packed);
        Ok(())
    }
}
