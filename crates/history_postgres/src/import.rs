//! Reads a whole history from a database, as of one moment, while servers go on.

use std::pin::pin;

use database::{Address, Session, connect, of_schema, prepare_session, unsigned};
use futures_util::StreamExt;
use history::Cursor;
use model::Name;
use store::{LogHead, LogKey, LogRow, LogTopic};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use crate::SCHEMA;
use crate::session::{epoch_of, unsigned_at};
use crate::transfer::{BULK, LogTransferError, runtime};

/// Topics without an offset never had a message.
const TOPICS: &str = "SELECT t.id, t.name, {schema}.history_retained_after(t) AS retained_after, \
     {schema}.history_floor(t) AS floor, t.last_offset, t.last_ms, t.messages_max, t.bytes_max, t.seconds_max, t.compact \
     FROM {schema}.history_topics AS t WHERE t.last_offset > 0 ORDER BY t.id";

/// A message of a compacted topic counts as long as it is a state.
const MESSAGES: &str = "SELECT m.topic_id, m.log_offset, m.at_ms, m.record FROM {schema}.history_messages AS m \
     JOIN {schema}.history_topics AS t ON t.id = m.topic_id \
     LEFT JOIN {schema}.history_states AS s ON s.topic_id = m.topic_id AND s.log_offset = m.log_offset \
     WHERE m.record IS NOT NULL AND (NOT t.compact OR s.log_offset IS NOT NULL) ORDER BY m.topic_id, m.log_offset";

const KEYS: &str = "SELECT t.name, k.key, k.log_offset, k.expires_ms \
     FROM {schema}.history_keys AS k JOIN {schema}.history_topics AS t ON t.id = k.topic_id \
     WHERE k.expires_ms > floor(extract(epoch FROM transaction_timestamp()) * 1000)::bigint";

const CURSORS: &str =
    "SELECT user_name, topic, acknowledged, given_up FROM {schema}.history_cursors";

/// What has expired does not count.
const RETAINED: &str = "SELECT topic, record FROM {schema}.history_mqtt_retained WHERE record IS NOT NULL AND \
     (expires_ms IS NULL OR expires_ms > floor(extract(epoch FROM transaction_timestamp()) * 1000)::bigint)";

const HEAD: &str = "SELECT epoch, last_offset, forgotten FROM {schema}.history_log";

/// A history in PostgreSQL as of one moment.
pub struct LogReader {
    // The session ends before the runtime.
    session: Session,
    schema: String,
    head: LogHead,
    runtime: tokio::runtime::Runtime,
}

/// A topic, and its number in the database.
struct NumberedTopic {
    id: i64,
    /// Its rule retains no message up to this offset.
    retained_after: u64,
    topic: LogTopic,
}

impl LogReader {
    /// Connects, and begins a transaction that sees one moment. It waits for no server, and no server waits for it.
    ///
    /// # Errors
    /// If the database can't be used, or has no history of this version.
    pub fn begin(
        address: &Address,
        password: &str,
        schema: &str,
    ) -> Result<Self, LogTransferError> {
        let runtime = runtime()?;
        let (session, head) = runtime.block_on(async {
            let session = connect(address, password, |_| ()).await?;
            let client = &session.client;
            let (found, expected) = (SCHEMA.found(client, schema).await?, SCHEMA.version());
            if found != expected {
                return Err(LogTransferError::NoHistory { schema: schema.into(), found, expected });
            }
            prepare_session(client).await?;
            client.batch_execute(BULK).await?;
            client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
            let row = client.query_one(&of_schema(HEAD, schema), &[]).await?;
            let (last_offset, forgotten) =
                (unsigned_at(&row, "last_offset")?, unsigned_at(&row, "forgotten")?);
            Ok((session, LogHead { epoch: epoch_of(&row)?, last_offset, forgotten }))
        })?;
        Ok(LogReader { session, schema: schema.into(), head, runtime })
    }

    /// Returns the state of the log.
    pub fn head(&self) -> LogHead {
        self.head
    }

    /// Runs statements of another part of Throng in the transaction.
    pub fn run<T>(&self, statements: impl AsyncFnOnce(&Client) -> T) -> T {
        self.runtime.block_on(statements(&self.session.client))
    }

    fn topics(&self) -> Result<Vec<NumberedTopic>, LogTransferError> {
        let topics = of_schema(TOPICS, &self.schema);
        let rows = self.runtime.block_on(self.session.client.query(&topics, &[]))?;
        rows.iter().map(numbered_topic).collect()
    }

