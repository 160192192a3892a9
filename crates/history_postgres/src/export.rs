//! Writes a whole history into an empty database, in one transaction: an error or a kill leaves nothing of it.

use std::collections::HashMap;

use database::{
    Address, DatabaseError, Schema, Session, connect, of_schema, prepare_session, signed,
};
use history::Cursor;
use model::Name;
use sessions::RetainedWrite;
use store::{LogHead, LogKey, LogMessage, LogTopic};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use crate::SCHEMA;
use crate::retained::{RETAIN, retain_rows};
use crate::session::{age, unsigned_at};
use crate::transfer::{BULK, LogTransferError, runtime};

/// The most rows of one statement.
const BATCH_ROWS_MAX: usize = 2_000;

/// The most retained messages of one statement.
const RETAINED_ROWS_MAX: usize = 256;

/// The bytes of records after which a statement takes no more of them.
const BATCH_BYTES_MAX: usize = 1 << 20;

const INSERT_TOPICS: &str = "INSERT INTO {schema}.history_topics (name) SELECT * FROM unnest($1::text[]) \
     RETURNING id, name";

const INSERT_MESSAGES: &str = "INSERT INTO {schema}.history_messages \
     (log_offset, topic_id, previous, sequence, total, at_ms, expires_ms, record, size, key, is_removal) \
     SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], \
     $7::bigint[], $8::bytea[], $9::bigint[], $10::text[], $11::boolean[])";

const UPDATE_TOPICS: &str = "UPDATE {schema}.history_topics AS t SET last_offset = i.last_offset, \
     last_sequence = i.last_sequence, last_total = i.last_total, last_ms = i.last_ms, \
     messages_max = i.messages_max, bytes_max = i.bytes_max, seconds_max = i.seconds_max \
     FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], \
     $8::bigint[]) AS i (id, last_offset, last_sequence, last_total, last_ms, messages_max, bytes_max, seconds_max) \
     WHERE t.id = i.id";

/// The store deletes nothing of a topic whose rule becomes that of a compacted one: such a topic may have several
/// messages of one key. They are deleted as they are where that happens in PostgreSQL.
const UPDATE_COMPACT_TOPICS: &str = "UPDATE {schema}.history_topics AS t SET compact = true, last_compact_ms = $3, \
     trim_through = t.last_offset, states_floor = i.floor \
     FROM unnest($1::bigint[], $2::bigint[]) AS i (id, floor) WHERE t.id = i.id";

const INSERT_STATES: &str = "INSERT INTO {schema}.history_states (topic_id, log_offset, key, size, at_ms, ends_ms) \
     SELECT m.topic_id, m.log_offset, m.key, m.size, m.at_ms, \
     least(m.expires_ms, CASE WHEN m.is_removal THEN m.at_ms + 86400000 END) FROM ( \
     SELECT r.*, row_number() OVER (PARTITION BY r.topic_id, r.key ORDER BY r.log_offset DESC) AS of_key \
     FROM {schema}.history_messages AS r WHERE r.topic_id = ANY ($1::bigint[])) AS m \
     WHERE m.key IS NULL OR m.of_key = 1";

const COUNT_STATES: &str = "UPDATE {schema}.history_topics AS t SET states = s.states, states_bytes = s.bytes FROM ( \
     SELECT topic_id, count(*) AS states, sum(size)::bigint AS bytes FROM {schema}.history_states \
     WHERE topic_id = ANY ($1::bigint[]) GROUP BY topic_id) AS s WHERE t.id = s.topic_id";

const INSERT_KEYS: &str = "INSERT INTO {schema}.history_keys (topic_id, key, log_offset, expires_ms) \
     SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[])";

/// The lock of the one row keeps servers from appending until the end. The transaction sees what was committed before
/// it got the lock.
const LOCK_LOG: &str = "SELECT last_offset, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms \
     FROM {schema}.history_log FOR UPDATE";

const INSERT_CURSORS: &str = "INSERT INTO {schema}.history_cursors (user_name, topic, acknowledged, given_up, change) \
     SELECT i.*, row_number() OVER () + (SELECT last_change FROM {schema}.history_cursors_log) \
     FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) AS i";

const COUNT_CURSORS: &str = "UPDATE {schema}.history_cursors_log SET last_change = \
     (SELECT coalesce(max(change), 0) FROM {schema}.history_cursors)";

const COUNT: &str = "SELECT (SELECT count(*) FROM {schema}.history_topics) AS topics, \
     EXISTS (SELECT FROM {schema}.history_messages) OR EXISTS (SELECT FROM {schema}.history_keys) \
     OR EXISTS (SELECT FROM {schema}.history_cursors) \
     OR EXISTS (SELECT FROM {schema}.history_mqtt_retained) AS has_rows, \
     (SELECT last_offset + forgotten FROM {schema}.history_log) AS last";

