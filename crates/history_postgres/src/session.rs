//! A session with PostgreSQL that has the history's statements.

use std::collections::BTreeMap;
use std::sync::Arc;

use database::{
    DatabaseError, Session, connect, of_schema, prepare_session, signed, step, step_within,
    unsigned, wake_for,
};
use model::Name;
use tokio::sync::Notify;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};

use crate::SCHEMA;
use crate::batch::{AppendOutcome, Appended, PendingMessage};
use crate::mqtt_sessions::{Owner, ProgressWrite};
use crate::settings::Settings;

/// How long the append of a batch may take, in seconds. After that the driver reconnects.
const APPEND_SECONDS: u64 = 15;

/// The channel on which the SQL functions notify sessions of a commit.
const CHANNEL: &str = "throng_history";

/// The log as a writer knows it.
#[derive(Clone, Copy)]
pub(crate) struct KnownLog {
    pub epoch: u32,
    /// Everything up to this offset was committed.
    pub offset: u64,
}

/// The result of one step of a trim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Trimmed {
    /// The id of the last topic that it scanned; `None` at the end.
    pub last: Option<i64>,
    /// The number of deleted messages.
    pub deleted: i64,
    /// The ids of topics that had no message for a day.
    pub empty: Vec<i64>,
}

/// Rows that were committed after an offset.
pub(crate) struct Followed {
    pub epoch: u32,
    /// The last offset of the log at that moment.
    pub last: u64,
    /// Messages up to this offset may be deleted. Where later ones are, they were of compacted topics.
    pub trimmed: u64,
    pub rows: Vec<LogRow>,
}

/// A row of the log.
pub(crate) struct LogRow {
    pub offset: u64,
    pub topic: String,
    pub at_ms: u64,
    /// `None` if all messages of the topic before this row are deleted.
    pub record: Option<Box<[u8]>>,
}

/// Messages of a topic.
pub(crate) struct TopicRows {
    /// Some of the topic's messages up to this offset are gone.
    pub floor: u64,
    pub rows: Vec<TopicRow>,
    /// True if the topic has more messages in this direction.
    pub more: bool,
}

pub(crate) struct TopicRow {
    pub offset: u64,
    pub at_ms: u64,
    pub record: Box<[u8]>,
}

/// Topics that a scan of names has found.
pub(crate) struct ScannedTopics {
    /// Topics, with the offsets of their last messages.
    pub topics: Vec<(String, u64)>,
    /// The last name that was scanned; `None` if there are no more.
    pub last: Option<String>,
}

/// The messages of a topic that a read is for.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    /// Messages after this offset.
    pub after: u64,
    /// Messages up to this offset.
    pub through: u64,
    /// This node has delivered the log up to this offset: a compacted topic has the states of that moment.
    pub delivered: u64,
}

/// The limits of one read.
#[derive(Clone, Copy)]
pub(crate) struct Amount {
    pub messages_max: usize,
    pub bytes_max: usize,
}

/// An open session.
pub(crate) struct Database {
    session: Session,
    append: Statement,
    append_with_sessions: Statement,
    follow: Statement,
    after: Statement,
    before: Statement,
    newest: Statement,
    topics: Statement,
    schema: String,
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Limits an age in seconds, because PostgreSQL calculates with it in milliseconds.
pub(crate) fn age(seconds: u64) -> i64 {
    signed(seconds.min(1 << 40))
}

pub(crate) fn unsigned_at(row: &Row, column: &str) -> Result<u64, DatabaseError> {
    Ok(unsigned(row.try_get(column)?))
}

pub(crate) fn epoch_of(row: &Row) -> Result<u32, DatabaseError> {
    Ok(u32::try_from(row.try_get::<_, i64>("epoch")?).unwrap_or(0))
}

/// Returns the last progress of each session in a batch.
fn last_progress(items: &[PendingMessage]) -> Vec<&ProgressWrite> {
    let mut by_key: BTreeMap<&str, &ProgressWrite> = BTreeMap::new();
    for progress in items.iter().filter_map(|item| item.progress.as_ref()) {
        let last = by_key.entry(&progress.key).or_insert(progress);
        if last.number < progress.number {
            *last = progress;
        }
    }
    by_key.into_values().collect()
}

impl Database {
    /// Connects, and creates missing tables and functions. A commit of another session wakes `committed`.
    pub async fn open(
        settings: &Settings,
        password: &str,
        committed: Option<Arc<Notify>>,
    ) -> Result<Self, DatabaseError> {
        let listens = committed.is_some();
        let wake = wake_for(&settings.schema, committed);
        let session = connect(&settings.address, password, wake).await?;
        let client = &session.client;
        let found = SCHEMA.apply(client, &settings.schema, settings.address.user()).await?;
        if found < SCHEMA.version() {
            let (from, to) = (found, SCHEMA.version());
            tracing::info!(schema = settings.schema, from, to, "the history's schema was migrated");
        }
        prepare_session(client).await?;
        if listens {
            step(client.batch_execute(&format!("LISTEN {CHANNEL}"))).await?;
        }
        let text = |text: &str| of_schema(text, &settings.schema);
        let prepare = async |text: String| step(client.prepare(&text)).await;
        let append = "SELECT * FROM {schema}.history_append_batch($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)";
        let append = prepare(text(append)).await?;
        let append_with_sessions = prepare(text("SELECT * FROM {schema}.history_append_with_sessions($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)")).await?;
        let follow = prepare(text(include_str!("../sql/follow.sql"))).await?;
        let after = prepare(text(include_str!("../sql/after.sql"))).await?;
        let before = prepare(text(include_str!("../sql/before.sql"))).await?;
        let newest = prepare(text(include_str!("../sql/newest.sql"))).await?;
        let topics = prepare(text(include_str!("../sql/topics.sql"))).await?;
        let schema = settings.schema.clone();
        Ok(Database {
            session,
            append,
            append_with_sessions,
            follow,
            after,
            before,
            newest,
            topics,
            schema,
        })
    }

