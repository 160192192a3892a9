//! What a connection's bytes mean: requests in, [`Action`]s and answers out.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use crate::http::{self, Answer, Method, Parsed, Refused, Request, refused};
use crate::message::{check_name, check_topic};
use crate::transport::{json, sse, stream, ws as frames};
use crate::ws::{self, handshake};
use crate::{Close, Data, Draft, Id, Name, Tools, Variant, command, query};

/// The settings that decide how bytes are answered.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The limits of a request's parts.
    pub http: http::Limits,
    /// Origins that browsers may read from: `*`, or `scheme://host[:port]`.
    pub cors_origins: Vec<String>,
    /// Clients may publish to topics that begin with one of these; the empty text is any topic.
    pub publish_prefixes: Vec<String>,
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
}

/// A message to the echo may have so many bytes: the conformance suite sends 16 MiB.
const ECHO_BYTES_MAX: usize = 32 << 20;

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
    pub since: Option<Id>,
}

/// A long poll.
#[derive(Debug)]
pub struct Poll {
    /// Its users.
    pub users: Vec<Name>,
    /// Its topics, without the users' personal ones.
    pub topics: Vec<Name>,
    /// The place it asks from; `None` is now.
    pub since: Option<Id>,
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
        Ok(Parsed::Partial { continue_wanted }) => Step::Partial { continue_wanted },
        Ok(Parsed::Whole(request, taken)) => {
            let cors = cors(settings, &request);
            let route = Route { settings, id, request: &request, cors: &cors };
            match route.answer(out) {
                Ok(action) => Step::Request { taken, action },
                Err(refused) => {
                    let keep_alive = request.keep_alive;
                    refuse(&refused, &cors, keep_alive, request.method == Method::Head, out);
                    Step::Request { taken, action: Action::Answered { keep_alive } }
                }
            }
        }
        Err(refused) => {
            refuse(&refused, ANY_ORIGIN, false, false, out);
            Step::Refused
        }
    }
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
    json_answer(refused.status, &format!("{extra}{cors}"), &body, keep_alive, head_only, out);
}

