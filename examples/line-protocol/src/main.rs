//! Adds a protocol to Throng: commands in lines over TCP (README.md). It is one `impl`, and no other crate knows
//! about it. This binary starts a server with it on the client port, beside all other protocols.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::LazyLock;

use auth::{Action, Consent, Principal};
use model::name::{check_name, check_topic};
use model::{
    CloseReason, CodedError, Data, Encoding, ErrorCode, Message, Name, Publication, ResumeRequest,
};
use protocol::request::{Acknowledgement, Open, ReplyTo, Request, Subscribe};
use protocol::{
    Capabilities, Codecs, Delivery, Liveness, Protocol, Protocols, Read, Reader, Recognised,
};
use protocol::{ReplyError, ReplyResult, Settings};

static PROTOCOLS: LazyLock<Protocols> = LazyLock::new(|| protocol::standard().clone().with(&Line));

fn main() -> ExitCode {
    throng::run(&PROTOCOLS)
}

/// Commands in lines.
struct Line;

/// The result of a line; an error is its code and a text with advice.
type Outcome = Result<Request, CodedError>;

/// The beginning of a connection's first line.
const HELLO: &[u8] = b"HELLO";

impl Protocol for Line {
    fn name(&self) -> &'static str {
        "line"
    }

    /// The highest number: the crate `protocol` numbers its encodings from 0.
    fn encoding(&self) -> Encoding {
        Encoding(21)
    }

    fn delivery(&self) -> Delivery {
        Delivery::Pushed
    }

    fn liveness(&self, settings: &Settings) -> Liveness {
        Liveness::ServerInSilence { seconds: settings.stream_heartbeat_seconds }
    }

    fn recognise(&self, first: &[u8]) -> Recognised {
        Recognised::by_prefix(HELLO, first)
    }

    /// Reads one line. The engine stores an incomplete line, and passes it again with more bytes.
    fn read(&self, reader: &mut Reader<'_>, bytes: &mut [u8], out: &mut Vec<u8>) -> Read {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            let request = (bytes.len() > reader.settings.frame_bytes_max).then(|| {
                out.extend_from_slice(b"ERR too_long a line must end\n");
                Request::Close(CloseReason::TooBig)
            });
            let consumed = if request.is_some() { bytes.len() } else { 0 };
            return Read { consumed, request, ..Read::MORE };
        };
        let line = String::from_utf8_lossy(&bytes[..end]);
        let (command, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        let request =
            outcome(reader, command, rest.trim(), out).map_err(|CodedError { code, message }| {
                out.extend_from_slice(format!("ERR {command} {code} {message}\n").as_bytes());
            });
        Read { consumed: end + 1, request: request.ok(), ..Read::MORE }
    }

    fn encode(&self, message: &Message, _codecs: &mut Codecs, out: &mut Vec<u8>) {
        protocol::json::message(message, out);
        out.push(b'\n');
    }

    fn heartbeat(&self, out: &mut Vec<u8>) {
        out.push(b'\n');
    }

    fn reply(&self, id: &str, result: ReplyResult<'_>, _codecs: &mut Codecs, out: &mut Vec<u8>) {
        let line = match result {
            Ok(object) => format!("OK {id} {object}\n"),
            Err(ReplyError { code, message }) => format!("ERR {id} {code} {message}\n"),
        };
        out.extend_from_slice(line.as_bytes());
    }

    fn recovery(&self, json: &[u8], _codecs: &mut Codecs, out: &mut Vec<u8>) {
        out.extend_from_slice(json);
        out.push(b'\n');
    }

    fn goodbye(&self, close: CloseReason, retry_ms: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("BYE {} {retry_ms}\n", close.name()).as_bytes());
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { acknowledges: true, ..Capabilities::NONE }
    }
}

fn outcome(reader: &Reader<'_>, command: &str, rest: &str, out: &mut Vec<u8>) -> Outcome {
    let (topic, behind) = rest.split_once(' ').unwrap_or((rest, ""));
    let (name, id): (Name, Box<str>) = (topic.into(), command.into());
    let decide = |action| -> Result<Consent, CodedError> {
        check_topic(topic).map_err(|error| CodedError::new(ErrorCode::BadTopic, error))?;
        let policy = &reader.settings.policy;
        let decision = policy.decide(&(reader.speaker)(), action, &policy.topic(topic));
        Ok(decision.undenied()?)
    };
    match (reader.open, command) {
        (false, "HELLO") => {
            let users: Vec<Name> = rest.split_whitespace().map(Name::from).collect();
            let checked = users.iter().try_for_each(|user| check_name(user));
            checked.map_err(|error| CodedError::new(ErrorCode::BadUser, error))?;
            if users.len() > reader.settings.topics_per_connection_max {
                return Err(CodedError::new(ErrorCode::TooManyTopics, "these are too many users"));
            }
            out.extend_from_slice(format!("OK HELLO {}\n", reader.id).as_bytes());
            let (principal, encoding) = (Principal::anonymous(users), Line.encoding());
            let (topics, resume, tags) = (Vec::new(), ResumeRequest::default(), Vec::new());
            Ok(Request::Open(Open { encoding, principal, topics, resume, tags, stranger: false }))
        }
        (true, "SUB") => {
            let subscribe =
                Subscribe { topic: name, since: behind.parse().ok(), ..Default::default() };
            Ok(Request::Subscribe(id, subscribe, decide(Action::Subscribe)?))
        }
        (true, "UNSUB") => Ok(Request::Unsubscribe(id, name)),
        (true, "PUB") => {
            let consent = decide(Action::Publish)?;
            if behind.len() > reader.settings.message_bytes_max {
                return Err(CodedError::new(
                    ErrorCode::MessageTooLarge,
                    "the message is too large",
                ));
            }
            let publication = Publication::new(topic, Data::Text(behind.into()));
            Ok(Request::Publish { publication, consent, to: ReplyTo::Id(id) })
        }
        (true, "ACK") => {
            let acknowledgement = Acknowledgement::read(None, Some(topic), Some(behind))?;
            Ok(Request::Acknowledge { acknowledgement, to: ReplyTo::Id(id), principal: None })
        }
        (true, "QUIT") => Ok(Request::Close(CloseReason::ByClient)),
        _ => {
            let message = "say HELLO first; then SUB, UNSUB, PUB, ACK, QUIT";
            Err(CodedError::new(ErrorCode::BadCommand, message))
        }
    }
}
