//! How a record encodes values of other crates.

use std::fmt::{Display, Write as _};
use std::str::FromStr;
use std::sync::Arc;

use auth::{Grants, Patterns, Principal, Source, TokenMark};
use handover::DataRecord;
use history::TopicCursor;
use minicbor::decode::{self, Decoder};
use minicbor::encode::{self, Encoder, Write};
use minicbor::{Decode, Encode};
use model::{Name, Qos, RecoveryGap};
use protocol::phoenix::ClientMessage;
use protocol::request::Respond;

use crate::core::reply_target::ReplyTarget;
use crate::mqtt::MqttAck;

/// The version of the format of records.
pub const VERSION: u16 = 1;

/// A value as its text, whose form never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Text<T>(pub T);

impl<C, T: Display> Encode<C> for Text<T> {
    fn encode<W: Write>(
        &self,
        e: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), encode::Error<W::Error>> {
        // A `Name` does not allocate for a short text.
        let mut text = Name::default();
        let _ = write!(text, "{}", self.0);
        e.str(&text)?.ok()
    }
}

impl<'b, C, T: FromStr> Decode<'b, C> for Text<T> {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
        let wrong = |_| decode::Error::message("an invalid text for this type");
        d.str()?.parse().map(Text).map_err(wrong)
    }
}

impl<T: Clone> Text<T> {
    /// Wraps each value.
    pub fn all<'a>(values: impl IntoIterator<Item = &'a T>) -> Vec<Self>
    where
        T: 'a,
    {
        values.into_iter().cloned().map(Text).collect()
    }

    /// Returns the values.
    pub fn values<V: FromIterator<T>>(texts: Vec<Self>) -> V {
        texts.into_iter().map(|text| text.0).collect()
    }
}

/// A Phoenix client's message that waits for its reply.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct Message {
    #[n(0)]
    join_ref: Option<Text<Name>>,
    #[n(1)]
    ref_: Option<Text<Name>>,
    #[n(2)]
    topic: Text<Name>,
    #[n(3)]
    event: Text<Name>,
    #[n(4)]
    payload: DataRecord<'static>,
}

impl From<&ClientMessage> for Message {
    fn from(message: &ClientMessage) -> Self {
        let ClientMessage { join_ref, ref_, topic, event, payload } = message.clone();
        Message {
            join_ref: join_ref.map(Text),
            ref_: ref_.map(Text),
            topic: Text(topic),
            event: Text(event),
            payload: payload.into(),
        }
    }
}

impl From<Message> for ClientMessage {
    fn from(message: Message) -> Self {
        ClientMessage {
            join_ref: message.join_ref.map(|text| text.0),
            ref_: message.ref_.map(|text| text.0),
            topic: message.topic.0,
            event: message.event.0,
            payload: message.payload.into(),
        }
    }
}

/// A principal.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct Who {
    #[n(0)]
    users: Vec<Text<Name>>,
    #[n(1)]
    grants: Granted,
    #[n(2)]
    expires: Option<u64>,
    #[n(3)]
    source: Origin,
    #[n(4)]
    info: Option<String>,
    /// When its token was issued, in seconds since 1970.
    #[cbor(n(5), default)]
    issued_s: u32,
    /// A hash of its token's identifier.
    #[cbor(n(6), default)]
    id_hash: u32,
}

