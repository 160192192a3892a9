//! Encodes replies, pushes and broadcasts to frames.
//!
//! The encoders append the payload of one WebSocket message, without its frame header, and return whether it is text
//! or binary. They check the lengths of topic, event and refs first: [`PhoenixError::CantEncode`] is an error of the
//! server itself, and then the buffer is unchanged.

use super::message::KIND_PUSH;
use super::reference;
use super::{
    Address, Annotations, Content, EVENT_BYTES_MAX, EVENT_CLOSE, EVENT_ERROR, EVENT_REPLY,
    PhoenixError, REF_BYTES_MAX, Serializer, TOPIC_BYTES_MAX,
};
use crate::json;
use crate::websocket::frame::Opcode;
use model::Position;
use model::name::shown;

pub(super) const KIND_REPLY: u8 = 1;
pub(super) const KIND_BROADCAST: u8 = 2;

/// The type of a WebSocket message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// JSON text.
    Text,
    /// A binary message of V2.
    Binary,
}

impl Form {
    /// The opcode of the WebSocket frame.
    pub fn opcode(self) -> Opcode {
        match self {
            Form::Text => Opcode::Text,
            Form::Binary => Opcode::Binary,
        }
    }
}

/// The status of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyStatus {
    /// The server carried out the request.
    Ok,
    /// The server rejected it; the response has the reason.
    Error,
}

impl ReplyStatus {
    /// The status in a message.
    pub fn name(self) -> &'static str {
        match self {
            ReplyStatus::Ok => "ok",
            ReplyStatus::Error => "error",
        }
    }
}

