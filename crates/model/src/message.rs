//! A message: its publication, and its position in the order. [`crate::Envelope`] has its encodings.

use crate::event::RECOVERY;
use crate::name::BROADCAST;
use crate::{ConnectionId, Name, Position, Properties, Qos};

/// The payload of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// A JSON value that is not a string, as compact JSON text (no newline in it).
    Json(Box<str>),
    /// Text: sent as it is where the transport carries raw data, as a JSON string in JSON.
    Text(Box<str>),
    /// Bytes: base64 wherever the transport carries text only.
    Binary(Box<[u8]>),
}

impl Data {
    /// The size of the payload in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Data::Json(text) | Data::Text(text) => text.len(),
            Data::Binary(bytes) => bytes.len(),
        }
    }
}

/// A publication: a message without a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// The topic; [`crate::name::BROADCAST`] for every connection, [`crate::name::personal`] for a user.
    pub topic: Name,
    /// The event's name; `None` is `message`, the default of the SSE standard.
    pub event: Option<Name>,
    /// The payload.
    pub data: Data,
    /// A member that does not get it: the sender, if a message goes only to the others.
    pub except: Option<ConnectionId>,
    /// Attributes that few messages have.
    pub attributes: Option<Box<Attributes>>,
    /// The highest quality of service with which it is delivered.
    pub qos: Qos,
    /// True if it becomes the topic's retained message, which MQTT clients get when they subscribe.
    pub retain: bool,
}

impl Publication {
    /// A payload for a topic, without any other field.
    pub fn new(topic: impl Into<Name>, data: Data) -> Self {
        Publication {
            topic: topic.into(),
            event: None,
            data,
            except: None,
            attributes: None,
            qos: Qos::default(),
            retain: false,
        }
    }

    /// The size of the payload, and of an MQTT publisher's properties, in bytes.
    pub fn bytes(&self) -> usize {
        self.data.bytes() + self.properties().map_or(0, Properties::bytes)
    }

    /// The tags; most messages have none.
    pub fn tags(&self) -> &[Name] {
        self.attributes.as_ref().map_or(&[], |attributes| &attributes.tags)
    }

    /// The key: the message is its newest state in a topic that retains one message a key.
    pub fn key(&self) -> Option<&Name> {
        self.attributes.as_ref()?.key.as_ref()
    }

    /// Returns true if a message that is published to be retained removes the one that its topic has (MQTT 5.0, section
    /// 3.3.1.3).
    pub fn removes_retained(&self) -> bool {
        self.data.bytes() == 0
    }

    /// When it expires, in milliseconds since 1970.
    pub fn expires_ms(&self) -> Option<u64> {
        self.attributes.as_ref()?.expires_ms
    }

    /// The properties from an MQTT publisher.
    pub fn properties(&self) -> Option<&Properties> {
        self.attributes.as_ref()?.properties.as_deref()
    }

    /// The mark of the MQTT session that does not get it, on any connection.
    pub fn except_session(&self) -> Option<u64> {
        self.attributes.as_ref()?.except_session
    }

    /// The mark of the MQTT session that has published it, for a retained message.
    pub fn by_session(&self) -> Option<u64> {
        self.attributes.as_ref()?.by_session
    }

    /// True if the node publishes it about itself.
    pub fn is_own(&self) -> bool {
        self.attributes.as_ref().is_some_and(|attributes| attributes.is_own)
    }

    /// The user that published the message, if known.
    pub fn sender(&self) -> Option<&Name> {
        self.attributes.as_ref()?.sender.as_ref()
    }

    /// Returns the same publication by this user.
    #[must_use]
    pub fn sent_by(mut self, sender: Option<Name>) -> Self {
        if sender.is_some() || self.sender().is_some() {
            self.attributes.get_or_insert_default().sender = sender;
        }
        self
    }
}

impl Publication {
    /// Replaces the tags and the key, if others are given.
    pub fn change(&mut self, tags: Option<Vec<Name>>, key: Option<Name>) {
        if let Some(tags) = tags
            && (!tags.is_empty() || self.attributes.is_some())
        {
            self.attributes.get_or_insert_default().tags = tags;
        }
        if key.is_some() {
            self.attributes.get_or_insert_default().key = key;
        }
    }
}

