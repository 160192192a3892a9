//! The store's public interface.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;

use model::{HistoryRule, Name, Publication};

use crate::backups::Backups;
use crate::batch::{self, Op, PartRecord, RecordPut};
use crate::clock::Age;
use crate::database::GuardedDatabase;
use crate::error::{OpenError, QueueError, StoreError};
use crate::open::{Directory, OpenState};
use crate::panics::catch_redb_panics;
use crate::queue::{PushError, Queue, State};
use crate::reader::{ReadJob, Reader};
use crate::record;
use crate::shared::{Done, Item, Shared};
use crate::stats::{Counters, Dropped, Stats};
use crate::topic::Retention;
use crate::writer::Writer;

/// Reads that may wait, at most.
const READS_MAX: usize = 65_536;

/// The approximate memory of an operation in the queue without its texts, in bytes.
const OP_BYTES: usize = 160;

/// The directory of the store, and its limits.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory. The store creates it if it is missing.
    pub dir: PathBuf,
    /// The epoch of a new store.
    pub new_epoch: u32,
    /// Operations that may wait for the writer. Up to 8,192 more are in the current transaction. Together they must
    /// stay below [`crate::OFFSETS_SKIPPED`].
    pub queue_messages_max: usize,
    /// The bytes of these operations. Up to 16 MiB more are in the current transaction.
    pub queue_bytes_max: usize,
    /// Bytes of the file that redb may cache in memory.
    pub cache_bytes_max: usize,
    /// On open, the store verifies a file of up to this length completely, which takes about a
    /// second for each 250 MiB. It verifies a larger file only if it was not closed.
    pub verify_bytes_max: u64,
    /// How long the store remembers an idempotency key, in seconds; see also
    /// [`Store::set_idempotency_seconds_max`].
    pub idempotency_seconds_max: u64,
}

/// The state of the store when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenInfo {
    /// The store's epoch.
    pub epoch: u32,
    /// New offsets start after this one.
    pub last_offset: u64,
    /// True if the last process closed the store. If not, `last_offset` is [`crate::OFFSETS_SKIPPED`] above the last
    /// stored offset.
    pub clean: bool,
}

/// A message to store.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    /// The publication, with its topic.
    pub publication: &'a Publication,
    /// The message's offset. Offsets of a topic must grow from call to call.
    pub offset: u64,
    /// When it was published, in milliseconds since 1970.
    pub at_ms: u64,
    /// The history rule of its topic.
    pub rule: &'a HistoryRule,
    /// The idempotency key, by which a repeated publish is recognized.
    pub idempotency_key: Option<&'a str>,
    /// A record that is written in the same commit: after a crash both exist, or neither.
    pub with: Option<&'a PartRecord>,
}

