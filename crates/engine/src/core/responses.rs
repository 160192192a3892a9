//! The JSON objects and the texts of replies, and how Phoenix clients get them.

use model::name::shown;
use model::{Name, Position};
use protocol::ProtocolRef;
use protocol::phoenix::{self, ClientMessage, Content, Form, Phoenix, ReplyStatus, Serializer};

/// The error to a connection that wants to change its presence and has no user.
pub(crate) const NO_USER: &str = "this connection has no user: connect with the parameter user";

/// The error to a client that names a topic that it has not entered.
pub(crate) const NOT_SUBSCRIBED: &str = "this connection is not in that topic";

/// An empty reply.
pub(crate) const NOTHING: Content<'static> = Content::Json("{}");

/// `{"topic":"…"}`
pub(crate) fn named(key: &str, name: &str) -> String {
    let mut out = format!("{{\"{key}\":").into_bytes();
    protocol::json::string(shown(name), &mut out);
    out.push(b'}');
    String::from_utf8_lossy(&out).into_owned()
}

/// `{"topic":"…","acknowledged":"…"}`
pub(crate) fn acknowledged_json(topic: &Name, position: Position) -> String {
    let named = named("topic", topic);
    let named = named.trim_end_matches('}');
    format!("{named},\"acknowledged\":\"{position}\"}}")
}

/// Appends a reply, if the client requested one.
pub(crate) fn reply(
    protocol: ProtocolRef,
    message: &ClientMessage,
    status: ReplyStatus,
    response: Content<'_>,
    out: &mut Vec<u8>,
) {
    if message.ref_.is_some() {
        say(protocol, out, |serializer, out| {
            serializer.reply(message.address(), status, response, out)
        });
    }
}

/// Appends an error reply with its reason.
pub(crate) fn refuse(
    protocol: ProtocolRef,
    message: &ClientMessage,
    reason: &str,
    out: &mut Vec<u8>,
) {
    let mut response = b"{\"reason\":".to_vec();
    protocol::json::string(reason, &mut response);
    response.push(b'}');
    let response = String::from_utf8_lossy(&response);
    reply(protocol, message, ReplyStatus::Error, Content::Json(&response), out);
}

/// Appends the outcome of a client's publication.
pub(crate) fn phoenix_published(
    protocol: ProtocolRef,
    message: &ClientMessage,
    published: &Result<Position, broker::PublishError>,
    out: &mut Vec<u8>,
) {
    match published {
        Ok(_) => reply(protocol, message, ReplyStatus::Ok, NOTHING, out),
        Err(error) => refuse(protocol, message, &error.to_string(), out),
    }
}

/// Appends one message as the protocol writes it. A message that can't be written is left out: names are validated
/// before, so that would be a bug.
pub(crate) fn say(
    protocol: ProtocolRef,
    out: &mut Vec<u8>,
    write: impl FnOnce(Serializer, &mut Vec<u8>) -> Result<Form, phoenix::PhoenixError>,
) {
    let Some(phoenix) = Phoenix::of(protocol.encoding()) else {
        return;
    };
    let mut payload = Vec::new();
    match write(phoenix.serializer, &mut payload) {
        Ok(form) => phoenix.pack(form, &payload, out),
        Err(error) => {
            tracing::error!(%error, "a Phoenix message could not be written: this is a bug")
        }
    }
}
