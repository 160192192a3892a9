//! A client's message, for the parser and the encoders.

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
    /// The `ref` of the client's current join, as stored (`reference.rs`); `None` outside of a join.
    pub join_ref: Option<Name>,
    /// The reference by which the client recognizes the reply. At most [`REF_BYTES_MAX`](super::REF_BYTES_MAX) bytes,
    /// like `join_ref`.
    pub ref_: Option<Name>,
    /// The topic, at most [`TOPIC_BYTES_MAX`](super::TOPIC_BYTES_MAX) bytes. Any text: the caller checks that the
    /// name is valid and not empty.
    pub topic: Name,
    /// The event, at most [`EVENT_BYTES_MAX`](super::EVENT_BYTES_MAX) bytes. Any text, like the topic.
    pub event: Name,
    /// The payload.
    pub payload: P,
}

/// A message of a Phoenix client with an owned payload: JSON, text if it was a JSON string, or bytes. Topic and event
/// are not checked.
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

/// The payload of a message.
#[derive(Clone, Debug)]
pub enum Payload<'a> {
    /// Any JSON value as the client wrote it, with white space. Its syntax is checked. It is owned if the client
    /// wrote it in pieces.
    Json(Cow<'a, RawValue>),
    /// Bytes.
    Binary(&'a [u8]),
}

/// The address of a reply: the fields of the message that it repeats.
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
    /// The purpose of the message.
    pub fn kind(&self) -> Event {
        Event::of(&self.topic, &self.event)
    }

    /// The address of the reply.
    pub fn address(&self) -> Address<'_> {
        Address {
            join_ref: self.join_ref.as_deref(),
            ref_: self.ref_.as_deref(),
            topic: &self.topic,
        }
    }
}
