//! A session with PostgreSQL that has the statements of MQTT sessions.

use std::time::Duration;

use database::{
    DatabaseError, Session, connect, of_schema, prepare_session, signed, step, unsigned,
};
use sessions::Part;
use tokio::time::sleep;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};

use super::Owner;
use super::queue::SessionWrite;
use crate::settings::Settings;

/// The most sessions that are read at a time.
const PAGE_ROWS: i64 = 256;

/// Records that one statement deletes at most.
const DELETED_ROWS: i64 = 1_000;

const TAKE: &str = "SELECT * FROM {schema}.history_take_mqtt_owner($1, $2, $3, $4)";

const SAVE: &str = "SELECT {schema}.history_save_mqtt_sessions($1, $2, $3, $4, $5, $6, $7, $8)";

const PAGE: &str = "SELECT s.key, s.session, s.progress, s.number, \
     (SELECT l.last_offset FROM {schema}.history_log AS l) AS top FROM {schema}.history_mqtt_sessions AS s \
     WHERE s.owner = $1 AND s.key > $2 ORDER BY s.owner, s.key LIMIT $3";

const LOCK: &str = "SELECT pg_try_advisory_lock({schema}.history_mqtt_owner_lock($1)) AS is_locked, \
     EXISTS (SELECT FROM {schema}.history_mqtt_owners AS o WHERE o.id = $1 AND o.runs = $2) AS is_owner";

const DELETE: &str = "DELETE FROM {schema}.history_mqtt_sessions AS d WHERE d.owner = $1 AND d.key IN ( \
     SELECT s.key FROM {schema}.history_mqtt_sessions AS s WHERE s.owner = $1 \
     AND EXISTS (SELECT FROM {schema}.history_mqtt_owners AS o WHERE o.id = $1 AND o.runs = $3) \
     ORDER BY s.owner, s.key LIMIT $2)";

/// How often a process tries to get the lock of its owner.
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// An owner that this process has from now on.
pub(super) struct TakenOwner {
    pub owner: Owner,
    /// The epoch of the log in which the sessions have their positions.
    pub log_epoch: u64,
    /// True if it is that of an earlier process, which has ended.
    pub is_earlier: bool,
}

/// A record of a session, by the key of the session.
pub(super) type SessionRow = (Part, String, Vec<u8>);

/// Records of sessions, in the order of their keys.
pub(super) struct SessionPage {
    pub records: Vec<SessionRow>,
    /// The last key; `None` if there are no more.
    pub last: Option<Vec<u8>>,
    /// The highest number of the records.
    pub number: u64,
    /// The last offset of the log.
    pub top: u64,
}

/// An open session.
pub(super) struct SessionDatabase {
    session: Session,
    save: Statement,
    schema: String,
}

impl SessionDatabase {
    /// Connects to a database that has the tables.
    pub async fn open(settings: &Settings, password: &str) -> Result<Self, DatabaseError> {
        let session = connect(&settings.address, password, |_| ()).await?;
        prepare_session(&session.client).await?;
        let schema = settings.schema.clone();
        let save = step(session.client.prepare(&of_schema(SAVE, &schema))).await?;
        Ok(SessionDatabase { session, save, schema })
    }

    fn text(&self, statement: &str) -> String {
        of_schema(statement, &self.schema)
    }

