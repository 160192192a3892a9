//! The server's side of the Phoenix Channels protocol, as phoenix.js and compatible clients speak it and
//! `Phoenix.Socket.V1.JSONSerializer` and `Phoenix.Socket.V2.JSONSerializer` write it.
//!
//! The codec converts frames to [`Incoming`] messages, and replies to frames. It doesn't know the joins. [`longpoll`]
//! is the envelope of the long-poll transport.
//!
//! ```
//! use protocol::phoenix::{Content, Event, Form, Serializer, ReplyStatus};
//!
//! let v2 = Serializer::from_vsn("2.0.0").unwrap();
//! let message = v2.parse_text(r#"[null,"5","phoenix","heartbeat",{}]"#).unwrap();
//! assert_eq!(message.kind(), Event::Heartbeat);
//!
//! let mut out = Vec::new();
//! let to = message.address();
//! assert_eq!(v2.reply(to, ReplyStatus::Ok, Content::Json("{}"), &mut out), Ok(Form::Text));
//! assert_eq!(out, br#"[null,"5","phoenix","phx_reply",{"status":"ok","response":{}}]"#);
//! ```

mod annotations;
mod content;
mod encode;
mod error;
pub mod longpoll;
mod message;
mod parse;
mod payload;
#[cfg(test)]
mod properties;
mod protocol;
mod reference;
mod routes;
#[cfg(test)]
mod tests;
pub mod token;

pub use annotations::{Annotations, KEY, SENDER, take_key};
pub use content::Content;
pub use encode::{Form, ReplyStatus};
pub use error::{PhoenixError, WHY_BYTES_MAX};
pub use message::{Address, ClientMessage, Incoming, Payload};
pub use parse::EVENT_BROADCAST;
pub use payload::{Join, JoinFields, access_token, ack_id, history_page, meta};
pub use protocol::Phoenix;
pub use routes::longpoll_rejection;

use model::Encoding;

/// Bytes of a topic, at most: binary messages have one byte for its length. A user's own topic is the longest.
pub const TOPIC_BYTES_MAX: usize = 255;

const _: () = assert!(model::name::PERSONAL_BYTES_MAX <= TOPIC_BYTES_MAX);

/// Bytes of an event name, at most: binary messages have one byte for its length.
pub const EVENT_BYTES_MAX: usize = 255;

/// Bytes of a `ref` or `join_ref`, at most. Text and binary messages have the same limit, so that the server can
/// reply to each message in either form.
pub const REF_BYTES_MAX: usize = 255;

/// The topic of the connection itself: heartbeats.
pub const TOPIC_PHOENIX: &str = "phoenix";

/// The event of a client's request to enter a topic.
pub const EVENT_JOIN: &str = "phx_join";
/// The event of a client's request to leave a topic.
pub const EVENT_LEAVE: &str = "phx_leave";
/// The event of the reply to a client's message.
pub const EVENT_REPLY: &str = "phx_reply";
/// The event of a regular end of a join: the client does not rejoin.
pub const EVENT_CLOSE: &str = "phx_close";
/// The event of a failed join: the client rejoins by itself.
pub const EVENT_ERROR: &str = "phx_error";
/// The event of a client's heartbeat, on [`TOPIC_PHOENIX`].
pub const EVENT_HEARTBEAT: &str = "heartbeat";
/// The event with a topic's presence snapshot, which a member gets after its join.
pub const EVENT_PRESENCE_STATE: &str = "presence_state";
/// The event of a change of a topic's presence, broadcast.
pub const EVENT_PRESENCE_DIFF: &str = "presence_diff";

/// The event with which a member replaces its presence meta.
pub const EVENT_PRESENCE_UPDATE: &str = "presence_update";
/// The event with which a client replaces an expiring token.
pub const EVENT_ACCESS_TOKEN: &str = "access_token";
/// The event that warns a client that its token expires, on [`TOPIC_PHOENIX`].
pub const EVENT_TOKEN_EXPIRING: &str = "token_expiring";

/// The event with which a member acknowledges messages.
pub const EVENT_ACK: &str = "ack";

/// The event with which a member reads a page of the topic's history.
pub const EVENT_HISTORY: &str = "history";

/// The version of a client whose URL has no `vsn` parameter.
pub const VSN_DEFAULT: &str = "1.0.0";

/// The format of messages, by the `vsn` parameter of the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Serializer {
    /// `vsn=1.0.0`: JSON objects, text only.
    V1,
    /// `vsn=2.0.0`: JSON arrays, and binary messages for bytes.
    V2,
}

impl Serializer {
    /// Returns the serializer of a version, by Phoenix's requirements `~> 1.0.0` and `~> 2.0.0`: 1.0.x or 2.0.x, with
    /// all three numbers. For `None` the server rejects the connection (403). Without a `vsn` parameter pass
    /// [`VSN_DEFAULT`].
    pub fn from_vsn(vsn: &str) -> Option<Serializer> {
        let mut parts = vsn.split('.');
        let (major, minor, patch) = (parts.next()?, parts.next()?, parts.next()?);
        let number = !patch.is_empty()
            && patch.bytes().all(|byte| byte.is_ascii_digit())
            && (patch.len() == 1 || !patch.starts_with('0'));
        match (major, minor) {
            _ if !number || parts.next().is_some() => None,
            ("1", "0") => Some(Serializer::V1),
            ("2", "0") => Some(Serializer::V2),
            _ => None,
        }
    }

    /// The encoding of messages to a WebSocket, or to a long-poll session.
    pub(crate) fn encoding(self, polled: bool) -> Encoding {
        Encoding(match (self, polled) {
            (Serializer::V1, false) => 11,
            (Serializer::V2, false) => 12,
            (Serializer::V1, true) => 13,
            (Serializer::V2, true) => 14,
        })
    }
}

/// The purpose of a client's message, by its event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Enter the topic.
    Join,
    /// Leave the topic.
    Leave,
    /// Reply, to show that the server is alive: only on [`TOPIC_PHOENIX`].
    Heartbeat,
    /// An event of the application.
    Other,
}

impl Event {
    /// The meaning of an event on a topic.
    pub fn of(topic: &str, event: &str) -> Event {
        match event {
            EVENT_JOIN => Event::Join,
            EVENT_LEAVE => Event::Leave,
            EVENT_HEARTBEAT if topic == TOPIC_PHOENIX => Event::Heartbeat,
            _ => Event::Other,
        }
    }
}
