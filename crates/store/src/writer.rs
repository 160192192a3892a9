//! The writer's thread: group commit, retention, and recovery from disk errors.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use model::Name;
use redb::{Database, Durability, ReadableDatabase, ReadableTable, ReadableTableMetadata};

use crate::batch::{Applied, Op, SWEEP_ROWS_MAX, SweepPlan, apply};
use crate::error::{Damage, InternalError, StoreError};
use crate::metadata::Metadata;
use crate::open::{OpenState, raise_format};
use crate::panics::catch_redb_panics;
use crate::shared::{Done, Item, Shared};
use crate::tables::{EXPIRIES, IDEMPOTENCY, MESSAGES, TOPICS};
use crate::topic_rows;

/// Operations that one transaction takes, at most.
const BATCH_OPS_MAX: usize = 8_192;

/// Bytes that one transaction takes, at most.
const BATCH_BYTES_MAX: usize = 16 << 20;

/// The interval of the writer's maintenance and, after an error, of its probes whether the disk accepts writes again.
const MAINTENANCE_EVERY: Duration = Duration::from_secs(1);

/// Topics that one maintenance scan reads, at most.
const SCANNED_TOPICS_MAX: usize = 4_096;

/// Topics that one maintenance scan returns, at most.
const SWEPT_TOPICS_MAX: usize = 1_024;

/// How long the store remembers a topic without messages, in seconds. Afterwards, clients that request messages after
/// an offset below the topic's last one get a notice of a possible gap.
pub const EMPTY_SECONDS_MAX: u64 = 86_400;

/// Topics without messages that the store remembers, at most. If there are more, it forgets them early.
pub const EMPTY_TOPICS_MAX: u64 = 262_144;

/// redb completely reads a file that was not closed when it opens it, about a second for each 250 MiB, unless the
/// last transaction saved the result of such a read. Saving takes a second `fsync`: measured, a commit takes one and
/// a half to three times as long. So the writer saves only if nothing was written for a second, and in each
/// transaction if the file is longer than this, in bytes.
const LARGE_BYTES: u64 = 1 << 30;

/// Messages that the first transaction of a deletion on a full disk deletes. Each transaction frees space for the
/// next one, which may delete twice as many.
const FULL_DISK_ROWS: usize = 64;

/// The interval at which the writer tries to recreate the reserve file after it removed it.
const RESERVE_EVERY: Duration = Duration::from_secs(60);

/// How long the writer does not sweep after a sweep has met damage that belongs to no topic.
const SWEEP_PAUSE: Duration = Duration::from_secs(3_600);

mod failure;

pub(crate) struct Writer {
    shared: Arc<Shared>,
    metadata: Metadata,
    /// The topic at which the last maintenance scan ended.
    scanned_through: Name,
    next_maintenance: Instant,
    /// The bytes that the failed transaction tried to write; `None` while writes succeed.
    rejected_bytes: Option<usize>,
    /// True if the last transaction saved what redb needs to open the file quickly.
    quick_repair: bool,
    /// True if the file is longer than [`LARGE_BYTES`].
    is_large: bool,
    /// The number of transactions at the last maintenance.
    commits_seen: u64,
    /// True if the last sweep reached its limit of rows, so that there is more to delete.
    has_backlog: bool,
    /// Topics in which the writer met damage, with that damage. It stores nothing in them.
    damaged: HashMap<Name, Arc<Damage>>,
    /// The writer sweeps nothing before this time.
    next_sweep: Instant,
    /// When the writer tries to create the reserve file again; `None` while the file exists.
    next_reserve: Option<Instant>,
    /// True if the next transaction must record this format in the file.
    raises_format: bool,
}

impl Writer {
    pub fn new(shared: Arc<Shared>, found: OpenState) -> Self {
        let OpenState { metadata, has_reserve, raises_format, clean: _ } = found;
        Writer {
            shared,
            metadata,
            scanned_through: Name::default(),
            next_maintenance: Instant::now() + MAINTENANCE_EVERY,
            rejected_bytes: None,
            quick_repair: true,
            is_large: false,
            commits_seen: 0,
            has_backlog: false,
            damaged: HashMap::new(),
            next_sweep: Instant::now(),
            next_reserve: (!has_reserve).then(|| Instant::now() + RESERVE_EVERY),
            raises_format,
        }
    }

