//! The tables that are read whole when the process begins: cursors, idempotency keys,
//! subscriptions and the names that these mean by number. Each row has a checksum, and the facts
//! have a tally of each table.

use redb::{ReadTransaction, ReadableTable, Table, WriteTransaction};
use wire::Name;

use crate::facts::Node;
use crate::fault::{Damage, Trouble};
use crate::sum::{self, Tally};
use crate::tables::{CURSORS, FACTS, IDEMPOTENCY, NAMES, SUBSCRIPTIONS};

fn cursor_sum(user: &str, topic: &str, offset: u64) -> u64 {
    sum::of_pair(user.as_bytes(), topic.as_bytes(), &offset.to_le_bytes())
}

fn idempotency_sum(at_ms: u64, offset: u64, topic: &str, key: &str) -> u64 {
    sum::of(&sum::place(at_ms, offset), &sum::of(topic.as_bytes(), key.as_bytes()).to_le_bytes())
}

fn name_sum(number: u32, name: &str) -> u64 {
    sum::of(&number.to_le_bytes(), name.as_bytes())
}

/// The table of idempotency keys while it is written.
type Keys<'t> = Table<'t, (u64, u64), (&'static str, &'static str, u64)>;

pub(crate) fn put_idempotency_key(
    table: &mut Keys<'_>,
    node: &mut Node,
    (at_ms, offset): (u64, u64),
    (topic, key): (&str, &str),
) -> Result<(), Trouble> {
    let sum = idempotency_sum(at_ms, offset, topic, key);
    let before = table.insert((at_ms, offset), (topic, key, sum))?;
    before.iter().for_each(|row| node.idempotency.remove(row.value().2));
    node.idempotency.add(sum);
    Ok(())
}

/// The checksum that a row of packed subscriptions begins with.
fn first_sum(row: &[u8]) -> u64 {
    row.first_chunk().map_or(0, |sum| u64::from_le_bytes(*sum))
}

pub(crate) fn put_cursor(
    txn: &WriteTransaction,
    node: &mut Node,
    user: &str,
    topic: &str,
    offset: u64,
) -> Result<(), Trouble> {
    let mut cursors = txn.open_table(CURSORS)?;
    // Acknowledgements of a user's several connections may come in any order.
    let before = cursors.get((user, topic))?.map(|row| row.value());
    if before
        .is_some_and(|(before, sum)| before >= offset && sum == cursor_sum(user, topic, before))
    {
        return Ok(());
    }
    if let Some((_, sum)) = before {
        node.cursors.remove(sum);
    }
    let sum = cursor_sum(user, topic, offset);
    node.cursors.add(sum);
    cursors.insert((user, topic), (offset, sum))?;
    Ok(())
}

pub(crate) fn put_subscriptions(
    txn: &WriteTransaction,
    node: &mut Node,
    puts: &[(Name, Box<[u8]>)],
    names: &[(u32, Name)],
) -> Result<(), Trouble> {
    let mut table = txn.open_table(SUBSCRIPTIONS)?;
    for (user, packed) in puts {
        let row = sum::seal(user.as_bytes(), packed);
        let before = match packed.is_empty() {
            true => table.remove(user.as_str())?,
            false => {
                node.subscriptions.add(first_sum(&row));
                table.insert(user.as_str(), &*row)?
            }
        };
        before.iter().for_each(|row| node.subscriptions.remove(first_sum(row.value())));
    }
    let mut table = txn.open_table(NAMES)?;
    for (number, name) in names {
        let sum = name_sum(*number, name);
        let before = table.insert(number, (name.as_str(), sum))?;
        before.iter().for_each(|row| node.names.remove(row.value().1));
        node.names.add(sum);
    }
    Ok(())
}

/// A table while it is read: what is wrong with it is said at its end, so that all that is whole
/// has been shown.
struct Check<K> {
    table: &'static str,
    /// The key of the row before.
    last: Option<K>,
    seen: Tally,
    bad: Option<Trouble>,
}

