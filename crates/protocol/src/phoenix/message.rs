//! A client's message, as the parser gives it and the encoders answer it.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::Event;
use crate::data;
use model::{Data, Name};

/// The first byte of a binary push, in either direction.
pub(super) const KIND_PUSH: u8 = 0;

/// A client's message. The parser's payload is a [`Payload`], which borrows from the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming<P> {
    /// The `ref` of the join that the client believes in, as it is stored (`reference.rs`); `None` outside of a join.
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