/// The grants of a principal.
#[derive(Encode, Decode)]
pub(crate) enum Granted {
    #[n(0)]
    Everything,
    /// Patterns to subscribe, to publish, for presence, and for history.
    #[n(1)]
    Patterns(#[n(0)] Vec<String>, #[n(1)] Vec<String>, #[n(2)] Vec<String>, #[n(3)] Vec<String>),
}

#[derive(Encode, Decode)]
#[cbor(index_only)]
enum Origin {
    #[n(0)]
    Anonymous,
    #[n(1)]
    Application,
    #[n(2)]
    Token,
    #[n(3)]
    Hook,
}

impl From<&Grants> for Granted {
    fn from(grants: &Grants) -> Self {
        let texts = |patterns: &[Box<str>]| patterns.iter().map(|it| it.to_string()).collect();
        match grants {
            Grants::Everything => Granted::Everything,
            Grants::Patterns(Patterns { subscribe, publish, presence, history }) => {
                let (subscribe, publish) = (texts(subscribe), texts(publish));
                Granted::Patterns(subscribe, publish, texts(presence), texts(history))
            }
        }
    }
}

impl From<Granted> for Grants {
    fn from(granted: Granted) -> Self {
        let boxed = |texts: Vec<String>| texts.into_iter().map(String::into_boxed_str).collect();
        match granted {
            Granted::Everything => Grants::Everything,
            Granted::Patterns(subscribe, publish, presence, history) => {
                Grants::Patterns(Patterns {
                    subscribe: boxed(subscribe),
                    publish: boxed(publish),
                    presence: boxed(presence),
                    history: boxed(history),
                })
            }
        }
    }
}

impl From<&Principal> for Who {
    fn from(principal: &Principal) -> Self {
        // The row of an MQTT client has its identifier.
        let Principal { users, client: _, grants, info, expires, mark, source } = principal;
        let grants = Granted::from(&**grants);
        let source = match source {
            Source::Anonymous => Origin::Anonymous,
            Source::Application => Origin::Application,
            Source::Token => Origin::Token,
            Source::Hook => Origin::Hook,
        };
        let TokenMark { issued_s, id_hash } = *mark;
        let (users, info) = (Text::all(users), info.as_deref().map(String::from));
        Who { users, grants, expires: *expires, source, info, issued_s, id_hash }
    }
}

impl From<Who> for Principal {
    fn from(who: Who) -> Self {
        let source = match who.source {
            Origin::Anonymous => Source::Anonymous,
            Origin::Application => Source::Application,
            Origin::Token => Source::Token,
            Origin::Hook => Source::Hook,
        };
        let users = Text::values(who.users);
        let (grants, info) = (Arc::new(who.grants.into()), who.info.map(Arc::from));
        let mark = TokenMark { issued_s: who.issued_s, id_hash: who.id_hash };
        Principal { users, client: None, grants, info, expires: who.expires, mark, source }
    }
}

/// Where a reply goes.
#[derive(Encode, Decode)]
pub(crate) enum ReplyTargetRecord {
    #[n(0)]
    Http(#[n(0)] RespondRecord),
    #[n(1)]
    Id(#[n(0)] String),
    #[n(2)]
    Phoenix(#[n(0)] Message),
    /// The packet identifier, the QoS, whether the state of the packet is stored with the message, and whether the
    /// message is to be retained.
    #[n(3)]
    Mqtt(#[n(0)] u16, #[n(1)] u8, #[n(2)] bool, #[n(3)] bool),
    #[n(4)]
    MqttAuth(#[n(0)] String),
}

impl From<&ReplyTarget> for ReplyTargetRecord {
    fn from(reply: &ReplyTarget) -> Self {
        match reply {
            ReplyTarget::Http(respond) => ReplyTargetRecord::Http(respond.into()),
            ReplyTarget::Id(id) => ReplyTargetRecord::Id(id.to_string()),
            ReplyTarget::Phoenix(message) => ReplyTargetRecord::Phoenix((&**message).into()),
            ReplyTarget::Mqtt(MqttAck { id, qos, with, retain }) => {
                ReplyTargetRecord::Mqtt(*id, qos.number(), *with, *retain)
            }
            ReplyTarget::MqttAuth(method) => ReplyTargetRecord::MqttAuth(method.to_string()),
        }
    }
}

impl From<ReplyTargetRecord> for ReplyTarget {
    fn from(record: ReplyTargetRecord) -> Self {
        match record {
            ReplyTargetRecord::Http(respond) => ReplyTarget::Http(respond.into()),
            ReplyTargetRecord::Id(id) => ReplyTarget::Id(id.into()),
            ReplyTargetRecord::Phoenix(message) => ReplyTarget::Phoenix(Box::new(message.into())),
            ReplyTargetRecord::Mqtt(id, qos, with, retain) => {
                let qos = Qos::from_number(qos).unwrap_or_default();
                ReplyTarget::Mqtt(MqttAck { id, qos, with, retain })
            }
            ReplyTargetRecord::MqttAuth(method) => ReplyTarget::MqttAuth(method.into()),
        }
    }
}

/// How a reply is framed.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct RespondRecord {
    #[n(0)]
    cors: String,
    #[n(1)]
    keep_alive: bool,
    /// `None` instead of `Some(false)`, as in records of earlier versions.
    #[n(2)]
    head_only: Option<bool>,
}

impl From<&Respond> for RespondRecord {
    fn from(Respond { cors, keep_alive, head_only }: &Respond) -> Self {
        let (keep_alive, head_only) = (*keep_alive, head_only.then_some(true));
        RespondRecord { cors: cors.to_string(), keep_alive, head_only }
    }
}

impl From<RespondRecord> for Respond {
    fn from(RespondRecord { cors, keep_alive, head_only }: RespondRecord) -> Self {
        Respond { cors: cors.into(), keep_alive, head_only: head_only.unwrap_or_default() }
    }
}

/// A topic with history, and a position in it.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct CursorRecord {
    #[n(0)]
    topic: Text<Name>,
    #[n(1)]
    after: u64,
    #[cbor(n(2), default)]
    whole: bool,
    /// Absent if 0, as in records of versions without it.
    #[n(3)]
    state_top: Option<u64>,
}

impl From<&TopicCursor> for CursorRecord {
    fn from(TopicCursor { hash: _, topic, after, whole, state_top }: &TopicCursor) -> Self {
        let topic = Text(topic.clone());
        let state_top = Some(*state_top).filter(|top| *top > 0);
        CursorRecord { topic, after: *after, whole: *whole, state_top }
    }
}

impl CursorRecord {
    /// Returns the cursor.
    pub fn import(self, hash: &dyn Fn(&str) -> u64) -> TopicCursor {
        let CursorRecord { topic: Text(topic), after, whole, state_top } = self;
        let state_top = state_top.unwrap_or(0);
        TopicCursor { hash: hash(&topic), topic, after, whole, state_top }
    }
}

/// Returns the number of a gap in a record.
pub(crate) fn gap_number(gap: RecoveryGap) -> u8 {
    match gap {
        RecoveryGap::Epoch => 0,
        RecoveryGap::TooOld => 1,
        RecoveryGap::NoHistory => 2,
    }
}

/// Returns the gap of a number.
pub(crate) fn gap_of(number: u8) -> Result<RecoveryGap, ImportError> {
    match number {
        0 => Ok(RecoveryGap::Epoch),
        1 => Ok(RecoveryGap::TooOld),
        2 => Ok(RecoveryGap::NoHistory),
        _ => Err(ImportError::damaged("unknown gap")),
    }
}

/// Why a record was not imported. The engine has nothing of it then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The record is incomplete, or no engine has written it so.
    #[error(
        "the record is incomplete or damaged ({0}): if it is a connection's, close its socket; if \
         it is an engine's, start a new one"
    )]
    Damaged(String),
    /// Another version of the server has written it.
    #[error(
        "the record has version {0} of the format, and this server reads version {VERSION}: hand over \
         to a server that reads both, or restart instead"
    )]
    Version(u16),
    /// No protocol here has its name and encoding.
    #[error(
        "no protocol here has the name {protocol} and the encoding {encoding}: close the \
         connection's socket"
    )]
    UnknownProtocol {
        /// Its name.
        protocol: String,
        /// The number of its encoding.
        encoding: u8,
    },
    /// There is a connection in the slot.
    #[error("slot {0} is taken: import only into an engine without connections of its own")]
    SlotTaken(u32),
    /// The record is another engine's.
    #[error(
        "the record belongs to engine {number} of node {node}, and this is another one: \
         connections' ids name both"
    )]
    OtherEngine {
        /// The node of the record.
        node: model::NodeId,
        /// The engine of the record.
        number: u16,
    },
}

impl ImportError {
    pub(crate) fn damaged(why: impl std::fmt::Display) -> Self {
        ImportError::Damaged(why.to_string())
    }
}
