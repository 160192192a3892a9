//! The trait of all protocols: how first bytes are recognised, requests read, messages encoded and connections ended.

use std::sync::Arc;

use auth::Principal;
use model::{
    CloseReason, CodedError, ConnectionId, Encoding, Envelope, ErrorCode, Message, ResumeToken,
};

use crate::http::{Endpoint, Method, Rejection, Route};
use crate::peer::Peer;
use crate::request::{Decisions, Interrupt, Request, Respond};
use crate::websocket::Decoder;
use crate::{Codecs, Settings};

/// A protocol in one of its encodings.
pub type ProtocolRef = &'static dyn Protocol;

/// A protocol in one of its encodings. A protocol with several encodings is in the table of [`Protocols`] once for each
/// of them.
///
/// A connection begins in HTTP, or in the protocol that recognises its first bytes. That protocol reads its first
/// request. The connection changes to another protocol by [`Request::Open`].
///
/// # Examples
///
/// A protocol in which a client names its user in a line, and then only receives. (`examples/line-protocol` uses all
/// that a protocol can have.)
///
/// ```
/// use auth::Principal;
/// use model::{CloseReason, Encoding, Message, Name, ResumeRequest};
/// use protocol::request::{Open, Request};
/// use protocol::{Codecs, Delivery, Liveness, Protocol, Protocols, Read, Reader, Recognised, Settings};
///
/// struct Listen;
///
/// impl Protocol for Listen {
///     fn name(&self) -> &'static str {
///         "listen"
///     }
///
///     // A number that no other protocol has.
///     fn encoding(&self) -> Encoding {
///         Encoding(21)
///     }
///
///     fn delivery(&self) -> Delivery {
///         Delivery::Pushed
///     }
///
///     // An empty line after 30 s without a message.
///     fn liveness(&self, _settings: &Settings) -> Liveness {
///         Liveness::ServerInSilence { seconds: 30 }
///     }
///
///     fn recognise(&self, first: &[u8]) -> Recognised {
///         Recognised::by_prefix(b"LISTEN ", first)
///     }
///
///     fn read(&self, reader: &mut Reader<'_>, bytes: &mut [u8], _out: &mut Vec<u8>) -> Read {
///         // No line is longer than this, and an open connection sends nothing.
///         if bytes.len() > 300 || reader.open {
///             let request = Some(Request::Close(CloseReason::ProtocolError));
///             return Read { consumed: bytes.len(), request, ..Read::MORE };
///         }
///         let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
///             return Read::MORE;
///         };
///         let line = String::from_utf8_lossy(&bytes[..end]);
///         let user = line.trim().strip_prefix("LISTEN ").unwrap_or("");
///         let request = match model::name::check_name(user) {
///             Err(_) => Request::Close(CloseReason::BadRequest),
///             Ok(()) => Request::Open(Open {
///                 encoding: self.encoding(),
///                 principal: Principal::anonymous(vec![user.into()]),
///                 topics: Vec::new(),
///                 resume: ResumeRequest::default(),
///                 tags: Vec::new(),
///                 stranger: false,
///             }),
///         };
///         Read { consumed: end + 1, request: Some(request), ..Read::MORE }
///     }
///
///     // The object that the HTTP stream and /ws have, in a line.
///     fn encode(&self, message: &Message, _codecs: &mut Codecs, out: &mut Vec<u8>) {
///         protocol::json::message(message, out);
///         out.push(b'\n');
///     }
///
///     fn heartbeat(&self, out: &mut Vec<u8>) {
///         out.push(b'\n');
///     }
///
///     fn goodbye(&self, close: CloseReason, _retry_ms: u32, out: &mut Vec<u8>) {
///         out.extend_from_slice(format!("BYE {}\n", close.name()).as_bytes());
///     }
/// }
///
/// // What `throng::run` takes: all protocols of this crate, and one more.
/// let protocols: Protocols = protocol::standard().clone().with(&Listen);
/// assert_eq!(protocols.of(Listen.encoding()).name(), "listen");
/// assert_eq!(Listen.recognise(b"LISTEN alice\n"), Recognised::Yes);
/// assert_eq!(Listen.recognise(b"GET / HTTP/1.1\r\n"), Recognised::No);
/// // More bytes are needed.
/// assert_eq!(Listen.recognise(b"LIST"), Recognised::Perhaps);
/// ```
pub trait Protocol: Sync {
    /// The name in the API and the metrics, the same for all encodings: `sse`, `ws`, `phoenix`.
    fn name(&self) -> &'static str;

