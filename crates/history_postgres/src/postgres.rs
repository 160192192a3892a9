//! The state of the history in PostgreSQL, which all its parts share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use broker::Router;
use database::{DatabaseError, Runtime};
use history::Implicit;
use history_local::windows;
use model::{Epoch, HistoryRule, Position, Rules};
use tokio::sync::{Notify, watch};

use crate::cursors::SharedCursors;
use crate::jobs::Jobs;
use crate::mqtt_sessions::SharedSessions;
use crate::queue::Queue;
use crate::retained::SharedRetained;
use crate::session::{Amount, Database};
use crate::settings::Settings;
use crate::state::State;
use crate::status::HistoryStatus;

/// The most reads that may wait.
const READS_MAX: usize = 65_536;

/// The error after which nothing more is appended and delivered.
pub(crate) const OTHER_LOG: &str = "the log in PostgreSQL was replaced by another one, or has \
                                    lost messages that were committed: restart this server; its \
                                    clients are then notified that they may have missed messages";

/// Why the server could not open the history at its start.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OpenError(#[from] DatabaseError);

/// The history of topics in PostgreSQL. Clones are cheap and share it.
#[derive(Clone)]
pub struct Postgres(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub settings: Settings,
    password: Mutex<String>,
    /// The number that identifies this process's batches in the database.
    pub writer: i64,
    pub epoch: Epoch,
    pub started: Instant,
    /// The clock for the ages of messages in memory.
    pub clock: store::AgeClock,
    pub router: Arc<Router>,
    rules: RwLock<Arc<Rules>>,
    /// How topics without a rule are retained for MQTT sessions.
    implicit: RwLock<Option<Implicit>>,
    pub retains_any: AtomicBool,
    pub idempotency_seconds_max: AtomicU64,
    state: Mutex<State>,
    /// The last delivered offset, for tasks that wait for one.
    pub delivered: watch::Sender<u64>,
    pub queue: Queue,
    /// Wakes the follower after a commit.
    pub committed: Arc<Notify>,
    /// Wakes the writer when the follower has taken a batch of this process.
    pub backlog_taken: Notify,
    pub jobs: Jobs,
    pub cursors: SharedCursors,
    pub retained: SharedRetained,
    pub sessions: SharedSessions,
    /// True once the thread was started.
    pub has_thread: AtomicBool,
    status: Mutex<HistoryStatus>,
    pub counts: Counts,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub published: AtomicU64,
    pub repeated: AtomicU64,
    pub recovered: AtomicU64,
    pub unrecovered: AtomicU64,
    pub reads: AtomicU64,
    pub acknowledged: AtomicU64,
    pub redelivered: AtomicU64,
    pub dead_lettered: AtomicU64,
    pub dropped: AtomicU64,
    pub passed: AtomicU64,
    pub gaps: AtomicU64,
    pub trims_failed: AtomicU64,
}

impl Counts {
    pub fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(count as u64, Ordering::Relaxed);
    }
}

impl Postgres {
    /// Connects once, and creates missing tables and functions. [`Postgres::load_cursors`] comes next. Message times count from `started`; `writer` is a
    /// random number, new for every process. `router` delivers the messages.
    ///
    /// # Errors
    /// When the database can't be reached or used, so that an operator sees that at the start.
    pub fn open(
        runtime: &Runtime,
        settings: Settings,
        password: String,
        router: Arc<Router>,
        started: Instant,
        writer: u64,
    ) -> Result<Self, OpenError> {
        let none = Amount { messages_max: 0, bytes_max: 0 };
        let found = runtime.block_on(async {
            let database = Database::open(&settings, &password, None).await?;
            let found = database.follow(0, 0, none).await;
            database.close().await;
            found
        })?;
        let (bytes_max, topics_max) = (settings.memory_bytes_max, settings.topics_max);
        let limits = windows::Limits { bytes_max, topics_max };
        let state = State::new(limits, settings.recent, found.last);
        Ok(Postgres(Arc::new(Inner {
            cursors: SharedCursors::new(settings.cursors_max),
            retained: SharedRetained::new(),
            sessions: SharedSessions::default(),
            queue: Queue::new(settings.queue_messages_max, settings.queue_bytes_max),
            settings,
            password: Mutex::new(password),
            writer: i64::from_le_bytes(writer.to_le_bytes()),
            epoch: Epoch(found.epoch),
            started,
            clock: store::AgeClock::new(None, true),
            router,
            rules: RwLock::default(),
            implicit: RwLock::default(),
            retains_any: AtomicBool::new(false),
            idempotency_seconds_max: AtomicU64::new(300),
            state: Mutex::new(state),
            delivered: watch::Sender::new(found.last),
            committed: Arc::new(Notify::new()),
            backlog_taken: Notify::new(),
            jobs: Jobs::new(READS_MAX),
            has_thread: AtomicBool::new(false),
            status: Mutex::default(),
            counts: Counts::default(),
        })))
    }

