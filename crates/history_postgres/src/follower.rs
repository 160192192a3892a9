//! Delivers messages to the inboxes, in the order of their offsets.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use broker::{Broker as _, Done, Gap, HistoryLog, PublishError, Published, Receipt};
use database::DatabaseError;
use model::{Envelope, HistoryRule, Message, MessageSource, Name, Publication, Retention};
use store::Record;

use crate::batch::{AppendOutcome, PendingMessage};
use crate::postgres::{Counts, OTHER_LOG, Postgres};
use crate::session::{Amount, Database, Followed, LogRow};
use crate::state::{NextStep, OwnBatch};

/// How often the follower polls for commits without a notification.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The limits of one read.
const READ: Amount = Amount { messages_max: 256, bytes_max: 8 << 20 };

/// The limits for one row, however large it is.
const ONE: Amount = Amount { messages_max: 1, bytes_max: 0 };

/// How often, and how long each time, the follower waits for shards that are behind. Then it delivers anyway: the
/// present members must get a committed message.
const CAPACITY_WAITS: u32 = 2_000;
const CAPACITY_WAIT: Duration = Duration::from_millis(1);

/// How long the follower does not wait again after a wait in vain, in microseconds.
const NO_WAIT_US: u64 = 30_000_000;

/// Delivers committed messages. It outlives sessions.
pub(crate) struct Follower {
    postgres: Postgres,
    /// Delivers messages of topics for which this node has no rule.
    broker: Arc<broker::Local>,
    /// The undelivered rest of a batch of this process. It outlives a session that ends meanwhile.
    own: VecDeque<(PendingMessage, AppendOutcome)>,
    /// When that batch was appended, in milliseconds since 1970.
    own_ms: u64,
    /// The follower does not wait for shards that are behind before this time, in microseconds of the node's clock.
    no_wait_until_us: u64,
}

/// A message on its way to the inboxes.
struct Arrival {
    hash: u64,
    publication: Publication,
    /// `None` if this node has none for the topic. Then it delivers the message, and does not retain it.
    rule: Option<Arc<HistoryRule>>,
    offset: u64,
    at_ms: u64,
    receipt: Option<Receipt>,
}

impl Follower {
    pub fn new(postgres: Postgres, broker: Arc<broker::Local>) -> Self {
        Follower { postgres, broker, own: VecDeque::new(), own_ms: 0, no_wait_until_us: 0 }
    }

    /// Delivers until the connection breaks.
    pub async fn run(&mut self, database: &Database) -> Result<(), DatabaseError> {
        let committed = self.postgres.0.committed.clone();
        loop {
            let next = self.postgres.state().next();
            if matches!(next, NextStep::Own(_) | NextStep::Reply(_)) {
                self.postgres.0.backlog_taken.notify_one();
            }
            match next {
                NextStep::Own(batch) => {
                    (self.own, self.own_ms) = (batch.items.into(), batch.at_ms);
                    self.deliver_own().await;
                }
                NextStep::Reply(batch) => reply(&self.postgres, batch),
                NextStep::Pause => committed.notified().await,
                NextStep::Read(after, through) => {
                    if !self.read(database, after, through).await? {
                        // If a notification is lost, messages are late by this at most.
                        let _ = tokio::time::timeout(POLL_INTERVAL, committed.notified()).await;
                    }
                }
            }
        }
    }

    /// Verifies that the log is still the one that this node has delivered.
    pub async fn verify(&self, database: &Database) -> Result<(), DatabaseError> {
        let (after, at_ms) = {
            let state = self.postgres.state();
            (state.delivered, state.delivered_ms)
        };
        let Followed { epoch, last, rows, .. } =
            database.follow(after.saturating_sub(1), after, ONE).await?;
        // If the log has lost messages, others may have their offsets by now.
        let is_other = |row: &LogRow| at_ms.is_some_and(|at_ms| at_ms != row.at_ms);
        match epoch != self.postgres.0.epoch.0 || last < after || rows.iter().any(is_other) {
            true => self.refuse(database, epoch).await,
            false => Ok(()),
        }
    }

    /// Returns the error for a log that is another one.
    async fn refuse<T>(&self, database: &Database, epoch: u32) -> Result<T, DatabaseError> {
        if epoch == self.postgres.0.epoch.0 {
            // The log gives the offsets of lost messages to other messages.
            database.renew(epoch).await?;
        }
        Err(DatabaseError::Statement(OTHER_LOG.into()))
    }