    /// The number of the encoding: all connections of one encoding get the same bytes for the same message. The number
    /// never changes, because another process may read it in an export.
    fn encoding(&self) -> Encoding;

    /// How messages are delivered to a connection.
    fn delivery(&self) -> Delivery;

    /// Which side sends heartbeats, and how often.
    fn liveness(&self, settings: &Settings) -> Liveness;

    /// Whether the first bytes of a connection are this protocol's. HTTP reads what no protocol recognises. A protocol
    /// that returns [`Recognised::No`] for an empty slice is not called for connections.
    fn recognise(&self, _first: &[u8]) -> Recognised {
        Recognised::No
    }

    /// Whether the settings enable the protocol. Otherwise it recognises nothing.
    fn is_on(&self, _settings: &Settings) -> bool {
        true
    }

    /// The listener for this protocol only, if there is one. All connections of this listener begin in the protocol's
    /// first encoding of the table. A connection whose first bytes [`Protocol::recognise`] does not recognise is closed
    /// without a reply.
    fn listener(&self) -> Option<Listener> {
        None
    }

    /// The paths of [`Protocol::route`], and what clients need for them. It is called for no other path.
    fn endpoints(&self) -> &'static [Endpoint] {
        &[]
    }

    /// Processes an HTTP request if its path is one of this protocol's; otherwise returns `None`. Of several encodings
    /// with one name only the first in the table is called. After [`Interrupt::Pending`] the same request comes again.
    fn route(&self, _route: &Route<'_>, _out: &mut Vec<u8>) -> Option<Result<Request, Interrupt>> {
        None
    }

    /// Processes the head of an HTTP request before its body was received, if its path is one of this protocol's.
    /// Returns true if the reply is in `out`, so that the server reads no body.
    fn before_body(
        &self,
        _route: &Route<'_>,
        _out: &mut Vec<u8>,
    ) -> Option<Result<bool, Rejection>> {
        None
    }

    /// Appends a rejection in the format of the clients of this path, if they have one of their own. The request may be
    /// one that could not be parsed.
    fn reject(
        &self,
        _path: &str,
        _method: Method,
        _rejection: &Rejection,
        _respond: &Respond,
        _out: &mut Vec<u8>,
    ) -> bool {
        false
    }

    /// Reads the first request, frame or line of `bytes`, which may be changed. A reply that needs no engine is
    /// appended to `out`. Bytes that are not consumed come again, with more behind them.
    fn read(&self, reader: &mut Reader<'_>, bytes: &mut [u8], out: &mut Vec<u8>) -> Read;

    /// Appends the message, with the same bytes for every connection of this encoding.
    fn encode(&self, message: &Message, codecs: &mut Codecs, out: &mut Vec<u8>);

    /// Appends a heartbeat, which keeps an idle connection alive. Appends nothing if the server sends none.
    fn heartbeat(&self, _out: &mut Vec<u8>) {}

    /// Appends the reply to a request with an id of the client: a JSON object, or an error.
    fn reply(&self, _id: &str, _result: ReplyResult<'_>, _codecs: &mut Codecs, _out: &mut Vec<u8>) {
    }

    /// Appends a message for one connection, with this JSON text as its data: the presence snapshot of a topic for a
    /// connection that has joined it. The message was not published, and has no id to recover from. Appends nothing if
    /// the protocol has no such messages.
    fn notice(
        &self,
        _topic: &str,
        _event: &str,
        _json: &str,
        _codecs: &mut Codecs,
        _out: &mut Vec<u8>,
    ) {
    }

    /// Appends a notice of the server, an object in JSON, in the format of the protocol's notices. `name` is the
    /// object's `type`. Appends nothing if the protocol has no notices.
    fn object(&self, _name: &str, _json: &[u8], _codecs: &mut Codecs, _out: &mut Vec<u8>) {}

    /// Appends the result of a recovery, an object of [`crate::json::recovery`]. Appends nothing if another reply has
    /// it already.
    fn recovery(&self, json: &[u8], codecs: &mut Codecs, out: &mut Vec<u8>) {
        self.object("recovery", json, codecs, out);
    }

    /// Appends a notice that the connection's token expires soon, as an object in JSON. Appends nothing if the protocol
    /// has no such notice.
    fn token_expiring(&self, json: &str, codecs: &mut Codecs, out: &mut Vec<u8>) {
        self.object("token_expiring", json.as_bytes(), codecs, out);
    }

    /// Appends a notice that the client has the whole state of this compacted topic: messages from now on are changes.
    /// Appends nothing if the protocol has no such notice.
    fn state_complete(&self, topic: &str, codecs: &mut Codecs, out: &mut Vec<u8>) {
        let mut json = Vec::new();
        crate::json::state_complete(topic, &mut json);
        self.object("state_complete", &json, codecs, out);
    }

    /// Appends why the server closes the connection. If the protocol has a field for it, the client also gets how long
    /// it should wait before it reconnects, in milliseconds.
    fn goodbye(&self, close: CloseReason, retry_ms: u32, out: &mut Vec<u8>);

    /// Appends the last bytes to a connection that ends before it is open. It has sent only these bytes, which may be
    /// none.
    fn turn_away(&self, _first: &[u8], close: CloseReason, out: &mut Vec<u8>) {
        self.goodbye(close, 0, out);
    }

    /// Exports the state of a connection in the middle of a frame or a message, so that another process can continue
    /// there. The engine exports all other state.
    fn export(&self, decoder: &Decoder) -> Vec<u8> {
        decoder.export()
    }

    /// Imports the state of [`Protocol::export`], perhaps of an older version of the server. `None` if the bytes are
    /// invalid.
    fn import(&self, bytes: &[u8]) -> Option<Decoder> {
        Decoder::import(bytes)
    }

    /// What clients of the protocol can do.
    fn capabilities(&self) -> Capabilities {
        Capabilities::NONE
    }

    /// With [`Capabilities::joins`]: appends a message for the members of this list, with the name of the topic or
    /// filter that their clients have joined.
    fn encode_by(&self, message: &Message, _list: &str, codecs: &mut Codecs, out: &mut Vec<u8>) {
        self.encode(message, codecs, out);
    }

    /// With [`Capabilities::ids_resume`]: appends the message with this id in place of its own.
    fn encode_with(&self, _message: &Message, _id: &ResumeToken, _out: &mut Vec<u8>) {}

    /// With [`Capabilities::ids_resume`]: appends an id without a message.
    fn position(&self, _id: &ResumeToken, _out: &mut Vec<u8>) {}
}

