//! The users, addresses and keys that do most.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use quotas::{By, Noise, Unit};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::http::{QueryParams, Rejection, checked_limit};
use crate::monitor::{Figure, Monitor};

/// Rows of a response, by default.
const ROWS: usize = 20;

/// Rows of a response, at most.
const ROWS_MAX: usize = 100;

/// The figure to sort by.
#[derive(Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NoisyBy {
    /// Requests and commands.
    #[default]
    Commands,
    /// Received bytes.
    Bytes,
    /// Published messages.
    Publishes,
    /// Entered topics.
    Joins,
    /// Rejections by a limit.
    Refusals,
}

impl From<NoisyBy> for By {
    fn from(by: NoisyBy) -> By {
        match by {
            NoisyBy::Commands => By::Unit(Unit::Commands),
            NoisyBy::Bytes => By::Unit(Unit::Bytes),
            NoisyBy::Publishes => By::Unit(Unit::Publishes),
            NoisyBy::Joins => By::Unit(Unit::Joins),
            NoisyBy::Refusals => By::Refusals,
        }
    }
}

/// The figure to sort by, and how many.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoisiestQuery {
    /// The figure to sort by.
    #[serde(default)]
    #[param(inline)]
    by: NoisyBy,
    /// How many at most: up to 100, by default 20.
    limit: Option<usize>,
}

/// The users, addresses and keys that do most.
#[derive(Serialize, ToSchema)]
pub(crate) struct Noisiest {
    by: NoisyBy,
    /// The noisiest first.
    noisiest: Vec<Noisy>,
}

/// The mean per second of a user, address or key, over the last seconds.
#[derive(Serialize, ToSchema)]
pub(crate) struct Noisy {
    /// `user`, `address` or `key`.
    kind: &'static str,
    /// Its name; of an IPv6 network the first address.
    name: String,
    #[schema(value_type = f64)]
    commands_per_second: Figure,
    #[schema(value_type = f64)]
    bytes_per_second: Figure,
    #[schema(value_type = f64)]
    publishes_per_second: Figure,
    #[schema(value_type = f64)]
    joins_per_second: Figure,
    /// Rejections by a limit.
    #[schema(value_type = f64)]
    refusals_per_second: Figure,
}

impl From<Noise> for Noisy {
    fn from(noise: Noise) -> Self {
        let of = |unit: Unit| Figure::new(noise.per_second[unit as usize]);
        Noisy {
            kind: noise.subject.kind(),
            name: noise.subject.name(),
            commands_per_second: of(Unit::Commands),
            bytes_per_second: of(Unit::Bytes),
            publishes_per_second: of(Unit::Publishes),
            joins_per_second: of(Unit::Joins),
            refusals_per_second: Figure::new(noise.refusals_per_second),
        }
    }
}

/// The users, addresses and keys that do most, all their connections together, over the last seconds. Connections
/// that only receive messages do not count.
#[utoipa::path(get, path = "/api/noisiest", tag = "inspect", params(NoisiestQuery), responses(
    (status = 200, body = Noisiest)))]
pub(crate) async fn noisiest(
    State(monitor): State<Arc<Monitor>>,
    QueryParams(query): QueryParams<NoisiestQuery>,
) -> Result<Json<Noisiest>, Rejection> {
    let limit = checked_limit(query.limit, ROWS, ROWS_MAX)?;
    let found = monitor.node.shared.quotas.noisiest(query.by.into(), limit);
    let noisiest = found.into_iter().map(Noisy::from).collect();
    Ok(Json(Noisiest { by: query.by, noisiest }))
}
