//! An HTTP request with its context, and the checks that protocols share.

use std::borrow::Cow;

use super::reply::{is_of_this_machine, page_is_allowed};
use super::{HttpRequest, Method, Rejection, status_line};
use crate::Settings;
use crate::peer::Peer;
use crate::request::{Decisions, Respond};
use crate::websocket::handshake;
use model::{ConnectionId, ErrorCode};

/// An HTTP request, and what its reply depends on.
pub struct Route<'a> {
    /// The settings.
    pub settings: &'a Settings,
    /// The connection.
    pub id: ConnectionId,
    /// The time, in seconds since 1970.
    pub now_s: u64,
    /// The peer, with the client that a trusted proxy names.
    pub peer: Peer,
    /// The request.
    pub request: &'a HttpRequest<'a>,
    /// The CORS lines of its reply, each with its CRLF.
    pub cors: &'a Cow<'static, str>,
    /// The application's decisions about it.
    pub decisions: &'a Decisions,
}

/// Appends the head of an endless reply, with the header lines of one transport around those that all have.
pub(crate) fn endless_head(kind: &str, connection: &str, cors: &str, out: &mut Vec<u8>) {
    status_line(200, out);
    // X-Accel-Buffering stops nginx in front from delaying messages.
    let shared = "Cache-Control: no-store, no-transform\r\nX-Accel-Buffering: no\r\n\
                  X-Content-Type-Options: nosniff\r\n";
    for lines in [kind, shared, connection, cors, "\r\n"] {
        out.extend_from_slice(lines.as_bytes());
    }
}

impl Route<'_> {
    /// Checks that the request's method is GET or HEAD.
    ///
    /// # Errors
    /// 405 for other methods than GET and HEAD.
    pub fn get(&self) -> Result<(), Rejection> {
        match self.request.method {
            Method::Get | Method::Head => Ok(()),
            Method::Post | Method::Options | Method::Other => {
                Err(Rejection::new(ErrorCode::MethodNotAllowed, "use GET here"))
            }
        }
    }

    /// Checks that the request opens a WebSocket (RFC 6455, section 4.2.1) and returns the value of
    /// `Sec-WebSocket-Accept`.
    pub(crate) fn upgrade(&self) -> Result<String, Rejection> {
        let request = self.request;
        let key = match (request.upgrade, request.header("sec-websocket-version")) {
            (true, Some("13")) => request.header("sec-websocket-key"),
            (true, Some(_)) => {
                return Err(Rejection::new(
                    ErrorCode::BadVersion,
                    "this server speaks only WebSocket version 13",
                ));
            }
            _ => {
                let message = "this path is for WebSockets: connect with ws://, or use /sse, \
                               /stream or /poll";
                return Err(Rejection::new(ErrorCode::UpgradeRequired, message));
            }
        };
        let bad_key = || {
            Rejection::new(
                ErrorCode::BadKey,
                "Sec-WebSocket-Key must be 16 bytes in base64, exactly once",
            )
        };
        let key = key.filter(|_| request.values("sec-websocket-key").count() == 1);
        let accept = handshake::accept(key.ok_or_else(bad_key)?).ok_or_else(bad_key)?;
        if request.method != Method::Get || request.minor == 0 {
            return Err(Rejection::new(
                ErrorCode::BadRequest,
                "a WebSocket handshake must be a GET request with HTTP/1.1",
            ));
        }
        self.page()?;
        Ok(accept)
    }

    /// Checks that the page that makes the request, if one does, may use the server. A browser sends a preflight
    /// before most requests of foreign pages, but not before those that a form can make, and those change something
    /// too.
    pub(crate) fn page(&self) -> Result<(), Rejection> {
        if page_is_allowed(self.settings, self.request) {
            return Ok(());
        }
        let message = "pages of this origin are not allowed here: the server's configuration \
                       (client.cors_origins) lists the allowed origins";
        Err(Rejection::new(ErrorCode::BadOrigin, message))
    }

    /// Checks that the request comes from this machine, if only that gives its client rights.
    pub(crate) fn of_this_machine(&self) -> Result<(), Rejection> {
        if is_of_this_machine(self.settings, self.request) {
            return Ok(());
        }
        let message = "without [auth], only programs and pages of this machine may use MQTT: add \
                       this page's origin to client.cors_origins, or the proxy to \
                       client.trusted_proxies, or add a key to [auth]";
        Err(Rejection::new(ErrorCode::BadOrigin, message))
    }

    /// The framing of a reply that comes later.
    pub(crate) fn respond(&self) -> Respond {
        Respond {
            cors: self.cors.clone(),
            keep_alive: self.request.keep_alive,
            head_only: self.request.method == Method::Head,
        }
    }
}
