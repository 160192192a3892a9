//! The client's side of each transport, as a load generator needs it: one file each, behind one small trait, and a
//! few bytes of state a connection.
//!
//! All transports but MQTT share the response around them: the HTTP head, and the body by length, in chunks or to the
//! end of the connection (RFC 9112, section 6). A caller passes the bytes that it received, in any pieces, and gets
//! [`Event`]s. Incomplete bytes stay in a buffer that is empty most of the time.
//!
//! # Examples
//!
//! What a client of Server-Sent Events does with a socket, here without one:
//!
//! ```
//! use client::{Event, Feed, Request, State, by_name};
//!
//! let client = by_name("sse").unwrap();
//! let mut request = Vec::new();
//! let target = "/sse?topic=news";
//! client.request(&Request { host: "127.0.0.1:8000", target, number: 0, token: None }, &mut request);
//! assert!(request.starts_with(b"GET /sse?topic=news HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n"));
//!
//! // The response comes in pieces, however the network cuts them.
//! let response = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n\
//!               id: 5f3a91c2:7\ndata: hello\n\nid: 5f3a91c2:8\ndata: hel";
//! let (mut state, mut pending, mut out) = (State::default(), Vec::new(), Vec::new());
//! let mut received = Vec::new();
//! for piece in [&response[..60], &response[60..], "lo again\n\n"] {
//!     let mut feed = Feed { client, number: 0, pending: &mut pending, out: &mut out };
//!     state.feed(&mut feed, piece.as_bytes(), &mut |event| match event {
//!         // As it stands on the wire: for this transport an event's lines.
//!         Event::Message(event) => received.push(String::from_utf8_lossy(event).into_owned()),
//!         // To send as `token` of the next request, so that nothing is missed in between.
//!         Event::Token(id) => received.push(format!("seen {id}")),
//!         _ => {}
//!     })?;
//! }
//! assert_eq!(received[..2], ["id: 5f3a91c2:7\ndata: hello\n\n", "seen 5f3a91c2:7"]);
//! assert_eq!(received[2..], ["id: 5f3a91c2:8\ndata: hello again\n\n", "seen 5f3a91c2:8"]);
//! # Ok::<(), client::ClientError>(())
//! ```

#![forbid(unsafe_code)]

mod mqtt;
mod phoenix;
mod poll;
mod sse;
mod stream;
mod ws;

use std::borrow::Cow;

use serde::Deserialize;

/// Bytes of an incomplete head or message, at most.
pub const PENDING_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Seconds between a client's heartbeats, if the transport has them. phoenix.js uses the same.
pub const HEARTBEAT_SECONDS: u32 = 30;

/// Header lines of a response, at most.
const HEADERS_MAX: usize = 64;

/// The transports that a client can speak.
pub const ALL: [&dyn Client; 6] =
    [&sse::Sse, &stream::Stream, &poll::Poll, &ws::Ws, &phoenix::Phoenix, &mqtt::Mqtt];

/// Returns the transport of this name.
pub fn by_name(name: &str) -> Option<&'static dyn Client> {
    ALL.into_iter().find(|client| client.name() == name)
}

/// The client's side of one transport.
pub trait Client: Sync {
    /// The name on command lines and in reports.
    fn name(&self) -> &'static str;

    /// Throng's endpoint: a path and query with `{user}` and `{topic}`.
    fn default_target(&self) -> &'static str;

    /// Returns true if the response has a head of HTTP; without one all input is body.
    fn is_http(&self) -> bool {
        true
    }

