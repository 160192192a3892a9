//! Browsers sign in with a key once, and send a cookie from then on.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use model::ErrorCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::access::Caller;
use crate::http::admission::network;
use crate::http::origin::Origin;
use crate::http::{ErrorBody, OpenBody, Rejection, guard};
use crate::node::Node;

/// A sign-in.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SignIn {
    /// An API key with the scope `read` or `admin`.
    key: String,
}

/// The caller.
#[derive(Serialize, ToSchema)]
pub(crate) struct Session {
    /// The key's name in the configuration; null while the node requires no key.
    #[schema(example = "ops")]
    key: Option<String>,
    /// The key's scopes; `admin` while the node requires no key.
    #[schema(example = json!(["read"]))]
    scopes: Vec<String>,
    /// How long the browser stays signed in from now on, in seconds; in the response to a sign-in only.
    #[schema(nullable = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<u64>,
}

impl Session {
    fn of(caller: &Caller, seconds: Option<u64>) -> Self {
        Session { key: caller.name().map(str::to_owned), scopes: caller.scopes(), seconds }
    }
}

/// Sign a browser in. The response sets a cookie with a random name of the session, and not the key; scripts can't
/// read it, and pages of other origins can't use it. With it, calls that change something need the header
/// `X-Throng-Session`, with any value.
#[utoipa::path(post, path = "/api/session", tag = "operate", request_body = SignIn, responses(
    (status = 200, body = Session),
    (status = 401, body = ErrorBody, description = "The key is not an API key of this node"),
    (status = 403, body = ErrorBody, description = "The key has neither the scope read nor admin; or the request comes \
            from a page of another origin, or calls the node by a name that is not in admin.hosts"),
    (status = 429, body = ErrorBody, description = "Ten sign-ins from this address failed within a minute; see \
            Retry-After")))]
pub(crate) async fn sign_in(
    State(node): State<Arc<Node>>,
    origin: Option<Extension<Origin>>,
    headers: HeaderMap,
    OpenBody(SignIn { key }): OpenBody<SignIn>,
) -> Result<Response, Rejection> {
    let address = origin.map(|Extension(origin)| network(origin.ip()));
    let address = address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let access = &node.access;
    let signed_in = guard::check_sign_in(access, &headers).and_then(|()| {
        if !access.ring().requires_key() {
            let message = "this node requires no API key: a sign-in is not needed";
            return Err(Rejection::new(ErrorCode::NoKeys, message));
        }
        access.sign_in(address, key.trim())
    });
    let (caller, id) = signed_in.inspect_err(|rejection| access.count(rejection.code))?;
    caller.count();
    let seconds = access.ring().session().as_secs();
    let cookie = guard::session_cookie(&headers, &id, seconds)
        .ok_or_else(|| Rejection::new(ErrorCode::BadHost, "the Host header is not a valid host"))?;
    let session = Session::of(&caller, Some(seconds));
    Ok(([(header::SET_COOKIE, cookie)], Json(session)).into_response())
}

/// The caller: the key's name and its scopes.
#[utoipa::path(get, path = "/api/session", tag = "operate", responses(
    (status = 200, body = Session)))]
pub(crate) async fn session(caller: Caller) -> Json<Session> {
    Json(Session::of(&caller, None))
}

/// Sign a browser out: its cookie is invalid from now on.
#[utoipa::path(delete, path = "/api/session", tag = "operate", responses(
    (status = 204, description = "The browser is signed out")))]
pub(crate) async fn sign_out(
    State(node): State<Arc<Node>>,
    headers: HeaderMap,
    caller: Caller,
) -> Response {
    node.access.sign_out(&caller);
    let mut response = StatusCode::NO_CONTENT.into_response();
    if let Some(cookie) = guard::session_cookie(&headers, "", 0) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}
