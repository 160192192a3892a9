//! What a connection's bytes mean: requests in, [`Action`]s and answers out.

mod acknowledge;
mod frames;
mod phoenix;
mod query;
mod route;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::http::{self, Answer, Method, Parsed, Refused, Request, refused};
use crate::phoenix::token;
use crate::{Draft, EventRule, Id, JoinRule, Name, Rules, Since, Variant, command};

pub use frames::{Input, websocket, ws_reply};
pub use phoenix::{Heard, Longpoll, Op, longpoll_refusal};

use route::Route;

/// The settings that decide how bytes are answered.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The limits of a request's parts.
    pub http: http::Limits,
    /// Origins that browsers may read from: `*`, or `scheme://host[:port]`.
    pub cors_origins: Vec<String>,
    /// What clients may do with which topics.
    pub rules: Rules,
    /// Topics a connection may be in, its users' personal ones included.
    pub topics_per_connection_max: usize,
    /// The payload of a message, in bytes.
    pub message_bytes_max: usize,
    /// A WebSocket frame from a client, in bytes. Whole messages have the same limit.
    pub frame_bytes_max: usize,
    /// What an EventSource waits before it comes back, in milliseconds.
    pub sse_retry_ms: u32,
    /// How long a poll waits when it doesn't say, in seconds.
    pub poll_seconds: u32,
    /// How long a poll may wait at most, in seconds.
    pub poll_seconds_max: u32,
    /// Agree to permessage-deflate.
    pub compression: bool,
    /// Serve the conformance tests' echo at `/echo`.
    pub ws_echo: bool,
    /// Serve `/status`.
    pub status_page: bool,
    /// Signs the tokens of Phoenix long-poll sessions.
    pub longpoll_key: token::Key,
    /// Files that are served as they are.
    pub files: Arc<[File]>,
}

/// A file that is served as it is.
#[derive(Clone, Debug)]
pub struct File {
    /// Where: `/chat.css`.
    pub path: &'static str,
    /// Its media type.
    pub content_type: &'static str,
    /// What it holds.
    pub body: Cow<'static, [u8]>,
}

/// A connection's name in the API: `shard-slot-serial`. The serial makes it unique for the life
/// of the process, where slots are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    /// Which shard.
    pub shard: u16,
    /// Its place there.
    pub slot: u32,
    /// How many connections the shard had before it.
    pub serial: u32,
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.shard, self.slot, self.serial)
    }
}

/// The text is no connection's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadConnectionId;

impl FromStr for ConnectionId {
    type Err = BadConnectionId;

    fn from_str(text: &str) -> Result<Self, BadConnectionId> {
        let mut parts = text.split('-');
        let mut next = || parts.next().ok_or(BadConnectionId);
        let (shard, slot, serial) = (next()?, next()?, next()?);
        let wrong = |_| BadConnectionId;
        let id = ConnectionId {
            shard: shard.parse().map_err(wrong)?,
            slot: slot.parse().map_err(wrong)?,
            serial: serial.parse().map_err(wrong)?,
        };
        if parts.next().is_some() { Err(BadConnectionId) } else { Ok(id) }
    }
}

/// What the shard must do for a request; its answer, or the beginning of it, is already in `out`
/// unless it says otherwise.
#[derive(Debug)]
pub enum Action {
    /// Nothing: the request is answered. `keep_alive` says whether the connection stays.
    Answered {
        /// Ready for the next request.
        keep_alive: bool,
    },
    /// The connection takes up a lasting variant and enters its topics, before `out` is sent.
    Open(Open),
    /// A long poll: nothing is in `out` yet; see [`poll_answer`].
    Poll(Poll),
    /// A client publishes: nothing is in `out` yet; see [`publish_answer`].
    Publish {
        /// What to publish.
        draft: Draft,
        /// How to answer.
        respond: Respond,
    },
    /// A request of a Phoenix long poll: nothing is in `out` yet; see [`json_answer`].
    Longpoll(Longpoll),
    /// Who is in a topic: nothing is in `out` yet; see [`json_answer`].
    Presence {
        /// The topic, which has presence.
        topic: Name,
        /// How to answer.
        respond: Respond,
    },
    /// A user has messages up to a place: nothing is in `out` yet; see [`json_answer`] and
    /// [`refuse`].
    Acknowledge {
        /// What it has.
        acknowledged: Acknowledged,
        /// How to answer.
        respond: Respond,
    },
    /// The figures of `/status`: nothing is in `out` yet; see [`json_answer`].
    Status {
        /// How to answer.
        respond: Respond,
    },
}

/// A connection that stays.
#[derive(Debug)]
pub struct Open {
    /// How it is written to.
    pub variant: Variant,
    /// Its users.
    pub users: Vec<Name>,
    /// Its topics, without the users' personal ones.
    pub topics: Vec<Name>,
    /// What the client saw last.
    pub since: Asked,
    /// Of the topics, users' own left out, it wants only messages that have one of these tags; all
    /// without any.
    pub tags: Vec<Name>,
}

