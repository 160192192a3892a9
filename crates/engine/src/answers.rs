//! The JSON objects of answers.

use model::{Name, Position};

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