    /// Appends a batch. If a batch of this number was appended before, only returns its outcome. Returns `None` and
    /// appends nothing if the log is not the known one. The same transaction writes the progress of MQTT sessions that
    /// published messages of the batch. It fails if another process is their owner by now.
    pub async fn append(
        &self,
        (writer, batch): (i64, i64),
        known: KnownLog,
        keys_seconds: u64,
        items: &[PendingMessage],
        owner: Option<Owner>,
    ) -> Result<Option<Appended>, DatabaseError> {
        let (known_epoch, known_offset) = (i64::from(known.epoch), signed(known.offset));
        let names: Vec<&str> = items.iter().map(|item| &*item.publication.topic).collect();
        let expires: Vec<Option<i64>> =
            items.iter().map(|item| item.publication.expires_ms().map(signed)).collect();
        let sizes: Vec<i64> = items.iter().map(|item| count(item.publication.bytes())).collect();
        let records: Vec<&[u8]> = items.iter().map(|item| &*item.record).collect();
        let keys: Vec<Option<&str>> =
            items.iter().map(|item| item.idempotency_key.as_deref()).collect();
        let if_offsets: Vec<Option<i64>> =
            items.iter().map(|item| item.if_offset.map(signed)).collect();
        let rules = items.iter().map(|item| &item.rule);
        let messages_max: Vec<i64> = rules.clone().map(|rule| signed(rule.messages_max)).collect();
        let bytes_max: Vec<i64> = rules.clone().map(|rule| signed(rule.bytes_max)).collect();
        let seconds_max: Vec<i64> = rules.map(|rule| age(rule.seconds_max)).collect();
        let keys_seconds = age(keys_seconds);
        let publications = items.iter().map(|item| &item.publication);
        let message_keys: Vec<Option<&str>> =
            publications.clone().map(|it| it.key().map(Name::as_str)).collect();
        let removals: Vec<bool> = publications.map(history_local::windows::is_removal).collect();
        let compacts: Vec<bool> = items.iter().map(|item| item.rule.compact).collect();
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![
            &writer,
            &batch,
            &known_epoch,
            &known_offset,
            &keys_seconds,
            &names,
            &expires,
            &sizes,
            &records,
            &keys,
            &if_offsets,
            &messages_max,
            &bytes_max,
            &seconds_max,
            &message_keys,
            &removals,
            &compacts,
        ];
        let progress = last_progress(items);
        let session_keys: Vec<&[u8]> = progress.iter().map(|it| it.key.as_bytes()).collect();
        let progress_records: Vec<&[u8]> = progress.iter().map(|it| &*it.record).collect();
        let numbers: Vec<i64> = progress.iter().map(|it| signed(it.number)).collect();
        let mut append = &self.append;
        let owner = owner.filter(|_| !progress.is_empty());
        if let Some(Owner { id, runs }) = &owner {
            append = &self.append_with_sessions;
            let of_sessions: [&(dyn ToSql + Sync); 5] =
                [id, runs, &session_keys, &progress_records, &numbers];
            parameters.extend(of_sessions);
        }
        let call = self.session.client.query_one(append, &parameters);
        let row = step_within(APPEND_SECONDS, call).await?;
        let Some(offsets) = row.try_get::<_, Option<Vec<i64>>>("offsets")? else { return Ok(None) };
        let outcomes: Vec<i32> = row.try_get("outcomes")?;
        let both = outcomes.into_iter().zip(offsets);
        let outcomes = both.map(|(outcome, offset)| match outcome {
            0 => AppendOutcome::Appended(unsigned(offset)),
            1 => AppendOutcome::Repeated(unsigned(offset)),
            _ => AppendOutcome::Newer(unsigned(offset)),
        });
        Ok(Some(Appended {
            base: unsigned_at(&row, "base")?,
            at_ms: unsigned_at(&row, "at_ms")?,
            outcomes: outcomes.collect(),
        }))
    }