fn json_answer(
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

/// Appends a poll's answer: [`crate::transport::poll_answer`] made its body.
pub fn poll_answer(respond: &Respond, body: &[u8], out: &mut Vec<u8>) {
    let headers = format!("Cache-Control: no-store\r\n{}", respond.cors);
    json_answer(200, &headers, body, respond.keep_alive, false, out);
}

/// Appends the answer to a client's publish: where the message is, or that there was no room.
pub fn publish_answer(respond: &Respond, published: Result<Id, String>, out: &mut Vec<u8>) {
    match published {
        Ok(id) => {
            let body = command::published(id);
            json_answer(200, &respond.cors, body.as_bytes(), respond.keep_alive, false, out);
        }
        Err(message) => {
            let refused = refused(503, "overloaded", message);
            refuse(&refused, &respond.cors, respond.keep_alive, false, out);
        }
    }
}

/// The CORS lines for a request: what a browser needs to let the page read the answer (WHATWG
/// Fetch, section CORS protocol).
fn cors(settings: &Settings, request: &Request<'_>) -> Cow<'static, str> {
    if settings.cors_origins.iter().any(|allowed| allowed == "*") {
        return ANY_ORIGIN.into();
    }
    match request.header("origin") {
        Some(origin) if allows(settings, origin) => {
            format!("Access-Control-Allow-Origin: {origin}\r\nVary: Origin\r\n").into()
        }
        _ => "Vary: Origin\r\n".into(),
    }
}

const ANY_ORIGIN: &str = "Access-Control-Allow-Origin: *\r\n";

fn allows(settings: &Settings, origin: &str) -> bool {
    settings.cors_origins.iter().any(|allowed| allowed == "*" || allowed == origin)
}

/// Whether the configuration lets clients publish to the topic.
fn may_publish(settings: &Settings, topic: &str) -> bool {
    settings.publish_prefixes.iter().any(|prefix| topic.starts_with(prefix.as_str()))
}

struct Route<'a> {
    settings: &'a Settings,
    id: ConnectionId,
    request: &'a Request<'a>,
    cors: &'a Cow<'static, str>,
}

#[derive(Default)]
struct Query {
    users: Vec<Name>,
    topics: Vec<Name>,
    since: Option<Id>,
    seconds: Option<u32>,
    event: Option<Name>,
    json: bool,
}

impl Route<'_> {
    fn answer(&self, out: &mut Vec<u8>) -> Result<Action, Refused> {
        let keep_alive = self.request.keep_alive;
        let get = matches!(self.request.method, Method::Get | Method::Head);
        match (self.request.path, self.request.method) {
            (_, Method::Options) => {
                self.preflight(out);
                Ok(Action::Answered { keep_alive })
            }
            ("/sse", _) if get => self.sse(out),
            ("/stream", _) if get => self.stream(out),
            ("/poll", Method::Get) => self.poll(),
            ("/poll", Method::Head) => {
                json_answer(200, self.cors, b"", keep_alive, true, out);
                Ok(Action::Answered { keep_alive })
            }
            ("/ws", _) if get => self.websocket(false, out),
            ("/echo", _) if get && self.settings.ws_echo => self.websocket(true, out),
            ("/publish", Method::Post) => self.publish(),
            ("/healthz", _) if get => {
                let head = self.request.method == Method::Head;
                json_answer(200, self.cors, b"{\"status\":\"ok\"}", keep_alive, head, out);
                Ok(Action::Answered { keep_alive })
            }
            ("/sse" | "/stream" | "/poll" | "/ws" | "/healthz", _) => {
                Err(refused(405, "method_not_allowed", "use GET here"))
            }
            ("/publish", _) => {
                let body = http::error_body("method_not_allowed", "use POST here");
                let headers = format!("Allow: POST, OPTIONS\r\n{}", self.cors);
                let head = self.request.method == Method::Head;
                json_answer(405, &headers, &body, keep_alive, head, out);
                Ok(Action::Answered { keep_alive })
            }
            _ => Err(refused(
                404,
                "not_found",
                "there is nothing here: clients use /sse, /stream, /poll and /ws; the \
                 application's API is on the admin port",
            )),
        }
    }

    fn preflight(&self, out: &mut Vec<u8>) {
        let asked = self.request.header("access-control-request-headers").unwrap_or("");
        let plain = asked.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_, ".contains(&b));
        let allow = if plain && !asked.is_empty() { asked } else { "Content-Type, Last-Event-ID" };
        let headers = format!(
            "{}Access-Control-Allow-Methods: GET, HEAD, POST, OPTIONS\r\n\
             Access-Control-Allow-Headers: {allow}\r\nAccess-Control-Max-Age: 86400\r\n\
             Allow: GET, HEAD, POST, OPTIONS\r\n",
            self.cors
        );
        json_answer(204, &headers, b"", self.request.keep_alive, false, out);
    }

    fn sse(&self, out: &mut Vec<u8>) -> Result<Action, Refused> {
        let query = self.query()?;
        if self.request.method == Method::Head {
            return Ok(self.head_only(out, sse::head));
        }
        sse::open(self.cors, self.settings.sse_retry_ms, out);
        let variant = if query.json { Variant::SseJson } else { Variant::Sse };
        Ok(self.open(variant, query))
    }

    fn stream(&self, out: &mut Vec<u8>) -> Result<Action, Refused> {
        if self.request.minor == 0 {
            let message = "an endless answer needs HTTP/1.1; use /sse or /poll";
            return Err(refused(505, "bad_version", message));
        }
        let query = self.query()?;
        if self.request.method == Method::Head {
            return Ok(self.head_only(out, stream::head));
        }
        stream::welcome(self.cors, self.id, &query.users, &query.topics, out);
        Ok(self.open(Variant::Stream, query))
    }

    /// The answer to HEAD on an endless resource: its head, and the connection ends.
    fn head_only(&self, out: &mut Vec<u8>, head: impl FnOnce(&str, &mut Vec<u8>)) -> Action {
        http::status_line(200, out);
        head(self.cors, out);
        out.extend_from_slice(b"\r\n");
        Action::Answered { keep_alive: false }
    }

    fn poll(&self) -> Result<Action, Refused> {
        let query = self.query()?;
        if query.users.is_empty() && query.topics.is_empty() {
            let message = "say what to poll for: ?topic=… or ?user=…, both may be repeated";
            return Err(refused(400, "no_topic", message));
        }
        let seconds = query.seconds.unwrap_or(self.settings.poll_seconds);
        Ok(Action::Poll(Poll {
            users: query.users,
            topics: query.topics,
            since: query.since,
            seconds: seconds.min(self.settings.poll_seconds_max),
            respond: self.respond(),
        }))
    }

    fn websocket(&self, echo: bool, out: &mut Vec<u8>) -> Result<Action, Refused> {
        let request = self.request;
        let key = match (request.upgrade, request.header("sec-websocket-version")) {
            (true, Some("13")) => request.header("sec-websocket-key"),
            (true, Some(_)) => {
                return Err(refused(426, "bad_version", "WebSocket version 13 is spoken here"));
            }
            _ => {
                let message =
                    "this is a WebSocket: connect with ws://, or use /sse, /stream or /poll";
                return Err(refused(426, "upgrade_required", message));
            }
        };
        let bad_key = || {
            refused(400, "bad_key", "Sec-WebSocket-Key must be 16 bytes in base64, exactly once")
        };
        let key = key.filter(|_| request.values("sec-websocket-key").count() == 1);
        let accept = handshake::accept(key.ok_or_else(bad_key)?).ok_or_else(bad_key)?;
        if request.method != Method::Get || request.minor == 0 {
            return Err(refused(400, "bad_request", "a WebSocket begins with GET and HTTP/1.1"));
        }
        if let Some(origin) = request.header("origin")
            && !allows(self.settings, origin)
        {
            return Err(refused(403, "bad_origin", "pages of this origin are not allowed here"));
        }
        let query = self.query()?;
        let deflate = match self.settings.compression {
            true => handshake::negotiate(request.values("sec-websocket-extensions")),
            false => None,
        };
        handshake::response(&accept, deflate.as_ref(), out);
        let variant = match (deflate.map(|deflate| deflate.server_max_window_bits), echo) {
            (None, false) => Variant::Ws,
            (Some(15..), false) => Variant::WsDeflate,
            (Some(_), false) => Variant::WsDeflateSmall,
            (None, true) => Variant::Echo,
            (Some(15..), true) => Variant::EchoDeflate,
            (Some(_), true) => Variant::EchoDeflateSmall,
        };
        if !echo {
            let mut hello = Vec::new();
            json::welcome(self.id, &query.users, &query.topics, false, &mut hello);
            ws::frame::encode(ws::frame::Opcode::Text, false, &hello, out);
        }
        Ok(self.open(variant, query))
    }

    fn publish(&self) -> Result<Action, Refused> {
        let query = self.query()?;
        let [topic] = query.topics.as_slice() else {
            return Err(refused(400, "no_topic", "say where to publish: ?topic=…, exactly once"));
        };
        if !may_publish(self.settings, topic) {
            let message = "clients may not publish to this topic: the server's configuration \
                           (client.publish_prefixes) doesn't list it";
            return Err(refused(403, "forbidden", message));
        }
        let body = self.request.body;
        if body.len() > self.settings.message_bytes_max {
            let message = format!("a message is at most {} bytes", self.settings.message_bytes_max);
            return Err(refused(413, "message_too_large", message));
        }
        let draft = Draft { topic: topic.clone(), event: query.event, data: self.body_data(body)? };
        Ok(Action::Publish { draft, respond: self.respond() })
    }

    /// A body is JSON or bytes where its media type says so, and text otherwise.
    fn body_data(&self, body: &[u8]) -> Result<Data, Refused> {
        let media = self.request.header("content-type").unwrap_or("text/plain");
        let media = media.split(';').next().unwrap_or("").trim_ascii();
        if media.eq_ignore_ascii_case("application/octet-stream") {
            return Ok(Data::Binary(body.into()));
        }
        let not_utf8 = |_| {
            let message = "the body is not UTF-8: send bytes as application/octet-stream";
            refused(400, "bad_data", message)
        };
        let text = std::str::from_utf8(body).map_err(not_utf8)?;
        if !media.eq_ignore_ascii_case("application/json") {
            return Ok(Data::Text(text.into()));
        }
        let raw: &serde_json::value::RawValue = serde_json::from_str(text)
            .map_err(|error| refused(400, "bad_data", format!("the body is not JSON: {error}")))?;
        Data::from_json(raw, None).map_err(|wrong| refused(400, "bad_data", wrong))
    }

    fn respond(&self) -> Respond {
        Respond { cors: self.cors.clone(), keep_alive: self.request.keep_alive }
    }

    fn open(&self, variant: Variant, query: Query) -> Action {
        Action::Open(Open { variant, users: query.users, topics: query.topics, since: query.since })
    }

    fn query(&self) -> Result<Query, Refused> {
        let mut query = Query::default();
        for pair in query::pairs(self.request.query) {
            let (key, value) = pair.map_err(|_| {
                refused(400, "bad_query", "the query string does not decode to UTF-8")
            })?;
            self.parameter(&mut query, &key, &value)?;
        }
        if let Some(last) = self.request.header("last-event-id").filter(|id| !id.is_empty()) {
            // Any server's id may come here, from before this page talked to Throng: one that is
            // not ours asks for nothing.
            query.since = last.parse().ok().or(query.since);
        }
        let topics = query.users.len() + query.topics.len();
        if topics > self.settings.topics_per_connection_max {
            let max = self.settings.topics_per_connection_max;
            let message = format!("a connection may be in at most {max} topics, users included");
            return Err(refused(400, "too_many_topics", message));
        }
        Ok(query)
    }

    fn parameter(&self, query: &mut Query, key: &str, value: &str) -> Result<(), Refused> {
        match key {
            "topic" => {
                check_topic(value).map_err(|wrong| refused(400, "bad_topic", wrong))?;
                if !query.topics.iter().any(|topic| topic == value) {
                    query.topics.push(value.into());
                }
            }
            "user" => {
                check_name(value).map_err(|wrong| refused(400, "bad_user", wrong))?;
                if !query.users.iter().any(|user| user == value) {
                    query.users.push(value.into());
                }
            }
            "event" => {
                check_name(value).map_err(|wrong| refused(400, "bad_event", wrong))?;
                query.event = Some(value).filter(|event| *event != "message").map(Name::from);
            }
            "since" | "lastEventID" if !value.is_empty() => {
                let wrong = |bad: crate::message::BadId| refused(400, "bad_since", bad.to_string());
                query.since = Some(value.parse().map_err(wrong)?);
            }
            "timeout" => {
                let wrong = |_| refused(400, "bad_timeout", "timeout is a whole number of seconds");
                query.seconds = Some(value.parse().map_err(wrong)?);
            }
            "format" => {
                query.json = match value {
                    "json" => true,
                    "data" => false,
                    _ => return Err(refused(400, "bad_format", "format is data or json")),
                };
            }
            // Others are the page's own: a cache breaker, a tracking tag.
            _ => {}
        }
        Ok(())
    }
}

