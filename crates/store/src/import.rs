//! Writes a new store from the rows of a history that was elsewhere.

use std::path::Path;

use model::Name;
use redb::Database;

use crate::backup::backup_metadata;
use crate::batch::first_expiry;
use crate::checksum;
use crate::destination::{copy_error, write_new};
use crate::error::{Damage, InternalError, OpenError};
use crate::files::FILE;
use crate::log_rows::{CursorRow, LogHead, LogKey, LogRow, LogTopic, TransferError};
use crate::metadata::Metadata;
use crate::panics::catch_redb_panics;
use crate::record::{MessageRow, RecordRef, with_time};
use crate::small_tables;
use crate::tables::{EXPIRIES, IDEMPOTENCY, KEYS, MESSAGES, TOPICS};
use crate::topic::TopicRow;

/// Bytes of records in one transaction.
const CHUNK_BYTES: usize = 16 << 20;

/// Rows in one transaction.
const CHUNK_ROWS: usize = 65_536;

/// The new store did not take a row. [`import`] returns the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the new store did not accept a row")]
pub struct PutFailed;

/// The counts of rows in the new store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// The number of topics.
    pub topics: u64,
    /// The number of messages.
    pub messages: u64,
    /// The number of idempotency keys.
    pub keys: u64,
    /// Messages after the first offset and up to the second may be missing.
    pub lost_range: (u64, u64),
}

/// A new store that takes rows.
pub struct StoreImport<'a> {
    db: &'a Database,
    metadata: Metadata,
    /// Complete topics. The last one takes messages.
    topics: Vec<(Name, TopicRow)>,
    /// Messages that are not written yet.
    rows: Vec<PendingRow>,
    bytes: usize,
    imported: Imported,
    failed: Option<InternalError>,
}

/// A message that is not written yet.
struct PendingRow {
    /// The index of its topic.
    topic: usize,
    offset: u64,
    previous: u64,
    expires_ms: Option<u64>,
    record: Vec<u8>,
}