    pub fn run(mut self) {
        loop {
            let deadline = if self.has_backlog { Instant::now() } else { self.next_maintenance };
            let taken = self.shared.queue.take(BATCH_OPS_MAX, BATCH_BYTES_MAX, Some(deadline));
            if taken.is_finished {
                return;
            }
            let is_idle = taken.items.is_empty();
            if !is_idle {
                self.write(taken.items);
            }
            if Instant::now() >= self.next_maintenance || (is_idle && self.has_backlog) {
                self.maintain_or_probe();
                self.next_maintenance = Instant::now() + MAINTENANCE_EVERY;
            }
        }
    }

    fn maintain_or_probe(&mut self) {
        match self.rejected_bytes {
            Some(bytes) => self.probe(bytes),
            None => self.maintain(),
        }
    }

    /// Writes everything that waits, and does maintenance if `is_due`. A test calls this in place of [`Writer::run`].
    #[cfg(test)]
    pub fn step(&mut self, is_due: bool) {
        let items = self.shared.queue.take(usize::MAX, usize::MAX, Some(Instant::now())).items;
        if !items.is_empty() {
            self.write(items);
        }
        if is_due {
            self.maintain_or_probe();
        }
    }

    fn write(&mut self, items: Vec<Item>) {
        let (ops, dones): (Vec<Op>, Vec<Option<Done>>) =
            items.into_iter().map(|item| (item.op, item.done)).unzip();
        let span = tracing::debug_span!("store_write", operations = ops.len());
        // These operations entered the queue while the last transaction failed.
        let results = span.in_scope(|| match self.shared.write_error() {
            Some(reason) => {
                let rejected = || Err(StoreError::Disk(reason.clone()));
                ops.iter().map(|op| self.delete_on_full_disk(op).unwrap_or_else(rejected)).collect()
            }
            None => self.commit_all(&ops, &self.backlog_plan(ops.len())),
        });
        for (done, result) in dones.into_iter().zip(results) {
            // A panic in a callback is the caller's bug. It must not end the thread that all others need.
            let Some(done) = done else { continue };
            if catch_unwind(AssertUnwindSafe(|| done(result))).is_err() {
                tracing::error!("the callback after a commit panicked: this is a bug");
            }
        }
    }

    /// Commits all operations in one transaction, except those on damaged topics.
    fn commit_all(&mut self, ops: &[Op], plan: &SweepPlan) -> Vec<Result<(), StoreError>> {
        loop {
            let damages: Vec<Option<Arc<Damage>>> =
                ops.iter().map(|op| self.known_damage(op)).collect();
            let accepted: Vec<&Op> = ops
                .iter()
                .zip(&damages)
                .filter(|(_, damage)| damage.is_none())
                .map(|(op, _)| op)
                .collect();
            let result = match self.commit(&accepted, plan, self.is_large) {
                // Repeats the transaction without the damaged topic.
                Err(InternalError::Damaged(damage)) if self.record_damage(&damage) => continue,
                Err(error) if error.is_damage() => {
                    let accepted: Vec<usize> =
                        (0..ops.len()).filter(|at| damages[*at].is_none()).collect();
                    return self.commit_individually(ops, &accepted, error, damages);
                }
                Err(error) => Err(self.stop_accepting(&error, ops)),
                Ok(()) => Ok(()),
            };
            let outcome = |damage: Option<Arc<Damage>>| match damage {
                Some(damage) => Err(StoreError::Damaged(damage)),
                None => result.clone(),
            };
            return damages.into_iter().map(outcome).collect();
        }
    }

    /// Returns the known damage that forbids an operation. A deletion is allowed, because it removes the damage.
    fn known_damage(&self, op: &Op) -> Option<Arc<Damage>> {
        match op {
            Op::Delete { .. } => None,
            op => op.topic().and_then(|topic| self.damaged.get(topic)).cloned(),
        }
    }

