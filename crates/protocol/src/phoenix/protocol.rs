//! Phoenix Channels: messages in the formats of `Phoenix.Socket.V1.JSONSerializer` and
//! `Phoenix.Socket.V2.JSONSerializer`, to a WebSocket or to a long-poll session.

use super::longpoll::element;
use super::{
    Address, Annotations, Content, EVENT_TOKEN_EXPIRING, Form, PhoenixError, ReplyStatus,
    Serializer, TOPIC_PHOENIX,
};
use crate::http::{Endpoint, LONGPOLL, Method, Needs, Rejection, Route};
use crate::protocol::{Capabilities, Delivery, Liveness, Protocol, Read, Reader};
use crate::request::{Interrupt, Request, Respond};
use crate::websocket::frame::{self, Opcode};
use crate::websocket::{Event, Frames, Outcome, close};
use crate::{Codecs, Settings, json};
use model::event::{STATE_COMPLETE, is_reserved};
use model::name::{of_filter, shown};
use model::{CloseReason, Data, Encoding, Message, Name};

/// Phoenix Channels.
#[derive(Clone, Copy)]
pub struct Phoenix {
    /// The format of messages.
    pub serializer: Serializer,
    /// The connection is a long-poll session: it has no socket, and its messages wait for the next poll.
    pub polled: bool,
}

impl Phoenix {
    /// Appends a message to the members of its topic, or of this topic filter.
    fn broadcast(&self, message: &Message, filter: Option<&str>, out: &mut Vec<u8>) {
        let publication = &message.publication;
        let mut payload = Vec::with_capacity(publication.data.bytes() + 96);
        let key = publication.key().map(|key| key.as_str());
        // A binary message has no field for a key, without which a state is useless, nor for the topic, which the
        // members of a filter need.
        let mut gap = Vec::new();
        let content = match message.is_gap() {
            true => {
                json::gap(message, &mut gap);
                Content::Json(str::from_utf8(&gap).unwrap_or("{}"))
            }
            false => content(&publication.data, self.polled || key.is_some() || filter.is_some()),
        };
        let id = message.is_retained().then_some(message.id);
        let event = message.event();
        // In the server's own messages a user may have any name: a presence snapshot is an object by user.
        let sender = publication.sender().map(Name::as_str);
        let topic = filter.map(|_| publication.topic.as_str());
        let annotations = (!is_reserved(event)).then_some(Annotations { sender, key, topic });
        let (annotations, to) = (annotations.as_ref(), filter.unwrap_or(&publication.topic));
        let to = shown(to);
        let encoded = self.serializer.broadcast(to, event, id, content, annotations, &mut payload);
        // Names are checked when they come in, so they fit.
        if let Ok(form) = encoded {
            self.pack(form, &payload, out);
        }
    }

    /// The Phoenix protocol of an encoding; `None` for another protocol's.
    pub fn of(encoding: Encoding) -> Option<Phoenix> {
        let all = [
            (Serializer::V1, false),
            (Serializer::V2, false),
            (Serializer::V1, true),
            (Serializer::V2, true),
        ];
        let mut all = all.into_iter().map(|(serializer, polled)| Phoenix { serializer, polled });
        all.find(|phoenix| phoenix.encoding() == encoding)
    }

    /// Appends an encoded message as a session stores or sends it: a WebSocket frame, or for a long-poll session a
    /// comma and a JSON string, an element of `messages` in the reply.
    pub fn pack(&self, form: Form, payload: &[u8], out: &mut Vec<u8>) {
        if self.polled {
            element(form, payload, out);
        } else {
            frame::encode(form.opcode(), false, payload, out);
        }
    }
}