    /// Reads the rows that were committed after an offset and up to another one.
    pub async fn follow(
        &self,
        after: u64,
        through: u64,
        amount: Amount,
    ) -> Result<Followed, DatabaseError> {
        let (after, through) = (signed(after), signed(through));
        let (rows_max, bytes_max) = (count(amount.messages_max), count(amount.bytes_max));
        let parameters: [&(dyn ToSql + Sync); 4] = [&after, &through, &rows_max, &bytes_max];
        let found = step(self.session.client.query(&self.follow, &parameters)).await?;
        let Some(first) = found.first() else {
            return Err(DatabaseError::Statement("the table history_log is empty".into()));
        };
        let (epoch, last) = (epoch_of(first)?, unsigned_at(first, "last_offset")?);
        let trimmed = unsigned_at(first, "trimmed")?;
        let mut rows = Vec::new();
        for row in &found {
            let Some(offset) = row.try_get::<_, Option<i64>>("log_offset")? else { continue };
            rows.push(LogRow {
                offset: unsigned(offset),
                topic: row.try_get::<_, Option<String>>("name")?.unwrap_or_default(),
                at_ms: unsigned_at(row, "at_ms")?,
                record: row.try_get::<_, Option<&[u8]>>("record")?.map(Box::from),
            });
        }
        Ok(Followed { epoch, last, trimmed, rows })
    }

    /// Reads a topic's messages in a range, the oldest first.
    pub async fn after(
        &self,
        topic: &str,
        range: Range,
        amount: Amount,
    ) -> Result<TopicRows, DatabaseError> {
        self.of_topic(&self.after, topic, range, amount).await
    }

    /// Reads a topic's messages in a range, the newest first.
    pub async fn before(
        &self,
        topic: &str,
        range: Range,
        amount: Amount,
    ) -> Result<TopicRows, DatabaseError> {
        self.of_topic(&self.before, topic, range, amount).await
    }

    async fn of_topic(
        &self,
        statement: &Statement,
        topic: &str,
        range: Range,
        amount: Amount,
    ) -> Result<TopicRows, DatabaseError> {
        let (after, through) = (signed(range.after), signed(range.through));
        let delivered = signed(range.delivered);
        // One more row shows whether the topic has more.
        let rows_max = count(amount.messages_max.saturating_add(1));
        let bytes_max = count(amount.bytes_max);
        let parameters: [&(dyn ToSql + Sync); 6] =
            [&topic, &after, &through, &rows_max, &bytes_max, &delivered];
        let found = step(self.session.client.query(statement, &parameters)).await?;
        let (mut floor, mut all, mut rows) = (0, 0, Vec::new());
        for row in &found {
            floor = unsigned_at(row, "floor")?;
            let Some(offset) = row.try_get::<_, Option<i64>>("log_offset")? else { continue };
            all = row.try_get("count")?;
            let (at_ms, record) = (unsigned_at(row, "at_ms")?, row.try_get::<_, &[u8]>("record")?);
            rows.push(TopicRow { offset: unsigned(offset), at_ms, record: record.into() });
        }
        let more = count(rows.len()) < all || rows.len() > amount.messages_max;
        rows.truncate(amount.messages_max);
        Ok(TopicRows { floor, rows, more })
    }

    /// Returns the offset before a topic's newest `messages` messages up to `through`; 0 if it has fewer.
    pub async fn before_newest(
        &self,
        topic: &str,
        through: u64,
        messages: usize,
    ) -> Result<u64, DatabaseError> {
        if messages == 0 {
            return Ok(through);
        }
        let (through, messages) = (signed(through), count(messages));
        let parameters: [&(dyn ToSql + Sync); 3] = [&topic, &through, &messages];
        let found = step(self.session.client.query_opt(&self.newest, &parameters)).await?;
        let first: Option<i64> = found.map(|row| row.try_get(0)).transpose()?;
        Ok(first.map_or(0, |first| unsigned(first).saturating_sub(1)))
    }

    /// Scans at most `topics_max` names of topics, in their order: from a name on, or after it if `is_behind`, and before
    /// another one. Returns the topics with a message after an offset.
    pub async fn topics(
        &self,
        (from, is_behind, before): (&str, bool, &str),
        after: u64,
        topics_max: usize,
    ) -> Result<ScannedTopics, DatabaseError> {
        let (after, limit) = (signed(after), count(topics_max));
        let parameters: [&(dyn ToSql + Sync); 5] = [&from, &is_behind, &before, &after, &limit];
        let found = step(self.session.client.query(&self.topics, &parameters)).await?;
        let mut scanned = ScannedTopics { topics: Vec::with_capacity(found.len()), last: None };
        for row in &found {
            scanned.topics.push((row.try_get("name")?, unsigned_at(row, "last_offset")?));
        }
        if let Some(row) = found.last()
            && row.try_get::<_, i64>("scanned")? == limit
        {
            scanned.last = Some(row.try_get("name")?);
        }
        Ok(scanned)
    }

