//! The topics with the most members, messages or costs.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::http::{QueryParams, Rejection, checked_limit};
use crate::monitor::Monitor;
use crate::monitor::top::{By, TopTopic};

/// Topics in a response, by default.
const ROWS: usize = 20;

/// Topics in a response, at most.
const ROWS_MAX: usize = 100;

/// Selects topics, and limits their number.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopQuery {
    /// `members` for the biggest, without users' own (the default), `messages` for the busiest, `deliveries` or
    /// `bytes` for the costliest.
    #[serde(default)]
    #[param(inline)]
    by: By,
    /// How many at most: up to 100, by default 20.
    limit: Option<usize>,
}

/// The first topics by a figure.
#[derive(Serialize, ToSchema)]
pub(crate) struct Top {
    by: By,
    topics: Vec<TopTopic>,
}

/// The topics with the most members, with the most messages in the recent window, or whose messages cost most over
/// the last minute: by deliveries (each message to each member) or by bytes. Topics that cost less than a 128th of a
/// shard's work may be left out, and no cost is overstated by more than that. The response may be 2 seconds old.
#[utoipa::path(get, path = "/api/top", tag = "inspect", params(TopQuery), responses(
    (status = 200, body = Top)))]
pub(crate) async fn top(
    State(monitor): State<Arc<Monitor>>,
    QueryParams(query): QueryParams<TopQuery>,
) -> Result<Json<Top>, Rejection> {
    let limit = checked_limit(query.limit, ROWS, ROWS_MAX)?;
    let topics = monitor.tops.get(&monitor.node, query.by, limit).await?;
    Ok(Json(Top { by: query.by, topics }))
}
