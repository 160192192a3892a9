//! The routes, and how bodies are read.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Bytes, HttpBody};
use axum::extract::{ConnectInfo, FromRequest, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;

use crate::error::{Refused, bad, refused};
use crate::listener::On;
use crate::live::Monitor;
use crate::{
    Node, cursors, dashboard, guard, inspect, kept, live, members, metrics, openapi, presence,
    publish, subscriptions, top,
};

/// A request whose body has not arrived, or that is not done, after so long is answered 408.
const REQUEST_MAX: Duration = Duration::from_secs(30);

pub(crate) fn router(monitor: Arc<Monitor>) -> Router {
    let node = monitor.node.clone();
    let watched = Router::new()
        .route("/api/live", get(live::live))
        .route("/api/history", get(live::history))
        .route("/api/top", get(top::top))
        .with_state(monitor);
    Router::new()
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
        .route("/api/topics/{topic}/members", get(top::members))
        .route("/api/history/{topic}", get(kept::page).delete(kept::delete))
        .route("/api/ack", post(cursors::acknowledge))
        .route("/api/cursors/{user}", get(cursors::cursor))
        .route("/api/messages", get(top::messages))
        .route("/api/presence/{topic}", get(presence::presence))
        .route("/api/users/{user}", get(inspect::user))
        .route("/api/subscriptions", post(subscriptions::change))
        .route(
            "/api/subscriptions/import",
            // The user of that name has the other methods.
            post(subscriptions::import)
                .get(async |node| {
                    subscriptions::list(node, Ok(Path(subscriptions::IMPORT.into()))).await
                })
                .delete(async |node| {
                    subscriptions::clear(node, Ok(Path(subscriptions::IMPORT.into()))).await
                }),
        )
        .route("/api/subscriptions/{user}", get(subscriptions::list).delete(subscriptions::clear))
        .route("/api/stats", get(inspect::stats))
        .route("/api/config", get(inspect::config))
        .merge(watched)
        .merge(dashboard::router())
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
        .layer(middleware::from_fn(patience))
        .layer(middleware::from_fn(guard::attend))
        .layer(middleware::from_fn(guard::headers))
        .with_state(node)
}

async fn patience(request: Request, next: Next) -> Response {
    match tokio::time::timeout(REQUEST_MAX, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let message = "the request did not arrive whole, or could not be done, in 30 seconds: \
                           part of a batch may be done";
            refused(StatusCode::REQUEST_TIMEOUT, "request_timeout", message).into_response()
        }
    }
}

/// A JSON body.
pub(crate) struct Body<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Arc<Node>> for Body<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, node: &Arc<Node>) -> Result<Self, Refused> {
        check_media(request.headers(), "application/json")?;
        parse(&whole(request, node).await?).map(Body)
    }
}

/// A whole body. What is here of one that is not holds memory that all of them share.
pub(crate) async fn whole(request: Request, node: &Arc<Node>) -> Result<Bytes, Refused> {
    let (parts, mut body) = request.into_parts();
    let max = node.body_bytes_max;
    let fits = |bytes: u64| usize::try_from(bytes).is_ok_and(|bytes| bytes <= max);
    if !fits(body.size_hint().lower()) {
        return Err(too_large(max));
    }
    let mut held = node.connections.held();
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| bad("bad_body", "the body did not arrive whole"))?;
        let Ok(piece) = frame.into_data() else { continue };
        if bytes.len() + piece.len() > max {
            return Err(too_large(max));
        }
        node.connections.hold(&mut held, piece.len()).ok_or_else(full)?;
        // Nearly all come in one piece, which needs no copy. Others do: a piece may hold on to far
        // more than it has.
        if bytes.is_empty() && body.is_end_stream() {
            arrived(&parts);
            return Ok(piece);
        }
        bytes.extend_from_slice(&piece);
    }
    arrived(&parts);
    Ok(bytes.into())
}

/// What follows is not waiting for the peer any more.
fn arrived(parts: &Parts) {
    if let Some(ConnectInfo(On(peer))) = parts.extensions.get() {
        peer.arrived();
    }
}

fn too_large(max: usize) -> Refused {
    let message = format!("the body is over {max} bytes (admin.body_bytes_max)");
    refused(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}

fn full() -> Refused {
    let message = "the bodies of requests under way fill their memory (admin.bodies_bytes_max): \
                   try again in a second";
    refused(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message)
}

/// The media type that a call takes, or nothing said, or what `curl -d` says by itself.
pub(crate) fn check_media(headers: &HeaderMap, wanted: &str) -> Result<(), Refused> {
    let Some(media) = headers.get(header::CONTENT_TYPE) else {
        return Ok(());
    };
    let media = media.to_str().unwrap_or("").split(';').next().unwrap_or("").trim();
    let known = [wanted, "application/x-www-form-urlencoded"];
    if known.iter().any(|known| media.eq_ignore_ascii_case(known)) {
        return Ok(());
    }
    let message = format!("send the body as {wanted}");
    Err(refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_media_type", message))
}

/// Reads a JSON object.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refused> {
    wire::object::read(bytes).map_err(|error| {
        let code = if error.is_data() { "bad_request" } else { "bad_json" };
        bad(code, format!("this is not what the call takes: {error}"))
    })
}
