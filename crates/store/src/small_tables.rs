//! The small tables, which the process reads completely at its start: cursors, idempotency keys, subscriptions, and
//! the topic names that subscriptions refer to by number. Each row has a checksum, and the metadata has a tally of
//! each table.

use model::Name;
use redb::{ReadTransaction, ReadableTable, Table, TableError, WriteTransaction};

use crate::checksum::{self, Tally};
use crate::error::{Damage, InternalError};
use crate::metadata::Metadata;
use crate::tables::{CURSORS, IDEMPOTENCY, METADATA, NAMES, RECORDS, SUBSCRIPTIONS};

fn cursor_checksum(user: &str, topic: &str, offset: u64) -> u64 {
    checksum::of_pair(user.as_bytes(), topic.as_bytes(), &offset.to_le_bytes())
}

fn idempotency_checksum(at_ms: u64, offset: u64, topic: &str, key: &str) -> u64 {
    checksum::of(
        &checksum::pair_key(at_ms, offset),
        &checksum::of(topic.as_bytes(), key.as_bytes()).to_le_bytes(),
    )
}

fn name_checksum(number: u32, name: &str) -> u64 {
    checksum::of(&number.to_le_bytes(), name.as_bytes())
}

/// The table of idempotency keys in a write transaction.
type Keys<'t> = Table<'t, (u64, u64), (&'static str, &'static str, u64)>;

pub(crate) fn put_idempotency_key(
    table: &mut Keys<'_>,
    metadata: &mut Metadata,
    (at_ms, offset): (u64, u64),
    (topic, key): (&str, &str),
) -> Result<(), InternalError> {
    let sum = idempotency_checksum(at_ms, offset, topic, key);
    let before = table.insert((at_ms, offset), (topic, key, sum))?;
    before.iter().for_each(|row| metadata.idempotency.remove(row.value().2));
    metadata.idempotency.add(sum);
    Ok(())
}

/// Returns the checksum at the start of a row of packed subscriptions.
fn leading_checksum(row: &[u8]) -> u64 {
    row.first_chunk().map_or(0, |sum| u64::from_le_bytes(*sum))
}

pub(crate) fn put_cursor(
    txn: &WriteTransaction,
    metadata: &mut Metadata,
    user: &str,
    topic: &str,
    offset: u64,
) -> Result<(), InternalError> {
    let mut cursors = txn.open_table(CURSORS)?;
    // Several connections of one user may acknowledge in any order.
    let before = cursors.get((user, topic))?.map(|row| row.value());
    if before.is_some_and(|(before, sum)| {
        before >= offset && sum == cursor_checksum(user, topic, before)
    }) {
        return Ok(());
    }
    if let Some((_, sum)) = before {
        metadata.cursors.remove(sum);
    }
    let sum = cursor_checksum(user, topic, offset);
    metadata.cursors.add(sum);
    cursors.insert((user, topic), (offset, sum))?;
    Ok(())
}

pub(crate) fn put_subscriptions(
    txn: &WriteTransaction,
    metadata: &mut Metadata,
    puts: &[(Name, Box<[u8]>)],
    names: &[(u32, Name)],
) -> Result<(), InternalError> {
    let mut table = txn.open_table(SUBSCRIPTIONS)?;
    for (user, packed) in puts {
        let row = checksum::prepend(user.as_bytes(), packed);
        let before = match packed.is_empty() {
            true => table.remove(user.as_str())?,
            false => {
                metadata.subscriptions.add(leading_checksum(&row));
                table.insert(user.as_str(), &*row)?
            }
        };
        before.iter().for_each(|row| metadata.subscriptions.remove(leading_checksum(row.value())));
    }
    let mut table = txn.open_table(NAMES)?;
    for (number, name) in names {
        let sum = name_checksum(*number, name);
        let before = table.insert(number, (name.as_str(), sum))?;
        before.iter().for_each(|row| metadata.names.remove(row.value().1));
        metadata.names.add(sum);
    }
    Ok(())
}

/// Returns the key for a record's checksum.
fn record_key(part: &str, key: &str) -> Vec<u8> {
    [part.as_bytes(), b"\0", key.as_bytes()].concat()
}

/// Stores a record of a part, or removes it if there is no value.
pub(crate) fn put_record(
    txn: &WriteTransaction,
    metadata: &mut Metadata,
    (part, key): (&str, &str),
    value: Option<&[u8]>,
) -> Result<(), InternalError> {
    let mut table = txn.open_table(RECORDS)?;
    let before = match value {
        None => table.remove((part, key))?,
        Some(value) => {
            let row = checksum::prepend(&record_key(part, key), value);
            metadata.records.add(leading_checksum(&row));
            table.insert((part, key), &*row)?
        }
    };
    before.iter().for_each(|row| metadata.records.remove(leading_checksum(row.value())));
    Ok(())
}

/// The state of a read through a table. It reports damage only at the end, so that the caller gets
/// all intact rows.
struct TableCheck<K> {
    table: &'static str,
    /// The key of the previous row.
    last: Option<K>,
    seen: Tally,
    damage: Option<InternalError>,
}

