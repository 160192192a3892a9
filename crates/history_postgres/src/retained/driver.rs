//! Writes retained messages, and follows those of other nodes.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use database::{DatabaseError, Runtime};
use model::Name;
use sessions::RetainedRow;
use tokio::time::{sleep, timeout};

use super::RetainedMemory;
use super::session::{PAGE_ROWS, RetainedDatabase};
use crate::postgres::{OpenError, Postgres};
use crate::retry::retry;

/// How often the driver reads changes of other nodes without a notification.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The most rows that one call writes, and about the most bytes of their records.
const WRITES_MAX: usize = 256;
const WRITES_BYTES_MAX: usize = 4 << 20;

/// The delay before another attempt after an error, in milliseconds: the first one, and the longest.
const RETRY_MS: (u64, u64) = (100, 5_000);

/// The interval between two reads of unverified topics: longer than a row takes.
const VERIFY_INTERVAL: Duration = Duration::from_secs(5);

/// The interval between two deletions of rows without messages.
const TRIM_INTERVAL: Duration = Duration::from_secs(600);

/// Rows that one deletion deletes at most. Writes wait for it.
const TRIM_ROWS: u64 = 1_000;

/// How often the end of the server verifies that all rows are written.
const IDLE_INTERVAL: Duration = Duration::from_millis(5);

/// When the driver last did what it does from time to time.
#[derive(Default)]
struct Timers {
    verified: Option<Instant>,
    trimmed: Option<Instant>,
}

/// Writes rows of this node, and reads rows of others, in a session of its own. After an error, which it logs, it opens
/// another session later.
pub(crate) async fn run(postgres: &Postgres, memory: &RetainedMemory) -> Infallible {
    let mut timers = Timers::default();
    let warn = |error: &DatabaseError| {
        tracing::warn!(
            %error,
            "retained MQTT messages can't be written to or read from PostgreSQL; the server tries again"
        );
    };
    retry(RETRY_MS, warn, async || drive(postgres, memory, &mut timers).await).await
}

/// Runs until an error. Returns it, and true if a step before it succeeded.
async fn drive(
    postgres: &Postgres,
    memory: &RetainedMemory,
    timers: &mut Timers,
) -> (DatabaseError, bool) {
    let retained = &postgres.0.retained;
    // A call that got no reply may have written its rows: writing them twice does no harm.
    retained.queue.put_back();
    let wake = Some((retained.changed.clone(), postgres.0.writer));
    let opened = RetainedDatabase::open(&postgres.0.settings, &postgres.password(), wake).await;
    let database = match opened {
        Ok(database) => database,
        Err(error) => return (error, false),
    };
    retained.begin_session();
    let mut has_worked = false;
    loop {
        match step(postgres, &database, memory, timers).await {
            Ok(true) => {}
            Ok(false) => _ = timeout(POLL_INTERVAL, retained.changed.notified()).await,
            Err(error) => {
                retained.queue.put_back();
                database.close().await;
                return (error, has_worked);
            }
        }
        has_worked = true;
    }
}

/// Reads some rows of other nodes, and writes some of this one. Returns true if there may be more. A paused history only
/// writes: the other process has the connections.
async fn step(
    postgres: &Postgres,
    database: &RetainedDatabase,
    memory: &RetainedMemory,
    timers: &mut Timers,
) -> Result<bool, DatabaseError> {
    let retained = &postgres.0.retained;
    let is_paused = postgres.state().is_pausing();
    let mut has_more = false;
    if !is_paused {
        if retained.take_may_lack_rows() {
            memory.messages.queue_missing_rows();
        }
        has_more = follow(postgres, database, memory).await?;
    }
    let writes = retained.queue.take(WRITES_MAX, WRITES_BYTES_MAX);
    if !writes.is_empty() {
        let rejecting = database.retain(&writes).await?;
        retained.queue.written();
        memory.messages.queue_later_rows(&writes, &rejecting);
        apply(memory, rejecting);
    }
    if !is_paused && take_due(&mut timers.verified, VERIFY_INTERVAL) {
        for topics in retained.queue.topics_to_verify().chunks(PAGE_ROWS) {
            apply(memory, database.rows_of(topics).await?);
        }
        retained.queue.on_verified();
    }
    if !is_paused && take_due(&mut timers.trimmed, TRIM_INTERVAL) {
        // Writes come between two deletions.
        if database.trim(TRIM_ROWS).await? >= TRIM_ROWS {
            (timers.trimmed, has_more) = (None, true);
        }
    }
    Ok(has_more || !writes.is_empty())
}

