//! Connections that read too slowly.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use shard::Command;
use utoipa::{IntoParams, ToSchema};

use super::members::Connection;
use crate::http::{QueryParams, Rejection, checked_limit};
use crate::monitor::Monitor;

/// Connections in a response, by default.
const ROWS: usize = 20;

/// Connections in a response, at most.
const ROWS_MAX: usize = 100;

/// How many connections.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct SlowestQuery {
    /// How many at most: up to 100, by default 20.
    limit: Option<usize>,
}

/// The connections with the most bytes in their outboxes.
#[derive(Serialize, ToSchema)]
pub(crate) struct Slowest {
    /// All connections of this node with bytes in their outboxes.
    count: u64,
    /// Those with the most, the most first.
    connections: Vec<Connection>,
}

/// The connections that read most slowly: those with the most bytes in their outboxes, because the network or the
/// client does not take them.
#[utoipa::path(get, path = "/api/slowest", tag = "inspect", params(SlowestQuery), responses(
    (status = 200, body = Slowest)))]
pub(crate) async fn slowest(
    State(monitor): State<Arc<Monitor>>,
    QueryParams(query): QueryParams<SlowestQuery>,
) -> Result<Json<Slowest>, Rejection> {
    let limit = checked_limit(query.limit, ROWS, ROWS_MAX)?;
    let node = &monitor.node;
    let replies = node.request_all(|reply| Command::Slowest { limit, reply }).all().await?;
    let count = replies.iter().map(|(count, _)| u64::from(*count)).sum();
    let mut slowest: Vec<_> = replies.into_iter().flat_map(|(_, slowest)| slowest).collect();
    slowest.sort_by_key(|it| (Reverse(it.outbox_bytes), Reverse(it.outbox_age_ms)));
    slowest.truncate(limit);
    let connections = slowest.into_iter().map(Connection::from).collect();
    Ok(Json(Slowest { count, connections }))
}
