//! Connects to PostgreSQL, and reconnects when a connection breaks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::PublishError;
use database::{DatabaseError, ErrorLevel, Reconnects, ended};
use history::HistoryError;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::cursors::{self, OnMoved};
use crate::follower::Follower;
use crate::mqtt_sessions;
use crate::postgres::Postgres;
use crate::publish::away_text;
use crate::reader;
use crate::retained::{self, RetainedMemory};
use crate::session::Database;
use crate::trimmer;
use crate::writer::Writer;

/// When the server ends, the writer appends queued messages within this time, or not at all.
const END_WAIT: Duration = Duration::from_secs(5);

/// The sessions with the database. The writer, the follower and the reader have one each, so that none waits for
/// another. The trimmer and the drivers of cursors, of retained messages and of MQTT sessions open their own.
struct Sessions {
    append: Database,
    follow: Database,
    read: Arc<Database>,
}

/// What gets the changes of other nodes.
pub(crate) struct ChangeTargets {
    /// Gets the moves of cursors.
    pub on_moved: OnMoved,
    /// Has the retained messages.
    pub retained: RetainedMemory,
    /// Delivers messages of topics for which this node has no rule.
    pub broker: Arc<broker::Local>,
}

/// Runs the writer, the follower, the reader, the trimmer and the drivers of cursors, of retained messages and of MQTT
/// sessions until the server ends.
pub(crate) struct Driver {
    postgres: Postgres,
    writer: Writer,
    follower: Follower,
    targets: ChangeTargets,
    /// True when the driver must end.
    ending: watch::Receiver<bool>,
    reconnects: Reconnects,
}

impl Driver {
    pub fn new(postgres: Postgres, targets: ChangeTargets, ending: watch::Receiver<bool>) -> Self {
        let writer = Writer::new(postgres.clone());
        let follower = Follower::new(postgres.clone(), targets.broker.clone());
        Driver { postgres, writer, follower, targets, ending, reconnects: Reconnects::default() }
    }

    pub async fn run(mut self) {
        while !*self.ending.borrow() {
            let error = match self.connect().await {
                None => break,
                Some(Ok(sessions)) => {
                    self.on_connected();
                    let result = self.serve(sessions).await;
                    self.on_disconnected(result.as_ref().err());
                    match result {
                        Ok(()) => break,
                        Err(error) => error,
                    }
                }
                Some(Err(error)) => error,
            };
            self.on_error(error);
            let why = self.why();
            let delay = self.reconnects.delay(Instant::now());
            tokio::select! {
                () = sleep(delay) => {}
                () = ended(&mut self.ending) => {}
                () = self.writer.give_up(&why) => {}
            }
        }
        self.writer.fail(&PublishError::Unconfirmed("the server ends".into()));
        let rows = self.postgres.0.retained.queue.pending();
        if rows > 0 {
            tracing::error!(
                rows,
                "retained MQTT messages were not written to PostgreSQL before the end"
            );
        }
        let sessions = self.postgres.0.sessions.queue.pending();
        if sessions > 0 {
            tracing::error!(
                sessions,
                "changes of MQTT sessions were not written to PostgreSQL before the end"
            );
        }
    }

    fn why(&self) -> String {
        self.postgres.error().unwrap_or_default()
    }

    /// Opens all sessions, and verifies that the log is the one that this node knows before anything is appended.
    /// Returns `None` if the driver must end.
    async fn connect(&mut self) -> Option<Result<Sessions, DatabaseError>> {
        let why = self.why();
        let (postgres, writer, ending) = (&self.postgres, &mut self.writer, &mut self.ending);
        let (follower, on_moved) = (&self.follower, &self.targets.on_moved);
        let opened = async {
            let sessions = open(postgres).await?;
            follower.verify(&sessions.follow).await?;
            if !postgres.state().is_pausing() {
                // A user that comes now must not begin anew.
                postgres.0.cursors.put_back();
                cursors::catch_up(postgres, on_moved).await?;
            }
            Ok(sessions)
        };
        tokio::pin!(opened);
        let mut is_given_up = false;
        loop {
            tokio::select! {
                sessions = &mut opened => return Some(sessions),
                () = ended(ending) => return None,
                () = writer.give_up(&why), if !is_given_up => is_given_up = true,
            }
        }
    }