impl Protocol for Phoenix {
    fn name(&self) -> &'static str {
        if self.polled { "phoenix_longpoll" } else { "phoenix" }
    }

    fn encoding(&self) -> Encoding {
        self.serializer.encoding(self.polled)
    }

    fn delivery(&self) -> Delivery {
        if self.polled { Delivery::Gathered } else { Delivery::Pushed }
    }

    /// The client sends heartbeats, every 30 s, and the server replies. A long-poll session is alive as long as its
    /// client polls.
    fn liveness(&self, settings: &Settings) -> Liveness {
        match self.polled {
            true => Liveness::Unchecked,
            false => Liveness::Client { silence_seconds: settings.phoenix_silence_seconds },
        }
    }

    fn endpoints(&self) -> &'static [Endpoint] {
        match self.polled {
            false => const { &[Endpoint::new("GET", "/socket/websocket", Needs::Token)] },
            true => const { &[Endpoint::new("GET, POST", LONGPOLL, Needs::Token)] },
        }
    }

    fn route(&self, route: &Route<'_>, out: &mut Vec<u8>) -> Option<Result<Request, Interrupt>> {
        match (route.request.path, self.polled) {
            ("/socket/websocket", false) => Some(route.phoenix_websocket(out)),
            (LONGPOLL, true) => Some(match route.request.method {
                Method::Get | Method::Post => route.phoenix_longpoll(),
                Method::Head | Method::Options | Method::Other => Ok(route.longpoll_method(out)),
            }),
            _ => None,
        }
    }

    fn before_body(&self, route: &Route<'_>, out: &mut Vec<u8>) -> Option<Result<bool, Rejection>> {
        let post = route.request.method == Method::Post && route.request.path == LONGPOLL;
        (self.polled && post).then(|| route.reply_longpoll(out))
    }

    fn reject(
        &self,
        path: &str,
        method: Method,
        rejection: &Rejection,
        respond: &Respond,
        out: &mut Vec<u8>,
    ) -> bool {
        let own = self.polled && path == LONGPOLL;
        if own {
            super::routes::longpoll_rejection(rejection, method, respond, out);
        }
        own
    }

    fn read(&self, reader: &mut Reader<'_>, bytes: &mut [u8], out: &mut Vec<u8>) -> Read {
        let frames = Frames { bytes_max: reader.settings.frame_bytes_max, window_bits: 0 };
        frames.read(reader, bytes, out, &mut |_, event| read(self.serializer, &event))
    }

    /// Appends a broadcast. It has no refs of a member, so all members get the same bytes. If history has the
    /// message, its id takes the place of `ref`.
    fn encode(&self, message: &Message, _codecs: &mut Codecs, out: &mut Vec<u8>) {
        self.broadcast(message, None, out);
    }

    fn encode_by(&self, message: &Message, list: &str, _codecs: &mut Codecs, out: &mut Vec<u8>) {
        self.broadcast(message, of_filter(list).map(|_| list), out);
    }

    /// Appends a message of the topic `phoenix`, which the client's `onMessage` gets.
    fn token_expiring(&self, json: &str, _codecs: &mut Codecs, out: &mut Vec<u8>) {
        let (content, mut payload) = (Content::Json(json), Vec::new());
        let (topic, event) = (TOPIC_PHOENIX, EVENT_TOKEN_EXPIRING);
        let encoded = self.serializer.broadcast(topic, event, None, content, None, &mut payload);
        if let Ok(form) = encoded {
            self.pack(form, &payload, out);
        }
    }

    /// Appends a broadcast without refs, like the messages of the state before it.
    fn state_complete(&self, topic: &str, _codecs: &mut Codecs, out: &mut Vec<u8>) {
        let mut json = Vec::new();
        json::state_complete(topic, &mut json);
        let (json, mut payload) = (String::from_utf8_lossy(&json), Vec::new());
        let content = Content::Json(&json);
        let encoded =
            self.serializer.broadcast(topic, STATE_COMPLETE, None, content, None, &mut payload);
        // The join checked the topic, so it fits.
        if let Ok(form) = encoded {
            self.pack(form, &payload, out);
        }
    }

    fn goodbye(&self, reason: CloseReason, _retry_ms: u32, out: &mut Vec<u8>) {
        if !self.polled {
            // Phoenix closes with 1001 for a forced disconnect.
            let forced = reason == CloseReason::ByApplication;
            let code = if forced { 1001 } else { reason.code() };
            close(code, reason.name(), out);
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { acknowledges: true, joins: true, ..Capabilities::NONE }
    }
}

/// The content of a message to a client. phoenix.js reads every polled message as JSON, so bytes go to it as base64
/// in an object.
fn content(data: &Data, as_json: bool) -> Content<'_> {
    match Content::from(data) {
        Content::Binary(bytes) if as_json => Content::Base64(bytes),
        content @ (Content::Json(_)
        | Content::Text(_)
        | Content::Binary(_)
        | Content::Base64(_)) => content,
    }
}

/// Reads a client's message. An invalid message ends the connection, with a text that helps to correct the client.
///
/// A message that may be valid in another client's dialect gets a reply instead. Its reference is unknown, so the
/// reply has the connection's own topic.
fn read(serializer: Serializer, event: &Event<'_>) -> Outcome {
    let parsed = match event {
        Event::Text(text) => serializer.parse_text(text),
        Event::Binary(bytes) => serializer.parse_binary(bytes),
        Event::Ping(_) | Event::Pong(_) | Event::Close(_) => return Outcome::Nothing,
    };
    match parsed {
        Ok(incoming) => Outcome::Request(Request::Phoenix(incoming.into())),
        Err(error) if error.is_passable() => {
            Outcome::Send(Opcode::Text, error_reply(serializer, &error))
        }
        Err(error) => Outcome::Close(CloseReason::ProtocolError, error.to_string()),
    }
}

/// The reply to a message with an unknown reference. phoenix.js passes it to `onMessage` and to its logger.
fn error_reply(serializer: Serializer, error: &PhoenixError) -> Vec<u8> {
    let to = Address { join_ref: None, ref_: None, topic: TOPIC_PHOENIX };
    let mut reason = b"{\"reason\":".to_vec();
    json::string(&error.to_string(), &mut reason);
    reason.push(b'}');
    let mut out = Vec::new();
    let reason = String::from_utf8_lossy(&reason);
    // These names are short enough.
    let _ = serializer.reply(to, ReplyStatus::Error, Content::Json(&reason), &mut out);
    out
}
