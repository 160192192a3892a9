//! A file that is read to be looked at or copied: one of this format, or of the one before.

use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition};
use wire::Name;

use crate::check::goes_on;
use crate::facts::Node;
use crate::fault::Trouble;
use crate::find;
use crate::record::{BadRow, Head, Input, Row};
use crate::rows;
use crate::tables::{FACTS, FORMAT_BEFORE, NODE, SUBSCRIPTIONS};
use crate::topic::{Keep, Topic};

/// The tables of the format before that are different now. Its facts lie beside its version.
const IDEMPOTENCY: TableDefinition<'static, (u64, u64), (&str, &str)> =
    TableDefinition::new("idempotency");
const CURSORS: TableDefinition<'static, (&str, &str), u64> = TableDefinition::new("cursors");
const NAMES: TableDefinition<'static, u32, &str> = TableDefinition::new("names");

/// The file.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub db: &'a Database,
    /// Its rows have no checksums and don't know each other.
    pub is_before: bool,
    /// redb has looked at its own checksums, and all are right.
    pub is_proven: bool,
}

impl<'a> Source<'a> {
    /// A file of a format that is known.
    pub fn new(db: &'a Database, format: u64, is_proven: bool) -> Self {
        Source { db, is_before: format == FORMAT_BEFORE, is_proven }
    }

    /// Rows may be missing or changed, and nothing but what they hold can tell.
    pub fn is_doubtful(&self) -> bool {
        self.is_before && !self.is_proven
    }

    /// The facts about the whole store.
    pub fn node(&self) -> Result<Node, Trouble> {
        let txn = self.db.begin_read()?;
        if !self.is_before {
            return Node::get(&txn.open_table(FACTS)?);
        }
        let facts = txn.open_table(NODE)?;
        let fact = |name: &str| -> Result<u64, Trouble> {
            Ok(facts.get(name)?.map_or(0, |row| row.value()))
        };
        Ok(Node {
            epoch: fact("epoch")? as u32,
            clean: fact("clean")? == 1,
            last: fact("last")?,
            gone: fact("gone")?,
            next: fact("next")?,
            ..Node::default()
        })
    }

    /// Reads a topic's row.
    pub fn topic(&self, name: &str, row: &[u8]) -> Result<Topic, Trouble> {
        match self.is_before {
            true => topic_before(row).map_err(|_| find::bad_row(name)),
            false => find::read(name, row),
        }
    }

    /// Reads a message's row. In the format before it doesn't say which one is before it.
    pub fn row<'r>(
        &self,
        (number, offset): (u64, u64),
        known: u64,
        bytes: &'r [u8],
    ) -> Result<Row<'r>, BadRow> {
        match self.is_before {
            true => Head::read(bytes).map(|_| Row { before: known, record: bytes }),
            false => Row::read(number, offset, bytes),
        }
    }

    pub fn each_cursor(
        &self,
        txn: &ReadTransaction,
        mut each: impl FnMut(&str, &str, u64),
    ) -> Result<(), Trouble> {
        if !self.is_before {
            return rows::each_cursor(txn, each);
        }
        let mut at = None;
        for row in txn.open_table(CURSORS)?.iter()? {
            let (key, offset) = row?;
            let (user, topic) = key.value();
            goes_on(&mut at, (Name::from(user), Name::from(topic)))?;
            each(user, topic, offset.value());
        }
        Ok(())
    }

    pub fn each_idempotency_key(
        &self,
        txn: &ReadTransaction,
        mut each: impl FnMut(&str, &str, u64, u64),
    ) -> Result<(), Trouble> {
        if !self.is_before {
            return rows::each_idempotency_key(txn, each);
        }
        let mut at = None;
        for row in txn.open_table(IDEMPOTENCY)?.iter()? {
            let (place, names) = row?;
            let ((at_ms, offset), (topic, key)) = (place.value(), names.value());
            goes_on(&mut at, (at_ms, offset))?;
            each(topic, key, offset, at_ms);
        }
        Ok(())
    }

    pub fn each_subscriber(
        &self,
        txn: &ReadTransaction,
        mut each: impl FnMut(&str, &[u8]),
    ) -> Result<(), Trouble> {
        if !self.is_before {
            return rows::each_subscriber(txn, each);
        }
        let mut at = None;
        for row in txn.open_table(SUBSCRIPTIONS)?.iter()? {
            let (user, packed) = row?;
            goes_on(&mut at, Name::from(user.value()))?;
            each(user.value(), packed.value());
        }
        Ok(())
    }

    pub fn each_name(
        &self,
        txn: &ReadTransaction,
        mut each: impl FnMut(u32, &str),
    ) -> Result<(), Trouble> {
        if !self.is_before {
            return rows::each_name(txn, each);
        }
        let mut at = None;
        for row in txn.open_table(NAMES)?.iter()? {
            let (number, name) = row?;
            goes_on(&mut at, number.value())?;
            each(number.value(), name.value());
        }
        Ok(())
    }
}

/// A topic's row in the format before.
fn topic_before(row: &[u8]) -> Result<Topic, BadRow> {
    let mut input = Input(row);
    let compact = input.byte()? == 1;
    let mut number = || input.number();
    Ok(Topic {
        number: number()?,
        floor: number()?,
        last: number()?,
        count: number()?,
        bytes: number()?,
        oldest_ms: number()?,
        empty_since_ms: number()?,
        keep: Keep {
            messages_max: number()?,
            bytes_max: number()?,
            seconds_max: number()?,
            compact,
        },
        ..Topic::default()
    })
}
