//! Tokens, and a client of each transport that sends one.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use token::Signer;
use tungstenite::client::IntoClientRequest;
use tungstenite::{HandshakeError, Message};

use crate::application::Application;
use crate::support::*;

/// The key that signs the tokens.
pub const KEY: &str = "0123456789abcdef0123456789abcdef";

pub const WITH_REQUESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tokens/asked.toml");

pub const TOPICS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tokens/topics.toml");

/// Pairs of keys: private and public.
pub const RSA: (&str, &str) = (
    include_str!("../../../token/src/tests/rsa.pem"),
    include_str!("../../../token/src/tests/rsa.pub.pem"),
);
pub const ED: (&str, &str) = (
    include_str!("../../../token/src/tests/ed25519.pem"),
    include_str!("../../../token/src/tests/ed25519.pub.pem"),
);

pub const REQUIRED: (&str, &str) = ("THRONG_AUTH_REQUIRED", "true");

/// With this timeout the server waits for an application on a slow machine.
pub const PATIENT: (&str, &str) = ("THRONG_WEBHOOK_TIMEOUT_MILLISECONDS", "60000");

/// Starts a server that accepts tokens of the shared key.
pub fn serve(settings: &[(&str, &str)]) -> Server {
    let key = ("THRONG_AUTH_HMAC_KEY", KEY);
    serve_with(&[&[key], settings].concat())
}

/// Starts a server with these settings and the rules of the tests.
pub fn serve_with(settings: &[(&str, &str)]) -> Server {
    Server::with(&["--shards", "2", "--config", TOPICS], settings)
}

/// Starts a server that accepts tokens of the shared key, and calls webhooks for some topics.
pub fn serve_with_requests(app: &Application, settings: &[(&str, &str)]) -> Server {
    let (key, url) = (("THRONG_AUTH_HMAC_KEY", KEY), app.url());
    let settings = [&[key, ("THRONG_WEBHOOK_URL", &url)], settings].concat();
    Server::with(
        &["--shards", "2", "--config", WITH_REQUESTS],
        &[&[PATIENT], &settings[..]].concat(),
    )
}

pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Runs an attempt that needs a token that expires soon. The attempt gets the time of expiry, and returns `None` if
/// that time came too early: then it runs again with more time.
pub fn expiring<T>(mut attempt: impl FnMut(u64) -> Option<T>) -> (T, u64) {
    for seconds in [3, 9, 27] {
        let exp = now_s() + seconds;
        if let Some(done) = attempt(exp) {
            return (done, exp);
        }
    }
    panic!("a token of 27 seconds expires before it is used");
}

/// Connects with a token of these claims, unless it has expired.
pub fn open_until(
    exp: u64,
    server: &Server,
    transport: Transport,
    claims: &Value,
    query: &str,
) -> Option<Client> {
    let token = token(with(claims.clone(), json!({ "exp": exp })));
    match Client::open(server, transport, &format!("token={token}{query}"), "") {
        Ok(client) => Some(client),
        Err(reply) if reply.error().1 == "token_expired" => None,
        Err(reply) => panic!("{transport:?}: {reply:?}"),
    }
}

/// Connects with a token of these claims that expires soon, and returns the time at which it does.
pub fn open_expiring(
    server: &Server,
    transport: Transport,
    claims: &Value,
    query: &str,
) -> (Client, u64) {
    expiring(|exp| open_until(exp, server, transport, claims, query))
}

/// Returns a token with these claims, signed with the shared key.
pub fn token(claims: Value) -> String {
    signed("HS256", KEY, None, claims)
}

pub fn signed(algorithm: &str, key: &str, id: Option<&str>, claims: Value) -> String {
    let signer = Signer::new(key, algorithm.parse().unwrap(), id.map(String::from)).unwrap();
    signer.sign(&claims).unwrap()
}

/// Returns claims that only grant entering these topics.
pub fn listener(user: &str, topics: &[&str]) -> Value {
    json!({"sub": user, "throng": {"subscribe": topics}})
}

/// Returns claims that grant everything that the rules allow.
pub fn everything(user: &str) -> Value {
    let all = ["*"];
    json!({"sub": user, "throng": {"subscribe": all, "publish": all, "presence": all, "history": all}})
}

/// Returns claims with more of them.
pub fn with(mut claims: Value, more: Value) -> Value {
    claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    claims
}

/// A client's transport.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Transport {
    Sse,
    Stream,
    Poll,
    Ws,
    Phoenix,
    Longpoll,
}

