//! A connection to PostgreSQL, and how long its steps may take.

use std::future::Future;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::Client;

use crate::address::Address;
use crate::error::DatabaseError;
use crate::secure::Secure;

/// How long one step with the database may take, in seconds.
pub(crate) const STEP_SECONDS: u64 = 60;

/// What a session sets: a step ends before the node gives it up, and the server notices within some seconds that the
/// node is gone, so that another one gets the lock. The table is small or has just become large: its statistics mislead
/// the planner, and the index is always right.
const SESSION: &str = "SET statement_timeout = '50s'; SET lock_timeout = '20s'; \
                       SET idle_in_transaction_session_timeout = '60s'; SET search_path = pg_catalog; SET enable_seqscan = off; \
                       SET enable_bitmapscan = off; SET jit = off; \
                       SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; \
                       SET tcp_keepalives_count = 3; SET tcp_user_timeout = '10s'";

/// Connects. The handle ends when the client is dropped and has said goodbye.
pub(crate) async fn connect(
    address: &Address,
    password: &str,
) -> Result<(Client, JoinHandle<()>), DatabaseError> {
    let mut config = address.config.clone();
    if !password.is_empty() {
        config.password(password);
    }
    let (client, connection) = step(config.connect(Secure(address.tls.clone()))).await?;
    let connection = tokio::spawn(async move {
        // The statement that it cuts off has the error, too.
        let _ = connection.await;
    });
    step(client.batch_execute(SESSION)).await?;
    Ok((client, connection))
}

/// A step with the database, which takes an end.
pub(crate) async fn step<T>(
    future: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, DatabaseError> {
    match timeout(Duration::from_secs(STEP_SECONDS), future).await {
        Ok(result) => result.map_err(DatabaseError::from),
        Err(_) => Err(DatabaseError::Timeout(STEP_SECONDS)),
    }
}
