//! The bodies of the calls that publish: a message, of which each call takes some fields, and its target.

use std::fmt;

use model::event::check_event;
use model::name::{check_name, has_control};
use model::{Attributes, ErrorCode, Name, Publication, tags};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Error, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::mqtt::MqttOptions;
use super::options::{IfOffset, checked_sender, expires_ms};
use crate::http::Rejection;
use crate::node::History;

/// The longest idempotency key, in bytes.
const IDEMPOTENCY_KEY_BYTES_MAX: usize = 128;

/// A message as a caller sends it.
#[derive(Deserialize, ToSchema)]
pub(crate) struct Message {
    /// The topic, the user or the `reply_to`; empty for a message to everyone.
    #[serde(skip)]
    pub to: String,
    /// Any JSON value; a string is text.
    #[schema(value_type = Value, example = json!({"n": 1}))]
    pub data: Box<RawValue>,
    /// The event's name; `message` without one. `recovery`, `state_complete`, `error`, `open` and
    /// names that begin with `phx_`, `chan_reply_` or `presence_` are reserved.
    pub event: Option<String>,
    /// For a string: `text` (the default), `base64` for bytes, or `json` to send its quotes on transports that carry
    /// raw data.
    pub encoding: Option<String>,
    /// 1 to 128 bytes that are new for each message. A repeat within `history.idempotency_seconds_max` is not
    /// published again, and its response has the first message, so that a publish whose response was lost can be
    /// repeated. For topics with history.
    #[schema(min_length = 1, max_length = 128, example = "order-1042-paid")]
    pub idempotency_key: Option<String>,
    /// After this many seconds, clients that come back no longer get the message; fractions are fine. Without history
    /// it changes nothing.
    #[schema(exclusive_minimum = 0, example = 3600)]
    pub ttl_seconds: Option<f64>,
    /// Publish only if the topic has no message after this one; else the response is 409 with the newest. An offset
    /// (0: the topic has no message at all) or an id, whose epoch is checked, too. For topics with history.
    pub if_offset: Option<IfOffset>,
    /// Deliver it to the present members only: it is not in the topic's history. In a topic with history it comes to
    /// them without an id.
    #[serde(default)]
    #[schema(default = false)]
    pub no_history: bool,
    /// Tags by which members may filter: at most 16, each of 1 to 64 bytes.
    #[serde(default)]
    #[schema(max_items = 16, example = json!(["urgent", "de"]))]
    pub tags: Vec<String>,
    /// The key whose newest state the message is. With `compact = true` the history of the topic retains the last
    /// message of each key, and a message without one is rejected (`key_required`) unless it has `no_history`.
    /// Elsewhere it is information only.
    #[schema(example = "AAPL")]
    pub key: Option<String>,
    /// The user whom clients see as the sender, as for messages that clients publish.
    #[schema(example = "alice")]
    pub sender: Option<String>,
    /// Properties for MQTT clients only.
    pub mqtt: Option<MqttOptions>,
}

impl Message {
    /// Checks the message, and makes a publish to this topic for the broker.
    pub fn checked(
        &self,
        history: &dyn History,
        topic: Name,
    ) -> Result<broker::Publish, Rejection> {
        let idempotency_key = self.idempotency_key()?;
        let if_offset = match (idempotency_key.is_some(), self.if_offset) {
            (false, None) => None,
            (_, if_offset) => {
                self.check_history(history, &topic)?;
                if_offset.map(|if_offset| if_offset.offset(history)).transpose()?
            }
        };
        let no_history = self.no_history;
        let options =
            broker::Options { idempotency_key, if_offset, no_history, ..Default::default() };
        let attributes = self.attributes()?;
        let event = self.event.as_deref().filter(|event| *event != "message");
        event.map_or(Ok(()), check_event)?;
        let data = protocol::data::from_json(&self.data, self.encoding.as_deref())
            .map_err(|error| Rejection::new(ErrorCode::BadData, error))?;
        let event = event.map(Name::from);
        let publication = Publication { event, attributes, ..Publication::new(topic, data) };
        let publication = match &self.mqtt {
            None => publication,
            Some(mqtt) => mqtt.apply(publication)?,
        };
        Ok(broker::Publish { publication, options })
    }

    fn idempotency_key(&self) -> Result<Option<Name>, Rejection> {
        let Some(key) = self.idempotency_key.as_deref() else { return Ok(None) };
        if has_control(key) {
            let message = "an idempotency_key must not contain control characters";
            return Err(Rejection::new(ErrorCode::BadIdempotencyKey, message));
        }
        if (1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&key.len()) {
            return Ok(Some(key.into()));
        }
        let message = format!(
            "an idempotency_key must have 1 to {IDEMPOTENCY_KEY_BYTES_MAX} bytes, and this one \
             has {}",
            key.len()
        );
        Err(Rejection::new(ErrorCode::BadIdempotencyKey, message))
    }

