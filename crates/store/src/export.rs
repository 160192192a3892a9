//! Reads a whole store that no process has open, to write its history elsewhere.
//!
//! The store is verified before the first row and again with each row, so that the reader gets everything that was
//! stored, or an error. Limits by number and bytes count; messages that are too old or have expired are read as
//! well, because the clock of this machine may be wrong: the database decides by its own.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use model::Name;
use redb::ReadableDatabase;

use crate::check::{self, Report};
use crate::database::{Opened, open_database};
use crate::error::{InternalError, OpenError, RowError};
use crate::files::FILE;
use crate::log_rows::{CursorRow, LogHead, LogKey, LogMessage, LogTopic, TransferError};
use crate::metadata::{Metadata, OFFSETS_SKIPPED};
use crate::panics::catch_redb_panics;
use crate::record::MessageRow;
use crate::source::Source;
use crate::staged_file::StagedFile;
use crate::topic::TopicRow;

/// A store that this process has verified and locked.
pub struct StoreExport {
    opened: Opened,
    file: PathBuf,
    format: u64,
    metadata: Metadata,
    topics: Vec<ExportTopic>,
    has_gaps: Cell<bool>,
    _lock: Option<File>,
}

/// A topic of the store.
pub struct ExportTopic {
    /// The topic.
    pub topic: LogTopic,
    row: TopicRow,
}

/// Rows that are no part of the history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherRows {
    /// Events that the application has yet to receive.
    pub events: u64,
    /// Records of other parts of the server, by the part's name.
    pub records: BTreeMap<String, u64>,
}

impl StoreExport {
    /// Verifies the store in a directory, and locks it against servers until the value is dropped. Nothing changes
    /// there. Returns what a check found, and nothing to read if that is damage.
    ///
    /// # Errors
    /// If a process has the store open, or there is none, or one of the first format.
    pub fn open(dir: &Path) -> Result<(Report, Option<StoreExport>), OpenError> {
        let lock = check::lock(dir)?;
        let report = check::check_before_copy(dir)?;
        if !report.damages.is_empty() {
            return Ok((report, None));
        }
        let file = dir.join(FILE);
        let export = StoreExport::read(&file, report.format, lock);
        Ok((report, Some(export.map_err(|error| not_copied(&file, &error))?)))
    }

    fn read(file: &Path, format: u64, lock: Option<File>) -> Result<StoreExport, InternalError> {
        let open = || StagedFile::open_to_read(file);
        let opened = open_database(open, check::CACHE_BYTES, false)?;
        let mut damages = Vec::new();
        let source = Source::new(&opened.db, format, true);
        let metadata = catch_redb_panics(|| source.metadata())?;
        let topics = check::scan_topics(&source, &mut damages);
        if let Some(damage) = damages.into_iter().next() {
            return Err(damage.into());
        }
        let topic = |(name, row)| ExportTopic { topic: LogTopic::of_row(&name, &row), row };
        let topics = topics.into_iter().map(topic).collect();
        Ok(StoreExport {
            opened,
            file: file.into(),
            format,
            metadata,
            topics,
            has_gaps: Cell::new(metadata.lost_through > 0),
            _lock: lock,
        })
    }

