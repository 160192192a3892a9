//! Drives the session: makes edits, applies changes in the order of their numbers, and reconnects.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use database::{DatabaseError, ErrorLevel, Reconnects, ended};
use model::Name;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::sleep;

use crate::edit::{DatabaseEditError, EditReply};
use crate::postgres::{Call, Connections, Postgres, apply};
use crate::session::{Database, PAGE_USERS, Position, UserTopics};

/// The interval between two reads without a notification.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The interval between two attempts to apply changes while the node's state passes to another process.
const PAUSE: Duration = Duration::from_millis(50);

/// The interval between two deletions of rows without topics.
const TRIM_INTERVAL: Duration = Duration::from_secs(600);

/// Rows that one deletion deletes at most. Edits wait for it.
const TRIM_ROWS: u64 = 1_000;

/// Makes edits and follows changes until the server ends.
pub(crate) struct Driver {
    postgres: Postgres,
    connections: Arc<dyn Connections>,
    calls: mpsc::Receiver<Call>,
    /// True when the server ends.
    ending: watch::Receiver<bool>,
    /// Wakes the driver after a commit.
    changed: Arc<Notify>,
    trimmed: Option<Instant>,
    reconnects: Reconnects,
}

impl Driver {
    pub fn new(
        postgres: Postgres,
        connections: Arc<dyn Connections>,
        calls: mpsc::Receiver<Call>,
        ending: watch::Receiver<bool>,
    ) -> Self {
        let (changed, reconnects) = (Arc::default(), Reconnects::default());
        Driver { postgres, connections, calls, ending, changed, trimmed: None, reconnects }
    }

    pub async fn run(mut self) {
        while !*self.ending.borrow() {
            let error = match self.connect().await {
                None => break,
                Some(Ok(database)) => {
                    self.on_connected();
                    let result = self.serve(&database).await;
                    self.on_disconnected(result.as_ref().err());
                    database.close().await;
                    match result {
                        Ok(()) => break,
                        Err(error) => error,
                    }
                }
                Some(Err(error)) => error,
            };
            self.on_error(error);
            let why = self.postgres.why();
            let delay = self.reconnects.delay(Instant::now());
            tokio::select! {
                () = sleep(delay) => {}
                () = ended(&mut self.ending) => {}
                () = fail(&mut self.calls, &why) => {}
            }
        }
        self.calls.close();
        fail(&mut self.calls, "the server ends").await;
    }

    /// Opens a session; `None` if the server ends meanwhile. Calls that wait fail.
    async fn connect(&mut self) -> Option<Result<Database, DatabaseError>> {
        let (settings, password) = (self.postgres.settings(), self.postgres.password());
        let why = self.postgres.why();
        tokio::select! {
            result = Database::open(settings, &password, Some(self.changed.clone())) => Some(result),
            () = ended(&mut self.ending) => None,
            () = fail(&mut self.calls, &why), if self.reconnects.has_failed() => None,
        }
    }

    /// Makes edits and applies changes until the server ends, or the connection breaks.
    async fn serve(&mut self, database: &Database) -> Result<(), DatabaseError> {
        let mut is_current = self.follow(database, false).await?;
        loop {
            let wait = if is_current { POLL_INTERVAL } else { PAUSE };
            tokio::select! {
                () = ended(&mut self.ending) => return Ok(()),
                call = self.calls.recv() => match call {
                    Some(call) => self.edit(database, call).await?,
                    None => return Ok(()),
                },
                () = self.changed.notified() => is_current = self.follow(database, false).await?,
                () = sleep(wait) => is_current = self.follow(database, false).await?,
            }
            self.trim(database).await?;
        }
    }

    async fn edit(&mut self, database: &Database, call: Call) -> Result<(), DatabaseError> {
        let Call { edits, reply, working } = call;
        let (result, error) = match database.edit(&edits).await {
            Ok(outcomes) => {
                // The caller's work lasts until then, so the node's state has not passed on.
                let followed = self.follow(database, true).await;
                let is_applied = matches!(followed, Ok(true));
                (Ok(EditReply { outcomes, is_applied }), followed.err())
            }
            Err(failure) => (Err(failure.reply), failure.session),
        };
        // The caller may wait no longer.
        let _ = reply.send(result);
        drop(working);
        error.map_or(Ok(()), Err)
    }

