//! A session with PostgreSQL for the outbox: its lock, and its statements.

use std::time::Duration;

use ::database::{DatabaseError, LOCK_CLASS, STEP_SECONDS, Session, connect, of_schema, step};
use tokio::time::timeout;
use tokio_postgres::Statement;
use tokio_postgres::types::ToSql;

use crate::SCHEMA;
use crate::drain::Finished;
use crate::outbox::Settings;
use crate::row::Row;

/// A session whose schema exists.
pub(crate) struct Database {
    session: Session,
    fetch: Statement,
    finish: Statement,
    trim: Statement,
    settings: Settings,
}

/// The result of a fetch.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// No transaction below this number ran.
    pub oldest: i64,
    /// The rows, in the order of their ids.
    pub rows: Vec<Row>,
    /// The age of the first row, in seconds.
    pub age_seconds: f64,
}

impl Database {
    /// Connects, and makes missing tables and functions.
    pub async fn open(settings: &Settings, password: &str) -> Result<Self, DatabaseError> {
        let session = connect(&settings.address, password, |_| ()).await?;
        let client = &session.client;
        let migration = SCHEMA.apply(client, &settings.schema, settings.address.user());
        let migrated = timeout(Duration::from_secs(STEP_SECONDS), migration).await;
        let found = migrated.map_err(|_| DatabaseError::Timeout(STEP_SECONDS))??;
        if found < SCHEMA.version() {
            let (from, to) = (found, SCHEMA.version());
            tracing::info!(schema = settings.schema, from, to, "the outbox's schema was migrated");
        }
        let prepare = |text: &str| of_schema(text, &settings.schema);
        let fetch = step(client.prepare(&prepare(include_str!("../sql/fetch.sql")))).await?;
        let finish = step(client.prepare(&prepare(include_str!("../sql/finish.sql")))).await?;
        let trim = step(client.prepare(&prepare(include_str!("../sql/trim.sql")))).await?;
        let settings = settings.clone();
        let database = Database { session, fetch, finish, trim, settings };
        database.check().await?;
        Ok(database)
    }

    /// Runs each statement on no rows, so that a missing right or a read-only database shows before rows are
    /// published that could not be deleted.
    async fn check(&self) -> Result<(), DatabaseError> {
        self.fetch(i64::MAX).await?;
        self.finish(&Finished::default()).await?;
        step(self.session.client.execute(&self.trim, &[&i64::MAX])).await?;
        Ok(())
    }

    /// Tries to get the lock. If it returns true, this session drains the outbox until it ends or
    /// [`unlock`](Self::unlock).
    pub async fn try_lock(&self) -> Result<bool, DatabaseError> {
        let lock = "SELECT pg_try_advisory_lock($1, hashtext($2))";
        let row =
            step(self.session.client.query_one(lock, &[&LOCK_CLASS, &self.lock_name()])).await?;
        Ok(row.try_get(0)?)
    }

    /// Gives the lock back.
    pub async fn unlock(&self) -> Result<(), DatabaseError> {
        let unlock = "SELECT pg_advisory_unlock($1, hashtext($2))";
        step(self.session.client.query_one(unlock, &[&LOCK_CLASS, &self.lock_name()])).await?;
        Ok(())
    }

    fn lock_name(&self) -> String {
        format!("drain {}", self.settings.schema)
    }

    /// Returns the first rows above an id.
    pub async fn fetch(&self, above: i64) -> Result<Fetched, DatabaseError> {
        let Settings { batch_rows_max, batch_bytes_max, row_bytes_max, .. } = &self.settings;
        let limits = [*batch_rows_max, *row_bytes_max, *batch_bytes_max];
        let [rows_max, row_bytes, bytes] = limits.map(|it| i64::try_from(it).unwrap_or(i64::MAX));
        let parameters: [&(dyn ToSql + Sync); 4] = [&above, &rows_max, &row_bytes, &bytes];
        let found = step(self.session.client.query(&self.fetch, &parameters)).await?;
        let mut fetched = Fetched { oldest: 0, rows: Vec::new(), age_seconds: 0.0 };
        for row in &found {
            fetched.oldest = row.try_get("oldest")?;
            let Some(id) = row.try_get::<_, Option<i64>>("id")? else { continue };
            if fetched.rows.is_empty() {
                fetched.age_seconds = row.try_get("age")?;
            }
            fetched.rows.push(Row {
                id,
                uid: row.try_get::<_, &str>("uid")?.into(),
                message: row.try_get::<_, Option<&str>>("message")?.map(Box::from),
                bytes: u64::try_from(row.try_get::<_, i32>("bytes")?).unwrap_or(0),
            });
        }
        Ok(fetched)
    }

    /// Deletes rows that are done, and records refused rows. Returns the number of the transaction.
    pub async fn finish(&self, finished: &Finished) -> Result<i64, DatabaseError> {
        let ids: Vec<i64> = finished.refused.iter().map(|(id, _)| *id).collect();
        let codes: Vec<&str> = finished.refused.iter().map(|(_, it)| &*it.code).collect();
        // Texts in PostgreSQL can't contain NUL.
        let reasons = finished.refused.iter().map(|(_, it)| it.text.replace('\0', "\u{fffd}"));
        let reasons: Vec<String> = reasons.collect();
        let all: Vec<i64> = finished.published.iter().chain(&ids).copied().collect();
        let parameters: [&(dyn ToSql + Sync); 4] = [&all, &ids, &codes, &reasons];
        let row = step(self.session.client.query_one(&self.finish, &parameters)).await?;
        if !ids.is_empty() {
            let max = i64::try_from(self.settings.refused_rows_max).unwrap_or(i64::MAX);
            step(self.session.client.execute(&self.trim, &[&max])).await?;
        }
        Ok(row.try_get(0)?)
    }

    /// Ends the session, and with it the lock.
    pub async fn close(self) {
        self.session.close().await;
    }
}
