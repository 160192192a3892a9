//! Copies the rows of a store unchanged into a new file, and verifies each. At a damaged or missing row the copy fails.

use redb::{
    Database, Key, ReadTransaction, ReadableTable, ReadableTableMetadata, TableDefinition,
    TableError, Value,
};

use crate::checksum;
use crate::error::{Damage, InternalError};
use crate::metadata::Metadata;
use crate::record::MessageRow;
use crate::tables::{
    CURSORS, EVENTS, EXPIRIES, IDEMPOTENCY, KEYS, MESSAGES, METADATA, NAMES, RECORDS,
    SUBSCRIPTIONS, TOPICS,
};
use crate::{events, small_tables, topic_rows};

/// Bytes of rows in one transaction. A commit of this size keeps the disk busy no longer than one of publishers.
const CHUNK_BYTES: usize = 1 << 20;

/// Rows in one transaction, including those that are not copied.
const CHUNK_ROWS: u64 = 65_536;

/// Takes the number of rows that the copy went through and of bytes that it wrote, each since the last call. An error
/// ends the copy.
type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> Result<(), InternalError>;

/// Returns the metadata of the store.
pub(crate) fn snapshot_metadata(from: &ReadTransaction) -> Result<Metadata, InternalError> {
    Metadata::from_table(&from.open_table(METADATA)?)
}

/// Returns the number of rows that [`copy_rows`] goes through.
pub(crate) fn count_rows(from: &ReadTransaction) -> Result<u64, InternalError> {
    fn count<K: Key + 'static, V: Value + 'static>(
        from: &ReadTransaction,
        table: TableDefinition<'static, K, V>,
    ) -> Result<u64, InternalError> {
        match from.open_table(table) {
            Err(TableError::TableDoesNotExist(_)) => Ok(0),
            table => Ok(table?.len()?),
        }
    }
    let counts = [
        count(from, TOPICS)?,
        count(from, MESSAGES)?,
        count(from, KEYS)?,
        count(from, EXPIRIES)?,
        count(from, IDEMPOTENCY)?,
        count(from, CURSORS)?,
        count(from, SUBSCRIPTIONS)?,
        count(from, NAMES)?,
        count(from, RECORDS)?,
        count(from, EVENTS)?,
    ];
    Ok(counts.iter().sum())
}

/// Copies all rows into a new file, with this metadata. Uses memory for a few pages, and 24 bytes per topic. The
/// source has any format but the first.
pub(crate) fn copy_rows(
    from: &ReadTransaction,
    to: &Database,
    metadata: &Metadata,
    progress: Progress<'_>,
) -> Result<(), InternalError> {
    // Each of these reads compares the table with its tally, and takes about a second per million rows.
    small_tables::each_cursor(from, |_, _, _| ())?;
    progress(0, 0)?;
    small_tables::each_idempotency_key(from, |_, _, _, _| ())?;
    progress(0, 0)?;
    small_tables::each_subscriber(from, |_, _| ())?;
    progress(0, 0)?;
    small_tables::each_name(from, |_, _| ())?;
    progress(0, 0)?;
    small_tables::each_record(from, |_, _, _| ())?;
    progress(0, 0)?;
    events::each(from, |_, _| ())?;
    let mut copy = Copy { from, to, progress };
    let topics = copy.topics(metadata)?;
    copy.messages(&topics)?;
    copy.all(KEYS)?;
    copy.all(EXPIRIES)?;
    copy.all(IDEMPOTENCY)?;
    copy.all(CURSORS)?;
    copy.all(SUBSCRIPTIONS)?;
    copy.all(NAMES)?;
    copy.all(RECORDS)?;
    copy.all(EVENTS)?;
    let txn = to.begin_write()?;
    metadata.save(&txn)?;
    Ok(txn.commit()?)
}

/// The position of a topic's messages.
struct Topic {
    number: u64,
    /// Up to this offset the topic has no messages.
    base: u64,
    /// The offset of its last message.
    newest: u64,
}

struct Copy<'a> {
    from: &'a ReadTransaction,
    to: &'a Database,
    progress: Progress<'a>,
}

