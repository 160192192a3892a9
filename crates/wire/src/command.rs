//! The JSON commands of a WebSocket client, and the answers to them.
//!
//! ```json
//! {"type":"subscribe","id":1,"topic":"news"}
//! {"type":"unsubscribe","id":2,"topic":"news"}
//! {"type":"publish","id":3,"topic":"chat/1","data":{"text":"hi"}}
//! {"type":"ping","id":4}
//! ```
//! Each is answered with the client's own `id` (a number or a string):
//! `{"type":"reply","id":1,"ok":{…}}` or `{"type":"reply","id":1,"error":{"code":…,"message":…}}`.
//! A binary frame is the same object without `data`, a newline, and the payload as raw bytes.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::message::{check_name, check_topic};
use crate::transport::json;
use crate::{Data, Draft, Id, Name};

/// The longest `id` of a command, in bytes as the client wrote it.
pub const ID_BYTES_MAX: usize = 64;

/// What a client wants, and the `id` it will know the answer by (JSON text; `null` without one).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The client's own id, as JSON text.
    pub id: Box<str>,
    /// What to do.
    pub what: What,
}

/// The commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Enter a topic.
    Subscribe(Name),
    /// Leave a topic.
    Unsubscribe(Name),
    /// Publish, where the configuration lets clients do so.
    Publish(Draft),
    /// Answer, so that the client knows that the server lives.
    Ping,
}

/// A command that can't be done: it is answered, and the connection lives on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadCommand {
    /// The client's own id, as JSON text; `null` when there was none to read.
    pub id: Box<str>,
    /// The error's name.
    pub code: &'static str,
    /// What is wrong and what would be right.
    pub message: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body<'a> {
    #[serde(rename = "type", borrow)]
    kind: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    topic: Option<std::borrow::Cow<'a, str>>,
    #[serde(borrow)]
    event: Option<std::borrow::Cow<'a, str>>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    encoding: Option<std::borrow::Cow<'a, str>>,
}

/// Reads a command from a text frame, or from a binary frame's text and `payload`.
pub fn parse(text: &str, payload: Option<&[u8]>) -> Result<Command, BadCommand> {
    let body: Body<'_> = serde_json::from_str(text).map_err(|error| BadCommand {
        id: "null".into(),
        code: "bad_json",
        message: format!(
            "this is not a command: {error}; send for example \
             {{\"type\":\"subscribe\",\"id\":1,\"topic\":\"news\"}}"
        ),
    })?;
    let id = id(body.id)?;
    match what(&body, payload) {
        Ok(what) => Ok(Command { id, what }),
        Err((code, message)) => Err(BadCommand { id, code, message }),
    }
}

fn id(raw: Option<&RawValue>) -> Result<Box<str>, BadCommand> {
    let text = raw.map_or("null", RawValue::get);
    let scalar = text.starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9' | 'n'));
    if text.len() > ID_BYTES_MAX || !scalar {
        let message = format!("an id is a number or a string of at most {ID_BYTES_MAX} bytes");
        return Err(BadCommand { id: "null".into(), code: "bad_id", message });
    }
    Ok(text.into())
}

