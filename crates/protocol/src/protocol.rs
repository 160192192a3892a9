//! What a protocol is: one trait for its whole life, from how it is recognised to its last words.

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

/// A protocol, in one of its encodings: one that has several is in the table of [`Protocols`] once for
/// each of them.
///
/// A connection begins in HTTP, or in the protocol that recognises its first bytes. It asks for its
/// first request in that, and takes up another protocol with [`Request::Open`].
///
/// # Examples
///
/// A protocol in which a client says who it is, in a line, and then listens. (`examples/line-protocol`
/// is one that does all that a protocol can.)
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
///         // No line is longer than this. Who sends more than the server asked for is let go.
///         if bytes.len() > 300 || reader.open {
///             let request = Some(Request::Close(CloseReason::ProtocolError));
///             return Read { taken: bytes.len(), request, ..Read::MORE };
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
///         Read { taken: end + 1, request: Some(request), ..Read::MORE }
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
/// // Nobody knows yet.
/// assert_eq!(Listen.recognise(b"LIST"), Recognised::Perhaps);
/// ```
pub trait Protocol: Sync {
    /// The name in the API and the metrics, the same for all encodings: `sse`, `ws`, `phoenix`.
    fn name(&self) -> &'static str;

    /// The number of the encoding: all connections of one encoding get the same bytes for the same
    /// message. It stays the same for good, as another process may read it in what is handed over.
    fn encoding(&self) -> Encoding;

    /// How messages come to a connection.
    fn delivery(&self) -> Delivery;

    /// Who has to say something, and how often.
    fn liveness(&self, settings: &Settings) -> Liveness;

    /// Whether the first bytes of a connection are this protocol's; HTTP reads all that nobody recognises.
    /// A protocol that answers [`Recognised::No`] to an empty slice is never asked.
    fn recognise(&self, _first: &[u8]) -> Recognised {
        Recognised::No
    }

    /// Whether the settings let anybody speak it: else it recognises nothing.
    fn is_on(&self, _settings: &Settings) -> bool {
        true
    }

    /// The listener that is this protocol's alone, if there is one: all connections that come by it begin
    /// in this protocol, the first encoding of it in the table. Who then sends first what
    /// [`Protocol::recognise`] says is another's is closed without an answer.
    fn listener(&self) -> Option<Listener> {
        None
    }

