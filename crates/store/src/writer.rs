//! The one thread that writes: group commit, retention, and what it does when the disk refuses.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redb::{Database, Durability, ReadableDatabase, ReadableTable, ReadableTableMetadata};
use wire::Name;

use crate::batch::{Applied, Due, Op, SWEPT_MAX, apply};
use crate::disk::Disk;
use crate::facts::Node;
use crate::fault::{Damage, Fault, Trouble};
use crate::find;
use crate::open::{database, private};
use crate::quiet::quietly;
use crate::store::{Done, Shared};
use crate::tables::{EXPIRIES, IDEMPOTENCY, MESSAGES, TOPICS};

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

/// Messages that one transaction deletes at first where the disk is full; each makes room for the
/// next, which may take twice as many.
const ROOM_ROWS: usize = 64;

/// How often room for deletions is held again after it was given up.
const RESERVE_EVERY: Duration = Duration::from_secs(60);

/// How long nothing is swept after a sweep has met damage that is of no topic.
const DAMAGED_SWEEP: Duration = Duration::from_secs(3_600);

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
    /// Topics in which damage was met, with what it is: nothing is stored in them.
    damaged: HashMap<Name, Arc<Damage>>,
    /// Nothing is swept before this.
    next_sweep: Instant,
    /// When room for deletions is to be held again, after it was given up or not to be had.
    next_reserve: Option<Instant>,
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl Writer {
    pub fn new(shared: Arc<Shared>, node: Node, has_room: bool) -> Self {
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
            damaged: HashMap::new(),
            next_sweep: Instant::now(),
            next_reserve: (!has_room).then(|| Instant::now() + RESERVE_EVERY),
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
        let (ops, dones): (Vec<Op>, Vec<Option<Done>>) =
            items.into_iter().map(|item| (item.op, item.done)).unzip();
        // What got into the queue while the last transaction failed.
        let results = match self.shared.failed() {
            Some(reason) => {
                let refused = || Err(Fault::Disk(reason.clone()));
                ops.iter().map(|op| self.make_room(op).unwrap_or_else(refused)).collect()
            }
            None => self.commit_all(&ops, &self.share(ops.len())),
        };
        for (done, result) in dones.into_iter().zip(results) {
            // A panic in there is a fault of the caller, and must not end the thread on which all
            // others wait.
            let Some(done) = done else { continue };
            if catch_unwind(AssertUnwindSafe(|| done(result))).is_err() {
                tracing::error!("what was to be done after a commit panicked: this is a bug");
            }
        }
    }

    /// One transaction for all, but for what has to do with damage.
    fn commit_all(&mut self, ops: &[Op], due: &Due) -> Vec<Result<(), Fault>> {
        let known = |damaged: &HashMap<Name, Arc<Damage>>, op: &Op| match op {
            Op::Delete { .. } => None,
            op => op.topic().and_then(|topic| damaged.get(topic)).cloned(),
        };
        loop {
            let bad: Vec<Option<Arc<Damage>>> =
                ops.iter().map(|op| known(&self.damaged, op)).collect();
            let live: Vec<&Op> =
                ops.iter().zip(&bad).filter(|(_, bad)| bad.is_none()).map(|(op, _)| op).collect();
            let result = match self.commit(&live, due, self.is_large) {
                // Once more without the topic.
                Err(Trouble::Damaged(damage)) if self.is_news(&damage) => continue,
                Err(trouble) if trouble.is_damage() => {
                    let live: Vec<usize> = (0..ops.len()).filter(|at| bad[*at].is_none()).collect();
                    return self.one_by_one(ops, &live, trouble, bad);
                }
                Err(trouble) => Err(self.fail(&trouble, ops)),
                Ok(()) => Ok(()),
            };
            let told = |bad: Option<Arc<Damage>>| match bad {
                Some(damage) => Err(Fault::Damaged(damage)),
                None => result.clone(),
            };
            return bad.into_iter().map(told).collect();
        }
    }

    /// Notes damage in a topic; false if that was known, or if it is of no topic.
    fn is_news(&mut self, damage: &Damage) -> bool {
        let Some(topic) = &damage.topic else { return false };
        if self.damaged.contains_key(topic) {
            return false;
        }
        tracing::error!("the store is damaged: {damage}: nothing is stored in this topic");
        self.damaged.insert(topic.clone(), Arc::new(damage.clone()));
        self.shared.counters.damaged_topics.store(self.damaged.len() as u64, Relaxed);
        true
    }

    /// A transaction for each, after one for all has met damage of which it is not known what it
    /// has to do with.
    fn one_by_one(
        &mut self,
        ops: &[Op],
        live: &[usize],
        trouble: Trouble,
        bad: Vec<Option<Arc<Damage>>>,
    ) -> Vec<Result<(), Fault>> {
        tracing::error!(operations = live.len(), "a transaction has met damage: {trouble}");
        self.next_sweep = Instant::now() + DAMAGED_SWEEP;
        self.is_behind = false;
        let mut results: Vec<Result<(), Fault>> =
            bad.into_iter().map(|bad| bad.map_or(Ok(()), |bad| Err(Fault::Damaged(bad)))).collect();
        for at in live {
            let op = &ops[*at];
            // redb does nothing more with a file after an error.
            let opened = self.reopen();
            let is_known = op.topic().filter(|_| !matches!(op, Op::Delete { .. }));
            let known = is_known.and_then(|topic| self.damaged.get(topic)).cloned();
            results[*at] = match (opened, known) {
                (Err(trouble), _) => Err(self.fail(&trouble, ops)),
                (Ok(()), Some(damage)) => Err(Fault::Damaged(damage)),
                (Ok(()), None) => match self.commit(&[op], &Due::default(), self.is_large) {
                    Ok(()) => Ok(()),
                    Err(trouble) if trouble.is_damage() => {
                        let name = op.topic().map_or("", |topic| topic.as_str());
                        let trouble = match op.topic() {
                            Some(_) => trouble.of(name, 0, u64::MAX),
                            None => trouble,
                        };
                        if let Trouble::Damaged(damage) = &trouble {
                            self.is_news(damage);
                        }
                        Err(trouble.fault(self.shared.directory.dir()))
                    }
                    Err(trouble) => Err(self.fail(&trouble, ops)),
                },
            };
        }
        if let Err(trouble) = self.reopen() {
            self.fail(&trouble, ops);
        }
        results
    }

    /// Deletes where the disk is full, which takes room at first: that which was held for it.
    fn make_room(&mut self, op: &Op) -> Option<Result<(), Fault>> {
        let Op::Delete { topic, through, .. } = op else { return None };
        // One before has made room.
        if self.shared.failed().is_none() {
            return Some(self.commit_all(std::slice::from_ref(op), &Due::default()).remove(0));
        }
        if self.shared.db().is_none() && self.reopen().is_err() {
            return None;
        }
        self.shared.directory.give_up_reserve();
        self.next_reserve = Some(Instant::now() + RESERVE_EVERY);
        let mut rows_max = ROOM_ROWS;
        loop {
            let part = Op::Delete { topic: topic.clone(), through: *through, rows_max };
            self.is_behind = false;
            if let Err(trouble) =
                self.commit(&[&part], &Due { rows_max: 1, ..Due::default() }, false)
            {
                return Some(Err(match trouble.is_damage() {
                    true => trouble.fault(self.shared.directory.dir()),
                    false => self.fail(&trouble, std::slice::from_ref(op)),
                }));
            }
            if !self.is_behind {
                break;
            }
            rows_max = (rows_max * 2).min(BATCH_OPS_MAX);
        }
        // What was deleted is free when there is another transaction.
        let last = self.commit(&[], &Due::default(), false);
        self.is_behind = false;
        if let Err(trouble) = last {
            return Some(Err(self.fail(&trouble, std::slice::from_ref(op))));
        }
        self.refused_bytes = None;
        self.set_failed(None);
        tracing::info!("the deletion of {topic} has made room: the store writes again");
        Some(Ok(()))
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
    fn commit(&mut self, ops: &[&Op], due: &Due, quick_repair: bool) -> Result<(), Trouble> {
        let started = Instant::now();
        let (node, damaged) = (self.node, self.damaged.keys().cloned().collect());
        let committed = match &*self.shared.db() {
            Some(db) => quietly(|| transact(db, node, ops, due, quick_repair, &damaged))?,
            None => return Err(Trouble::Redb(redb::Error::DatabaseClosed)),
        };
        let Committed { applied, topics, messages } = committed;
        self.node = applied.node;
        self.shared.directory.mark(&self.node);
        if !due.is_nothing() || due.rows_max > 0 {
            self.is_behind = applied.more;
        }
        self.quick_repair = quick_repair;
        for op in ops {
            // The damage went with the topic's history.
            if let Op::Delete { topic, .. } = op
                && self.damaged.remove(topic).is_some()
            {
                let topics = self.damaged.len() as u64;
                self.shared.counters.damaged_topics.store(topics, Relaxed);
            }
        }
        let counters = &self.shared.counters;
        counters.topics.store(topics, Relaxed);
        counters.messages.store(messages, Relaxed);
        counters.committed(ops.len(), started.elapsed());
        Ok(())
    }

    /// Takes nothing in until a probe succeeds.
    fn fail(&mut self, trouble: &Trouble, ops: &[Op]) -> Fault {
        let reason: Arc<str> = trouble.advice(self.shared.directory.dir()).into();
        tracing::error!(operations = ops.len(), "the store can't write: {reason}");
        self.shared.counters.failures.fetch_add(1, Relaxed);
        self.set_failed(Some(reason.clone()));
        let bytes = ops.iter().map(Op::bytes).sum::<usize>();
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
        let opened = database(|| Disk::open(&file), self.shared.cache_bytes_max, false)?;
        // A transaction whose commit failed may be on disk all the same. What is written next must
        // go on from it, or two topics get one number.
        let node = quietly(|| Node::of(&opened.db))?;
        opened.disk.let_through()?;
        self.node = node;
        *db = Some(opened.db);
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
        match self.commit(&[], &Due::default(), true) {
            Ok(()) => {
                self.refused_bytes = None;
                self.set_failed(None);
                tracing::info!("the store writes again");
            }
            Err(trouble) => drop(self.fail(&trouble, &[])),
        }
    }

    fn probe_disk(&self, refused_bytes: usize) -> Result<(), Trouble> {
        let file = self.shared.directory.dir().join("throng.probe");
        let probe = || {
            let mut probe = private().truncate(true).open(&file)?;
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
        let is_soon = self.shared.hold_room.swap(false, Relaxed);
        if self.next_reserve.is_some_and(|at| is_soon || at <= Instant::now()) {
            let is_held = self.shared.directory.reserve();
            if is_held {
                tracing::info!("room for deletions on a full disk is held");
            }
            self.next_reserve = (!is_held).then(|| Instant::now() + RESERVE_EVERY);
        }
        if self.next_sweep > Instant::now() {
            return;
        }
        let keys_before_ms = self.keys_before_ms(now_ms);
        let found = match &*self.shared.db() {
            Some(db) => {
                quietly(|| find_due(db, &self.looked, now_ms, self.node.empty, keys_before_ms))
            }
            None => return,
        };
        let swept = found.and_then(|(due, looked)| {
            self.looked = looked;
            let is_idle = self.shared.counters.commits.load(Relaxed) == self.commits_seen;
            if !due.is_nothing() {
                self.commit(&[], &due, self.is_large)?;
            } else if is_idle && !self.quick_repair {
                self.commit(&[], &due, true)?;
            }
            self.commits_seen = self.shared.counters.commits.load(Relaxed);
            Ok(())
        });
        match swept {
            Ok(()) => {}
            // With the next look without the topic.
            Err(Trouble::Damaged(damage)) if self.is_news(&damage) => {}
            Err(trouble) if trouble.is_damage() => {
                drop(self.one_by_one(&[], &[], trouble, Vec::new()));
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
    ops: &[&Op],
    due: &Due,
    quick_repair: bool,
    damaged: &HashSet<Name>,
) -> Result<Committed, Trouble> {
    let mut txn = db.begin_write()?;
    txn.set_durability(Durability::Immediate).map_err(redb::Error::from).map_err(Trouble::Redb)?;
    txn.set_quick_repair(quick_repair);
    let applied = apply(&txn, node, now_ms(), ops.iter().copied(), due, damaged)?;
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
        // One that is damaged is met by whoever wants it.
        let Ok(topic) = find::read(name.value(), row.value()) else { continue };
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
