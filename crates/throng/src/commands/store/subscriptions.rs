//! The stored subscriptions of a store, which move with its history.

use admin::text::grouped;
use store::StoreExport;
use subscriptions::{Change, EditError, Loader, Subscriptions};
use subscriptions_postgres::UserTopics;

use crate::error::CommandError;

/// Users that one statement, or one transaction of a store, writes.
const PAGE_USERS: usize = 1_000;

/// Reads all subscriptions of a store.
pub fn read(export: &StoreExport) -> Result<Subscriptions, CommandError> {
    let subscriptions = Subscriptions::new(false);
    let loader = Loader::new(&subscriptions);
    let read = export.subscriptions(
        |number, name| loader.name(number, name),
        |user, packed| loader.row(user, packed),
    );
    read.map_err(super::runtime)?;
    loader.finish().map_err(|error| CommandError::Runtime(error.to_string()))?;
    Ok(subscriptions)
}

/// Returns all users with their topics, a page at a time.
pub fn pages(subscriptions: &Subscriptions) -> impl Iterator<Item = Vec<UserTopics>> {
    let mut users = subscriptions.user_names();
    std::iter::from_fn(move || {
        let page: Vec<UserTopics> = users
            .by_ref()
            .take(PAGE_USERS)
            .map(|user| UserTopics { topics: subscriptions.of(&user), user })
            .collect();
        (!page.is_empty()).then_some(page)
    })
}

/// Packs users' topics as a new store saves them, a page of users at a time.
pub struct Packer {
    /// All users that are packed so far.
    subscriptions: Subscriptions,
    /// The users who are not packed yet.
    page: Vec<UserTopics>,
}

impl Packer {
    pub fn new() -> Self {
        Packer { subscriptions: Subscriptions::new(false), page: Vec::new() }
    }

    /// Adds a user. Returns the change that the store must save: an empty one until a page is full.
    ///
    /// # Errors
    /// If a name is not valid.
    pub fn add(&mut self, user: UserTopics) -> Result<Change, EditError> {
        self.page.push(user);
        match self.page.len() == PAGE_USERS {
            true => self.pack(),
            false => Ok(Change::default()),
        }
    }

    /// Packs the users who are not packed yet. Returns the change that the store must save.
    ///
    /// # Errors
    /// If a name is not valid.
    pub fn pack(&mut self) -> Result<Change, EditError> {
        let mut plan = self.subscriptions.plan(usize::MAX);
        for UserTopics { user, topics } in &self.page {
            let topics: Vec<&str> = topics.iter().map(|topic| topic.as_str()).collect();
            plan.set(user, &topics)?;
        }
        let change = plan.change();
        self.subscriptions.apply(&change);
        self.page.clear();
        Ok(change)
    }

    /// Returns the number of users and of their subscriptions.
    pub fn counts(&self) -> (usize, u64) {
        (self.subscriptions.users(), self.subscriptions.edges())
    }
}

/// Says how many subscriptions were written. Empty if there are none.
pub fn counts_text((users, subscriptions): (usize, u64)) -> String {
    match users {
        0 => String::new(),
        _ => format!(
            "with them, {} stored subscriptions of {} users were written\n",
            grouped(subscriptions),
            grouped(users as u64)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_users_come_back_with_their_topics_however_many_pages_there_are() {
        let users = 2 * PAGE_USERS + 3;
        let mut packer = Packer::new();
        let (again, mut written) = (Subscriptions::new(false), 0);
        let mut write = |change: Change| {
            written += usize::from(!change.is_empty());
            for (number, name) in &change.names {
                again.load_name(*number, name).unwrap();
            }
            for (user, packed) in &change.puts {
                again.load_row(user, packed).unwrap();
            }
        };
        for n in 0..users {
            let topics = vec!["all".into(), format!("feed:{}", n % 7).as_str().into()];
            let user = format!("u{n}").as_str().into();
            write(packer.add(UserTopics { user, topics }).unwrap());
        }
        write(packer.pack().unwrap());
        assert!(packer.pack().unwrap().is_empty());
        assert_eq!((written, packer.counts()), (3, (users, 2 * users as u64)));
        let pages: Vec<Vec<UserTopics>> = pages(&again).collect();
        assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [PAGE_USERS, PAGE_USERS, 3]);
        let mut found: Vec<UserTopics> = pages.into_iter().flatten().collect();
        found.sort_unstable_by(|a, b| a.user.cmp(&b.user));
        found.dedup_by(|a, b| a.user == b.user);
        assert_eq!(found.len(), users);
        for UserTopics { user, mut topics } in found {
            topics.sort_unstable();
            let n: usize = user[1..].parse().unwrap();
            let expected: [model::Name; 2] =
                ["all".into(), format!("feed:{}", n % 7).as_str().into()];
            assert_eq!(topics, expected);
        }
        assert_eq!(counts_text((0, 0)), "");
    }
}