/// What a WebSocket client sent, in order.
#[derive(Debug)]
pub enum Input {
    /// Bytes to send back as they are: a pong, an echo, the answer to a ping or to a bad command.
    Send(Vec<u8>),
    /// Enter a topic; answer with [`ws_reply`].
    Subscribe(Box<str>, Name),
    /// Leave a topic; answer with [`ws_reply`].
    Unsubscribe(Box<str>, Name),
    /// Publish; answer with [`ws_reply`].
    Publish(Box<str>, Draft),
    /// Close after sending these last bytes.
    Close(Close, Vec<u8>),
}

/// Reads a WebSocket client's bytes and gives the bytes taken; what is left is the beginning of a
/// frame's head. After [`Input::Close`] nothing more is to be read.
pub fn websocket(
    settings: &Settings,
    variant: Variant,
    decoder: &mut ws::Decoder,
    tools: &mut Tools,
    bytes: &mut [u8],
    inputs: &mut Vec<Input>,
) -> usize {
    let window_bits = variant.window_bits().unwrap_or(0);
    let echo = variant.name() == "echo";
    let bytes_max = if echo { ECHO_BYTES_MAX } else { settings.frame_bytes_max };
    let mut events = Vec::new();
    let mut context = ws::Context {
        role: ws::Role::Server,
        limits: ws::Limits { frame_bytes_max: bytes_max as u64, message_bytes_max: bytes_max },
        inflater: (window_bits > 0).then(|| tools.inflater()),
    };
    let taken = decoder.feed(&mut context, bytes, &mut |event| match event {
        ws::Event::Text(text) if !echo => events.push(text_input(settings, text)),
        ws::Event::Binary(payload) if !echo => events.push(binary_input(settings, payload)),
        ws::Event::Text(text) => events.push(Heard::Echo(ws::frame::Opcode::Text, text.into())),
        ws::Event::Binary(payload) => {
            events.push(Heard::Echo(ws::frame::Opcode::Binary, payload.into()));
        }
        ws::Event::Ping(payload) => {
            let mut out = Vec::new();
            ws::frame::encode(ws::frame::Opcode::Pong, false, payload, &mut out);
            events.push(Heard::Input(Input::Send(out)));
        }
        ws::Event::Pong(_) => {}
        ws::Event::Close(told) => {
            let mut out = Vec::new();
            match told {
                // The same code goes back (RFC 6455, section 5.5.1).
                Some((code, _)) => frames::close(code, "", &mut out),
                None => ws::frame::encode(ws::frame::Opcode::Close, false, &[], &mut out),
            }
            events.push(Heard::Input(Input::Close(Close::ByClient, out)));
        }
    });
    for heard in events {
        inputs.push(match heard {
            Heard::Input(input) => input,
            Heard::Echo(opcode, payload) => {
                let mut out = Vec::with_capacity(payload.len() + 16);
                frames::data(opcode, &payload, window_bits, tools, &mut out);
                Input::Send(out)
            }
            Heard::Reply(text) => {
                let mut out = Vec::with_capacity(text.len() + 8);
                frames::data(ws::frame::Opcode::Text, &text, window_bits, tools, &mut out);
                Input::Send(out)
            }
        });
    }
    taken.unwrap_or_else(|error| {
        let close = match error.code() {
            1007 => Close::InvalidPayload,
            1009 => Close::TooBig,
            _ => Close::ProtocolError,
        };
        let mut out = Vec::new();
        frames::close(error.code(), &error.to_string(), &mut out);
        inputs.push(Input::Close(close, out));
        bytes.len()
    })
}

