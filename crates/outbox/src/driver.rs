//! Drives [`Drain`]: connects, waits for the lock, and performs its actions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ::database::{DatabaseError, ErrorLevel, Reconnects, ended};
use throttle::Throttle;
use tokio::sync::mpsc;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::database::Database;
use crate::drain::{Action, Drain, Finished, Unfinished};
use crate::outbox::Outbox;
use crate::row::{Outcome, Publisher, Row};

/// The interval between attempts to get the lock that another node has.
const LOCK_INTERVAL: Duration = Duration::from_millis(500);

/// A node that has given the lock back waits so long: all others try it meanwhile.
const RELEASE_WAIT: Duration = Duration::from_millis(1_000);

/// The longest time for publishes in flight at the end; after it the next node that drains publishes them once more.
const END_WAIT: Duration = Duration::from_secs(5);

/// Refused rows that are logged in a second, at most.
const REFUSED_LINES: u32 = 10;

/// Why a node stops draining while its session is intact.
enum TurnEnd {
    /// The server ends.
    Ending,
    /// The node can't publish: another one may try.
    Released,
}

/// Drives the outbox until the server ends.
pub(crate) struct Driver {
    outbox: Arc<Outbox>,
    publisher: Arc<dyn Publisher>,
    /// True when the server ends.
    ending: watch::Receiver<bool>,
    started: Instant,
    refused: Throttle,
    reconnects: Reconnects,
    /// Rows that the last session has published, and perhaps not deleted.
    unfinished: Unfinished,
}

impl Driver {
    pub fn new(
        outbox: Arc<Outbox>,
        publisher: Arc<dyn Publisher>,
        ending: watch::Receiver<bool>,
    ) -> Self {
        let refused = Throttle::new(REFUSED_LINES, 1_000_000);
        let (reconnects, unfinished) = (Reconnects::default(), Unfinished::new());
        Driver {
            outbox,
            publisher,
            ending,
            started: Instant::now(),
            refused,
            reconnects,
            unfinished,
        }
    }

    /// Connects and drains, and connects again when the connection breaks.
    pub async fn run(mut self) {
        while !self.is_ending() {
            let error = match self.connect().await {
                None => return,
                Some(Ok(database)) => {
                    let overdue = overdue(self.ending.clone());
                    let result = tokio::select! {
                        result = self.session(&database) => result,
                        () = overdue => Ok(()),
                    };
                    self.on_disconnected(result.as_ref().err());
                    database.close().await;
                    match result {
                        Ok(()) => return,
                        Err(error) => error,
                    }
                }
                Some(Err(error)) => error,
            };
            self.on_error(error);
            let delay = self.reconnects.delay(Instant::now());
            self.wait(delay).await;
        }
    }