impl<K: Ord> TableCheck<K> {
    fn new(table: &'static str) -> Self {
        TableCheck { table, last: None, seen: Tally::default(), damage: None }
    }

    /// Requires ascending keys: a damaged page may point back, and the read would never end.
    fn require_ascending(&mut self, key: K) -> Result<(), InternalError> {
        if self.last.as_ref().is_some_and(|last| *last >= key) {
            return Err(Damage::in_table(self.table, "its rows are out of order").into());
        }
        self.last = Some(key);
        Ok(())
    }

    /// Returns true if the row's checksum is right.
    fn is_intact(&mut self, sum: u64, want: u64, of: impl FnOnce() -> String) -> bool {
        self.seen.add(sum);
        if sum != want {
            let error = || Damage::in_table(self.table, format!("the row of {} is damaged", of()));
            self.damage.get_or_insert_with(|| error().into());
        }
        sum == want
    }

    fn finish(self, tally: Tally) -> Result<(), InternalError> {
        match self.damage {
            Some(damage) => Err(damage),
            None if self.seen == tally => Ok(()),
            None => {
                let what = format!(
                    "{} rows were written, but the table has {}",
                    tally.rows, self.seen.rows
                );
                Err(Damage::in_table(self.table, what).into())
            }
        }
    }
}

fn load_metadata(txn: &ReadTransaction) -> Result<Metadata, InternalError> {
    Metadata::from_table(&txn.open_table(METADATA)?)
}

pub(crate) fn each_cursor(
    txn: &ReadTransaction,
    mut each: impl FnMut(&str, &str, u64),
) -> Result<(), InternalError> {
    let mut check = TableCheck::new("cursors");
    for row in txn.open_table(CURSORS)?.iter()? {
        let (key, value) = row?;
        let ((user, topic), (offset, sum)) = (key.value(), value.value());
        check.require_ascending((Name::from(user), Name::from(topic)))?;
        if check
            .is_intact(sum, cursor_checksum(user, topic, offset), || format!("{user} in {topic}"))
        {
            each(user, topic, offset);
        }
    }
    check.finish(load_metadata(txn)?.cursors)
}

pub(crate) fn each_idempotency_key(
    txn: &ReadTransaction,
    mut each: impl FnMut(&str, &str, u64, u64),
) -> Result<(), InternalError> {
    let mut check = TableCheck::new("idempotency");
    for row in txn.open_table(IDEMPOTENCY)?.iter()? {
        let (row_key, value) = row?;
        let ((at_ms, offset), (topic, key, sum)) = (row_key.value(), value.value());
        check.require_ascending((at_ms, offset))?;
        let want = idempotency_checksum(at_ms, offset, topic, key);
        if check.is_intact(sum, want, || format!("key {key} in {topic}")) {
            each(topic, key, offset, at_ms);
        }
    }
    check.finish(load_metadata(txn)?.idempotency)
}

pub(crate) fn each_subscriber(
    txn: &ReadTransaction,
    mut each: impl FnMut(&str, &[u8]),
) -> Result<(), InternalError> {
    let mut check = TableCheck::new("subscriptions");
    for row in txn.open_table(SUBSCRIPTIONS)?.iter()? {
        let (user, row) = row?;
        let (user, row) = (user.value(), row.value());
        check.require_ascending(Name::from(user))?;
        let packed = checksum::verify(user.as_bytes(), row);
        let sum = leading_checksum(row);
        let want = if packed.is_ok() { sum } else { !sum };
        if check.is_intact(sum, want, || user.into()) {
            each(user, packed.unwrap_or_default());
        }
    }
    check.finish(load_metadata(txn)?.subscriptions)
}

pub(crate) fn each_name(
    txn: &ReadTransaction,
    mut each: impl FnMut(u32, &str),
) -> Result<(), InternalError> {
    let mut check = TableCheck::new("names");
    for row in txn.open_table(NAMES)?.iter()? {
        let (number, value) = row?;
        let (number, (name, sum)) = (number.value(), value.value());
        check.require_ascending(number)?;
        if check.is_intact(sum, name_checksum(number, name), || number.to_string()) {
            each(number, name);
        }
    }
    check.finish(load_metadata(txn)?.names)
}

/// Passes the records of all parts to `each`: part, key, value. A file of an earlier format has none.
pub(crate) fn each_record(
    txn: &ReadTransaction,
    mut each: impl FnMut(&str, &str, &[u8]),
) -> Result<(), InternalError> {
    let mut check = TableCheck::new("records");
    let table = match txn.open_table(RECORDS) {
        Err(TableError::TableDoesNotExist(_)) => return check.finish(load_metadata(txn)?.records),
        table => table?,
    };
    for row in table.iter()? {
        let (key, row) = row?;
        let ((part, key), row) = (key.value(), row.value());
        check.require_ascending((Name::from(part), Name::from(key)))?;
        let value = checksum::verify(&record_key(part, key), row);
        let sum = leading_checksum(row);
        let want = if value.is_ok() { sum } else { !sum };
        if check.is_intact(sum, want, || format!("{key} of {part}")) {
            each(part, key, value.unwrap_or_default());
        }
    }
    check.finish(load_metadata(txn)?.records)
}