impl Copy<'_> {
    /// Copies all rows of a table.
    fn all<K: Key + 'static, V: Value + 'static>(
        &mut self,
        table: TableDefinition<'static, K, V>,
    ) -> Result<(), InternalError> {
        self.rows(table, |_, _| Ok(true))
    }

    /// Copies the rows of a table for which `verify` returns true.
    fn rows<K, V, F>(
        &mut self,
        table: TableDefinition<'static, K, V>,
        mut verify: F,
    ) -> Result<(), InternalError>
    where
        K: Key + 'static,
        V: Value + 'static,
        F: for<'f> FnMut(&K::SelfType<'f>, &V::SelfType<'f>) -> Result<bool, InternalError>,
    {
        let from = match self.from.open_table(table) {
            // Files of earlier formats lack some tables.
            Err(TableError::TableDoesNotExist(_)) => return Ok(()),
            from => from?,
        };
        let mut rows = from.iter()?.peekable();
        let mut last: Option<Vec<u8>> = None;
        while rows.peek().is_some() {
            let (mut count, mut bytes) = (0, 0);
            let txn = self.to.begin_write()?;
            {
                let mut to = txn.open_table(table)?;
                for row in rows.by_ref() {
                    let (key, value) = row?;
                    let (key, value) = (key.value(), value.value());
                    let raw = K::as_bytes(&key);
                    // A damaged page may point back, and the copy would never end.
                    if last.as_deref().is_some_and(|last| K::compare(last, raw.as_ref()).is_ge()) {
                        let damage = Damage::in_table("the file", "rows are out of order");
                        return Err(damage.into());
                    }
                    last.get_or_insert_default().clear();
                    last.get_or_insert_default().extend_from_slice(raw.as_ref());
                    count += 1;
                    if verify(&key, &value)? {
                        bytes += raw.as_ref().len() + V::as_bytes(&value).as_ref().len();
                        to.insert(&key, &value)?;
                    }
                    if bytes > CHUNK_BYTES || count == CHUNK_ROWS {
                        break;
                    }
                }
            }
            txn.commit()?;
            (self.progress)(count, bytes as u64)?;
        }
        Ok(())
    }

    /// Copies the topics' rows. Returns the topics in the order of their numbers.
    fn topics(&mut self, metadata: &Metadata) -> Result<Vec<Topic>, InternalError> {
        let (mut before, mut topics) = (0, Vec::new());
        self.rows(TOPICS, |name, row| {
            let row = topic_rows::decode(name, row)?;
            if row.previous_name_hash != before {
                return Err(topic_rows::damaged_row(name));
            }
            before = checksum::of_name(name);
            topics.push(Topic { number: row.number, base: row.base, newest: row.newest });
            Ok(true)
        })?;
        if before != metadata.last_name_hash {
            return Err(Damage::in_table("topics", "the last rows are missing").into());
        }
        topics.sort_unstable_by_key(|topic| topic.number);
        Ok(topics)
    }

    /// Copies the messages of these topics. Skips rows of other numbers: a topic that continued under a new number
    /// after damage has left them.
    fn messages(&mut self, topics: &[Topic]) -> Result<(), InternalError> {
        let mut topics = topics.iter().peekable();
        // The topic of the last row, and the offset up to which all its messages are accounted for.
        let mut current: Option<(&Topic, u64)> = None;
        let mut failed_at = None;
        let complete = |current: Option<(&Topic, u64)>| match current {
            Some((topic, through)) if through < topic.newest => Err((topic.number, topic.newest)),
            _ => Ok(()),
        };
        let copied = self.rows(MESSAGES, |&(number, offset), row| {
            let mut verify = || {
                while let Some(topic) = topics.next_if(|topic| topic.number <= number) {
                    complete(current)?;
                    current = Some((topic, topic.base));
                }
                let Some((topic, through)) = current.filter(|(topic, _)| topic.number == number)
                else {
                    return Ok(false);
                };
                match MessageRow::decode(number, offset, row) {
                    Ok(row) if row.previous <= through => {
                        current = Some((topic, offset));
                        Ok(true)
                    }
                    _ => Err((number, offset)),
                }
            };
            verify().map_err(|position| {
                failed_at = Some(position);
                Damage::in_table("messages", "damaged").into()
            })
        });
        let mut rest = || {
            complete(current)?;
            topics.try_for_each(|topic| complete(Some((topic, topic.base))))
        };
        match (failed_at, copied) {
            (Some((number, offset)), _) => Err(self.damaged_message(number, offset)),
            (None, Err(error)) => Err(error),
            (None, Ok(())) => {
                rest().map_err(|(number, offset)| self.damaged_message(number, offset))
            }
        }
    }

    /// Returns the error for a topic's message that is damaged, or that lacks the one before it.
    fn damaged_message(&self, number: u64, offset: u64) -> InternalError {
        let what = "it, or a message before it, is not what was written";
        let named = || -> Result<Option<String>, InternalError> {
            for row in self.from.open_table(TOPICS)?.iter()? {
                let (name, row) = row?;
                if topic_rows::decode(name.value(), row.value())?.number == number {
                    return Ok(Some(name.value().into()));
                }
            }
            Ok(None)
        };
        match named() {
            Ok(Some(name)) => {
                Damage::in_messages(&name, offset.saturating_sub(1), offset, what).into()
            }
            _ => Damage::in_table("messages", what).into(),
        }
    }
}