/// An empty history in PostgreSQL that takes the rows of another one. The database has none of them before
/// [`LogWriter::commit`].
pub struct LogWriter {
    // The session ends before the runtime.
    session: Session,
    insert_messages: Statement,
    schema: String,
    /// The time of the database's clock at the beginning, in milliseconds since 1970.
    now_ms: u64,
    ids: HashMap<Name, i64>,
    /// The state of each topic after its last message.
    ends: Vec<TopicEnd>,
    batch: Batch,
    written: Written,
    runtime: tokio::runtime::Runtime,
}

/// The counts of written rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The number of topics.
    pub topics: u64,
    /// The number of messages.
    pub messages: u64,
    /// The number of idempotency keys.
    pub keys: u64,
    /// The number of users' cursors.
    pub cursors: u64,
    /// The number of retained messages.
    pub retained: u64,
}

/// The state of a topic after its last message.
#[derive(Clone, Copy, Default)]
struct TopicEnd {
    id: i64,
    last_offset: u64,
    floor: u64,
    compact: bool,
    sequence: u64,
    total: u64,
    last_ms: u64,
    messages_max: u64,
    bytes_max: u64,
    seconds_max: u64,
}

/// Messages of one statement, by columns.
#[derive(Default)]
struct Batch {
    offsets: Vec<i64>,
    sizes: Vec<i64>,
    keys: Vec<Option<Box<str>>>,
    removals: Vec<bool>,
    topics: Vec<i64>,
    previous: Vec<i64>,
    sequences: Vec<i64>,
    totals: Vec<i64>,
    at_ms: Vec<i64>,
    expires_ms: Vec<Option<i64>>,
    records: Vec<Box<[u8]>>,
    bytes: usize,
}

impl LogWriter {
    /// Connects, makes missing tables and functions of the history and of `others`, and begins the transaction. Servers
    /// that append to this history meanwhile wait, or get an error.
    ///
    /// # Errors
    /// If the database can't be used, or its history is not empty.
    pub fn begin(
        address: &Address,
        password: &str,
        schema: &str,
        others: &[Schema],
    ) -> Result<Self, LogTransferError> {
        let runtime = runtime()?;
        let (session, insert_messages, now_ms) = runtime.block_on(async {
            let session = connect(address, password, |_| ()).await?;
            let client = &session.client;
            for part in [SCHEMA].iter().chain(others) {
                part.apply(client, schema, address.user()).await?;
            }
            prepare_session(client).await?;
            client.batch_execute(BULK).await?;
            client.batch_execute("BEGIN").await?;
            let row = client.query_one(&of_schema(LOCK_LOG, schema), &[]).await?;
            let now_ms = unsigned_at(&row, "now_ms")?;
            let row = client.query_one(&of_schema(COUNT, schema), &[]).await?;
            let (topics, last) = (unsigned_at(&row, "topics")?, unsigned_at(&row, "last")?);
            if topics > 0 || last > 0 || row.try_get("has_rows")? {
                return Err(LogTransferError::NotEmpty { schema: schema.into(), topics });
            }
            let insert = client.prepare(&of_schema(INSERT_MESSAGES, schema)).await?;
            Ok((session, insert, now_ms))
        })?;
        Ok(LogWriter {
            session,
            insert_messages,
            schema: schema.into(),
            now_ms,
            ids: HashMap::new(),
            ends: Vec::new(),
            batch: Batch::default(),
            written: Written::default(),
            runtime,
        })
    }

    /// Runs statements of another part of Throng in the transaction.
    pub fn run<T>(&self, statements: impl AsyncFnOnce(&Client) -> T) -> T {
        self.runtime.block_on(statements(&self.session.client))
    }

    /// Runs a statement.
    fn execute(
        &self,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<(), LogTransferError> {
        let statement = of_schema(statement, &self.schema);
        self.runtime.block_on(self.session.client.execute(&statement, parameters))?;
        Ok(())
    }

    /// Adds topics by their names, before any message.
    ///
    /// # Errors
    /// If the database rejects it.
    pub fn add_topics<'a>(
        &mut self,
        names: impl Iterator<Item = &'a Name>,
    ) -> Result<(), LogTransferError> {
        let names: Vec<&str> = names.map(Name::as_str).collect();
        for names in names.chunks(BATCH_ROWS_MAX) {
            let insert = of_schema(INSERT_TOPICS, &self.schema);
            let parameters: [&(dyn ToSql + Sync); 1] = [&names];
            let rows = self.session.client.query(&insert, &parameters);
            for row in self.runtime.block_on(rows)? {
                let name: &str = row.try_get("name")?;
                self.ids.insert(name.into(), row.try_get("id")?);
            }
        }
        self.written.topics += names.len() as u64;
        Ok(())
    }