    /// Applies all changes after the position. Returns false if the node's state must not change now. `is_working` is
    /// true while a call keeps the state from passing on.
    async fn follow(&self, database: &Database, is_working: bool) -> Result<bool, DatabaseError> {
        loop {
            let position = self.postgres.position();
            let found = database.follow(position.change, PAGE_USERS).await?;
            let is_other =
                found.last.epoch != position.epoch || found.last.change < position.change;
            if is_other || found.forgotten > position.change {
                if !self.reload(database, is_working).await? {
                    return Ok(false);
                }
                continue;
            }
            if found.users.is_empty() {
                return Ok(true);
            }
            let Some(_working) = self.work(is_working) else { return Ok(false) };
            self.apply(&found.users).await;
            self.postgres.set_position(Position { change: found.through, ..position });
        }
    }

    /// Begins work on the node's state, unless a call works on it already. Returns `None` if the state must not change
    /// now.
    fn work(&self, is_working: bool) -> Option<Box<dyn Send>> {
        match is_working {
            true => Some(Box::new(())),
            false => self.connections.work(),
        }
    }

    async fn apply(&self, users: &[UserTopics]) {
        let edits = apply(self.postgres.subscriptions(), users);
        self.postgres.set_status(|status| status.applied += edits.len() as u64);
        if !edits.is_empty() {
            self.connections.apply(edits).await;
        }
    }

    /// Reads all rows. Users in memory without a row lose their topics. Returns false, and must be called again, if the
    /// node's state must not change now.
    async fn reload(&self, database: &Database, is_working: bool) -> Result<bool, DatabaseError> {
        let position = database.begin_snapshot().await?;
        let mut left: HashSet<Name> = self.postgres.subscriptions().user_names().collect();
        let mut after = Name::default();
        let is_whole = loop {
            let page = database.page(&after).await?;
            let Some(last) = page.last() else { break true };
            after = last.user.clone();
            page.iter().for_each(|it| _ = left.remove(&it.user));
            let Some(_working) = self.work(is_working) else { break false };
            self.apply(&page).await;
        };
        database.end_snapshot().await?;
        let Some(_working) = self.work(is_working).filter(|_| is_whole) else { return Ok(false) };
        let left: Vec<UserTopics> =
            left.into_iter().map(|user| UserTopics { user, topics: Vec::new() }).collect();
        for users in left.chunks(PAGE_USERS) {
            self.apply(users).await;
        }
        self.postgres.set_position(position);
        self.postgres.set_status(|status| status.reloads += 1);
        tracing::info!("all subscriptions were read again from PostgreSQL");
        Ok(true)
    }

    async fn trim(&mut self, database: &Database) -> Result<(), DatabaseError> {
        if self.trimmed.is_none_or(|trimmed| trimmed.elapsed() > TRIM_INTERVAL) {
            while database.trim(TRIM_ROWS).await? >= TRIM_ROWS {}
            self.trimmed = Some(Instant::now());
        }
        Ok(())
    }

    fn on_connected(&mut self) {
        self.reconnects.on_connected(Instant::now());
        self.postgres.set_status(|status| {
            (status.is_connected, status.error) = (true, None);
            status.since = Some(Instant::now());
        });
        tracing::info!("the subscriptions are connected to PostgreSQL");
    }

    fn on_disconnected(&self, error: Option<&DatabaseError>) {
        self.postgres.set_status(|status| {
            (status.is_connected, status.error) = (false, error.map(ToString::to_string));
            status.since = Some(Instant::now());
            status.connections_lost += u64::from(error.is_some());
        });
    }

    fn on_error(&mut self, error: DatabaseError) {
        self.postgres.set_status(|status| status.error = Some(error.to_string()));
        match self.reconnects.on_error(&error) {
            ErrorLevel::Error => {
                tracing::error!(
                    %error,
                    "subscriptions can't be changed, and changes by other nodes do not arrive; the \
                     server tries again"
                );
            }
            ErrorLevel::Warning => {
                tracing::warn!(%error, "subscriptions can't be changed: PostgreSQL is not connected");
            }
            ErrorLevel::Repeated => {}
        }
    }
}

/// Rejects all calls that wait, and those that come.
async fn fail(calls: &mut mpsc::Receiver<Call>, why: &str) {
    while let Some(call) = calls.recv().await {
        let _ = call.reply.send(Err(DatabaseEditError::Failed(why.into())));
    }
}