    /// Appends, follows and reads until a connection breaks. When the driver must end, returns once the queue is empty
    /// and all cursors, retained messages and MQTT sessions are written, or after `END_WAIT`.
    async fn serve(&mut self, sessions: Sessions) -> Result<(), DatabaseError> {
        let Sessions { append, follow, read } = sessions;
        let (ending, mut late) = (self.ending.clone(), self.ending.clone());
        let queue = &self.postgres.0.queue;
        let write = async {
            self.writer.run(&append, || *ending.borrow()).await?;
            self.postgres.0.cursors.until_idle().await;
            self.postgres.until_retained().await;
            self.postgres.until_sessions_written().await;
            Ok(())
        };
        let mut wakes = self.ending.clone();
        let result = tokio::select! {
            result = write => result,
            result = self.follower.run(&follow) => result,
            result = reader::run(&self.postgres, read.clone()) => result,
            never = trimmer::run(&self.postgres) => match never {},
            never = cursors::run(&self.postgres, &self.targets.on_moved) => match never {},
            never = retained::run(&self.postgres, &self.targets.retained) => match never {},
            never = mqtt_sessions::run(&self.postgres) => match never {},
            () = async { ended(&mut wakes).await; queue.added.notify_one(); std::future::pending().await } => Ok(()),
            () = async { ended(&mut late).await; sleep(END_WAIT).await } => Ok(()),
        };
        tokio::join!(append.close(), follow.close());
        result
    }

    fn on_connected(&mut self) {
        self.postgres.0.queue.open();
        self.postgres.0.jobs.open();
        self.postgres.set_status(|status| {
            (status.is_connected, status.error) = (true, None);
            status.since = Some(Instant::now());
        });
        match self.reconnects.on_connected(Instant::now()) {
            true => tracing::info!("the history in PostgreSQL can be used again"),
            false => tracing::debug!("connected to PostgreSQL for the history"),
        }
    }

    /// Replies to all publishers and readers that wait, except those of the unconfirmed batch: it may be committed.
    fn on_disconnected(&mut self, error: Option<&DatabaseError>) {
        self.postgres.set_status(|status| {
            status.is_connected = false;
            status.error = error.map(ToString::to_string);
            status.since = Some(Instant::now());
            status.connections_lost += u64::from(error.is_some());
        });
        let pending = self.postgres.0.queue.close();
        self.follower.reply_rest();
        let away = self.postgres.away();
        pending.into_iter().for_each(|item| (item.done)(Err(away.clone())));
        let why: Arc<str> = away_text(self.postgres.error().as_deref()).into();
        let jobs = self.postgres.0.jobs.close();
        jobs.into_iter().for_each(|job| job.fail(HistoryError::Unavailable(why.clone())));
    }

    fn on_error(&mut self, error: DatabaseError) {
        self.postgres.set_status(|status| status.error = Some(error.to_string()));
        match self.reconnects.on_error(&error) {
            ErrorLevel::Error => {
                tracing::error!(
                    %error,
                    "the history in PostgreSQL can't be used; the server tries again"
                );
            }
            ErrorLevel::Warning => tracing::warn!(
                %error,
                "there is no connection to PostgreSQL: nothing is published to topics with history"
            ),
            ErrorLevel::Repeated => {}
        }
    }
}

async fn open(postgres: &Postgres) -> Result<Sessions, DatabaseError> {
    let (settings, password) = (&postgres.0.settings, postgres.password());
    let append = Database::open(settings, &password, None).await?;
    let committed = Some(postgres.0.committed.clone());
    let follow = Database::open(settings, &password, committed).await?;
    let read = Arc::new(Database::open(settings, &password, None).await?);
    Ok(Sessions { append, follow, read })
}
