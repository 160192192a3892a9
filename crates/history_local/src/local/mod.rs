//! The history of one process: windows in memory and, if configured, the store behind them.
//!
//! All topics share one log, so that one position in it serves any set of topics. Without a store its epoch is this
//! process's; with one it is the store's, and a message is delivered when it is on disk: no client has ever seen a
//! message that a crash could remove. The windows in memory are then a part of the messages on disk.

mod append;
mod condition;
mod count;
pub(crate) mod cursors;
mod handover;
mod inspect;
mod log;
mod matching;
mod page;
mod read;
mod start;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use broker::{Activity, Append, Done, HistoryLog, Latest, PublishError, Router, Window};
use model::{
    AcknowledgeRule, Envelope, Epoch, HistoryRule, Name, Position, Publication, ResumeRequest,
    Retention, Rules,
};
use store::Store;

use crate::cursors::Cursors;
use crate::idempotency::Idempotency;
use crate::windows::{self, Windows};
use condition::Conditions;
pub use handover::parts;
use history::{
    AcknowledgeError, Completion, Cursor, GivenUp, Gone, History, HistoryError, HistoryReply,
    HistoryStats, Implicit, Matching, Page, PageQuery, Piece, Pull, Start, TopicHash,
};
use log::Log;

/// The limits of memory, over all topics.
#[derive(Clone, Copy, Debug)]
pub struct HistoryLimits {
    /// Bytes of messages.
    pub history_bytes_max: usize,
    /// Known topics.
    pub topics_max: usize,
    /// Idempotency keys.
    pub idempotency_keys_max: usize,
    /// Users' cursors.
    pub cursors_max: usize,
}

impl Default for HistoryLimits {
    /// Returns 256 MiB, a million topics and cursors, 100,000 keys.
    fn default() -> Self {
        HistoryLimits {
            history_bytes_max: 256 << 20,
            topics_max: 1_000_000,
            idempotency_keys_max: 100_000,
            cursors_max: 1_000_000,
        }
    }
}

/// The history of one process. A cheap clone.
///
/// One lock orders everything in its log: under it, an offset is drawn, and its message enters the window and the
/// inboxes, or, with a store, the store's queue.
#[derive(Clone)]
pub struct Local(Arc<Inner>);

struct Inner {
    /// The rules that say which topics have history, and how much of it.
    rules: RwLock<Arc<Rules>>,
    /// True if any topic has history. A check of it costs nearly nothing.
    retains_any: AtomicBool,
    idempotency_seconds_max: AtomicU64,
    router: Arc<Router>,
    /// How topics without a rule are retained for sessions.
    implicit: RwLock<Option<Implicit>>,
    /// True if `implicit` is set. A check of it costs nearly nothing.
    has_implicit: AtomicBool,
    /// The epoch changes only before the first publish, when this process takes over from another one.
    epoch: AtomicU32,
    /// True during the import from another process.
    is_coming: AtomicBool,
    started: Instant,
    /// The clock that counts ages before messages are dropped.
    clock: store::AgeClock,
    state: Mutex<State>,
    cursors: Mutex<Cursors>,
    counting: Mutex<count::Counting>,
    store: Option<Store>,
    /// Until this time the writer does not wait for slow shards, in microseconds of the node's clock.
    no_wait_until_us: AtomicU64,
    counts: Counts,
    log: Log,
}

#[derive(Default)]
struct Counts {
    published: AtomicU64,
    repeated: AtomicU64,
    unwritten: AtomicU64,
    acknowledged: AtomicU64,
    redelivered: AtomicU64,
    dead_lettered: AtomicU64,
    dropped: AtomicU64,
    recovered: AtomicU64,
    unrecovered: AtomicU64,
    disk_reads: AtomicU64,
}

struct State {
    /// The last offset that was drawn.
    last: u64,
    /// The last offset that was delivered: with a store, later ones are being written.
    delivered: u64,
    windows: Windows,
    /// The newest messages of all topics, for operators.
    newest: Window,
    idempotency: Idempotency,
    /// For topics with messages being written, by hash: the last of these offsets.
    writing: HashMap<u64, u64>,
    /// Repeats of messages that are being written.
    repeats: BTreeMap<u64, Vec<Done>>,
    conditions: Conditions,
}

