//! Lookup of topic rows, with proof of absence. Each row has the hash of the name before it, and the metadata has the
//! hash of the last name. If two neighbours point to each other, no row between them is missing.

use redb::{ReadTransaction, ReadableTable};

use crate::checksum;
use crate::error::{Damage, InternalError};
use crate::metadata::Metadata;
use crate::tables::{METADATA, TOPICS};
use crate::topic::TopicRow;

/// The table of topics, in a read or write transaction.
pub(crate) trait Topics: ReadableTable<&'static str, &'static [u8]> {}
impl<T: ReadableTable<&'static str, &'static [u8]>> Topics for T {}

pub(crate) fn damaged_row(name: &str) -> InternalError {
    Damage {
        table: "topics",
        ..Damage::in_messages(name, 0, u64::MAX, "the topic's row is damaged")
    }
    .into()
}

/// Decodes a row.
pub(crate) fn decode(name: &str, row: &[u8]) -> Result<TopicRow, InternalError> {
    TopicRow::decode(name, row).map_err(|_| damaged_row(name))
}

/// Returns the next name in the table, and its row.
pub(crate) fn next(
    table: &impl Topics,
    name: &str,
) -> Result<Option<(String, TopicRow)>, InternalError> {
    let from = (std::ops::Bound::Excluded(name), std::ops::Bound::Unbounded);
    let Some(row) = table.range::<&str>(from)?.next() else { return Ok(None) };
    let (next, row) = row?;
    if next.value() <= name {
        return Err(damaged_row(name));
    }
    Ok(Some((next.value().into(), decode(next.value(), row.value())?)))
}

/// Passes up to `count` topics whose names begin with `prefix`, after `behind`, to `each`, with their last offsets.
/// Returns the last name if there may be more. The read fails if a row does not name its predecessor, because a row
/// is missing then.
pub(crate) fn each(
    txn: &ReadTransaction,
    prefix: &str,
    behind: Option<&str>,
    count: usize,
    mut each: impl FnMut(&str, u64),
) -> Result<Option<String>, InternalError> {
    let table = txn.open_table(TOPICS)?;
    // No name sorts between another one and the same with this character.
    let from = behind.map_or_else(|| prefix.into(), |name| format!("{name}\0"));
    let mut before = previous_name_hash(&table, &from)?;
    for (row, passed) in table.range::<&str>(&*from..)?.zip(1..) {
        let (name, row) = row?;
        let name = name.value();
        let row = decode(name, row.value())?;
        if row.previous_name_hash != before {
            return Err(damaged_row(name));
        }
        if !name.starts_with(prefix) {
            return Ok(None);
        }
        before = checksum::of_name(name);
        each(name, row.last);
        if passed == count {
            return Ok(Some(name.into()));
        }
    }
    match Metadata::from_table(&txn.open_table(METADATA)?)?.last_name_hash == before {
        true => Ok(None),
        false => Err(damaged_row(&from)),
    }
}

/// Returns the hash of the name before this one; 0 if this one is the first.
pub(crate) fn previous_name_hash(table: &impl Topics, name: &str) -> Result<u64, InternalError> {
    match table.range::<&str>(..name)?.next_back() {
        None => Ok(0),
        Some(row) => Ok(checksum::of_name(row?.0.value())),
    }
}

/// Returns the topic's row. `None` only if the neighbours prove that it does not exist. `last_name_hash` returns the
/// hash of the last name.
pub(crate) fn find(
    table: &impl Topics,
    last_name_hash: impl FnOnce() -> Result<u64, InternalError>,
    name: &str,
) -> Result<Option<TopicRow>, InternalError> {
    if let Some(row) = table.get(name)? {
        return decode(name, row.value()).map(Some);
    }
    let expected = match next(table, name)? {
        Some((_, next)) => next.previous_name_hash,
        None => last_name_hash()?,
    };
    if expected == previous_name_hash(table, name)? {
        return Ok(None);
    }
    Err(Damage {
        table: "topics",
        ..Damage::in_messages(name, 0, u64::MAX, "rows of topics are missing")
    }
    .into())
}