impl Serializer {
    /// Appends the reply to a client's message.
    pub fn reply(
        self,
        to: Address<'_>,
        status: ReplyStatus,
        response: Content<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Form, PhoenixError> {
        to.check()?;
        if let (Serializer::V2, Content::Binary(bytes)) = (self, response) {
            let [join_ref, ref_] = [to.join_ref, to.ref_].map(|it| it.map_or("", reference::text));
            return binary(
                KIND_REPLY,
                &[join_ref, ref_, shown(to.topic), status.name()],
                bytes,
                out,
            );
        }
        self.text(to, EVENT_REPLY, out, |out| {
            out.extend_from_slice(b"{\"status\":\"");
            out.extend_from_slice(status.name().as_bytes());
            out.extend_from_slice(b"\",\"response\":");
            response.value(out);
            out.push(b'}');
        })
    }

    /// Appends a message to one member, under the `join_ref` of its join.
    pub fn push(
        self,
        join_ref: &str,
        topic: &str,
        event: &str,
        content: Content<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Form, PhoenixError> {
        let to = Address { join_ref: known(join_ref), ref_: None, topic };
        to.check()?;
        check("event", event, EVENT_BYTES_MAX)?;
        if let (Serializer::V2, Content::Binary(bytes)) = (self, content) {
            return binary(KIND_PUSH, &[reference::text(join_ref), topic, event], bytes, out);
        }
        self.text(to, event, out, |out| content.object(out))
    }

    /// Appends a message to all members: the same bytes for each of this version.
    ///
    /// If history has the message, its id takes the place of `ref`, so that `channel.on(event, (payload, ref) => …)`
    /// gets it beside the payload. phoenix.js (by the source of 1.5 and 1.8) has no other use for it: it compares a
    /// `ref` with those of its own heartbeats and pings, which are plain numbers, and looks for a pending push only
    /// if the event is `phx_reply`. The annotations go into the payload; without any, the payload is the server's
    /// own, and goes unchanged. A binary broadcast has no field for either.
    pub fn broadcast(
        self,
        topic: &str,
        event: &str,
        id: Option<Position>,
        content: Content<'_>,
        annotations: Option<&Annotations<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<Form, PhoenixError> {
        let id = id.map(|id| id.to_string());
        let to = Address { join_ref: None, ref_: id.as_deref(), topic };
        to.check()?;
        check("event", event, EVENT_BYTES_MAX)?;
        if let (Serializer::V2, Content::Binary(bytes)) = (self, content) {
            return binary(KIND_BROADCAST, &[topic, event], bytes, out);
        }
        self.text(to, event, out, |out| match annotations {
            Some(annotations) => content.annotated(annotations, out),
            None => content.object(out),
        })
    }

    /// Appends `phx_close`: a regular end of the join. Always text.
    pub fn close(
        self,
        join_ref: &str,
        topic: &str,
        out: &mut Vec<u8>,
    ) -> Result<Form, PhoenixError> {
        let to = Address { join_ref: known(join_ref), ref_: known(join_ref), topic };
        to.check()?;
        self.text(to, EVENT_CLOSE, out, |out| out.extend_from_slice(b"{}"))
    }

    /// Appends `phx_error`: the join has failed, and the client rejoins. Always text.
    pub fn error(
        self,
        join_ref: &str,
        topic: &str,
        reason: &str,
        out: &mut Vec<u8>,
    ) -> Result<Form, PhoenixError> {
        let to = Address { join_ref: known(join_ref), ref_: known(join_ref), topic };
        to.check()?;
        self.text(to, EVENT_ERROR, out, |out| {
            out.extend_from_slice(b"{\"reason\":");
            json::string(reason, out);
            out.push(b'}');
        })
    }

    fn text(
        self,
        to: Address<'_>,
        event: &str,
        out: &mut Vec<u8>,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Form, PhoenixError> {
        match self {
            Serializer::V1 => {
                out.extend_from_slice(b"{\"topic\":");
                json::string(shown(to.topic), out);
                out.extend_from_slice(b",\"event\":");
                json::string(event, out);
                out.extend_from_slice(b",\"payload\":");
                payload(out);
                out.extend_from_slice(b",\"ref\":");
                nullable(to.ref_, out);
                out.extend_from_slice(b",\"join_ref\":");
                nullable(to.join_ref, out);
                out.push(b'}');
            }
            Serializer::V2 => {
                out.push(b'[');
                nullable(to.join_ref, out);
                out.push(b',');
                nullable(to.ref_, out);
                out.push(b',');
                json::string(shown(to.topic), out);
                out.push(b',');
                json::string(event, out);
                out.push(b',');
                payload(out);
                out.push(b']');
            }
        }
        Ok(Form::Text)
    }
}

/// The `join_ref` of a join; it is empty for clients of old versions, which send none.
fn known(join_ref: &str) -> Option<&str> {
    Some(join_ref).filter(|text| !text.is_empty())
}

impl Address<'_> {
    fn check(&self) -> Result<(), PhoenixError> {
        check("join_ref", self.join_ref.unwrap_or(""), REF_BYTES_MAX)?;
        check("ref", self.ref_.unwrap_or(""), REF_BYTES_MAX)?;
        check("topic", shown(self.topic), TOPIC_BYTES_MAX)
    }
}

fn check(field: &'static str, text: &str, bytes_max: usize) -> Result<(), PhoenixError> {
    match text.len() {
        bytes if bytes > bytes_max => Err(PhoenixError::CantEncode { field, bytes, bytes_max }),
        _ => Ok(()),
    }
}

fn nullable(stored: Option<&str>, out: &mut Vec<u8>) {
    match stored {
        Some(stored) => reference::write(stored, out),
        None => out.extend_from_slice(b"null"),
    }
}

/// Appends kind, lengths, texts and data. The callers have checked the texts; this function still rejects one that is
/// too long for its length byte.
fn binary(kind: u8, texts: &[&str], data: &[u8], out: &mut Vec<u8>) -> Result<Form, PhoenixError> {
    for text in texts {
        check("field", text, usize::from(u8::MAX))?;
    }
    out.push(kind);
    // The loop above bounds the lengths.
    out.extend(texts.iter().map(|text| u8::try_from(text.len()).unwrap_or(u8::MAX)));
    for text in texts {
        out.extend_from_slice(text.as_bytes());
    }
    out.extend_from_slice(data);
    Ok(Form::Binary)
}
