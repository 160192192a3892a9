//! JSON objects that the HTTP stream, the long poll, the WebSocket and SSE in JSON share.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;

use crate::request::Entry;
use model::name::shown;
use model::{ConnectionId, Data, Message, Name, Position, RecoveryGap, ResumeToken};

/// Appends `{"type":"message","topic":…,"id":…,"event":…,"data":…}`, with `"sender":…`, `"tags":[…]` and `"key":…`
/// before the data if the message has them. Bytes are base64 text with `"encoding":"base64"`. A gap notice is the
/// object of [`gap`].
pub fn message(message: &Message, out: &mut Vec<u8>) {
    if message.is_gap() {
        return gap(message, out);
    }
    message_head(message, out);
    match &message.publication.data {
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
    string(&message.publication.topic, out);
    if message.has_position() {
        out.extend_from_slice(b",\"id\":\"");
        push_display(&message.id, out);
        out.push(b'"');
    }
    out.extend_from_slice(b",\"event\":");
    string(message.event(), out);
    if let Some(sender) = message.publication.sender() {
        out.extend_from_slice(b",\"sender\":");
        string(sender, out);
    }
    if !message.publication.tags().is_empty() {
        out.extend_from_slice(b",\"tags\":");
        strings(message.publication.tags(), out);
    }
    if let Some(key) = message.publication.key() {
        out.extend_from_slice(b",\"key\":");
        string(key, out);
    }
}

/// Appends `{"type":"message","topic":…,"event":…,"data":…}` with this JSON text as the data: a message without an
/// id, because it was not published.
pub fn notice(topic: &str, event: &str, json: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"type\":\"message\",\"topic\":");
    string(topic, out);
    out.extend_from_slice(b",\"event\":");
    string(event, out);
    out.extend_from_slice(b",\"data\":");
    out.extend_from_slice(json.as_bytes());
    out.push(b'}');
}

/// Appends `{"type":"recovery","since":…}` with the token up to which a client has everything. `gaps` are the
/// recovery gaps of a client that reconnected, and add `"recovered":true` or `false`. A gap adds the first
/// `"reason"`, and the reasons by topic: `"topics":{"news":"too_old"}`.
pub fn recovery(token: &ResumeToken, gaps: Option<&[(Name, RecoveryGap)]>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"type\":\"recovery\",\"since\":\"");
    push_display(token, out);
    out.push(b'"');
    if let Some(gaps) = gaps {
        out.extend_from_slice(b",\"recovered\":");
        push_display(&gaps.is_empty(), out);
    }
    if let Some([(_, first), ..]) = gaps {
        out.extend_from_slice(b",\"reason\":");
        string(first.name(), out);
        out.extend_from_slice(b",\"topics\":{");
        for (at, (topic, gap)) in gaps.into_iter().flatten().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            string(shown(topic), out);
            out.push(b':');
            string(gap.name(), out);
        }
        out.push(b'}');
    }
    out.push(b'}');
}

/// Appends the gap notice ([`Message::gap`]): [`recovery`] for the topic that has lost messages.
pub fn gap(notice: &Message, out: &mut Vec<u8>) {
    let topic = notice.publication.topic.clone();
    recovery(&notice.id.into(), Some(&[(topic, RecoveryGap::TooOld)]), out);
}

/// Appends `{"type":"state_complete","topic":…}`: the client has the whole state of a compacted topic.
pub fn state_complete(topic: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"type\":\"state_complete\",\"topic\":");
    string(topic, out);
    out.push(b'}');
}

/// The greeting for a client that gets almost no messages.
const IN_NO_TOPIC: &str = "Hello. This connection is in no topic and has no user: it gets only \
                           messages that are broadcast to everyone. Add topic=news or user=alice \
                           to the URL, as often as you like: /stream?topic=news&user=alice";

/// Appends `{"type":"welcome",…}` with the connection's id, its users and its topics; `greeting` adds a text that
/// greets the users by name.
pub fn welcome(
    id: ConnectionId,
    users: &[Name],
    topics: &[Entry],
    greeting: bool,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"{\"type\":\"welcome\",");
    if greeting {
        let names: Vec<&str> = users.iter().map(Name::as_str).collect();
        let hello = match names.is_empty() {
            true if topics.is_empty() => IN_NO_TOPIC.to_string(),
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
    strings(topics.iter().map(|entry| shown(&entry.topic)), out);
    out.push(b'}');
}

/// Appends the first object to a connection that has to authenticate.
pub fn token_required(id: ConnectionId, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"type\":\"token_required\",\"connection\":\"");
    push_display(&id, out);
    out.extend_from_slice(b"\"}");
}

