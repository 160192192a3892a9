//! HTTP before or between requests: the protocol that a connection begins in. It passes each request to the protocol
//! that has its path, and serves the other paths itself.

use std::net::IpAddr;

use model::{CloseReason, Encoding, ErrorCode, Message};
use proxies::{ProxyHeader, forwarded, x_forwarded_for};

use super::reply::{healthy, short_reply};
use super::{
    ACK, ANY_ORIGIN, Endpoint, Grant, HEALTH, HttpRequest, Method, Needs, Parsed, Rejection, Route,
    error_body, parse, reject, reply,
};
use crate::peer::Peer;
use crate::protocol::{Delivery, Liveness, Protocol, Protocols, Read, Reader};
use crate::request::{Interrupt, Request, Respond};
use crate::{Codecs, Settings};

/// The interim reply to a request that waits for one before it sends its body.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What HTTP itself serves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Own {
    Publish,
    Acknowledge,
    Presence,
    History,
    Status,
    Health,
}

/// Its paths; each is reached by its path alone.
const OWN: [(Own, &str); 6] = [
    (Own::Publish, "/publish"),
    (Own::Acknowledge, ACK),
    (Own::Presence, "/presence"),
    (Own::History, "/history"),
    (Own::Status, "/status"),
    (Own::Health, HEALTH),
];

impl Own {
    fn at(path: &str) -> Option<Self> {
        OWN.iter().find(|(_, own)| *own == path).map(|(own, _)| *own)
    }

    /// The method that it takes, and what clients need for it.
    const fn row(self) -> (&'static str, Needs) {
        match self {
            Own::Publish => ("POST", Needs::Grants(&[Grant::Publish])),
            Own::Acknowledge => ("POST", Needs::User),
            Own::Presence => ("GET", Needs::Grants(&[Grant::Subscribe, Grant::Presence])),
            Own::History => ("GET", Needs::Grants(&[Grant::History])),
            Own::Status | Own::Health => ("GET", Needs::Nothing),
        }
    }
}

/// A row for each of `OWN`.
const ENDPOINTS: [Endpoint; OWN.len()] = {
    let mut rows = [Endpoint::new("", "", Needs::Nothing); OWN.len()];
    let mut at = 0;
    while at < OWN.len() {
        let (own, path) = OWN[at];
        let (methods, needs) = own.row();
        rows[at] = Endpoint::new(methods, path, needs);
        at += 1;
    }
    rows
};

/// HTTP before or between requests. The server pushes nothing to it.
pub struct Http;

impl Protocol for Http {
    fn name(&self) -> &'static str {
        "http"
    }

    fn encoding(&self) -> Encoding {
        Encoding(0)
    }

    fn delivery(&self) -> Delivery {
        Delivery::Nothing
    }

    fn liveness(&self, _settings: &Settings) -> Liveness {
        Liveness::Unchecked
    }

    fn endpoints(&self) -> &'static [Endpoint] {
        &ENDPOINTS
    }

    fn read(&self, reader: &mut Reader<'_>, bytes: &mut [u8], out: &mut Vec<u8>) -> Read {
        let (settings, id, now_s) = (reader.settings, reader.id, reader.now_s());
        let decisions = reader.decisions;
        let (consumed, request) = match parse(bytes, &settings.http) {
            Ok(Parsed::Partial) => return Read::MORE,
            Ok(Parsed::Head { mut request, bytes, expects_continue }) => {
                // The server doesn't read the body of a rejected request: the connection ends with the reply.
                request.keep_alive = false;
                reader.peer.client = client(settings, &request, &reader.peer);
                let cors = reply::cors(settings, &request);
                let peer = reader.peer.clone();
                let request = &request;
                let route = Route { settings, id, peer, now_s, request, cors: &cors, decisions };
                match before_body(reader.protocols, &route, out) {
                    true => (0, Request::Rejected),
                    false => {
                        let interim = if expects_continue { CONTINUE } else { &[] };
                        (0, Request::Continue { bytes, interim })
                    }
                }
            }
            Ok(Parsed::Whole(request, consumed)) => {
                reader.peer.client = client(settings, &request, &reader.peer);
                let cors = reply::cors(settings, &request);
                let peer = reader.peer.clone();
                let request = &request;
                let route = Route { settings, id, peer, now_s, request, cors: &cors, decisions };
                let from = out.len();
                match dispatch(reader.protocols, &route, out) {
                    Ok(request_or_rejection) => (consumed, request_or_rejection),
                    // The same request comes again.
                    Err(Interrupt::Pending(pending)) => {
                        out.truncate(from);
                        (0, Request::Pending(pending))
                    }
                    Err(Interrupt::Rejection(rejection)) => {
                        reject_route(reader.protocols, &route, &rejection, out);
                        (consumed, Request::Replied { keep_alive: request.keep_alive })
                    }
                }
            }
            Err(rejection) => {
                reject_unread(reader.protocols, bytes, &rejection, Method::Get, out);
                (0, Request::Rejected)
            }
        };
        let consumed = if matches!(request, Request::Rejected) { bytes.len() } else { consumed };
        Read { consumed, request: Some(request), ..Read::MORE }
    }

    fn encode(&self, _message: &Message, _codecs: &mut Codecs, _out: &mut Vec<u8>) {}

    fn goodbye(&self, _close: CloseReason, _retry_ms: u32, _out: &mut Vec<u8>) {}
}

