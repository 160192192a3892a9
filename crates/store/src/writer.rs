//! The one thread that writes: group commit, retention, and what it does when the disk refuses.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redb::{Database, Durability, ReadableDatabase, ReadableTable, ReadableTableMetadata};
use wire::Name;

use crate::batch::{Applied, Due, Node, Op, SWEPT_MAX, apply};
use crate::fault::{Fault, Trouble};
use crate::open::{database, node};
use crate::store::{Done, Shared};
use crate::tables::{EXPIRIES, IDEMPOTENCY, MESSAGES, TOPICS};
use crate::topic::Topic;

/// Operations that go into one transaction.
const BATCH_OPS_MAX: usize = 8_192;

/// Their bytes.
const BATCH_BYTES_MAX: usize = 16 << 20;

/// How often the writer looks for what has become too old, and after an error for whether the
/// disk can be written to again.
const LOOK: Duration = Duration::from_secs(1);

/// Topics that one look goes through.
const LOOKED_AT_MAX: usize = 4_096;

/// Topics that one look finds something to do for.
const DUE_MAX: usize = 1_024;

/// How long a topic without messages is known, in seconds. Then everybody who asks for what came
/// after an offset below its last is told that something may be missing.
pub const EMPTY_SECONDS_MAX: u64 = 86_400;

/// Topics without messages that are known; where there are more they go early.
pub const EMPTY_TOPICS_MAX: u64 = 262_144;

/// A file that was not closed is read whole when it is opened, about a second for each 250 MiB,
/// unless its last transaction saved what redb finds out in doing so. That takes a second `fsync`:
/// measured, a commit takes one and a half to three times as long. So it is done when nothing was
/// written for a second, and in each transaction where the file is longer than this, in bytes.
const LARGE_BYTES: u64 = 1 << 30;

/// What the disk must take, beside what it refused, before the store is opened anew.
const PROBE_BYTES: usize = 1 << 20;

/// An operation and whom to tell.
pub(crate) struct Item {
    pub op: Op,
    pub done: Option<Done>,
}

