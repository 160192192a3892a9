//! Computes a change before it is applied.

use std::collections::HashMap;

use model::Name;
use model::name::{check_name, check_topic};

use crate::locked::{LockedTables, Tables};
use crate::{Change, EditError, Edited, row};

/// A change to any number of users. It is based on the current rows and its own planned changes. It takes the lock
/// for one user at a time.
pub struct Plan<'a> {
    tables: &'a LockedTables,
    max: usize,
    change: Change,
    /// The index of a user's row in the change.
    indexes: HashMap<Name, usize>,
}

/// The topics that a user loses before new ones are added.
enum Removal<'a> {
    All,
    Only(&'a [&'a str]),
}

/// A user's old and new topic numbers, and new topics that have no number yet.
struct PlannedTopics<'a> {
    old: Vec<u32>,
    new: Vec<u32>,
    unnumbered: Vec<&'a str>,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(tables: &'a LockedTables, max: usize) -> Self {
        Plan { tables, max, change: Change::default(), indexes: HashMap::new() }
    }

    /// Plans to remove topics from a user and then to add others: the user keeps a topic that is in both lists. Skips
    /// added topics that the user has, and removed topics that the user does not have.
    ///
    /// # Errors
    /// If the user would have too many topics, or a name is not valid. The plan stays as it was.
    pub fn edit(&mut self, user: &str, add: &[&str], remove: &[&str]) -> Result<Edited, EditError> {
        self.plan(user, add, &Removal::Only(remove))
    }

    /// Plans to give a user exactly these topics.
    ///
    /// # Errors
    /// As [`Plan::edit`].
    pub fn set(&mut self, user: &str, topics: &[&str]) -> Result<Edited, EditError> {
        self.plan(user, topics, &Removal::All)
    }

    /// Returns the finished change, for the store to save and then for
    /// [`Subscriptions::apply`](crate::Subscriptions::apply).
    pub fn change(self) -> Change {
        let mut change = self.change;
        change.names.sort_unstable_by_key(|(number, _)| *number);
        change.names.dedup_by_key(|(number, _)| *number);
        change
    }

    fn plan(&mut self, user: &str, add: &[&str], removal: &Removal) -> Result<Edited, EditError> {
        let removed = if let Removal::Only(names) = removal { names } else { &[][..] };
        check_names(user, add.iter().chain(removed).copied())?;
        let PlannedTopics { old, mut new, unnumbered } = self.planned_topics(user, add, removal);
        let count = new.len() + unnumbered.len();
        if count > self.max && count > old.len() {
            return Err(EditError::TooMany { user: user.into(), count, max: self.max });
        }
        if !unnumbered.is_empty() {
            let mut tables = self.tables.write();
            for name in unnumbered {
                let (number, is_new) = tables.names.intern(name)?;
                if is_new {
                    tables.unsaved.insert(number);
                }
                new.push(number);
            }
            new.sort_unstable();
        }
        if old == new {
            return Ok(Edited { count, ..Edited::default() });
        }
        let tables = self.tables.read();
        let names = |numbers: Vec<u32>| -> Vec<Name> {
            numbers.into_iter().filter_map(|n| tables.names.get(n)).map(Name::from).collect()
        };
        let added = without(&new, &old);
        if !tables.unsaved.is_empty() {
            let unsaved = added.iter().filter(|number| tables.unsaved.contains(number));
            let unsaved = unsaved.filter_map(|n| Some((*n, Name::from(tables.names.get(*n)?))));
            self.change.names.extend(unsaved);
        }
        let edited = Edited { added: names(added), removed: names(without(&old, &new)), count };
        drop(tables);
        self.put(user, row::pack(&new).into_boxed_slice());
        Ok(edited)
    }

    fn planned_topics<'n>(
        &self,
        user: &str,
        add: &[&'n str],
        removal: &Removal,
    ) -> PlannedTopics<'n> {
        let tables = self.tables.read();
        let old = self.row(&tables, user);
        let mut new = match removal {
            Removal::All => Vec::new(),
            Removal::Only([]) => old.clone(),
            Removal::Only(names) => {
                let mut dropped: Vec<u32> =
                    names.iter().filter_map(|name| tables.names.find(name)).collect();
                dropped.sort_unstable();
                without(&old, &dropped)
            }
        };
        let mut unnumbered = Vec::new();
        for name in add {
            match tables.names.find(name) {
                Some(number) => new.push(number),
                None => unnumbered.push(*name),
            }
        }
        drop(tables);
        new.sort_unstable();
        new.dedup();
        unnumbered.sort_unstable();
        unnumbered.dedup();
        PlannedTopics { old, new, unnumbered }
    }

    /// Returns the user's planned topics, or else the current ones.
    fn row(&self, tables: &Tables, user: &str) -> Vec<u32> {
        let packed = match self.indexes.get(user) {
            Some(at) => &*self.change.puts[*at].1,
            None => tables.users.get(user).unwrap_or_default(),
        };
        row::unpack(packed).collect()
    }

    fn put(&mut self, user: &str, packed: Box<[u8]>) {
        match self.indexes.get(user) {
            Some(at) => self.change.puts[*at].1 = packed,
            None => {
                self.indexes.insert(user.into(), self.change.puts.len());
                self.change.puts.push((user.into(), packed));
            }
        }
    }
}

/// Checks the names of a user and of topics.
///
/// # Errors
/// If one of them is not valid.
pub fn check_names<'a>(user: &str, topics: impl Iterator<Item = &'a str>) -> Result<(), EditError> {
    check_name(user).map_err(EditError::User)?;
    for topic in topics {
        check_topic(topic).map_err(|reason| EditError::Topic(Name::from(topic), reason))?;
    }
    Ok(())
}

/// Returns the numbers of a sorted list that are not in another sorted list.
fn without(list: &[u32], other: &[u32]) -> Vec<u32> {
    let mut other = other.iter().peekable();
    let mut alone = Vec::new();
    for number in list {
        while other.next_if(|next| *next < number).is_some() {}
        if other.peek() != Some(&number) {
            alone.push(*number);
        }
    }
    alone
}
