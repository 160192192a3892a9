//! A file that a check or a copy reads, in the current format or an earlier one.

use model::Name;
use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition};

use crate::coding::Decoder;
use crate::error::{InternalError, RowError};
use crate::metadata::Metadata;
use crate::order::require_ascending;
use crate::record::{MessageRow, RecordRef};
use crate::small_tables;
use crate::tables::{FIRST_FORMAT, FORMAT_TABLE, METADATA, SUBSCRIPTIONS};
use crate::topic::{Retention, TopicRow};
use crate::topic_rows;

/// The tables that are different in the first format, which also stores its metadata beside the
/// format version.
const IDEMPOTENCY: TableDefinition<'static, (u64, u64), (&str, &str)> =
    TableDefinition::new("idempotency");
const CURSORS: TableDefinition<'static, (&str, &str), u64> = TableDefinition::new("cursors");
const NAMES: TableDefinition<'static, u32, &str> = TableDefinition::new("names");

/// The file to read.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub db: &'a Database,
    /// True if the file has the first format: its rows have no checksums and no links.
    pub is_first_format: bool,
    /// True if redb has verified its own checksums.
    pub is_verified: bool,
}

impl<'a> Source<'a> {
    /// Wraps a file of a known format.
    pub fn new(db: &'a Database, format: u64, is_verified: bool) -> Self {
        Source { db, is_first_format: format == FIRST_FORMAT, is_verified }
    }

    /// Returns true if rows may be missing or changed, and only their content can tell.
    pub fn is_unverifiable(&self) -> bool {
        self.is_first_format && !self.is_verified
    }

    /// Returns the metadata of the store.
    pub fn metadata(&self) -> Result<Metadata, InternalError> {
        let txn = self.db.begin_read()?;
        if !self.is_first_format {
            return Metadata::from_table(&txn.open_table(METADATA)?);
        }
        let facts = txn.open_table(FORMAT_TABLE)?;
        let fact = |name: &str| -> Result<u64, InternalError> {
            Ok(facts.get(name)?.map_or(0, |row| row.value()))
        };
        Ok(Metadata {
            epoch: fact("epoch")? as u32,
            clean: fact("clean")? == 1,
            last_offset: fact("last")?,
            forgotten_floor: fact("gone")?,
            last_number: fact("next")?,
            ..Metadata::default()
        })
    }

    /// Decodes a topic's row.
    pub fn topic(&self, name: &str, row: &[u8]) -> Result<TopicRow, InternalError> {
        match self.is_first_format {
            true => decode_first_topic(row).map_err(|_| topic_rows::damaged_row(name)),
            false => topic_rows::decode(name, row),
        }
    }

    /// Decodes a message's row. In the first format it has no link, so `previous` takes its place.
    pub fn row<'r>(
        &self,
        (number, offset): (u64, u64),
        previous: u64,
        bytes: &'r [u8],
    ) -> Result<MessageRow<'r>, RowError> {
        match self.is_first_format {
            true => RecordRef::decode(bytes).map(|_| MessageRow { previous, record: bytes }),
            false => MessageRow::decode(number, offset, bytes),
        }
    }

    pub fn each_cursor(
        &self,
        txn: &ReadTransaction,
        mut each: impl FnMut(&str, &str, u64),
    ) -> Result<(), InternalError> {
        if !self.is_first_format {
            return small_tables::each_cursor(txn, each);
        }
        let mut at = None;
        for row in txn.open_table(CURSORS)?.iter()? {
            let (key, offset) = row?;
            let (user, topic) = key.value();
            require_ascending(&mut at, (Name::from(user), Name::from(topic)))?;
            each(user, topic, offset.value());
        }
        Ok(())
    }

    pub fn each_idempotency_key(
        &self,
        txn: &ReadTransaction,
        mut each: impl FnMut(&str, &str, u64, u64),
    ) -> Result<(), InternalError> {
        if !self.is_first_format {
            return small_tables::each_idempotency_key(txn, each);
        }
        let mut at = None;
        for row in txn.open_table(IDEMPOTENCY)?.iter()? {
            let (row_key, names) = row?;
            let ((at_ms, offset), (topic, key)) = (row_key.value(), names.value());
            require_ascending(&mut at, (at_ms, offset))?;
            each(topic, key, offset, at_ms);
        }
        Ok(())
    }

    pub fn each_subscriber(
        &self,
        txn: &ReadTransaction,
        mut each: impl FnMut(&str, &[u8]),
    ) -> Result<(), InternalError> {
        if !self.is_first_format {
            return small_tables::each_subscriber(txn, each);
        }
        let mut at = None;
        for row in txn.open_table(SUBSCRIPTIONS)?.iter()? {
            let (user, packed) = row?;
            require_ascending(&mut at, Name::from(user.value()))?;
            each(user.value(), packed.value());
        }
        Ok(())
    }

    pub fn each_name(
        &self,
        txn: &ReadTransaction,
        mut each: impl FnMut(u32, &str),
    ) -> Result<(), InternalError> {
        if !self.is_first_format {
            return small_tables::each_name(txn, each);
        }
        let mut at = None;
        for row in txn.open_table(NAMES)?.iter()? {
            let (number, name) = row?;
            require_ascending(&mut at, number.value())?;
            each(number.value(), name.value());
        }
        Ok(())
    }

    pub fn each_record(
        &self,
        txn: &ReadTransaction,
        each: impl FnMut(&str, &str, &[u8]),
    ) -> Result<(), InternalError> {
        if self.is_first_format { Ok(()) } else { small_tables::each_record(txn, each) }
    }
}

impl Source<'_> {
    /// Passes events for the application to `each`. The first format had none.
    pub fn each_event(
        &self,
        txn: &ReadTransaction,
        each: impl FnMut(u64, &[u8]),
    ) -> Result<(), InternalError> {
        if self.is_first_format { Ok(()) } else { crate::events::each(txn, each) }
    }
}

/// Decodes a topic's row of the first format.
fn decode_first_topic(row: &[u8]) -> Result<TopicRow, RowError> {
    let mut input = Decoder(row);
    let compact = input.byte()? == 1;
    let mut number = || input.number();
    Ok(TopicRow {
        number: number()?,
        floor: number()?,
        last: number()?,
        count: number()?,
        bytes: number()?,
        oldest_ms: number()?,
        empty_since_ms: number()?,
        retention: Retention {
            messages_max: number()?,
            bytes_max: number()?,
            seconds_max: number()?,
            compact,
        },
        ..TopicRow::default()
    })
}
