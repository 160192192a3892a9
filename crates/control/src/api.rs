//! The routes, and how bodies are read.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use serde::de::DeserializeOwned;

use crate::error::{Refused, bad, refused};
use crate::{Node, guard, inspect, members, metrics, openapi, publish};

/// A request whose body has not arrived, or that is not done, after so long is answered 408.
const REQUEST_MAX: Duration = Duration::from_secs(30);

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
        .layer(middleware::from_fn(patience))
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

async fn page(State(node): State<Arc<Node>>, headers: HeaderMap) -> Response {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
    let client_url = client_url(&node.client_url, host);
    let text = include_str!("page.html").replace("{{CLIENT_URL}}", &client_url);
    // The page talks to this port and to the client port, and loads nothing else.
    let policy = format!(
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
         connect-src 'self' {client_url}; img-src data:; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    let headers = [
        (header::CONTENT_SECURITY_POLICY, policy.as_str()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, Html(text)).into_response()
}

/// Where the page's browser finds the client port: one that is bound to every address (0.0.0.0 or
/// ::) is under the name that the page itself was asked by. Nothing that isn't an address or a
/// host's name gets into the page.
fn client_url(configured: &str, host: &str) -> String {
    let url = match configured.split_once("://") {
        Some((scheme, rest)) => {
            let every = ["0.0.0.0", "[::]"].into_iter().find_map(|any| rest.strip_prefix(any));
            match (every, guard::host_name(host)) {
                (Some(port), name) if name.contains(':') => format!("{scheme}://[{name}]{port}"),
                (Some(port), name) if !name.is_empty() => format!("{scheme}://{name}{port}"),
                _ => configured.to_string(),
            }
        }
        None => configured.to_string(),
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~:/[]%".contains(c);
    if url.chars().all(is_plain) { url } else { String::new() }
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

/// Reads a JSON object. An array of the fields in order, which serde takes for a struct too, is
/// no form of this API.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refused> {
    serde_json::from_slice(bytes)
        .map_err(|error| {
            let code = if error.is_data() { "bad_request" } else { "bad_json" };
            bad(code, format!("this is not what the call takes: {error}"))
        })
        .and_then(|value| match bytes.trim_ascii_start().first() {
            Some(b'{') => Ok(value),
            _ => Err(bad("bad_request", "this is not what the call takes: send a JSON object")),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_finds_a_client_port_on_every_address() {
        for (configured, host, want) in [
            ("http://127.0.0.1:8000", "localhost:8001", "http://127.0.0.1:8000"),
            ("http://0.0.0.0:8000", "10.1.2.3:8001", "http://10.1.2.3:8000"),
            ("http://[::]:8000", "[fe80::1]:8001", "http://[fe80::1]:8000"),
            ("http://[::]:8000", "push.example", "http://push.example:8000"),
            ("http://0.0.0.0:8000", "", "http://0.0.0.0:8000"),
            ("http://0.0.0.0:8000", "\"><script>", ""),
            ("http://a; script-src *", "localhost", ""),
        ] {
            assert_eq!(client_url(configured, host), want);
        }
    }
}
