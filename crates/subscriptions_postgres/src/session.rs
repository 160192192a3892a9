//! A session with PostgreSQL that has the statements of subscriptions.

use std::sync::Arc;

use database::{
    DatabaseError, STEP_SECONDS, Session, connect, of_schema, prepare_session, signed, step,
    unsigned, wake_for,
};
use model::Name;
use tokio::sync::Notify;
use tokio::time::{Duration, timeout};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};

use crate::SCHEMA;
use crate::edit::{DatabaseEditError, EditOutcome, Edits, UserEdit};
use crate::settings::Settings;

/// The channel on which the SQL function notifies sessions of a commit.
const CHANNEL: &str = "throng_subscriptions";

/// Users that are read at a time. With 1,000 topics of 20 bytes each they take 5 MiB.
pub(crate) const PAGE_USERS: usize = 256;

/// Separates names of topics in a parameter: no name has a control character.
pub(crate) const SEPARATOR: &str = "\n";

/// The last change that a process has applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// The epoch of the table; 0 if no table is known.
    pub epoch: u32,
    /// The number of the change.
    pub change: u64,
}

/// A user's topics in the database.
#[derive(Debug, PartialEq, Eq)]
pub struct UserTopics {
    /// The user.
    pub user: Name,
    /// The user's topics. Empty if the user has none any more.
    pub topics: Vec<Name>,
}

/// The users who changed after a position.
pub(crate) struct Followed {
    /// The last change of all.
    pub last: Position,
    /// Rows of users without topics are deleted up to this change.
    pub forgotten: u64,
    pub users: Vec<UserTopics>,
    /// The change of the last of `users`.
    pub through: u64,
}

/// Why edits are not known to be made.
pub(crate) struct Failure {
    /// The error for the caller.
    pub reply: DatabaseEditError,
    /// The error of the session; `None` if the database has rejected the edits by a limit.
    pub session: Option<DatabaseError>,
}

/// An open session.
pub(crate) struct Database {
    session: Session,
    edit: Statement,
    follow: Statement,
    page: Statement,
    trim: Statement,
}

fn size(number: i64) -> usize {
    usize::try_from(number).unwrap_or(0)
}

impl Database {
    /// Connects, and creates missing tables and functions. A commit of another session wakes `changed`.
    pub async fn open(
        settings: &Settings,
        password: &str,
        changed: Option<Arc<Notify>>,
    ) -> Result<Self, DatabaseError> {
        let listens = changed.is_some();
        let wake = wake_for(&settings.schema, changed);
        let session = connect(&settings.address, password, wake).await?;
        let client = &session.client;
        let migration = SCHEMA.apply(client, &settings.schema, settings.address.user());
        let migrated = timeout(Duration::from_secs(STEP_SECONDS), migration).await;
        let found = migrated.map_err(|_| DatabaseError::Timeout(STEP_SECONDS))??;
        if found < SCHEMA.version() {
            let (from, to) = (found, SCHEMA.version());
            tracing::info!(
                schema = settings.schema,
                from,
                to,
                "the subscriptions' schema was migrated"
            );
        }
        prepare_session(client).await?;
        if listens {
            step(client.batch_execute(&format!("LISTEN {CHANNEL}"))).await?;
        }
        let text = |text: &str| of_schema(text, &settings.schema);
        let prepare = async |text: String| step(client.prepare(&text)).await;
        let edit = "SELECT * FROM {schema}.subscriptions_edit($1, $2, $3, $4, $5, $6, $7)";
        let edit = prepare(text(edit)).await?;
        let follow = prepare(text(include_str!("../sql/follow.sql"))).await?;
        let page = prepare(text(include_str!("../sql/page.sql"))).await?;
        let trim = prepare(text("SELECT {schema}.subscriptions_trim($1)")).await?;
        Ok(Database { session, edit, follow, page, trim })
    }

    /// Makes edits in one commit.
    ///
    /// # Errors
    /// If none was made, or the reply was lost.
    pub async fn edit(&self, edits: &Edits) -> Result<Vec<EditOutcome>, Box<Failure>> {
        let Edits { edits, all_or_nothing, topics_max, total_max } = edits;
        let users: Vec<&str> = edits.iter().map(|edit| &*edit.user).collect();
        let removes_all: Vec<bool> = edits.iter().map(|edit| edit.removes_all).collect();
        let texts = |of: fn(&UserEdit) -> &[Name]| -> Vec<String> {
            edits.iter().map(|edit| of(edit).join(SEPARATOR)).collect()
        };
        let (removes, adds) = (texts(|edit| &edit.removes), texts(|edit| &edit.adds));
        let (topics_max, total_max) = (signed(*topics_max as u64), signed(*total_max));
        let parameters: [&(dyn ToSql + Sync); 7] =
            [&users, &removes_all, &removes, &adds, all_or_nothing, &topics_max, &total_max];
        let call = self.session.client.query_one(&self.edit, &parameters);
        let row = match timeout(Duration::from_secs(STEP_SECONDS), call).await {
            Ok(Ok(row)) => row,
            Ok(Err(error)) => return Err(rejection(error)),
            Err(_) => {
                let error = DatabaseError::Timeout(STEP_SECONDS);
                let reply = DatabaseEditError::Unconfirmed(error.to_string());
                return Err(Box::new(Failure { reply, session: Some(error) }));
            }
        };
        outcomes(&row).map_err(rejection)
    }

