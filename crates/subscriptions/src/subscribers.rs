//! A search for a topic's subscribers.

use std::collections::BTreeSet;

use model::Name;

use crate::locked::LockedTables;

/// Users that one step scans.
const USERS_A_STEP: usize = 1_024;

/// Searches for some of a topic's subscribers, by name, in short steps: between them, other threads may take the
/// locks, and other work this thread. The search may find or miss users who subscribe or leave meanwhile.
pub struct Search<'a> {
    tables: &'a LockedTables,
    /// The topic's number, if it has one.
    topic: Option<u32>,
    after: &'a str,
    limit: usize,
    /// The number to continue with; `None` at the end.
    next: Option<u32>,
    /// The first of the found users, at most one more than the limit.
    found: BTreeSet<Name>,
}

/// Some of a topic's subscribers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The number of the topic's subscribers.
    pub count: u64,
    /// The requested subscribers, by name.
    pub users: Vec<Name>,
    /// True if further subscribers come after them.
    pub more: bool,
}

impl<'a> Search<'a> {
    pub(crate) fn new(
        tables: &'a LockedTables,
        topic: &str,
        after: &'a str,
        limit: usize,
    ) -> Option<Self> {
        let followers = tables.read_followers()?;
        let topic = tables.read().names.find(topic);
        drop(followers);
        Some(Search { tables, topic, after, limit, next: Some(0), found: BTreeSet::new() })
    }

    /// Scans further users. Returns false at the end.
    pub fn step(&mut self) -> bool {
        let (Some(topic), Some(next)) = (self.topic, self.next) else { return false };
        let Some(followers) = self.tables.read_followers() else { return false };
        let numbers = followers.from(topic, next, USERS_A_STEP);
        self.next = match numbers.last() {
            Some(last) if numbers.len() == USERS_A_STEP => last.checked_add(1),
            _ => None,
        };
        let tables = self.tables.read();
        for number in numbers {
            let Some(name) = tables.users.name_of(number) else { continue };
            let is_full = self.found.len() > self.limit;
            if name <= self.after
                || (is_full && self.found.last().is_some_and(|last| name >= &**last))
            {
                continue;
            }
            self.found.insert(Name::from(name));
            if self.found.len() > self.limit + 1 {
                self.found.pop_last();
            }
        }
        self.next.is_some()
    }

    /// Returns the found subscribers.
    pub fn page(self) -> Page {
        let more = self.found.len() > self.limit;
        let users: Vec<Name> = self.found.into_iter().take(self.limit).collect();
        let followers = self.tables.read_followers();
        let count = followers.zip(self.topic).map_or(0, |(it, topic)| it.count(topic));
        Page { count, users, more }
    }
}