fn what(body: &Body<'_>, payload: Option<&[u8]>) -> Result<What, (&'static str, String)> {
    let publish = body.kind == "publish";
    if !publish && (body.data.is_some() || body.event.is_some() || body.encoding.is_some()) {
        let message = format!("{} takes no data, event or encoding", body.kind);
        return Err(("bad_command", message));
    }
    let topic = || {
        let topic = body.topic.as_deref().unwrap_or("");
        check_topic(topic).map_err(|wrong| ("bad_topic", wrong.to_string()))?;
        Ok::<_, (&'static str, String)>(Name::from(topic))
    };
    Ok(match body.kind.as_ref() {
        "subscribe" => What::Subscribe(topic()?),
        "unsubscribe" => What::Unsubscribe(topic()?),
        "publish" => {
            let event = body.event.as_deref().filter(|event| *event != "message");
            if let Some(event) = event {
                check_name(event).map_err(|wrong| ("bad_event", wrong.to_string()))?;
            }
            let topic = topic()?;
            let data = data(body, payload)?;
            What::Publish(Draft { topic, event: event.map(Name::from), data, except: None })
        }
        "ping" => What::Ping,
        other => {
            let message = format!(
                "there is no command {other:?}: subscribe, unsubscribe, publish and ping are known"
            );
            return Err(("bad_command", message));
        }
    })
}

fn data(body: &Body<'_>, payload: Option<&[u8]>) -> Result<Data, (&'static str, String)> {
    match (payload, body.data) {
        (Some(bytes), None) => Ok(Data::Binary(bytes.into())),
        (None, Some(raw)) => {
            Data::from_json(raw, body.encoding.as_deref()).map_err(|wrong| ("bad_data", wrong))
        }
        (Some(_), Some(_)) => {
            let message = "in a binary frame the data are the bytes after the newline";
            Err(("bad_data", message.into()))
        }
        (None, None) => Err(("bad_data", "publish needs data, any JSON value".into())),
    }
}

/// Appends the answer to a command that was done; `ok` is a JSON object.
pub fn reply_ok(id: &str, ok: &str, out: &mut Vec<u8>) {
    reply(id, out);
    out.extend_from_slice(b",\"ok\":");
    out.extend_from_slice(ok.as_bytes());
    out.push(b'}');
}

/// Appends the answer to a command that was not done.
pub fn reply_error(id: &str, code: &str, message: &str, out: &mut Vec<u8>) {
    reply(id, out);
    out.extend_from_slice(b",\"error\":{\"code\":");
    json::string(code, out);
    out.extend_from_slice(b",\"message\":");
    json::string(message, out);
    out.extend_from_slice(b"}}");
}

fn reply(id: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"type\":\"reply\",\"id\":");
    out.extend_from_slice(id.as_bytes());
}

/// Appends a text as a JSON string.
pub fn push_string(text: &str, out: &mut Vec<u8>) {
    json::string(text, out);
}

/// The answer's object for something published.
pub fn published(id: Id) -> String {
    format!("{{\"id\":\"{id}\",\"offset\":{}}}", id.offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read() {
        let command = |text| parse(text, None).unwrap();
        assert_eq!(
            command(r#"{"type":"subscribe","id":1,"topic":"news"}"#),
            Command { id: "1".into(), what: What::Subscribe("news".into()) }
        );
        assert_eq!(
            command(
                r#"{"topic":"a","type":"publish","event":"e","data":"AP8=","encoding":"base64","id":"x"}"#
            ),
            Command {
                id: "\"x\"".into(),
                what: What::Publish(Draft {
                    topic: "a".into(),
                    event: Some("e".into()),
                    data: Data::Binary([0, 255].into()),
                    except: None,
                })
            }
        );
        assert_eq!(command(r#"{"type":"ping"}"#).id.as_ref(), "null");
        let binary = parse(r#"{"type":"publish","topic":"a"}"#, Some(b"\0\x01")).unwrap();
        let What::Publish(draft) = binary.what else { panic!() };
        assert_eq!(draft.data, Data::Binary([0, 1].into()));
    }

    #[test]
    fn each_fault_is_named_and_keeps_the_id() {
        for (text, id, code) in [
            ("", "null", "bad_json"),
            ("[1]", "null", "bad_json"),
            (r#"{"type":"ping","id":{}}"#, "null", "bad_id"),
            (r#"{"type":"jump","id":7}"#, "7", "bad_command"),
            (r#"{"type":"ping","id":7,"data":1}"#, "7", "bad_command"),
            (r#"{"type":"subscribe","id":7}"#, "7", "bad_topic"),
            (r#"{"type":"subscribe","id":7,"topic":"@bob"}"#, "7", "bad_topic"),
            (r#"{"type":"publish","id":7,"topic":"a"}"#, "7", "bad_data"),
            (
                r#"{"type":"publish","id":7,"topic":"a","data":"%","encoding":"base64"}"#,
                "7",
                "bad_data",
            ),
            (r#"{"type":"publish","id":7,"topic":"a","data":1,"event":""}"#, "7", "bad_event"),
            (r#"{"type":"subscribe","id":7,"topic":"a","x":1}"#, "null", "bad_json"),
        ] {
            let bad = parse(text, None).unwrap_err();
            assert_eq!((bad.id.as_ref(), bad.code), (id, code), "{text}: {}", bad.message);
        }
    }

    #[test]
    fn answers_are_json() {
        let mut out = Vec::new();
        reply_error("\"x\"", "bad", "a \"b\"", &mut out);
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value["error"]["message"], "a \"b\"");
        let mut out = Vec::new();
        reply_ok("3", "{}", &mut out);
        assert_eq!(out, br#"{"type":"reply","id":3,"ok":{}}"#);
    }
}