    /// Returns users who changed after a change, at most `users_max`.
    pub async fn follow(&self, after: u64, users_max: usize) -> Result<Followed, DatabaseError> {
        let parameters: [&(dyn ToSql + Sync); 2] = [&signed(after), &signed(users_max as u64)];
        let rows = step(self.session.client.query(&self.follow, &parameters)).await?;
        let mut followed = Followed {
            last: Position::default(),
            forgotten: 0,
            users: Vec::with_capacity(rows.len()),
            through: after,
        };
        for row in &rows {
            let epoch = u32::try_from(row.try_get::<_, i64>("epoch")?).unwrap_or(0);
            followed.last = Position { epoch, change: unsigned(row.try_get("last_change")?) };
            followed.forgotten = unsigned(row.try_get("forgotten")?);
            if let Some(change) = row.try_get::<_, Option<i64>>("change")? {
                followed.through = unsigned(change);
                followed.users.push(user_topics(row)?);
            }
        }
        Ok(followed)
    }

    /// Begins to read the table as it is now. Returns its last change.
    pub async fn begin_snapshot(&self) -> Result<Position, DatabaseError> {
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        step(self.session.client.batch_execute(begin)).await?;
        Ok(self.follow(0, 0).await?.last)
    }

    /// Returns the users who come after a user by name, at most [`PAGE_USERS`]. They all have topics.
    pub async fn page(&self, after: &str) -> Result<Vec<UserTopics>, DatabaseError> {
        let parameters: [&(dyn ToSql + Sync); 2] = [&after, &signed(PAGE_USERS as u64)];
        let rows = step(self.session.client.query(&self.page, &parameters)).await?;
        rows.iter().map(user_topics).collect()
    }

    /// Ends the snapshot.
    pub async fn end_snapshot(&self) -> Result<(), DatabaseError> {
        step(self.session.client.batch_execute("COMMIT")).await
    }

    /// Deletes rows of users who have had no topic for a day. Returns how many.
    pub async fn trim(&self, rows_max: u64) -> Result<u64, DatabaseError> {
        let row = step(self.session.client.query_one(&self.trim, &[&signed(rows_max)])).await?;
        Ok(unsigned(row.try_get(0)?))
    }

    /// Ends the session.
    pub async fn close(self) {
        self.session.close().await;
    }
}

pub(crate) fn user_topics(row: &Row) -> Result<UserTopics, DatabaseError> {
    let topics: Vec<&str> = row.try_get("topics")?;
    let topics = topics.into_iter().map(Name::from).collect();
    Ok(UserTopics { user: row.try_get::<_, &str>("user_name")?.into(), topics })
}

fn outcomes(row: &Row) -> Result<Vec<EditOutcome>, tokio_postgres::Error> {
    let numbers = |column: &str| row.try_get::<_, Vec<i64>>(column);
    let (added, removed, counts) = (numbers("added")?, numbers("removed")?, numbers("counts")?);
    let rejected: Vec<bool> = row.try_get("rejected")?;
    let outcomes = rejected.iter().zip(added.iter().zip(&removed).zip(&counts));
    let outcomes = outcomes.map(|(is_rejected, ((added, removed), count))| match is_rejected {
        true => EditOutcome::TooMany { count: size(*count) },
        false => EditOutcome::Edited {
            added: size(*added),
            removed: size(*removed),
            count: size(*count),
        },
    });
    Ok(outcomes.collect())
}

fn rejection(error: tokio_postgres::Error) -> Box<Failure> {
    let detail = error.as_db_error().and_then(|error| error.detail()).unwrap_or_default();
    let mut numbers = detail.split(' ').map(|number| number.parse::<u64>().unwrap_or(0));
    let mut number = || numbers.next().unwrap_or(0);
    let (reply, session) = match error.code().map(|code| code.code()) {
        Some("TH001") => {
            let (index, count) = (number() as usize, number() as usize);
            (DatabaseEditError::TooMany { index, count }, None)
        }
        Some("TH002") => (DatabaseEditError::Full { more: number() }, None),
        _ => {
            let error = DatabaseError::from(error);
            let text = error.to_string();
            let is_lost = matches!(error, DatabaseError::Connection(_) | DatabaseError::Timeout(_));
            let reply = if is_lost {
                DatabaseEditError::Unconfirmed(text)
            } else {
                DatabaseEditError::Failed(text)
            };
            (reply, Some(error))
        }
    };
    Box::new(Failure { reply, session })
}