/// Writes a store into the directory `to`, which has none. `fill` puts all rows into it, and returns the state of the
/// log. The file gets its name when it is complete and on the disk; after an error nothing of it is left.
///
/// The log may go on after it was read. So the store has `new_epoch`, a random number, and counts messages after the
/// last offset as lost, as a restored backup does: clients that come back learn that messages may be missing.
///
/// # Errors
/// If `to` has a store or no capacity, a row is damaged, or `fill` fails.
pub fn import<E>(
    to: &Path,
    new_epoch: u32,
    fill: impl FnOnce(&mut StoreImport<'_>) -> Result<LogHead, E>,
) -> Result<Imported, TransferError<E>> {
    let (mut other, mut imported) = (None, Imported::default());
    let file = to.join(FILE);
    let to_error = |error: InternalError| match error {
        InternalError::Damaged(damage) => OpenError::NotImported { reason: damage.to_string() },
        error => copy_error(error, &file, to),
    };
    let written = write_new(to, None, to_error, |directory| {
        directory.replace(|new| {
            let mut import = StoreImport::new(new);
            let filled = fill(&mut import);
            if let Some(error) = import.failed.take() {
                return Err(error);
            }
            let head = filled.map_err(|error| {
                other = Some(error);
                // This error only ends the import.
                InternalError::Panic
            })?;
            let metadata = catch_redb_panics(|| import.finish(head, new_epoch))?;
            imported = import.imported;
            // A mark of an earlier store in this directory must not outlive it.
            directory.record_commit(&metadata);
            Ok(())
        })
    });
    match (other, written) {
        (Some(error), _) => Err(TransferError::Other(error)),
        (None, Err(error)) => Err(error.into()),
        (None, Ok(())) => Ok(imported),
    }
}

impl<'a> StoreImport<'a> {
    fn new(db: &'a Database) -> Self {
        StoreImport {
            db,
            metadata: Metadata { clean: true, ..Metadata::default() },
            topics: Vec::new(),
            rows: Vec::new(),
            bytes: 0,
            imported: Imported::default(),
            failed: None,
        }
    }

    /// Puts a topic, or a message of the topic before. The messages of a topic come in the order of their offsets.
    ///
    /// # Errors
    /// If the row is damaged, or the disk rejects it.
    pub fn put(&mut self, row: LogRow<'_>) -> Result<(), PutFailed> {
        let put = match row {
            LogRow::Topic(topic) => {
                self.topic(topic);
                Ok(())
            }
            LogRow::Message { offset, at_ms, record } => self.message(offset, at_ms, record),
        };
        self.note(put)
    }

    /// Puts idempotency keys.
    ///
    /// # Errors
    /// If the disk rejects them.
    pub fn put_keys(&mut self, keys: &[LogKey]) -> Result<(), PutFailed> {
        let put = keys.chunks(CHUNK_ROWS).try_for_each(|keys| self.keys(keys));
        self.note(put)
    }

    /// Puts rows of users' cursors.
    ///
    /// # Errors
    /// If the disk rejects them.
    pub fn put_cursors(&mut self, rows: &[CursorRow]) -> Result<(), PutFailed> {
        let put = rows.chunks(CHUNK_ROWS).try_for_each(|rows| {
            let txn = self.db.begin_write()?;
            for CursorRow { user, topic, offset } in rows {
                small_tables::put_cursor(&txn, &mut self.metadata, user, topic, *offset)?;
            }
            Ok(txn.commit()?)
        });
        self.note(put)
    }

    /// Puts records of a part: key and value.
    ///
    /// # Errors
    /// If the disk rejects them.
    pub fn put_records(&mut self, part: &str, rows: &[(Name, Vec<u8>)]) -> Result<(), PutFailed> {
        let put = rows.chunks(CHUNK_ROWS).try_for_each(|rows| {
            let txn = self.db.begin_write()?;
            for (key, value) in rows {
                small_tables::put_record(&txn, &mut self.metadata, (part, key), Some(value))?;
            }
            Ok(txn.commit()?)
        });
        self.note(put)
    }

    /// Puts users' packed subscriptions, and before them the topic names that they refer to by number.
    ///
    /// # Errors
    /// If the disk rejects them.
    pub fn put_subscriptions(
        &mut self,
        puts: &[(Name, Box<[u8]>)],
        names: &[(u32, Name)],
    ) -> Result<(), PutFailed> {
        let put = catch_redb_panics(|| {
            let txn = self.db.begin_write()?;
            small_tables::put_subscriptions(&txn, &mut self.metadata, puts, names)?;
            Ok(txn.commit()?)
        });
        self.note(put)
    }

    fn note(&mut self, put: Result<(), InternalError>) -> Result<(), PutFailed> {
        put.map_err(|error| {
            self.failed = Some(error);
            PutFailed
        })
    }

    fn topic(&mut self, topic: &LogTopic) {
        self.metadata.last_number += 1;
        self.topics.push((topic.name.clone(), topic.to_row(self.metadata.last_number)));
        self.imported.topics += 1;
    }

    fn message(&mut self, offset: u64, at_ms: u64, record: &[u8]) -> Result<(), InternalError> {
        let Some((name, topic)) = self.topics.last_mut() else {
            return Err(Damage::in_table("messages", "a message has no topic").into());
        };
        let damaged = |what: &str| {
            InternalError::from(Damage::in_messages(name, offset.saturating_sub(1), offset, what))
        };
        if offset <= topic.newest {
            return Err(damaged("messages are not in the order of their offsets"));
        }
        let record = with_time(record, at_ms);
        let record = record.map_err(|_| damaged("it is damaged, or from a newer version"))?;
        let head = RecordRef::decode(&record);
        let head = head.map_err(|_| damaged("it is damaged, or from a newer version"))?;
        topic.oldest_ms = if topic.count == 0 { at_ms } else { topic.oldest_ms.min(at_ms) };
        topic.count += 1;
        topic.bytes += head.counted_bytes();
        topic.last = topic.last.max(offset);
        topic.empty_since_ms = 0;
        let previous = std::mem::replace(&mut topic.newest, offset);
        let expires_ms = first_expiry(&head, topic.retention.compact);
        let topic = self.topics.len() - 1;
        self.bytes += record.len();
        self.rows.push(PendingRow { topic, offset, previous, expires_ms, record });
        self.imported.messages += 1;
        match self.bytes > CHUNK_BYTES || self.rows.len() == CHUNK_ROWS {
            true => catch_redb_panics(|| self.write()),
            false => Ok(()),
        }
    }

    fn write(&mut self) -> Result<(), InternalError> {
        let txn = self.db.begin_write()?;
        {
            let mut messages = txn.open_table(MESSAGES)?;
            let mut keys = txn.open_table(KEYS)?;
            let mut expiries = txn.open_table(EXPIRIES)?;
            for row in self.rows.drain(..) {
                let PendingRow { topic, offset, previous, expires_ms, record } = row;
                let (name, topic) = &self.topics[topic];
                let stored = MessageRow { previous, record: &record };
                let prefix = stored.prefix(topic.number, offset);
                let bytes = [prefix.bytes(), &record].concat();
                messages.insert((topic.number, offset), &*bytes)?;
                let key = RecordRef::decode(&record)?.key;
                if let Some(key) = key.filter(|_| topic.retention.compact) {
                    keys.insert((topic.number, key), offset)?;
                }
                if let Some(expires_ms) = expires_ms {
                    expiries.insert((expires_ms, topic.number, offset), name.as_str())?;
                }
            }
        }
        self.bytes = 0;
        Ok(txn.commit()?)
    }

    fn keys(&mut self, keys: &[LogKey]) -> Result<(), InternalError> {
        let txn = self.db.begin_write()?;
        {
            let mut table = txn.open_table(IDEMPOTENCY)?;
            for LogKey { topic, key, offset, at_ms } in keys {
                let (position, names) = ((*at_ms, *offset), (topic.as_str(), key.as_str()));
                small_tables::put_idempotency_key(&mut table, &mut self.metadata, position, names)?;
            }
        }
        self.imported.keys += keys.len() as u64;
        Ok(txn.commit()?)
    }

    /// Writes the topics' rows and the metadata.
    fn finish(&mut self, head: LogHead, new_epoch: u32) -> Result<Metadata, InternalError> {
        self.write()?;
        self.topics.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let metadata = &mut self.metadata;
        for topics in self.topics.chunks_mut(CHUNK_ROWS) {
            let txn = self.db.begin_write()?;
            {
                let mut table = txn.open_table(TOPICS)?;
                for (name, topic) in topics {
                    topic.previous_name_hash = metadata.last_name_hash;
                    metadata.last_name_hash = checksum::of_name(name);
                    metadata.empty_topics += u64::from(topic.count == 0);
                    metadata.last_offset = metadata.last_offset.max(topic.last);
                    table.insert(name.as_str(), &*topic.encode(name))?;
                }
            }
            txn.commit()?;
        }
        let metadata = Metadata {
            epoch: head.epoch,
            last_offset: metadata.last_offset.max(head.last_offset),
            forgotten_floor: head.forgotten,
            ..*metadata
        };
        let metadata = backup_metadata(&metadata, new_epoch);
        self.imported.lost_range = (metadata.lost_after, metadata.lost_through);
        let txn = self.db.begin_write()?;
        metadata.save(&txn)?;
        txn.commit()?;
        Ok(metadata)
    }
}
