//! The JSON objects that the HTTP stream, the long poll, the WebSocket and SSE in JSON share.

use std::fmt::Display;
use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::{ConnectionId, Data, Message, Name};

/// Appends `{"type":"message","topic":…,"id":…,"event":…,"data":…}`. Bytes are base64 text, and
/// then `"encoding":"base64"` says so.
pub fn message(message: &Message, out: &mut Vec<u8>) {
    message_head(message, out);
    match &message.draft.data {
        Data::Json(json) => {
            out.extend_from_slice(b",\"data\":");
            out.extend_from_slice(json.as_bytes());
        }
        Data::Text(text) => {
            out.extend_from_slice(b",\"data\":");
            string(text, out);
        }
        Data::Binary(bytes) => {
            out.extend_from_slice(b",\"encoding\":\"base64\",\"data\":\"");
            out.extend_from_slice(STANDARD.encode(bytes).as_bytes());
            out.push(b'"');
        }
    }
    out.push(b'}');
}

/// Appends the object up to the data, without the closing brace.
pub fn message_head(message: &Message, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"type\":\"message\",\"topic\":");
    string(&message.draft.topic, out);
    out.extend_from_slice(b",\"id\":\"");
    push_display(&message.id, out);
    out.extend_from_slice(b"\",\"event\":");
    string(message.event(), out);
}

/// Appends `{"type":"welcome",…}` with the connection's name, its users and its topics; `greeting`
/// adds a text that greets the users by name.
pub fn welcome(
    id: ConnectionId,
    users: &[Name],
    topics: &[Name],
    greeting: bool,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"{\"type\":\"welcome\",");
    if greeting {
        let names: Vec<&str> = users.iter().map(Name::as_str).collect();
        let hello = match names.is_empty() {
            true => "Hello".to_string(),
            false => format!("Hello, {}", names.join(" and ")),
        };
        out.extend_from_slice(b"\"text\":");
        string(&hello, out);
        out.push(b',');
    }
    out.extend_from_slice(b"\"connection\":\"");
    push_display(&id, out);
    out.extend_from_slice(b"\",\"users\":");
    strings(users, out);
    out.extend_from_slice(b",\"topics\":");
    strings(topics, out);
    out.push(b'}');
}

/// Appends a text as a JSON string.
pub fn string(text: &str, out: &mut Vec<u8>) {
    // Writing a str to a Vec can't fail.
    let _ = serde_json::to_writer(out, text);
}

fn strings(names: &[Name], out: &mut Vec<u8>) {
    out.push(b'[');
    for (at, name) in names.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        string(name, out);
    }
    out.push(b']');
}

/// Appends a value as it prints.
pub fn push_display(value: &impl Display, out: &mut Vec<u8>) {
    // Writing to a Vec can't fail.
    let _ = write!(out, "{value}");
}
