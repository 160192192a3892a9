//! Deletes messages from the database that the rules no longer retain.

use std::convert::Infallible;
use std::time::Duration;

use database::DatabaseError;
use tokio::time::sleep;

use crate::postgres::{Counts, Postgres};
use crate::retry::retry;
use crate::session::{Database, Trimmed};

/// The pause between two steps, unless the first one had more to delete.
const STEP_INTERVAL: Duration = Duration::from_secs(1);

/// The most topics that one step scans.
const STEP_TOPICS: i64 = 10_000;

/// A step deletes about this many messages, at most this many of one topic, and idempotency keys in chunks of this
/// size.
const STEP_ROWS: i64 = 10_000;

/// About the most states, or messages from before topics were compacted, that one transaction drops. Appends wait for
/// it.
const STEP_STATES: i64 = 1_000;

/// The most topics that one transaction forgets. Appends wait for it.
const FORGOTTEN_TOPICS: usize = 500;

/// The least age of a deleted message, in milliseconds: a node whose connection breaks for less than this reads all
/// messages that it has missed.
const AGE_MS: i64 = 60_000;

/// The delay before another attempt after a failed step, in milliseconds: the first one, and the longest.
const RETRY_MS: (u64, u64) = (1_000, 60_000);

/// Trims all topics, step by step, and begins again. Only one node does so at a time. The trimmer has a session of
/// its own, and its errors end nothing else: it logs them, and tries again some time later.
pub(crate) async fn run(postgres: &Postgres) -> Infallible {
    let warn = |error: &DatabaseError| {
        tracing::warn!(
            %error,
            "messages that no rule retains can't be deleted from the history in PostgreSQL: \
             its tables grow"
        );
    };
    let attempt = async || {
        let ended = trim(postgres).await;
        Counts::add(&postgres.0.counts.trims_failed, 1);
        ended
    };
    retry(RETRY_MS, warn, attempt).await
}

/// Trims until a step fails. Returns the error, and true if an earlier step succeeded.
async fn trim(postgres: &Postgres) -> (DatabaseError, bool) {
    let opened = Database::open(&postgres.0.settings, &postgres.password(), None).await;
    let database = match opened {
        Ok(database) => database,
        Err(error) => return (error, false),
    };
    let (mut after, mut has_worked) = (0, false);
    loop {
        match step(&database, after).await {
            Ok(trimmed) => {
                has_worked = true;
                sleep(pause(trimmed.as_ref())).await;
                after = trimmed.and_then(|trimmed| trimmed.last).unwrap_or(0);
            }
            Err(error) => {
                database.close().await;
                return (error, has_worked);
            }
        }
    }
}

/// Runs one step. Each kind of rows has its own transaction, so that the step has no lock on one kind while it waits
/// for another.
async fn step(database: &Database, after: i64) -> Result<Option<Trimmed>, DatabaseError> {
    let trimmed = database.trim(after, STEP_TOPICS, STEP_ROWS, AGE_MS).await?;
    if let Some(trimmed) = &trimmed {
        while database.trim_keys(STEP_ROWS).await? >= STEP_ROWS {}
        while database.trim_replaced(STEP_ROWS, AGE_MS).await? >= STEP_ROWS {}
        let topics = (after, trimmed.last.unwrap_or(i64::MAX));
        while database.trim_states(topics, STEP_STATES).await? >= STEP_STATES {}
        while database.trim_uncompacted(topics, STEP_STATES, AGE_MS).await? >= STEP_STATES {}
        for topics in trimmed.empty.chunks(FORGOTTEN_TOPICS) {
            database.forget(topics).await?;
        }
    }
    Ok(trimmed)
}

/// Returns how long the next step waits.
fn pause(trimmed: Option<&Trimmed>) -> Duration {
    match trimmed {
        Some(trimmed) if trimmed.deleted >= STEP_ROWS => Duration::ZERO,
        Some(_) | None => STEP_INTERVAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_had_more_to_delete_is_followed_by_the_next_at_once() {
        let after = |last, deleted| pause(Some(&Trimmed { last, deleted, empty: Vec::new() }));
        assert_eq!(after(Some(7), STEP_ROWS), Duration::ZERO);
        assert_eq!(after(Some(7), STEP_ROWS - 1), STEP_INTERVAL, "it has looked at enough topics");
        assert_eq!(after(None, 0), STEP_INTERVAL, "the end");
        assert_eq!(pause(None), STEP_INTERVAL, "another node does it");
    }
}
