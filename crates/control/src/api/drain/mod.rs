//! Empties a node of its connections, or makes it give some to other nodes of its cluster.

mod run;
mod state;

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use model::ErrorCode;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::eviction::{DrainPlan, EvictionError, Speed};
use crate::http::{Body, ErrorBody, Rejection};
use crate::node::Node;
use state::{DrainState, RebalanceState};

/// The longest time of a drain, in seconds: a day.
const SECONDS_MAX: u64 = 86_400;

/// How many connections may be closed in a second at most.
const PER_SECOND_MAX: u64 = 1_000_000;

/// How to empty the node.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DrainRequest {
    /// Close the connections evenly over this many seconds: 300 by default.
    #[schema(example = 300, nullable = false, minimum = 1, maximum = 86_400)]
    seconds: Option<u64>,
    /// Close this many in a second instead.
    #[schema(example = 500, nullable = false, minimum = 1, maximum = 1_000_000)]
    per_second: Option<u64>,
    /// Close none for this many seconds, until balancers have taken out the node, which is not ready: 10 by default.
    #[schema(example = 10, nullable = false, minimum = 0, maximum = 86_400)]
    wait_seconds: Option<u64>,
    /// End the process when no connection is left.
    exit: bool,
}

/// How many connections to give to other nodes.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RebalanceRequest {
    /// Close this many of the node's connections, chosen at random.
    #[schema(example = 1_500, minimum = 1)]
    connections: u64,
    /// How many in a second at most: 100 by default. In a minute the node closes a tenth of its connections at most.
    #[schema(example = 100, nullable = false, minimum = 1, maximum = 1_000_000)]
    per_second: Option<u64>,
}

impl DrainRequest {
    fn plan(&self) -> Result<DrainPlan, Rejection> {
        let speed = match (self.seconds, self.per_second) {
            (Some(_), Some(_)) => {
                let message = "send either seconds or per_second: each follows from the other";
                return Err(Rejection::new(ErrorCode::BadRequest, message));
            }
            (_, Some(per_second)) => Speed::PerSecond(per_second_of(per_second)?),
            (seconds, None) => {
                let seconds = bounded("seconds", seconds.unwrap_or(300), 1, SECONDS_MAX)?;
                Speed::Within(Duration::from_secs(seconds))
            }
        };
        let wait_seconds = self.wait_seconds.unwrap_or(10);
        let wait = Duration::from_secs(bounded("wait_seconds", wait_seconds, 0, SECONDS_MAX)?);
        Ok(DrainPlan { wait, speed, exit: self.exit })
    }
}

fn per_second_of(per_second: u64) -> Result<u64, Rejection> {
    bounded("per_second", per_second, 1, PER_SECOND_MAX)
}

fn bounded(name: &str, value: u64, min: u64, max: u64) -> Result<u64, Rejection> {
    match value {
        value if (min..=max).contains(&value) => Ok(value),
        value => {
            let message = format!("{name} is {value}, but must be a number from {min} to {max}");
            Err(Rejection::new(ErrorCode::BadRequest, message))
        }
    }
}

impl From<EvictionError> for Rejection {
    fn from(error: EvictionError) -> Self {
        let code = match error {
            EvictionError::Draining | EvictionError::Rebalancing => ErrorCode::DrainUnderWay,
            EvictionError::Upgrading => ErrorCode::UpgradeUnderWay,
            EvictionError::Ending => ErrorCode::GoingDown,
        };
        Rejection::new(code, error.to_string())
    }
}

/// How far the drain of this node is.
#[utoipa::path(get, path = "/api/drain", tag = "operate", responses(
    (status = 200, body = DrainState)))]
pub(crate) async fn drain(State(node): State<Arc<Node>>) -> Json<DrainState> {
    Json(DrainState::of(&node))
}

/// Empty this node of its connections: it is not ready from now on, and closes them evenly, each with its protocol's
/// notice to use another server. It serves new connections meanwhile, and closes them like all others; when the time
/// is over it rejects them with 503. The node goes on without connections until the drain is cancelled or the process
/// ends. The response comes at once, and `GET /api/drain` has the progress.
#[utoipa::path(post, path = "/api/drain", tag = "operate", request_body = DrainRequest, responses(
    (status = 200, body = DrainState),
    (status = 409, body = ErrorBody, description = "The node is already draining, is being rebalanced, or is being \
            upgraded"),
    (status = 503, body = ErrorBody, description = "The process is ending")))]
pub(crate) async fn begin_drain(
    State(node): State<Arc<Node>>,
    Body(request): Body<DrainRequest>,
) -> Result<Json<DrainState>, Rejection> {
    run::begin_drain(&node, request.plan()?)?;
    Ok(Json(DrainState::of(&node)))
}

/// Cancel the drain of this node: it is ready, and takes connections again. Those that were closed stay closed.
#[utoipa::path(delete, path = "/api/drain", tag = "operate", responses(
    (status = 200, body = DrainState)))]
pub(crate) async fn cancel_drain(State(node): State<Arc<Node>>) -> Json<DrainState> {
    run::cancel_drain(&node);
    Json(DrainState::of(&node))
}

/// How far this node's part of a rebalance is, or the result of the last one.
#[utoipa::path(get, path = "/api/rebalance", tag = "operate", responses(
    (status = 200, body = RebalanceState)))]
pub(crate) async fn rebalance(State(node): State<Arc<Node>>) -> Json<RebalanceState> {
    Json(RebalanceState::of(&node))
}

/// Make this node give connections to others: it closes this many, chosen at random, each with its protocol's notice to
/// use another server. It stays ready. `throng rebalance` calls it at each node with more connections than the mean.
/// The response comes at once, and `GET /api/rebalance` has the progress.
#[utoipa::path(post, path = "/api/rebalance", tag = "operate", request_body = RebalanceRequest, responses(
    (status = 200, body = RebalanceState),
    (status = 409, body = ErrorBody, description = "The node is already being rebalanced, or is draining"),
    (status = 503, body = ErrorBody, description = "The process is ending")))]
pub(crate) async fn begin_rebalance(
    State(node): State<Arc<Node>>,
    Body(request): Body<RebalanceRequest>,
) -> Result<Json<RebalanceState>, Rejection> {
    let connections = bounded("connections", request.connections, 1, u64::from(u32::MAX))?;
    let per_second = per_second_of(request.per_second.unwrap_or(100))?;
    run::begin_rebalance(&node, connections, per_second)?;
    Ok(Json(RebalanceState::of(&node)))
}

/// Cancel this node's part of a rebalance. Connections that were closed stay closed.
#[utoipa::path(delete, path = "/api/rebalance", tag = "operate", responses(
    (status = 200, body = RebalanceState)))]
pub(crate) async fn cancel_rebalance(State(node): State<Arc<Node>>) -> Json<RebalanceState> {
    run::cancel_rebalance(&node);
    Json(RebalanceState::of(&node))
}