pub const ALL: [Transport; 6] = [
    Transport::Sse,
    Transport::Stream,
    Transport::Poll,
    Transport::Ws,
    Transport::Phoenix,
    Transport::Longpoll,
];

/// The transports whose connections last.
pub const LASTING: [Transport; 5] =
    [Transport::Sse, Transport::Stream, Transport::Ws, Transport::Phoenix, Transport::Longpoll];

impl Transport {
    /// Returns the beginning of the request's target.
    pub fn path(self) -> &'static str {
        match self {
            Transport::Sse => "/sse?",
            Transport::Stream => "/stream?",
            Transport::Poll => "/poll?timeout=60&",
            Transport::Ws => "/ws?",
            Transport::Phoenix => "/socket/websocket?vsn=2.0.0&",
            Transport::Longpoll => "/socket/longpoll?vsn=2.0.0&",
        }
    }

    pub fn is_phoenix(self) -> bool {
        matches!(self, Transport::Phoenix | Transport::Longpoll)
    }

    fn is_websocket(self) -> bool {
        matches!(self, Transport::Ws | Transport::Phoenix)
    }
}

/// The response to a request.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Value,
}

impl Reply {
    /// Returns the status and the error's code.
    pub fn error(&self) -> (u16, &str) {
        (self.status, self.body["error"]["code"].as_str().unwrap_or(""))
    }
}

