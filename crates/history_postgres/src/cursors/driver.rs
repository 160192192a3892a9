//! Writes moves of cursors, and follows those of other nodes.

use std::convert::Infallible;
use std::time::Duration;

use database::{DatabaseError, Runtime};
use model::Name;
use throttle::Backoff;
use tokio::time::{sleep, timeout};

use super::session::{CursorDatabase, PAGE_CURSORS};
use crate::postgres::{OpenError, Postgres};

/// How often the driver reads moves of other nodes without a notification.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The most moves that one call writes.
const MOVES_MAX: usize = 1_000;

/// The delay before another attempt after an error, in milliseconds: the first one, and the longest.
const RETRY_MS: (u64, u64) = (100, 5_000);

/// Called when a user's cursor in a topic moved to an offset at another node.
pub(crate) type Moved = Box<dyn Fn(&Name, &Name, u64) + Send + Sync>;

/// Writes and follows. The driver has a session of its own, and its errors end nothing else: it logs them, and tries
/// again some time later.
pub(crate) async fn run(postgres: &Postgres, moved: &Moved) -> Infallible {
    let mut backoff = Backoff::new(RETRY_MS.0, RETRY_MS.1);
    let mut logged = None;
    loop {
        let (error, has_worked) = drive(postgres, moved).await;
        if has_worked {
            backoff.reset();
            logged = None;
        }
        if logged.as_ref() != Some(&error) {
            tracing::warn!(
                %error,
                "acknowledgements wait: the cursors in PostgreSQL can't be read or written"
            );
        }
        logged = Some(error);
        sleep(Duration::from_millis(backoff.delay_ms())).await;
    }
}

/// Runs until an error. Returns it, and true if a step before it succeeded.
async fn drive(postgres: &Postgres, moved: &Moved) -> (DatabaseError, bool) {
    let cursors = &postgres.0.cursors;
    // A call that got no reply may have written its moves: writing them twice does no harm.
    cursors.put_back();
    let wake = Some(cursors.moved.clone());
    let opened = CursorDatabase::open(&postgres.0.settings, &postgres.password(), wake).await;
    let database = match opened {
        Ok(database) => database,
        Err(error) => return (error, false),
    };
    let mut has_worked = false;
    loop {
        match step(postgres, &database, moved).await {
            Ok(true) => {}
            Ok(false) => _ = timeout(POLL_INTERVAL, cursors.moved.notified()).await,
            Err(error) => {
                cursors.put_back();
                database.close().await;
                return (error, has_worked);
            }
        }
        has_worked = true;
    }
}

/// Writes some moves, and reads some of other nodes. Returns true if there may be more.
async fn step(
    postgres: &Postgres,
    database: &CursorDatabase,
    moved: &Moved,
) -> Result<bool, DatabaseError> {
    let cursors = &postgres.0.cursors;
    let moves = cursors.take(MOVES_MAX);
    if !moves.is_empty() {
        let now = database.move_cursors(postgres.0.epoch.0, &moves).await?;
        cursors.written(moves.iter().map(|(key, _)| key.clone()).zip(now));
    }
    let has_more = follow(postgres, database, moved).await?;
    Ok(has_more || moves.len() == MOVES_MAX)
}

/// Reads a page of cursors that moved. Returns true if it was full.
async fn follow(
    postgres: &Postgres,
    database: &CursorDatabase,
    moved: &Moved,
) -> Result<bool, DatabaseError> {
    let cursors = &postgres.0.cursors;
    let known = cursors.change();
    let found = database.follow(known).await?;
    if found.last < known {
        // The table lost changes: all of it is read again.
        cursors.follow(0, []);
        return Ok(true);
    }
    let is_full = found.cursors.len() == PAGE_CURSORS;
    for ((user, topic), cursor) in cursors.follow(found.through, found.cursors) {
        if let Some(offset) = cursor.done() {
            moved(&user, &topic, offset);
        }
    }
    Ok(is_full)
}

impl Postgres {
    /// Reads all cursors. Call this before clients connect: a user without a cursor would begin anew.
    ///
    /// # Errors
    /// When the database can't be used.
    pub fn load_cursors(&self, runtime: &Runtime) -> Result<(), OpenError> {
        let no_connections: Moved = Box::new(|_, _, _| ());
        runtime.block_on(async {
            let database = CursorDatabase::open(&self.0.settings, &self.password(), None).await?;
            let mut loaded = Ok(true);
            while let Ok(true) = loaded {
                loaded = follow(self, &database, &no_connections).await;
            }
            database.close().await;
            Ok(loaded.map(drop)?)
        })
    }
}
