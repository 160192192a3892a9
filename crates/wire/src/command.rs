//! The JSON commands of a WebSocket client, and the answers to them.
//!
//! ```json
//! {"type":"subscribe","id":1,"topic":"news"}
//! {"type":"unsubscribe","id":2,"topic":"news"}
//! {"type":"publish","id":3,"topic":"chat/1","data":{"text":"hi"}}
//! {"type":"ack","id":4,"topic":"orders","message":"5f3a91c2:1042"}
//! {"type":"ping","id":5}
//! ```
//! To subscribe may have `"since"`, the id of the last message that the client saw of the topic, and
//! `"tags"`, of which a message must have one; to publish `"tags"` and `"key"`. An acknowledgement
//! without `"topic"` is for the user's own; where a connection has several users, `"user"` says who.
//!
//! Each is answered with the client's own `id` (a number or a string):
//! `{"type":"reply","id":1,"ok":{…}}` or `{"type":"reply","id":1,"error":{"code":…,"message":…}}`.
//! A binary frame is the same object without `data`, a newline, and the payload as raw bytes.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::events::check_event;
use crate::message::{check_name, check_topic};
use crate::session::Acknowledged;
use crate::since::BadSince;
use crate::transport::json;
use crate::{Data, Draft, Id, Marks, Name, Since, object, tags};

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
    Subscribe(Subscribe),
    /// Leave a topic.
    Unsubscribe(Name),
    /// Publish, where the configuration lets clients do so.
    Publish(Draft),
    /// Say what the user has got.
    Acknowledge(Acknowledged),
    /// Answer, so that the client knows that the server lives.
    Ping,
}

/// A wish to enter a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscribe {
    /// The topic.
    pub topic: Name,
    /// What the client saw last of it.
    pub since: Option<Since>,
    /// It wants only messages that have one of these tags; all without any.
    pub tags: Vec<Name>,
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
    topic: Option<Text<'a>>,
    #[serde(borrow)]
    event: Option<Text<'a>>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    encoding: Option<Text<'a>>,
    #[serde(borrow)]
    since: Option<Text<'a>>,
    #[serde(borrow, default)]
    tags: Option<Vec<Text<'a>>>,
    #[serde(borrow)]
    key: Option<Text<'a>>,
    #[serde(borrow)]
    message: Option<Text<'a>>,
    #[serde(borrow)]
    user: Option<Text<'a>>,
}

impl Body<'_> {
    /// A field that the command has no use for, if it has one. A topic is taken by all.
    fn needless(&self) -> Option<&'static str> {
        let kind = &*self.kind;
        let (publish, subscribe, ack) = (kind == "publish", kind == "subscribe", kind == "ack");
        [
            ("data", self.data.is_some(), publish),
            ("event", self.event.is_some(), publish),
            ("encoding", self.encoding.is_some(), publish),
            ("key", self.key.is_some(), publish),
            ("tags", self.tags.is_some(), publish || subscribe),
            ("since", self.since.is_some(), subscribe),
            ("message", self.message.is_some(), ack),
            ("user", self.user.is_some(), ack),
        ]
        .into_iter()
        .find_map(|(field, there, used)| (there && !used).then_some(field))
    }
}

/// Text that is borrowed when it has no escapes, inside an `Option` or a list too.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] std::borrow::Cow<'a, str>);