    /// Passes all topics to `each`, each with the messages that its rule retains, in the order of their offsets.
    ///
    /// # Errors
    /// If the database fails, or `each` does.
    pub fn rows<E: From<LogTransferError>>(
        &self,
        mut each: impl FnMut(LogRow<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let topics = self.topics()?;
        let mut next = topics.iter();
        let mut current: Option<&NumberedTopic> = None;
        let messages = of_schema(MESSAGES, &self.schema);
        let none: [&(dyn ToSql + Sync); 0] = [];
        let read = self.session.client.query_raw(&messages, none);
        let mut rows = pin!(self.runtime.block_on(read).map_err(LogTransferError::from)?);
        while let Some(row) = self.runtime.block_on(rows.next()) {
            let row = row.map_err(LogTransferError::from)?;
            let id: i64 = row.try_get("topic_id").map_err(LogTransferError::from)?;
            let offset = unsigned_at(&row, "log_offset").map_err(LogTransferError::from)?;
            while current.is_none_or(|topic| topic.id < id)
                && let Some(topic) = next.next()
            {
                each(LogRow::Topic(&topic.topic))?;
                current = Some(topic);
            }
            if current.is_some_and(|topic| topic.id == id && offset > topic.retained_after) {
                each(message(&row)?)?;
            }
        }
        next.try_for_each(|topic| each(LogRow::Topic(&topic.topic)))
    }

    /// Passes all users' cursors to `each`: user, topic, and cursor.
    ///
    /// # Errors
    /// If the database fails, or `each` does.
    pub fn cursors<E: From<LogTransferError>>(
        &self,
        mut each: impl FnMut(Name, Name, Cursor) -> Result<(), E>,
    ) -> Result<(), E> {
        let cursors = of_schema(CURSORS, &self.schema);
        let none: [&(dyn ToSql + Sync); 0] = [];
        let read = self.session.client.query_raw(&cursors, none);
        let mut rows = pin!(self.runtime.block_on(read).map_err(LogTransferError::from)?);
        while let Some(row) = self.runtime.block_on(rows.next()) {
            let (user, topic, cursor) = cursor(&row.map_err(LogTransferError::from)?)?;
            each(user, topic, cursor)?;
        }
        Ok(())
    }

    /// Returns the idempotency keys that have not expired. They were published `seconds` before they expire.
    ///
    /// # Errors
    /// If the database fails.
    pub fn keys(&self, seconds: u64) -> Result<Vec<LogKey>, LogTransferError> {
        let keys = of_schema(KEYS, &self.schema);
        let rows = self.runtime.block_on(self.session.client.query(&keys, &[]))?;
        let key = |row: &Row| {
            let expires_ms = unsigned_at(row, "expires_ms")?;
            Ok(LogKey {
                topic: Name::from(row.try_get::<_, &str>("name")?),
                key: Name::from(row.try_get::<_, &str>("key")?),
                offset: unsigned_at(row, "log_offset")?,
                at_ms: expires_ms.saturating_sub(seconds.saturating_mul(1000)),
            })
        };
        rows.iter().map(key).collect()
    }

    /// Passes the retained messages to `each`: the topic and the record.
    ///
    /// # Errors
    /// If the database fails, or `each` does.
    pub fn retained<E: From<LogTransferError>>(
        &self,
        mut each: impl FnMut(Name, Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let retained = of_schema(RETAINED, &self.schema);
        let rows = self.runtime.block_on(self.session.client.query(&retained, &[]));
        for row in rows.map_err(LogTransferError::from)? {
            let (topic, record) = retained_row(&row)?;
            each(topic, record)?;
        }
        Ok(())
    }
}

fn retained_row(row: &Row) -> Result<(Name, Vec<u8>), LogTransferError> {
    Ok((Name::from(row.try_get::<_, &str>("topic")?), row.try_get("record")?))
}

fn numbered_topic(row: &Row) -> Result<NumberedTopic, LogTransferError> {
    let topic = LogTopic {
        name: Name::from(row.try_get::<_, &str>("name")?),
        floor: unsigned_at(row, "floor")?,
        last_offset: unsigned_at(row, "last_offset")?,
        last_ms: unsigned_at(row, "last_ms")?,
        messages_max: unsigned_at(row, "messages_max")?,
        bytes_max: unsigned_at(row, "bytes_max")?,
        seconds_max: unsigned_at(row, "seconds_max")?,
        compact: row.try_get("compact")?,
    };
    let retained_after = unsigned_at(row, "retained_after")?;
    Ok(NumberedTopic { id: row.try_get("id")?, retained_after, topic })
}

fn cursor(row: &Row) -> Result<(Name, Name, Cursor), LogTransferError> {
    let name =
        |column: &str| Ok::<_, LogTransferError>(Name::from(row.try_get::<_, &str>(column)?));
    let acknowledged = row.try_get::<_, Option<i64>>("acknowledged")?.map(unsigned);
    let given_up = Some(unsigned_at(row, "given_up")?).filter(|offset| *offset > 0);
    Ok((name("user_name")?, name("topic")?, Cursor { acknowledged, given_up }))
}

fn message(row: &Row) -> Result<LogRow<'_>, LogTransferError> {
    Ok(LogRow::Message {
        offset: unsigned_at(row, "log_offset")?,
        at_ms: unsigned_at(row, "at_ms")?,
        record: row.try_get("record")?,
    })
}