    async fn execute(
        &self,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, DatabaseError> {
        step(self.session.client.execute(&self.text(statement), parameters)).await
    }

    /// Returns an owner of this node whose process has ended. If there is none, makes one with `makes_new`. `locked` are the
    /// owners whose locks this session has.
    pub async fn take_owner(
        &self,
        node: &str,
        log_epoch: u32,
        locked: &[i64],
        makes_new: bool,
    ) -> Result<Option<TakenOwner>, DatabaseError> {
        let epoch = i64::from(log_epoch);
        let parameters: [&(dyn ToSql + Sync); 4] = [&node, &epoch, &locked, &makes_new];
        let row = step(self.session.client.query_opt(&self.text(TAKE), &parameters)).await?;
        let taken = |row: Row| {
            Ok(TakenOwner {
                owner: Owner { id: row.try_get("id")?, runs: row.try_get("runs")? },
                log_epoch: unsigned(row.try_get("log_epoch")?),
                is_earlier: row.try_get("is_earlier")?,
            })
        };
        row.map(taken).transpose()
    }

    /// Returns true if the database has an owner of this node.
    pub async fn has_owner(&self, node: &str) -> Result<bool, DatabaseError> {
        let text = "SELECT EXISTS (SELECT FROM {schema}.history_mqtt_owners WHERE node = $1)";
        let row = step(self.session.client.query_one(&self.text(text), &[&node])).await?;
        Ok(row.try_get(0)?)
    }

    /// Waits for the lock of this process's owner. PostgreSQL may still run a statement of this process's lost session, which
    /// would overwrite later records. The lock waits for that session's end. Returns false if another process is the owner.
    pub async fn lock(&self, owner: Owner) -> Result<bool, DatabaseError> {
        loop {
            let (client, text) = (&self.session.client, self.text(LOCK));
            let row = step(client.query_one(&text, &[&owner.id, &owner.runs])).await?;
            if !row.try_get::<_, bool>("is_owner")? {
                return Ok(false);
            }
            if row.try_get::<_, bool>("is_locked")? {
                return Ok(true);
            }
            sleep(LOCK_INTERVAL).await;
        }
    }

    /// Writes changes, each of another session. Returns false, and writes nothing, if another process is the owner.
    pub async fn save(
        &self,
        owner: Owner,
        writes: &[(Box<str>, SessionWrite)],
    ) -> Result<bool, DatabaseError> {
        let keys: Vec<&[u8]> = writes.iter().map(|(key, _)| key.as_bytes()).collect();
        let record = |it: &Option<Option<Vec<u8>>>| it.clone().flatten();
        let changes = writes.iter().map(|(_, write)| write);
        let sessions: Vec<_> = changes.clone().map(|it| record(&it.session)).collect();
        let progress: Vec<_> = changes.clone().map(|it| record(&it.progress)).collect();
        let sets_session: Vec<bool> = changes.clone().map(|it| it.session.is_some()).collect();
        let sets_progress: Vec<bool> = changes.clone().map(|it| it.progress.is_some()).collect();
        let numbers: Vec<i64> = changes.map(|it| signed(it.number)).collect();
        let parameters: [&(dyn ToSql + Sync); 8] = [
            &owner.id,
            &owner.runs,
            &keys,
            &sessions,
            &progress,
            &sets_session,
            &sets_progress,
            &numbers,
        ];
        let row = step(self.session.client.query_one(&self.save, &parameters)).await?;
        Ok(row.try_get(0)?)
    }

    /// Reads records of an owner's sessions, after a key. Progress without a session is left out.
    pub async fn page(&self, owner: i64, after: &[u8]) -> Result<SessionPage, DatabaseError> {
        let parameters: [&(dyn ToSql + Sync); 3] = [&owner, &after, &PAGE_ROWS];
        let rows = step(self.session.client.query(&self.text(PAGE), &parameters)).await?;
        let mut page = SessionPage { records: Vec::new(), last: None, number: 0, top: 0 };
        for row in &rows {
            let bytes: &[u8] = row.try_get("key")?;
            page.number = page.number.max(unsigned(row.try_get("number")?));
            page.top = unsigned(row.try_get("top")?);
            let Some(session) = row.try_get::<_, Option<Vec<u8>>>("session")? else { continue };
            let key = String::from_utf8_lossy(bytes).into_owned();
            if let Some(progress) = row.try_get::<_, Option<Vec<u8>>>("progress")? {
                page.records.push((Part::Progress, key.clone(), progress));
            }
            page.records.push((Part::Session, key, session));
        }
        if rows.len() as i64 == PAGE_ROWS
            && let Some(row) = rows.last()
        {
            page.last = Some(row.try_get("key")?);
        }
        Ok(page)
    }

    /// Deletes some of an owner's records. Returns true if that were all: then the owner is deleted, too. An owner that another
    /// process is by now stays.
    pub async fn delete_some(&self, owner: Owner) -> Result<bool, DatabaseError> {
        let parameters: [&(dyn ToSql + Sync); 3] = [&owner.id, &DELETED_ROWS, &owner.runs];
        if self.execute(DELETE, &parameters).await? >= DELETED_ROWS as u64 {
            return Ok(false);
        }
        let delete = "DELETE FROM {schema}.history_mqtt_owners WHERE id = $1 AND runs = $2";
        self.execute(delete, &[&owner.id, &owner.runs]).await?;
        Ok(true)
    }

    /// Deletes progress whose session has ended. Call this before this process writes as this owner.
    pub async fn delete_orphans(&self, owner: Owner) -> Result<(), DatabaseError> {
        let delete =
            "DELETE FROM {schema}.history_mqtt_sessions WHERE owner = $1 AND session IS NULL";
        self.execute(delete, &[&owner.id]).await.map(drop)
    }

    /// Records that all sessions of an owner have their positions in the log of this epoch.
    pub async fn set_log_epoch(&self, owner: i64, log_epoch: u32) -> Result<(), DatabaseError> {
        let update = "UPDATE {schema}.history_mqtt_owners SET log_epoch = $2 WHERE id = $1";
        self.execute(update, &[&owner, &i64::from(log_epoch)]).await.map(drop)
    }

    /// Ends the session.
    pub async fn close(self) {
        self.session.close().await;
    }
}