/// The attributes that only a few messages have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Tags that members filter by: at most [`crate::tags::TAGS_MAX`].
    pub tags: Vec<Name>,
    /// The key whose newest state the message is.
    pub key: Option<Name>,
    /// The user that published it. `None` for the application, or a client that named no user.
    pub sender: Option<Name>,
    /// When the message expires, in milliseconds since 1970.
    pub expires_ms: Option<u64>,
    /// The properties from an MQTT publisher.
    pub properties: Option<Box<Properties>>,
    /// The mark of the MQTT session that does not get it, on any connection: it has published the message, and does
    /// not request its own.
    pub except_session: Option<u64>,
    /// The mark of the MQTT session that has published it, for a retained message: that session may subscribe
    /// later, and not request its own messages.
    pub by_session: Option<u64>,
    /// True if the node publishes it about itself: it is not stored, and no limit counts it.
    pub is_own: bool,
}

/// How a message came to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageSource {
    /// At this node.
    Here,
    /// At another node, which has sent it here.
    OtherNode,
    /// At any node: all of them get it from one log.
    SharedLog,
}

/// Whether and how history retains a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retention {
    /// The topic has no history: absent members miss the message.
    #[default]
    None,
    /// The topic has history, which does not retain this message. No client can come back to its position, so that
    /// it is delivered without an id.
    Passing,
    /// History retains it for members that come back.
    History,
    /// History retains it until its users have acknowledged it.
    Acknowledged,
}

/// A published message.
#[derive(Clone, Debug)]
pub struct Message {
    /// Its position in the order.
    pub id: Position,
    /// The hash of the topic's name, the same in every index of the node.
    pub topic_hash: u64,
    /// When it was published, in microseconds of the node's own clock.
    pub published_us: u64,
    /// When it was published, in milliseconds since 1970; 0 for a message without retention.
    pub at_ms: u64,
    /// How history retains it.
    pub retention: Retention,
    /// The publication.
    pub publication: Publication,
}

impl Message {
    /// Gives a publication its position.
    pub fn new(publication: Publication, id: Position, topic_hash: u64, published_us: u64) -> Self {
        let retention = Retention::None;
        Message { id, topic_hash, published_us, at_ms: 0, retention, publication }
    }

    /// The notice that messages of a topic are lost before this position. It was not published, and has no id.
    pub fn gap(topic: &str, id: Position, topic_hash: u64, published_us: u64) -> Self {
        let mut publication = Publication::new(topic, Data::Text("".into()));
        publication.event = Some(RECOVERY.into());
        publication.attributes =
            Some(Box::new(Attributes { is_own: true, ..Attributes::default() }));
        Message::new(publication, id, topic_hash, published_us).passing()
    }

    /// True if it is the notice that messages of its topic are lost ([`Message::gap`]). Nothing else has this
    /// event.
    pub fn is_gap(&self) -> bool {
        self.publication.event.as_deref() == Some(RECOVERY)
    }

    /// Returns the same message for a topic whose history does not retain it.
    pub fn passing(self) -> Self {
        Message { retention: Retention::Passing, ..self }
    }

    /// Returns the same message as history has it: published at this time, in milliseconds since 1970.
    pub fn retained(self, retention: Retention, at_ms: u64) -> Self {
        Message { retention, at_ms, ..self }
    }

    /// True when its time to live is over.
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.publication.expires_ms().is_some_and(|expires_ms| expires_ms <= now_ms)
    }

    /// The event's name.
    pub fn event(&self) -> &str {
        self.publication.event.as_deref().unwrap_or("message")
    }

    /// True when the message goes to every connection.
    pub fn is_broadcast(&self) -> bool {
        self.publication.topic == BROADCAST
    }

    /// True when history retains the message.
    pub fn is_retained(&self) -> bool {
        matches!(self.retention, Retention::History | Retention::Acknowledged)
    }

    /// True when a client can name the message's position by its id.
    pub fn has_position(&self) -> bool {
        self.retention != Retention::Passing
    }
}
