//! A connection to PostgreSQL, and the time limits of its steps.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::{AsyncMessage, Client, Notification};

use crate::address::Address;
use crate::error::DatabaseError;
use crate::secure::Secure;

/// The longest time for one step with the database, in seconds.
pub const STEP_SECONDS: u64 = 60;

/// Settings of a session: a step ends before the node gives up, and the server detects within some seconds that the
/// node is gone, so that another one gets the lock. The table is small or has just become large: its statistics
/// mislead the planner, and the index is always right.
const SESSION: &str = "SET statement_timeout = '50s'; SET lock_timeout = '20s'; \
                       SET idle_in_transaction_session_timeout = '60s'; SET search_path = pg_catalog; SET enable_seqscan = off; \
                       SET enable_bitmapscan = off; SET jit = off; \
                       SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; \
                       SET tcp_keepalives_count = 3; SET tcp_user_timeout = '10s'";

/// An open connection.
pub struct Session {
    /// Sends statements.
    pub client: Client,
    connection: JoinHandle<()>,
}

impl Session {
    /// Ends the session, and with it its locks.
    pub async fn close(self) {
        drop(self.client);
        // If the server does not reply, it later detects the end by itself.
        let _ = timeout(Duration::from_secs(1), self.connection).await;
    }
}

/// Connects. `on_notification` gets the notifications of other sessions (`LISTEN`).
///
/// # Errors
/// If the database can't be reached, or rejects the user.
pub async fn connect(
    address: &Address,
    password: &str,
    mut on_notification: impl FnMut(&Notification) + Send + 'static,
) -> Result<Session, DatabaseError> {
    let mut config = address.config.clone();
    if !password.is_empty() {
        config.password(password);
    }
    let (client, mut connection) = step(config.connect(Secure(address.tls.clone()))).await?;
    let connection = tokio::spawn(async move {
        // An error ends the loop; the statement that it interrupts returns the error, too.
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = &message {
                on_notification(notification);
            }
        }
    });
    step(client.batch_execute(SESSION)).await?;
    Ok(Session { client, connection })
}

/// Returns what [`connect`] calls for a notification: it wakes a task when the notification names the schema.
pub fn wake_for(
    schema: &str,
    task: Option<Arc<Notify>>,
) -> impl FnMut(&Notification) + Send + 'static {
    let schema = schema.to_owned();
    move |notification| {
        if let Some(task) = &task
            && notification.payload().trim_matches('"') == schema
        {
            task.notify_one();
        }
    }
}

/// Makes sure that a commit is on disk when PostgreSQL confirms it, that each statement sees all earlier commits of
/// other sessions, and that texts are UTF-8.
///
/// # Errors
/// If the database has another encoding, or does not reply.
pub async fn prepare_session(client: &Client) -> Result<(), DatabaseError> {
    let row = step(client.query_one("SHOW server_encoding", &[])).await?;
    let encoding: String = row.try_get(0)?;
    if encoding != "UTF8" {
        return Err(DatabaseError::Statement(format!(
            "the database has the encoding {encoding}, but Throng needs UTF8: create a database \
             with ENCODING 'UTF8'"
        )));
    }
    let row = step(client.query_one("SHOW synchronous_commit", &[])).await?;
    if row.try_get::<_, String>(0)? == "off" {
        step(client.batch_execute("SET synchronous_commit = on")).await?;
    }
    // With a stricter default, one of two servers that append at the same time would always fail.
    step(client.batch_execute("SET default_transaction_isolation = 'read committed'")).await?;
    Ok(())
}

/// Performs a step with the database, with a time limit.
///
/// # Errors
/// If it fails, or takes longer than [`STEP_SECONDS`].
pub async fn step<T>(
    future: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, DatabaseError> {
    step_within(STEP_SECONDS, future).await
}

/// Performs a step with another limit, in seconds.
///
/// # Errors
/// If it fails, or takes longer.
pub async fn step_within<T>(
    seconds: u64,
    future: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, DatabaseError> {
    match timeout(Duration::from_secs(seconds), future).await {
        Ok(result) => result.map_err(DatabaseError::from),
        Err(_) => Err(DatabaseError::Timeout(seconds)),
    }
}