/// What clients of a protocol can do, besides receiving messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// A client recovers by the id of a message alone. In topics with history the id must then say up to where the
    /// client has everything. See [`Protocol::encode_with`].
    pub ids_resume: bool,
    /// Clients acknowledge on the connection itself.
    pub acknowledges: bool,
    /// Clients join each topic by a request, and recover it by that.
    pub joins: bool,
}

impl Capabilities {
    /// Clients only receive.
    pub const NONE: Capabilities =
        Capabilities { ids_resume: false, acknowledges: false, joins: false };
}

impl dyn Protocol {}

/// The result of a request: a JSON object, or an error.
pub type ReplyResult<'a> = Result<&'a str, ReplyError<'a>>;

/// An error for a client: the server's own, or the application's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyError<'a> {
    /// The code, for programs.
    pub code: &'a str,
    /// The message, for people.
    pub message: &'a str,
}

impl<'a> ReplyError<'a> {
    /// An error with this code and this message.
    pub fn new(code: ErrorCode, message: &'a str) -> Self {
        ReplyError { code: code.text(), message }
    }
}

impl<'a> From<&'a CodedError> for ReplyError<'a> {
    fn from(CodedError { code, message }: &'a CodedError) -> Self {
        ReplyError::new(*code, message)
    }
}

/// How messages are delivered to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Not at all: the connection is in no topic.
    Nothing,
    /// Each message is sent when it is published.
    Pushed,
    /// Each message is sent when it is published, in a form that depends on the subscription of the connection.
    Subscribed,
    /// A request waits. A message wakes it, and it reads the messages that were published meanwhile.
    Woken,
    /// Messages wait until a request takes them. The connection has no socket of its own.
    Gathered,
}

