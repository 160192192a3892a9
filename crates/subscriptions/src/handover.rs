//! Passes subscriptions to another process: topics' names with their numbers, and users' rows.

use std::sync::Arc;

use ::handover::{Part, PartError};

use crate::locked::Tables;
use crate::{LoadRowError, ROWS_A_LOCK, Subscriptions};

/// Numbers of names or users that are scanned under the lock at a time.
const PIECE: u32 = 16 * ROWS_A_LOCK as u32;

/// Kinds of keys. They never change.
const NAME: u8 = b'n';
const ROW: u8 = b'u';
const END: u8 = b'e';

/// The part's name, which never changes.
const SUBSCRIPTIONS: &str = "subscriptions";

/// The table of subscriptions, for another process. The new process does not write it to the store again.
pub struct SubscriptionsPart(pub Arc<Subscriptions>);

/// Records that are copied under the lock.
#[derive(Default)]
struct Piece {
    bytes: Vec<u8>,
    /// The ends of each record's key and value.
    ends: Vec<(usize, usize)>,
}

impl Piece {
    fn add(&mut self, key: [&[u8]; 2], value: [&[u8]; 2]) {
        key.iter().for_each(|part| self.bytes.extend_from_slice(part));
        let end = self.bytes.len();
        value.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.ends.push((end, self.bytes.len()));
    }

    /// Adds the names with these numbers.
    fn add_names(&mut self, tables: &Tables, numbers: std::ops::Range<u32>) {
        for number in numbers {
            let Some(name) = tables.names.get(number) else { continue };
            let is_unsaved = u8::from(tables.unsaved.contains(&number));
            self.add([&[NAME], &number.to_be_bytes()], [&[is_unsaved], name.as_bytes()]);
        }
    }

    /// Passes all records to `each`, and empties the piece.
    fn give(&mut self, each: &mut dyn FnMut(&[u8], &[u8])) {
        let mut begin = 0;
        for (end, next) in self.ends.drain(..) {
            each(&self.bytes[begin..end], &self.bytes[end..next]);
            begin = next;
        }
        self.bytes.clear();
    }
}

impl SubscriptionsPart {
    fn import_name(&self, number: &[u8], value: &[u8]) -> Result<(), PartError> {
        let damaged = |what: &dyn ToString| PartError::new(SUBSCRIPTIONS, what.to_string());
        let number =
            number.try_into().map_err(|_| damaged(&"a topic's number does not have four bytes"))?;
        let number = u32::from_be_bytes(number);
        let (is_unsaved, name) =
            value.split_first().ok_or_else(|| damaged(&"a topic's name is missing"))?;
        let name = std::str::from_utf8(name).map_err(|_| damaged(&"a topic's name is not text"))?;
        let mut tables = self.0.tables.write();
        tables.names.load(number, name).map_err(|error| damaged(&error))?;
        match is_unsaved {
            0 => _ = tables.unsaved.remove(&number),
            _ => _ = tables.unsaved.insert(number),
        }
        Ok(())
    }
}

impl Subscriptions {
    /// Removes a user's row, as if it had never existed.
    fn unload_row(&self, user: &str) {
        // Locks the followers until both tables are equal again: then the user's number may become another's.
        let mut followers = self.tables.write_followers();
        let put = self.tables.write().users.put(user, &[]);
        if let (Some(followers), Some(put)) = (&mut followers, put) {
            // The lists must contain the row before it is removed.
            followers.settle();
            followers.change(put.number, put.row_before(), &[]);
        }
    }
}

