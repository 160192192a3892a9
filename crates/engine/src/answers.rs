//! The JSON objects and the texts of answers.

use model::{Name, Position};

/// Why a connection has nothing in a topic's presence that it could change.
pub(crate) const NO_USER: &str = "this connection has no user: connect with the parameter user";

/// The error to whoever speaks of a topic that it is not in.
pub(crate) const NOT_SUBSCRIBED: &str = "this connection is not in that topic";

/// `{"topic":"…"}`
pub(crate) fn named(key: &str, name: &str) -> String {
    let mut out = format!("{{\"{key}\":").into_bytes();
    protocol::json::string(name, &mut out);
    out.push(b'}');
    String::from_utf8_lossy(&out).into_owned()
}

/// `{"topic":"…","acknowledged":"…"}`
pub(crate) fn acknowledged_json(topic: &Name, position: Position) -> String {
    let named = named("topic", topic);
    let named = named.trim_end_matches('}');
    format!("{named},\"acknowledged\":\"{position}\"}}")
}