    fn source(&self) -> Source<'_> {
        Source::new(&self.opened.db, self.format, true)
    }

    /// Returns all topics, in the order of their names.
    pub fn topics(&self) -> &[ExportTopic] {
        &self.topics
    }

    /// Returns the state of all topics together.
    pub fn head(&self) -> LogHead {
        let Metadata { epoch, clean, last_offset, forgotten_floor, .. } = self.metadata;
        // As at the next start: offsets may have been assigned that were never stored.
        let skipped = if clean { 0 } else { OFFSETS_SKIPPED };
        LogHead {
            epoch,
            last_offset: last_offset.saturating_add(skipped),
            forgotten: forgotten_floor,
        }
    }

    /// Returns true if the store may lack messages that clients have seen, and [`LogMessage::previous`] does not say
    /// which. Only a new epoch makes those clients notice the gap. The result is final once all messages are read.
    pub fn has_gaps(&self) -> bool {
        self.has_gaps.get()
    }

    /// Passes a topic's messages to `each`, the oldest first, without those beyond the topic's limits of number and
    /// bytes. Returns the offset up to which messages are gone: the topic's floor, or that of the last message beyond
    /// the limits. Of a compacted topic, `each` may get several messages with one key, of which the last one counts.
    ///
    /// # Errors
    /// If a message is not what was written, or `each` fails.
    pub fn messages<E>(
        &self,
        topic: &ExportTopic,
        mut each: impl FnMut(LogMessage<'_>) -> Result<(), E>,
    ) -> Result<u64, TransferError<E>> {
        let (mut left, mut floor, mut failed) = (topic.row, topic.row.floor, None);
        let compact = topic.row.retention.compact;
        let mut previous = if compact { 0 } else { floor };
        let mut put = |offset, stored: MessageRow<'_>| {
            let head = stored.head()?;
            if left.exceeded_size_limit().is_some() {
                left.count = left.count.saturating_sub(1);
                left.bytes = left.bytes.saturating_sub(head.counted_bytes());
                (previous, floor) = (previous.max(offset), floor.max(offset));
                return Ok(());
            }
            if offset <= previous {
                // Messages before this one, or between those up to the floor, are gone, and a link can't say so.
                self.has_gaps.set(true);
                previous = stored.previous;
            }
            let message = LogMessage {
                offset,
                previous,
                at_ms: head.at_ms,
                expires_ms: head.expires_ms,
                bytes: head.counted_bytes(),
                key: head.key,
                is_removal: head.is_removal(),
                record: stored.record,
            };
            previous = offset;
            each(message).map_err(|error| {
                failed = Some(error);
                // This error only ends the scan.
                InternalError::Row(RowError)
            })
        };
        let scanned = check::scan_messages(&self.source(), &topic.topic.name, &topic.row, &mut put);
        if let Some(error) = failed {
            return Err(TransferError::Other(error));
        }
        let damages = scanned.map_err(|error| not_copied(&self.file, &error))?;
        match damages.into_iter().next() {
            Some(damage) => Err(not_copied(&self.file, &damage.into()).into()),
            None => Ok(floor),
        }
    }

    /// Returns the idempotency keys, the oldest first.
    ///
    /// # Errors
    /// If they are not what was written.
    pub fn keys(&self) -> Result<Vec<LogKey>, OpenError> {
        let mut keys = Vec::new();
        let read = catch_redb_panics(|| {
            self.source().each_idempotency_key(
                &self.opened.db.begin_read()?,
                |topic, key, offset, at_ms| {
                    keys.push(LogKey { topic: topic.into(), key: key.into(), offset, at_ms });
                },
            )
        });
        read.map_err(|error| not_copied(&self.file, &error))?;
        Ok(keys)
    }

    /// Returns the rows of users' cursors.
    ///
    /// # Errors
    /// If one is not what was written.
    pub fn cursors(&self) -> Result<Vec<CursorRow>, OpenError> {
        let mut rows = Vec::new();
        let read = catch_redb_panics(|| {
            self.source().each_cursor(&self.opened.db.begin_read()?, |user, topic, offset| {
                rows.push(CursorRow { user: user.into(), topic: topic.into(), offset });
            })
        });
        read.map_err(|error| not_copied(&self.file, &error))?;
        Ok(rows)
    }

    /// Passes the topic names that packed subscriptions refer to, with their numbers, to `name`, and then each user's
    /// packed subscriptions to `user`.
    ///
    /// # Errors
    /// If one is not what was written.
    pub fn subscriptions(
        &self,
        name: impl FnMut(u32, &str),
        user: impl FnMut(&str, &[u8]),
    ) -> Result<(), OpenError> {
        let source = self.source();
        let read = catch_redb_panics(|| {
            let txn = self.opened.db.begin_read()?;
            source.each_name(&txn, name)?;
            source.each_subscriber(&txn, user)
        });
        read.map_err(|error| not_copied(&self.file, &error))
    }

    /// Returns the records of a part: key and value.
    ///
    /// # Errors
    /// If one is not what was written.
    pub fn records(&self, of: &str) -> Result<Vec<(String, Vec<u8>)>, OpenError> {
        let mut rows = Vec::new();
        let read = catch_redb_panics(|| {
            self.source().each_record(&self.opened.db.begin_read()?, |part, key, value| {
                if part == of {
                    rows.push((key.to_owned(), value.to_vec()));
                }
            })
        });
        read.map_err(|error| not_copied(&self.file, &error))?;
        Ok(rows)
    }

    /// Counts what is no part of the history.
    ///
    /// # Errors
    /// If it is not what was written.
    pub fn other_rows(&self) -> Result<OtherRows, OpenError> {
        let mut rows = OtherRows::default();
        let source = self.source();
        let read = catch_redb_panics(|| {
            let txn = self.opened.db.begin_read()?;
            source.each_event(&txn, |_, _| rows.events += 1)?;
            source.each_record(&txn, |part, _, _| match rows.records.get_mut(part) {
                Some(count) => *count += 1,
                None => _ = rows.records.insert(part.into(), 1),
            })
        });
        read.map_err(|error| not_copied(&self.file, &error))?;
        Ok(rows)
    }
}

impl ExportTopic {
    /// Returns the topic's name.
    pub fn name(&self) -> &Name {
        &self.topic.name
    }
}

fn not_copied(file: &Path, error: &InternalError) -> OpenError {
    OpenError::NotCopied { file: file.into(), reason: error.to_string() }
}
