//! The outbox in PostgreSQL, into which applications publish in their own transactions.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use model::ErrorCode;
use serde::Serialize;
use utoipa::ToSchema;

use crate::Node;
use crate::http::{ErrorBody, Rejection};

/// The outbox, as this node sees it.
#[derive(Serialize, ToSchema)]
pub(crate) struct OutboxState {
    /// The schema in PostgreSQL.
    #[schema(example = "throng")]
    schema: String,
    /// Whether it is connected to PostgreSQL.
    connected: bool,
    /// Seconds since that changed; null before the first connection.
    seconds: Option<f64>,
    /// Whether this node publishes the rows. Of several nodes with one database, one does.
    draining: bool,
    /// Why it is not connected, or why rows wait.
    error: Option<String>,
    /// How often the connection was lost.
    losses: u64,
    /// Rows that this node has published.
    published: u64,
    /// Rows that can't be published: they are in the table outbox_refused.
    refused: u64,
    /// The age of the oldest row at the last fetch, in seconds; 0 if none waits.
    lag_seconds: f64,
}

/// The outbox in PostgreSQL, into which applications publish in their own transactions, as this node sees it.
#[utoipa::path(get, path = "/api/outbox", tag = "operate", responses(
    (status = 200, body = OutboxState),
    (status = 409, body = ErrorBody, description = "The node has no outbox")))]
pub(crate) async fn outbox(State(node): State<Arc<Node>>) -> Result<Json<OutboxState>, Rejection> {
    let outbox = node.outbox.as_ref().ok_or_else(|| {
        let message = "this node has no outbox: set outbox.url and restart it";
        Rejection::new(ErrorCode::NoOutbox, message)
    })?;
    let status = outbox.status();
    Ok(Json(OutboxState {
        schema: outbox.settings().schema.clone(),
        connected: status.is_connected,
        seconds: status.since.map(|since| since.elapsed().as_secs_f64()),
        draining: status.is_draining,
        error: status.error,
        losses: status.connections_lost,
        published: status.published,
        refused: status.refused,
        lag_seconds: status.lag_seconds,
    }))
}