    /// Delivers what other processes have appended. Returns false if there is nothing more.
    async fn read(
        &mut self,
        database: &Database,
        after: u64,
        through: u64,
    ) -> Result<bool, DatabaseError> {
        let Followed { epoch, last, trimmed, rows } = database.follow(after, through, READ).await?;
        if epoch != self.postgres.0.epoch.0 || last < after {
            return self.refuse(database, epoch).await;
        }
        if rows.is_empty() {
            let end = last.min(through);
            if end > after {
                self.on_hole(end, trimmed);
            }
            return Ok(end > after);
        }
        for row in rows {
            if row.offset > self.postgres.state().delivered + 1 {
                self.on_hole(row.offset - 1, trimmed);
            }
            self.deliver_row(row).await;
        }
        Ok(true)
    }

    /// Called when messages up to an offset were deleted before this node has read them. Up to `trimmed`, no rule may
    /// retain them any more. Later ones were of compacted topics, whose members get their states anew.
    fn on_hole(&self, through: u64, trimmed: u64) {
        let after = self.postgres.state().delivered;
        let only_compact = trimmed <= after;
        tracing::warn!(
            messages = through - after,
            only_compact,
            "messages were deleted from PostgreSQL before this node had read them, because this node \
             was disconnected for over a minute: members of all topics get a gap notice, or with \
             only_compact those of compacted topics"
        );
        let postgres = self.postgres.clone();
        // Other nodes append messages of topics without a rule here, for their MQTT sessions.
        let is_lost = move |topic: &str| {
            !only_compact || postgres.rule(topic).is_some_and(|rule| rule.compact)
        };
        self.on_lost(through, None, is_lost);
    }

    /// Skips messages up to an offset, which no member gets: memory forgets its windows, and members get a gap
    /// notice.
    fn on_lost(
        &self,
        through: u64,
        at_ms: Option<u64>,
        is_lost: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) {
        let inner = &self.postgres.0;
        Counts::add(&inner.counts.gaps, 1);
        let mut state = self.postgres.state();
        state.pass(through, at_ms);
        let former = state.forget();
        // The notice goes out under the lock, as messages do: it comes between those before and those after.
        let gap = Gap::new(self.postgres.id(through), false, is_lost);
        inner.router.notify_gap(&Arc::new(gap));
        drop(state);
        drop(former);
        inner.delivered.send_replace(through);
    }

    async fn deliver_row(&mut self, row: LogRow) {
        let LogRow { offset, topic, at_ms, record } = row;
        let hash = self.broker.hash(&topic);
        let Some(record) = record else {
            let mut state = self.postgres.state();
            let dropped = state.delete(hash, &topic, offset);
            state.pass(offset, Some(at_ms));
            drop(state);
            drop(dropped);
            self.postgres.0.delivered.send_replace(offset);
            return;
        };
        let name = Name::from(&*topic);
        let publication = match Record::decode(&name, offset, &record) {
            Ok(record) => record.publication,
            Err(error) => {
                let id = self.postgres.id(offset);
                tracing::error!(
                    topic,
                    message_id = %id,
                    %error,
                    "a message in PostgreSQL can't be read: members of the topic get a gap notice"
                );
                return self.on_lost(offset, Some(at_ms), move |it| *it == *topic);
            }
        };
        self.wait_for_capacity(hash, &topic).await;
        let (rule, receipt) = (self.postgres.rule(&topic), None);
        self.deliver(Arrival { hash, publication, rule, offset, at_ms, receipt });
    }

    async fn deliver_own(&mut self) {
        while let Some((next, _)) = self.own.front() {
            let (hash, topic) = (next.hash, next.publication.topic.clone());
            self.wait_for_capacity(hash, &topic).await;
            // No `await` from here on: what is taken from `own` gets its reply.
            let Some((item, outcome)) = self.own.pop_front() else { return };
            let PendingMessage { hash, publication, rule, receipt, done, .. } = item;
            if let AppendOutcome::Appended(offset) = outcome {
                let (rule, at_ms) = (Some(rule), self.own_ms);
                self.deliver(Arrival { hash, publication, rule, offset, at_ms, receipt });
            } else if let Some(receipt) = receipt {
                receipt.uncounted();
            }
            complete(&self.postgres, done, outcome);
        }
    }