/// From where a client asks for what it missed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// For every topic that is not named below.
    pub all: Option<Since>,
    /// For single topics; users' own by their topic's name, `@alice`.
    pub topics: Vec<(Name, Since)>,
}

impl Asked {
    /// From where it asks for this topic's messages.
    pub fn of(&self, topic: &str) -> Option<&Since> {
        let named = self.topics.iter().find(|(name, _)| name == topic);
        named.map(|(_, since)| since).or(self.all.as_ref())
    }

    /// True when it asks for nothing that was before.
    pub fn is_empty(&self) -> bool {
        self.all.is_none() && self.topics.is_empty()
    }
}

/// A user has the messages of a topic up to a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// Who; `None` is the user of the connection that says so.
    pub user: Option<Name>,
    /// The topic; `None` is the user's own.
    pub topic: Option<Name>,
    /// The last message that it has: this one and all before it are done.
    pub id: Id,
}

/// A long poll.
#[derive(Debug)]
pub struct Poll {
    /// Its users.
    pub users: Vec<Name>,
    /// Its topics, without the users' personal ones.
    pub topics: Vec<Name>,
    /// The place it asks from; without one it is now.
    pub since: Asked,
    /// As in [`Open`].
    pub tags: Vec<Name>,
    /// How long to wait, in seconds.
    pub seconds: u32,
    /// How to answer.
    pub respond: Respond,
}

/// How the answer to a request that takes time is to be framed.
#[derive(Clone, Debug)]
pub struct Respond {
    /// The CORS lines, each with its CRLF.
    pub cors: Cow<'static, str>,
    /// Whether the connection stays.
    pub keep_alive: bool,
}

/// One step of a connection in HTTP.
#[derive(Debug)]
pub enum Step {
    /// More must come; `continue_wanted` when the peer waits for `100 Continue`.
    Partial {
        /// The peer sent `Expect: 100-continue`.
        continue_wanted: bool,
        /// Bytes of the whole request, once its head says so.
        bytes: Option<usize>,
    },
    /// One request, so many bytes long.
    Request {
        /// Bytes taken from the input.
        taken: usize,
        /// What to do.
        action: Action,
    },
    /// The connection must end once `out` is sent.
    Refused,
}

/// Reads one request from the start of `bytes` and answers it as far as wire alone can.
pub fn request(settings: &Settings, id: ConnectionId, bytes: &[u8], out: &mut Vec<u8>) -> Step {
    match http::parse(bytes, &settings.http) {
        Ok(Parsed::Partial) => Step::Partial { continue_wanted: false, bytes: None },
        Ok(Parsed::Head { mut request, bytes, continue_wanted }) => {
            // The body of a refused request is not read: the connection ends with the answer.
            request.keep_alive = false;
            let cors = cors(settings, &request);
            let route = Route { settings, id, request: &request, cors: &cors };
            match route.before_body(out) {
                true => Step::Refused,
                false => Step::Partial { continue_wanted, bytes: Some(bytes) },
            }
        }
        Ok(Parsed::Whole(request, taken)) => {
            let cors = cors(settings, &request);
            let route = Route { settings, id, request: &request, cors: &cors };
            match route.answer(out) {
                Ok(action) => Step::Request { taken, action },
                Err(refused) => {
                    route.refuse(&refused, out);
                    let keep_alive = request.keep_alive;
                    Step::Request { taken, action: Action::Answered { keep_alive } }
                }
            }
        }
        Err(refused) => {
            if asks_longpoll(bytes) {
                let respond = Respond { cors: ANY_ORIGIN.into(), keep_alive: false };
                longpoll_refusal(&refused, Method::Get, &respond, out);
            } else {
                refuse(&refused, ANY_ORIGIN, false, false, out);
            }
            Step::Refused
        }
    }
}

/// Answers a request of somebody for whom there is no room: `/healthz` as always, so that a health
/// check doesn't take a full server for a dead one, anything else with the refusal. Gives whether
/// it was the former; `None` when more must come. The connection ends with the answer.
pub fn without_room(
    settings: &Settings,
    bytes: &[u8],
    refused: &Refused,
    out: &mut Vec<u8>,
) -> Option<bool> {
    let (healthy, head_only) = match http::parse(bytes, &settings.http) {
        Ok(Parsed::Partial) => return None,
        Ok(Parsed::Whole(request, _) | Parsed::Head { request, .. }) => {
            let head_only = request.method == Method::Head;
            let get = head_only || request.method == Method::Get;
            (get && request.path == HEALTH, head_only)
        }
        Err(_) => (false, false),
    };
    if healthy {
        short_answer(200, ANY_ORIGIN, HEALTHY, false, head_only, out);
    } else if asks_longpoll(bytes) {
        let respond = Respond { cors: ANY_ORIGIN.into(), keep_alive: false };
        longpoll_refusal(refused, Method::Get, &respond, out);
    } else {
        refuse(refused, ANY_ORIGIN, false, head_only, out);
    }
    Some(healthy)
}

/// Where a health check asks.
const HEALTH: &str = "/healthz";

