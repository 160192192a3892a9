//! HTTP replies (RFC 9110 and 9112).

use std::borrow::Cow;
use std::net::IpAddr;

use model::{CodedError, ErrorCode, Position};

use super::{HttpRequest, Rejection};
use crate::request::Respond;
use crate::{Settings, json};

/// The reason phrase of a status that Throng uses.
pub fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        200 => "OK",
        204 => "No Content",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Unknown",
    }
}

/// The media type of nearly all replies.
const JSON: &str = "application/json";

/// A complete short reply.
#[derive(Debug)]
pub struct HttpReply<'a> {
    /// The status.
    pub status: u16,
    /// Further header lines, each ending in CRLF.
    pub headers: &'a str,
    /// The body's media type; not sent with an empty body.
    pub content_type: &'a str,
    /// The body.
    pub body: &'a [u8],
    /// Whether the connection stays open.
    pub keep_alive: bool,
    /// Leaves the body out (HEAD), but sends its length.
    pub head_only: bool,
}

impl HttpReply<'_> {
    /// Appends the reply. `nosniff` stops browsers from guessing another media type, and caches must not store JSON,
    /// which is the state of a moment.
    pub fn write(&self, out: &mut Vec<u8>) {
        status_line(self.status, out);
        if !self.body.is_empty() {
            out.extend_from_slice(b"Content-Type: ");
            out.extend_from_slice(self.content_type.as_bytes());
            out.extend_from_slice(b"\r\nX-Content-Type-Options: nosniff\r\n");
            if self.content_type == JSON {
                out.extend_from_slice(b"Cache-Control: no-store\r\n");
            }
        }
        // A 204 must have no Content-Length (RFC 9110, section 8.6).
        if self.status != 204 {
            out.extend_from_slice(b"Content-Length: ");
            out.extend_from_slice(itoa::Buffer::new().format(self.body.len()).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        if !self.keep_alive {
            out.extend_from_slice(b"Connection: close\r\n");
        }
        out.extend_from_slice(self.headers.as_bytes());
        out.extend_from_slice(b"\r\n");
        if !self.head_only {
            out.extend_from_slice(self.body);
        }
    }
}

/// Appends the status line with its CRLF.
pub fn status_line(status: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(itoa::Buffer::new().format(status).as_bytes());
    out.push(b' ');
    out.extend_from_slice(reason(status).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// The JSON body of an error: `{"error":{"code":…,"message":…}}`.
pub fn error_body(code: &str, message: &str) -> Vec<u8> {
    #[derive(serde::Serialize)]
    struct Body<'a> {
        error: Error<'a>,
    }
    #[derive(serde::Serialize)]
    struct Error<'a> {
        code: &'a str,
        message: &'a str,
    }
    serde_json::to_vec(&Body { error: Error { code, message } }).unwrap_or_default()
}

/// Appends a rejection: a JSON body, and the header lines that the status requires.
pub fn reject(
    rejection: &Rejection,
    cors: &str,
    keep_alive: bool,
    head_only: bool,
    out: &mut Vec<u8>,
) {
    let is_any = |codes: [ErrorCode; 2]| codes.iter().any(|code| rejection.code == *code);
    let extra = match rejection.status {
        // RFC 6750, section 3: the challenge for a request without a token contains no error.
        401 if is_any([ErrorCode::TokenRequired, ErrorCode::Unauthorized]) => {
            "WWW-Authenticate: Bearer realm=\"throng\"\r\n"
        }
        401 => "WWW-Authenticate: Bearer realm=\"throng\", error=\"invalid_token\"\r\n",
        403 if is_any([ErrorCode::NotGranted, ErrorCode::NotYourUser]) => {
            "WWW-Authenticate: Bearer realm=\"throng\", error=\"insufficient_scope\"\r\n"
        }
        405 => "Allow: GET, HEAD, OPTIONS\r\n",
        426 => "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
        503 | 429 => "Retry-After: 1\r\n",
        _ => "",
    };
    let body = error_body(rejection.code.text(), &rejection.message);
    short_reply(rejection.status, &format!("{extra}{cors}"), &body, keep_alive, head_only, out);
}

pub(crate) fn short_reply(
    status: u16,
    headers: &str,
    body: &[u8],
    keep_alive: bool,
    head_only: bool,
    out: &mut Vec<u8>,
) {
    let content_type = JSON;
    // Connection must list Upgrade if the reply offers an upgrade (RFC 9110, section 7.8).
    let offered = format!("Connection: Upgrade\r\n{headers}");
    let headers = if status == 426 && keep_alive { &offered } else { headers };
    HttpReply { status, headers, content_type, body, keep_alive, head_only }.write(out);
}

/// Appends a reply of status 200 with this JSON text.
pub fn json_reply(respond: &Respond, body: &[u8], out: &mut Vec<u8>) {
    let Respond { cors, keep_alive, head_only } = respond;
    short_reply(200, cors, body, *keep_alive, *head_only, out);
}

/// Appends the rejection of a request that was pending.
pub fn reject_to(respond: &Respond, rejection: &Rejection, out: &mut Vec<u8>) {
    let Respond { cors, keep_alive, head_only } = respond;
    reject(rejection, cors, *keep_alive, *head_only, out);
}

/// Appends the reply to a client's publish: the message's position, or the error.
pub fn publish_reply(
    respond: &Respond,
    published: Result<Position, CodedError>,
    out: &mut Vec<u8>,
) {
    match published {
        Ok(id) => {
            let body = json::published(id);
            short_reply(200, &respond.cors, body.as_bytes(), respond.keep_alive, false, out);
        }
        Err(error) => reject_to(respond, &error.into(), out),
    }
}

/// The CORS lines for a request: with them a browser lets the page read the reply (WHATWG Fetch, section CORS
/// protocol).
pub(super) fn cors(settings: &Settings, request: &HttpRequest<'_>) -> Cow<'static, str> {
    if any_origin(settings) {
        return ANY_ORIGIN.into();
    }
    let mut origins = request.bytes("origin");
    match (origins.next().map(std::str::from_utf8), origins.next()) {
        (Some(Ok(origin)), None) if settings.cors_origins.iter().any(|it| it == origin) => {
            // This line lets the page's requests bring the cookie that holds a token.
            let credentials = match settings.auth.is_some() && settings.token_cookie.is_some() {
                true => "Access-Control-Allow-Credentials: true\r\n",
                false => "",
            };
            format!("Access-Control-Allow-Origin: {origin}\r\n{credentials}Vary: Origin\r\n").into()
        }
        _ => "Vary: Origin\r\n".into(),
    }
}

/// The CORS line that lets any page read the reply.
pub const ANY_ORIGIN: &str = "Access-Control-Allow-Origin: *\r\n";

fn any_origin(settings: &Settings) -> bool {
    settings.cors_origins.iter().any(|allowed| allowed == "*")
}

/// Checks that the configuration names this origin; `*` names none.
pub(super) fn origin_is_named(settings: &Settings, origin: &[u8]) -> bool {
    settings.cors_origins.iter().any(|it| it != "*" && it.as_bytes() == origin)
}

/// Checks that the requesting page may read this server's replies. A request without an origin is not from a page. A
/// browser sends one origin, in ASCII: of several all must be allowed, and one that is not UTF-8 is foreign.
pub(super) fn page_is_allowed(settings: &Settings, request: &HttpRequest<'_>) -> bool {
    let allowed = |origin| settings.cors_origins.iter().any(|it| it.as_bytes() == origin);
    any_origin(settings) || request.bytes("origin").all(allowed)
}

/// Checks that the headers of a request fit one from this machine: no page of another site, unless the configuration
/// names that, and no proxy. The caller checks the address.
pub(super) fn is_of_this_machine(settings: &Settings, request: &HttpRequest<'_>) -> bool {
    let is_own = |origin: &[u8]| origin_is_loopback(origin) || origin_is_named(settings, origin);
    let mut proxied = ["x-forwarded-for", "forwarded"].into_iter();
    request.bytes("origin").all(is_own) && !proxied.any(|name| request.bytes(name).next().is_some())
}

/// Checks that the page came from a server on this machine. The header `Host` would prove nothing: any site can make
/// its own name point here.
fn origin_is_loopback(origin: &[u8]) -> bool {
    let origin = std::str::from_utf8(origin).unwrap_or_default();
    let Some((_, authority)) = origin.split_once("://") else { return false };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if is_port(port) => host,
        _ => authority,
    };
    let address = host.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(host);
    let is_loopback = |ip: IpAddr| ip.to_canonical().is_loopback();
    host == "localhost" || address.parse().is_ok_and(is_loopback)
}

/// The path of health checks.
pub const HEALTH: &str = "/healthz";

/// Appends the reply to a health check.
pub(crate) fn healthy(cors: &str, keep_alive: bool, head_only: bool, out: &mut Vec<u8>) {
    short_reply(200, cors, b"{\"status\":\"ok\"}", keep_alive, head_only, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_this_machine_are_those_of_loopback_addresses() {
        for own in [
            "http://localhost",
            "https://localhost:3000",
            "http://127.0.0.1:8000",
            "http://127.9.9.9",
            "http://[::1]",
            "http://[::1]:8000",
            "http://[::ffff:127.0.0.1]:1",
        ] {
            assert!(origin_is_loopback(own.as_bytes()), "{own}");
        }
        for foreign in [
            "",
            "null",
            "localhost",
            "http://",
            "https://www.example.com",
            "http://localhost.example.com",
            "http://127.0.0.1.example.com",
            "http://localhost@example.com",
            "http://example.com:127",
            "http://192.168.1.1",
            "http://[::2]:1",
            "http://[::1",
            "chrome-extension://abc",
            "file://",
        ] {
            assert!(!origin_is_loopback(foreign.as_bytes()), "{foreign}");
        }
        assert!(!origin_is_loopback(b"http://localhost\xff"));
    }
}