impl<K: Ord> Check<K> {
    fn new(table: &'static str) -> Self {
        Check { table, last: None, seen: Tally::default(), bad: None }
    }

    /// A damaged page may lead back, and so on for ever.
    fn goes_on(&mut self, key: K) -> Result<(), Trouble> {
        if self.last.as_ref().is_some_and(|last| *last >= key) {
            return Err(Damage::table(self.table, "its rows are not in their order").into());
        }
        self.last = Some(key);
        Ok(())
    }

    /// True for a row that is what was written.
    fn is_whole(&mut self, sum: u64, want: u64, of: impl FnOnce() -> String) -> bool {
        self.seen.add(sum);
        if sum != want {
            let damage = || Damage::table(self.table, format!("the row of {} is damaged", of()));
            self.bad.get_or_insert_with(|| damage().into());
        }
        sum == want
    }

    fn end(self, tally: Tally) -> Result<(), Trouble> {
        match self.bad {
            Some(bad) => Err(bad),
            None if self.seen == tally => Ok(()),
            None => {
                let what =
                    format!("{} rows were written, and {} are there", tally.rows, self.seen.rows);
                Err(Damage::table(self.table, what).into())
            }
        }
    }
}

fn node(txn: &ReadTransaction) -> Result<Node, Trouble> {
    Node::get(&txn.open_table(FACTS)?)
}

pub(crate) fn each_cursor(
    txn: &ReadTransaction,
    mut each: impl FnMut(&str, &str, u64),
) -> Result<(), Trouble> {
    let mut check = Check::new("cursors");
    for row in txn.open_table(CURSORS)?.iter()? {
        let (key, value) = row?;
        let ((user, topic), (offset, sum)) = (key.value(), value.value());
        check.goes_on((Name::from(user), Name::from(topic)))?;
        if check.is_whole(sum, cursor_sum(user, topic, offset), || format!("{user} in {topic}")) {
            each(user, topic, offset);
        }
    }
    check.end(node(txn)?.cursors)
}

pub(crate) fn each_idempotency_key(
    txn: &ReadTransaction,
    mut each: impl FnMut(&str, &str, u64, u64),
) -> Result<(), Trouble> {
    let mut check = Check::new("idempotency");
    for row in txn.open_table(IDEMPOTENCY)?.iter()? {
        let (place, value) = row?;
        let ((at_ms, offset), (topic, key, sum)) = (place.value(), value.value());
        check.goes_on((at_ms, offset))?;
        let want = idempotency_sum(at_ms, offset, topic, key);
        if check.is_whole(sum, want, || format!("key {key} in {topic}")) {
            each(topic, key, offset, at_ms);
        }
    }
    check.end(node(txn)?.idempotency)
}

pub(crate) fn each_subscriber(
    txn: &ReadTransaction,
    mut each: impl FnMut(&str, &[u8]),
) -> Result<(), Trouble> {
    let mut check = Check::new("subscriptions");
    for row in txn.open_table(SUBSCRIPTIONS)?.iter()? {
        let (user, row) = row?;
        let (user, row) = (user.value(), row.value());
        check.goes_on(Name::from(user))?;
        let packed = sum::open(user.as_bytes(), row);
        let sum = first_sum(row);
        let want = if packed.is_ok() { sum } else { !sum };
        if check.is_whole(sum, want, || user.into()) {
            each(user, packed.unwrap_or_default());
        }
    }
    check.end(node(txn)?.subscriptions)
}

pub(crate) fn each_name(
    txn: &ReadTransaction,
    mut each: impl FnMut(u32, &str),
) -> Result<(), Trouble> {
    let mut check = Check::new("names");
    for row in txn.open_table(NAMES)?.iter()? {
        let (number, value) = row?;
        let (number, (name, sum)) = (number.value(), value.value());
        check.goes_on(number)?;
        if check.is_whole(sum, name_sum(number, name), || number.to_string()) {
            each(number, name);
        }
    }
    check.end(node(txn)?.names)
}