/// Which side sends heartbeats, and how often. All times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// Neither side. A request has time-outs of its own.
    Unchecked,
    /// The server, when it has sent nothing for this time.
    ServerInSilence {
        /// The longest time without a byte of the server.
        seconds: u32,
    },
    /// The server, and the client replies.
    Server {
        /// The time from heartbeat to heartbeat.
        seconds: u32,
        /// A client that sends nothing for longer is disconnected.
        silence_seconds: u32,
    },
    /// The client.
    Client {
        /// A client that sends nothing for longer is disconnected.
        silence_seconds: u32,
    },
    /// The client, with the interval that it has named.
    ClientItself,
}

/// The listeners of client ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listener {
    /// The listener of all clients: first bytes decide about the protocol.
    #[default]
    Client,
    /// The listener of MQTT clients only.
    Mqtt,
}

impl Listener {
    /// All listeners.
    pub const ALL: [Listener; 2] = [Listener::Client, Listener::Mqtt];
}

/// Whether first bytes belong to a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recognised {
    /// They do not.
    No,
    /// More bytes are needed to decide.
    Perhaps,
    /// They do.
    Yes,
}

impl Recognised {
    /// For a protocol whose connections always begin with these bytes.
    pub fn by_prefix(prefix: &[u8], first: &[u8]) -> Self {
        match (first.starts_with(prefix), prefix.starts_with(first)) {
            (true, _) => Recognised::Yes,
            (false, true) => Recognised::Perhaps,
            (false, false) => Recognised::No,
        }
    }
}

/// Returns the principal of a connection; an anonymous one before it is open. The lookup takes time, and most frames do
/// not need it.
pub type Speaker<'a> = &'a dyn Fn() -> Principal;

/// The context in which a protocol reads the bytes of a connection.
pub struct Reader<'a> {
    /// The settings.
    pub settings: &'a Settings,
    /// All protocols.
    pub protocols: &'a Protocols,
    /// The connection.
    pub id: ConnectionId,
    /// The address of the client.
    pub peer: Peer,
    /// The principal of the connection.
    pub speaker: Speaker<'a>,
    /// The connection is open, and must still authenticate.
    pub stranger: bool,
    /// The time, in milliseconds since 1970.
    pub now_ms: u64,
    /// The codecs of the thread.
    pub codecs: &'a mut Codecs,
    /// The decisions of the application about the first request, which has waited for them.
    pub decisions: &'a Decisions,
    /// The state of a WebSocket between reads.
    pub decoder: &'a mut Decoder,
    /// The connection is open in this protocol, by [`Request::Open`].
    pub open: bool,
}

impl Reader<'_> {
    /// The time, in seconds since 1970.
    pub(crate) fn now_s(&self) -> u64 {
        self.now_ms / 1_000
    }
}

/// The result of a read.
#[derive(Debug)]
pub struct Read {
    /// The bytes that were consumed; 0 if more are needed.
    pub consumed: usize,
    /// The request, unless its whole reply is in `out` already.
    pub request: Option<Request>,
    /// A command that has its reply in `out` already, with the code of its error.
    pub replied: Option<Result<(), ErrorCode>>,
    /// The request was in input that the protocol had buffered. There may be more.
    pub again: bool,
}

impl Read {
    /// More bytes are needed.
    pub const MORE: Read = Read { consumed: 0, request: None, replied: None, again: false };

    /// All of these bytes were consumed without a request.
    pub fn ignored(bytes: &[u8]) -> Read {
        Read { consumed: bytes.len(), ..Read::MORE }
    }
}

/// The protocols of a server, each in each of its encodings.
#[derive(Clone)]
pub struct Protocols {
    /// The protocol of connections whose first bytes no other protocol recognises.
    first: ProtocolRef,
    /// By encoding.
    table: [Option<ProtocolRef>; Encoding::MAX],
    /// The delivery of each encoding, in a table of its own: a fan-out reads it for every member.
    delivery: [Delivery; Encoding::MAX],
    /// One of each name.
    names: Vec<ProtocolRef>,
    /// The protocols that recognise first bytes.
    recognisers: Vec<ProtocolRef>,
    /// By listener: the protocol in which its connections begin.
    begins: [Option<ProtocolRef>; Listener::ALL.len()],
}