pub(crate) struct Writer {
    shared: Arc<Shared>,
    node: Node,
    /// Where the last look through the topics ended.
    looked: Name,
    next_look: Instant,
    /// What the transaction that failed wanted to write, in bytes; `None` when all is well.
    refused_bytes: Option<usize>,
    /// The last transaction is one after which the file opens at once.
    quick_repair: bool,
    /// The file is longer than [`LARGE_BYTES`].
    is_large: bool,
    /// The number of transactions at the last look.
    commits_seen: u64,
    /// The last sweep took as many rows as it may: there is more to drop.
    is_behind: bool,
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl Writer {
    pub fn new(shared: Arc<Shared>, node: Node) -> Self {
        Writer {
            shared,
            node,
            looked: Name::default(),
            next_look: Instant::now() + LOOK,
            refused_bytes: None,
            quick_repair: true,
            is_large: false,
            commits_seen: 0,
            is_behind: false,
        }
    }

    pub fn run(mut self) {
        loop {
            let deadline = if self.is_behind { Instant::now() } else { self.next_look };
            let taken = self.shared.queue.take(BATCH_OPS_MAX, BATCH_BYTES_MAX, Some(deadline));
            if taken.is_end {
                return;
            }
            let is_quiet = taken.items.is_empty();
            if !is_quiet {
                self.write(taken.items);
            }
            if Instant::now() >= self.next_look || (is_quiet && self.is_behind) {
                match self.refused_bytes {
                    Some(bytes) => self.probe(bytes),
                    None => self.look(),
                }
                self.next_look = Instant::now() + LOOK;
            }
        }
    }

    fn write(&mut self, items: Vec<Item>) {
        // What got into the queue while the last transaction failed.
        let result = match self.shared.failed() {
            Some(reason) => Err(Fault::Disk(reason)),
            None => self.commit(&items, &self.share(items.len()), self.is_large),
        };
        for done in items.into_iter().filter_map(|item| item.done) {
            // A panic in there is a fault of the caller, and must not end the thread on which all
            // others wait.
            let call = AssertUnwindSafe(|| done(result.clone()));
            if catch_unwind(call).is_err() {
                tracing::error!("what was to be done after a commit panicked: this is a bug");
            }
        }
    }

    /// What a transaction of so many operations drops while there is more to drop than one look
    /// may: each adds one row at most to a table that is swept, so twice as many catch up.
    fn share(&self, ops: usize) -> Due {
        if !self.is_behind {
            return Due::default();
        }
        let keys_before_ms = Some(self.keys_before_ms(now_ms()));
        Due { expired: true, keys_before_ms, rows_max: 2 * ops, ..Due::default() }
    }

    /// Idempotency keys that are older are forgotten.
    fn keys_before_ms(&self, now_ms: u64) -> u64 {
        let seconds = self.shared.idempotency_seconds_max.load(Relaxed);
        now_ms.saturating_sub(seconds.saturating_mul(1000))
    }

    /// One transaction, on disk when this gives `Ok`.
    fn commit(&mut self, items: &[Item], due: &Due, quick_repair: bool) -> Result<(), Fault> {
        let started = Instant::now();
        let node = self.node;
        let result = match &*self.shared.db() {
            Some(db) => {
                let write = || transact(db, node, items, due, quick_repair);
                catch_unwind(AssertUnwindSafe(write)).unwrap_or(Err(Trouble::Panic))
            }
            None => return Err(Fault::Closed),
        };
        match result {
            Ok(Committed { applied, topics, messages }) => {
                self.node = applied.node;
                if !due.is_nothing() {
                    self.is_behind = applied.more;
                }
                self.quick_repair = quick_repair;
                let counters = &self.shared.counters;
                counters.topics.store(topics, Relaxed);
                counters.messages.store(messages, Relaxed);
                counters.committed(items.len(), started.elapsed());
                Ok(())
            }
            Err(trouble) => Err(self.fail(&trouble, items)),
        }
    }

    /// Takes nothing in until a probe succeeds.
    fn fail(&mut self, trouble: &Trouble, items: &[Item]) -> Fault {
        let reason: Arc<str> = trouble.advice(self.shared.directory.dir()).into();
        tracing::error!(operations = items.len(), "the store can't write: {reason}");
        self.shared.counters.failures.fetch_add(1, Relaxed);
        self.set_failed(Some(reason.clone()));
        let bytes = items.iter().map(|item| item.op.bytes()).sum::<usize>();
        self.refused_bytes = Some(bytes);
        self.is_behind = false;
        self.next_look = Instant::now() + LOOK;
        // redb does nothing more with a file after an error. Reads go on as soon as it is open
        // again, which needs no room.
        if let Err(trouble) = self.reopen() {
            tracing::error!("the store can't be opened again: {trouble}");
        }
        Fault::Disk(reason)
    }

    fn set_failed(&self, reason: Option<Arc<str>>) {
        *self.shared.failed.write().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    fn reopen(&mut self) -> Result<(), Trouble> {
        let mut db = self.shared.db.write().unwrap_or_else(PoisonError::into_inner);
        // Dropped first: the file is locked.
        *db = None;
        let file = self.shared.directory.file();
        let (opened, disk) = database(&file, self.shared.cache_bytes_max)?;
        disk.let_through()?;
        // A transaction whose commit failed may be on disk all the same. What is written next must
        // go on from it, or two topics get one number.
        self.node = node(&opened)?;
        *db = Some(opened);
        Ok(())
    }

    /// Whether the disk can be written to again: with a file of the size that it refused first, so
    /// that the store is not opened in vain.
    fn probe(&mut self, refused_bytes: usize) {
        let probed = self.probe_disk(refused_bytes).and_then(|()| {
            let is_open = self.shared.db().is_some();
            if is_open { Ok(()) } else { self.reopen() }
        });
        if let Err(trouble) = probed {
            let reason = trouble.advice(self.shared.directory.dir());
            tracing::debug!("the store still can't write: {reason}");
            self.set_failed(Some(reason.into()));
            return;
        }
        if self.commit(&[], &Due::default(), true).is_ok() {
            self.refused_bytes = None;
            self.set_failed(None);
            tracing::info!("the store writes again");
        }
    }

    fn probe_disk(&self, refused_bytes: usize) -> Result<(), Trouble> {
        let file = self.shared.directory.dir().join("throng.probe");
        let probe = || {
            let mut probe = std::fs::File::create(&file)?;
            let zeros = vec![0; 64 << 10];
            for _ in 0..(PROBE_BYTES + refused_bytes).div_ceil(zeros.len()) {
                probe.write_all(&zeros)?;
            }
            probe.sync_data()
        };
        let probed = probe();
        let _ = std::fs::remove_file(&file);
        Ok(probed?)
    }

    /// Drops what has become too old, and when nothing is written makes the next start after a kill
    /// a quick one: a look costs a read, and a transaction only where something
    /// was found.
    fn look(&mut self) {
        self.is_behind = false;
        let now_ms = now_ms();
        let metadata = std::fs::metadata(self.shared.directory.file());
        self.is_large = metadata.is_ok_and(|metadata| metadata.len() > LARGE_BYTES);
        let found = match &*self.shared.db() {
            Some(db) => {
                find_due(db, &self.looked, now_ms, self.node.empty, self.keys_before_ms(now_ms))
            }
            None => return,
        };
        match found {
            Ok((due, looked)) => {
                self.looked = looked;
                let is_idle = self.shared.counters.commits.load(Relaxed) == self.commits_seen;
                // An error is told and dealt with where it is met.
                if !due.is_nothing() {
                    let _ = self.commit(&[], &due, self.is_large);
                } else if is_idle && !self.quick_repair {
                    let _ = self.commit(&[], &due, true);
                }
                self.commits_seen = self.shared.counters.commits.load(Relaxed);
            }
            Err(trouble) => drop(self.fail(&trouble, &[])),
        }
    }
}

impl Op {
    fn bytes(&self) -> usize {
        match self {
            Op::Append(append) => append.record.len(),
            Op::Subscriptions { puts, .. } => puts.iter().map(|(_, packed)| packed.len()).sum(),
            Op::Delete { .. } | Op::Cursor { .. } => 0,
        }
    }
}

struct Committed {
    applied: Applied,
    topics: u64,
    messages: u64,
}

fn transact(
    db: &Database,
    node: Node,
    items: &[Item],
    due: &Due,
    quick_repair: bool,
) -> Result<Committed, Trouble> {
    let mut txn = db.begin_write()?;
    txn.set_durability(Durability::Immediate).map_err(redb::Error::from).map_err(Trouble::Redb)?;
    txn.set_quick_repair(quick_repair);
    let applied = apply(&txn, node, now_ms(), items.iter().map(|item| &item.op), due)?;
    let topics = txn.open_table(TOPICS)?.len()?;
    let messages = txn.open_table(MESSAGES)?.len()?;
    txn.commit()?;
    Ok(Committed { applied, topics, messages })
}

/// What there is to drop, and the name of the topic that was looked at last.
fn find_due(
    db: &Database,
    after: &Name,
    now_ms: u64,
    empty: u64,
    keys_before_ms: u64,
) -> Result<(Due, Name), Trouble> {
    let txn = db.begin_read()?;
    let empty_ms = if empty > EMPTY_TOPICS_MAX { 0 } else { EMPTY_SECONDS_MAX * 1000 };
    let first_key = txn.open_table(IDEMPOTENCY)?.first()?.map(|(key, _)| key.value().0);
    let first_expiry = txn.open_table(EXPIRIES)?.first()?.map(|(key, _)| key.value().0);
    let mut due = Due {
        topics: Vec::new(),
        expired: first_expiry.is_some_and(|at_ms| at_ms <= now_ms),
        keys_before_ms: first_key.filter(|at_ms| *at_ms < keys_before_ms).map(|_| keys_before_ms),
        rows_max: SWEPT_MAX,
        empty_before_ms: now_ms.saturating_sub(empty_ms),
    };
    let after = after.as_str();
    let topics = txn.open_table(TOPICS)?;
    let range = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
    let mut looked = Name::default();
    for (at, row) in topics.range::<&str>(range)?.enumerate() {
        let (name, row) = row?;
        let topic = Topic::read(row.value())?;
        if topic.is_over(now_ms) || (topic.count == 0 && topic.empty_since_ms < due.empty_before_ms)
        {
            due.topics.push(name.value().into());
        }
        if at + 1 == LOOKED_AT_MAX || due.topics.len() == DUE_MAX {
            looked = name.value().into();
            break;
        }
    }
    Ok((due, looked))
}
