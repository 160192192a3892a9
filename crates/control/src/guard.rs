//! Who may call: the key, and the care that a server on loopback needs against web pages.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use axum::body::HttpBody;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use crate::error::{Refused, bad, refused};
use crate::listener::On;
use crate::{Node, dashboard};

/// Paths that anyone may ask, besides the dashboard's files: its page, and what load balancers ask.
const OPEN: [&str; 3] = ["/", "/healthz", "/readyz"];

/// Paths that are answered when all connections are busy: what watches over the node.
const VITAL: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// True when a path is answered without the key.
pub(crate) fn is_open(path: &str) -> bool {
    OPEN.contains(&path) || path.starts_with(dashboard::FOLDER)
}

pub(crate) async fn guard(State(node): State<Arc<Node>>, request: Request, next: Next) -> Response {
    let key = node.live.read().unwrap_or_else(PoisonError::into_inner).api_key.clone();
    let path = request.uri().path();
    if let Err(refused) = allowed(key.as_deref(), request.uri(), request.headers()) {
        return refused.into_response();
    }
    if key.is_some()
        && !is_open(path)
        && let Some(ConnectInfo(On(peer))) = request.extensions().get()
    {
        peer.has_key();
    }
    next.run(request).await
}

/// Tells the connection where its request is, and refuses what its place is not for.
pub(crate) async fn attend(request: Request, next: Next) -> Response {
    let Some(ConnectInfo(On(peer))) = request.extensions().get::<ConnectInfo<On>>().cloned() else {
        return next.run(request).await;
    };
    peer.begin(request.body().is_end_stream());
    let response = match peer.is_spare && !VITAL.contains(&request.uri().path()) {
        true => {
            let message = "all connections of the admin port are busy (admin.connections_max, \
                           admin.connections_per_address_max): try again in a second";
            let refused = refused(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message);
            ([(header::CONNECTION, "close")], refused).into_response()
        }
        false => next.run(request).await,
    };
    peer.answered();
    response
}

/// What no answer may lack: browsers neither guess what it is nor keep it.
pub(crate) async fn headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn allowed(key: Option<&str>, uri: &Uri, headers: &HeaderMap) -> Result<(), Refused> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if headers.get_all(header::HOST).iter().count() > 1 {
        return Err(bad("bad_host", "send one Host header: of several nobody knows which counts"));
    }
    let host = text(header::HOST).unwrap_or("");
    let path = uri.path();
    // An origin that can't be read is not ours, and of several each must be.
    let is_ours = |origin: &HeaderValue| {
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        origin.is_some_and(|(_, of)| of.eq_ignore_ascii_case(host))
    };
    if !headers.get_all(header::ORIGIN).iter().all(is_ours) {
        let message = "this request comes from a page of another origin: the API is for programs";
        return Err(refused(StatusCode::FORBIDDEN, "cross_origin", message));
    }
    let Some(key) = key else {
        // A page can make its own name point here (DNS rebinding), but then the name shows.
        if is_local(host) && uri.host().is_none_or(is_local) {
            return Ok(());
        }
        let message = "without an API key this port answers to an IP address or localhost only: \
                       call it so, or configure admin.api_key";
        return Err(refused(StatusCode::FORBIDDEN, "bad_host", message));
    };
    if is_open(path) {
        return Ok(());
    }
    let given = text(header::AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
    });
    match given {
        Some(given) if same(given, key) => Ok(()),
        Some(_) => {
            let message = "this is not the API key";
            Err(refused(StatusCode::UNAUTHORIZED, "bad_key", message))
        }
        None => {
            let message = "send the API key: Authorization: Bearer KEY";
            Err(refused(StatusCode::UNAUTHORIZED, "no_key", message))
        }
    }
}

/// In a time that doesn't tell how much of it is right.
fn same(given: &str, key: &str) -> bool {
    given.as_bytes().ct_eq(key.as_bytes()).into()
}

/// A `Host` without its port, and an IPv6 address without its brackets.
pub(crate) fn host_name(host: &str) -> &str {
    match host.strip_prefix('[') {
        // What follows an address's bracket is a port or nothing, or it is no address.
        Some(v6) => match v6.split_once(']') {
            Some((name, rest)) if rest.is_empty() || rest.starts_with(':') => name,
            _ => "",
        },
        None => host.split(':').next().unwrap_or(""),
    }
}

fn is_local(host: &str) -> bool {
    let name = host_name(host);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(key: Option<&str>, path: &str, headers: &[(&'static str, &str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        allowed(key, &path.parse().unwrap(), &map)
            .map_or_else(|refused| refused.status.as_u16(), |()| 200)
    }

    #[test]
    fn a_key_is_asked_for_as_soon_as_there_is_one() {
        let key = Some("0123456789abcdef");
        let host = ("host", "a.example");
        assert_eq!(status(key, "/api/stats", &[host]), 401);
        assert_eq!(
            status(key, "/metrics", &[host, ("authorization", "Bearer 0123456789abcdex")]),
            401
        );
        assert_eq!(
            status(key, "/metrics", &[host, ("authorization", "Basic 0123456789abcdef")]),
            401
        );
        assert_eq!(
            status(key, "/api/stats", &[host, ("authorization", "bearer 0123456789abcdef")]),
            200
        );
        assert_eq!(status(key, "/readyz", &[host]), 200);
    }

    #[test]
    fn pages_of_other_origins_are_kept_out() {
        for (host, want) in [
            ("127.0.0.1:8001", 200),
            ("localhost:8001", 200),
            ("[::1]:8001", 200),
            ("evil.example", 403),
            ("127.0.0.1.evil.example", 403),
            ("[::1].evil.example", 403),
            ("", 403),
        ] {
            assert_eq!(status(None, "/api/publish", &[("host", host)]), want, "{host}");
        }
        let host = ("host", "127.0.0.1:8001");
        assert_eq!(status(None, "/", &[host, ("origin", "http://127.0.0.1:8001")]), 200);
        assert_eq!(status(None, "/", &[host, ("origin", "http://evil.example")]), 403);
        assert_eq!(status(None, "/", &[host, ("origin", "null")]), 403);
        let mut map = HeaderMap::new();
        map.insert("host", "127.0.0.1:8001".parse().unwrap());
        map.append("origin", "http://127.0.0.1:8001".parse().unwrap());
        let uri = Uri::from_static("/");
        assert!(allowed(None, &uri, &map).is_ok());
        map.append("origin", HeaderValue::from_bytes(b"http://evil\xff.example").unwrap());
        assert_eq!(allowed(None, &uri, &map).unwrap_err().code, "cross_origin");
    }

    #[test]
    fn there_is_one_host() {
        let host = ("host", "127.0.0.1:8001");
        assert_eq!(status(None, "http://127.0.0.1:8001/api/stats", &[host]), 200);
        assert_eq!(status(None, "http://evil.example/api/stats", &[host]), 403);
        let mut map = HeaderMap::new();
        map.append("host", "127.0.0.1".parse().unwrap());
        map.append("host", "evil.example".parse().unwrap());
        assert_eq!(allowed(None, &Uri::from_static("/"), &map).unwrap_err().code, "bad_host");
    }
}