/// The client's address, as the head of a trusted proxy's request gives it.
fn client(settings: &Settings, request: &HttpRequest<'_>, peer: &Peer) -> Option<IpAddr> {
    let (proxy, trusted) = (peer.proxy?, &settings.proxies.networks);
    let values = |name| request.bytes(name).collect::<Vec<_>>().into_iter();
    match settings.proxies.header {
        ProxyHeader::XForwardedFor => {
            Some(x_forwarded_for(values("x-forwarded-for"), trusted, proxy))
        }
        ProxyHeader::Forwarded => Some(forwarded(values("forwarded"), trusted, proxy)),
        ProxyHeader::ProxyProtocol => None,
    }
}

/// Passes a request to the method that serves it.
fn dispatch(
    protocols: &Protocols,
    route: &Route<'_>,
    out: &mut Vec<u8>,
) -> Result<Request, Interrupt> {
    let HttpRequest { path, method, keep_alive, .. } = *route.request;
    if method == Method::Options {
        route.preflight(out);
        return Ok(Request::Replied { keep_alive });
    }
    let has_path = |row: &Endpoint| row.path == path;
    let mut here = protocols.names().filter(|protocol| protocol.endpoints().iter().any(has_path));
    if let Some(request_or_rejection) = here.find_map(|protocol| protocol.route(route, out)) {
        return request_or_rejection;
    }
    let head_only = method == Method::Head;
    let get = head_only || method == Method::Get;
    match (Own::at(path), method) {
        (Some(Own::Publish), Method::Post) => return route.publish(),
        (Some(Own::Acknowledge), Method::Post) => return route.acknowledge(),
        (Some(Own::Presence), _) if get => return route.presence(),
        (Some(Own::History), _) if get => return route.history(),
        (Some(Own::Status), _) if get && route.settings.status_page => {
            return Ok(route.status(out)?);
        }
        (Some(Own::Health), _) if get => healthy(route.cors, keep_alive, head_only, out),
        (None, _) if get && route.file(path, out) => {}
        (Some(Own::Presence | Own::History | Own::Health), _) => {
            route.get()?;
        }
        (Some(Own::Publish | Own::Acknowledge), _) => {
            let body = error_body(ErrorCode::MethodNotAllowed.text(), "use POST here");
            let headers = format!("Allow: POST, OPTIONS\r\n{}", route.cors);
            short_reply(405, &headers, &body, keep_alive, head_only, out);
        }
        (Some(Own::Status) | None, _) => {
            return Err(Rejection::new(
                ErrorCode::NotFound,
                "there is no such path: clients use /sse, /stream, /poll, /ws and /socket; the \
                 application's API is on the admin port",
            )
            .into());
        }
    }
    Ok(Request::Replied { keep_alive })
}