/// The past with which the history begins.
pub struct Begin {
    /// The epoch of the log.
    pub epoch: Epoch,
    /// The last offset of the past.
    pub last: u64,
    /// The store that retains messages beyond this process.
    pub store: Option<Store>,
}

impl Begin {
    /// Begins without a past, in memory alone. `broker` is the epoch of the log of all other messages, from which
    /// this one differs.
    pub fn in_memory(broker: Epoch) -> Self {
        Begin { epoch: Epoch(!broker.0), last: 0, store: None }
    }
}

impl Local {
    /// Makes a history that retains nothing until it gets rules. Its messages go through `router`, message times
    /// count from `started`, and `recent` limits what operators see of all topics.
    pub fn new(
        router: Arc<Router>,
        begin: Begin,
        started: Instant,
        limits: HistoryLimits,
        recent: broker::Limits,
    ) -> Self {
        let windows =
            windows::Limits { bytes_max: limits.history_bytes_max, topics_max: limits.topics_max };
        Local(Arc::new(Inner {
            rules: RwLock::default(),
            retains_any: AtomicBool::new(false),
            idempotency_seconds_max: AtomicU64::new(300),
            router,
            implicit: RwLock::default(),
            has_implicit: AtomicBool::new(false),
            epoch: AtomicU32::new(begin.epoch.0),
            is_coming: AtomicBool::new(false),
            started,
            // The store's own clock logs the same.
            clock: store::AgeClock::new(
                begin.store.as_ref().and_then(Store::age),
                begin.store.is_none(),
            ),
            state: Mutex::new(State {
                last: begin.last,
                delivered: begin.last,
                windows: Windows::new(windows, begin.last),
                newest: Window::new(recent),
                idempotency: Idempotency::new(limits.idempotency_keys_max),
                writing: HashMap::new(),
                repeats: BTreeMap::new(),
                conditions: Conditions::default(),
            }),
            cursors: Mutex::new(Cursors::new(limits.cursors_max)),
            counting: Mutex::default(),
            store: begin.store,
            no_wait_until_us: AtomicU64::new(0),
            counts: Counts::default(),
            log: Log::new(started),
        }))
    }

    fn id(&self, offset: u64) -> Position {
        Position { epoch: self.epoch(), offset }
    }

    /// Returns the rule that the configuration gives a topic.
    fn own_rule(&self, topic: &str) -> Option<Arc<HistoryRule>> {
        if !self.0.retains_any.load(Ordering::Relaxed) {
            return None;
        }
        let rules = self.0.rules.read().unwrap_or_else(PoisonError::into_inner);
        rules.history(topic).cloned()
    }