    fn is_ending(&self) -> bool {
        *self.ending.borrow()
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Waits for so long, or until the server ends.
    async fn wait(&mut self, delay: Duration) {
        tokio::select! {
            () = sleep(delay) => {}
            () = ended(&mut self.ending) => {}
        }
    }

    /// Opens a session; `None` if the server ends meanwhile.
    async fn connect(&mut self) -> Option<Result<Database, DatabaseError>> {
        let (outbox, password) = (self.outbox.clone(), self.outbox.password());
        tokio::select! {
            result = Database::open(&outbox.settings, &password) => Some(result),
            () = ended(&mut self.ending) => None,
        }
    }

    /// Waits for the lock and drains, until the server ends or the connection breaks.
    async fn session(&mut self, database: &Database) -> Result<(), DatabaseError> {
        self.reconnects.on_connected(Instant::now());
        self.outbox.set_status(|status| {
            (status.is_connected, status.error) = (true, None);
            status.since = Some(Instant::now());
        });
        tracing::info!("the outbox is connected to PostgreSQL");
        // True if this node has drained the outbox, and no other one since.
        let mut has_turn = false;
        loop {
            if database.try_lock().await? {
                if !has_turn {
                    tracing::info!("this node drains the outbox");
                }
                has_turn = true;
                self.outbox.set_status(|status| status.is_draining = true);
                let mut drain = Drain::new(std::mem::take(&mut self.unfinished));
                let result = self.drain(database, &mut drain).await;
                self.unfinished = drain.into_unfinished();
                if let TurnEnd::Ending = result? {
                    return Ok(());
                }
                database.unlock().await?;
                self.outbox.set_status(|status| status.is_draining = false);
                self.wait(RELEASE_WAIT).await;
            } else {
                if has_turn {
                    self.outbox.set_status(|status| status.error = None);
                    tracing::info!("another node drains the outbox now");
                }
                has_turn = false;
                self.wait(LOCK_INTERVAL).await;
            }
            if self.is_ending() {
                return Ok(());
            }
        }
    }

    async fn drain(
        &mut self,
        database: &Database,
        drain: &mut Drain,
    ) -> Result<TurnEnd, DatabaseError> {
        let (outcomes, mut receiver) = mpsc::unbounded_channel();
        loop {
            let is_ending = self.is_ending();
            if is_ending {
                drain.end();
                if drain.is_idle() {
                    return Ok(TurnEnd::Ending);
                }
            }
            match drain.poll(self.now_ms()) {
                Action::Fetch(above) => {
                    let fetched = database.fetch(above).await?;
                    self.outbox.set_status(|status| status.lag_seconds = fetched.age_seconds);
                    if fetched.rows.is_empty() {
                        self.on_unblocked();
                    }
                    drain.on_rows(self.now_ms(), fetched.oldest, fetched.rows);
                }
                Action::Publish(row) => {
                    self.publish(&row, &outcomes);
                    while let Ok((id, outcome)) = receiver.try_recv() {
                        self.on_outcome(drain, id, outcome);
                    }
                }
                Action::Await => {
                    let received = tokio::select! {
                        received = receiver.recv() => received,
                        () = ended(&mut self.ending), if !is_ending => continue,
                    };
                    if let Some((id, outcome)) = received {
                        self.on_outcome(drain, id, outcome);
                    }
                }
                Action::Finish(finished) => {
                    let transaction = database.finish(&finished).await?;
                    self.on_finished(&finished, drain.blocked());
                    drain.on_finished(self.now_ms(), transaction);
                }
                Action::Sleep(until_ms) => {
                    let delay_ms = until_ms.saturating_sub(self.now_ms());
                    self.wait(Duration::from_millis(delay_ms)).await;
                }
                Action::Release => return Ok(TurnEnd::Released),
            }
        }
    }

    fn publish(&self, row: &Row, outcomes: &mpsc::UnboundedSender<(i64, Outcome)>) {
        let reply = Reply { row: row.id, outcomes: Some(outcomes.clone()) };
        self.publisher.publish(row, Box::new(move |outcome| reply.send(outcome)));
    }

    fn on_outcome(&self, drain: &mut Drain, id: i64, outcome: Outcome) {
        match &outcome {
            Outcome::Published => {}
            Outcome::Wait(why) => self.on_blocked(why),
            Outcome::Refused(reason) => {
                let now_us = self.started.elapsed().as_micros() as u64;
                if let Some(suppressed) = self.refused.pass(now_us, 1) {
                    tracing::warn!(
                        row = id,
                        code = &*reason.code,
                        error = &*reason.text,
                        suppressed,
                        "a row of the outbox can't be published and was moved to outbox_refused"
                    );
                }
            }
        }
        drain.on_outcome(id, outcome);
    }

    /// Logs once that rows wait.
    fn on_blocked(&self, why: &str) {
        let mut is_new = false;
        self.outbox.set_status(|status| {
            is_new = status.error.is_none();
            status.error = Some(why.into());
        });
        if is_new {
            tracing::warn!(error = why, "rows of the outbox wait: they can't be published now");
        }
    }

    /// Logs that rows wait no longer, if they did.
    fn on_unblocked(&self) {
        let mut was_blocked = false;
        self.outbox.set_status(|status| was_blocked = status.error.take().is_some());
        if was_blocked {
            tracing::info!("rows of the outbox are published again");
        }
    }

    fn on_finished(&self, finished: &Finished, blocked: Option<&str>) {
        self.outbox.set_status(|status| {
            status.published += finished.published.len() as u64;
            status.refused += finished.refused.len() as u64;
        });
        if blocked.is_none() {
            self.on_unblocked();
        }
    }

    fn on_disconnected(&mut self, error: Option<&DatabaseError>) {
        self.outbox.set_status(|status| {
            (status.is_connected, status.is_draining) = (false, false);
            status.since = Some(Instant::now());
            status.connections_lost += u64::from(error.is_some());
            status.lag_seconds = 0.0;
        });
    }

    fn on_error(&mut self, error: DatabaseError) {
        self.outbox.set_status(|status| status.error = Some(error.to_string()));
        match self.reconnects.on_error(&error) {
            ErrorLevel::Error => {
                tracing::error!(%error, "the outbox can't be drained; the server tries again");
            }
            ErrorLevel::Warning => {
                tracing::warn!(%error, "the outbox has no connection to PostgreSQL: rows wait");
            }
            ErrorLevel::Repeated => {}
        }
    }
}

/// Reports the outcome of a row. If the publisher drops it uncalled, the row waits, and is published again.
struct Reply {
    row: i64,
    outcomes: Option<mpsc::UnboundedSender<(i64, Outcome)>>,
}

impl Reply {
    fn send(mut self, outcome: Outcome) {
        self.report(outcome);
    }

    fn report(&mut self, outcome: Outcome) {
        if let Some(outcomes) = self.outcomes.take() {
            // The session may have ended.
            let _ = outcomes.send((self.row, outcome));
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.report(Outcome::Wait("the server gave no reply to a publish".into()));
    }
}

/// Waits until the time of publishes in flight at the end is over.
async fn overdue(mut ending: watch::Receiver<bool>) {
    ended(&mut ending).await;
    sleep(END_WAIT).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_whose_publish_gets_no_reply_waits() {
        let (outcomes, mut receiver) = mpsc::unbounded_channel();
        let reply = |row| Reply { row, outcomes: Some(outcomes.clone()) };
        reply(1).send(Outcome::Published);
        drop(reply(2));
        assert_eq!(receiver.try_recv().unwrap(), (1, Outcome::Published));
        assert!(matches!(receiver.try_recv().unwrap(), (2, Outcome::Wait(_))));
        assert!(receiver.try_recv().is_err());
    }
}