    /// Records damage in a topic. Returns false if it was known or belongs to no topic.
    fn record_damage(&mut self, damage: &Damage) -> bool {
        let Some(topic) = &damage.topic else { return false };
        if self.damaged.contains_key(topic) {
            return false;
        }
        tracing::error!(
            topic = topic.as_str(),
            error = %damage,
            "the store is damaged: it stores nothing more in this topic"
        );
        self.damaged.insert(topic.clone(), Arc::new(damage.clone()));
        self.shared.counters.damaged_topics.store(self.damaged.len() as u64, Relaxed);
        true
    }

    /// Commits each operation in a transaction of its own, after a common transaction met damage that belongs to no
    /// known operation.
    fn commit_individually(
        &mut self,
        ops: &[Op],
        accepted: &[usize],
        error: InternalError,
        damages: Vec<Option<Arc<Damage>>>,
    ) -> Vec<Result<(), StoreError>> {
        tracing::error!(operations = accepted.len(), %error, "a transaction found damage");
        self.next_sweep = Instant::now() + SWEEP_PAUSE;
        self.has_backlog = false;
        let mut results: Vec<Result<(), StoreError>> = damages
            .into_iter()
            .map(|damage| damage.map_or(Ok(()), |damage| Err(StoreError::Damaged(damage))))
            .collect();
        for at in accepted {
            let op = &ops[*at];
            // redb rejects all further work on a file after an error.
            let opened = self.reopen();
            results[*at] = match (opened, self.known_damage(op)) {
                (Err(error), _) => Err(self.stop_accepting(&error, ops)),
                (Ok(()), Some(damage)) => Err(StoreError::Damaged(damage)),
                (Ok(()), None) => match self.commit(&[op], &SweepPlan::default(), self.is_large) {
                    Ok(()) => Ok(()),
                    Err(error) if error.is_damage() => {
                        let name = op.topic().map_or("", |topic| topic.as_str());
                        let error = match op.topic() {
                            Some(_) => error.in_topic(name, 0, u64::MAX),
                            None => error,
                        };
                        if let InternalError::Damaged(damage) = &error {
                            self.record_damage(damage);
                        }
                        Err(error.into_store_error(self.shared.directory.dir()))
                    }
                    Err(error) => Err(self.stop_accepting(&error, ops)),
                },
            };
        }
        if let Err(error) = self.reopen() {
            self.stop_accepting(&error, ops);
        }
        results
    }

    /// Deletes messages on a full disk. That needs space at first, which the reserve file frees.
    fn delete_on_full_disk(&mut self, op: &Op) -> Option<Result<(), StoreError>> {
        let Op::Delete { topic, through, .. } = op else { return None };
        // An earlier deletion has freed space.
        if self.shared.write_error().is_none() {
            return Some(
                self.commit_all(std::slice::from_ref(op), &SweepPlan::default()).remove(0),
            );
        }
        if self.shared.db().is_none() && self.reopen().is_err() {
            return None;
        }
        self.shared.directory.remove_reserve();
        if self.shared.directory.has_failed_sync() {
            self.shared.directory.write_again().and_then(|()| self.reopen()).ok()?;
        }
        self.next_reserve = Some(Instant::now() + RESERVE_EVERY);
        let mut rows_max = FULL_DISK_ROWS;
        loop {
            let part = Op::Delete { topic: topic.clone(), through: *through, rows_max };
            self.has_backlog = false;
            if let Err(error) =
                self.commit(&[&part], &SweepPlan { rows_max: 1, ..SweepPlan::default() }, false)
            {
                return Some(Err(match error.is_damage() {
                    true => error.into_store_error(self.shared.directory.dir()),
                    false => self.stop_accepting(&error, std::slice::from_ref(op)),
                }));
            }
            if !self.has_backlog {
                break;
            }
            rows_max = (rows_max * 2).min(BATCH_OPS_MAX);
        }
        // redb frees the deleted pages with the next transaction.
        let last = self.commit(&[], &SweepPlan::default(), false);
        self.has_backlog = false;
        if let Err(error) = last {
            return Some(Err(self.stop_accepting(&error, std::slice::from_ref(op))));
        }
        self.rejected_bytes = None;
        self.set_write_error(None);
        tracing::info!(
            topic = topic.as_str(),
            "the deletion of this topic's messages freed space: the store writes again"
        );
        Some(Ok(()))
    }