/// What it is answered.
const HEALTHY: &[u8] = b"{\"status\":\"ok\"}";

/// Whether a request, which need not be one that can be read, is a Phoenix client's poll.
pub fn asks_longpoll(bytes: &[u8]) -> bool {
    let target = bytes.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    target.split(|byte| *byte == b'?').next() == Some(http::LONGPOLL.as_bytes())
}

/// Appends `100 Continue`.
pub fn continue_answer(out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
}

/// Appends an answer that refuses: a JSON body, and what the status demands beside it.
pub fn refuse(refused: &Refused, cors: &str, keep_alive: bool, head_only: bool, out: &mut Vec<u8>) {
    let extra = match refused.status {
        405 => "Allow: GET, HEAD, OPTIONS\r\n",
        426 => "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
        503 | 429 => "Retry-After: 1\r\n",
        _ => "",
    };
    let body = http::error_body(refused.code, &refused.message);
    short_answer(refused.status, &format!("{extra}{cors}"), &body, keep_alive, head_only, out);
}

fn short_answer(
    status: u16,
    headers: &str,
    body: &[u8],
    keep_alive: bool,
    head_only: bool,
    out: &mut Vec<u8>,
) {
    let content_type = "application/json";
    // An upgrade that is offered is named in Connection (RFC 9110, section 7.8).
    let offered = format!("Connection: Upgrade\r\n{headers}");
    let headers = if status == 426 && keep_alive { &offered } else { headers };
    Answer { status, headers, content_type, body, keep_alive, head_only }.write(out);
}

/// Appends an answer of status 200 with this JSON text, not to be stored by anyone between.
pub fn json_answer(respond: &Respond, body: &[u8], out: &mut Vec<u8>) {
    let headers = format!("Cache-Control: no-store\r\n{}", respond.cors);
    short_answer(200, &headers, body, respond.keep_alive, false, out);
}

/// Appends the answer to a client's publish: where the message is, or that there was no room.
///
/// The error is its name for programs, and what it says.
pub fn publish_answer(
    respond: &Respond,
    published: Result<Id, (&'static str, String)>,
    out: &mut Vec<u8>,
) {
    match published {
        Ok(id) => {
            let body = command::published(id);
            short_answer(200, &respond.cors, body.as_bytes(), respond.keep_alive, false, out);
        }
        Err((code, message)) => {
            let refused = refused(503, code, message);
            refuse(&refused, &respond.cors, respond.keep_alive, false, out);
        }
    }
}

/// The CORS lines for a request: what a browser needs to let the page read the answer (WHATWG
/// Fetch, section CORS protocol).
fn cors(settings: &Settings, request: &Request<'_>) -> Cow<'static, str> {
    if any_origin(settings) {
        return ANY_ORIGIN.into();
    }
    let mut origins = request.bytes("origin");
    match (origins.next().map(std::str::from_utf8), origins.next()) {
        (Some(Ok(origin)), None) if settings.cors_origins.iter().any(|it| it == origin) => {
            format!("Access-Control-Allow-Origin: {origin}\r\nVary: Origin\r\n").into()
        }
        _ => "Vary: Origin\r\n".into(),
    }
}

/// The CORS line that lets any page read the answer.
pub const ANY_ORIGIN: &str = "Access-Control-Allow-Origin: *\r\n";

fn any_origin(settings: &Settings) -> bool {
    settings.cors_origins.iter().any(|allowed| allowed == "*")
}

/// Whether the page that asks may read what is here. Who names none is no page. A browser names one,
/// in ASCII: several must all be allowed, and what is no text is foreign.
fn page_is_allowed(settings: &Settings, request: &Request<'_>) -> bool {
    let allowed = |origin| settings.cors_origins.iter().any(|it| it.as_bytes() == origin);
    any_origin(settings) || request.bytes("origin").all(allowed)
}

/// Why a client may not enter the topic, if it may not, on transports that don't ask the
/// application.
fn join_refusal(settings: &Settings, topic: &str) -> Option<&'static str> {
    match settings.rules.join(topic) {
        JoinRule::Allow => None,
        JoinRule::Refuse => Some(
            "clients may not enter this topic: the server's configuration (join of a [[topics]] \
             table) refuses it",
        ),
        JoinRule::Webhook => Some(
            "the application decides who may enter this topic, and only Phoenix clients can ask: \
             connect to /socket, or let the application call /api/subscribe",
        ),
    }
}

/// Why a client may not publish to the topic, if it may not.
fn publish_refusal(settings: &Settings, topic: &str) -> Option<&'static str> {
    match settings.rules.events(topic) {
        EventRule::Broadcast | EventRule::Others => None,
        EventRule::Refuse => Some(
            "clients may not publish to this topic: the server's configuration \
             (client_events of a [[topics]] table, client.publish_prefixes) doesn't allow it",
        ),
        EventRule::Webhook => Some(
            "what clients send to this topic goes to the application, and only from Phoenix \
             clients: connect to /socket",
        ),
    }
}