/// Decides about a request whose head is complete and whose body is not. Returns true if the reply is in `out`: the
/// server then reads no body.
fn before_body(protocols: &Protocols, route: &Route<'_>, out: &mut Vec<u8>) -> bool {
    let of_protocol = protocols.names().find_map(|protocol| protocol.before_body(route, out));
    let outcome = match (of_protocol, route.request.path, route.request.method) {
        (Some(outcome), ..) => outcome.map_err(Interrupt::from),
        (None, "/publish", Method::Post) => route.parse_publish_head().map(|_| false),
        (None, ACK, Method::Post) => {
            route.check_acknowledge_head().map(|()| false).map_err(Interrupt::from)
        }
        // The server ignores the body here: the request is valid with or without one.
        (None, _, Method::Get | Method::Head | Method::Options) => Ok(false),
        (None, _, Method::Post | Method::Other) => dispatch(protocols, route, out).map(|_| true),
    };
    match outcome {
        Ok(outcome) => outcome,
        // The client sends its body during the wait, and `dispatch` decides then.
        Err(Interrupt::Pending(_)) => false,
        Err(Interrupt::Rejection(rejection)) => {
            reject_route(protocols, route, &rejection, out);
            true
        }
    }
}

/// Appends the rejection in the format of the request's client.
fn reject_route(
    protocols: &Protocols,
    route: &Route<'_>,
    rejection: &Rejection,
    out: &mut Vec<u8>,
) {
    let HttpRequest { path, method, keep_alive, .. } = *route.request;
    let respond = route.respond();
    if !own_form(protocols, path, method, rejection, &respond, out) {
        reject(rejection, route.cors, keep_alive, method == Method::Head, out);
    }
}

/// Appends the rejection in the format of the protocol with this path, if it has one of its own.
fn own_form(
    protocols: &Protocols,
    path: &str,
    method: Method,
    rejection: &Rejection,
    respond: &Respond,
    out: &mut Vec<u8>,
) -> bool {
    protocols.names().any(|protocol| protocol.reject(path, method, rejection, respond, out))
}

/// Appends the rejection of a request that the server has not read to its end, in the format of its client as far as
/// the path shows that. The connection ends with it.
pub fn reject_unread(
    protocols: &Protocols,
    bytes: &[u8],
    rejection: &Rejection,
    method: Method,
    out: &mut Vec<u8>,
) {
    let target = bytes.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    let path = std::str::from_utf8(path).unwrap_or_default();
    let respond = Respond { cors: ANY_ORIGIN.into(), keep_alive: false, head_only: false };
    if !own_form(protocols, path, method, rejection, &respond, out) {
        reject(rejection, ANY_ORIGIN, false, method == Method::Head, out);
    }
}

/// Replies to a request on a connection that is over the server's capacity: to a health check as always, so that
/// monitoring doesn't take a full server for a dead one, and to anything else with the rejection. Returns whether it
/// was a health check; `None` until the head is complete. The connection ends with the reply.
pub fn reject_connection(
    protocols: &Protocols,
    settings: &Settings,
    bytes: &[u8],
    rejection: &Rejection,
    out: &mut Vec<u8>,
) -> Option<bool> {
    let (is_health_check, method) = match parse(bytes, &settings.http) {
        Ok(Parsed::Partial) => return None,
        Ok(Parsed::Whole(request, _) | Parsed::Head { request, .. }) => {
            let get = matches!(request.method, Method::Get | Method::Head);
            (get && request.path == HEALTH, request.method)
        }
        Err(_) => (false, Method::Get),
    };
    let head_only = method == Method::Head;
    if is_health_check {
        healthy(ANY_ORIGIN, false, head_only, out);
    } else {
        let method = if head_only { method } else { Method::Get };
        reject_unread(protocols, bytes, rejection, method, out);
    }
    Some(is_health_check)
}