    /// Deletes a topic's messages.
    pub async fn delete(&self, topic: &str) -> Result<(), DatabaseError> {
        let delete = of_schema("SELECT {schema}.history_delete($1)", &self.schema);
        step(self.session.client.execute(&delete, &[&topic])).await?;
        Ok(())
    }

    /// Deletes messages that the rules of topics after an id no longer retain, and that are older than an age.
    /// Returns `None` if another node is trimming.
    pub async fn trim(
        &self,
        after: i64,
        topics_max: i64,
        rows_max: i64,
        age_ms: i64,
    ) -> Result<Option<Trimmed>, DatabaseError> {
        let trim = of_schema("SELECT * FROM {schema}.history_trim($1, $2, $3, $4)", &self.schema);
        let parameters: [&(dyn ToSql + Sync); 4] = [&after, &topics_max, &rows_max, &age_ms];
        let found = step(self.session.client.query_opt(&trim, &parameters)).await?;
        let Some(row) = found else { return Ok(None) };
        let (last, deleted, empty) =
            (row.try_get("last_id")?, row.try_get("deleted")?, row.try_get("empty")?);
        Ok(Some(Trimmed { last, deleted, empty }))
    }

    /// Deletes at most `rows_max` expired idempotency keys. Returns how many it deleted.
    pub async fn trim_keys(&self, rows_max: i64) -> Result<i64, DatabaseError> {
        let trim = of_schema("SELECT {schema}.history_trim_keys($1)", &self.schema);
        Ok(step(self.session.client.query_one(&trim, &[&rows_max])).await?.try_get(0)?)
    }

    /// Deletes at most `rows_max` messages of compacted topics that have been no state for an age. Returns how many it
    /// deleted.
    pub async fn trim_replaced(&self, rows_max: i64, age_ms: i64) -> Result<i64, DatabaseError> {
        let trim = of_schema("SELECT {schema}.history_trim_replaced($1, $2)", &self.schema);
        let parameters: [&(dyn ToSql + Sync); 2] = [&rows_max, &age_ms];
        Ok(step(self.session.client.query_one(&trim, &parameters)).await?.try_get(0)?)
    }

    /// Drops states whose time is over, of the topics after an id and up to another one, at most about `rows_max`.
    /// Returns how many it found.
    pub async fn trim_states(
        &self,
        (after, through): (i64, i64),
        rows_max: i64,
    ) -> Result<i64, DatabaseError> {
        let trim = of_schema("SELECT {schema}.history_trim_states($1, $2, $3)", &self.schema);
        let parameters: [&(dyn ToSql + Sync); 3] = [&after, &through, &rows_max];
        Ok(step(self.session.client.query_one(&trim, &parameters)).await?.try_get(0)?)
    }

    /// Deletes at most `rows_max` messages without a state that are from before their topics were compacted, once all
    /// of a topic are older than an age: of the topics after an id and up to another one. Returns how many it deleted,
    /// plus the topics that have none any more.
    pub async fn trim_uncompacted(
        &self,
        (after, through): (i64, i64),
        rows_max: i64,
        age_ms: i64,
    ) -> Result<i64, DatabaseError> {
        let trim = "SELECT {schema}.history_trim_uncompacted($1, $2, $3, $4)";
        let trim = of_schema(trim, &self.schema);
        let parameters: [&(dyn ToSql + Sync); 4] = [&after, &through, &rows_max, &age_ms];
        Ok(step(self.session.client.query_one(&trim, &parameters)).await?.try_get(0)?)
    }

    /// Forgets those of the given topics that have had no message for a day.
    pub async fn forget(&self, topics: &[i64]) -> Result<(), DatabaseError> {
        let forget = of_schema("SELECT {schema}.history_forget($1)", &self.schema);
        step(self.session.client.execute(&forget, &[&topics])).await?;
        Ok(())
    }

    /// Gives the log a new epoch, since it has lost committed messages.
    pub async fn renew(&self, epoch: u32) -> Result<(), DatabaseError> {
        let renew = "UPDATE {schema}.history_log SET epoch = 1 + floor(random() * 4294967294)::bigint \
                     WHERE epoch = $1";
        let renew = of_schema(renew, &self.schema);
        step(self.session.client.execute(&renew, &[&i64::from(epoch)])).await?;
        Ok(())
    }

    /// Ends the session.
    pub async fn close(self) {
        self.session.close().await;
    }
}
