//! Parses a client's frames to [`Incoming`].

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::message::KIND_PUSH;
use super::reference;
use super::{
    Content, EVENT_BYTES_MAX, Incoming, Payload, PhoenixError, REF_BYTES_MAX, Serializer,
    TOPIC_BYTES_MAX, WHY_BYTES_MAX,
};
use crate::json;
use model::Name;

/// The event of broadcasts by supabase's clients; the application's event name is `event` in the payload.
pub const EVENT_BROADCAST: &str = "broadcast";

/// A binary message of supabase's realtime-js: the lengths of `join_ref`, `ref`, topic, event and metadata, a byte
/// for the encoding of the payload, those five texts, the payload.
const KIND_USER_BROADCAST: u8 = 3;
const ENCODING_BYTES: u8 = 0;
const ENCODING_JSON: u8 = 1;

impl Serializer {
    /// Reads a text message. As in Phoenix, refs are any JSON, and elements after the fifth (V2) and unknown fields
    /// (V1) are ignored. In V1 a missing `ref` or `join_ref` is null.
    pub fn parse_text(self, text: &str) -> Result<Incoming<Payload<'_>>, PhoenixError> {
        let read = match self {
            Serializer::V1 => serde_json::from_str::<Object<'_>>(text).map(|read| read.0),
            Serializer::V2 => serde_json::from_str::<Array<'_>>(text).map(|read| read.0),
        };
        let fields = read.map_err(|error| self.not_a_message(&error))?;
        let reference = |name, json: Option<&RawValue>| {
            json.map(|json| bounded(name, &reference::read(json), REF_BYTES_MAX)).transpose()
        };
        Ok(Incoming {
            join_ref: reference("join_ref", fields.join_ref)?,
            ref_: reference("ref", fields.ref_)?,
            topic: bounded("topic", &fields.topic.0, TOPIC_BYTES_MAX)?,
            event: bounded("event", &fields.event.0, EVENT_BYTES_MAX)?,
            payload: Payload::Json(Cow::Borrowed(fields.payload)),
        })
    }

    /// Reads a binary message: a push, or the broadcast that supabase's realtime-js sends instead. An empty ref is
    /// `None`, because binary messages can't express null. Version 1 has no binary messages: as in Phoenix, a binary
    /// frame contains the same JSON as a text frame (Tsung sends such frames).
    pub fn parse_binary(self, bytes: &[u8]) -> Result<Incoming<Payload<'_>>, PhoenixError> {
        if self == Serializer::V1 {
            let text = simdutf8::basic::from_utf8(bytes);
            return self.parse_text(text.map_err(|_| PhoenixError::NotUtf8 { field: "message" })?);
        }
        let (&kind, rest) = bytes.split_first().ok_or(PhoenixError::Truncated { field: "kind" })?;
        match kind {
            KIND_PUSH => push(rest),
            KIND_USER_BROADCAST => user_broadcast(rest),
            kind => Err(PhoenixError::UnknownKind(kind)),
        }
    }

    fn not_a_message(self, error: &serde_json::Error) -> PhoenixError {
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
        PhoenixError::NotAMessage { why, example }
    }
}

/// Takes texts of known lengths from the start of a binary message.
struct Texts<'a>(&'a [u8]);

impl<'a> Texts<'a> {
    fn take(&mut self, field: &'static str, length: u8) -> Result<&'a str, PhoenixError> {
        let (consumed, left) =
            self.0.split_at_checked(length.into()).ok_or(PhoenixError::Truncated { field })?;
        self.0 = left;
        simdutf8::basic::from_utf8(consumed).map_err(|_| PhoenixError::NotUtf8 { field })
    }

    fn reference(&mut self, field: &'static str, length: u8) -> Result<Option<Name>, PhoenixError> {
        Ok(Some(self.take(field, length)?).filter(|text| !text.is_empty()).map(Name::from))
    }
}

fn lengths<const COUNT: usize>(bytes: &[u8]) -> Result<([u8; COUNT], Texts<'_>), PhoenixError> {
    let (lengths, rest) =
        bytes.split_first_chunk::<COUNT>().ok_or(PhoenixError::Truncated { field: "lengths" })?;
    Ok((*lengths, Texts(rest)))
}

/// Parses a push after its kind.
fn push(bytes: &[u8]) -> Result<Incoming<Payload<'_>>, PhoenixError> {
    let ([join_ref, ref_, topic, event], mut texts) = lengths(bytes)?;
    Ok(Incoming {
        join_ref: texts.reference("join_ref", join_ref)?,
        ref_: texts.reference("ref", ref_)?,
        topic: texts.take("topic", topic)?.into(),
        event: texts.take("event", event)?.into(),
        payload: Payload::Binary(texts.0),
    })
}

/// Parses a user broadcast after its kind to a push of the event [`EVENT_BROADCAST`]: older versions of realtime-js
/// write that push in JSON, and all versions read it.
fn user_broadcast(bytes: &[u8]) -> Result<Incoming<Payload<'_>>, PhoenixError> {
    let ([join_ref, ref_, topic, event, meta, encoding], mut texts) = lengths(bytes)?;
    let join_ref = texts.reference("join_ref", join_ref)?;
    let ref_ = texts.reference("ref", ref_)?;
    let topic = texts.take("topic", topic)?.into();
    let (event, meta) = (texts.take("event", event)?, texts.take("metadata", meta)?);
    let mut out = b"{\"type\":\"broadcast\",\"event\":".to_vec();
    json::string(event, &mut out);
    if !meta.is_empty() {
        out.extend_from_slice(b",\"meta\":");
        out.extend_from_slice(value("metadata", meta.as_bytes())?.as_bytes());
    }
    out.extend_from_slice(b",\"payload\":");
    match encoding {
        ENCODING_JSON => out.extend_from_slice(value("payload", texts.0)?.as_bytes()),
        ENCODING_BYTES => Content::Base64(texts.0).value(&mut out),
        _ => return Err(PhoenixError::InvalidBroadcast { field: "encoding" }),
    }
    out.push(b'}');
    // Every part was read or written as JSON.
    let payload = String::from_utf8(out).ok().and_then(|it| RawValue::from_string(it).ok());
    let payload = payload.ok_or(PhoenixError::InvalidBroadcast { field: "payload" })?;
    let payload = Payload::Json(Cow::Owned(payload));
    Ok(Incoming { join_ref, ref_, topic, event: EVENT_BROADCAST.into(), payload })
}

/// Checks that the bytes are one JSON value.
fn value<'a>(field: &'static str, bytes: &'a [u8]) -> Result<&'a str, PhoenixError> {
    let value: Result<&'a RawValue, _> = serde_json::from_slice(bytes);
    value.map(RawValue::get).map_err(|_| PhoenixError::InvalidBroadcast { field })
}

fn bounded(field: &'static str, text: &str, bytes_max: usize) -> Result<Name, PhoenixError> {
    match text.len() {
        bytes if bytes > bytes_max => Err(PhoenixError::TooLong { field, bytes, bytes_max }),
        _ => Ok(text.into()),
    }
}

/// Text that is borrowed if it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow, default)]
    join_ref: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "ref")]
    ref_: Option<&'a RawValue>,
    #[serde(borrow)]
    topic: Text<'a>,
    #[serde(borrow)]
    event: Text<'a>,
    #[serde(borrow)]
    payload: &'a RawValue,
}

/// The form of V1. Serde would also read a derived struct from an array.
struct Object<'a>(Fields<'a>);

/// The form of V2.
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
