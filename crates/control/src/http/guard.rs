//! Checks callers: the key or the session, the required scope, and the origin of web pages, against which a server on
//! loopback must protect itself.

use std::sync::Arc;

use axum::extract::{ConnectInfo, MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use model::ErrorCode;
use quotas::{Limits, Unit, Who};
use tracing::Span;

use super::access::{Access, COMMAND, Caller, RequiredScope, Ring, Table};
use super::admission::network;
use super::listener::On;
use super::origin::Origin;
use super::{Rejection, Served, cookie};

/// The folder whose files require no key, for they contain nothing about the node.
pub(crate) const OPEN_FOLDER: &str = "/dashboard/";

/// Each wrong key of an address counts.
const GUESSES: Limits = Limits::NONE.with(Unit::Commands, 1);

/// A page with a session sends this header with each request that changes something. No form can send it, and no page
/// of another origin may.
const SESSION_HEADER: HeaderName = HeaderName::from_static("x-throng-session");

/// The header in which a browser says where a request comes from (Fetch Metadata).
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The node, and the required scope of each call.
pub(crate) struct Guard<S: ?Sized> {
    /// The node.
    pub served: Arc<S>,
    /// A row for each route.
    pub table: Table,
}

impl<S: Served + ?Sized> Guard<S> {
    /// Lets a permitted request through, and adds its caller to its extensions. Call it in the request's span, which gets
    /// the name of the key.
    pub fn admit(&self, request: &mut Request) -> Result<(), Rejection> {
        let Guard { served, table } = self;
        let required_scope = match request.extensions().get::<MatchedPath>() {
            Some(path) => table.required_scope(request.method(), path.as_str()),
            None if request.uri().path().starts_with(OPEN_FOLDER) => RequiredScope::Nothing,
            None => RequiredScope::Key,
        };
        let access = served.access();
        let (method, uri, headers) = (request.method(), request.uri(), request.headers());
        let caller =
            check(access, required_scope, method, uri, headers).inspect_err(|rejection| {
                access.count(rejection.code);
                if rejection.code == ErrorCode::BadKey
                    && let Some(origin) = request.extensions().get::<Origin>()
                {
                    guessed(&**served, *origin);
                }
            })?;
        let Some(caller) = caller else { return Ok(()) };
        if let Some(name) = caller.name() {
            Span::current().record("key", name);
            if let Some(ConnectInfo(On(peer, ..))) = request.extensions().get() {
                peer.set_keyed();
            }
        }
        caller.count();
        let may = caller.spend(&COMMAND, &**served).and_then(|()| caller.check(required_scope));
        may.inspect_err(|rejection| access.count(rejection.code))?;
        request.extensions_mut().insert(caller);
        Ok(())
    }
}

/// Counts a wrong key for its address. An address that sends many is listed among the noisiest.
fn guessed(served: &(impl Served + ?Sized), origin: Origin) {
    let (who, now_us) = (Who::Address(network(origin.ip())), served.now_us());
    if let Some(account) = served.quotas().account(who, &COMMAND, &GUESSES, now_us) {
        account.refused(now_us);
    }
}

/// Returns the caller, or `None` if the call requires no key.
fn check(
    access: &Access,
    required_scope: RequiredScope,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Option<Caller>, Rejection> {
    let ring = access.ring();
    let host = own_host(headers)?;
    if !ring.requires_key() {
        // A page can make its own name point here (DNS rebinding), but then `Host` has that name.
        let knows = |host| ring.knows(host);
        if knows(host) && uri.host().is_none_or(knows) {
            return Ok(Some(Caller::without_key()));
        }
        let message = "without an API key this port accepts only requests to an IP address, \
                       localhost or a name in admin.hosts: use one of these, or configure a key \
                       (throng key new)";
        return Err(Rejection::with_status(StatusCode::FORBIDDEN, ErrorCode::BadHost, message));
    }
    if required_scope == RequiredScope::Nothing {
        return Ok(None);
    }
    if let Some(token) = bearer(headers) {
        return access.by_token(&ring, token).map(Some);
    }
    let Some(id) = cookie::read(headers, host) else { return Err(Rejection::no_key()) };
    check_page(&ring, host, headers)?;
    if !method.is_safe() && !headers.contains_key(SESSION_HEADER) {
        let message = "a browser session may make changes only with the header X-Throng-Session, \
                       which proves that the request comes from a page of this origin: send it, \
                       or send a key as Authorization: Bearer";
        return Err(Rejection::new(ErrorCode::CrossOrigin, message));
    }
    access.by_session(&ring, id).map(Some)
}

/// Returns the request's `Host`, empty if it has none. Rejects several, and a page of another origin.
fn own_host(headers: &HeaderMap) -> Result<&str, Rejection> {
    if headers.get_all(header::HOST).iter().count() > 1 {
        return Err(Rejection::new(
            ErrorCode::BadHost,
            "the request has several Host headers: send exactly one",
        ));
    }
    let host = text(headers, &header::HOST).unwrap_or("");
    // An origin that is not text is foreign. If there are several, each must be ours.
    let is_ours = |origin: &HeaderValue| {
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        origin.is_some_and(|(_, of)| of.eq_ignore_ascii_case(host))
    };
    match headers.get_all(header::ORIGIN).iter().all(is_ours) {
        true => Ok(host),
        false => {
            let message =
                "this request comes from a page of another origin: the API is for programs";
            Err(Rejection::new(ErrorCode::CrossOrigin, message))
        }
    }
}

/// Checks that a browser may use or begin a session here: the node must be known by the name in `Host`, and the
/// request must come from a page of the node, or from the user.
fn check_page(ring: &Ring, host: &str, headers: &HeaderMap) -> Result<(), Rejection> {
    if !ring.knows(host) {
        let message = "a browser can sign in only where this port is called by an IP address, \
                       localhost or a name in admin.hosts: add the name there";
        return Err(Rejection::with_status(StatusCode::FORBIDDEN, ErrorCode::BadHost, message));
    }
    match headers.get(SEC_FETCH_SITE).map(HeaderValue::as_bytes) {
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(_) => {
            let message = "this request comes from a page of another origin, which may not use \
                           the session of this one";
            Err(Rejection::new(ErrorCode::CrossOrigin, message))
        }
    }
}

/// Checks a request to `POST /api/session` before its key is read.
pub(crate) fn check_sign_in(access: &Access, headers: &HeaderMap) -> Result<(), Rejection> {
    check_page(&access.ring(), own_host(headers)?, headers)
}

/// Returns the cookie with a session's id; an empty id and 0 delete it. The cookie is for TLS alone if the page came
/// over TLS, as its origin says.
pub(crate) fn session_cookie(headers: &HeaderMap, id: &str, seconds: u64) -> Option<HeaderValue> {
    let host = text(headers, &header::HOST).unwrap_or("");
    let is_secure =
        text(headers, &header::ORIGIN).is_some_and(|origin| origin.starts_with("https://"));
    cookie::write(host, id, seconds, is_secure)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = text(headers, &header::AUTHORIZATION)?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::http::access::{AccessSettings, ApiKey};

    fn with(key: Option<&str>) -> Arc<Access> {
        let keys = key.map(|key| ApiKey::of_text("admin.api_key", key)).into_iter().collect();
        let hosts = vec!["throng.example".into()];
        Access::new(AccessSettings { keys, hosts, ..AccessSettings::default() })
    }

    fn checked(
        key: Option<&str>,
        path: &str,
        map: &HeaderMap,
    ) -> Result<Option<Caller>, Rejection> {
        let required_scope =
            if path == "/readyz" { RequiredScope::Nothing } else { RequiredScope::Read };
        check(&with(key), required_scope, &Method::GET, &path.parse().unwrap(), map)
    }

    fn status(key: Option<&str>, path: &str, headers: &[(&'static str, &str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        checked(key, path, &map).map_or_else(|rejection| rejection.status.as_u16(), |_| 200)
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
            ("throng.example:8001", 200),
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
        assert!(checked(None, "/", &map).is_ok());
        map.append("origin", HeaderValue::from_bytes(b"http://evil\xff.example").unwrap());
        assert_eq!(checked(None, "/", &map).err().unwrap().code, "cross_origin");
    }

    #[test]
    fn there_is_one_host() {
        let host = ("host", "127.0.0.1:8001");
        assert_eq!(status(None, "http://127.0.0.1:8001/api/stats", &[host]), 200);
        assert_eq!(status(None, "http://evil.example/api/stats", &[host]), 403);
        let mut map = HeaderMap::new();
        map.append("host", "127.0.0.1".parse().unwrap());
        map.append("host", "evil.example".parse().unwrap());
        assert_eq!(checked(None, "/", &map).err().unwrap().code, "bad_host");
    }
}
