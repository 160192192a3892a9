//! The layer around every call. It logs the call, limits its time, sets the headers of all responses, and notes the
//! progress of the request, on which its connection depends.
//!
//! It is one layer, because each layer costs every call two allocations.

use std::sync::Arc;
use std::time::Duration;

use axum::body::HttpBody;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use model::ErrorCode;

use super::Rejection;
use super::access::Access;
use super::admission::Peer;
use super::gate::{Arrival, Gate, Moved, Pass, Working, forward, until_end};
use super::listener::On;
use super::origin::Origin;
use super::trace::{REQUEST_ID, RequestIds};

/// Time limit until the body of a request has arrived and the request is done. Above it, the response is 408.
const REQUEST_MAX: Duration = Duration::from_secs(30);

/// Paths that are served when all connections are busy, for monitoring.
const VITAL: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// The streams of figures and of a trace. They end when another process serves, so that their readers request them
/// there.
const LIVE: &str = "/api/live";
const TRACE: &str = "/api/trace";

/// Paths that are served while all others wait, besides those for monitoring: streams, for which the gate would never
/// be quiet.
const NEVER_PAUSED: [&str; 3] = [LIVE, TRACE, "/api/upgrade"];

/// The policy of responses that are not pages.
const NOTHING: &str = "default-src 'none'; frame-ancestors 'none'";

/// Says which pages may load a response as an image, a script and the like.
const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName =
    HeaderName::from_static("cross-origin-resource-policy");

/// The state of this layer.
#[derive(Clone)]
pub(crate) struct Around {
    pub ids: Arc<RequestIds>,
    pub access: Arc<Access>,
    pub gate: Arc<Gate>,
}

/// Runs a call within this layer.
pub(crate) async fn surround(
    State(Around { ids, access, gate }): State<Around>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get().map(|ConnectInfo(On(_, peer, _))| *peer);
    let origin = peer.map(|peer| Origin::of(peer, request.headers(), access.ring().proxies()));
    if let Some(origin) = origin {
        request.extensions_mut().insert(origin);
    }
    let (id, call) = ids.begin(&request, origin);
    let is_shown = request.method().is_safe();
    let mut response = call.run(track(&gate, request, next)).await;
    let headers = response.headers_mut();
    // A forwarded request has the id of the other process's log.
    headers.entry(REQUEST_ID).or_insert(id);
    // A browser neither guesses the type nor caches.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if is_shown {
        // No other page may frame or embed a response that a browser shows.
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
            let message = "the request did not arrive completely, or did not finish, in 30 \
                           seconds: a part of a batch may be done";
            Rejection::new(ErrorCode::RequestTimeout, message).into_response()
        }
    }
}

/// Marks the progress of a request on its connection. A connection that was admitted for health checks only gets no
/// other call.
async fn track(gate: &Arc<Gate>, request: Request, next: Next) -> Response {
    let Some(on) = request.extensions().get::<ConnectInfo<On>>().cloned() else {
        return pass(gate, None, request, next).await;
    };
    let peer = &on.0.0;
    peer.begin(request.body().is_end_stream());
    let response = match peer.is_spare && !VITAL.contains(&request.uri().path()) {
        true => {
            let message = "all connections of the admin port are busy (admin.connections_max, \
                           admin.connections_per_address_max): try again in a second";
            let rejection = Rejection::new(ErrorCode::Overloaded, message);
            ([(header::CONNECTION, "close")], rejection).into_response()
        }
        false => pass(gate, Some(&on.0), request, next).await,
    };
    peer.on_replied();
    response
}

/// Serves a request, unless another process takes over before all of its body has come.
async fn here(mut request: Request, next: Next, working: Working) -> Result<Response, Box<Moved>> {
    if request.body().is_end_stream() {
        return Ok(until_end(limit_time(request, next).await, working));
    }
    let arrival = Arrival::new(working);
    request.extensions_mut().insert(arrival.clone());
    let response = limit_time(request, next).await;
    arrival.on_replied(response)
}

/// Serves a request as soon as the gate lets it through, or forwards it to the process that has taken over.
async fn pass(gate: &Arc<Gate>, on: Option<&On>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let (request, to) = if (path == LIVE || path == TRACE) && gate.is_forwarding() {
        // The handler ends the stream at once, after the check of the key.
        let mut response = limit_time(request, next).await;
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        return response;
    } else if VITAL.contains(&path) || NEVER_PAUSED.contains(&path) {
        match gate.pass_vital() {
            None => return limit_time(request, next).await,
            Some(to) => (request, to),
        }
    } else {
        let peer = on.map(|On(peer, ..)| &**peer);
        let is_whole = request.body().is_end_stream();
        let mut was_paused = false;
        // The client is not to blame for the wait, whatever it has sent.
        let on_pause = || {
            was_paused = true;
            peer.inspect(|peer| peer.body_arrived());
        };
        match gate.pass(on_pause).await {
            Pass::Here(working) => {
                if was_paused {
                    peer.inspect(|peer| Peer::begin(peer, is_whole));
                }
                match here(request, next, working).await {
                    Ok(response) => return response,
                    Err(moved) => {
                        let Moved { request, to, forwarding } = *moved;
                        (request, (to, forwarding))
                    }
                }
            }
            Pass::To(to, forwarding) => (request, (to, forwarding)),
        }
    };
    // Boxed, for it is rare and large, and part of every call's future.
    Box::pin(forward(request, on.map(|On(_, address, _)| *address), &to.0, to.1)).await
}