/// A handle of the store. Clones refer to the same store.
///
/// Only [`Store::close`] ends the store's threads.
#[derive(Clone)]
pub struct Store {
    pub(crate) shared: Arc<Shared>,
    /// Jobs that wait for the reader's thread.
    pub(crate) reads: Arc<Queue<ReadJob>>,
    /// The writer's thread, the reader's, and that of a backup.
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl Store {
    /// Opens the store in its directory, or creates one. That takes seconds at most, even after the last process was
    /// killed.
    ///
    /// Use the returned reader at startup, on this thread, before other threads depend on it.
    pub fn open(options: Options) -> Result<(Store, Reader, OpenInfo), OpenError> {
        let Options { new_epoch, cache_bytes_max, verify_bytes_max, .. } = options;
        let directory = Directory::claim(&options.dir)?;
        let (db, start) = directory.open(new_epoch, cache_bytes_max, verify_bytes_max)?;
        let found = info(&start);
        let store = Store::around(&options, directory);
        store.begin(db, start)?;
        let reader = Reader { shared: store.shared.clone() };
        Ok((store, reader, found))
    }

    /// Makes a store of this directory without opening any file.
    pub(crate) fn around(options: &Options, directory: Directory) -> Store {
        let shared = Arc::new(Shared {
            directory,
            cache_bytes_max: options.cache_bytes_max,
            idempotency_seconds_max: AtomicU64::new(options.idempotency_seconds_max),
            queue: Queue::new(options.queue_messages_max, options.queue_bytes_max),
            db: RwLock::new(None),
            write_error: RwLock::new(None),
            counters: Counters::default(),
            reserve_requested: AtomicBool::new(false),
            last: AtomicU64::new(0),
            backups: Backups::default(),
            passed: Mutex::new(None),
        });
        let reads = Arc::new(Queue::new(READS_MAX, usize::MAX));
        Store { shared, reads, threads: Arc::default() }
    }

    /// Begins to work with an open file: starts the threads, which share this thread's descriptors.
    pub(crate) fn begin(&self, db: GuardedDatabase, found: OpenState) -> Result<(), OpenError> {
        let shared = &self.shared;
        shared.last.store(found.metadata.last_offset, Relaxed);
        *shared.db.write().unwrap_or_else(PoisonError::into_inner) = Some(db);
        *shared.write_error.write().unwrap_or_else(PoisonError::into_inner) = None;
        shared.backups.set_stopped(false);
        self.set(State::Open);
        shared.directory.log_clock();
        let writer = Writer::new(shared.clone(), found);
        let reader = Reader { shared: shared.clone() };
        let reads = self.reads.clone();
        for (name, run) in [
            ("store-write", Box::new(|| writer.run()) as Box<dyn FnOnce() + Send>),
            ("store-read", Box::new(move || reader.run(&reads))),
        ] {
            match std::thread::Builder::new().name(name.into()).spawn(run) {
                Ok(thread) => self.threads().push(thread),
                Err(error) => {
                    self.end_threads(State::Closed);
                    let dir = shared.directory.dir().into();
                    return Err(OpenError::Directory { dir, error });
                }
            }
        }
        Ok(())
    }

    /// Makes the next maintenance create the reserve file.
    #[cfg(test)]
    pub(crate) fn request_reserve(&self) {
        self.shared.reserve_requested.store(true, Relaxed);
    }

    /// Returns the time by which the store counts ages, for a clock that begins with it; `None` while another process
    /// has the file.
    pub fn age(&self) -> Option<Age> {
        self.shared.directory.age()
    }

    /// Moves the time of day that the writer sees.
    #[cfg(test)]
    pub(crate) fn move_wall(&self, by_ms: i64) {
        self.shared.directory.move_wall(by_ms);
    }

    /// Makes a reader for tests, which may block.
    #[cfg(test)]
    pub(crate) fn reader(&self) -> Reader {
        Reader { shared: self.shared.clone() }
    }

    pub(crate) fn threads(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the state of both queues.
    pub(crate) fn set(&self, state: State) {
        self.reads.set(state);
        self.shared.queue.set(state);
    }

    /// Writes everything that waits, and ends the threads. `state` says whether the queues are closed or away.
    pub(crate) fn end_threads(&self, state: State) {
        self.shared.backups.set_stopped(true);
        self.set(state);
        // The reader's thread may add that of a backup until it ends.
        loop {
            let threads = std::mem::take(&mut *self.threads());
            if threads.is_empty() {
                return;
            }
            threads.into_iter().for_each(|thread| drop(thread.join()));
        }
    }

    /// Writes everything that waits, marks the store as closed and ends its threads. Don't call it on one of these. A
    /// second call does nothing.
    pub fn close(&self) -> Result<(), StoreError> {
        self.end_threads(State::Closed);
        let db = self.shared.db.write().unwrap_or_else(PoisonError::into_inner).take();
        let failed = self.shared.write_error();
        let result = match (db, failed) {
            (_, Some(reason)) => Err(StoreError::Disk(reason)),
            (None, None) => Ok(()),
            (Some(db), None) => {
                let result = catch_redb_panics(|| {
                    crate::open::mark_closed(&db, self.shared.last.load(Relaxed))
                });
                let closed = result.and_then(|metadata| {
                    self.shared.directory.record_commit(&metadata);
                    db.close()
                });
                closed.map_err(|error| self.shared.store_error(error))
            }
        };
        self.shared.directory.release();
        result
    }

    fn push(&self, op: Op, bytes: usize, done: Option<Done>) -> Result<(), QueueError> {
        if let Some(reason) = self.shared.write_error() {
            return Err(QueueError::Unavailable(reason));
        }
        self.shared.queue.push(Item { op, done }, OP_BYTES + bytes).map_err(queue_error)
    }

    /// Queues a message. `done` is called only if this returns `Ok`.
    pub fn append(&self, append: Append<'_>, done: Done) -> Result<(), QueueError> {
        self.shared.last.fetch_max(append.offset, Relaxed);
        let record = record::encode(append.publication, append.at_ms);
        let with_bytes = append.with.map_or(0, |(_, put)| record_bytes(put));
        let bytes = record.len() + append.publication.topic.len() + with_bytes;
        let op = Op::Append(batch::Append {
            topic: append.publication.topic.clone(),
            offset: append.offset,
            at_ms: append.at_ms,
            record,
            retention: Retention::of_rule(append.rule),
            idempotency_key: append.idempotency_key.map(Name::from),
            with: append.with.cloned().map(Box::new),
        });
        self.push(op, bytes, Some(done))
    }

    /// Queues a user's cursor in a topic: the offset up to which everything is acknowledged. A
    /// cursor never moves back.
    pub fn put_cursor(&self, user: &Name, topic: &Name, offset: u64) -> Result<(), QueueError> {
        let bytes = user.len() + topic.len();
        self.push(Op::Cursor { user: user.clone(), topic: topic.clone(), offset }, bytes, None)
    }

    /// Queues the deletion of a topic's messages up to this offset. The topic's floor rises to it.
    ///
    /// A deletion works on a full disk, too, because it frees space.
    pub fn delete_history(&self, topic: &Name, through: u64, done: Done) -> Result<(), QueueError> {
        let op = Op::Delete { topic: topic.clone(), through, rows_max: usize::MAX };
        let item = Item { op, done: Some(done) };
        self.shared.queue.push(item, OP_BYTES + topic.len()).map_err(queue_error)
    }

    /// Queues users' packed subscriptions (an empty one removes the user), and the topic names that
    /// these refer to by number.
    pub fn put_subscriptions(
        &self,
        puts: Vec<(Name, Box<[u8]>)>,
        names: Vec<(u32, Name)>,
        done: Done,
    ) -> Result<(), QueueError> {
        let bytes = puts.iter().map(|(user, packed)| user.len() + packed.len() + 32).sum::<usize>()
            + names.iter().map(|(_, name)| name.len() + 32).sum::<usize>();
        self.push(Op::Subscriptions { puts, names }, bytes, Some(done))
    }

    /// Queues records of a part of the server by their keys; those without a value are removed. The server reads all
    /// of them at the start.
    pub fn put_records(
        &self,
        part: &'static str,
        puts: Vec<RecordPut>,
        done: Done,
    ) -> Result<(), QueueError> {
        let bytes = puts.iter().map(record_bytes).sum();
        self.push(Op::Records { part, puts }, bytes, Some(done))
    }

    /// Queues events for the application, by numbers that grow, and the deletion of those up to a number, which it
    /// has received.
    pub fn put_events(
        &self,
        puts: Vec<(u64, Box<[u8]>)>,
        through: Option<u64>,
    ) -> Result<(), QueueError> {
        let bytes = puts.iter().map(|(_, event)| event.len() + 16).sum();
        self.push(Op::Events { puts, through }, bytes, None)
    }

    /// Returns true if half of the queue is free. Operations that no client waits for leave the other half to those
    /// that a client waits for.
    pub fn has_capacity(&self) -> bool {
        self.shared.queue.is_half_empty()
    }

    /// Queues a job for the reader's thread.
    pub fn read_later(&self, job: ReadJob) -> Result<(), QueueError> {
        self.reads.push(job, 0).map_err(queue_error)
    }

    /// Changes how long the store remembers an idempotency key, in seconds. Works on any thread.
    /// The next sweeps delete older keys; keys that are gone don't come back.
    pub fn set_idempotency_seconds_max(&self, seconds: u64) {
        self.shared.idempotency_seconds_max.store(seconds, Relaxed);
    }

    /// Returns why the store accepts nothing at the moment; `None` if it does.
    pub fn write_error(&self) -> Option<Arc<str>> {
        self.shared.write_error()
    }

    /// Returns counts of the messages that the limits of their topics have dropped since the store was opened.
    pub fn dropped(&self) -> Dropped {
        self.shared.counters.dropped()
    }

    /// Returns the store's counts. Works on any thread.
    pub fn stats(&self) -> Stats {
        let (queue_messages, queue_bytes) = self.shared.queue.waiting();
        let metadata = std::fs::metadata(self.shared.directory.file());
        Stats {
            queue_messages,
            queue_bytes,
            reads: self.reads.waiting().0,
            failed: self.shared.write_error().map(|reason| reason.to_string()),
            file_bytes: metadata.map_or(0, |metadata| metadata.len()),
            ..self.shared.counters.stats()
        }
    }
}

/// Returns the caller's information about an opened file.
pub(crate) fn info(found: &OpenState) -> OpenInfo {
    let OpenState { metadata, clean, .. } = found;
    OpenInfo { epoch: metadata.epoch, last_offset: metadata.last_offset, clean: *clean }
}

/// Returns the bytes of a record in the queue.
fn record_bytes((key, value): &RecordPut) -> usize {
    key.len() + value.as_ref().map_or(0, |value| value.len()) + 32
}

fn queue_error(error: PushError) -> QueueError {
    match error {
        PushError::Full => QueueError::Full,
        PushError::Closed => QueueError::Closed,
        PushError::Away => QueueError::Away,
    }
}
