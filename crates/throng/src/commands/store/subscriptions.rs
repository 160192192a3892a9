//! The stored subscriptions of a store, which move with its history.

use store::{OpenError, StoreExport};
use subscriptions::{Change, EditError, Subscriptions};
use subscriptions_postgres::UserTopics;

use crate::error::CommandError;

/// Users that one statement writes, or one transaction of a store.
const PAGE_USERS: usize = 1_000;

/// Reads all subscriptions of a store.
pub fn read(export: &StoreExport) -> Result<Subscriptions, CommandError> {
    let subscriptions = Subscriptions::new(false);
    let (mut name_error, mut row_error) = (None, None);
    let read: Result<(), OpenError> = export.subscriptions(
        |number, name| {
            if let Err(error) = subscriptions.load_name(number, name) {
                name_error.get_or_insert(error.to_string());
            }
        },
        |user, packed| {
            if let Err(error) = subscriptions.load_row(user, packed) {
                row_error.get_or_insert(format!("the subscriptions of {user}: {error}"));
            }
        },
    );
    read.map_err(super::runtime)?;
    match name_error.or(row_error) {
        Some(error) => Err(CommandError::Runtime(error)),
        None => Ok(subscriptions),
    }
}

/// Returns all users with their topics, some at a time.
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

/// Subscriptions that are collected for a new store.
pub struct Collected {
    subscriptions: Subscriptions,
    /// The users who are not written yet.
    page: Vec<UserTopics>,
}

impl Collected {
    pub fn new() -> Self {
        Collected { subscriptions: Subscriptions::new(false), page: Vec::new() }
    }

    /// Adds a user. Returns what the store must write now, if it is enough for a transaction.
    ///
    /// # Errors
    /// If a name is not valid.
    pub fn add(&mut self, user: UserTopics) -> Result<Change, EditError> {
        self.page.push(user);
        match self.page.len() == PAGE_USERS {
            true => self.rest(),
            false => Ok(Change::default()),
        }
    }

    /// Returns what the store has yet to write.
    ///
    /// # Errors
    /// If a name is not valid.
    pub fn rest(&mut self) -> Result<Change, EditError> {
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

/// Formats the counts, or nothing where there are none.
pub fn text((users, subscriptions): (usize, u64)) -> String {
    match users {
        0 => String::new(),
        _ => format!(
            "{} users with {} stored subscriptions are there, too\n",
            admin::text::grouped(users as u64),
            admin::text::grouped(subscriptions)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_users_come_back_with_their_topics_however_many_pages_there_are() {
        let users = 2 * PAGE_USERS + 3;
        let mut collected = Collected::new();
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
            write(collected.add(UserTopics { user, topics }).unwrap());
        }
        write(collected.rest().unwrap());
        assert!(collected.rest().unwrap().is_empty());
        assert_eq!((written, collected.counts()), (3, (users, 2 * users as u64)));
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
        assert_eq!(text((0, 0)), "");
    }
}
