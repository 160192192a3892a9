//! What surrounds every call: its place in the log, a time limit, the headers of all answers, and the
//! progress of the request, which its connection needs to know.
//!
//! It is one layer: each costs every call two allocations.

use std::sync::Arc;
use std::time::Duration;

use axum::body::HttpBody;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Rejection;
use super::access::Access;
use super::listener::On;
use super::origin::Origin;
use super::trace::{REQUEST_ID, RequestIds};

/// A request whose body has not arrived, or that is not done, after so long is answered 408.
const REQUEST_MAX: Duration = Duration::from_secs(30);

/// Paths that are answered when all connections are busy: what watches over the node.
const VITAL: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// The policy of what is no page.
const NOTHING: &str = "default-src 'none'; frame-ancestors 'none'";

/// Which pages may load an answer as an image, a script and the like.
const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName =
    HeaderName::from_static("cross-origin-resource-policy");

/// Does all of it.
pub(crate) async fn surround(
    State((ids, access)): State<(Arc<RequestIds>, Arc<Access>)>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get().map(|ConnectInfo(On(_, peer))| *peer);
    let origin = peer.map(|peer| Origin::of(peer, request.headers(), access.ring().proxies()));
    if let Some(origin) = origin {
        request.extensions_mut().insert(origin);
    }
    let (id, call) = ids.begin(&request, origin);
    let is_shown = request.method().is_safe();
    let mut response = call.run(track(request, next)).await;
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id);
    // A browser neither guesses the type nor caches.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if is_shown {
        // What a browser may show, it shows by itself: no other page frames it or takes it in.
        let policy = HeaderValue::from_static(NOTHING);
        headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(policy);
        let none = HeaderValue::from_static("no-referrer");
        headers.entry(header::REFERRER_POLICY).or_insert(none);
        headers.insert(CROSS_ORIGIN_RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    }
    response
}

/// Ends a request that takes longer than [`REQUEST_MAX`].
async fn limit_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(REQUEST_MAX, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let message = "the request did not arrive whole, or could not be done, in 30 seconds: \
                           part of a batch may be done";
            Rejection::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", message).into_response()
        }
    }
}

/// Marks on the connection where its request is. A connection that was only admitted for health
/// checks gets no other call.
async fn track(request: Request, next: Next) -> Response {
    let Some(ConnectInfo(On(peer, _))) = request.extensions().get::<ConnectInfo<On>>().cloned()
    else {
        return limit_time(request, next).await;
    };
    peer.begin(request.body().is_end_stream());
    let response = match peer.is_spare && !VITAL.contains(&request.uri().path()) {
        true => {
            let message = "all connections of the admin port are busy (admin.connections_max, \
                           admin.connections_per_address_max): try again in a second";
            let rejection = Rejection::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message);
            ([(header::CONNECTION, "close")], rejection).into_response()
        }
        false => limit_time(request, next).await,
    };
    peer.answered();
    response
}
