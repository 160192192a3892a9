//! The topics on top.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::http::{QueryParams, Rejection, checked_limit};
use crate::monitor::Monitor;
use crate::monitor::top::{By, TopTopic};

/// Topics in an answer, by default.
const ROWS: usize = 20;

/// Topics in an answer at most.
const ROWS_MAX: usize = 100;

/// Which topics, and how many.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopQuery {
    /// `members` for the biggest, without users' own (the default), `messages` for the busiest, `deliveries` or
    /// `bytes` for the costliest.
    #[serde(default)]
    #[param(inline)]
    by: By,
    /// At most so many, up to 100; 20 by default.
    limit: Option<usize>,
}

/// The topics on top.
#[derive(Serialize, ToSchema)]
pub(crate) struct Top {
    by: By,
    topics: Vec<TopTopic>,
}

/// The topics with the most members, with the most messages in the recent window, or whose messages cost most over the
/// last minute: by deliveries (each message to each member) or by bytes. What cost less than a 128th of a shard's work
/// may be left out of these, and no figure of theirs is too large by more than that. The answer may be 2 seconds old.
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
