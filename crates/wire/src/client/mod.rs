//! The client's side of each transport, as a load generator needs it: one file each, behind one
//! small trait, and a few bytes of state a connection.
//!
//! What is shared is the answer around it: the HTTP head, and the body by length, in chunks or to
//! the end of the connection (RFC 9112, section 6). A caller gives what came, in any pieces, and
//! gets [`Event`]s; what is incomplete stays in a buffer that is empty most of the time.

mod phoenix;
mod poll;
mod sse;
mod stream;
mod ws;

use std::borrow::Cow;

use serde::Deserialize;

/// Bytes of a head, or of a message that hasn't come in full.
pub const PENDING_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Seconds from one of a client's heartbeats to the next, where the transport has them: what
/// phoenix.js does.
pub const HEARTBEAT_SECONDS: u32 = 30;

/// Header lines of an answer.
const HEADERS_MAX: usize = 64;

/// The transports that a client can speak.
pub const ALL: [&dyn Client; 5] =
    [&sse::Sse, &stream::Stream, &poll::Poll, &ws::Ws, &phoenix::Phoenix];

/// The transport of this name.
pub fn by_name(name: &str) -> Option<&'static dyn Client> {
    ALL.into_iter().find(|client| client.name() == name)
}

/// One way of listening to a server.
pub trait Client: Sync {
    /// The name on command lines and in reports.
    fn name(&self) -> &'static str;

    /// Where Throng serves it: a path and query with `{user}` and `{topic}`.
    fn default_target(&self) -> &'static str;