    /// Appends the request.
    fn request(&self, request: &Request<'_>, out: &mut Vec<u8>);

    /// Checks the response's head.
    fn head(&self, head: &Head<'_>) -> Result<(), ClientError>;

    /// Returns true if a response's head shows that the connection is open. False if the head comes only with the
    /// first message: the connection then counts as open once the request is written.
    fn replies_at_once(&self) -> bool {
        true
    }

    /// Returns true if the connection is open only after the server has granted what [`Client::join`] requests; a
    /// valid head is not enough.
    fn joins(&self) -> bool {
        false
    }

    /// Appends the joins of the topics that the request names. Returns how many grants open the
    /// connection.
    fn join(&self, _request: &Request<'_>, _out: &mut Vec<u8>) -> u32 {
        0
    }

    /// Appends the client's heartbeat, due every [`HEARTBEAT_SECONDS`] while the connection is open; nothing if only
    /// the server sends heartbeats.
    fn heartbeat(&self, _out: &mut Vec<u8>) {}

    /// Appends the client's farewell before an orderly leave; nothing if the close of the connection is enough.
    fn farewell(&self, _out: &mut Vec<u8>) {}

    /// Returns true if the last resume token covers all topics; false if each topic has its own.
    fn has_one_token(&self) -> bool {
        false
    }

    /// Appends the request to enter one more topic, from a resume token or from now. Returns false if all topics are
    /// in the first request.
    fn subscribe(&self, _topic: &str, _token: Option<&str>, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// Appends the acknowledgement of a user's own topic up to this id. Returns false if that takes a request of its
    /// own, `POST /ack`. A Phoenix client must have joined the topic.
    fn acknowledge(&self, _user: &str, _id: &str, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// Reads the body and returns how many bytes it used; the rest is incomplete. With `ended` no more bytes come.
    /// Appends to `out` what the client must send in return.
    ///
    /// # Errors
    /// The body breaks the transport's rules; the connection is then useless.
    fn body(
        &self,
        body: &[u8],
        ended: bool,
        out: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> Result<usize, ClientError>;
}

/// A client's request for a connection.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The value of the `Host` line.
    pub host: &'a str,
    /// Path and query.
    pub target: &'a str,
    /// The connection's number. The client derives from it the values that must differ between connections.
    pub number: u64,
    /// The resume token of [`Event::Token`] or [`Event::Again`]: SSE sends it as `Last-Event-ID`, Phoenix in the
    /// payload of each join, the others as `since` in the query. A single topic may have its own in the target,
    /// `since:TOPIC=ID`.
    pub token: Option<&'a str>,
}

/// The head of a response.
#[derive(Debug)]
pub struct Head<'a> {
    /// The status.
    pub status: u16,
    /// The number of its request.
    pub number: u64,
    headers: &'a [httparse::Header<'a>],
}

impl Head<'_> {
    /// Returns the value of a header, as text.
    pub fn get(&self, name: &str) -> Option<&str> {
        let header = self.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(header.value).ok().map(str::trim)
    }

    /// Checks the status.
    ///
    /// # Errors
    /// [`ClientError::Status`] for any other status than this one.
    pub fn expect(&self, status: u16) -> Result<(), ClientError> {
        if self.status == status { Ok(()) } else { Err(ClientError::Status(self.status)) }
    }
}

/// An event from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The connection is open. From [`Client::body`] of a client that joins: one join is granted.
    Open,
    /// The response's head is valid: call [`State::join`] and send what it appends.
    Join,
    /// A message, as it stands on the wire without its framing.
    Message(&'a [u8]),
    /// A part of a message; the last one comes as [`Event::Message`].
    Part(&'a [u8]),
    /// The next message needs a confirmation, which the client sends. With `again` it may be a repeat; one that comes
    /// `exactly` once is a repeat if its number has not been released since.
    Delivery {
        /// Its number on the wire.
        id: u16,
        /// The message may be a repeat.
        again: bool,
        /// The message comes exactly once, not at least once.
        exactly: bool,
    },
    /// A number of [`Event::Delivery`] may mean another message from now on.
    Released(u16),
    /// The server still has the client's subscriptions of an earlier connection, and sends the missed messages.
    Session,
    /// A sign of life.
    Heartbeat,
    /// The resume token as the server wrote it: the token of the message before, or one that the server sends alone.
    /// Messages without history have one too, of another epoch (the part before the colon) than messages with
    /// history.
    Token(&'a str),
    /// Whether the client gets all missed messages: the response to [`Request::token`].
    Recovered(bool),
    /// The reason why it doesn't get all, in the server's own word: for the [`Event::Recovered`] that follows.
    Gap(&'a str),
    /// The events [`Event::Recovered`] and [`Event::Token`] that follow are about this topic alone.
    Entered(&'a str),
    /// The server reports that a user's messages are acknowledged up to this id.
    Acknowledged(&'a str),
    /// The server replied to a poll: the client polls again with this resume token.
    Again(&'a str),
    /// The server gives the reason for the close that follows.
    Goodbye(Goodbye),
    /// The response ended, although the transport should go on.
    End,
}

/// The server's reason for a close, in the transport's own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goodbye {
    /// A WebSocket close code; 1005 if the server gave none (RFC 6455, section 7.1.5).
    Code(u16),
    /// Throng's name for the reason, on the other transports.
    Named(&'static str),
}

/// The reason why a client can't use the server's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// Another status than the one expected.
    #[error("answered with status {0}")]
    Status(u16),
    /// No HTTP response.
    #[error("the response is not HTTP/1.1")]
    NotHttp,
    /// The head of the response lacks or contradicts what the transport needs.
    #[error("{0}")]
    InvalidHead(&'static str),
    /// The server rejected a join, for this reason.
    #[error("a join was refused: {0}")]
    Rejected(&'static str),
    /// The body breaks the transport's rules.
    #[error("{0}")]
    InvalidBody(&'static str),
    /// A head or a message over [`PENDING_BYTES_MAX`].
    #[error("a message larger than 16 MiB")]
    TooLong,
}

/// How the next bytes are framed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    #[default]
    Head,
    /// All input is body. `left` joins are not granted yet.
    Raw,
    /// `left` bytes of body.
    Length,
    /// In the size of a chunk; `left` is the number so far.
    Size,
    /// After the size, to the line's end.
    Extension,
    /// `left` bytes of a chunk.
    Chunk,
    /// The line end after a chunk.
    ChunkEnd,
    /// Lines after the last chunk; `left` is 1 within a line that is not empty.
    Trailer,
    /// Nothing more is expected.
    Ended,
}

/// How far one connection has read its response.
#[derive(Clone, Copy, Debug, Default)]
pub struct State {
    left: u32,
    at: At,
}

/// The context of [`State::feed`] beside the bytes.
pub struct Feed<'a> {
    /// The transport.
    pub client: &'a dyn Client,
    /// The connection's number, as in its request.
    pub number: u64,
    /// Incomplete bytes of earlier calls; the same buffer for each call on a connection.
    pub pending: &'a mut Vec<u8>,
    /// The client appends here what it must send in return.
    pub out: &'a mut Vec<u8>,
}

impl State {
    /// Takes received bytes, in pieces of any size.
    ///
    /// # Errors
    /// The server's response is invalid; the connection is then useless.
    pub fn feed(
        &mut self,
        feed: &mut Feed<'_>,
        mut bytes: &[u8],
        emit: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), ClientError> {
        while !bytes.is_empty() {
            bytes = match self.at {
                At::Head if !feed.client.is_http() => {
                    // One grant opens the connection.
                    *self = State { left: 1, at: At::Raw };
                    bytes
                }
                At::Head => self.head(feed, bytes, emit)?,
                At::Raw => {
                    self.raw(feed, bytes, emit)?;
                    &[]
                }
                At::Length | At::Chunk => self.sized(feed, bytes, emit)?,
                At::Size | At::Extension | At::ChunkEnd | At::Trailer => {
                    self.between(feed, bytes, emit)?
                }
                At::Ended => {
                    return Err(ClientError::InvalidBody("bytes after the end of the response"));
                }
            };
        }
        Ok(())
    }

    /// Appends the joins that the connection needs to be open; call it on [`Event::Join`].
    /// [`Event::Open`] comes when the server has granted all of them.
    pub fn join(&mut self, client: &dyn Client, request: &Request<'_>, out: &mut Vec<u8>) {
        if self.at == At::Raw {
            self.left = client.join(request, out);
        }
    }

    /// Takes body bytes if all input is body. The last of the expected grants opens the connection; a grant without a
    /// join means nothing.
    fn raw(
        &mut self,
        feed: &mut Feed<'_>,
        bytes: &[u8],
        emit: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), ClientError> {
        let left = &mut self.left;
        let mut count = |event: Event<'_>| {
            if event == Event::Open {
                let awaited = *left;
                *left = awaited.saturating_sub(1);
                if awaited != 1 {
                    return;
                }
            }
            emit(event);
        };
        body(feed, bytes, false, &mut count)
    }

    /// Reads the head once it is complete, and returns the bytes after it.
    fn head<'b>(
        &mut self,
        feed: &mut Feed<'_>,
        bytes: &'b [u8],
        emit: &mut dyn FnMut(Event<'_>),
    ) -> Result<&'b [u8], ClientError> {
        let before = feed.pending.len();
        let whole = if before == 0 {
            bytes
        } else {
            feed.pending.extend_from_slice(bytes);
            feed.pending.as_slice()
        };
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let used = match response.parse(whole).map_err(|_| ClientError::NotHttp)? {
            httparse::Status::Complete(used) => used,
            httparse::Status::Partial if whole.len() > PENDING_BYTES_MAX => {
                return Err(ClientError::TooLong);
            }
            httparse::Status::Partial => {
                if before == 0 {
                    feed.pending.extend_from_slice(bytes);
                }
                return Ok(&[]);
            }
        };
        let status = response.code.unwrap_or(0);
        if (100..200).contains(&status) && status != 101 {
            // An interim response; the final one follows (RFC 9110, section 15.2).
            feed.pending.clear();
            return Ok(&bytes[used - before..]);
        }
        let head = Head { status, number: feed.number, headers: response.headers };
        feed.client.head(&head)?;
        *self = framing(&head)?;
        feed.pending.clear();
        if feed.client.joins() {
            emit(Event::Join);
        } else if feed.client.replies_at_once() {
            emit(Event::Open);
        }
        if self.at == At::Length && self.left == 0 {
            self.end(feed, emit)?;
        }
        Ok(&bytes[used - before..])
    }

    /// Takes body bytes up to the end of the chunk or of the body.
    fn sized<'b>(
        &mut self,
        feed: &mut Feed<'_>,
        bytes: &'b [u8],
        emit: &mut dyn FnMut(Event<'_>),
    ) -> Result<&'b [u8], ClientError> {
        let (piece, rest) = bytes.split_at(bytes.len().min(self.left as usize));
        self.left -= piece.len() as u32;
        body(feed, piece, false, emit)?;
        if self.left == 0 {
            match self.at {
                At::Length => self.end(feed, emit)?,
                _ => self.at = At::ChunkEnd,
            }
        }
        Ok(rest)
    }

    /// Takes one byte of the lines between chunks (RFC 9112, section 7.1).
    fn between<'b>(
        &mut self,
        feed: &mut Feed<'_>,
        bytes: &'b [u8],
        emit: &mut dyn FnMut(Event<'_>),
    ) -> Result<&'b [u8], ClientError> {
        let (&byte, rest) = bytes.split_first().ok_or(ClientError::InvalidBody("nothing"))?;
        match (self.at, byte) {
            (At::Size | At::Extension, b'\n') if self.left == 0 => self.at = At::Trailer,
            (At::Size | At::Extension, b'\n') => self.at = At::Chunk,
            (At::Size, b'\r' | b';' | b' ' | b'\t') => self.at = At::Extension,
            (At::Size, digit) => {
                let digit = char::from(digit).to_digit(16);
                let digit =
                    digit.ok_or(ClientError::InvalidBody("a chunk's size is not a number"))?;
                let left = self.left.checked_mul(16).and_then(|left| left.checked_add(digit));
                self.left = left.ok_or(ClientError::TooLong)?;
            }
            (At::ChunkEnd, b'\n') => *self = State { left: 0, at: At::Size },
            (At::ChunkEnd, b'\r') | (At::Extension, _) | (At::Trailer, b'\r') => {}
            (At::Trailer, b'\n') if self.left == 0 => self.end(feed, emit)?,
            (At::Trailer, b'\n') => self.left = 0,
            (At::Trailer, _) => self.left = 1,
            _ => return Err(ClientError::InvalidBody("a chunk is longer than its size")),
        }
        Ok(rest)
    }

    /// Called when the response is complete: another may follow on the same connection.
    fn end(
        &mut self,
        feed: &mut Feed<'_>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), ClientError> {
        self.at = At::Ended;
        let mut again = false;
        let mut watch = |event: Event<'_>| {
            again |= matches!(event, Event::Again(_));
            emit(event);
        };
        body(feed, &[], true, &mut watch)?;
        feed.pending.clear();
        if again {
            *self = State::default();
        } else {
            emit(Event::End);
        }
        Ok(())
    }
}

/// Passes a piece of the body to the transport, after the incomplete bytes of earlier pieces.
fn body(
    feed: &mut Feed<'_>,
    piece: &[u8],
    ended: bool,
    emit: &mut dyn FnMut(Event<'_>),
) -> Result<(), ClientError> {
    if feed.pending.is_empty() {
        let used = feed.client.body(piece, ended, feed.out, emit)?;
        feed.pending.extend_from_slice(&piece[used..]);
    } else {
        feed.pending.extend_from_slice(piece);
        let used = feed.client.body(feed.pending, ended, feed.out, emit)?;
        feed.pending.drain(..used);
    }
    if feed.pending.len() > PENDING_BYTES_MAX { Err(ClientError::TooLong) } else { Ok(()) }
}

fn framing(head: &Head<'_>) -> Result<State, ClientError> {
    let chunked = head.get("transfer-encoding").is_some_and(|value| {
        value.rsplit(',').next().is_some_and(|last| last.trim().eq_ignore_ascii_case("chunked"))
    });
    if head.status == 101 {
        return Ok(State { left: 0, at: At::Raw });
    }
    if chunked {
        return Ok(State { left: 0, at: At::Size });
    }
    match head.get("content-length") {
        None => Ok(State { left: 0, at: At::Raw }),
        Some(length) => {
            let left = length
                .parse()
                .map_err(|_| ClientError::InvalidHead("a Content-Length too large"))?;
            Ok(State { left, at: At::Length })
        }
    }
}

/// Appends a `GET` request with these header lines.
fn get(request: &Request<'_>, lines: &str, out: &mut Vec<u8>) {
    for part in ["GET ", request.target, " HTTP/1.1\r\nHost: ", request.host, "\r\n", lines, "\r\n"]
    {
        out.extend_from_slice(part.as_bytes());
    }
}

/// Returns the event of a line of the HTTP stream or a text of the WebSocket, by Throng's `type`. Without a `type` it
/// is a message.
fn json_event(line: &[u8]) -> Option<Event<'_>> {
    let Some(rest) = line.strip_prefix(b"{\"type\":\"") else {
        return Some(Event::Message(line));
    };
    let end = memchr::memchr(b'"', rest).unwrap_or(rest.len());
    match &rest[..end] {
        b"heartbeat" => Some(Event::Heartbeat),
        b"welcome" | b"reply" | b"state_complete" => None,
        b"close" => Some(Event::Goodbye(Goodbye::Named(closing(line)))),
        _ => Some(Event::Message(line)),
    }
}

/// Emits the event of a JSON text, and then the id of a message as its resume token.
fn emit_json<'a>(line: &'a [u8], emit: &mut dyn FnMut(Event<'a>)) {
    if line.starts_with(RECOVERY) {
        return recovery(line, None, emit);
    }
    if line.starts_with(b"{\"type\":\"reply\"") {
        return reply(line, emit);
    }
    let Some(event) = json_event(line) else {
        return;
    };
    emit(event);
    if let Event::Message(message) = event {
        message_id(message).into_iter().for_each(|id| emit(Event::Token(id)));
    }
}

const RECOVERY: &[u8] = b"{\"type\":\"recovery\"";

const STATE_COMPLETE: &[u8] = b"{\"type\":\"state_complete\"";

/// Emits the events in the `ok` of a reply to a WebSocket's command. An error has no meaning here.
fn reply<'a>(json: &'a [u8], emit: &mut dyn FnMut(Event<'a>)) {
    #[derive(Deserialize)]
    struct Reply<'a> {
        #[serde(borrow)]
        ok: Option<&'a serde_json::value::RawValue>,
    }
    #[derive(Deserialize)]
    struct Of<'a> {
        topic: Option<&'a str>,
    }
    let reply: Option<Reply<'_>> = serde_json::from_slice(json).ok();
    if let Some(ok) = reply.and_then(|reply| reply.ok) {
        let of: Option<Of<'_>> = serde_json::from_str(ok.get()).ok();
        recovery(ok.get().as_bytes(), of.and_then(|of| of.topic), emit);
    }
}

