//! What a change would do, before it is done.

use std::collections::HashMap;

use wire::Name;
use wire::message::{check_name, check_topic};

use crate::table::{Subscriptions, Tables};
use crate::{Change, EditError, Edited, row};

/// A change to any number of users, which sees the users as they are and what it has planned
/// itself. The lock is held for one user at a time.
pub struct Plan<'a> {
    table: &'a Subscriptions,
    max: usize,
    change: Change,
    /// The place of a user's row in the change.
    places: HashMap<Name, usize>,
}

/// What a user loses before the rest.
enum Lost<'a> {
    All,
    These(&'a [&'a str]),
}

/// What a user has, and is to have: numbers, and names that have none.
struct Wanted<'a> {
    old: Vec<u32>,
    new: Vec<u32>,
    unnumbered: Vec<&'a str>,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(table: &'a Subscriptions, max: usize) -> Self {
        Plan { table, max, change: Change::default(), places: HashMap::new() }
    }

    /// Plans to take topics from a user, then to give others: what is in both lists the user has
    /// then. What is there already, or is not there, is passed over.
    ///
    /// # Errors
    /// If that is too many, or a name can't be one: the plan is as before.
    pub fn edit(&mut self, user: &str, add: &[&str], remove: &[&str]) -> Result<Edited, EditError> {
        self.plan(user, add, &Lost::These(remove))
    }

    /// Plans to give a user just these topics.
    ///
    /// # Errors
    /// As [`Plan::edit`].
    pub fn set(&mut self, user: &str, topics: &[&str]) -> Result<Edited, EditError> {
        self.plan(user, topics, &Lost::All)
    }

    /// What the store has to keep, and [`Subscriptions::apply`] makes so.
    pub fn change(self) -> Change {
        let mut change = self.change;
        change.names.sort_unstable_by_key(|(number, _)| *number);
        change.names.dedup_by_key(|(number, _)| *number);
        change
    }

    fn plan(&mut self, user: &str, add: &[&str], lost: &Lost) -> Result<Edited, EditError> {
        check_name(user).map_err(EditError::BadUser)?;
        let lost_names = if let Lost::These(names) = lost { names } else { &[][..] };
        for topic in add.iter().chain(lost_names) {
            check_topic(topic).map_err(|why| EditError::BadTopic(Name::from(*topic), why))?;
        }
        let Wanted { old, mut new, unnumbered } = self.wanted(user, add, lost);
        let count = new.len() + unnumbered.len();
        if count > self.max && count > old.len() {
            return Err(EditError::TooMany { user: user.into(), count, max: self.max });
        }
        if !unnumbered.is_empty() {
            let mut tables = self.table.write();
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
        let tables = self.table.read();
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

    fn wanted<'n>(&self, user: &str, add: &[&'n str], lost: &Lost) -> Wanted<'n> {
        let tables = self.table.read();
        let old = self.row(&tables, user);
        let mut new = match lost {
            Lost::All => Vec::new(),
            Lost::These([]) => old.clone(),
            Lost::These(names) => {
                let mut gone: Vec<u32> =
                    names.iter().filter_map(|name| tables.names.find(name)).collect();
                gone.sort_unstable();
                without(&old, &gone)
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
        Wanted { old, new, unnumbered }
    }

    /// The user's topics as planned, or else as they are.
    fn row(&self, tables: &Tables, user: &str) -> Vec<u32> {
        let packed = match self.places.get(user) {
            Some(at) => &*self.change.puts[*at].1,
            None => tables.users.get(user).unwrap_or_default(),
        };
        row::unpack(packed).collect()
    }

    fn put(&mut self, user: &str, packed: Box<[u8]>) {
        match self.places.get(user) {
            Some(at) => self.change.puts[*at].1 = packed,
            None => {
                self.places.insert(user.into(), self.change.puts.len());
                self.change.puts.push((user.into(), packed));
            }
        }
    }
}

/// What of a sorted list is not in another sorted one.
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
