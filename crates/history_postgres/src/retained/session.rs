//! A session with PostgreSQL that has the statements of retained messages.

use std::sync::Arc;

use database::{
    DatabaseError, Session, connect, of_schema, prepare_session, signed, step, unsigned, wake_for,
};
use model::Name;
use sessions::{RetainedRow, RetainedWrite};
use tokio::sync::Notify;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use crate::session::unsigned_at;
use crate::settings::Settings;

/// The channel on which the SQL function notifies sessions of a commit.
const CHANNEL: &str = "throng_retained";

/// The statement of [`retain_rows`].
pub(crate) const RETAIN: &str = "SELECT * FROM {schema}.history_mqtt_retain($1, $2, $3, $4, $5)";

const ROWS_OF: &str = "SELECT t.topic, r.record FROM unnest($1::text[]) AS t (topic) \
     LEFT JOIN {schema}.history_mqtt_retained AS r ON r.topic = t.topic";

/// The most rows that are read at a time.
pub(super) const PAGE_ROWS: usize = 256;

/// Rows that changed after a change.
pub(super) struct Followed {
    /// The number of the last change of all.
    pub last: u64,
    /// Rows of removed messages are deleted up to this change.
    pub forgotten: u64,
    pub rows: Vec<RetainedRow>,
    /// The number of the change of the last of `rows`.
    pub through: u64,
}

/// An open session.
pub(super) struct RetainedDatabase {
    session: Session,
    retain: Statement,
    follow: Statement,
    page: Statement,
    rows_of: Statement,
    trim: Statement,
}

impl RetainedDatabase {
    /// Connects to a database that has the tables. A session that writes needs `writer`: the task that commits wake, and
    /// the key of this process's advisory lock.
    pub async fn open(
        settings: &Settings,
        password: &str,
        writer: Option<(Arc<Notify>, i64)>,
    ) -> Result<Self, DatabaseError> {
        let (changed, writer) = writer.unzip();
        let wake = wake_for(&settings.schema, changed);
        let session = connect(&settings.address, password, wake).await?;
        let client = &session.client;
        prepare_session(client).await?;
        if let Some(writer) = writer {
            // PostgreSQL may still run a statement of this process's lost session, which would overwrite later rows. The
            // lock waits for that session's end.
            step(client.execute("SELECT pg_advisory_lock($1)", &[&writer])).await?;
            step(client.batch_execute(&format!("LISTEN {CHANNEL}"))).await?;
        }
        let prepare =
            async |text: &str| step(client.prepare(&of_schema(text, &settings.schema))).await;
        let retain = prepare(RETAIN).await?;
        let follow = prepare(include_str!("../../sql/follow_retained.sql")).await?;
        let page = prepare(include_str!("../../sql/page_retained.sql")).await?;
        let rows_of = prepare(ROWS_OF).await?;
        let trim = prepare("SELECT {schema}.history_trim_mqtt_retained($1)").await?;
        Ok(RetainedDatabase { session, retain, follow, page, rows_of, trim })
    }

    /// Writes rows, each of another topic. Returns the rows that have rejected a write.
    pub async fn retain(
        &self,
        writes: &[(Name, RetainedWrite)],
    ) -> Result<Vec<RetainedRow>, DatabaseError> {
        retain_rows(&self.session.client, &self.retain, writes).await
    }

    /// Reads rows that changed after a change, in the order of their changes: at most `rows_max`.
    pub async fn follow(&self, change: u64, rows_max: usize) -> Result<Followed, DatabaseError> {
        let parameters: [&(dyn ToSql + Sync); 2] = [&signed(change), &signed(rows_max as u64)];
        let found = step(self.session.client.query(&self.follow, &parameters)).await?;
        let Some(first) = found.first() else {
            return Err(DatabaseError::Statement(
                "the table history_mqtt_retained_log is empty".into(),
            ));
        };
        let (last, forgotten) =
            (unsigned_at(first, "last_change")?, unsigned_at(first, "forgotten")?);
        let mut followed = Followed { last, forgotten, rows: Vec::new(), through: change };
        for row in &found {
            if row.try_get::<_, Option<&str>>("topic")?.is_none() {
                continue;
            }
            followed.rows.push(retained_row(row)?);
            followed.through = unsigned_at(row, "change")?;
        }
        Ok(followed)
    }

