//! The routes, and how bodies are read.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use serde::de::DeserializeOwned;

use crate::error::{Refused, bad, refused};
use crate::{Node, guard, inspect, members, metrics, openapi, publish};

/// Requests that are served at the same time; more wait.
const REQUESTS_MAX: usize = 1_024;

pub(crate) fn router(node: Arc<Node>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/healthz", get(inspect::healthz))
        .route("/readyz", get(inspect::readyz))
        .route("/metrics", get(metrics::metrics))
        .route("/api/openapi.json", get(openapi::document))
        .route("/api/publish", post(publish::publish))
        .route("/api/send", post(publish::send))
        .route("/api/broadcast", post(publish::broadcast))
        .route("/api/batch", post(publish::batch))
        .route("/api/disconnect", post(members::disconnect))
        .route("/api/subscribe", post(members::subscribe))
        .route("/api/unsubscribe", post(members::unsubscribe))
        .route("/api/topics", get(inspect::topics))
        .route("/api/topics/{topic}", get(inspect::topic))
        .route("/api/users/{user}", get(inspect::user))
        .route("/api/stats", get(inspect::stats))
        .route("/api/config", get(inspect::config))
        .fallback(async || {
            refused(
                StatusCode::NOT_FOUND,
                "not_found",
                "there is nothing here: see /api/openapi.json",
            )
        })
        .method_not_allowed_fallback(async || {
            let message = "this path takes another method: see /api/openapi.json";
            refused(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
        })
        .layer(middleware::from_fn_with_state(node.clone(), guard::guard))
        .layer(DefaultBodyLimit::max(node.body_bytes_max))
        .layer(tower::limit::GlobalConcurrencyLimitLayer::new(REQUESTS_MAX))
        .with_state(node)
}

async fn page(State(node): State<Arc<Node>>) -> Response {
    let text = include_str!("page.html").replace("{{CLIENT_URL}}", &node.client_url);
    // The page talks to this port and to the client port, and loads nothing else.
    let policy = format!(
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
         connect-src 'self' {}; img-src data:; frame-ancestors 'none'",
        node.client_url
    );
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(text)).into_response()
}

/// A JSON body.
pub(crate) struct Body<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Arc<Node>> for Body<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, node: &Arc<Node>) -> Result<Self, Refused> {
        check_media(request.headers())?;
        let bytes = Bytes::from_request(request, node).await.map_err(|rejection| {
            let message =
                format!("the body is over {} bytes (admin.body_bytes_max)", node.body_bytes_max);
            match rejection.into_response().status() {
                StatusCode::PAYLOAD_TOO_LARGE => {
                    refused(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
                }
                _ => bad("bad_body", "the body did not arrive whole"),
            }
        })?;
        parse(&bytes).map(Body)
    }
}

/// JSON, or nothing said, or what `curl -d` says by itself.
fn check_media(headers: &HeaderMap) -> Result<(), Refused> {
    let Some(media) = headers.get(header::CONTENT_TYPE) else {
        return Ok(());
    };
    let media = media.to_str().unwrap_or("").split(';').next().unwrap_or("").trim();
    let known = ["application/json", "application/x-www-form-urlencoded"];
    if known.iter().any(|known| media.eq_ignore_ascii_case(known)) {
        return Ok(());
    }
    let message = "send the body as application/json";
    Err(refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_media_type", message))
}

pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refused> {
    serde_json::from_slice(bytes).map_err(|error| {
        let code = if error.is_data() { "bad_request" } else { "bad_json" };
        bad(code, format!("the body is not what this call takes: {error}"))
    })
}
