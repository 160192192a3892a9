//! The door of the store: what other rooms call.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::thread::JoinHandle;

use redb::{Database, ReadTransaction, ReadableDatabase};
use wire::{Draft, History, Name};

use crate::base::Base;
use crate::batch::{self, Op};
use crate::fault::{Fault, OpenError, Refused, Trouble};
use crate::open::{Directory, Start};
use crate::queue::{NoRoom, Queue};
use crate::quiet::quietly;
use crate::read::{self, Amount, Stored};
use crate::record;
use crate::rows;
use crate::stats::{Counters, Stats};
use crate::topic::Keep;
use crate::writer::{Item, Writer};

/// Reads that may wait for the reader.
const READS_MAX: usize = 65_536;

/// What an operation holds in the queue beside its texts, in bytes, roughly.
const OP_BYTES: usize = 160;

/// Where the store is, and its limits.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory; made if there is none.
    pub dir: PathBuf,
    /// The epoch of the numbering, for a new store.
    pub new_epoch: u32,
    /// Operations that may wait for the writer. Up to 8,192 more are in the transaction that it
    /// writes; together they are to be fewer than [`crate::OFFSETS_SKIPPED`].
    pub queue_messages_max: usize,
    /// Their bytes. Up to 16 MiB more are in the transaction that is being written.
    pub queue_bytes_max: usize,
    /// What redb may keep in memory of the file.
    pub cache_bytes_max: usize,
    /// A file of up to so many bytes is looked at whole when it is opened, about a second for each
    /// 250 MiB; a larger one only if it was not closed.
    pub verify_bytes_max: u64,
    /// How long an idempotency key is kept, in seconds; see also
    /// [`Store::set_idempotency_seconds_max`].
    pub idempotency_seconds_max: u64,
}

/// What the store was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The epoch of its numbering.
    pub epoch: u32,
    /// The offset after which the numbering goes on.
    pub last_offset: u64,
    /// The last process closed it. If not, `last_offset` is [`crate::OFFSETS_SKIPPED`] above the
    /// last that was stored.
    pub clean: bool,
}

/// Called on the writer's thread once an operation is on disk or has failed. It must be quick,
/// must not wait, and must not call what reads the store.
///
/// After `Ok`, the operation outlives the process and the machine's power. After an error it is
/// not known to be stored: it may be there all the same when the disk took the data and failed to
/// say so.
pub type Done = Box<dyn FnOnce(Result<(), Fault>) + Send>;

/// Called on the reader's thread. Where it panics nobody is told but the log: who waits for its
/// answer must see by what the job owned that it was dropped.
pub type ReadJob = Box<dyn FnOnce(&Reader) + Send>;

/// What may wait for the disk to read. There is one on the reader's thread, which shows it to each
/// [`ReadJob`], and one for whoever opened the store; a [`Store`] can't read.
pub struct Reader {
    shared: Arc<Shared>,
}

/// A message to store.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    /// What was published, and to which topic.
    pub draft: &'a Draft,
    /// Its place. Offsets of a topic are to grow from call to call.
    pub offset: u64,
    /// When it was published, in milliseconds since 1970.
    pub at_ms: u64,
    /// What is kept of its topic.
    pub keep: &'a History,
    /// The key under which a repeat is known.
    pub idempotency_key: Option<&'a str>,
}

/// The store. A clone is the same one.
///
/// Its threads end with [`Store::close`] and not before.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

