//! Reads frames of a WebSocket, and converts messages to requests.

use super::frame::{self, Opcode};
use super::{Context, Event, Limits, Role, close, command, data};
use crate::Settings;
use crate::protocol::{Read, Reader, ReplyError, Speaker};
use crate::request::{Authenticate, ReplyTo, Request};
use auth::{Action, Consent, TopicToken};
use model::name::personal;
use model::{CloseReason, CodedError, ErrorCode};

/// The limits for frames of a connection.
pub(crate) struct Frames {
    /// Bytes of a frame, and of a message, at most.
    pub bytes_max: usize,
    /// The window of permessage-deflate in bits, 0 without it.
    pub window_bits: u8,
}

/// The outcome of a message.
#[allow(clippy::large_enum_variant, reason = "it lies on the stack, once for a frame")]
pub(crate) enum Outcome {
    /// Nothing.
    Nothing,
    /// The client makes a request.
    Request(Request),
    /// The server sends this payload back in a frame.
    Send(Opcode, Vec<u8>),
    /// The server replies to a command at once, with the code of its error and this text.
    Reply(Result<(), ErrorCode>, Vec<u8>),
    /// The connection ends, with a close frame with this text.
    Close(CloseReason, String),
}

/// The sender of messages.
pub(crate) struct Peer<'a> {
    settings: &'a Settings,
    speaker: Speaker<'a>,
    /// The client has to authenticate first.
    stranger: bool,
    /// The time, in seconds since 1970.
    now_s: u64,
}

/// Processes a message.
type OnMessage<'a> = &'a mut dyn FnMut(&Peer<'_>, Event<'_>) -> Outcome;

impl Frames {
    /// Reads a frame, or the received part of it.
    pub(crate) fn read(
        &self,
        reader: &mut Reader<'_>,
        bytes: &mut [u8],
        out: &mut Vec<u8>,
        on: OnMessage<'_>,
    ) -> Read {
        let now_s = reader.now_s();
        let Reader { settings, speaker, stranger, codecs, decoder, .. } = reader;
        let peer = Peer { settings, speaker: *speaker, stranger: *stranger, now_s };
        let bytes_max = self.bytes_max;
        let mut context = Context {
            role: Role::Server,
            limits: Limits { frame_bytes_max: bytes_max as u64, message_bytes_max: bytes_max },
            inflater: (self.window_bits > 0).then(|| codecs.inflater()),
        };
        // A frame causes one event at most.
        let mut outcome = Outcome::Nothing;
        let (mut request, mut replied) = (None, None);
        let consumed = decoder.feed_frame(&mut context, bytes, &mut |event| match event {
            Event::Text(_) | Event::Binary(_) => outcome = on(&peer, event),
            Event::Ping(payload) => frame::encode(Opcode::Pong, false, payload, out),
            Event::Pong(_) => {}
            Event::Close(payload) => {
                match payload {
                    // The close frame repeats the code (RFC 6455, section 5.5.1).
                    Some((code, _)) => close(code, "", out),
                    None => frame::encode(Opcode::Close, false, &[], out),
                }
                request = Some(Request::Close(CloseReason::ByClient));
            }
        });
        match outcome {
            Outcome::Nothing => {}
            Outcome::Request(found) => request = Some(found),
            Outcome::Send(opcode, payload) => data(opcode, &payload, self.window_bits, codecs, out),
            Outcome::Reply(result, payload) => {
                replied = Some(result);
                data(Opcode::Text, &payload, self.window_bits, codecs, out);
            }
            Outcome::Close(reason, text) => {
                close(reason.code(), &text, out);
                request = Some(Request::Close(reason));
            }
        }
        let consumed = consumed.unwrap_or_else(|error| {
            let reason = match error.code() {
                1007 => CloseReason::InvalidPayload,
                1009 => CloseReason::TooBig,
                _ => CloseReason::ProtocolError,
            };
            close(error.code(), &error.to_string(), out);
            request = Some(Request::Close(reason));
            bytes.len()
        });
        Read { consumed, request, replied, again: false }
    }
}

/// Processes a message in JSON.
pub(super) fn json(peer: &Peer<'_>, event: Event<'_>) -> Outcome {
    match event {
        Event::Text(text) => command_outcome(peer, command::parse(text, None)),
        Event::Binary(payload) => binary_outcome(peer, payload),
        Event::Ping(_) | Event::Pong(_) | Event::Close(_) => Outcome::Nothing,
    }
}

fn binary_outcome(peer: &Peer<'_>, payload: &[u8]) -> Outcome {
    let end = memchr::memchr(b'\n', payload).unwrap_or(payload.len());
    let data = payload.get(end + 1..).unwrap_or(&[]);
    match std::str::from_utf8(&payload[..end]) {
        Ok(text) => command_outcome(peer, command::parse(text, Some(data))),
        Err(_) => {
            let mut out = Vec::new();
            let message = "a binary frame must begin with a command in JSON and a newline";
            let code = ErrorCode::BadJson;
            command::reply_error("null", ReplyError::new(code, message), &mut out);
            Outcome::Reply(Err(code), out)
        }
    }
}

