//! The part of the store that reads, and may block on the disk.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use redb::{Database, ReadTransaction, ReadableDatabase};

use crate::error::{InternalError, StoreError};
use crate::events;
use crate::panics::catch_redb_panics;
use crate::queue::Queue;
use crate::read::{self, CountedMessages, ReadLimits, StoredMessages};
use crate::shared::Shared;
use crate::small_tables;
use crate::topic_rows;

/// A job for the reader's thread. If it panics, only the log reports it: the job's owner must notice that the job was
/// dropped.
pub type ReadJob = Box<dyn FnOnce(&Reader) + Send>;

/// The part of the store that may block on the disk. The reader's thread passes one to each
/// [`ReadJob`], and the caller of [`Store::open`](crate::Store::open) gets one. A
/// [`Store`](crate::Store) itself can't read.
pub struct Reader {
    pub(crate) shared: Arc<Shared>,
}

impl Reader {
    pub(crate) fn run(&self, reads: &Queue<ReadJob>) {
        loop {
            let taken = reads.take(64, usize::MAX, None);
            if taken.is_finished {
                return;
            }
            for job in taken.items {
                // A panic in a job is the caller's bug or comes from damage on the disk. It must
                // not end the thread that all other reads need.
                if catch_unwind(AssertUnwindSafe(|| job(self))).is_err() {
                    self.shared.counters.read_panics.fetch_add(1, Relaxed);
                    tracing::error!("a read of the store panicked: this is a bug");
                }
            }
        }
    }

    fn read<T>(
        &self,
        read: impl FnOnce(&Database) -> Result<T, InternalError>,
    ) -> Result<T, StoreError> {
        match &*self.shared.db() {
            // redb may panic over damage.
            Some(db) => catch_redb_panics(|| read(db)).map_err(|error| {
                if error.is_damage() {
                    self.shared.counters.damaged_reads.fetch_add(1, Relaxed);
                }
                self.shared.store_error(error)
            }),
            None => Err(self.shared.write_error().map_or(StoreError::Closed, StoreError::Disk)),
        }
    }

    /// Returns a topic's messages after an offset, oldest first.
    pub fn after(
        &self,
        topic: &str,
        after: u64,
        limits: ReadLimits,
        now_ms: u64,
    ) -> Result<StoredMessages, StoreError> {
        self.read(|db| read::after(db, topic, after, limits, now_ms))
    }

    /// Returns a topic's messages before an offset, newest first.
    pub fn before(
        &self,
        topic: &str,
        before: u64,
        limits: ReadLimits,
        now_ms: u64,
    ) -> Result<StoredMessages, StoreError> {
        self.read(|db| read::before(db, topic, before, limits, now_ms))
    }

    /// Counts a topic's messages before an offset, the newest first, without copying them. It ends behind the message
    /// that reaches a limit, or a read's number of expired ones. It ends at damage, and a count that begins there
    /// fails.
    pub fn count_before(
        &self,
        topic: &str,
        before: u64,
        limits: ReadLimits,
        now_ms: u64,
    ) -> Result<CountedMessages, StoreError> {
        self.read(|db| read::count_before(db, topic, before, limits, now_ms))
    }

    /// Returns the last offset that the topic ever stored; `None` if the topic is unknown.
    pub fn last(&self, topic: &str) -> Result<Option<u64>, StoreError> {
        self.read(|db| Ok(Some(read::floor_and_last(db, topic)?.1).filter(|last| *last > 0)))
    }

    /// Returns the topic's floor: messages at or below this offset may have been dropped.
    pub fn floor(&self, topic: &str) -> Result<u64, StoreError> {
        self.read(|db| Ok(read::floor_and_last(db, topic)?.0))
    }

    /// Returns a snapshot of the last commit. It can be read until the file is closed.
    pub(crate) fn snapshot(&self) -> Result<ReadTransaction, StoreError> {
        self.read(|db| Ok(db.begin_read()?))
    }

    fn rows<T>(
        &self,
        read: impl FnOnce(&ReadTransaction) -> Result<T, InternalError>,
    ) -> Result<T, StoreError> {
        self.read(|db| read(&db.begin_read()?))
    }

    /// Passes up to `count` topics whose names begin with `prefix`, after `behind`, to `each`, in the order of their
    /// names, each with the offset of the last message that it ever had. Returns the last name if there may be more.
    pub fn each_topic(
        &self,
        prefix: &str,
        behind: Option<&str>,
        count: usize,
        each: impl FnMut(&str, u64),
    ) -> Result<Option<String>, StoreError> {
        self.rows(|txn| topic_rows::each(txn, prefix, behind, count, each))
    }

    /// Passes all cursors to `each`: user, topic, offset, in the order of users and topics. After an error it has
    /// passed all intact rows; that is also true for the methods below.
    pub fn each_cursor(&self, each: impl FnMut(&str, &str, u64)) -> Result<(), StoreError> {
        self.rows(|txn| small_tables::each_cursor(txn, each))
    }

    /// Passes the idempotency keys that the last sweep left to `each`: topic, key, offset, and time
    /// (milliseconds since 1970). The oldest come first.
    pub fn each_idempotency_key(
        &self,
        each: impl FnMut(&str, &str, u64, u64),
    ) -> Result<(), StoreError> {
        self.rows(|txn| small_tables::each_idempotency_key(txn, each))
    }

    /// Passes all packed subscriptions to `each`, in the order of users.
    pub fn each_subscriber(&self, each: impl FnMut(&str, &[u8])) -> Result<(), StoreError> {
        self.rows(|txn| small_tables::each_subscriber(txn, each))
    }

    /// Passes all records to `each`: part, key, value, in the order of parts and keys.
    pub fn each_record(&self, each: impl FnMut(&str, &str, &[u8])) -> Result<(), StoreError> {
        self.rows(|txn| small_tables::each_record(txn, each))
    }

    /// Passes the topic names that packed subscriptions refer to, with their numbers, to `each`, in
    /// the order of numbers.
    pub fn each_name(&self, each: impl FnMut(u32, &str)) -> Result<(), StoreError> {
        self.rows(|txn| small_tables::each_name(txn, each))
    }

    /// Passes the events that the application has not received yet to `each`, in the order of their numbers.
    pub fn each_event(&self, each: impl FnMut(u64, &[u8])) -> Result<(), StoreError> {
        self.rows(|txn| events::each(txn, each))
    }
}