/// What the threads of the store have in common.
pub(crate) struct Shared {
    pub directory: Directory,
    pub cache_bytes_max: usize,
    pub idempotency_seconds_max: AtomicU64,
    pub queue: Queue<Item>,
    pub reads: Queue<ReadJob>,
    /// `None` while the file is opened anew after an error, and after the end.
    pub db: RwLock<Option<Base>>,
    /// Why nothing is taken in.
    pub failed: RwLock<Option<Arc<str>>>,
    pub counters: Counters,
    /// Room for deletions is to be held with the next look.
    pub hold_room: AtomicBool,
    /// The highest offset that was handed in.
    pub last: AtomicU64,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Shared {
    pub fn db(&self) -> RwLockReadGuard<'_, Option<Base>> {
        self.db.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn failed(&self) -> Option<Arc<str>> {
        self.failed.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn fault(&self, trouble: Trouble) -> Fault {
        trouble.fault(self.directory.dir())
    }
}

impl Store {
    /// Opens the store in its directory, or makes one. Takes seconds at most, also after the last
    /// process was killed.
    ///
    /// What it has is read with the reader, on this thread, before there is anybody to wait.
    pub fn open(options: Options) -> Result<(Store, Reader, Found), OpenError> {
        let Options { new_epoch, cache_bytes_max, verify_bytes_max, .. } = options;
        let directory = Directory::claim(&options.dir)?;
        let (db, start) = directory.open(new_epoch, cache_bytes_max, verify_bytes_max)?;
        let Start { node, clean, has_room } = start;
        let found = Found { epoch: node.epoch, last_offset: node.last, clean };
        let shared = Arc::new(Shared {
            directory,
            cache_bytes_max: options.cache_bytes_max,
            idempotency_seconds_max: AtomicU64::new(options.idempotency_seconds_max),
            queue: Queue::new(options.queue_messages_max, options.queue_bytes_max),
            reads: Queue::new(READS_MAX, usize::MAX),
            db: RwLock::new(Some(db)),
            failed: RwLock::new(None),
            counters: Counters::default(),
            hold_room: AtomicBool::new(false),
            last: AtomicU64::new(node.last),
            threads: Mutex::default(),
        });
        let store = Store { shared };
        let writer = Writer::new(store.shared.clone(), node, has_room);
        let reader = Reader { shared: store.shared.clone() };
        for (name, run) in [
            ("store-write", Box::new(|| writer.run()) as Box<dyn FnOnce() + Send>),
            ("store-read", Box::new(move || reader.run())),
        ] {
            match std::thread::Builder::new().name(name.into()).spawn(run) {
                Ok(thread) => store.threads().push(thread),
                Err(error) => {
                    store.end_threads();
                    return Err(OpenError::Directory { dir: options.dir, error });
                }
            }
        }
        let reader = Reader { shared: store.shared.clone() };
        Ok((store, reader, found))
    }

    /// Has room for deletions held with the next look, where there is some again.
    #[cfg(test)]
    pub(crate) fn hold_room_soon(&self) {
        self.shared.hold_room.store(true, Relaxed);
    }

    /// For tests, which may wait.
    #[cfg(test)]
    pub(crate) fn reader(&self) -> Reader {
        Reader { shared: self.shared.clone() }
    }

    fn threads(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.shared.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_threads(&self) {
        self.shared.reads.close();
        self.shared.queue.close();
        let threads = std::mem::take(&mut *self.threads());
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }

    /// Writes what waits, marks the store as closed and ends its threads. Must not be called on
    /// one of them. A second call does nothing.
    pub fn close(&self) -> Result<(), Fault> {
        self.end_threads();
        let db = self.shared.db.write().unwrap_or_else(PoisonError::into_inner).take();
        let failed = self.shared.failed();
        let ended = match (db, failed) {
            (_, Some(reason)) => Err(Fault::Disk(reason)),
            (None, None) => Ok(()),
            (Some(db), None) => {
                let ended = quietly(|| crate::open::end(&db, self.shared.last.load(Relaxed)));
                let closed = ended.and_then(|node| {
                    self.shared.directory.mark(&node);
                    db.close()
                });
                closed.map_err(|trouble| self.shared.fault(trouble))
            }
        };
        self.shared.directory.release();
        ended
    }

    fn push(&self, op: Op, bytes: usize, done: Option<Done>) -> Result<(), Refused> {
        if let Some(reason) = self.shared.failed() {
            return Err(Refused::Failed(reason));
        }
        self.shared.queue.push(Item { op, done }, OP_BYTES + bytes).map_err(refused)
    }

    /// Has a message stored. When this gives an error, `done` is not called.
    pub fn append(&self, append: Append<'_>, done: Done) -> Result<(), Refused> {
        self.shared.last.fetch_max(append.offset, Relaxed);
        let record = record::encode(append.draft, append.at_ms);
        let bytes = record.len() + append.draft.topic.len();
        let op = Op::Append(batch::Append {
            topic: append.draft.topic.clone(),
            offset: append.offset,
            at_ms: append.at_ms,
            record,
            keep: Keep::of(append.keep),
            idempotency_key: append.idempotency_key.map(Name::from),
        });
        self.push(op, bytes, Some(done))
    }

    /// Has it stored how far a user has done everything in a topic. Less than what is stored
    /// changes nothing.
    pub fn cursor(&self, user: &Name, topic: &Name, offset: u64) -> Result<(), Refused> {
        let bytes = user.len() + topic.len();
        self.push(Op::Cursor { user: user.clone(), topic: topic.clone(), offset }, bytes, None)
    }

    /// Drops a topic's messages up to this offset, and says so in the topic's floor.
    ///
    /// Also where the disk is full: it makes room.
    pub fn delete_history(&self, topic: &Name, through: u64, done: Done) -> Result<(), Refused> {
        let op = Op::Delete { topic: topic.clone(), through, rows_max: usize::MAX };
        let item = Item { op, done: Some(done) };
        self.shared.queue.push(item, OP_BYTES + topic.len()).map_err(refused)
    }

    /// Has users' packed subscriptions stored (empty ones are forgotten), and with them the names
    /// of topics that they mean by number.
    pub fn subscriptions(
        &self,
        puts: Vec<(Name, Box<[u8]>)>,
        names: Vec<(u32, Name)>,
        done: Done,
    ) -> Result<(), Refused> {
        let bytes = puts.iter().map(|(user, packed)| user.len() + packed.len() + 32).sum::<usize>()
            + names.iter().map(|(_, name)| name.len() + 32).sum::<usize>();
        self.push(Op::Subscriptions { puts, names }, bytes, Some(done))
    }

    /// Runs a read on the store's own thread, after those that wait already.
    pub fn read_later(&self, job: ReadJob) -> Result<(), Refused> {
        self.shared.reads.push(job, 0).map_err(refused)
    }

    /// Changes how long an idempotency key is kept, in seconds. May be called on any thread. What
    /// is older goes with the next sweeps; what went before does not come back.
    pub fn set_idempotency_seconds_max(&self, seconds: u64) {
        self.shared.idempotency_seconds_max.store(seconds, Relaxed);
    }

    /// Why nothing is taken in at the moment, if that is so.
    pub fn failed(&self) -> Option<Arc<str>> {
        self.shared.failed()
    }

    /// How the store does. May be called on any thread.
    pub fn stats(&self) -> Stats {
        let (queue_messages, queue_bytes) = self.shared.queue.waiting();
        let metadata = std::fs::metadata(self.shared.directory.file());
        Stats {
            queue_messages,
            queue_bytes,
            reads: self.shared.reads.waiting().0,
            failed: self.shared.failed().map(|reason| reason.to_string()),
            file_bytes: metadata.map_or(0, |metadata| metadata.len()),
            ..self.shared.counters.stats()
        }
    }
}

fn refused(no_room: NoRoom) -> Refused {
    match no_room {
        NoRoom::Full => Refused::Full,
        NoRoom::Closed => Refused::Closed,
    }
}

impl Reader {
    fn run(&self) {
        loop {
            let taken = self.shared.reads.take(64, usize::MAX, None);
            if taken.is_end {
                return;
            }
            for job in taken.items {
                // A panic in there is a fault of the caller or of damage on the disk, and must not
                // end the thread on which all other reads wait.
                if catch_unwind(AssertUnwindSafe(|| job(self))).is_err() {
                    self.shared.counters.read_panics.fetch_add(1, Relaxed);
                    tracing::error!("a read of the store panicked: this is a bug");
                }
            }
        }
    }

    fn read<T>(&self, read: impl FnOnce(&Database) -> Result<T, Trouble>) -> Result<T, Fault> {
        match &*self.shared.db() {
            // redb may panic over what is damaged.
            Some(db) => quietly(|| read(db)).map_err(|trouble| {
                if trouble.is_damage() {
                    self.shared.counters.damaged_reads.fetch_add(1, Relaxed);
                }
                self.shared.fault(trouble)
            }),
            None => Err(self.shared.failed().map_or(Fault::Closed, Fault::Disk)),
        }
    }

    /// A topic's messages after an offset, oldest first.
    pub fn after(
        &self,
        topic: &str,
        after: u64,
        amount: Amount,
        now_ms: u64,
    ) -> Result<Stored, Fault> {
        self.read(|db| read::after(db, topic, after, amount, now_ms))
    }

    /// A topic's messages before an offset, newest first.
    pub fn before(
        &self,
        topic: &str,
        before: u64,
        amount: Amount,
        now_ms: u64,
    ) -> Result<Stored, Fault> {
        self.read(|db| read::before(db, topic, before, amount, now_ms))
    }

    /// The last offset that was ever stored of a topic; `None` if nothing is known of it.
    pub fn last(&self, topic: &str) -> Result<Option<u64>, Fault> {
        self.read(|db| Ok(Some(read::ends(db, topic)?.1).filter(|last| *last > 0)))
    }

    /// A message of the topic at or below this offset that is not there may have been dropped.
    pub fn floor(&self, topic: &str) -> Result<u64, Fault> {
        self.read(|db| Ok(read::ends(db, topic)?.0))
    }

    fn rows(
        &self,
        read: impl FnOnce(&ReadTransaction) -> Result<(), Trouble>,
    ) -> Result<(), Fault> {
        self.read(|db| read(&db.begin_read()?))
    }

    /// Shows all cursors: user, topic, offset. By user and topic. After an error those that were
    /// shown are all that are whole; so with the others below.
    pub fn each_cursor(&self, each: impl FnMut(&str, &str, u64)) -> Result<(), Fault> {
        self.rows(|txn| rows::each_cursor(txn, each))
    }

    /// Shows the idempotency keys that were not older than they may be at the last sweep: topic,
    /// key, offset, and when (milliseconds since 1970). The oldest first.
    pub fn each_idempotency_key(
        &self,
        each: impl FnMut(&str, &str, u64, u64),
    ) -> Result<(), Fault> {
        self.rows(|txn| rows::each_idempotency_key(txn, each))
    }

    /// Shows all packed subscriptions, by user.
    pub fn each_subscriber(&self, each: impl FnMut(&str, &[u8])) -> Result<(), Fault> {
        self.rows(|txn| rows::each_subscriber(txn, each))
    }

    /// Shows the names of topics that packed subscriptions mean by number, by number.
    pub fn each_name(&self, each: impl FnMut(u32, &str)) -> Result<(), Fault> {
        self.rows(|txn| rows::each_name(txn, each))
    }
}