    /// Queries what is retained for sessions; `None` if it is not set.
    fn implicit<T>(&self, query: impl FnOnce(&Implicit) -> T) -> Option<T> {
        if !self.0.has_implicit.load(Ordering::Relaxed) {
            return None;
        }
        self.0.implicit.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(query)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Ignores poisoning as the broker does: a drawn offset without a message is a gap, and gaps are allowed.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HistoryLog for Local {
    fn rule(&self, topic: &str) -> Option<Arc<HistoryRule>> {
        if let Some(rule) = self.own_rule(topic) {
            return Some(rule);
        }
        self.implicit(|implicit| (implicit.wants)(topic).then(|| implicit.rule.clone()))?
    }

    fn rule_for(&self, publication: &Publication) -> Option<Arc<HistoryRule>> {
        match publication.qos.is_confirmed() {
            true => self.rule(&publication.topic),
            false => self.own_rule(&publication.topic),
        }
    }

    fn append(&self, append: Append, done: Done) {
        self.append_if(append, done);
    }

    fn append_now(&self, append: Append) -> Result<Position, PublishError> {
        self.put(append, 0, None)
    }

    fn latest(&self, limit: usize) -> Vec<Arc<Envelope>> {
        self.newest(limit)
    }

    fn latest_of(&self, hash: u64, topic: &str, limit: usize) -> Latest {
        self.newest_of(hash, topic, limit)
    }

    fn count_newest(&self, from_us: u64, messages_max: usize, activity: &mut Activity) -> u64 {
        self.count_since(from_us, messages_max, activity)
    }
}

impl History for Local {
    fn epoch(&self) -> Epoch {
        Epoch(self.0.epoch.load(Ordering::Relaxed))
    }

    fn top(&self) -> Position {
        self.id(self.state().delivered)
    }

    fn retains_any(&self) -> bool {
        let for_sessions = || self.implicit(|implicit| (implicit.any)());
        self.0.retains_any.load(Ordering::Relaxed) || for_sessions().unwrap_or(false)
    }

    fn set_implicit(&self, implicit: Option<Implicit>) {
        let mut now = self.0.implicit.write().unwrap_or_else(PoisonError::into_inner);
        self.0.has_implicit.store(implicit.is_some(), Ordering::Relaxed);
        *now = implicit;
    }

    fn matching(
        &self,
        filters: &[Name],
        after: u64,
        completion: Completion<Matching>,
        hash: TopicHash,
    ) -> Result<HistoryReply<Matching>, HistoryError> {
        self.topics_matching(filters, after, completion, hash)
    }

    fn set_rules(&self, rules: Arc<Rules>, idempotency_seconds_max: u64) {
        self.0.retains_any.store(rules.retains_any(), Ordering::Relaxed);
        self.0.idempotency_seconds_max.store(idempotency_seconds_max, Ordering::Relaxed);
        *self.0.rules.write().unwrap_or_else(PoisonError::into_inner) = rules;
    }

    fn stats(&self) -> HistoryStats {
        self.figures()
    }

    fn sweep(&self) {
        self.sweep_windows();
    }

    fn age_ms(&self) -> u64 {
        self.0.clock.now_ms()
    }

    fn start(
        &self,
        topics: &[(u64, &str)],
        request: &ResumeRequest,
        completion: Completion<Start>,
    ) -> Result<HistoryReply<Start>, HistoryError> {
        match self.resolve(topics, request, &[]) {
            Ok(start) => Ok(HistoryReply::Now(start)),
            Err(requested) => self.resolve_later(topics, request, requested, completion),
        }
    }

    fn read(
        &self,
        pull: Pull,
        completion: Completion<Piece>,
    ) -> Result<HistoryReply<Piece>, HistoryError> {
        match self.read_memory(&pull) {
            Some(piece) => Ok(HistoryReply::Now(piece)),
            None => self.read_disk(pull, completion),
        }
    }

    fn page(
        &self,
        query: PageQuery,
        completion: Completion<Page>,
    ) -> Result<HistoryReply<Page>, HistoryError> {
        self.page_of(query, completion)
    }

    fn delete(
        &self,
        hash: u64,
        topic: &str,
        completion: Completion<()>,
    ) -> Result<HistoryReply<()>, HistoryError> {
        self.delete_topic(hash, topic, completion)
    }

    fn gone(&self, hash: u64, topic: &str, after: u64) -> Option<Gone> {
        let gone = self.state().windows.gone_after(hash, topic, after);
        // With a store, the disk may know more.
        (gone == Gone::Nothing || self.0.store.is_none()).then_some(gone)
    }

    fn retained(&self, hash: u64, topic: &str, offsets: &[u64]) -> Option<Vec<u64>> {
        self.retained_of(hash, topic, offsets)
    }

    fn cursor(&self, user: &str, topic: &str) -> u64 {
        self.cursor_or_begin(user, topic)
    }

    fn progress(&self, user: &str, topic: &str) -> Cursor {
        self.cursors().get(user, topic).unwrap_or_default()
    }

    fn acknowledge(&self, user: &str, topic: &str, id: Position) -> Result<u64, AcknowledgeError> {
        self.acknowledge_through(user, topic, id)
    }

    fn delivered(
        &self,
        user: &str,
        topic: &str,
        offset: u64,
        now_s: u32,
        rule: &AcknowledgeRule,
    ) -> u32 {
        self.count_delivery(user, topic, offset, now_s, rule)
    }

    fn delivered_again(&self) {
        self.0.counts.redelivered.fetch_add(1, Ordering::Relaxed);
    }

    fn give_up(&self, user: &str, topic: &str, offset: u64, given_up: GivenUp) {
        self.give_up_message(user, topic, offset, given_up);
    }
}

/// Returns how messages of a topic with this rule are retained.
fn retention(rule: &HistoryRule) -> Retention {
    match rule.acknowledge {
        Some(_) => Retention::Acknowledged,
        None => Retention::History,
    }
}

/// Returns the time of day, in milliseconds since 1970, which messages have and readers use.
fn unix_ms() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH);
    elapsed.map_or(0, |elapsed| elapsed.as_millis() as u64)
}
