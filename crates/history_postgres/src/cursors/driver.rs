//! Writes moves of cursors, and follows those of other nodes.

use std::convert::Infallible;
use std::time::Duration;

use database::{DatabaseError, Runtime};
use model::Name;
use tokio::time::timeout;

use super::session::{CursorDatabase, PAGE_CURSORS};
use super::table::{CursorMove, MovedCursor};
use crate::postgres::{OpenError, Postgres};
use crate::retry::retry;

/// How often the driver reads moves of other nodes without a notification.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The most moves that one call writes.
const MOVES_MAX: usize = 1_000;

/// The delay before another attempt after an error, in milliseconds: the first one, and the longest.
const RETRY_MS: (u64, u64) = (100, 5_000);

/// Called when a user's cursor in a topic moved in the database.
pub(crate) type OnMoved = Box<dyn Fn(&Name, &Name, CursorMove) + Send + Sync>;

/// Writes and follows. The driver has a session of its own, and its errors end nothing else: it logs them, and tries
/// again some time later.
pub(crate) async fn run(postgres: &Postgres, on_moved: &OnMoved) -> Infallible {
    let warn = |error: &DatabaseError| {
        tracing::warn!(
            %error,
            "acknowledgements wait: the cursors in PostgreSQL can't be read or written"
        );
    };
    retry(RETRY_MS, warn, async || drive(postgres, on_moved).await).await
}

/// Runs until an error. Returns it, and true if a step before it succeeded.
async fn drive(postgres: &Postgres, on_moved: &OnMoved) -> (DatabaseError, bool) {
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
        match step(postgres, &database, on_moved).await {
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

/// Reads some moves of other nodes, and writes some of this one. Returns true if there may be more. Reading comes first,
/// because a user may have begun elsewhere. A paused history only writes: the other process reads, and has the
/// connections.
async fn step(
    postgres: &Postgres,
    database: &CursorDatabase,
    on_moved: &OnMoved,
) -> Result<bool, DatabaseError> {
    let cursors = &postgres.0.cursors;
    let is_paused = postgres.state().is_pausing();
    let has_more = !is_paused && follow(postgres, database, on_moved).await?;
    let moves = cursors.take(MOVES_MAX);
    if !moves.is_empty() {
        let now = database.move_cursors(postgres.0.epoch.0, &moves).await?;
        let moved = cursors.written(moves.iter().map(|(key, _)| key.clone()).zip(now));
        notify(moved, on_moved);
    }
    Ok(has_more || moves.len() == MOVES_MAX)
}

fn notify(moved: Vec<MovedCursor>, on_moved: &OnMoved) {
    for MovedCursor { user, topic, to } in moved {
        on_moved(&user, &topic, to);
    }
}

/// Reads a page of cursors that moved. Returns true if it was full.
async fn follow(
    postgres: &Postgres,
    database: &CursorDatabase,
    on_moved: &OnMoved,
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
    let through = found.through.min(found.last);
    notify(cursors.follow(through, found.cursors), on_moved);
    Ok(is_full)
}

/// Reads all moves of other nodes, in a session of its own.
pub(crate) async fn catch_up(postgres: &Postgres, on_moved: &OnMoved) -> Result<(), DatabaseError> {
    let database = CursorDatabase::open(&postgres.0.settings, &postgres.password(), None).await?;
    let mut followed = Ok(true);
    while let Ok(true) = followed {
        followed = follow(postgres, &database, on_moved).await;
    }
    database.close().await;
    followed.map(drop)
}

impl Postgres {
    /// Reads all cursors. Call this before clients connect: a user without a cursor would begin anew.
    ///
    /// # Errors
    /// When the database can't be used.
    pub fn load_cursors(&self, runtime: &Runtime) -> Result<(), OpenError> {
        let no_connections: OnMoved = Box::new(|_, _, _| ());
        Ok(runtime.block_on(catch_up(self, &no_connections))?)
    }
}