/// The notice to a connection whose token expires soon, at this time in seconds since 1970.
pub fn token_expiring(expires: u64, now_s: u64) -> String {
    let seconds = expires.saturating_sub(now_s);
    format!("{{\"type\":\"token_expiring\",\"expires\":{expires},\"seconds\":{seconds}}}")
}

/// The reply to a token: the connection's users, and the time at which it ends, in seconds since 1970.
pub fn authenticated(users: &[Name], expires: Option<u64>) -> String {
    let mut out = b"{\"users\":".to_vec();
    strings(users, &mut out);
    if let Some(expires) = expires {
        out.extend_from_slice(format!(",\"expires\":{expires}").as_bytes());
    }
    out.push(b'}');
    String::from_utf8_lossy(&out).into_owned()
}

/// Sets the member `info` of an object, as text, and replaces any of its own.
pub fn with_info(object: &str, info: &str) -> String {
    let mut fields: BTreeMap<String, &RawValue> = serde_json::from_str(object).unwrap_or_default();
    if let Ok(info) = serde_json::from_str(info) {
        fields.insert("info".into(), info);
    }
    serde_json::to_string(&fields).unwrap_or_else(|_| object.into())
}

/// The reply to a publish.
pub fn published(id: Position) -> String {
    format!("{{\"id\":\"{id}\",\"offset\":{}}}", id.offset)
}

/// Appends a text as a JSON string.
pub fn string(text: &str, out: &mut Vec<u8>) {
    // Writing a str to a Vec can't fail.
    let _ = serde_json::to_writer(out, text);
}

/// Appends texts as a JSON array.
pub fn strings<S: AsRef<str>>(names: impl IntoIterator<Item = S>, out: &mut Vec<u8>) {
    out.push(b'[');
    for (at, name) in names.into_iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        string(name.as_ref(), out);
    }
    out.push(b']');
}

/// Appends the display form of a value.
pub fn push_display(value: &impl Display, out: &mut Vec<u8>) {
    // Writing to a Vec can't fail.
    let _ = write!(out, "{value}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{Attributes, Epoch, Position, Publication};

    #[test]
    fn the_sender_tags_and_a_key_stand_before_the_data() {
        let mut publication = Publication::new("t", Data::Json("1".into()));
        publication.attributes = Attributes::of(vec!["red".into(), "b\"".into()], Some("k".into()));
        let publication = publication.sent_by(Some("al\"".into()));
        let mut out = Vec::new();
        message(
            &Message::new(publication, Position { epoch: Epoch(10), offset: 7 }, 0, 0),
            &mut out,
        );
        let want = concat!(
            r#"{"type":"message","topic":"t","id":"0000000a:7","event":"message","#,
            r#""sender":"al\"","tags":["red","b\""],"key":"k","data":1}"#
        );
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }

    #[test]
    fn the_notice_of_a_gap_is_a_recovery_that_fails() {
        let id = Position { epoch: Epoch(10), offset: 7 };
        for (topic, shown) in [("news", "news"), ("@al", "@al"), ("\0a/+", "a/+")] {
            let mut out = Vec::new();
            message(&Message::gap(topic, id, 0, 0), &mut out);
            let expected = format!(
                r#"{{"type":"recovery","since":"0000000a:7","recovered":false,"reason":"too_old","topics":{{"{shown}":"too_old"}}}}"#
            );
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn a_recovery_says_what_is_lost_to_those_who_requested() {
        let text = |gaps: Option<&[(Name, RecoveryGap)]>| {
            let mut out = Vec::new();
            recovery(&Position { epoch: Epoch(10), offset: 7 }.into(), gaps, &mut out);
            String::from_utf8(out).unwrap()
        };
        let head = r#"{"type":"recovery","since":"0000000a:7""#;
        assert_eq!(text(None), format!("{head}}}"));
        assert_eq!(text(Some(&[])), format!(r#"{head},"recovered":true}}"#));
        let gaps = [
            ("a\"".into(), RecoveryGap::TooOld),
            ("b".into(), RecoveryGap::Epoch),
            ("c".into(), RecoveryGap::NoHistory),
        ];
        let want = concat!(
            r#","recovered":false,"reason":"too_old","#,
            r#""topics":{"a\"":"too_old","b":"epoch_changed","c":"no_history"}}"#
        );
        assert_eq!(text(Some(&gaps)), format!("{head}{want}"));
    }
}
