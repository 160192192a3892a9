//! Reads the database for several requests at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use database::DatabaseError;
use futures_util::future::try_join_all;
use history::{HistoryError, PageFrom, PageQuery, Pull, Start, TopicCursor};
use model::{Name, ResumeRequest};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::jobs::{Job, Reply};
use crate::pages::ReadBegin;
use crate::postgres::{Counts, Postgres};
use crate::publish::away_text;
use crate::resolve::{Known, Unknown};
use crate::session::{Amount, Database, Range, TopicRows};

/// The most topics that one request reads at the same time.
const PIPELINED: usize = 64;

/// The most requests that read at the same time.
const JOBS_MAX: usize = 32;

/// How long a client that has seen a later offset at another node waits until this node has delivered it.
const AHEAD_WAIT: Duration = Duration::from_secs(10);

/// Returns the error of a request whose read of the database failed.
pub(crate) fn unavailable(error: &DatabaseError) -> HistoryError {
    HistoryError::Unavailable(away_text(Some(&error.to_string())).into())
}

/// Runs jobs until one finds that the connection is broken. Then it aborts those under way, whose requesters get
/// errors.
pub(crate) async fn run(postgres: &Postgres, database: Arc<Database>) -> Result<(), DatabaseError> {
    let permits = Arc::new(Semaphore::new(JOBS_MAX));
    let replies = Arc::new(AtomicU64::new(0));
    let mut running = JoinSet::new();
    loop {
        let permit = permits.clone().acquire_owned();
        let next = async { (permit.await, postgres.0.jobs.next().await) };
        let (permit, job) = tokio::select! {
            next = next => next,
            finished = running.join_next(), if !running.is_empty() => match finished {
                Some(Ok(Err(error))) => return Err(error),
                // A job that panicked has printed why, and replied with an error as it was dropped.
                Some(Ok(Ok(())) | Err(_)) | None => continue,
            },
        };
        if !job.is_awaited() {
            continue;
        }
        let (postgres, database, replies) = (postgres.clone(), database.clone(), replies.clone());
        running.spawn(async move {
            let replies_before = replies.load(Ordering::Relaxed);
            let result = postgres.perform(&database, job).await;
            drop(permit);
            match result {
                // If no other job had a reply meanwhile, the connection counts as broken.
                Err(error @ DatabaseError::Timeout(_)) => {
                    match replies.load(Ordering::Relaxed) == replies_before {
                        true => Err(error),
                        false => Ok(()),
                    }
                }
                Err(error @ DatabaseError::Connection(_)) => Err(error),
                // An error that the database returns for one read does not concern other reads.
                Ok(true) | Err(_) => {
                    replies.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                }
                Ok(false) => Ok(()),
            }
        });
    }
}

impl Postgres {
    /// Returns true if the database has replied.
    async fn perform(&self, database: &Database, job: Job) -> Result<bool, DatabaseError> {
        match job {
            Job::Start { topics, request, reply } => {
                Counts::add(&self.0.counts.reads, 1);
                let found = self.start_of(database, &topics, &request).await;
                complete(reply, found)
            }
            Job::Read { pull, mut reply } => {
                // A job before this one may have read the same.
                if let Some(page) = self.known_page(&pull) {
                    reply.send(self.piece_of(&pull, &[page]));
                    return Ok(false);
                }
                Counts::add(&self.0.counts.reads, 1);
                // A shared reference could not go to another thread: a reply is not `Sync`.
                let awaited = &mut reply;
                let found = self.read_of(database, &pull, move || awaited.is_awaited()).await;
                let piece = |(moment, found)| {
                    self.pages_of(&pull, moment, found)
                        .and_then(|pages| self.piece_of(&pull, &pages))
                };
                complete(reply, found.map(piece))
            }
            Job::Matching { search, mut reply } => {
                Counts::add(&self.0.counts.reads, 1);
                let awaited = &mut reply;
                let found = self.matching_of(database, *search, move || awaited.is_awaited()).await;
                complete(reply, found.map(Ok))
            }
            Job::Page { query, reply } => {
                Counts::add(&self.0.counts.reads, 1);
                let found = self.rows_of(database, &query).await;
                complete(reply, found.map(|found| self.page_of(&query, found)))
            }
            Job::Delete { topic, reply } => {
                let deleted = self.delete_of(database, &topic).await;
                complete(reply, deleted.map(Ok))
            }
        }
    }

