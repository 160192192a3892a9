//! Calls for operators: health, readiness, configuration and metrics.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::{ErrorBody, Rejection};
use crate::monitor::metrics::openmetrics;
use crate::node::{Node, NotReady};

/// Whether the process is alive.
#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    /// `ok`.
    status: &'static str,
}

/// The process is alive.
#[utoipa::path(get, path = "/healthz", tag = "operate", responses((status = 200, body = Health)))]
pub(crate) async fn healthz() -> Json<Health> {
    Json(Health { status: "ok" })
}

/// The process takes new connections, and its store can write.
#[utoipa::path(get, path = "/readyz", tag = "operate", responses(
    (status = 200, body = Health),
    (status = 503, body = ErrorBody, description = "The node drains (going_down), is at its memory limit \
            (memory_full), or its store can't write (store_failed)")))]
pub(crate) async fn readyz(State(node): State<Arc<Node>>) -> Result<Json<Health>, Rejection> {
    match node.not_ready() {
        None => Ok(Json(Health { status: "ok" })),
        Some(NotReady::Draining) => Err(Rejection::going_down()),
        Some(NotReady::MemoryFull) => Err(Rejection::memory_full()),
        Some(NotReady::StoreFailed) => Err(Rejection::store_failed()),
    }
}

/// The configuration in force.
#[derive(Serialize, ToSchema)]
pub(crate) struct Effective {
    /// TOML, each line with the source of its value; secrets are left out.
    toml: String,
}

/// The configuration in force, without secrets.
#[utoipa::path(get, path = "/api/config", tag = "operate", responses(
    (status = 200, body = Effective)))]
pub(crate) async fn config(State(node): State<Arc<Node>>) -> Json<Effective> {
    let toml = node.live().config.clone();
    Json(Effective { toml })
}

/// All metrics, for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "operate", responses(
    (status = 200, body = String, content_type = "application/openmetrics-text")))]
pub(crate) async fn metrics(State(node): State<Arc<Node>>) -> Response {
    let media = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, media)], openmetrics(node)).into_response()
}