/// Returns true, and notes the time, if an interval has passed since it last returned true.
fn take_due(last: &mut Option<Instant>, interval: Duration) -> bool {
    let is_due = last.is_none_or(|last| last.elapsed() > interval);
    if is_due {
        *last = Some(Instant::now());
    }
    is_due
}

/// Reads some rows that changed. Returns true if there may be more.
async fn follow(
    postgres: &Postgres,
    database: &RetainedDatabase,
    memory: &RetainedMemory,
) -> Result<bool, DatabaseError> {
    let retained = &postgres.0.retained;
    let Some(known) = retained.change() else {
        read_all(postgres, database, memory).await?;
        return Ok(true);
    };
    let found = database.follow(known, PAGE_ROWS).await?;
    // The table has lost changes, or memory may have messages that were removed.
    if found.last < known || known < found.forgotten {
        read_all(postgres, database, memory).await?;
        return Ok(true);
    }
    let is_full = found.rows.len() == PAGE_ROWS;
    apply(memory, found.rows);
    retained.set_change(found.through);
    Ok(is_full)
}

/// Reads all rows. Messages in memory without a row are removed.
async fn read_all(
    postgres: &Postgres,
    database: &RetainedDatabase,
    memory: &RetainedMemory,
) -> Result<(), DatabaseError> {
    let change = database.begin_snapshot().await?;
    let mut after: Option<Name> = None;
    loop {
        let rows = database.page(after.as_deref().unwrap_or_default()).await?;
        let is_last = rows.len() < PAGE_ROWS;
        let last = rows.last().map(|row| row.topic.clone());
        let damaged =
            memory.messages.apply_all_rows(after.as_deref(), rows, is_last, &*memory.hash);
        warn_of_damaged(damaged);
        if is_last {
            break;
        }
        after = last;
    }
    database.end_snapshot().await?;
    postgres.0.retained.set_change(change);
    Ok(())
}

fn apply(memory: &RetainedMemory, rows: Vec<RetainedRow>) {
    warn_of_damaged(memory.messages.apply_rows(rows, &*memory.hash));
}

fn warn_of_damaged(rows: usize) {
    if rows > 0 {
        tracing::warn!(
            rows,
            "retained messages in PostgreSQL can't be read: they are damaged, or from a newer version"
        );
    }
}

impl Postgres {
    /// Makes these retained messages of MQTT those of all nodes. With `loads`, it also reads them all; otherwise they come
    /// from another process. Call this before clients connect.
    ///
    /// # Errors
    /// When the database can't be used.
    pub fn share_retained(
        &self,
        runtime: &Runtime,
        memory: &RetainedMemory,
        loads: bool,
    ) -> Result<(), OpenError> {
        memory.messages.share(self.0.retained.queue.clone());
        if !loads {
            return Ok(());
        }
        let read = async {
            let (settings, password) = (&self.0.settings, self.password());
            let database = RetainedDatabase::open(settings, &password, None).await?;
            let result = read_all(self, &database, memory).await;
            database.close().await;
            result
        };
        Ok(runtime.block_on(read)?)
    }

    /// Waits until all retained messages are written.
    pub(crate) async fn until_retained(&self) {
        while !self.0.retained.queue.is_idle() {
            sleep(IDLE_INTERVAL).await;
        }
    }
}