    async fn start_of(
        &self,
        database: &Database,
        topics: &[(u64, Name)],
        request: &ResumeRequest,
    ) -> Result<Result<Start, HistoryError>, DatabaseError> {
        let topics: Vec<(u64, &str)> =
            topics.iter().map(|(hash, name)| (*hash, name.as_str())).collect();
        let mut known = Known::default();
        // Newest messages may leave memory meanwhile, and the offset that a client has seen may be gone.
        for _ in 0..3 {
            let Unknown { newest, ahead } = match self.resolve(&topics, request, &known) {
                Ok(start) => return Ok(Ok(start)),
                Err(unknown) => unknown,
            };
            if let Some(ahead) = ahead {
                let last = self.last(database).await?;
                known.last = Some(last);
                if ahead <= last && !self.wait_for(ahead).await {
                    break;
                }
            }
            let delivered = self.state().delivered;
            for (hash, name, messages) in newest {
                let before = database.before_newest(&name, delivered, messages).await?;
                known.newest.push((hash, before));
            }
        }
        Ok(Err(HistoryError::Busy))
    }

    /// Returns the last offset of the log.
    async fn last(&self, database: &Database) -> Result<u64, DatabaseError> {
        let none = Amount { messages_max: 0, bytes_max: 0 };
        Ok(database.follow(0, 0, none).await?.last)
    }

    /// Waits until this node has delivered everything up to an offset. Returns false after `AHEAD_WAIT`.
    async fn wait_for(&self, offset: u64) -> bool {
        let mut delivered = self.0.delivered.subscribe();
        self.0.committed.notify_one();
        let reached = delivered.wait_for(|delivered| *delivered >= offset);
        tokio::time::timeout(AHEAD_WAIT, reached).await.is_ok()
    }

    async fn read_of(
        &self,
        database: &Database,
        pull: &Pull,
        is_awaited: impl Fn() -> bool,
    ) -> Result<((u64, ReadBegin), Vec<TopicRows>), DatabaseError> {
        let (delivered, begin) = {
            let state = self.state();
            (state.delivered, state.pages.begin(self.now_ms()))
        };
        // Each of many topics gets a share, because the reply is one piece.
        let share = |max: usize| (max / pull.topics.len().max(1)).saturating_add(1);
        let amount =
            Amount { messages_max: share(pull.messages_max), bytes_max: share(pull.bytes_max) };
        let mut found = Vec::with_capacity(pull.topics.len());
        for topics in pull.topics.chunks(PIPELINED) {
            // The client may leave during a read of many topics. Nothing takes the reply then.
            if !found.is_empty() && !is_awaited() {
                break;
            }
            let read = |topic: &TopicCursor| {
                let range = Range { after: topic.after, through: delivered, delivered };
                let topic = topic.topic.clone();
                async move { database.after(&topic, range, amount).await }
            };
            found.extend(try_join_all(topics.iter().map(read)).await?);
        }
        Ok(((delivered, begin), found))
    }

    async fn rows_of(
        &self,
        database: &Database,
        query: &PageQuery,
    ) -> Result<TopicRows, DatabaseError> {
        let PageQuery { ref topic, from, backwards, limit, bytes_max, .. } = *query;
        let delivered = self.state().delivered;
        let amount = Amount { messages_max: limit, bytes_max };
        let range = |after, through| Range { after, through, delivered };
        match (from, backwards) {
            (PageFrom::Offset(before), true) => {
                let through = before.saturating_sub(1).min(delivered);
                database.before(topic, range(0, through), amount).await
            }
            (PageFrom::End | PageFrom::Newest(_), true) => {
                database.before(topic, range(0, delivered), amount).await
            }
            (PageFrom::Newest(messages), false) => {
                let after = database.before_newest(topic, delivered, messages).await?;
                database.after(topic, range(after, delivered), amount).await
            }
            (PageFrom::Offset(after), false) => {
                database.after(topic, range(after, delivered), amount).await
            }
            (PageFrom::End, false) => database.after(topic, range(0, delivered), amount).await,
        }
    }

    /// Deletes a topic's history, and waits until this node has forgotten it.
    async fn delete_of(&self, database: &Database, topic: &str) -> Result<(), DatabaseError> {
        database.delete(topic).await?;
        let last = self.last(database).await?;
        self.wait_for(last).await;
        Ok(())
    }
}

/// Sends the reply, and returns the error of the database.
fn complete<T>(
    reply: Reply<T>,
    found: Result<Result<T, HistoryError>, DatabaseError>,
) -> Result<bool, DatabaseError> {
    match found {
        Ok(found) => {
            reply.send(found);
            Ok(true)
        }
        Err(error) => {
            reply.send(Err(unavailable(&error)));
            Err(error)
        }
    }
}