impl Protocols {
    /// A table of one protocol, for all connections that no other recognises.
    pub fn new(first: ProtocolRef) -> Self {
        let none = Protocols {
            first,
            table: [None; Encoding::MAX],
            delivery: [Delivery::Nothing; Encoding::MAX],
            names: Vec::new(),
            recognisers: Vec::new(),
            // The listener of all clients is the first one.
            begins: [Some(first), None],
        };
        none.with(first)
    }

    /// Adds a protocol.
    ///
    /// # Panics
    /// If its encoding is not below [`Encoding::MAX`], or another protocol has it.
    #[must_use]
    pub fn with(mut self, protocol: ProtocolRef) -> Self {
        let at = usize::from(protocol.encoding().0);
        let name = protocol.name();
        assert!(at < Encoding::MAX, "encoding {at} is not below Encoding::MAX: {name}");
        assert!(self.table[at].is_none(), "another protocol has encoding {at}: {name}");
        self.table[at] = Some(protocol);
        self.delivery[at] = protocol.delivery();
        if let Some(listener) = protocol.listener() {
            self.begins[listener as usize].get_or_insert(protocol);
        }
        if self.names.iter().all(|known| known.name() != protocol.name()) {
            self.names.push(protocol);
            if protocol.recognise(&[]) != Recognised::No {
                self.recognisers.push(protocol);
            }
        }
        self
    }

    /// Returns the protocol of an encoding; the first one if there is none.
    pub fn of(&self, encoding: Encoding) -> ProtocolRef {
        self.table.get(usize::from(encoding.0)).copied().flatten().unwrap_or(self.first)
    }

    /// Returns which side sends heartbeats, for each encoding.
    pub fn liveness(&self, settings: &Settings) -> [Liveness; Encoding::MAX] {
        self.table.map(|protocol| protocol.map_or(Liveness::Unchecked, |it| it.liveness(settings)))
    }

    /// Returns how messages are delivered in an encoding.
    pub fn delivery(&self, encoding: Encoding) -> Delivery {
        self.delivery.get(usize::from(encoding.0)).copied().unwrap_or(Delivery::Nothing)
    }

    /// The protocol of connections whose first bytes no other protocol recognises.
    pub fn first(&self) -> ProtocolRef {
        self.first
    }

    /// Returns all protocols, each in each of its encodings, in the order of their numbers.
    pub fn all(&self) -> impl Iterator<Item = ProtocolRef> {
        self.table.iter().copied().flatten()
    }

    /// Returns one protocol of each name, in the order in which they were added.
    pub fn names(&self) -> impl Iterator<Item = ProtocolRef> {
        self.names.iter().copied()
    }

    /// Returns a row for each path of HTTP.
    pub fn endpoints(&self) -> impl Iterator<Item = Endpoint> {
        self.names.iter().flat_map(|protocol| protocol.endpoints()).copied()
    }

    /// Returns the protocol in which connections of this listener begin. `None` if no protocol has the listener.
    pub fn begin(&self, listener: Listener) -> Option<ProtocolRef> {
        self.begins[listener as usize]
    }

    /// Returns the protocol of a connection of the listener of all clients, by its first bytes. `None` if more bytes
    /// are needed.
    pub fn recognise(&self, first: &[u8], settings: &Settings) -> Option<ProtocolRef> {
        let mut perhaps = false;
        for protocol in self.recognisers.iter().filter(|it| it.is_on(settings)) {
            match protocol.recognise(first) {
                Recognised::Yes => return Some(*protocol),
                Recognised::Perhaps => perhaps = true,
                Recognised::No => {}
            }
        }
        (!perhaps).then_some(self.first)
    }
}

/// The bytes of a message in a protocol's encoding. The first caller encodes it, and all others share the bytes.
pub fn encoded(envelope: &Envelope, protocol: ProtocolRef, codecs: &mut Codecs) -> Arc<[u8]> {
    envelope.encodings.get_or_encode(protocol.encoding(), || {
        let mut out = Vec::with_capacity(envelope.publication.data.bytes() + 128);
        protocol.encode(envelope, codecs, &mut out);
        out
    })
}
