//! The table of subscriptions.

use std::collections::HashSet;

use model::Name;
use model::name::NAME_BYTES_MAX;

use crate::locked::LockedTables;
use crate::plan::Plan;
use crate::subscribers::Search;
use crate::{Change, EditError, Edited, LoadNameError, LoadRowError, row};

/// Rows that are changed under the lock at a time.
pub const ROWS_A_LOCK: usize = 64;

/// All users' subscriptions. Shards read the table at each login, and the control thread changes it.
pub struct Subscriptions {
    pub(crate) tables: LockedTables,
}

impl Default for Subscriptions {
    /// Makes a table that knows each topic's subscribers.
    fn default() -> Self {
        Subscriptions::new(true)
    }
}

impl Subscriptions {
    /// Makes an empty table. With `by_topic` it knows each topic's subscribers, which about doubles its memory.
    pub fn new(by_topic: bool) -> Self {
        Subscriptions { tables: LockedTables::new(by_topic) }
    }

    /// Starts a search for a topic's subscribers whose names come after `after`, for the first `limit` of them by
    /// name. `None` if the table doesn't know each topic's subscribers.
    pub fn search<'a>(&'a self, topic: &str, after: &'a str, limit: usize) -> Option<Search<'a>> {
        Search::new(&self.tables, topic, after, limit)
    }

    /// Returns the user's topics in arbitrary order. Empty for an unknown user.
    pub fn of(&self, user: &str) -> Vec<Name> {
        let tables = self.tables.read();
        let Some(packed) = tables.users.get(user) else {
            return Vec::new();
        };
        let mut topics = Vec::with_capacity(row::count(packed));
        topics.extend(row::unpack(packed).filter_map(|n| tables.names.get(n)).map(Name::from));
        topics
    }

    /// Returns the number of users with at least one topic.
    pub fn users(&self) -> usize {
        self.tables.read().users.len()
    }

    /// Returns the users with at least one topic, in arbitrary order. It locks the table for some of them at a time, so
    /// that users who are added meanwhile may be missing.
    pub fn user_names(&self) -> impl Iterator<Item = Name> + '_ {
        let end = self.tables.read().users.end();
        (0..end).step_by(ROWS_A_LOCK).flat_map(move |from| {
            let tables = self.tables.read();
            let until = end.min(from + ROWS_A_LOCK as u32);
            let names = (from..until).filter_map(|number| tables.users.name_of(number));
            names.map(Name::from).collect::<Vec<Name>>()
        })
    }

    /// Returns the number of subscriptions of all users.
    pub fn edges(&self) -> u64 {
        self.tables.read().users.edges()
    }

    /// Returns the number of topics that have a number, with or without subscribers.
    pub fn topics(&self) -> usize {
        self.tables.read().names.len()
    }

    /// Returns the memory of the table in bytes: all capacities, each rounded up as glibc's allocator does.
    pub fn memory_bytes(&self) -> usize {
        let tables = self.tables.read();
        let unsaved = tables.unsaved.capacity() * (size_of::<u32>() + 1) * 8 / 7;
        let forward = tables.names.memory_bytes() + tables.users.memory_bytes() + unsaved;
        drop(tables);
        forward + self.tables.read_followers().map_or(0, |followers| followers.memory_bytes())
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
        // Locks the followers until both tables are equal again: then a user's number may become another's.
        let mut followers = self.tables.write_followers();
        if let Some(followers) = &mut followers {
            followers.settle();
        }
        for puts in change.puts.chunks(ROWS_A_LOCK) {
            let mut tables = self.tables.write();
            let put: Vec<_> =
                puts.iter().map(|(user, packed)| tables.users.put(user, packed)).collect();
            drop(tables);
            let Some(followers) = &mut followers else { continue };
            for ((_, packed), put) in puts.iter().zip(put) {
                if let Some(put) = put {
                    followers.change(put.number, put.row_before(), packed);
                }
            }
        }
        if let Some(followers) = &mut followers {
            followers.settle();
            followers.shrink();
        }
        self.tables.write().users.shrink();
    }

    /// Removes topics from a user and then adds others, at once and in memory only: the user keeps a topic that is in
    /// both lists.
    ///
    /// # Errors
    /// If the user would have too many topics, or a name is not valid. The call changes nothing then.
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
        let mut followers = self.tables.write_followers();
        let mut tables = self.tables.write();
        for number in row::numbers(packed) {
            let number = number?;
            if !tables.names.has(number) {
                return Err(LoadRowError::Unnamed(number));
            }
        }
        let put = tables.users.put(user, packed);
        drop(tables);
        if let (Some(followers), Some(put)) = (&mut followers, put) {
            if !put.row_before().is_empty() {
                // The lists must contain the row before it is replaced.
                followers.settle();
            }
            followers.change(put.number, put.row_before(), packed);
        }
        Ok(())
    }

    /// Ends loading: the table now knows each topic's subscribers. (A search or a change ends it, too.)
    pub fn loaded(&self) {
        if let Some(mut followers) = self.tables.write_followers() {
            followers.settle();
        }
    }
}