    /// Rejects an idempotency key and `if_offset` without a history: the server could not detect a repeat, and would
    /// publish it twice.
    fn check_history(&self, history: &dyn History, topic: &str) -> Result<(), Rejection> {
        if self.no_history {
            let message = "no_history excludes idempotency_key and if_offset, because both \
                           require the topic's history";
            return Err(Rejection::new(ErrorCode::BadRequest, message));
        }
        match history.rule(topic) {
            Some(_) => Ok(()),
            None => Err(Rejection::new(
                ErrorCode::NoHistory,
                "idempotency_key and if_offset require a topic with history: add \
                 history_messages_max to its [[topics]] table (for a user's own topic: \
                 inbox.enabled)",
            )),
        }
    }

    fn attributes(&self) -> Result<Option<Box<Attributes>>, Rejection> {
        let tags =
            tags::list(&self.tags).map_err(|error| Rejection::new(ErrorCode::BadTags, error))?;
        if let Some(key) = &self.key {
            check_name(key).map_err(|error| {
                Rejection::new(ErrorCode::BadMessageKey, format!("key: {error}"))
            })?;
        }
        let key = self.key.as_deref().map(Name::from);
        let sender = checked_sender(self.sender.as_deref())?;
        let expires_ms = self.ttl_seconds.map(expires_ms).transpose()?;
        let attributes = Attributes { tags, key, sender, expires_ms, ..Attributes::default() };
        Ok(Some(Box::new(attributes)).filter(|attributes| **attributes != Attributes::default()))
    }
}

/// The body of a call: the fields that it takes.
pub(super) struct Fields {
    /// Its documentation.
    description: &'static str,
    /// The field that says where the message goes, with its documentation. `None` for a message to everyone.
    target: Option<Target>,
    /// Whether the documentation explains each field; else it refers to that of publish.
    is_explained: bool,
    /// All fields, in the order in which errors name them.
    names: &'static [&'static str],
}

struct Target {
    name: &'static str,
    description: &'static str,
    example: &'static str,
}

/// Declares the body of a call, whose message has these fields.
macro_rules! bodies {
    ($($(#[doc = $doc:literal])+ $name:ident($target:expr, $is_explained:literal): $names:expr;)+) => {$(
        $(#[doc = $doc])+
        pub(crate) struct $name(pub(super) Message);

        impl $name {
            const FIELDS: Fields = Fields {
                description: concat!($($doc),+).trim_ascii(),
                target: $target,
                is_explained: $is_explained,
                names: $names,
            };
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_map(Body(&$name::FIELDS)).map($name)
            }
        }

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                $name::FIELDS.schema()
            }
        }

        impl ToSchema for $name {
            fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
                Message::schemas(schemas);
            }
        }
    )+};
}

bodies! {
    /// A message to a topic.
    Publish(Some(Target { name: "topic", description: "It does not begin with `@`.", example: "news" }), true): &[
        "topic", "data", "event", "encoding", "idempotency_key", "ttl_seconds", "if_offset", "no_history", "tags", "key",
        "sender", "mqtt",
    ];
    /// A message to all connections of a user.
    Send(Some(Target { name: "user", description: "", example: "alice" }), false): &[
        "user", "data", "event", "encoding", "idempotency_key", "ttl_seconds", "if_offset", "no_history", "tags", "key",
        "sender",
    ];
    /// A message to every connection.
    Broadcast(None, false): &["data", "event", "encoding", "sender"];
    /// A reply of a back end to one message.
    Reply(Some(Target { name: "reply_to", description: "", example: "" }), false): &[
        "reply_to", "data", "event", "encoding", "ttl_seconds", "tags", "key", "sender", "mqtt",
    ];
}

/// Reads a body.
struct Body(&'static Fields);

impl<'de> Visitor<'de> for Body {
    type Value = Message;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with {}", self.0.names.join(", "))
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Message, M::Error> {
        let mut to = None;
        let known = Known { map, fields: self.0, to: &mut to };
        let message = Message::deserialize(MapAccessDeserializer::new(known))?;
        match (&self.0.target, to) {
            (Some(target), None) => Err(M::Error::missing_field(target.name)),
            (Some(_) | None, to) => Ok(Message { to: to.unwrap_or_default(), ..message }),
        }
    }
}

/// The fields of a message among those of a body. It takes the target out, and rejects what the call doesn't take.
struct Known<'a, M> {
    map: M,
    fields: &'static Fields,
    to: &'a mut Option<String>,
}