/// Makes one request. `headers` are lines, each with its CRLF.
pub fn request(server: &Server, method: &str, target: &str, headers: &str, body: &str) -> Reply {
    let mut stream = Stream::new(server.connect());
    let length = match body {
        "" => String::new(),
        body => format!("Content-Length: {}\r\n", body.len()),
    };
    let host = server.client;
    stream.send(&format!(
        "{method} {target} HTTP/1.1\r\nHost: {host}\r\n{headers}{length}\r\n{body}"
    ));
    let head = stream.head();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let length = header(&head, "content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    std::io::Read::read_exact(&mut stream.reader, &mut body).unwrap();
    Reply { status, head, body: serde_json::from_slice(&body).unwrap_or(Value::Null) }
}

pub fn get(server: &Server, target: &str) -> Reply {
    request(server, "GET", target, "", "")
}

/// Returns the header with a token.
pub fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

/// A connection with a token.
pub struct Client {
    pub wire: Wire,
    /// Events that came while the client waited for a reply, in order.
    pub events: VecDeque<(String, Value)>,
}

pub enum Wire {
    Sse(Stream),
    Stream(Stream),
    Poll(Stream),
    Ws(WebSocket),
    Phoenix(WebSocket),
    Longpoll { address: std::net::SocketAddr, session: String, came: Vec<Value> },
}

/// Opens a WebSocket with these header lines. Returns the response to the handshake if it fails.
pub fn handshake(server: &Server, target: &str, headers: &str) -> Result<WebSocket, Reply> {
    let mut request = format!("ws://{}{target}", server.client).into_client_request().unwrap();
    for line in headers.lines().filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ").unwrap();
        let name = tungstenite::http::HeaderName::try_from(name).unwrap();
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    match tungstenite::client(request, server.connect()) {
        Ok((socket, _)) => Ok(socket),
        Err(HandshakeError::Failure(tungstenite::Error::Http(response))) => {
            let status = response.status().as_u16();
            let challenge = response.headers().get("www-authenticate");
            let challenge = challenge.map_or("", |value| value.to_str().unwrap());
            let body = response.body().as_deref().unwrap_or_default();
            let body = serde_json::from_slice(body).unwrap_or(Value::Null);
            Err(Reply { status, head: format!("WWW-Authenticate: {challenge}\r\n"), body })
        }
        Err(other) => panic!("{target}: {other}"),
    }
}

impl Client {
    fn of(wire: Wire) -> Self {
        Client { wire, events: VecDeque::new() }
    }

    /// Connects with this query and these header lines. Returns the response if the server rejects it. For `/ws` this
    /// may be a close frame, whose code takes the place of the status.
    pub fn open(
        server: &Server,
        transport: Transport,
        query: &str,
        headers: &str,
    ) -> Result<Self, Reply> {
        let target = format!("{}{query}", transport.path());
        if transport.is_websocket() {
            let socket = handshake(server, &target, headers)?;
            let mut client = match transport {
                Transport::Ws => Client::of(Wire::Ws(socket)),
                _ => return Ok(Client::of(Wire::Phoenix(socket))),
            };
            let (kind, said) = client.event();
            if kind == "closed" {
                let body = json!({"error": {"code": said["reason"]}});
                let status = said["code"].as_u64().unwrap().try_into().unwrap();
                return Err(Reply { status, head: String::new(), body });
            }
            assert!(["welcome", "token_required"].contains(&kind.as_str()), "{kind} {said}");
            return Ok(client);
        }
        let mut stream = Stream::new(server.connect());
        stream.send(&format!("GET {target} HTTP/1.1\r\nHost: {}\r\n{headers}\r\n", server.client));
        if transport == Transport::Poll {
            // A poll may wait for long, but an error comes at once.
            stream.reader.get_ref().set_nonblocking(false).unwrap();
            return Ok(Client::of(Wire::Poll(stream)));
        }
        let head = stream.head();
        let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut body = || {
            let length: usize = header(&head, "content-length").unwrap().parse().unwrap();
            let mut body = vec![0; length];
            std::io::Read::read_exact(&mut stream.reader, &mut body).unwrap();
            serde_json::from_slice::<Value>(&body).unwrap_or(Value::Null)
        };
        if status != 200 {
            let body = body();
            return Err(Reply { status, head, body });
        }
        Ok(match transport {
            Transport::Sse => Client::of(Wire::Sse(stream)),
            Transport::Stream => Client::of(Wire::Stream(stream)),
            _ => {
                let body = body();
                let Some(session) = body["token"].as_str().map(String::from) else {
                    let status = body["status"].as_u64().unwrap().try_into().unwrap();
                    return Err(Reply { status, head, body });
                };
                let (address, came) = (server.client, Vec::new());
                Client::of(Wire::Longpoll { address, session, came })
            }
        })
    }

    /// Connects with a token in the query, and enters a topic.
    pub fn enter(server: &Server, transport: Transport, token: &str, topic: &str) -> Self {
        let topics = if transport.is_phoenix() { String::new() } else { format!("&topic={topic}") };
        let before = members(server, topic);
        let opened = Client::open(server, transport, &format!("token={token}{topics}"), "");
        let mut client = opened.unwrap_or_else(|reply| panic!("{transport:?}: {reply:?}"));
        if transport.is_phoenix() {
            let joined = client.join(topic, json!({}));
            assert_eq!(joined["status"], "ok", "{transport:?}: {joined}");
        }
        server.until("it is in the topic", |server| members(server, topic) == before + 1);
        client
    }

    /// Sends a Phoenix message. Returns the reply.
    pub fn push(&mut self, topic: &str, event: &str, payload: Value) -> Value {
        let message = json!(["1", "1", topic, event, payload]).to_string();
        match &mut self.wire {
            Wire::Phoenix(socket) => socket.send(Message::text(message)).unwrap(),
            Wire::Longpoll { address, session, .. } => {
                let mut stream = Stream::new(connect(*address));
                stream.send(&format!(
                    "POST /socket/longpoll?vsn=2.0.0&token={session} HTTP/1.1\r\nHost: t\r\n\
                     Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{message}",
                    message.len()
                ));
                assert_eq!(stream.read_reply().0, 200);
            }
            _ => panic!("this is no Phoenix client"),
        }
        self.reply("phx_reply")
    }

    pub fn join(&mut self, topic: &str, payload: Value) -> Value {
        self.push(topic, "phx_join", payload)
    }

    /// Sends a `/ws` command. Returns the result, or the code of the error.
    pub fn command(&mut self, fields: Value) -> Value {
        let Wire::Ws(socket) = &mut self.wire else { panic!("this is not /ws") };
        socket.send(Message::text(with(fields, json!({"id": 1})).to_string())).unwrap();
        let outcome = self.reply("reply");
        match outcome.get("ok") {
            Some(ok) => ok.clone(),
            None => outcome["error"]["code"].clone(),
        }
    }

    /// Returns the reply of this name. Stores events that come before it for [`Client::event`].
    fn reply(&mut self, name: &str) -> Value {
        loop {
            let (event, value) = self.read_event();
            if event == name {
                return value;
            }
            assert_ne!(event, "closed", "before {name}: {value}");
            self.events.push_back((event, value));
        }
    }

    /// Returns the next event and its name: `message` for a message, `closed` for the end, with its reason.
    pub fn event(&mut self) -> (String, Value) {
        self.events.pop_front().unwrap_or_else(|| self.read_event())
    }

    fn read_event(&mut self) -> (String, Value) {
        let closed = |reason: &str| ("closed".to_string(), json!({"reason": reason}));
        match &mut self.wire {
            Wire::Sse(stream) => {
                let (mut name, mut data) = ("message".to_string(), None);
                loop {
                    let line = stream.line();
                    match line.split_once(": ") {
                        Some(("", comment)) if comment.starts_with("closing, ") => {
                            return closed(&comment["closing, ".len()..]);
                        }
                        Some(("event", event)) => name = event.into(),
                        Some(("data", text)) => {
                            let raw = || json!(text);
                            data = Some(serde_json::from_str(text).unwrap_or_else(|_| raw()));
                        }
                        _ => {}
                    }
                    if line.is_empty()
                        && let Some(data) = data.take()
                    {
                        return (name, data);
                    }
                }
            }
            Wire::Stream(stream) => {
                let object = stream.object();
                let kind = object["type"].as_str().unwrap().to_string();
                match &*kind {
                    "close" => closed(object["reason"].as_str().unwrap()),
                    _ => named(kind, object),
                }
            }
            Wire::Poll(stream) => {
                let (status, body) = stream.read_reply();
                let body: Value = serde_json::from_str(&body).unwrap_or(Value::Null);
                match status {
                    200 => ("message".into(), body["messages"][0]["data"].clone()),
                    _ => closed(body["error"]["code"].as_str().unwrap()),
                }
            }
            Wire::Ws(socket) | Wire::Phoenix(socket) => match read(socket) {
                Message::Text(text) => {
                    let value: Value = serde_json::from_str(&text).unwrap();
                    match &value {
                        Value::Array(parts) => phoenix(parts),
                        object => {
                            let kind = object["type"].as_str().unwrap().to_string();
                            named(kind, value)
                        }
                    }
                }
                Message::Close(Some(frame)) => {
                    let (code, reason) = (u16::from(frame.code), frame.reason.to_string());
                    ("closed".into(), json!({"code": code, "reason": reason}))
                }
                other => panic!("{other:?}"),
            },
            Wire::Longpoll { address, session, came } => loop {
                if !came.is_empty() {
                    let message = came.remove(0);
                    return phoenix(message.as_array().unwrap());
                }
                let target = format!("/socket/longpoll?vsn=2.0.0&token={session}");
                let (_, outcome) = json(*address, "GET", &target, None, "");
                for message in outcome["messages"].as_array().into_iter().flatten() {
                    came.push(match message {
                        Value::String(text) => serde_json::from_str(text).unwrap(),
                        other => other.clone(),
                    });
                }
                match outcome["status"].as_u64() {
                    Some(200 | 204) => {}
                    status => return ("closed".into(), json!({"code": status})),
                }
            },
        }
    }

    /// Returns the data of the next event of this name.
    pub fn until(&mut self, name: &str) -> Value {
        loop {
            let (event, value) = self.event();
            if event == name {
                return value;
            }
            assert_ne!(event, "closed", "before {name}: {value}");
        }
    }

    /// Returns the reason for the end. Checks that a WebSocket's code matches the reason. A polled session is gone,
    /// or is another one.
    pub fn closed(&mut self) -> String {
        let end = loop {
            let (event, value) = self.event();
            if event == "closed" {
                break value;
            }
        };
        let reason = end["reason"].as_str().unwrap_or("").to_string();
        if let (Wire::Ws(_) | Wire::Phoenix(_), Some(code)) = (&self.wire, end["code"].as_u64()) {
            let want = match &*reason {
                "token_expired" => 4402,
                "token_revoked" => 4403,
                "unauthorized" => 4401,
                other => panic!("{other}"),
            };
            assert_eq!(code, want, "{reason}");
        }
        reason
    }
}

/// Returns the number of a topic's members.
pub fn members(server: &Server, topic: &str) -> u64 {
    server.api("GET", &format!("/api/topics/{topic}"), None).1["members"].as_u64().unwrap_or(0)
}

/// Returns a message's name and data. Other objects have their type as their name.
fn named(kind: String, object: Value) -> (String, Value) {
    match (&*kind, object["event"].as_str()) {
        ("message", event) => (event.unwrap_or("message").into(), object["data"].clone()),
        _ => (kind, object),
    }
}

/// Reads the next message that is no heartbeat.
fn read(socket: &mut WebSocket) -> Message {
    loop {
        match socket.read().unwrap() {
            Message::Ping(_) | Message::Pong(_) => {}
            message => return message,
        }
    }
}

/// Returns the event and the payload of a Phoenix message.
fn phoenix(parts: &[Value]) -> (String, Value) {
    let [_, _, _, event, payload] = parts else { panic!("{parts:?}") };
    let event = event.as_str().unwrap().to_string();
    let payload = if event == "message" { payload["data"].clone() } else { payload.clone() };
    (event, payload)
}