    /// Begins with the messages of a topic that was added.
    ///
    /// # Errors
    /// If the topic was not added.
    pub fn begin_topic(&mut self, topic: &LogTopic) -> Result<(), LogTransferError> {
        let id = self.ids.get(&topic.name).copied();
        let id = id.ok_or(LogTransferError::OutOfOrder)?;
        let &LogTopic { last_offset, floor, last_ms, messages_max, bytes_max, .. } = topic;
        let &LogTopic { name: _, seconds_max, compact, .. } = topic;
        self.ends.push(TopicEnd {
            id,
            last_offset,
            floor,
            compact,
            last_ms,
            messages_max,
            bytes_max,
            seconds_max,
            ..TopicEnd::default()
        });
        Ok(())
    }

    /// Adds the next message of the topic.
    ///
    /// # Errors
    /// If no topic was begun, or the database rejects the message.
    pub fn message(&mut self, message: &LogMessage<'_>) -> Result<(), LogTransferError> {
        let Some(topic) = self.ends.last_mut() else { return Err(LogTransferError::OutOfOrder) };
        topic.sequence += 1;
        let batch = &mut self.batch;
        batch.offsets.push(signed(message.offset));
        batch.topics.push(topic.id);
        batch.previous.push(signed(message.previous));
        batch.sequences.push(signed(topic.sequence));
        batch.totals.push(signed(topic.total));
        batch.at_ms.push(signed(message.at_ms));
        batch.expires_ms.push(message.expires_ms.map(signed));
        batch.records.push(message.record.into());
        batch.sizes.push(signed(message.bytes));
        batch.keys.push(message.key.map(Box::from));
        batch.removals.push(message.is_removal);
        batch.bytes += message.record.len();
        topic.total = topic.total.saturating_add(message.bytes);
        topic.last_ms = topic.last_ms.max(message.at_ms);
        match batch.bytes >= BATCH_BYTES_MAX || batch.offsets.len() == BATCH_ROWS_MAX {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Ends the messages of the topic. `floor` is the offset up to which messages are gone.
    ///
    /// # Errors
    /// If no topic was begun.
    pub fn end_topic(&mut self, floor: u64) -> Result<(), LogTransferError> {
        self.ends.last_mut().ok_or(LogTransferError::OutOfOrder)?.floor = floor;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), LogTransferError> {
        let batch = std::mem::take(&mut self.batch);
        if batch.offsets.is_empty() {
            return Ok(());
        }
        let records: Vec<&[u8]> = batch.records.iter().map(|record| &**record).collect();
        let keys: Vec<Option<&str>> = batch.keys.iter().map(Option::as_deref).collect();
        let parameters: [&(dyn ToSql + Sync); 11] = [
            &batch.offsets,
            &batch.topics,
            &batch.previous,
            &batch.sequences,
            &batch.totals,
            &batch.at_ms,
            &batch.expires_ms,
            &records,
            &batch.sizes,
            &keys,
            &batch.removals,
        ];
        let inserted = self.session.client.execute(&self.insert_messages, &parameters);
        self.written.messages += self.runtime.block_on(inserted)?;
        Ok(())
    }

    /// Adds the idempotency keys that last for `seconds`, and have not expired by the database's clock. The later of
    /// two keys of one name counts. Keys of topics that were not added are left out.
    ///
    /// # Errors
    /// If the database rejects them.
    pub fn add_keys(&mut self, keys: &[LogKey], seconds: u64) -> Result<(), LogTransferError> {
        let mut latest: HashMap<(i64, &str), (i64, i64)> = HashMap::new();
        for LogKey { topic, key, offset, at_ms } in keys {
            let expires_ms = at_ms.saturating_add(seconds.saturating_mul(1000));
            if let Some(id) = self.ids.get(topic).filter(|_| expires_ms > self.now_ms) {
                latest.insert((*id, key.as_str()), (signed(*offset), signed(expires_ms)));
            }
        }
        let latest: Vec<_> = latest.into_iter().collect();
        for keys in latest.chunks(BATCH_ROWS_MAX) {
            let topics: Vec<i64> = keys.iter().map(|((topic, _), _)| *topic).collect();
            let names: Vec<&str> = keys.iter().map(|((_, name), _)| *name).collect();
            let offsets: Vec<i64> = keys.iter().map(|(_, (offset, _))| *offset).collect();
            let expires: Vec<i64> = keys.iter().map(|(_, (_, expires_ms))| *expires_ms).collect();
            self.execute(INSERT_KEYS, &[&topics, &names, &offsets, &expires])?;
        }
        self.written.keys += latest.len() as u64;
        Ok(())
    }

    /// Adds users' cursors, each once.
    ///
    /// # Errors
    /// If the database rejects them.
    pub fn add_cursors(
        &mut self,
        cursors: &HashMap<(Name, Name), Cursor>,
    ) -> Result<(), LogTransferError> {
        let all: Vec<_> = cursors.iter().collect();
        for cursors in all.chunks(BATCH_ROWS_MAX) {
            let users: Vec<&str> = cursors.iter().map(|((user, _), _)| user.as_str()).collect();
            let topics: Vec<&str> = cursors.iter().map(|((_, topic), _)| topic.as_str()).collect();
            let acknowledged: Vec<Option<i64>> =
                cursors.iter().map(|(_, cursor)| cursor.acknowledged.map(signed)).collect();
            let given_up: Vec<i64> =
                cursors.iter().map(|(_, cursor)| signed(cursor.given_up.unwrap_or(0))).collect();
            self.execute(INSERT_CURSORS, &[&users, &topics, &acknowledged, &given_up])?;
            self.execute(COUNT_CURSORS, &[])?;
        }
        self.written.cursors += all.len() as u64;
        Ok(())
    }

    /// Adds retained messages, by topic.
    ///
    /// # Errors
    /// If the database rejects them.
    pub fn add_retained(
        &mut self,
        messages: &[(Name, RetainedWrite)],
    ) -> Result<(), LogTransferError> {
        let client = &self.session.client;
        for writes in messages.chunks(RETAINED_ROWS_MAX) {
            self.runtime.block_on(async {
                let retain = of_schema(RETAIN, &self.schema);
                retain_rows(client, &client.prepare(&retain).await?, writes).await.map(drop)
            })?;
        }
        self.written.retained += messages.len() as u64;
        Ok(())
    }

    /// Makes states of the messages of compacted topics.
    fn write_states(&self) -> Result<(), LogTransferError> {
        let compact: Vec<&TopicEnd> = self.ends.iter().filter(|end| end.compact).collect();
        for ends in compact.chunks(BATCH_ROWS_MAX) {
            let ids: Vec<i64> = ends.iter().map(|end| end.id).collect();
            let floors: Vec<i64> = ends.iter().map(|end| signed(end.floor)).collect();
            self.execute(UPDATE_COMPACT_TOPICS, &[&ids, &floors, &signed(self.now_ms)])?;
            self.execute(INSERT_STATES, &[&ids])?;
            self.execute(COUNT_STATES, &[&ids])?;
        }
        Ok(())
    }

    /// Completes the history, and commits it.
    ///
    /// # Errors
    /// If the database rejects it. Where the connection breaks during the commit, the history may be there.
    pub fn commit(mut self, head: LogHead) -> Result<Written, LogTransferError> {
        self.flush()?;
        for ends in self.ends.chunks(BATCH_ROWS_MAX) {
            let column = |value: fn(&TopicEnd) -> u64| -> Vec<i64> {
                ends.iter().map(|end| signed(value(end))).collect()
            };
            let ids: Vec<i64> = ends.iter().map(|end| end.id).collect();
            let seconds: Vec<i64> = ends.iter().map(|end| age(end.seconds_max)).collect();
            let parameters: [&(dyn ToSql + Sync); 8] = [
                &ids,
                // A topic without messages has the offset up to which they are gone.
                &column(|end| match end.sequence {
                    0 => end.last_offset.max(end.floor),
                    _ => end.last_offset,
                }),
                &column(|end| end.sequence),
                &column(|end| end.total),
                &column(|end| end.last_ms),
                &column(|end| end.messages_max),
                &column(|end| end.bytes_max),
                &seconds,
            ];
            self.execute(UPDATE_TOPICS, &parameters)?;
        }
        self.write_states()?;
        let update = "UPDATE {schema}.history_log SET epoch = $1, last_offset = $2, forgotten = $3";
        let (epoch, last) = (i64::from(head.epoch), signed(head.last_offset));
        self.execute(update, &[&epoch, &last, &signed(head.forgotten)])?;
        self.execute("UPDATE {schema}.history_trimmed SET through = $1", &[&last])?;
        let LogWriter { runtime, session, schema, written, .. } = self;
        runtime.block_on(async {
            for table in ["history_topics", "history_messages", "history_states"] {
                let analyze = of_schema(&format!("ANALYZE {{schema}}.{table}"), &schema);
                session.client.batch_execute(&analyze).await?;
            }
            let commit = session.client.batch_execute("COMMIT").await;
            commit.map_err(|error| LogTransferError::Unknown(DatabaseError::from(error)))?;
            session.close().await;
            Ok(written)
        })
    }
}