    /// Begins to read the table as it is now. Returns its last change.
    pub async fn begin_snapshot(&self) -> Result<u64, DatabaseError> {
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        step(self.session.client.batch_execute(begin)).await?;
        // No change has such a number, so that only the last change is read.
        Ok(self.follow(u64::MAX >> 1, 1).await?.last)
    }

    /// Reads rows with messages, after a topic by name: at most [`PAGE_ROWS`].
    pub async fn page(&self, after: &str) -> Result<Vec<RetainedRow>, DatabaseError> {
        let parameters: [&(dyn ToSql + Sync); 2] = [&after, &signed(PAGE_ROWS as u64)];
        let rows = step(self.session.client.query(&self.page, &parameters)).await?;
        rows.iter().map(retained_row).collect()
    }

    /// Reads the rows of topics. A topic without a row has no message.
    pub async fn rows_of(&self, topics: &[Name]) -> Result<Vec<RetainedRow>, DatabaseError> {
        let topics: Vec<&str> = topics.iter().map(|topic| topic.as_str()).collect();
        let rows = step(self.session.client.query(&self.rows_of, &[&topics])).await?;
        rows.iter().map(retained_row).collect()
    }

    /// Ends the snapshot.
    pub async fn end_snapshot(&self) -> Result<(), DatabaseError> {
        step(self.session.client.batch_execute("COMMIT")).await
    }

    /// Deletes rows of messages that were removed or expired some time ago, at most `rows_max` of each kind. Returns the
    /// larger of the two counts.
    pub async fn trim(&self, rows_max: u64) -> Result<u64, DatabaseError> {
        let row = step(self.session.client.query_one(&self.trim, &[&signed(rows_max)])).await?;
        Ok(unsigned(row.try_get(0)?))
    }

    /// Ends the session.
    pub async fn close(self) {
        self.session.close().await;
    }
}

/// Writes rows, each of another topic, by the prepared statement [`RETAIN`]. Returns the rows that have rejected a write.
pub(crate) async fn retain_rows(
    client: &Client,
    retain: &Statement,
    writes: &[(Name, RetainedWrite)],
) -> Result<Vec<RetainedRow>, DatabaseError> {
    let topics: Vec<&str> = writes.iter().map(|(topic, _)| topic.as_str()).collect();
    let records: Vec<Option<&[u8]>> =
        writes.iter().map(|(_, write)| write.record.as_deref()).collect();
    let expires: Vec<Option<i64>> =
        writes.iter().map(|(_, write)| write.expires_ms.map(signed)).collect();
    let offsets: Vec<Option<i64>> =
        writes.iter().map(|(_, write)| write.log_offset.map(signed)).collect();
    let yields: Vec<bool> = writes.iter().map(|(_, write)| write.yields).collect();
    let parameters: [&(dyn ToSql + Sync); 5] = [&topics, &records, &expires, &offsets, &yields];
    let row = step(client.query_one(retain, &parameters)).await?;
    let topics: Vec<&str> = row.try_get("rejecting_topics")?;
    let records: Vec<Option<Vec<u8>>> = row.try_get("rejecting_records")?;
    let rows = topics.into_iter().zip(records);
    Ok(rows.map(|(topic, record)| RetainedRow { topic: topic.into(), record }).collect())
}

fn retained_row(row: &Row) -> Result<RetainedRow, DatabaseError> {
    let topic = Name::from(row.try_get::<_, &str>("topic")?);
    Ok(RetainedRow { topic, record: row.try_get("record")? })
}