    /// Sets the password for later connects.
    pub fn set_password(&self, password: String) {
        *lock(&self.0.password) = password;
    }

    /// Returns the status.
    pub fn status(&self) -> HistoryStatus {
        let (messages, bytes) = self.0.queue.pending();
        let status = lock(&self.0.status).clone();
        let backlog = self.state().backlog();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &self.0.counts;
        HistoryStatus {
            queue_messages: messages as u64,
            queue_bytes: bytes as u64,
            backlog_messages: backlog.messages as u64,
            backlog_bytes: backlog.bytes as u64,
            pending_cursors: self.0.cursors.pending() as u64,
            pending_sessions: self.0.sessions.queue.pending() as u64,
            passed: count(&counts.passed),
            gaps: count(&counts.gaps),
            trims_failed: count(&counts.trims_failed),
            ..status
        }
    }

    /// Returns why there is no connection, if there is none.
    pub(crate) fn error(&self) -> Option<String> {
        lock(&self.0.status).error.clone()
    }

    /// Returns the schema in the database.
    pub fn schema(&self) -> &str {
        &self.0.settings.schema
    }

    pub(crate) fn set_status(&self, change: impl FnOnce(&mut HistoryStatus)) {
        change(&mut lock(&self.0.status));
    }

    pub(crate) fn password(&self) -> String {
        lock(&self.0.password).clone()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }

    pub(crate) fn id(&self, offset: u64) -> Position {
        Position { epoch: self.0.epoch, offset }
    }

    pub(crate) fn now_us(&self) -> u64 {
        u64::try_from(self.0.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Returns the time for the ages of pages, in milliseconds.
    pub(crate) fn now_ms(&self) -> u64 {
        self.now_us() / 1_000
    }

    /// Returns the rule that the configuration gives a topic.
    pub(crate) fn own_rule(&self, topic: &str) -> Option<Arc<HistoryRule>> {
        if !self.0.retains_any.load(Ordering::Relaxed) {
            return None;
        }
        let rules = self.0.rules.read().unwrap_or_else(PoisonError::into_inner);
        rules.history(topic).cloned()
    }

    pub(crate) fn replace_rules(&self, rules: Arc<Rules>) {
        self.0.retains_any.store(rules.retains_any(), Ordering::Relaxed);
        *self.0.rules.write().unwrap_or_else(PoisonError::into_inner) = rules;
        // A page has what the rule of before retained.
        let dropped = self.state().pages.clear();
        drop(dropped);
    }

    /// Queries what is retained for sessions; `None` if it is not set.
    pub(crate) fn implicit<T>(&self, query: impl FnOnce(&Implicit) -> T) -> Option<T> {
        self.0.implicit.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(query)
    }

    pub(crate) fn replace_implicit(&self, implicit: Option<Implicit>) {
        *self.0.implicit.write().unwrap_or_else(PoisonError::into_inner) = implicit;
    }
}

/// Locks a mutex, even a poisoned one: a panic under the lock leaves a good value.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the time of day, in milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH);
    elapsed.map_or(0, |elapsed| u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
}