    /// Returns the sweep of a transaction of this many operations while there is a backlog. Each operation adds at
    /// most one row to a table that is swept, so sweeping twice as many rows catches up.
    fn backlog_plan(&self, ops: usize) -> SweepPlan {
        if !self.has_backlog {
            return SweepPlan::default();
        }
        let keys_before_ms = Some(self.keys_before_ms(self.shared.directory.now_ms()));
        SweepPlan { expired: true, keys_before_ms, rows_max: 2 * ops, ..SweepPlan::default() }
    }

    /// Returns the time before which idempotency keys are deleted, in milliseconds since 1970.
    fn keys_before_ms(&self, now_ms: u64) -> u64 {
        let seconds = self.shared.idempotency_seconds_max.load(Relaxed);
        now_ms.saturating_sub(seconds.saturating_mul(1000))
    }

    /// Commits one transaction. It is on disk if this returns `Ok`.
    fn commit(
        &mut self,
        ops: &[&Op],
        plan: &SweepPlan,
        quick_repair: bool,
    ) -> Result<(), InternalError> {
        let started = Instant::now();
        let (metadata, damaged) = (self.metadata, self.damaged.keys().cloned().collect());
        let committed = match &*self.shared.db() {
            Some(db) => catch_redb_panics(|| {
                let now_ms = self.shared.directory.now_ms();
                let how = How { quick_repair, raises_format: self.raises_format, now_ms };
                transact(db, metadata, ops, plan, how, &damaged)
            })?,
            None => return Err(InternalError::Redb(redb::Error::DatabaseClosed)),
        };
        let Committed { applied, topics, messages } = committed;
        self.metadata = applied.metadata;
        self.raises_format = false;
        self.shared.counters.add_dropped(applied.dropped);
        self.shared.directory.record_commit(&self.metadata);
        if !plan.is_empty() || plan.rows_max > 0 {
            self.has_backlog = applied.more;
        }
        self.quick_repair = quick_repair;
        for op in ops {
            // The deletion of the history removed the damage.
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
        let duration = started.elapsed();
        counters.committed(ops.len(), duration);
        let duration_ms = duration.as_micros() as f64 / 1e3;
        tracing::trace!(operations = ops.len(), duration_ms, "committed");
        Ok(())
    }

    /// Deletes rows that retention no longer covers. If nothing was written, it also makes the next start after a
    /// kill fast. A scan costs one read; a transaction runs only if the scan found something.
    fn maintain(&mut self) {
        self.has_backlog = false;
        let now_ms = self.shared.directory.now_ms();
        let metadata = std::fs::metadata(self.shared.directory.file());
        self.is_large = metadata.is_ok_and(|metadata| metadata.len() > LARGE_BYTES);
        let is_requested = self.shared.reserve_requested.swap(false, Relaxed);
        if self.next_reserve.is_some_and(|at| is_requested || at <= Instant::now()) {
            let has_reserve = self.shared.directory.create_reserve();
            if has_reserve {
                tracing::info!("space for deletions on a full disk is reserved");
            }
            self.next_reserve = (!has_reserve).then(|| Instant::now() + RESERVE_EVERY);
        }
        if self.next_sweep > Instant::now() {
            return;
        }
        let keys_before_ms = self.keys_before_ms(now_ms);
        let found = match &*self.shared.db() {
            Some(db) => catch_redb_panics(|| {
                plan_sweep(
                    db,
                    &self.scanned_through,
                    now_ms,
                    self.metadata.empty_topics,
                    keys_before_ms,
                )
            }),
            None => return,
        };
        let swept = found.and_then(|(plan, scanned_through)| {
            self.scanned_through = scanned_through;
            let is_idle = self.shared.counters.commits.load(Relaxed) == self.commits_seen;
            if !plan.is_empty() {
                self.commit(&[], &plan, self.is_large)?;
            } else if is_idle && !self.quick_repair {
                self.commit(&[], &plan, true)?;
            }
            self.commits_seen = self.shared.counters.commits.load(Relaxed);
            Ok(())
        });
        match swept {
            Ok(()) => {}
            // The next maintenance skips this topic.
            Err(InternalError::Damaged(damage)) if self.record_damage(&damage) => {}
            Err(error) if error.is_damage() => {
                drop(self.commit_individually(&[], &[], error, Vec::new()));
            }
            Err(error) => drop(self.stop_accepting(&error, &[])),
        }
    }
}

struct Committed {
    applied: Applied,
    topics: u64,
    messages: u64,
}

/// Options of a transaction beside its operations.
#[derive(Clone, Copy)]
struct How {
    /// True if it saves what redb needs to open the file quickly.
    quick_repair: bool,
    /// True if it records this format in the file.
    raises_format: bool,
    /// The time by which it counts ages, in milliseconds since 1970.
    now_ms: u64,
}

fn transact(
    db: &Database,
    metadata: Metadata,
    ops: &[&Op],
    plan: &SweepPlan,
    how: How,
    damaged: &HashSet<Name>,
) -> Result<Committed, InternalError> {
    let mut txn = db.begin_write()?;
    txn.set_durability(Durability::Immediate)
        .map_err(redb::Error::from)
        .map_err(InternalError::Redb)?;
    txn.set_quick_repair(how.quick_repair);
    if how.raises_format {
        raise_format(&txn)?;
    }
    let applied = apply(&txn, metadata, how.now_ms, ops.iter().copied(), plan, damaged)?;
    let topics = txn.open_table(TOPICS)?.len()?;
    let messages = txn.open_table(MESSAGES)?.len()?;
    txn.commit()?;
    Ok(Committed { applied, topics, messages })
}

/// Returns what maintenance must delete, and the topic at which the scan ended.
fn plan_sweep(
    db: &Database,
    after: &Name,
    now_ms: u64,
    empty: u64,
    keys_before_ms: u64,
) -> Result<(SweepPlan, Name), InternalError> {
    let txn = db.begin_read()?;
    let empty_ms = if empty > EMPTY_TOPICS_MAX { 0 } else { EMPTY_SECONDS_MAX * 1000 };
    let first_key = txn.open_table(IDEMPOTENCY)?.first()?.map(|(key, _)| key.value().0);
    let first_expiry = txn.open_table(EXPIRIES)?.first()?.map(|(key, _)| key.value().0);
    let mut plan = SweepPlan {
        topics: Vec::new(),
        expired: first_expiry.is_some_and(|at_ms| at_ms <= now_ms),
        keys_before_ms: first_key.filter(|at_ms| *at_ms < keys_before_ms).map(|_| keys_before_ms),
        rows_max: SWEEP_ROWS_MAX,
        empty_before_ms: now_ms.saturating_sub(empty_ms),
    };
    let after = after.as_str();
    let topics = txn.open_table(TOPICS)?;
    let range = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
    let mut scanned_through = Name::default();
    for (at, row) in topics.range::<&str>(range)?.enumerate() {
        let (name, row) = row?;
        // A damaged row is reported when a caller reads or writes that topic.
        let Ok(topic) = topic_rows::decode(name.value(), row.value()) else { continue };
        if topic.exceeds_limits(now_ms)
            || (topic.count == 0 && topic.empty_since_ms < plan.empty_before_ms)
        {
            plan.topics.push(name.value().into());
        }
        if at + 1 == SCANNED_TOPICS_MAX || plan.topics.len() == SWEPT_TOPICS_MAX {
            scanned_through = name.value().into();
            break;
        }
    }
    Ok((plan, scanned_through))
}