enum Heard {
    Input(Input),
    Echo(ws::frame::Opcode, Vec<u8>),
    Reply(Vec<u8>),
}

fn text_input(settings: &Settings, text: &str) -> Heard {
    command_input(settings, command::parse(text, None))
}

fn binary_input(settings: &Settings, payload: &[u8]) -> Heard {
    let end = memchr::memchr(b'\n', payload).unwrap_or(payload.len());
    let data = payload.get(end + 1..).unwrap_or(&[]);
    match std::str::from_utf8(&payload[..end]) {
        Ok(text) => command_input(settings, command::parse(text, Some(data))),
        Err(_) => {
            let mut out = Vec::new();
            let message = "a binary frame begins with a command in JSON and a newline";
            command::reply_error("null", "bad_json", message, &mut out);
            Heard::Reply(out)
        }
    }
}

fn command_input(
    settings: &Settings,
    command: Result<command::Command, command::BadCommand>,
) -> Heard {
    let mut out = Vec::new();
    match command {
        Ok(command::Command { id, what }) => match what {
            command::What::Subscribe(topic) => return Heard::Input(Input::Subscribe(id, topic)),
            command::What::Unsubscribe(topic) => {
                return Heard::Input(Input::Unsubscribe(id, topic));
            }
            command::What::Publish(draft) => match publish_fault(settings, &draft) {
                None => return Heard::Input(Input::Publish(id, draft)),
                Some((code, message)) => command::reply_error(&id, code, &message, &mut out),
            },
            command::What::Ping => command::reply_ok(&id, "{}", &mut out),
        },
        Err(bad) => command::reply_error(&bad.id, bad.code, &bad.message, &mut out),
    }
    Heard::Reply(out)
}

fn publish_fault(settings: &Settings, draft: &Draft) -> Option<(&'static str, String)> {
    if !may_publish(settings, &draft.topic) {
        let message = "clients may not publish to this topic: the server's configuration \
                       (client.publish_prefixes) doesn't list it";
        return Some(("forbidden", message.into()));
    }
    if draft.data.bytes() > settings.message_bytes_max {
        let message = format!("a message is at most {} bytes", settings.message_bytes_max);
        return Some(("message_too_large", message));
    }
    None
}

/// Appends the framed answer to a WebSocket command.
pub fn ws_reply(
    variant: Variant,
    tools: &mut Tools,
    id: &str,
    result: Result<&str, (&str, &str)>,
    out: &mut Vec<u8>,
) {
    let mut text = Vec::new();
    match result {
        Ok(ok) => command::reply_ok(id, ok, &mut text),
        Err((code, message)) => command::reply_error(id, code, message, &mut text),
    }
    let window_bits = variant.window_bits().unwrap_or(0);
    frames::data(ws::frame::Opcode::Text, &text, window_bits, tools, out);
}
