//! What messages carry, in and out: the types that the parser and the encoders share.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;

use super::Event;
use crate::{data, json};
use model::{Data, Name};

/// The first byte of a binary push, in either direction.
pub(super) const KIND_PUSH: u8 = 0;

/// A client's message. The parser's payload is a [`Payload`], which borrows from the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming<P> {
    /// The `ref` of the join that the client believes in; `None` outside of a join.
    pub join_ref: Option<Name>,
    /// The reference by which the client recognizes the answer. At most [`REF_BYTES_MAX`](super::REF_BYTES_MAX) bytes, like `join_ref`.
    pub ref_: Option<Name>,
    /// The topic, at most [`TOPIC_BYTES_MAX`](super::TOPIC_BYTES_MAX) bytes. Any text: the caller checks which names are valid,
    /// and that the topic is not empty.
    pub topic: Name,
    /// The event, at most [`EVENT_BYTES_MAX`](super::EVENT_BYTES_MAX) bytes. Any text, as with the topic.
    pub event: Name,
    /// What the message carries.
    pub payload: P,
}

/// A message of a Phoenix client, with a payload of its own: JSON, text where it was a JSON string,
/// or bytes. Topic and event are not checked.
pub type ClientMessage = Incoming<Data>;

impl From<Incoming<Payload<'_>>> for ClientMessage {
    fn from(incoming: Incoming<Payload<'_>>) -> Self {
        let Incoming { join_ref, ref_, topic, event, payload } = incoming;
        let payload = match payload {
            Payload::Json(raw) => data::of_json(&raw),
            Payload::Binary(bytes) => Data::Binary(bytes.into()),
        };
        ClientMessage { join_ref, ref_, topic, event, payload }
    }
}

/// What a message carries.
#[derive(Clone, Debug)]
pub enum Payload<'a> {
    /// Any JSON value, as the client wrote it: syntax checked, white space and all. It is owned
    /// where the client wrote it in pieces.
    Json(Cow<'a, RawValue>),
    /// Bytes.
    Binary(&'a [u8]),
}

/// Where an answer goes: the fields of a message that its reply repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address<'a> {
    /// The message's `join_ref`.
    pub join_ref: Option<&'a str>,
    /// The message's `ref`.
    pub ref_: Option<&'a str>,
    /// The message's topic.
    pub topic: &'a str,
}

impl<P> Incoming<P> {
    /// What the message asks for.
    pub fn kind(&self) -> Event {
        Event::of(&self.topic, &self.event)
    }

    /// Where the answer goes.
    pub fn address(&self) -> Address<'_> {
        Address {
            join_ref: self.join_ref.as_deref(),
            ref_: self.ref_.as_deref(),
            topic: &self.topic,
        }
    }
}

/// What a message to a client carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// JSON text, which the caller knows to be valid. An object is sent as it is; another value
    /// as `{"data":…}`, since clients expect an object, except in a reply, where it is the
    /// response.
    Json(&'a str),
    /// Text, sent like the JSON string that it makes.
    Text(&'a str),
    /// Bytes: a binary message in V2; `{"data":"…","encoding":"base64"}` in V1, which has none.
    Binary(&'a [u8]),
    /// Bytes that go as `{"data":"…","encoding":"base64"}` in V2 as well, for a transport or
    /// a client that can't take binary messages.
    Base64(&'a [u8]),
}

impl<'a> From<&'a Data> for Content<'a> {
    fn from(data: &'a Data) -> Self {
        match data {
            Data::Json(text) => Content::Json(text),
            Data::Text(text) => Content::Text(text),
            Data::Binary(bytes) => Content::Binary(bytes),
        }
    }
}

impl<'a> From<&'a Payload<'_>> for Content<'a> {
    fn from(payload: &'a Payload<'_>) -> Self {
        match payload {
            Payload::Json(raw) => Content::Json(raw.get()),
            Payload::Binary(bytes) => Content::Binary(bytes),
        }
    }
}

impl Content<'_> {
    /// Appends the content as the `payload` of a push or a broadcast, always an object.
    pub(super) fn object(self, out: &mut Vec<u8>) {
        if matches!(self, Content::Json(text) if !text.trim_ascii_start().starts_with('{'))
            || matches!(self, Content::Text(_))
        {
            out.extend_from_slice(b"{\"data\":");
            self.value(out);
            out.push(b'}');
        } else {
            self.value(out);
        }
    }

    /// Appends the content as a JSON value of its own kind.
    pub(super) fn value(self, out: &mut Vec<u8>) {
        match self {
            Content::Json(text) => out.extend_from_slice(text.as_bytes()),
            Content::Text(text) => json::string(text, out),
            Content::Binary(bytes) | Content::Base64(bytes) => {
                out.extend_from_slice(b"{\"data\":\"");
                out.extend_from_slice(STANDARD.encode(bytes).as_bytes());
                out.extend_from_slice(b"\",\"encoding\":\"base64\"}");
            }
        }
    }
}