    /// The paths that [`Protocol::route`] answers, and what clients need for them. It is asked for no
    /// other.
    fn endpoints(&self) -> &'static [Endpoint] {
        &[]
    }

    /// Answers an HTTP request if its path is one of this protocol's; else gives nothing. Of several
    /// encodings with one name only the first in the table is asked. With [`Interrupt::Pending`] the same
    /// request comes again.
    fn route(&self, _route: &Route<'_>, _out: &mut Vec<u8>) -> Option<Result<Request, Interrupt>> {
        None
    }

    /// Answers an HTTP request of which only the head has come, if its path is one of this protocol's:
    /// true where the answer is in `out`, so that the server reads no body.
    fn before_body(
        &self,
        _route: &Route<'_>,
        _out: &mut Vec<u8>,
    ) -> Option<Result<bool, Rejection>> {
        None
    }

    /// Appends a rejection in the form that the clients of this path read, if it is a form of their
    /// own. The request may be one that nobody could read.
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

    /// Reads the first request, frame or line of `bytes`, which may be changed. What answers it at once
    /// is appended to `out`. What is not taken comes again, with more behind it.
    fn read(&self, reader: &mut Reader<'_>, bytes: &mut [u8], out: &mut Vec<u8>) -> Read;

    /// Appends the message as every connection of this encoding gets it.
    fn encode(&self, message: &Message, codecs: &mut Codecs, out: &mut Vec<u8>);

    /// Appends a heartbeat, which keeps an idle connection alive; nothing where the server sends none.
    fn heartbeat(&self, _out: &mut Vec<u8>) {}

    /// Appends the answer to a request with an id of the client's own: a JSON object, or an error.
    fn reply(&self, _id: &str, _result: ReplyResult<'_>, _codecs: &mut Codecs, _out: &mut Vec<u8>) {
    }

    /// Appends a message to one connection alone, with this JSON text as its data: the list of who is in
    /// a topic, to a connection that has entered it. It was not published and has no id, with which
    /// nobody could come back. Nothing where clients are told in another way, or not at all.
    fn notice(
        &self,
        _topic: &str,
        _event: &str,
        _json: &str,
        _codecs: &mut Codecs,
        _out: &mut Vec<u8>,
    ) {
    }

    /// Appends an object in JSON with which the server says something of its own, in the form that the
    /// protocol has for all of them; `name` is the object's `type`. Nothing where clients are not told.
    fn object(&self, _name: &str, _json: &[u8], _codecs: &mut Codecs, _out: &mut Vec<u8>) {}

    /// Appends what a client that recovers is told, the object that [`crate::json::recovery`] made.
    /// Nothing where another answer says it already.
    fn recovery(&self, json: &[u8], codecs: &mut Codecs, out: &mut Vec<u8>) {
        self.object("recovery", json, codecs, out);
    }

    /// Appends that the connection's token expires soon, as an object in JSON. Nothing where clients of the
    /// protocol are not told.
    fn token_expiring(&self, json: &str, codecs: &mut Codecs, out: &mut Vec<u8>) {
        self.object("token_expiring", json.as_bytes(), codecs, out);
    }

    /// Appends that the client has all of the state of this topic, which is compacted: what comes from now
    /// on are changes. Nothing where clients of the protocol are not told.
    fn state_complete(&self, topic: &str, codecs: &mut Codecs, out: &mut Vec<u8>) {
        let mut json = Vec::new();
        crate::json::state_complete(topic, &mut json);
        self.object("state_complete", &json, codecs, out);
    }

    /// Appends the reason for which the server closes the connection and, where the protocol has a field
    /// for it, how long the client should wait before it returns, in milliseconds.
    fn goodbye(&self, close: CloseReason, retry_ms: u32, out: &mut Vec<u8>);

    /// Appends the last words to a connection that ends before it is open, or that nobody lets in. Only
    /// these bytes of it have come, which may be none.
    fn turn_away(&self, _first: &[u8], close: CloseReason, out: &mut Vec<u8>) {
        self.goodbye(close, 0, out);
    }

    /// What another process must know of a connection in the middle of a frame or a message, to go on
    /// where this one is. All else that is held of a connection the engine carries.
    fn export(&self, decoder: &Decoder) -> Vec<u8> {
        decoder.export()
    }

    /// What [`Protocol::export`] wrote, perhaps in an older version of the server; nothing if the bytes
    /// can't be read.
    fn import(&self, bytes: &[u8]) -> Option<Decoder> {
        Decoder::import(bytes)
    }

    /// What its clients can do.
    fn capabilities(&self) -> Capabilities {
        Capabilities::NONE
    }

    /// Where [`Capabilities::joins`]: appends a message for the members of this list, the topic's or that of a
    /// filter, by the name that their clients know.
    fn encode_by(&self, message: &Message, _list: &str, codecs: &mut Codecs, out: &mut Vec<u8>) {
        self.encode(message, codecs, out);
    }

    /// Where [`Capabilities::ids_resume`]: appends the message with this id in place of its own.
    fn encode_with(&self, _message: &Message, _id: &ResumeToken, _out: &mut Vec<u8>) {}

    /// Where [`Capabilities::ids_resume`]: appends an id without a message.
    fn position(&self, _id: &ResumeToken, _out: &mut Vec<u8>) {}
}

/// What clients of a protocol can do, beside listening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The id of a message is all that a client returns with: in topics with history it must then say
    /// how far the client has everything. See [`Protocol::encode_with`].
    pub ids_resume: bool,
    /// They acknowledge on the connection itself.
    pub acknowledges: bool,
    /// They join each topic by itself, and catch up with what they join.
    pub joins: bool,
}

