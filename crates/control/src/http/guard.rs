//! Who may call: the key, and the care that a server on loopback needs against web pages.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use super::listener::On;
use super::{Rejection, Served};

/// Paths that need no key, besides the files of [`OPEN_FOLDER`]: the dashboard's page, and what load
/// balancers ask for.
const OPEN: [&str; 3] = ["/", "/healthz", "/readyz"];

/// The folder whose files need no key, for they hold nothing about the node.
pub(crate) const OPEN_FOLDER: &str = "/dashboard/";

/// True when a path is answered without the key.
pub(crate) fn is_open(path: &str) -> bool {
    OPEN.contains(&path) || path.starts_with(OPEN_FOLDER)
}

/// Lets a request through that may be answered.
pub(crate) async fn guard<S: Served + ?Sized>(
    State(served): State<Arc<S>>,
    request: Request,
    next: Next,
) -> Response {
    let key = served.api_key();
    let path = request.uri().path();
    if let Err(rejection) = check(key.as_deref(), request.uri(), request.headers()) {
        return rejection.into_response();
    }
    if key.is_some()
        && !is_open(path)
        && let Some(ConnectInfo(On(peer, _))) = request.extensions().get()
    {
        peer.set_keyed();
    }
    next.run(request).await
}

fn check(key: Option<&str>, uri: &Uri, headers: &HeaderMap) -> Result<(), Rejection> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if headers.get_all(header::HOST).iter().count() > 1 {
        return Err(Rejection::bad_request(
            "bad_host",
            "send one Host header: of several nobody knows which counts",
        ));
    }
    let host = text(header::HOST).unwrap_or("");
    let path = uri.path();
    // An origin that is no text is not ours, and of several each must be.
    let is_ours = |origin: &HeaderValue| {
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        origin.is_some_and(|(_, of)| of.eq_ignore_ascii_case(host))
    };
    if !headers.get_all(header::ORIGIN).iter().all(is_ours) {
        let message = "this request comes from a page of another origin: the API is for programs";
        return Err(Rejection::new(StatusCode::FORBIDDEN, "cross_origin", message));
    }
    let Some(key) = key else {
        // A page can make its own name point here (DNS rebinding), but then the name shows.
        if is_local(host) && uri.host().is_none_or(is_local) {
            return Ok(());
        }
        let message = "without an API key this port answers to an IP address or localhost only: \
                       call it so, or configure admin.api_key";
        return Err(Rejection::new(StatusCode::FORBIDDEN, "bad_host", message));
    };
    if is_open(path) {
        return Ok(());
    }
    let token = text(header::AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
    });
    match token {
        Some(token) if is_same(token, key) => Ok(()),
        Some(_) => {
            let message = "this is not the API key";
            Err(Rejection::new(StatusCode::UNAUTHORIZED, "bad_key", message))
        }
        None => {
            let message = "send the API key: Authorization: Bearer KEY";
            Err(Rejection::new(StatusCode::UNAUTHORIZED, "no_key", message))
        }
    }
}

/// Compares in a time that doesn't depend on how much of the key is right.
fn is_same(token: &str, key: &str) -> bool {
    token.as_bytes().ct_eq(key.as_bytes()).into()
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
        check(key, &path.parse().unwrap(), &map)
            .map_or_else(|rejection| rejection.status.as_u16(), |()| 200)
    }

    #[test]
    fn a_key_is_needed_as_soon_as_there_is_one() {
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
    fn pages_of_other_origins_are_rejected() {
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
        assert!(check(None, &uri, &map).is_ok());
        map.append("origin", HeaderValue::from_bytes(b"http://evil\xff.example").unwrap());
        assert_eq!(check(None, &uri, &map).unwrap_err().code, "cross_origin");
    }

    #[test]
    fn there_is_one_host() {
        let host = ("host", "127.0.0.1:8001");
        assert_eq!(status(None, "http://127.0.0.1:8001/api/stats", &[host]), 200);
        assert_eq!(status(None, "http://evil.example/api/stats", &[host]), 403);
        let mut map = HeaderMap::new();
        map.append("host", "127.0.0.1".parse().unwrap());
        map.append("host", "evil.example".parse().unwrap());
        assert_eq!(check(None, &Uri::from_static("/"), &map).unwrap_err().code, "bad_host");
    }
}
