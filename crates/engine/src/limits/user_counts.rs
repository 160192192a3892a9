//! Counts of each user's connections on the node, and of the topics of all of these. They are counted only while they
//! are limited, because a count takes about 100 bytes a connection.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use model::Name;

/// Parts of the table, each with a lock of its own.
const PARTS: usize = 64;

/// The counts of a user.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Counts {
    /// The connections.
    pub connections: u32,
    /// The topics of all of them; a topic counts once for each connection.
    pub topics: u32,
}

/// The limit that a user has reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reached {
    Connections,
    Topics,
}

/// The counts of all users, over all shards.
pub(crate) struct Users {
    parts: [Mutex<HashMap<Name, Counts>>; PARTS],
    hasher: RandomState,
}

impl Default for Users {
    fn default() -> Self {
        let parts = std::array::from_fn(|_| Mutex::default());
        Users { parts, hasher: RandomState::new() }
    }
}

impl Users {
    fn part(&self, user: &str) -> MutexGuard<'_, HashMap<Name, Counts>> {
        let at = usize::try_from(self.hasher.hash_one(user) >> 32).unwrap_or(0) % PARTS;
        self.parts[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to the counts, unless one would be above `max`; 0 is no limit.
    pub fn enter(&self, user: &str, more: Counts, max: Counts) -> Result<(), Reached> {
        let mut part = self.part(user);
        let before = part.get(user).copied().unwrap_or_default();
        let connections = before.connections.saturating_add(more.connections);
        let topics = before.topics.saturating_add(more.topics);
        if more.connections > 0 && max.connections > 0 && connections > max.connections {
            return Err(Reached::Connections);
        }
        if more.topics > 0 && max.topics > 0 && topics > max.topics {
            return Err(Reached::Topics);
        }
        part.insert(user.into(), Counts { connections, topics });
        Ok(())
    }

    /// Subtracts from the counts.
    pub fn leave(&self, user: &str, less: Counts) {
        let mut part = self.part(user);
        if let Some(counts) = part.get_mut(user) {
            counts.connections = counts.connections.saturating_sub(less.connections);
            counts.topics = counts.topics.saturating_sub(less.topics);
            if *counts == Counts::default() {
                part.remove(user);
                let capacity = part.len() * 4;
                part.shrink_to(capacity);
            }
        }
    }

    /// The counts of a user.
    pub fn of(&self, user: &str) -> Counts {
        self.part(user).get(user).copied().unwrap_or_default()
    }
}

/// The counts of a connection.
#[derive(Default)]
pub(crate) struct Counted {
    pub users: Vec<Name>,
    pub topics: u32,
}

impl Counted {
    /// What it adds to the counts of each of its users.
    pub fn counts(&self) -> Counts {
        Counts { connections: 1, topics: self.topics }
    }

    /// Removes the counts of the connection.
    pub fn leave(self, users: &Users) {
        self.users.iter().for_each(|user| users.leave(user, self.counts()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_so_much_and_no_more() {
        let (users, max) = (Users::default(), Counts { connections: 2, topics: 5 });
        let connection = |topics| Counts { connections: 1, topics };
        assert_eq!(users.enter("a", connection(2), max), Ok(()));
        assert_eq!(users.enter("a", connection(4), max), Err(Reached::Topics));
        assert_eq!(users.enter("a", connection(3), max), Ok(()));
        assert_eq!(users.enter("a", connection(0), max), Err(Reached::Connections));
        assert_eq!(users.enter("b", connection(5), max), Ok(()));
        assert_eq!(users.enter("a", connection(9), Counts::default()), Ok(()), "0 is no limit");
        users.leave("a", connection(9));
        users.leave("a", connection(3));
        assert_eq!(users.of("a"), connection(2));
        users.leave("a", connection(2));
        users.leave("a", connection(2));
        assert!(users.parts.iter().map(|part| part.lock().unwrap().len()).sum::<usize>() == 1);
    }
}