impl Capabilities {
    /// They only listen.
    pub const NONE: Capabilities =
        Capabilities { ids_resume: false, acknowledges: false, joins: false };
}

impl dyn Protocol {}

/// What a request came to: a JSON object, or an error.
pub type ReplyResult<'a> = Result<&'a str, ReplyError<'a>>;

/// An error as it is written to a client: Throng's own, or the application's.
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

/// How messages come to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// They don't: it is in no topic.
    Nothing,
    /// They are sent as they are published.
    Pushed,
    /// The same, to each connection as its own subscription says.
    Subscribed,
    /// A request waits; it is woken, and reads what was published since.
    Woken,
    /// They are gathered until a request takes them. The connection has no socket of its own.
    Gathered,
}

/// Who has to say something, and how often. All in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// Neither side. A request has its own time-outs.
    Unchecked,
    /// The server, after so long a silence of its own.
    ServerInSilence {
        /// Longest silence.
        seconds: u32,
    },
    /// The server, and the client answers.
    Server {
        /// Time from heartbeat to heartbeat.
        seconds: u32,
        /// A client that says nothing for longer is gone.
        silence_seconds: u32,
    },
    /// The client.
    Client {
        /// A client that says nothing for longer is gone.
        silence_seconds: u32,
    },
    /// The client, as often as it has said itself.
    ClientItself,
}

/// Where connections come in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listener {
    /// That of all clients: the first bytes say what they speak.
    #[default]
    Client,
    /// That of MQTT clients alone.
    Mqtt,
}

impl Listener {
    /// All.
    pub const ALL: [Listener; 2] = [Listener::Client, Listener::Mqtt];
}

/// Whether first bytes are a protocol's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recognised {
    /// They are not.
    No,
    /// They may be: more must come.
    Perhaps,
    /// They are.
    Yes,
}

impl Recognised {
    /// For a protocol whose first bytes are always these.
    pub fn by_prefix(prefix: &[u8], first: &[u8]) -> Self {
        match (first.starts_with(prefix), prefix.starts_with(first)) {
            (true, _) => Recognised::Yes,
            (false, true) => Recognised::Perhaps,
            (false, false) => Recognised::No,
        }
    }
}

/// Gives who speaks on a connection; nobody before it is open. To find out takes time, for which most
/// frames have no use.
pub type Speaker<'a> = &'a dyn Fn() -> Principal;

/// What a protocol may use to read a connection's bytes.
pub struct Reader<'a> {
    /// The settings.
    pub settings: &'a Settings,
    /// All protocols.
    pub protocols: &'a Protocols,
    /// The connection.
    pub id: ConnectionId,
    /// Where it comes from.
    pub peer: Peer,
    /// Who speaks.
    pub speaker: Speaker<'a>,
    /// It is open, and has still to say who it is.
    pub stranger: bool,
    /// The time, in milliseconds since 1970.
    pub now_ms: u64,
    /// The codecs of the thread.
    pub codecs: &'a mut Codecs,
    /// What the application has said about the request that comes first: it was held for that.
    pub decisions: &'a Decisions,
    /// What a WebSocket is in the middle of.
    pub decoder: &'a mut Decoder,
    /// The connection has taken up this protocol, by [`Request::Open`]. Before, it asks for that.
    pub open: bool,
}

impl Reader<'_> {
    /// The time, in seconds since 1970.
    pub(crate) fn now_s(&self) -> u64 {
        self.now_ms / 1_000
    }
}

/// What was read.
#[derive(Debug)]
pub struct Read {
    /// Bytes that were taken; 0 when more must come before anything can be done.
    pub taken: usize,
    /// What they ask for, if that is more than the answer that is in `out` already.
    pub request: Option<Request>,
    /// A command that has its reply in `out` already, with the code of its error.
    pub replied: Option<Result<(), ErrorCode>>,
    /// Something was read that had come before: there may be more of that.
    pub again: bool,
}

impl Read {
    /// More must come.
    pub const MORE: Read = Read { taken: 0, request: None, replied: None, again: false };