impl<'de, M: MapAccess<'de>> MapAccess<'de> for Known<'_, M> {
    type Error = M::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, M::Error> {
        while let Some(name) = self.map.next_key_seed(FieldName(self.fields))? {
            let Some(target) = self.fields.target.as_ref().filter(|it| it.name == name) else {
                return seed.deserialize(name.into_deserializer()).map(Some);
            };
            if self.to.is_some() {
                return Err(M::Error::duplicate_field(target.name));
            }
            *self.to = Some(self.map.next_value()?);
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, M::Error> {
        self.map.next_value_seed(seed)
    }
}

/// Reads the name of a field that the call takes, without a copy of it.
struct FieldName(&'static Fields);

impl<'de> DeserializeSeed<'de> for FieldName {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<&'static str, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for FieldName {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<&'static str, E> {
        let known = self.0.names.iter().find(|known| **known == name);
        known.copied().ok_or_else(|| E::unknown_field(name, self.0.names))
    }
}

/// Lets the documentation of a field refer to the same field of publish.
fn refer(field: &mut RefOr<Schema>) {
    let description = Some("As in publish.".to_owned());
    if let RefOr::T(Schema::Object(object)) = field {
        object.description = description;
    } else if let RefOr::T(Schema::Array(array)) = field {
        array.description = description;
    } else if let RefOr::T(Schema::OneOf(one_of)) = field {
        one_of.description = description;
    }
}

impl Fields {
    /// The schema of the body, for the description of the API.
    fn schema(&self) -> RefOr<Schema> {
        let RefOr::T(Schema::Object(mut object)) = Message::schema() else {
            return Message::schema();
        };
        object.description = Some(self.description.into());
        object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
        object.properties.retain(|name, _| self.names.contains(&name.as_str()));
        if !self.is_explained {
            let same = ["data", "event"];
            for (_, field) in
                object.properties.iter_mut().filter(|(name, _)| !same.contains(&&***name))
            {
                refer(field);
            }
        }
        if let Some(Target { name, description, example }) = &self.target {
            let target = ObjectBuilder::new()
                .schema_type(Type::String)
                .description(Some(*description).filter(|it| !it.is_empty()))
                .examples([*example]);
            object.properties.insert((*name).into(), target.into());
            object.required.insert(0, (*name).into());
        }
        RefOr::T(Schema::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of<T: for<'de> Deserialize<'de>>(json: &str) -> String {
        serde_json::from_str::<T>(json).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn each_call_takes_its_own_fields() {
        let publish: Publish = serde_json::from_str(
            r#"{"tags":["a"],"topic":"news","data":null,"if_offset":7,"no_history":true}"#,
        )
        .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((publish.0.to.as_str(), publish.0.data.get()), ("news", "null"));
        assert_eq!(publish.0.tags, ["a"]);
        assert!(publish.0.no_history && publish.0.event.is_none());
        let broadcast: Broadcast = serde_json::from_str(r#"{"data":1,"sender":"al"}"#)
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((broadcast.0.to.as_str(), broadcast.0.sender.as_deref()), ("", Some("al")));
        for (error, want) in [
            (
                error_of::<Publish>(r#"{"user":"al","data":1}"#),
                "unknown field `user`, expected one of `topic`, `data`",
            ),
            (
                error_of::<Send>(r#"{"user":"al","data":1,"mqtt":{}}"#),
                "unknown field `mqtt`, expected one of `user`",
            ),
            (
                error_of::<Broadcast>(r#"{"data":1,"key":"k"}"#),
                "unknown field `key`, expected one of `data`, `event`",
            ),
            (
                error_of::<Reply>(r#"{"reply_to":"1","data":1,"if_offset":1}"#),
                "unknown field `if_offset`",
            ),
            (error_of::<Send>(r#"{"data":1}"#), "missing field `user`"),
            (error_of::<Send>(r#"{"user":"al"}"#), "missing field `data`"),
            (error_of::<Send>(r#"{"user":"al","data":1,"user":"al"}"#), "duplicate field `user`"),
            (error_of::<Send>(r#"{"user":"al","data":1,"data":1}"#), "duplicate field `data`"),
            (
                error_of::<Send>(r#"{"user":1,"data":1}"#),
                "invalid type: integer `1`, expected a string",
            ),
        ] {
            assert!(error.starts_with(want), "{error}");
        }
    }
}