/// Reads a command from a text frame, or from a binary frame's text and `payload`.
pub fn parse(text: &str, payload: Option<&[u8]>) -> Result<Command, BadCommand> {
    let body: Body<'_> = object::read(text.as_bytes()).map_err(|error| BadCommand {
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

/// An error's name, and what is wrong.
type Wrong = (&'static str, String);

fn text<'a>(field: &'a Option<Text<'_>>) -> Option<&'a str> {
    field.as_ref().map(|text| &*text.0)
}

fn what(body: &Body<'_>, payload: Option<&[u8]>) -> Result<What, Wrong> {
    if let Some(field) = body.needless() {
        return Err(("bad_command", format!("{} takes no {field}", body.kind)));
    }
    let topic = || {
        let topic = text(&body.topic).unwrap_or("");
        check_topic(topic).map_err(|wrong| ("bad_topic", wrong.to_string()))?;
        Ok::<_, Wrong>(Name::from(topic))
    };
    let tags = || {
        let tags = body.tags.iter().flatten().map(|tag| &*tag.0);
        tags::list(tags).map_err(|wrong| ("bad_tag", wrong))
    };
    Ok(match body.kind.as_ref() {
        "subscribe" => {
            let since = text(&body.since).map(str::parse).transpose();
            let since = since.map_err(|bad: BadSince| ("bad_since", bad.to_string()))?;
            What::Subscribe(Subscribe { topic: topic()?, since, tags: tags()? })
        }
        "unsubscribe" => What::Unsubscribe(topic()?),
        "publish" => {
            let event = text(&body.event).filter(|event| *event != "message");
            event.map_or(Ok(()), check_event)?;
            let event = event.map(Name::from);
            let key = text(&body.key);
            let wrong = |wrong: &str| ("bad_key", wrong.to_string());
            key.map_or(Ok(()), check_name).map_err(wrong)?;
            let marks = Marks::of(tags()?, key.map(Name::from));
            let (topic, data) = (topic()?, data(body, payload)?);
            What::Publish(Draft { topic, event, data, except: None, marks })
        }
        "ack" => What::Acknowledge(acknowledged(body)?),
        "ping" => What::Ping,
        other => {
            let message = format!(
                "there is no command {other:?}: subscribe, unsubscribe, publish, ack and ping are \
                 known"
            );
            return Err(("bad_command", message));
        }
    })
}

fn acknowledged(body: &Body<'_>) -> Result<Acknowledged, Wrong> {
    let (user, topic, message) = (text(&body.user), text(&body.topic), text(&body.message));
    Acknowledged::read(user, topic, message).map_err(|(code, wrong)| match code {
        // The field is called otherwise here: id is the command's own.
        "bad_id" => ("bad_message", wrong),
        code => (code, wrong),
    })
}

fn data(body: &Body<'_>, payload: Option<&[u8]>) -> Result<Data, Wrong> {
    match (payload, body.data) {
        (Some(bytes), None) => Ok(Data::Binary(bytes.into())),
        (None, Some(raw)) => {
            Data::from_json(raw, text(&body.encoding)).map_err(|wrong| ("bad_data", wrong))
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
            Command {
                id: "1".into(),
                what: What::Subscribe(Subscribe { topic: "news".into(), ..Subscribe::default() })
            }
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
                    marks: None,
                })
            }
        );
        assert_eq!(command(r#"{"type":"ping"}"#).id.as_ref(), "null");
        let binary = parse(r#"{"type":"publish","topic":"a"}"#, Some(b"\0\x01")).unwrap();
        let What::Publish(draft) = binary.what else { panic!() };
        assert_eq!(draft.data, Data::Binary([0, 1].into()));
    }

    #[test]
    fn what_a_command_may_have_beside() {
        let what = |text| parse(text, None).unwrap().what;
        let wish = what(
            r#"{"type":"subscribe","topic":"news","since":"5f3a91c2:7\/9","tags":["red","red"]}"#,
        );
        let since = "5f3a91c2:7/9".parse().ok();
        let want = Subscribe { topic: "news".into(), since, tags: vec!["red".into()] };
        assert_eq!(wish, What::Subscribe(want));
        let publish = r#"{"type":"publish","topic":"a","tags":["red"],"key":"price"}"#;
        let What::Publish(draft) = parse(publish, Some(b"x")).unwrap().what else { panic!() };
        assert_eq!((draft.tags(), draft.key().unwrap().as_str()), (&["red".into()][..], "price"));

        let id = "5f3a91c2:7".parse().unwrap();
        for (fields, user, topic) in [
            ("", None, None),
            (r#","topic":"orders""#, None, Some("orders")),
            (r#","topic":"@alice""#, Some("alice"), None),
            (r#","user":"alice","topic":"@alice""#, Some("alice"), None),
            (r#","user":"alice","topic":"orders""#, Some("alice"), Some("orders")),
        ] {
            let text =
                format!(r#"{{"type":"ack","id":2,"message":"5f3a91c2:7/9-0000000b.8"{fields}}}"#);
            let want =
                Acknowledged { user: user.map(Name::from), topic: topic.map(Name::from), id };
            assert_eq!(parse(&text, None).unwrap().what, What::Acknowledge(want));
        }
    }

    #[test]
    fn each_fault_is_named_and_keeps_the_id() {
        for (text, id, code) in [
            ("", "null", "bad_json"),
            ("[1]", "null", "bad_json"),
            (r#"["ping",1,null,null,null,null,null,null,null,null,null]"#, "null", "bad_json"),
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
            (
                r#"{"type":"publish","id":7,"topic":"a","data":1,"event":"error"}"#,
                "7",
                "reserved_event",
            ),
            (r#"{"type":"subscribe","id":7,"topic":"a","x":1}"#, "null", "bad_json"),
            (r#"{"type":"subscribe","id":7,"topic":"a","since":"x"}"#, "7", "bad_since"),
            (r#"{"type":"subscribe","id":7,"topic":"a","tags":[""]}"#, "7", "bad_tag"),
            (r#"{"type":"subscribe","id":7,"topic":"a","key":"k"}"#, "7", "bad_command"),
            (r#"{"type":"publish","id":7,"topic":"a","data":1,"key":""}"#, "7", "bad_key"),
            (r#"{"type":"publish","id":7,"topic":"a","data":1,"since":"x"}"#, "7", "bad_command"),
            (r#"{"type":"ack","id":7}"#, "7", "bad_message"),
            (r#"{"type":"ack","id":7,"message":"x"}"#, "7", "bad_message"),
            (r#"{"type":"ack","id":7,"message":"5f3a91c2:7","topic":"*"}"#, "7", "bad_topic"),
            (r#"{"type":"ack","id":7,"message":"5f3a91c2:7","user":""}"#, "7", "bad_user"),
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

    proptest::proptest! {
        #[test]
        fn nothing_panics(
            kind in "subscribe|publish|ack|ping|x", fields in r#"(,"(topic|since|tags|key|message|user|data|id)":("[a-z0-9:@/]{0,12}"|\[("a"|1)?\]|7|null)){0,4}"#,
            noise in r#"[{}\[\]",:a-z0-9]{0,40}"#,
        ) {
            for text in [format!("{{\"type\":\"{kind}\"{fields}}}"), noise] {
                for payload in [None, Some(&b"x"[..])] {
                    let _ = parse(&text, payload);
                }
            }
        }
    }
}
