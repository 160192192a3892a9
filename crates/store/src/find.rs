//! Topics' rows, and the proof that there is none. Each row says which name comes before it, and
//! the facts say which is the last: where two neighbours know each other, nothing is between them.

use redb::ReadableTable;

use crate::fault::{Damage, Trouble};
use crate::sum;
use crate::topic::Topic;

/// The table of topics, in a transaction that reads or writes.
pub(crate) trait Topics: ReadableTable<&'static str, &'static [u8]> {}
impl<T: ReadableTable<&'static str, &'static [u8]>> Topics for T {}

pub(crate) fn bad_row(name: &str) -> Trouble {
    Damage { table: "topics", ..Damage::of(name, 0, u64::MAX, "the topic's row is damaged") }.into()
}

/// Reads a row.
pub(crate) fn read(name: &str, row: &[u8]) -> Result<Topic, Trouble> {
    Topic::read(name, row).map_err(|_| bad_row(name))
}

/// The name after this one, and its row.
pub(crate) fn after(table: &impl Topics, name: &str) -> Result<Option<(String, Topic)>, Trouble> {
    let from = (std::ops::Bound::Excluded(name), std::ops::Bound::Unbounded);
    let Some(row) = table.range::<&str>(from)?.next() else { return Ok(None) };
    let (next, row) = row?;
    if next.value() <= name {
        return Err(bad_row(name));
    }
    Ok(Some((next.value().into(), read(next.value(), row.value())?)))
}

/// What stands for the name before this one; 0 if it is the first.
pub(crate) fn before(table: &impl Topics, name: &str) -> Result<u64, Trouble> {
    match table.range::<&str>(..name)?.next_back() {
        None => Ok(0),
        Some(row) => Ok(sum::of_name(row?.0.value())),
    }
}

/// The topic's row; `None` where it is proven that there is none. `tail` stands for the last name.
pub(crate) fn topic(
    table: &impl Topics,
    tail: impl FnOnce() -> Result<u64, Trouble>,
    name: &str,
) -> Result<Option<Topic>, Trouble> {
    if let Some(row) = table.get(name)? {
        return read(name, row.value()).map(Some);
    }
    let known = match after(table, name)? {
        Some((_, next)) => next.before,
        None => tail()?,
    };
    if known == before(table, name)? {
        return Ok(None);
    }
    Err(Damage { table: "topics", ..Damage::of(name, 0, u64::MAX, "rows of topics are missing") }
        .into())
}