    /// Appends the request.
    fn request(&self, request: &Request<'_>, out: &mut Vec<u8>);

    /// Judges the answer's head.
    fn head(&self, head: &Head<'_>) -> Result<(), Fault>;

    /// True when an answer's head says that the connection is open; false when it comes only with
    /// the first message, and the written request must do.
    fn answers_at_once(&self) -> bool {
        true
    }

    /// True when a good head is not enough, and the connection is open only when the server has
    /// granted what [`Client::join`] asks for.
    fn joins(&self) -> bool {
        false
    }

    /// Appends the joins of the topics that the request names, and gives how many grants open the
    /// connection.
    fn join(&self, _request: &Request<'_>, _out: &mut Vec<u8>) -> u32 {
        0
    }

    /// Appends what the client sends every [`HEARTBEAT_SECONDS`] while it is open; nothing where
    /// heartbeats are the server's alone.
    fn heartbeat(&self, _out: &mut Vec<u8>) {}

    /// True when the place that came last, as it is, says of all topics how far they were heard;
    /// false when each topic has its own.
    fn has_one_place(&self) -> bool {
        false
    }

    /// Appends the wish to enter one more topic, from a place or from now; false where all topics
    /// are in the request.
    fn subscribe(&self, _topic: &str, _since: Option<&str>, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// Appends the acknowledgement of what came of a user's own topic up to this id; false where it
    /// takes a request of its own, `POST /ack`. A Phoenix client must have joined the topic.
    fn acknowledge(&self, _user: &str, _id: &str, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// Goes over the body and gives how much of it was used; the rest is incomplete. `ended` says
    /// that no more comes. What must be sent in return is appended to `out`.
    fn body(
        &self,
        body: &[u8],
        ended: bool,
        out: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> Result<usize, Fault>;
}

/// What a connection asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// For the `Host` line.
    pub host: &'a str,
    /// Path and query.
    pub target: &'a str,
    /// The connection's number: what must differ between connections is made from it.
    pub number: u64,
    /// Where it goes on, as [`Event::Place`] or [`Event::Again`] gave it: SSE sends it as
    /// `Last-Event-ID`, Phoenix in the payload of each join, the others as `since` in the query. A
    /// single topic may have its own in the target, `since:TOPIC=ID`.
    pub since: Option<&'a str>,
}

/// The head of an answer.
#[derive(Debug)]
pub struct Head<'a> {
    /// The status.
    pub status: u16,
    /// The number of the request that it answers.
    pub number: u64,
    headers: &'a [httparse::Header<'a>],
}

impl Head<'_> {
    /// The value of a header, as text.
    pub fn get(&self, name: &str) -> Option<&str> {
        let header = self.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(header.value).ok().map(str::trim)
    }

    /// Good when the status is the one expected.
    pub fn expect(&self, status: u16) -> Result<(), Fault> {
        if self.status == status { Ok(()) } else { Err(Fault::Status(self.status)) }
    }
}

/// What came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The connection is open. From [`Client::body`], where a client joins: one join is granted.
    Open,
    /// The answer's head is good: call [`State::join`] and send what it gives.
    Join,
    /// A message, as it stands on the wire without its framing.
    Message(&'a [u8]),
    /// A part of a message; the last one comes as [`Event::Message`].
    Part(&'a [u8]),
    /// A sign of life.
    Heartbeat,
    /// What to come back with, as the server wrote it: after the message that came just before, or
    /// without one as the server says where it is. A message that nothing keeps may have one too, of
    /// another epoch than those that are kept (the part before the colon).
    Place(&'a str),
    /// Whether all that was missed follows, or has come: the answer to [`Request::since`].
    Recovered(bool),
    /// The events [`Event::Recovered`] and [`Event::Place`] that come just behind it are of this
    /// topic alone.
    Entered(&'a str),
    /// A user's messages are acknowledged up to this id.
    Acknowledged(&'a str),
    /// A poll is answered: ask again from here.
    Again(&'a str),
    /// The server says why it will close.
    Goodbye(Goodbye),
    /// The answer is complete where it should not end.
    End,
}

/// Why the server closes, in the transport's own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goodbye {
    /// A WebSocket close code; 1005 where none was given (RFC 6455, section 7.1.5).
    Code(u16),
    /// Throng's name for the reason, on the other transports.
    Named(&'static str),
}

/// What the server did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Another status than the one expected.
    #[error("answered with status {0}")]
    Status(u16),
    /// No HTTP answer.
    #[error("the answer is not HTTP/1.1")]
    NotHttp,
    /// The head of the answer lacks or contradicts what the transport needs.
    #[error("{0}")]
    BadHead(&'static str),
    /// A join was refused, for this reason.
    #[error("a join was refused: {0}")]
    Refused(&'static str),
    /// The body breaks the transport's rules.
    #[error("{0}")]
    BadBody(&'static str),
    /// A head or a message over [`PENDING_BYTES_MAX`].
    #[error("a message of over 16 MiB")]
    TooLong,
}

/// How the bytes that come next are framed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    #[default]
    Head,
    /// All that comes is body. `left` joins are not granted yet.
    Raw,
    /// `left` bytes of body.
    Length,
    /// In the size of a chunk; `left` as far as it came.
    Size,
    /// Behind the size, to the line's end.
    Extension,
    /// `left` bytes of a chunk.
    Chunk,
    /// The line end behind a chunk.
    ChunkEnd,
    /// Lines after the last chunk; `left` bytes of this one came.
    Trailer,
    /// Nothing more is expected.
    Ended,
}

/// How far one connection has read its answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct State {
    left: u32,
    at: At,
}

/// What [`State::feed`] works with beside the bytes.
pub struct Feed<'a> {
    /// The transport.
    pub client: &'a dyn Client,
    /// The connection's number, as in its request.
    pub number: u64,
    /// What was incomplete before; the same buffer for each call on a connection.
    pub pending: &'a mut Vec<u8>,
    /// What must be sent in return is appended here.
    pub out: &'a mut Vec<u8>,
}

impl State {
    /// Takes what came, in pieces of any size.
    ///
    /// # Errors
    /// What the server did wrong; the connection is then of no more use.
    pub fn feed(
        &mut self,
        feed: &mut Feed<'_>,
        mut bytes: &[u8],
        emit: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), Fault> {
        while !bytes.is_empty() {
            bytes = match self.at {
                At::Head => self.head(feed, bytes, emit)?,
                At::Raw => {
                    self.raw(feed, bytes, emit)?;
                    &[]
                }
                At::Length | At::Chunk => self.counted(feed, bytes, emit)?,
                At::Size | At::Extension | At::ChunkEnd | At::Trailer => {
                    self.between(feed, bytes, emit)?
                }
                At::Ended => return Err(Fault::BadBody("bytes after the end of the answer")),
            };
        }
        Ok(())
    }

    /// Asks for what the connection still needs to be open, when [`Event::Join`] came: appends it
    /// to `out`. [`Event::Open`] comes when all of it is granted.
    pub fn join(&mut self, client: &dyn Client, request: &Request<'_>, out: &mut Vec<u8>) {
        if self.at == At::Raw {
            self.left = client.join(request, out);
        }
    }

    /// Takes body bytes where all is body. The last grant of those that are awaited opens the
    /// connection; what is granted unasked says nothing.
    fn raw(
        &mut self,
        feed: &mut Feed<'_>,
        bytes: &[u8],
        emit: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), Fault> {
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

    /// Reads the head once it is complete, and gives what follows it.
    fn head<'b>(
        &mut self,
        feed: &mut Feed<'_>,
        bytes: &'b [u8],
        emit: &mut dyn FnMut(Event<'_>),
    ) -> Result<&'b [u8], Fault> {
        let before = feed.pending.len();
        let whole = if before == 0 {
            bytes
        } else {
            feed.pending.extend_from_slice(bytes);
            feed.pending.as_slice()
        };
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let used = match response.parse(whole).map_err(|_| Fault::NotHttp)? {
            httparse::Status::Complete(used) => used,
            httparse::Status::Partial if whole.len() > PENDING_BYTES_MAX => {
                return Err(Fault::TooLong);
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
            // An interim answer; the answer follows (RFC 9110, section 15.2).
            feed.pending.clear();
            return Ok(&bytes[used - before..]);
        }
        let head = Head { status, number: feed.number, headers: response.headers };
        feed.client.head(&head)?;
        *self = framing(&head)?;
        feed.pending.clear();
        if feed.client.joins() {
            emit(Event::Join);
        } else if feed.client.answers_at_once() {
            emit(Event::Open);
        }
        if self.at == At::Length && self.left == 0 {
            self.end(feed, emit)?;
        }
        Ok(&bytes[used - before..])
    }

    /// Takes body bytes up to the end of the chunk or of the whole.
    fn counted<'b>(
        &mut self,
        feed: &mut Feed<'_>,
        bytes: &'b [u8],
        emit: &mut dyn FnMut(Event<'_>),
    ) -> Result<&'b [u8], Fault> {
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

    /// Takes one byte of what stands between chunks (RFC 9112, section 7.1).
    fn between<'b>(
        &mut self,
        feed: &mut Feed<'_>,
        bytes: &'b [u8],
        emit: &mut dyn FnMut(Event<'_>),
    ) -> Result<&'b [u8], Fault> {
        let (&byte, rest) = bytes.split_first().ok_or(Fault::BadBody("nothing"))?;
        match (self.at, byte) {
            (At::Size | At::Extension, b'\n') if self.left == 0 => self.at = At::Trailer,
            (At::Size | At::Extension, b'\n') => self.at = At::Chunk,
            (At::Size, b'\r' | b';' | b' ' | b'\t') => self.at = At::Extension,
            (At::Size, digit) => {
                let digit = char::from(digit).to_digit(16);
                let digit = digit.ok_or(Fault::BadBody("a chunk's size is no number"))?;
                let left = self.left.checked_mul(16).and_then(|left| left.checked_add(digit));
                self.left = left.ok_or(Fault::TooLong)?;
            }
            (At::ChunkEnd, b'\n') => *self = State { left: 0, at: At::Size },
            (At::ChunkEnd, b'\r') | (At::Extension, _) | (At::Trailer, b'\r') => {}
            (At::Trailer, b'\n') if self.left == 0 => self.end(feed, emit)?,
            (At::Trailer, b'\n') => self.left = 0,
            (At::Trailer, _) => self.left = 1,
            _ => return Err(Fault::BadBody("a chunk is longer than its size")),
        }
        Ok(rest)
    }

    /// The answer is complete: another may follow on the same connection.
    fn end(&mut self, feed: &mut Feed<'_>, emit: &mut dyn FnMut(Event<'_>)) -> Result<(), Fault> {
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

/// Gives a piece of the body to the transport, with what was left before.
fn body(
    feed: &mut Feed<'_>,
    piece: &[u8],
    ended: bool,
    emit: &mut dyn FnMut(Event<'_>),
) -> Result<(), Fault> {
    if feed.pending.is_empty() {
        let used = feed.client.body(piece, ended, feed.out, emit)?;
        feed.pending.extend_from_slice(&piece[used..]);
    } else {
        feed.pending.extend_from_slice(piece);
        let used = feed.client.body(feed.pending, ended, feed.out, emit)?;
        feed.pending.drain(..used);
    }
    if feed.pending.len() > PENDING_BYTES_MAX { Err(Fault::TooLong) } else { Ok(()) }
}

fn framing(head: &Head<'_>) -> Result<State, Fault> {
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
            let left = length.parse().map_err(|_| Fault::BadHead("a Content-Length too large"))?;
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

/// A line of the HTTP stream or a text of the WebSocket, by Throng's `type`; what has none is a
/// message.
fn json_event(line: &[u8]) -> Option<Event<'_>> {
    let Some(rest) = line.strip_prefix(b"{\"type\":\"") else {
        return Some(Event::Message(line));
    };
    let end = memchr::memchr(b'"', rest).unwrap_or(rest.len());
    match &rest[..end] {
        b"heartbeat" => Some(Event::Heartbeat),
        b"welcome" | b"reply" => None,
        b"close" => Some(Event::Goodbye(Goodbye::Named(closing(line)))),
        _ => Some(Event::Message(line)),
    }
}

/// Gives what a JSON text means, and the place behind it.
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
        place(message).into_iter().for_each(|place| emit(Event::Place(place)));
    }
}

const RECOVERY: &[u8] = b"{\"type\":\"recovery\"";

/// The answer to a WebSocket's command: what its `ok` says. That something was refused says nothing
/// here.
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

/// Gives what the server says of what was missed, and of acknowledgements: a line of its own, or
/// the answer to who enters a topic.
fn recovery<'a>(json: &'a [u8], topic: Option<&'a str>, emit: &mut dyn FnMut(Event<'a>)) {
    #[derive(Deserialize)]
    struct Recovery<'a> {
        since: Option<&'a str>,
        recovered: Option<bool>,
        acknowledged: Option<&'a str>,
    }
    // What is no such object says nothing.
    if let Ok(Recovery { since, recovered, acknowledged }) = serde_json::from_slice(json) {
        if since.is_some() || recovered.is_some() {
            topic.into_iter().for_each(|topic| emit(Event::Entered(topic)));
        }
        recovered.into_iter().for_each(|recovered| emit(Event::Recovered(recovered)));
        since.into_iter().for_each(|since| emit(Event::Place(since)));
        acknowledged.into_iter().for_each(|id| emit(Event::Acknowledged(id)));
    }
}

/// The id in the object of a message, as Throng writes it: behind the topic. In the topic a quote
/// has a backslash before it, so that what is looked for can't be there.
fn place(message: &[u8]) -> Option<&str> {
    let topic = message.strip_prefix(b"{\"type\":\"message\",\"topic\":\"")?;
    const ID: &[u8] = b"\",\"id\":\"";
    let id = &topic[memchr::memmem::find(topic, ID)? + ID.len()..];
    std::str::from_utf8(&id[..memchr::memchr(b'"', id)?]).ok()
}

/// A target that asks for what came after a place.
fn since<'a>(request: &Request<'a>) -> Cow<'a, str> {
    let join = if request.target.contains('?') { '&' } else { '?' };
    match request.since {
        Some(since) => format!("{}{join}since={since}", request.target).into(),
        None => request.target.into(),
    }
}

/// The reason that a text names, among Throng's own.
fn closing(text: &[u8]) -> &'static str {
    let names = crate::Close::ALL.into_iter().map(crate::Close::name);
    names
        .into_iter()
        .find(|name| memchr::memmem::find(text, name.as_bytes()).is_some())
        .unwrap_or("other")
}

#[cfg(test)]
mod tests;