impl Part for SubscriptionsPart {
    fn name(&self) -> &'static str {
        SUBSCRIPTIONS
    }

    /// Exports names before the rows that use them.
    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        let tables = &self.0.tables;
        let mut piece = Piece::default();
        let mut named = 0;
        loop {
            let tables = tables.read();
            let end = tables.names.end();
            let next = end.min(named + PIECE);
            piece.add_names(&tables, named..next);
            drop(tables);
            piece.give(each);
            named = next;
            if next == end {
                break;
            }
        }
        let mut from = 0;
        loop {
            let tables = tables.read();
            // Rows may use names that are new since then.
            let end = tables.names.end();
            piece.add_names(&tables, named..end);
            named = end;
            let users = tables.users.end();
            let next = users.min(from + PIECE);
            for (user, packed) in (from..next).filter_map(|number| tables.users.row_of(number)) {
                piece.add([&[ROW], user], [packed, &[]]);
            }
            drop(tables);
            piece.give(each);
            from = next;
            if next == users {
                break;
            }
        }
        // The value differs whenever the records before it do, or nearly so.
        let tables = tables.read();
        let counts = [tables.users.len() as u64, tables.users.edges(), tables.names.len() as u64];
        drop(tables);
        each(&[END], counts.map(u64::to_le_bytes).as_flattened());
    }

    fn import(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
        let damaged = |what: LoadRowError| PartError::new(SUBSCRIPTIONS, what);
        match (key, value) {
            ([NAME, number @ ..], Some(value)) => self.import_name(number, value),
            // A name without users stays.
            ([NAME, ..], None) => Ok(()),
            ([ROW, user @ ..], value) => {
                let user = std::str::from_utf8(user).map_err(|_| damaged(LoadRowError::User))?;
                match value {
                    Some(packed) => self.0.load_row(user, packed).map_err(damaged),
                    None => {
                        self.0.unload_row(user);
                        Ok(())
                    }
                }
            }
            // Processes all imported rows while the other process still serves, and not in its pause.
            ([END], _) => {
                self.0.loaded();
                Ok(())
            }
            // A newer version may know more.
            _ => Ok(()),
        }
    }

    fn complete(&self) -> Result<(), PartError> {
        self.0.loaded();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ::handover::Sent;
    use ::handover::testing::pass_all;

    use super::*;

    fn subscribers(table: &Subscriptions, topic: &str) -> (u64, Vec<String>) {
        let mut search = table.search(topic, "", usize::MAX - 1).unwrap();
        while search.step() {}
        let page = search.page();
        (page.count, page.users.into_iter().map(String::from).collect())
    }

    fn assert_same(one: &Subscriptions, other: &Subscriptions, users: u32) {
        let counts = |it: &Subscriptions| (it.users(), it.edges(), it.topics());
        assert_eq!(counts(one), counts(other));
        let sorted = |table: &Subscriptions, user: &str| {
            let mut topics = table.of(user);
            topics.sort_unstable();
            topics
        };
        for user in (0..users).map(|n| format!("u{n}")) {
            assert_eq!(sorted(one, &user), sorted(other, &user), "{user}");
        }
        for topic in (0..10).map(|n| format!("t{n}")).chain(["new".into()]) {
            assert_eq!(subscribers(one, &topic), subscribers(other, &topic), "{topic}");
        }
    }

    #[test]
    fn another_process_has_all_subscriptions() {
        let [old, new] = [(); 2].map(|()| SubscriptionsPart(Arc::default()));
        let users = 3 * PIECE;
        for n in 0..users {
            let topics = [format!("t{}", n % 10), format!("of{n}")];
            old.0.set(&format!("u{n}"), &[&topics[0], &topics[1]], 9).unwrap();
        }
        let mut sent = Sent::new();
        assert_eq!(pass_all(&old, &new, &mut sent), (10 + 2 * users + 1) as usize);
        assert!(new.0.tables.write_followers().unwrap().is_settled());
        assert_same(&old.0, &new.0, users);
        assert_eq!(pass_all(&old, &new, &mut sent), 0);
        old.0.edit("u5", &["new"], &["t5"], 9).unwrap();
        old.0.set("u6", &[], 9).unwrap();
        old.0.set("another", &["t7"], 9).unwrap();
        // One name, three rows, and the end.
        assert_eq!(pass_all(&old, &new, &mut sent), 5);
        assert_same(&old.0, &new.0, users);
        // New names get the next numbers of the old process.
        let numbers = |table: &Subscriptions| {
            let mut plan = table.plan(9);
            plan.set("last", &["newer"]).unwrap();
            plan.change()
        };
        assert_eq!(numbers(&old.0), numbers(&new.0));
    }

    #[test]
    fn a_name_that_is_not_saved_is_saved_with_its_first_use() {
        let [old, new] = [(); 2].map(|()| SubscriptionsPart(Arc::default()));
        let plan = |table: &Subscriptions, user: &str| {
            let mut plan = table.plan(9);
            plan.edit(user, &["news"], &[]).unwrap();
            plan.change()
        };
        let first = plan(&old.0, "alice");
        let mut sent = Sent::new();
        assert_eq!(pass_all(&old, &new, &mut sent), 2);
        assert_eq!(plan(&new.0, "bob").names, first.names);
        old.0.apply(&first);
        assert_eq!(
            pass_all(&old, &new, &mut sent),
            3,
            "the name is another record, there is a row, and the end"
        );
        assert_eq!(plan(&new.0, "carl").names, []);
    }

    #[test]
    fn damaged_records_are_reported() {
        let part = SubscriptionsPart(Arc::default());
        for (key, value) in [
            (&b"n\0\0\0"[..], &b"\0a"[..]),
            (b"n\0\0\0\0", b""),
            (b"n\0\0\0\0", b"\0"),
            (b"n\0\0\0\0", b"\0\xff"),
            (b"ualice", b"\x07"),
            (b"ualice", b"\x80"),
            (b"u\xff", b""),
            (b"u", b""),
        ] {
            assert!(part.import(key, Some(value)).is_err(), "{key:?}");
        }
    }
}