fn command_outcome(
    peer: &Peer<'_>,
    command: Result<command::Command, command::CommandError>,
) -> Outcome {
    let (id, error) = match command {
        Ok(command::Command { id, kind }) => match allowed(peer, &id, kind) {
            Ok(outcome) => return outcome,
            Err(error) => (id, error),
        },
        Err(command::CommandError { id, error }) => (id, error),
    };
    let mut out = Vec::new();
    command::reply_error(&id, (&error).into(), &mut out);
    Outcome::Reply(Err(error.code), out)
}

/// Converts a command to a request if the policy allows it.
fn allowed(peer: &Peer<'_>, id: &str, kind: command::CommandKind) -> Result<Outcome, CodedError> {
    let Peer { settings, stranger, .. } = peer;
    let by_token = matches!(kind, command::CommandKind::Authenticate(..));
    if *stranger && !by_token && kind != command::CommandKind::Ping {
        let message = "identify this connection first: {\"type\":\"connect\",\"token\":…}";
        return Err(CodedError::new(ErrorCode::TokenRequired, message));
    }
    let decide = |action, topic: &str| peer.decide(action, topic, None);
    Ok(Outcome::Request(match kind {
        command::CommandKind::Subscribe(subscribe, token) => {
            crate::wildcards::check_allowed(&subscribe.topic, settings)?;
            let token = peer.topic_token(token.as_deref())?;
            let consent = peer.decide(Action::Subscribe, &subscribe.topic, token.as_ref())?;
            if subscribe.since.as_ref().is_some_and(|since| since.token().is_none()) {
                let _ = peer.decide(Action::History, &subscribe.topic, token.as_ref())?;
            }
            Request::Subscribe(id.into(), subscribe, consent)
        }
        command::CommandKind::Unsubscribe(topic) => Request::Unsubscribe(id.into(), topic),
        command::CommandKind::Publish(publication) => {
            let consent = decide(Action::Publish, &publication.topic)?;
            let max = settings.message_bytes_max;
            if publication.data.bytes() > max {
                let message = crate::data::too_large(max);
                return Err(CodedError::new(ErrorCode::MessageTooLarge, message));
            }
            Request::Publish { publication, consent, to: ReplyTo::Id(id.into()) }
        }
        command::CommandKind::Acknowledge(acknowledgement) => {
            let to = ReplyTo::Id(id.into());
            Request::Acknowledge { acknowledgement, to, principal: None }
        }
        command::CommandKind::History(page, token) => {
            let token = peer.topic_token(token.as_deref())?;
            let consent = peer.decide(Action::History, &page.topic, token.as_ref())?;
            let members_only = matches!(consent, Consent::Requested(_));
            Request::History { page, members_only, to: ReplyTo::Id(id.into()) }
        }
        command::CommandKind::Login(user) => {
            let _ = decide(Action::Login(&user), &personal(&user))?;
            Request::Login(id.into(), user)
        }
        command::CommandKind::Logout(user) => {
            let _ = decide(Action::Logout(&user), &personal(&user))?;
            Request::Logout(id.into(), user)
        }
        command::CommandKind::Presence(topic, token) => {
            let token = peer.topic_token(token.as_deref())?;
            let consents = [Action::Subscribe, Action::Presence]
                .map(|action| peer.decide(action, &topic, token.as_ref()));
            let mut members_only = false;
            for consent in consents {
                members_only |= matches!(consent?, Consent::Requested(_));
            }
            Request::Presence { topic, members_only, to: ReplyTo::Id(id.into()) }
        }
        command::CommandKind::UpdatePresence(topic, meta) => {
            let _ = decide(Action::Presence, &topic)?;
            Request::UpdatePresence(id.into(), topic, meta)
        }
        command::CommandKind::Authenticate(purpose, token) => {
            Request::Authenticate(Authenticate { token, purpose, id: id.into() })
        }
        command::CommandKind::Ping => {
            let mut out = Vec::new();
            command::reply_ok(id, "{}", &mut out);
            return Ok(Outcome::Reply(Ok(()), out));
        }
    }))
}

impl Peer<'_> {
    /// Decides whether the speaker may do this with the topic; this token may grant it too.
    fn decide(
        &self,
        action: Action<'_>,
        topic: &str,
        token: Option<&TopicToken>,
    ) -> Result<Consent, CodedError> {
        let policy = &self.settings.policy;
        let topic = policy.topic(topic);
        let decision = policy.decide_with(&(self.speaker)(), action, &topic, token);
        Ok(decision.undenied()?)
    }

    /// Verifies the topic token of a command.
    fn topic_token(&self, token: Option<&str>) -> Result<Option<TopicToken>, CodedError> {
        let (Some(auth), Some(token)) = (&self.settings.auth, token) else {
            return Ok(None);
        };
        Ok(Some(auth.verify_topic(token, self.now_s)?))
    }
}
