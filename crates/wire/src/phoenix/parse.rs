//! Frames of a client → [`Incoming`].

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{
    EVENT_BYTES_MAX, Error, Event, REF_BYTES_MAX, Serializer, TOPIC_BYTES_MAX, WHY_BYTES_MAX,
};
use crate::Name;

/// A client's message. As it is parsed its payload is a [`Payload`], which stays where it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming<P> {
    /// The `ref` of the join that the client believes in; `None` outside of a join.
    pub join_ref: Option<Name>,
    /// What the client will know the answer by. At most [`REF_BYTES_MAX`] bytes, like `join_ref`.
    pub ref_: Option<Name>,
    /// The topic, at most [`TOPIC_BYTES_MAX`] bytes. Any text: which names are good, and that the
    /// empty one is not, is for the caller to say.
    pub topic: Name,
    /// The event, at most [`EVENT_BYTES_MAX`] bytes. Any text, as with the topic.
    pub event: Name,
    /// What the message carries.
    pub payload: P,
}

/// What a message carries.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Any JSON value, as the client wrote it: syntax checked, white space and all.
    Json(&'a RawValue),
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

impl Serializer {
    /// Reads a text message. Refs are strings or null; elements after the fifth (V2) and unknown
    /// fields (V1) are ignored, as Phoenix does; in V1 a missing `ref` or `join_ref` is null.
    pub fn parse_text(self, text: &str) -> Result<Incoming<Payload<'_>>, Error> {
        let read = match self {
            Serializer::V1 => serde_json::from_str::<Object<'_>>(text).map(|read| read.0),
            Serializer::V2 => serde_json::from_str::<Array<'_>>(text).map(|read| read.0),
        };
        let fields = read.map_err(|error| self.not_a_message(&error))?;
        let reference = |name, text: Option<Text<'_>>| {
            text.map(|text| bounded(name, &text.0, REF_BYTES_MAX)).transpose()
        };
        Ok(Incoming {
            join_ref: reference("join_ref", fields.join_ref)?,
            ref_: reference("ref", fields.ref_)?,
            topic: bounded("topic", &fields.topic.0, TOPIC_BYTES_MAX)?,
            event: bounded("event", &fields.event.0, EVENT_BYTES_MAX)?,
            payload: Payload::Json(fields.payload),
        })
    }

    /// Reads a binary message: a push, the only kind that clients send. An empty ref is `None`,
    /// for a binary message has no other way to say null. Version 1 has no binary messages: there,
    /// as Phoenix does, the same JSON is read whatever the frame (Tsung sends it in binary ones).
    pub fn parse_binary(self, bytes: &[u8]) -> Result<Incoming<Payload<'_>>, Error> {
        if self == Serializer::V1 {
            let text = simdutf8::basic::from_utf8(bytes);
            return self.parse_text(text.map_err(|_| Error::NotUtf8 { field: "message" })?);
        }
        let (&kind, rest) = bytes.split_first().ok_or(Error::Truncated { field: "kind" })?;
        if kind != super::encode::KIND_PUSH {
            return Err(Error::UnknownKind(kind));
        }
        let (&lengths, mut rest) =
            rest.split_first_chunk::<4>().ok_or(Error::Truncated { field: "lengths" })?;
        let mut take = |field: &'static str, length: u8| {
            let (taken, left) =
                rest.split_at_checked(length.into()).ok_or(Error::Truncated { field })?;
            rest = left;
            match simdutf8::basic::from_utf8(taken) {
                Ok(text) => Ok(Name::from(text)),
                Err(_) => Err(Error::NotUtf8 { field }),
            }
        };
        let [join_ref, ref_, topic, event] = lengths;
        let join_ref = Some(take("join_ref", join_ref)?).filter(|text| !text.is_empty());
        let ref_ = Some(take("ref", ref_)?).filter(|text| !text.is_empty());
        let (topic, event) = (take("topic", topic)?, take("event", event)?);
        Ok(Incoming { join_ref, ref_, topic, event, payload: Payload::Binary(rest) })
    }

    fn not_a_message(self, error: &serde_json::Error) -> Error {
        let mut why = error.to_string();
        let mut end = why.len().min(WHY_BYTES_MAX);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        why.truncate(end);
        let example = match self {
            Serializer::V1 => {
                r#"{"topic":"room:a","event":"phx_join","payload":{},"ref":"1","join_ref":"1"}"#
            }
            Serializer::V2 => r#"["1","1","room:a","phx_join",{}]"#,
        };
        Error::NotAMessage { why, example }
    }
}

fn bounded(field: &'static str, text: &str, bytes_max: usize) -> Result<Name, Error> {
    match text.len() {
        bytes if bytes > bytes_max => Err(Error::TooLong { field, bytes, bytes_max }),
        _ => Ok(text.into()),
    }
}

/// Text that is borrowed when it has no escapes, inside an `Option` too.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow, default)]
    join_ref: Option<Text<'a>>,
    #[serde(borrow, default, rename = "ref")]
    ref_: Option<Text<'a>>,
    #[serde(borrow)]
    topic: Text<'a>,
    #[serde(borrow)]
    event: Text<'a>,
    #[serde(borrow)]
    payload: &'a RawValue,
}

/// The V1 form. A derived struct would be read from an array as well.
struct Object<'a>(Fields<'a>);

/// The V2 form.
struct Array<'a>(Fields<'a>);

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                map: A,
            ) -> Result<Self::Value, A::Error> {
                Fields::deserialize(serde::de::value::MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(Read)
    }
}

impl<'de> Deserialize<'de> for Array<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Array<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array [join_ref, ref, topic, event, payload]")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let short = |length| A::Error::invalid_length(length, &"5 elements");
                let fields = Fields {
                    join_ref: seq.next_element()?.ok_or_else(|| short(0))?,
                    ref_: seq.next_element()?.ok_or_else(|| short(1))?,
                    topic: seq.next_element()?.ok_or_else(|| short(2))?,
                    event: seq.next_element()?.ok_or_else(|| short(3))?,
                    payload: seq.next_element()?.ok_or_else(|| short(4))?,
                };
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Array(fields))
            }
        }

        deserializer.deserialize_seq(Read)
    }
}