    /// Called when the session has ended. Replies to the publishers of committed messages that are not delivered: the
    /// follower delivers those when it reads them.
    pub fn reply_rest(&mut self) {
        let rest = OwnBatch { at_ms: self.own_ms, items: self.own.drain(..).collect() };
        let batches = self.postgres.state().take_own();
        for OwnBatch { at_ms, items } in std::iter::once(rest).chain(batches) {
            for (item, outcome) in items {
                self.retain(&item, outcome, at_ms);
                reply_one(&self.postgres, item, outcome);
            }
        }
    }

    /// Makes a committed message the retained one of its topic. The publisher gets its confirmation now, and this node may
    /// end before it delivers the message.
    fn retain(&self, item: &PendingMessage, outcome: AppendOutcome, at_ms: u64) {
        let AppendOutcome::Appended(offset) = outcome else { return };
        let (publication, now_us) = (item.publication.clone(), self.postgres.now_us());
        let message = Message::new(publication, self.postgres.id(offset), item.hash, now_us);
        let message = Envelope::from(message.retained(Retention::History, at_ms));
        self.postgres.0.router.retain(&Arc::new(message), MessageSource::SharedLog);
    }

    /// Delivers a message to all inboxes of its routes.
    fn deliver(&self, arrival: Arrival) {
        let Arrival { hash, publication, rule, offset, at_ms, receipt } = arrival;
        let inner = &self.postgres.0;
        let now_us = self.postgres.now_us();
        let mut state = self.postgres.state();
        // The routes are those of this moment: a client with a new filter may have read the history up to the message
        // before.
        let mut routes = inner.router.routes_from_log(&publication.topic, offset);
        let message = Message::new(publication, self.postgres.id(offset), hash, now_us);
        let message = Envelope::from(message.retained(Retention::History, at_ms));
        let (receipt, source) = (receipt.as_ref(), MessageSource::SharedLog);
        match rule {
            Some(rule) => {
                let message = Arc::new(message.matched_by(routes.filters.take()));
                state.push(&message, Some(&rule), inner.clock.now_ms());
                let topic = &message.publication.topic;
                state.windows.set_for_sessions(hash, topic, self.is_implicit(&rule));
                inner.router.deliver(&message, &routes.take_groups(), receipt, source);
            }
            None => {
                let message = Arc::new(message);
                state.push(&message, None, inner.clock.now_ms());
                inner.router.retain(&message, source);
                let publication = message.publication.clone();
                self.broker.deliver_without_history(hash, publication, receipt, routes);
                Counts::add(&inner.counts.passed, 1);
            }
        }
        Counts::add(&inner.counts.published, 1);
        inner.delivered.send_replace(offset);
    }

    /// Returns true if this is the rule by which messages are retained for MQTT sessions alone.
    fn is_implicit(&self, rule: &Arc<HistoryRule>) -> bool {
        self.postgres.implicit(|implicit| Arc::ptr_eq(&implicit.rule, rule)).unwrap_or(false)
    }

    async fn wait_for_capacity(&mut self, hash: u64, topic: &str) {
        let now_us = self.postgres.now_us();
        if self.no_wait_until_us > now_us {
            return;
        }
        for _ in 0..CAPACITY_WAITS {
            let router = &self.postgres.0.router;
            if router.has_capacity(hash, false, &router.routes(topic)) {
                return;
            }
            tokio::time::sleep(CAPACITY_WAIT).await;
        }
        // A stuck shard must not delay all other messages, each for so long.
        self.no_wait_until_us = now_us + NO_WAIT_US;
    }
}

/// Replies to the publishers of a committed batch, whose messages the follower delivers as it reads them.
fn reply(postgres: &Postgres, batch: OwnBatch) {
    batch.items.into_iter().for_each(|(item, outcome)| reply_one(postgres, item, outcome));
}

fn reply_one(postgres: &Postgres, item: PendingMessage, outcome: AppendOutcome) {
    if let Some(receipt) = item.receipt {
        receipt.uncounted();
    }
    complete(postgres, item.done, outcome);
}

fn complete(postgres: &Postgres, done: Done, outcome: AppendOutcome) {
    let published =
        |offset, repeated| Published { id: postgres.id(offset), repeated, queued: false };
    match outcome {
        AppendOutcome::Appended(offset) => done(Ok(published(offset, false))),
        AppendOutcome::Repeated(offset) => {
            Counts::add(&postgres.0.counts.repeated, 1);
            done(Ok(published(offset, true)));
        }
        AppendOutcome::Newer(offset) => done(Err(PublishError::Newer(postgres.id(offset)))),
    }
}
