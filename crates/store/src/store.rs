//! The door of the store: what other rooms call.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::thread::JoinHandle;

use redb::{Database, ReadableDatabase, ReadableTable};
use wire::{Draft, History, Name};

use crate::batch::{self, Op};
use crate::fault::{Fault, OpenError, Refused, Trouble};
use crate::open::Directory;
use crate::queue::{NoRoom, Queue};
use crate::read::{self, Amount, Stored};
use crate::record;
use crate::stats::{Counters, Stats};
use crate::tables::{CURSORS, IDEMPOTENCY, NAMES, SUBSCRIPTIONS};
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
pub type ReadJob = Box<dyn FnOnce(&Store) + Send>;

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
    pub db: RwLock<Option<Database>>,
    /// Why nothing is taken in.
    pub failed: RwLock<Option<Arc<str>>>,
    pub counters: Counters,
    /// The highest offset that was handed in.
    pub last: AtomicU64,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Shared {
    pub fn db(&self) -> RwLockReadGuard<'_, Option<Database>> {
        self.db.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn failed(&self) -> Option<Arc<str>> {
        self.failed.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Store {
    /// Opens the store in its directory, or makes one. Takes seconds at most, also after the last
    /// process was killed.
    pub fn open(options: Options) -> Result<(Store, Found), OpenError> {
        let directory = Directory::claim(&options.dir)?;
        let (db, start) = directory.open(options.new_epoch, options.cache_bytes_max)?;
        let found = Found { epoch: start.epoch, last_offset: start.node.last, clean: start.clean };
        let shared = Arc::new(Shared {
            directory,
            cache_bytes_max: options.cache_bytes_max,
            idempotency_seconds_max: AtomicU64::new(options.idempotency_seconds_max),
            queue: Queue::new(options.queue_messages_max, options.queue_bytes_max),
            reads: Queue::new(READS_MAX, usize::MAX),
            db: RwLock::new(Some(db)),
            failed: RwLock::new(None),
            counters: Counters::default(),
            last: AtomicU64::new(start.node.last),
            threads: Mutex::default(),
        });
        let store = Store { shared };
        let writer = Writer::new(store.shared.clone(), start.node);
        let reader = store.clone();
        for (name, run) in [
            ("store-write", Box::new(|| writer.run()) as Box<dyn FnOnce() + Send>),
            ("store-read", Box::new(move || reader.run_reads())),
        ] {
            match std::thread::Builder::new().name(name.into()).spawn(run) {
                Ok(thread) => store.threads().push(thread),
                Err(error) => {
                    store.end_threads();
                    return Err(OpenError::Directory { dir: options.dir, error });
                }
            }
        }
        Ok((store, found))
    }

    fn threads(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.shared.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run_reads(&self) {
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
            (Some(db), None) => crate::open::end(&db, self.shared.last.load(Relaxed))
                .and_then(|()| Ok(db.close()?))
                .map_err(|trouble| self.fault(&trouble)),
        };
        self.shared.directory.release();
        ended
    }

    fn fault(&self, trouble: &Trouble) -> Fault {
        Fault::Disk(trouble.advice(self.shared.directory.dir()).into())
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
    pub fn delete_history(&self, topic: &Name, through: u64, done: Done) -> Result<(), Refused> {
        self.push(Op::Delete { topic: topic.clone(), through }, topic.len(), Some(done))
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

    fn read<T>(&self, read: impl FnOnce(&Database) -> Result<T, Trouble>) -> Result<T, Fault> {
        match &*self.shared.db() {
            Some(db) => read(db).map_err(|trouble| self.fault(&trouble)),
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

    /// Shows all cursors: user, topic, offset. By user and topic.
    pub fn each_cursor(&self, mut each: impl FnMut(&str, &str, u64)) -> Result<(), Fault> {
        self.read(|db| {
            for row in db.begin_read()?.open_table(CURSORS)?.iter()? {
                let (key, offset) = row?;
                let (user, topic) = key.value();
                each(user, topic, offset.value());
            }
            Ok(())
        })
    }

    /// Shows the idempotency keys that were not older than they may be at the last sweep: topic,
    /// key, offset, and when (milliseconds since 1970). The oldest first.
    pub fn each_idempotency_key(
        &self,
        mut each: impl FnMut(&str, &str, u64, u64),
    ) -> Result<(), Fault> {
        self.read(|db| {
            for row in db.begin_read()?.open_table(IDEMPOTENCY)?.iter()? {
                let (place, names) = row?;
                let ((at_ms, offset), (topic, key)) = (place.value(), names.value());
                each(topic, key, offset, at_ms);
            }
            Ok(())
        })
    }

    /// Shows all packed subscriptions, by user.
    pub fn each_subscriber(&self, mut each: impl FnMut(&str, &[u8])) -> Result<(), Fault> {
        self.read(|db| {
            for row in db.begin_read()?.open_table(SUBSCRIPTIONS)?.iter()? {
                let (user, packed) = row?;
                each(user.value(), packed.value());
            }
            Ok(())
        })
    }

    /// Shows the names of topics that packed subscriptions mean by number, by number.
    pub fn each_name(&self, mut each: impl FnMut(u32, &str)) -> Result<(), Fault> {
        self.read(|db| {
            for row in db.begin_read()?.open_table(NAMES)?.iter()? {
                let (number, name) = row?;
                each(number.value(), name.value());
            }
            Ok(())
        })
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