    /// All of these bytes were taken, and mean nothing.
    pub fn ignored(bytes: &[u8]) -> Read {
        Read { taken: bytes.len(), ..Read::MORE }
    }
}

/// The protocols that a server speaks, each in each of its encodings.
#[derive(Clone)]
pub struct Protocols {
    /// What a connection begins in that nobody recognises.
    first: ProtocolRef,
    /// By encoding.
    table: [Option<ProtocolRef>; Encoding::MAX],
    /// How each encoding is delivered, beside the table: a fan-out asks for every member.
    delivery: [Delivery; Encoding::MAX],
    /// One of each name.
    names: Vec<ProtocolRef>,
    /// Those of them that know first bytes.
    recognisers: Vec<ProtocolRef>,
    /// By listener: what its connections begin in.
    begins: [Option<ProtocolRef>; Listener::ALL.len()],
}

impl Protocols {
    /// One protocol, for all connections that no other recognises.
    pub fn new(first: ProtocolRef) -> Self {
        let none = Protocols {
            first,
            table: [None; Encoding::MAX],
            delivery: [Delivery::Nothing; Encoding::MAX],
            names: Vec::new(),
            recognisers: Vec::new(),
            // That of all clients is the first one.
            begins: [Some(first), None],
        };
        none.with(first)
    }

    /// The same and one more.
    ///
    /// # Panics
    /// When its encoding is not below [`Encoding::MAX`], or is another's.
    #[must_use]
    pub fn with(mut self, protocol: ProtocolRef) -> Self {
        let at = usize::from(protocol.encoding().0);
        assert!(at < Encoding::MAX, "there is no room for encoding {at}: {}", protocol.name());
        assert!(self.table[at].is_none(), "encoding {at} is another's: {}", protocol.name());
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

    /// The protocol of an encoding; the first one where there is none.
    pub fn of(&self, encoding: Encoding) -> ProtocolRef {
        self.table.get(usize::from(encoding.0)).copied().flatten().unwrap_or(self.first)
    }

    /// Who has to say something on a connection of each encoding.
    pub fn liveness(&self, settings: &Settings) -> [Liveness; Encoding::MAX] {
        self.table.map(|protocol| protocol.map_or(Liveness::Unchecked, |it| it.liveness(settings)))
    }

    /// How an encoding is delivered.
    pub fn delivery(&self, encoding: Encoding) -> Delivery {
        self.delivery.get(usize::from(encoding.0)).copied().unwrap_or(Delivery::Nothing)
    }

    /// What a connection begins in that nobody recognises.
    pub fn first(&self) -> ProtocolRef {
        self.first
    }

    /// All, each in each of its encodings, in the order of their numbers.
    pub fn all(&self) -> impl Iterator<Item = ProtocolRef> {
        self.table.iter().copied().flatten()
    }

    /// One of each name, in the order in which they were added.
    pub fn names(&self) -> impl Iterator<Item = ProtocolRef> {
        self.names.iter().copied()
    }

    /// A row for each path of HTTP.
    pub fn endpoints(&self) -> impl Iterator<Item = Endpoint> {
        self.names.iter().flat_map(|protocol| protocol.endpoints()).copied()
    }

    /// What connections begin in that come by this listener; nothing where no protocol has it.
    pub fn begin(&self, listener: Listener) -> Option<ProtocolRef> {
        self.begins[listener as usize]
    }

    /// Whose a connection is that came by the listener of all clients, by its first bytes; nobody's as
    /// long as more must come.
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

/// The bytes of a message in a protocol's encoding: the first caller encodes, all others share.
pub fn encoded(envelope: &Envelope, protocol: ProtocolRef, codecs: &mut Codecs) -> Arc<[u8]> {
    envelope.encodings.get_or_encode(protocol.encoding(), || {
        let mut out = Vec::with_capacity(envelope.publication.data.bytes() + 128);
        protocol.encode(envelope, codecs, &mut out);
        out
    })
}