/// Emits the server's events about recovery and acknowledgements: from a line of its own, or from the reply to a
/// client that enters a topic.
fn recovery<'a>(json: &'a [u8], topic: Option<&'a str>, emit: &mut dyn FnMut(Event<'a>)) {
    #[derive(Deserialize)]
    struct Recovery<'a> {
        since: Option<&'a str>,
        recovered: Option<bool>,
        reason: Option<&'a str>,
        acknowledged: Option<&'a str>,
    }
    // Anything but such an object has no meaning here.
    if let Ok(Recovery { since, recovered, reason, acknowledged }) = serde_json::from_slice(json) {
        if since.is_some() || recovered.is_some() {
            topic.into_iter().for_each(|topic| emit(Event::Entered(topic)));
        }
        reason.into_iter().for_each(|reason| emit(Event::Gap(reason)));
        recovered.into_iter().for_each(|recovered| emit(Event::Recovered(recovered)));
        since.into_iter().for_each(|since| emit(Event::Token(since)));
        acknowledged.into_iter().for_each(|id| emit(Event::Acknowledged(id)));
    }
}

/// Returns the id in the object of a message, which Throng writes right after the topic, if it has one. An id in the
/// application's data does not count.
fn message_id(message: &[u8]) -> Option<&str> {
    let mut rest = message.strip_prefix(b"{\"type\":\"message\",\"topic\":\"")?;
    loop {
        let at = memchr::memchr2(b'"', b'\\', rest)?;
        if rest[at] == b'"' {
            rest = &rest[at..];
            break;
        }
        // Skips the escaped character, too.
        rest = rest.get(at + 2..)?;
    }
    let id = rest.strip_prefix(b"\",\"id\":\"")?;
    std::str::from_utf8(&id[..memchr::memchr(b'"', id)?]).ok()
}

/// Returns the request's target, with its resume token as `since`.
fn target<'a>(request: &Request<'a>) -> Cow<'a, str> {
    let join = if request.target.contains('?') { '&' } else { '?' };
    match request.token {
        Some(token) => format!("{}{join}since={token}", request.target).into(),
        None => request.target.into(),
    }
}

/// Returns Throng's close reason that a text names.
fn closing(text: &[u8]) -> &'static str {
    let names = model::CloseReason::ALL.into_iter().map(model::CloseReason::name);
    names
        .into_iter()
        .find(|name| memchr::memmem::find(text, name.as_bytes()).is_some())
        .unwrap_or("other")
}

#[cfg(test)]
mod tests;
