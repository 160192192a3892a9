//! A session with PostgreSQL that has the statements of cursors.

use std::sync::Arc;

use database::{
    DatabaseError, Session, connect, of_schema, prepare_session, signed, step, unsigned, wake_for,
};
use history::Cursor;
use model::Name;
use tokio::sync::Notify;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};

use super::table::{CursorKey, Move};
use crate::postgres::OTHER_LOG;
use crate::session::unsigned_at;
use crate::settings::Settings;

/// The channel on which the SQL function notifies sessions of a commit.
const CHANNEL: &str = "throng_cursors";

/// The most cursors that are read at a time.
pub(super) const PAGE_CURSORS: usize = 1_000;

/// Cursors that moved after a change.
pub(super) struct Followed {
    /// The number of the last change of all.
    pub last: u64,
    pub cursors: Vec<(CursorKey, Cursor)>,
    /// The number of the change of the last of `cursors`.
    pub through: u64,
}

/// An open session.
pub(super) struct CursorDatabase {
    session: Session,
    move_cursors: Statement,
    follow: Statement,
}

impl CursorDatabase {
    /// Connects to a database that has the tables. A commit of another session wakes `moved`.
    pub async fn open(
        settings: &Settings,
        password: &str,
        moved: Option<Arc<Notify>>,
    ) -> Result<Self, DatabaseError> {
        let listens = moved.is_some();
        let session =
            connect(&settings.address, password, wake_for(&settings.schema, moved)).await?;
        let client = &session.client;
        prepare_session(client).await?;
        if listens {
            step(client.batch_execute(&format!("LISTEN {CHANNEL}"))).await?;
        }
        let prepare =
            async |text: &str| step(client.prepare(&of_schema(text, &settings.schema))).await;
        let move_cursors =
            prepare("SELECT * FROM {schema}.history_move_cursors($1, $2, $3, $4, $5, $6)").await?;
        let follow = prepare(include_str!("../../sql/follow_cursors.sql")).await?;
        Ok(CursorDatabase { session, move_cursors, follow })
    }

    /// Moves cursors. Returns where they are now.
    pub async fn move_cursors(
        &self,
        epoch: u32,
        moves: &[(CursorKey, Move)],
    ) -> Result<Vec<Cursor>, DatabaseError> {
        let users: Vec<&str> = moves.iter().map(|((user, _), _)| user.as_str()).collect();
        let topics: Vec<&str> = moves.iter().map(|((_, topic), _)| topic.as_str()).collect();
        let begins: Vec<Option<i64>> = moves.iter().map(|(_, it)| it.begin.map(signed)).collect();
        let acknowledged: Vec<Option<i64>> =
            moves.iter().map(|(_, it)| it.acknowledged.map(signed)).collect();
        let given_up: Vec<i64> = moves.iter().map(|(_, it)| signed(it.given_up)).collect();
        let epoch = i64::from(epoch);
        let parameters: [&(dyn ToSql + Sync); 6] =
            [&epoch, &users, &topics, &begins, &acknowledged, &given_up];
        let found = step(self.session.client.query_opt(&self.move_cursors, &parameters)).await?;
        let Some(row) = found else { return Err(DatabaseError::Statement(OTHER_LOG.into())) };
        let acknowledged: Vec<Option<i64>> = row.try_get("new_acknowledged")?;
        let given_up: Vec<i64> = row.try_get("new_given_up")?;
        let cursors = acknowledged.into_iter().zip(given_up);
        Ok(cursors.map(|(acknowledged, given_up)| cursor(acknowledged, given_up)).collect())
    }

    /// Reads cursors that moved after a change, in the order of their changes.
    pub async fn follow(&self, change: u64) -> Result<Followed, DatabaseError> {
        let (change, max) = (signed(change), PAGE_CURSORS as i64);
        let parameters: [&(dyn ToSql + Sync); 2] = [&change, &max];
        let rows = step(self.session.client.query(&self.follow, &parameters)).await?;
        let Some(first) = rows.first() else {
            return Err(DatabaseError::Statement("the table history_cursors_log is empty".into()));
        };
        let last = unsigned_at(first, "last_change")?;
        let mut followed = Followed { last, cursors: Vec::new(), through: unsigned(change) };
        for row in &rows {
            let Some(user) = row.try_get::<_, Option<&str>>("user_name")? else { continue };
            followed.cursors.push(moved_cursor(user, row)?);
            followed.through = unsigned_at(row, "change")?;
        }
        Ok(followed)
    }

    /// Ends the session.
    pub async fn close(self) {
        self.session.close().await;
    }
}

fn cursor(acknowledged: Option<i64>, given_up: i64) -> Cursor {
    let given_up = Some(unsigned(given_up)).filter(|offset| *offset > 0);
    Cursor { acknowledged: acknowledged.map(unsigned), given_up }
}

fn moved_cursor(user: &str, row: &Row) -> Result<(CursorKey, Cursor), DatabaseError> {
    let topic = Name::from(row.try_get::<_, &str>("topic")?);
    let cursor = cursor(row.try_get("acknowledged")?, row.try_get("given_up")?);
    Ok(((Name::from(user), topic), cursor))
}
