//! The layer around every call. It logs the call, limits its time, checks its caller, sets the headers of all responses,
//! and notes the progress of the request, on which its connection depends.
//!
//! It is one layer, because each layer costs every call several allocations. An `async fn` stores its arguments beside
//! what it awaits, so that nested ones would store and copy a request many times. So functions here return futures, and
//! box futures that few requests need.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::HttpBody;
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::Route;
use futures_util::future::{BoxFuture, Either, FutureExt, ready};
use model::ErrorCode;
use tower::Service;

use super::gate::{Gate, Moved, Pass, PendingRequest, forward};
use super::guard::Guard;
use super::listener::On;
use super::origin::Origin;
use super::trace::{REQUEST_ID, RequestIds};
use super::{Rejection, Served};

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

/// What all routes of this layer share.
pub(crate) struct Middleware<S: ?Sized> {
    pub ids: RequestIds,
    pub gate: Arc<Gate>,
    pub guard: Guard<S>,
}

/// A route within this layer.
pub(crate) struct MiddlewareService<S: ?Sized> {
    pub middleware: Arc<Middleware<S>>,
    pub route: Route,
}

impl<S: ?Sized> Clone for MiddlewareService<S> {
    fn clone(&self) -> Self {
        MiddlewareService { middleware: self.middleware.clone(), route: self.route.clone() }
    }
}

impl<S: Served + ?Sized> Service<Request> for MiddlewareService<S> {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // A route is always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let MiddlewareService { middleware, route } = self.clone();
        // hyper and axum call a service when they first poll its future. By then hyper has read the part of the body that
        // came with the head.
        respond(middleware, request, route).map(Ok).boxed()
    }
}

/// Returns the response to a request.
fn respond<S: Served + ?Sized>(
    middleware: Arc<Middleware<S>>,
    mut request: Request,
    route: Route,
) -> impl Future<Output = Response> + use<S> {
    let peer = request.extensions().get().map(|ConnectInfo(On(_, peer, _))| *peer);
    let access = middleware.guard.served.access();
    let origin = peer.map(|peer| Origin::of(peer, request.headers(), access.ring().proxies()));
    if let Some(origin) = origin {
        request.extensions_mut().insert(origin);
    }
    let (id, call) = middleware.ids.begin(&request, origin);
    let is_shown = request.method().is_safe();
    let work = call.span().in_scope(|| track(middleware, request, route));
    call.run(work).map(move |response| with_headers(response, id, is_shown))
}

/// Sets the headers that all responses have. A browser shows the response if `is_shown`.
fn with_headers(mut response: Response, id: HeaderValue, is_shown: bool) -> Response {
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

/// Marks the progress of a request on its connection. A connection that was admitted for health checks only gets no
/// other call.
fn track<S: Served + ?Sized>(
    middleware: Arc<Middleware<S>>,
    request: Request,
    route: Route,
) -> impl Future<Output = Response> + use<S> {
    let on = request.extensions().get().map(|ConnectInfo(on): &ConnectInfo<On>| on.clone());
    if let Some(On(peer, ..)) = &on {
        peer.begin(request.body().is_end_stream());
    }
    let is_vital = VITAL.contains(&request.uri().path());
    let response = match &on {
        Some(On(peer, ..)) if peer.is_spare && !is_vital => {
            let message = "all connections of the admin port are busy (admin.connections_max, \
                           admin.connections_per_address_max): try again in a second";
            let rejection = Rejection::new(ErrorCode::Overloaded, message);
            let response = ([(header::CONNECTION, "close")], rejection).into_response();
            Either::Left(ready(response))
        }
        _ => Either::Right(pass(middleware, on.as_ref(), request, route)),
    };
    response.inspect(move |_| {
        on.inspect(|On(peer, ..)| peer.on_replied());
    })
}

/// Serves a request as soon as the gate lets it through, or forwards it to the process that has taken over.
fn pass<S: Served + ?Sized>(
    middleware: Arc<Middleware<S>>,
    on: Option<&On>,
    mut request: Request,
    route: Route,
) -> Either<impl Future<Output = Response> + use<S>, BoxFuture<'static, Response>> {
    let (path, gate) = (request.uri().path(), &middleware.gate);
    let address = on.map(|On(_, address, _)| *address);
    if (path == LIVE || path == TRACE) && gate.is_forwarding() {
        // The handler ends the stream at once, after the check of the key.
        let response = make_call(&middleware.guard, request, route).map(|mut response| {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            response
        });
        return Either::Right(response.boxed());
    }
    let pending = if VITAL.contains(&path) || NEVER_PAUSED.contains(&path) {
        match gate.pass_vital() {
            None => PendingRequest::Uncounted,
            Some((to, forwarding)) => {
                return Either::Right(forward_moved(Moved { request, to, forwarding }, address));
            }
        }
    } else {
        match gate.work() {
            Some(working) => PendingRequest::new(working, &mut request),
            None => return Either::Right(wait_and_serve(middleware, on.cloned(), request, route)),
        }
    };
    Either::Left(serve(pending, address, &middleware.guard, request, route))
}

/// Serves a request as soon as the gate opens, or forwards it.
fn wait_and_serve<S: Served + ?Sized>(
    middleware: Arc<Middleware<S>>,
    on: Option<On>,
    mut request: Request,
    route: Route,
) -> BoxFuture<'static, Response> {
    let response = async move {
        let address = on.as_ref().map(|On(_, address, _)| *address);
        let peer = on.as_ref().map(|On(peer, ..)| peer);
        let is_whole = request.body().is_end_stream();
        // The client is not to blame for the wait, whatever it has sent.
        peer.inspect(|peer| peer.body_arrived());
        match middleware.gate.pass().await {
            Pass::Here(working) => {
                peer.inspect(|peer| peer.begin(is_whole));
                let pending = PendingRequest::new(working, &mut request);
                serve(pending, address, &middleware.guard, request, route).await
            }
            Pass::To(to, forwarding) => {
                forward_moved(Moved { request, to, forwarding }, address).await
            }
        }
    };
    response.boxed()
}

/// Serves a request, unless another process takes over before all of its body has come.
fn serve<S: Served + ?Sized>(
    pending: PendingRequest,
    address: Option<SocketAddr>,
    guard: &Guard<S>,
    request: Request,
    route: Route,
) -> impl Future<Output = Response> + use<S> {
    make_call(guard, request, route).then(move |response| match pending.on_replied(response) {
        Ok(response) => Either::Left(ready(response)),
        Err(moved) => Either::Right(forward_moved(*moved, address)),
    })
}

/// Forwards a request to the process that has taken over. The future is boxed, for few requests need it.
fn forward_moved(
    Moved { request, to, forwarding }: Moved,
    address: Option<SocketAddr>,
) -> BoxFuture<'static, Response> {
    async move { forward(request, address, &to, forwarding).await }.boxed()
}

/// Checks the caller of a request, makes the call, and ends one that takes longer than [`REQUEST_MAX`].
fn make_call<S: Served + ?Sized>(
    guard: &Guard<S>,
    mut request: Request,
    mut route: Route,
) -> impl Future<Output = Response> + use<S> {
    if let Err(rejection) = guard.admit(&mut request) {
        return Either::Left(ready(rejection.into_response()));
    }
    let reply = tokio::time::timeout(REQUEST_MAX, route.call(request)).map(|reply| match reply {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(_) => {
            let message = "the request did not arrive completely, or did not finish, in 30 \
                           seconds: a part of a batch may be done";
            Rejection::new(ErrorCode::RequestTimeout, message).into_response()
        }
    });
    Either::Right(reply)
}
