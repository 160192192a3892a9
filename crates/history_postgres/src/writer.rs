//! Appends queued messages, one batch after the other.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use broker::PublishError;
use database::DatabaseError;

use crate::batch::PendingMessage;
use crate::postgres::{OTHER_LOG, Postgres};
use crate::session::{Database, KnownLog};

/// How long a batch's publishers wait for its confirmation while there is no connection.
const CONFIRM_WAIT: Duration = Duration::from_secs(10);

/// Appends batches. It outlives sessions.
pub(crate) struct Writer {
    postgres: Postgres,
    /// The number of the last batch.
    batch: i64,
    /// The batch that the database has not confirmed.
    unconfirmed: Option<Unconfirmed>,
}

/// A batch without a reply from the database.
struct Unconfirmed {
    items: Vec<PendingMessage>,
    /// When the writer took the batch from the queue.
    since: Instant,
    /// How often the writer has sent the batch.
    sends: u32,
}

impl Unconfirmed {
    /// Returns the error that publishers get if the database rejects the batch. A batch that was sent once is not
    /// stored. A batch that was sent before may be: a session that broke may have appended it.
    fn refusal(&self, why: &str) -> PublishError {
        match self.sends {
            0 | 1 => PublishError::StoreFailed(Arc::from(why)),
            _ => PublishError::Unconfirmed(Arc::from(why)),
        }
    }
}

impl Writer {
    pub fn new(postgres: Postgres) -> Self {
        Writer { postgres, batch: 0, unconfirmed: None }
    }

    /// Appends until the connection breaks, or until the queue is empty and `is_ending` returns true.
    pub async fn run(
        &mut self,
        database: &Database,
        is_ending: impl Fn() -> bool,
    ) -> Result<(), DatabaseError> {
        loop {
            if self.unconfirmed.is_none() {
                self.wait_for_follower().await;
                let items = self.postgres.0.queue.take();
                if items.is_empty() {
                    if is_ending() {
                        return Ok(());
                    }
                    self.postgres.0.queue.added.notified().await;
                    continue;
                }
                self.batch += 1;
                self.unconfirmed = Some(Unconfirmed { items, since: Instant::now(), sends: 0 });
            }
            self.append(database).await?;
        }
    }

    /// Waits while the follower has as much to deliver as the queue takes. The queue fills meanwhile, and rejects
    /// more messages.
    async fn wait_for_follower(&self) {
        let inner = &self.postgres.0;
        let settings = &inner.settings;
        loop {
            let backlog = self.postgres.state().backlog();
            let capacity_reached = backlog.messages >= settings.queue_messages_max
                || backlog.bytes >= settings.queue_bytes_max;
            if !capacity_reached {
                return;
            }
            // A notification that came before this call is not lost: `Notify` stores it.
            inner.backlog_taken.notified().await;
        }
    }

    /// Sends the unconfirmed batch, which stays unconfirmed if the connection breaks.
    async fn append(&mut self, database: &Database) -> Result<(), DatabaseError> {
        let inner = &self.postgres.0;
        let known = KnownLog { epoch: inner.epoch.0, offset: self.postgres.state().delivered };
        let Some(batch) = &mut self.unconfirmed else { return Ok(()) };
        let keys_seconds = inner.idempotency_seconds_max.load(Ordering::Relaxed);
        batch.sends += 1;
        let number = (inner.writer, self.batch);
        let owner = inner.sessions.owner();
        let appended = match database.append(number, known, keys_seconds, &batch.items, owner).await
        {
            Ok(Some(appended)) => appended,
            Ok(None) => {
                let error = batch.refusal(OTHER_LOG);
                self.fail(&error);
                return Err(DatabaseError::Statement(OTHER_LOG.into()));
            }
            Err(
                error @ (DatabaseError::Statement(_)
                | DatabaseError::Denied(_)
                | DatabaseError::Canceled(_)),
            ) => {
                tracing::error!(%error, "PostgreSQL rejected a batch of the history");
                let error = batch.refusal(&format!("PostgreSQL rejected it: {error}"));
                self.fail(&error);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if let Some(Unconfirmed { items, .. }) = self.unconfirmed.take() {
            self.postgres.state().add_own(appended, items);
            inner.queue.finish();
            self.postgres.set_status(|status| status.batches += 1);
            inner.committed.notify_one();
        }
        Ok(())
    }

    /// Sends an error to the publishers of the unconfirmed batch once they have waited for `CONFIRM_WAIT`.
    pub async fn give_up(&mut self, why: &str) {
        let Some(batch) = &self.unconfirmed else { return std::future::pending().await };
        tokio::time::sleep(CONFIRM_WAIT.saturating_sub(batch.since.elapsed())).await;
        self.fail(&PublishError::Unconfirmed(why.into()));
    }

    /// Gives up the unconfirmed batch: its publishers get this error.
    pub fn fail(&mut self, error: &PublishError) {
        let Some(batch) = self.unconfirmed.take() else { return };
        batch.items.into_iter().for_each(|item| (item.done)(Err(error.clone())));
        self.postgres.0.queue.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_was_sent_before_may_be_there_though_it_is_refused() {
        let batch = |sends| Unconfirmed { items: Vec::new(), since: Instant::now(), sends };
        assert!(matches!(batch(1).refusal("x"), PublishError::StoreFailed(_)));
        assert!(matches!(batch(2).refusal("x"), PublishError::Unconfirmed(_)));
    }
}
