//! The JSON commands of a WebSocket client, and the replies to them.
//!
//! ```json
//! {"type":"subscribe","id":1,"topic":"news"}
//! {"type":"unsubscribe","id":2,"topic":"news"}
//! {"type":"publish","id":3,"topic":"chat/1","data":{"text":"hi"}}
//! {"type":"ack","id":4,"topic":"orders","message":"5f3a91c2:1042"}
//! {"type":"login","id":5,"user":"alice"}
//! {"type":"logout","id":6,"user":"alice"}
//! {"type":"presence","id":7,"topic":"room:1"}
//! {"type":"presence_update","id":8,"topic":"room:1","meta":{"typing":true}}
//! {"type":"history","id":9,"topic":"news","limit":50,"since":"5f3a91c2:1042","reverse":true}
//! {"type":"connect","id":10,"token":"eyJ…"}
//! {"type":"refresh","id":11,"token":"eyJ…"}
//! {"type":"ping","id":12}
//! ```
//! `subscribe` may have `"since"` (the id of the last message that the client saw of the topic, `"start"` for all
//! history, or `"last:50"` for the newest 50), `"tags"` (a message must have one of them), and `"meta"` (an object
//! that the client's users show in the topic's presence). `publish` may have `"tags"` and `"key"`. `subscribe` and
//! `unsubscribe` may have `"filter":"mqtt"`: then + and # in the topic are wildcards. `subscribe`, `presence` and
//! `history` may have `"token"`, a token for that topic. `ack` without `"topic"` is for the user's own topic; on a
//! connection with several users it needs `"user"`.
//!
//! Each reply has the client's own `id` (a number or a string):
//! `{"type":"reply","id":1,"ok":{…}}` or `{"type":"reply","id":1,"error":{"code":…,"message":…}}`.
//! A binary frame is the same object without `data`, a newline, and the payload as raw bytes.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::history::PageFields;
use crate::protocol::ReplyError;
use crate::request::PageRequest;
use crate::request::{Acknowledgement, Secret, Subscribe, TokenPurpose};
use crate::{data, history, json, object, typo, wildcards};
use model::event::check_event;
use model::name::{check_name, check_topic, of_filter};
use model::{Attributes, CodedError, Data, ErrorCode, Name, Publication, SinceError, tags};

/// Bytes of a command's `id` at most, as the client wrote it.
pub const ID_BYTES_MAX: usize = 64;

/// A client's command, with the `id` by which the client recognizes the reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The client's own id, as JSON text; `null` without one.
    pub id: Box<str>,
    /// What to do.
    pub kind: CommandKind,
}

/// The commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandKind {
    /// Enter a topic.
    Subscribe(Subscribe, TopicToken),
    /// Leave a topic.
    Unsubscribe(Name),
    /// Publish, if the configuration allows it for clients.
    Publish(Publication),
    /// Acknowledge messages.
    Acknowledge(Acknowledgement),
    /// Add this user to the connection.
    Login(Name),
    /// Remove this user from the connection.
    Logout(Name),
    /// Get a topic's presence.
    Presence(Name, TopicToken),
    /// Replace the client's entry in a topic's presence: the text of a JSON value.
    UpdatePresence(Name, Box<str>),
    /// Read a page of a topic's history.
    History(PageRequest, TopicToken),
    /// Authenticate with a token, or refresh it.
    Authenticate(TokenPurpose, Secret),
    /// Get a reply that shows that the server is alive.
    Ping,
}

/// An unverified token for the topic of a command.
pub type TopicToken = Option<Box<str>>;

/// A command that can't be executed: the client gets a reply, and the connection stays open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct CommandError {
    /// The client's own id, as JSON text; `null` if it has none or it is invalid.
    pub id: Box<str>,
    /// What is invalid, and what would be valid.
    pub error: CodedError,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
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
    #[serde(borrow)]
    meta: Option<&'a RawValue>,
    #[serde(borrow)]
    limit: Option<&'a RawValue>,
    #[serde(borrow)]
    reverse: Option<&'a RawValue>,
    #[serde(borrow)]
    token: Option<Text<'a>>,
    #[serde(borrow)]
    filter: Option<Text<'a>>,
}

/// All fields of [`Body`].
const FIELDS: [&str; 16] = [
    "type", "id", "topic", "event", "data", "encoding", "since", "tags", "key", "message", "user",
    "meta", "limit", "reverse", "token", "filter",
];

/// Letters of an unknown field's name in an error, at most.
const NAME_SHOWN_MAX: usize = 40;

/// The fields of an object that is not a valid command. The last of several with one name counts.
#[derive(Default, Deserialize)]
#[serde(transparent)]
struct Fields<'a>(#[serde(borrow)] BTreeMap<Cow<'a, str>, &'a RawValue>);

impl Body<'_> {
    /// Returns a field that the command doesn't take, if it has one. All commands take a topic.
    fn needless(&self) -> Option<&'static str> {
        let kind = &*self.kind;
        let (publish, subscribe, ack) = (kind == "publish", kind == "subscribe", kind == "ack");
        let (login, history) = (matches!(kind, "login" | "logout"), kind == "history");
        let (update, token) = (kind == "presence_update", matches!(kind, "connect" | "refresh"));
        [
            ("data", self.data.is_some(), publish),
            ("event", self.event.is_some(), publish),
            ("encoding", self.encoding.is_some(), publish),
            ("key", self.key.is_some(), publish),
            ("tags", self.tags.is_some(), publish || subscribe),
            ("since", self.since.is_some(), subscribe || history),
            ("message", self.message.is_some(), ack),
            ("user", self.user.is_some(), ack || login || history),
            ("meta", self.meta.is_some(), subscribe || update),
            ("limit", self.limit.is_some(), history),
            ("reverse", self.reverse.is_some(), history),
            ("filter", self.filter.is_some(), subscribe || kind == "unsubscribe"),
            ("token", self.token.is_some(), token || subscribe || history || kind == "presence"),
        ]
        .into_iter()
        .find_map(|(field, there, used)| (there && !used).then_some(field))
    }
}

/// Text that is borrowed if it has no escapes, also inside an `Option` or a list.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Parses a command from a text frame, or from a binary frame's text and `payload`.
pub fn parse(text: &str, payload: Option<&[u8]>) -> Result<Command, CommandError> {
    let body: Body<'_> = object::read(text.as_bytes()).map_err(|error| unread(text, &error))?;
    let id = id(body.id)?;
    match kind(&body, payload) {
        Ok(kind) => Ok(Command { id, kind }),
        Err(error) => Err(CommandError { id, error }),
    }
}

/// The error of a text that is not a command, with its id if it is an object that has one.
fn unread(text: &str, error: &serde_json::Error) -> CommandError {
    let fields: Fields<'_> = object::read(text.as_bytes()).unwrap_or_default();
    let id = match id(fields.0.get("id").copied()) {
        Ok(id) => id,
        Err(error) => return error,
    };
    let unknown = fields.0.keys().find(|name| !FIELDS.contains(&&***name));
    let Some(name) = unknown else {
        let message = format!(
            "this is not a command: {error}; send for example \
             {{\"type\":\"subscribe\",\"id\":1,\"topic\":\"news\"}}"
        );
        return CommandError { id, error: CodedError::new(ErrorCode::BadJson, message) };
    };
    let name: String = name.chars().take(NAME_SHOWN_MAX).collect();
    let plain = typo::plain(&name);
    let known = FIELDS.iter().find(|field| {
        plain == **field || typo::is_one_edit_away(plain.as_bytes(), field.as_bytes())
    });
    let message = match known {
        Some(known) => format!("there is no field {name}: did you mean {known}?"),
        None => {
            format!("there is no field {name}: the fields of commands are {}", FIELDS.join(", "))
        }
    };
    CommandError { id, error: CodedError::new(ErrorCode::BadCommand, message) }
}

fn id(raw: Option<&RawValue>) -> Result<Box<str>, CommandError> {
    let text = raw.map_or("null", RawValue::get);
    let scalar = text.starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9' | 'n'));
    if text.len() > ID_BYTES_MAX || !scalar {
        let message = format!("an id must be a number or a string of at most {ID_BYTES_MAX} bytes");
        let error = CodedError::new(ErrorCode::BadId, message);
        return Err(CommandError { id: "null".into(), error });
    }
    Ok(text.into())
}

fn text<'a>(field: &'a Option<Text<'_>>) -> Option<&'a str> {
    field.as_ref().map(|text| &*text.0)
}

fn kind(body: &Body<'_>, payload: Option<&[u8]>) -> Result<CommandKind, CodedError> {
    if let Some(field) = body.needless() {
        return Err(CodedError::new(
            ErrorCode::BadCommand,
            format!("{} does not accept {field}", body.kind),
        ));
    }
    Ok(match body.kind.as_ref() {
        "subscribe" => CommandKind::Subscribe(subscribe(body)?, topic_token(body)),
        "unsubscribe" => CommandKind::Unsubscribe(topic_or_filter(body)?),
        "publish" => CommandKind::Publish(publication(body, payload)?),
        "ack" => CommandKind::Acknowledge(acknowledgement(body)?),
        "login" => CommandKind::Login(user(body)?),
        "logout" => CommandKind::Logout(user(body)?),
        "presence" => CommandKind::Presence(topic(body)?, topic_token(body)),
        "presence_update" => {
            let meta = body.meta.ok_or_else(|| {
                let message =
                    "presence_update requires meta, the object that replaces the previous one";
                CodedError::new(ErrorCode::BadMeta, message)
            })?;
            CommandKind::UpdatePresence(topic(body)?, meta.get().into())
        }
        "history" => CommandKind::History(page(body)?, topic_token(body)),
        "connect" => CommandKind::Authenticate(TokenPurpose::Connect, Secret(token(body)?)),
        "refresh" => CommandKind::Authenticate(TokenPurpose::Refresh, Secret(token(body)?)),
        "ping" => CommandKind::Ping,
        other => {
            let message = format!(
                "there is no command {other:?}: the commands are subscribe, unsubscribe, publish, \
                 ack, login, logout, presence, presence_update, history, connect, refresh and ping"
            );
            return Err(CodedError::new(ErrorCode::BadCommand, message));
        }
    })
}

fn topic(body: &Body<'_>) -> Result<Name, CodedError> {
    let topic = text(&body.topic).unwrap_or("");
    check_topic(topic).map_err(|error| CodedError::new(ErrorCode::BadTopic, error))?;
    Ok(topic.into())
}

/// Parses the topic, or with `filter` a topic filter.
fn topic_or_filter(body: &Body<'_>) -> Result<Name, CodedError> {
    let Some(filter) = text(&body.filter) else {
        return topic(body);
    };
    wildcards::check_kind(filter)?;
    wildcards::subscription_name(text(&body.topic).unwrap_or(""))
}

fn topic_token(body: &Body<'_>) -> TopicToken {
    text(&body.token).map(Box::from)
}

fn token(body: &Body<'_>) -> Result<Box<str>, CodedError> {
    topic_token(body).ok_or_else(|| {
        let message = format!("{} requires token, a JSON Web Token", body.kind);
        CodedError::new(ErrorCode::BadToken, message)
    })
}

fn tags(body: &Body<'_>) -> Result<Vec<Name>, CodedError> {
    let tags = body.tags.iter().flatten().map(|tag| &*tag.0);
    tags::list(tags).map_err(|error| CodedError::new(ErrorCode::BadTag, error))
}

fn subscribe(body: &Body<'_>) -> Result<Subscribe, CodedError> {
    let since = text(&body.since).map(str::parse).transpose();
    let since = since
        .map_err(|error: SinceError| CodedError::new(ErrorCode::BadSince, error.to_string()))?;
    let meta = body.meta.map(|meta| meta.get().into());
    let (topic, tags) = (topic_or_filter(body)?, tags(body)?);
    if of_filter(&topic).is_some() && (!tags.is_empty() || meta.is_some()) {
        let message = "tags and meta are only for topics: a filter with a wildcard can't have them";
        return Err(CodedError::new(ErrorCode::BadFilter, message));
    }
    wildcards::check_since(&topic, since.as_ref())?;
    Ok(Subscribe { topic, since, tags, meta })
}

fn publication(body: &Body<'_>, payload: Option<&[u8]>) -> Result<Publication, CodedError> {
    let event = text(&body.event).filter(|event| *event != "message");
    event.map_or(Ok(()), check_event)?;
    let event = event.map(Name::from);
    let key = text(&body.key);
    let checked = key.map_or(Ok(()), check_name);
    checked.map_err(|error| CodedError::new(ErrorCode::BadKey, error))?;
    let attributes = Attributes::of(tags(body)?, key.map(Name::from));
    let (topic, data) = (topic(body)?, data(body, payload)?);
    Ok(Publication { event, attributes, ..Publication::new(topic, data) })
}

/// Parses the user of `login` and `logout`.
fn user(body: &Body<'_>) -> Result<Name, CodedError> {
    let Some(user) = text(&body.user) else {
        return Err(CodedError::new(
            ErrorCode::BadUser,
            format!("the user is missing: {} requires user", body.kind),
        ));
    };
    check_name(user).map_err(|error| CodedError::new(ErrorCode::BadUser, error))?;
    Ok(user.into())
}

fn page(body: &Body<'_>) -> Result<PageRequest, CodedError> {
    let (topic, user, since) = (text(&body.topic), text(&body.user), text(&body.since));
    let limit = body.limit.map(|limit| history::limit(limit.get())).transpose()?;
    let reverse = body.reverse.map(|reverse| history::reverse(reverse.get())).transpose()?;
    let reverse = reverse.unwrap_or(false);
    PageRequest::read(PageFields { topic, user, since, limit, reverse })
}

fn acknowledgement(body: &Body<'_>) -> Result<Acknowledgement, CodedError> {
    let (user, topic, message) = (text(&body.user), text(&body.topic), text(&body.message));
    Acknowledgement::read(user, topic, message)
}

fn data(body: &Body<'_>, payload: Option<&[u8]>) -> Result<Data, CodedError> {
    match (payload, body.data) {
        (Some(bytes), None) => Ok(Data::Binary(bytes.into())),
        (None, Some(raw)) => data::from_json(raw, text(&body.encoding))
            .map_err(|error| CodedError::new(ErrorCode::BadData, error)),
        (Some(_), Some(_)) => {
            let message =
                "in a binary frame the data is the bytes after the newline: remove the field data";
            Err(CodedError::new(ErrorCode::BadData, message))
        }
        (None, None) => {
            Err(CodedError::new(ErrorCode::BadData, "publish requires data, any JSON value"))
        }
    }
}

/// Appends the reply to a command that succeeded; `ok` is a JSON object.
pub fn reply_ok(id: &str, ok: &str, out: &mut Vec<u8>) {
    reply(id, out);
    out.extend_from_slice(b",\"ok\":");
    out.extend_from_slice(ok.as_bytes());
    out.push(b'}');
}

/// Appends the reply to a command that failed.
pub fn reply_error(id: &str, error: ReplyError<'_>, out: &mut Vec<u8>) {
    let ReplyError { code, message } = error;
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

#[cfg(test)]
mod tests {
    use super::*;
    use model::Since;

    #[test]
    fn commands_are_read() {
        let command = |text| parse(text, None).unwrap();
        assert_eq!(
            command(r#"{"type":"subscribe","id":1,"topic":"news"}"#),
            Command {
                id: "1".into(),
                kind: CommandKind::Subscribe(
                    Subscribe { topic: "news".into(), ..Subscribe::default() },
                    None
                )
            }
        );
        assert_eq!(
            command(
                r#"{"topic":"a","type":"publish","event":"e","data":"AP8=","encoding":"base64","id":"x"}"#
            ),
            Command {
                id: "\"x\"".into(),
                kind: CommandKind::Publish(Publication {
                    event: Some("e".into()),
                    ..Publication::new("a", Data::Binary([0, 255].into()))
                })
            }
        );
        assert_eq!(command(r#"{"type":"ping"}"#).id.as_ref(), "null");
        let login = command(r#"{"type":"login","id":1,"user":"@al"}"#).kind;
        assert_eq!(login, CommandKind::Login("@al".into()));
        let logout = command(r#"{"type":"logout","id":1,"user":"al"}"#).kind;
        assert_eq!(logout, CommandKind::Logout("al".into()));
        let binary = parse(r#"{"type":"publish","topic":"a"}"#, Some(b"\0\x01")).unwrap();
        let CommandKind::Publish(publication) = binary.kind else { panic!() };
        assert_eq!(publication.data, Data::Binary([0, 1].into()));
    }

    #[test]
    fn commands_with_optional_fields_are_read() {
        let kind = |text: &str| parse(text, None).unwrap().kind;
        let subscribe = kind(
            r#"{"type":"subscribe","topic":"news","since":"5f3a91c2:7\/9","tags":["red","red"]}"#,
        );
        let since = "5f3a91c2:7/9".parse().ok();
        let meta = None;
        let want = Subscribe { topic: "news".into(), since, tags: vec!["red".into()], meta };
        assert_eq!(subscribe, CommandKind::Subscribe(want, None));
        for (text, since) in [("start", Since::Start), ("last:50", Since::Last(50))] {
            let command = format!(r#"{{"type":"subscribe","topic":"news","since":"{text}"}}"#);
            let want =
                Subscribe { topic: "news".into(), since: Some(since), ..Subscribe::default() };
            assert_eq!(kind(&command), CommandKind::Subscribe(want, None));
        }
        let publish = r#"{"type":"publish","topic":"a","tags":["red"],"key":"price"}"#;
        let CommandKind::Publish(publication) = parse(publish, Some(b"x")).unwrap().kind else {
            panic!()
        };
        assert_eq!(
            (publication.tags(), publication.key().unwrap().as_str()),
            (&["red".into()][..], "price")
        );

        let meta = r#"{ "n": 1.50 }"#;
        let with = |kind: &str| format!(r#"{{"type":"{kind}","topic":"a","meta":{meta}}}"#);
        let want = Subscribe { topic: "a".into(), meta: Some(meta.into()), ..Subscribe::default() };
        assert_eq!(
            parse(&with("subscribe"), None).unwrap().kind,
            CommandKind::Subscribe(want, None)
        );
        let want = CommandKind::UpdatePresence("a".into(), meta.into());
        assert_eq!(parse(&with("presence_update"), None).unwrap().kind, want);
        assert_eq!(
            kind(r#"{"type":"presence","topic":"a"}"#),
            CommandKind::Presence("a".into(), None)
        );
        let page = kind(
            r#"{"type":"history","id":1,"topic":"news","limit":7,"since":"last:9","reverse":false}"#,
        );
        let since = Some(Since::Last(9));
        let want = PageRequest { topic: "news".into(), since, reverse: false, limit: 7 };
        assert_eq!(page, CommandKind::History(want, None));
        let inbox = kind(r#"{"type":"history","user":"al","reverse":true}"#);
        let want = PageRequest { topic: "@al".into(), since: None, reverse: true, limit: 100 };
        assert_eq!(inbox, CommandKind::History(want, None));

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
                Acknowledgement { user: user.map(Name::from), topic: topic.map(Name::from), id };
            assert_eq!(parse(&text, None).unwrap().kind, CommandKind::Acknowledge(want));
        }
    }

    #[test]
    fn each_error_has_a_code_and_the_id_of_its_command() {
        for (text, id, code) in [
            ("", "null", "bad_json"),
            ("[1]", "null", "bad_json"),
            (
                r#"["ping",1,null,null,null,null,null,null,null,null,null,null,null,null]"#,
                "null",
                "bad_json",
            ),
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
            (r#"{"type":"subscribe","id":7,"topic":"a","x":1}"#, "7", "bad_command"),
            (r#"{"x":1,"type":"subscribe","topic":"a","id":"y"}"#, "\"y\"", "bad_command"),
            (r#"{"type":"subscribe","id":7,"topic":5}"#, "7", "bad_json"),
            (r#"{"id":7,"topic":"a"}"#, "7", "bad_json"),
            (r#"{"type":"ping","id":7,"type":"ping"}"#, "7", "bad_json"),
            (r#"{"type":"ping","id":[],"x":1}"#, "null", "bad_id"),
            (r#"{"type":"ping","id":7"#, "null", "bad_json"),
            (r#"{"type":"subscribe","id":7,"topic":"a","since":"x"}"#, "7", "bad_since"),
            (r#"{"type":"subscribe","id":7,"topic":"a","since":"last:1001"}"#, "7", "bad_since"),
            (r#"{"type":"subscribe","id":7,"topic":"a","tags":[""]}"#, "7", "bad_tag"),
            (r#"{"type":"subscribe","id":7,"topic":"a","key":"k"}"#, "7", "bad_command"),
            (r#"{"type":"publish","id":7,"topic":"a","data":1,"key":""}"#, "7", "bad_key"),
            (r#"{"type":"publish","id":7,"topic":"a","data":1,"since":"x"}"#, "7", "bad_command"),
            (r#"{"type":"ack","id":7}"#, "7", "bad_id"),
            (r#"{"type":"ack","id":7,"message":"x"}"#, "7", "bad_id"),
            (r#"{"type":"ack","id":7,"message":"5f3a91c2:7","topic":"*"}"#, "7", "bad_topic"),
            (r#"{"type":"ack","id":7,"message":"5f3a91c2:7","user":""}"#, "7", "bad_user"),
            (r#"{"type":"history","id":7}"#, "7", "no_topic"),
            (r#"{"type":"history","id":7,"topic":""}"#, "7", "bad_topic"),
            (r#"{"type":"history","id":7,"topic":"a","limit":0}"#, "7", "bad_limit"),
            (r#"{"type":"history","id":7,"topic":"a","limit":"9"}"#, "7", "bad_limit"),
            (r#"{"type":"history","id":7,"topic":"a","limit":1.5}"#, "7", "bad_limit"),
            (r#"{"type":"history","id":7,"topic":"a","reverse":1}"#, "7", "bad_reverse"),
            (r#"{"type":"history","id":7,"topic":"a","since":"x"}"#, "7", "bad_since"),
            (r#"{"type":"history","id":7,"topic":"a","tags":[]}"#, "7", "bad_command"),
            (r#"{"type":"subscribe","id":7,"topic":"a","limit":1}"#, "7", "bad_command"),
            (r#"{"type":"login","id":7}"#, "7", "bad_user"),
            (r#"{"type":"logout","id":7,"user":""}"#, "7", "bad_user"),
            (r#"{"type":"login","id":7,"user":"a\u0000"}"#, "7", "bad_user"),
            (r#"{"type":"login","id":7,"user":"a","tags":[]}"#, "7", "bad_command"),
            (r#"{"type":"ping","id":7,"user":"a"}"#, "7", "bad_command"),
            (r#"{"type":"presence","id":7}"#, "7", "bad_topic"),
            (r#"{"type":"presence","id":7,"topic":"a","meta":{}}"#, "7", "bad_command"),
            (r#"{"type":"presence_update","id":7,"topic":"a"}"#, "7", "bad_meta"),
            (r#"{"type":"presence_update","id":7,"meta":{}}"#, "7", "bad_topic"),
            (r#"{"type":"publish","id":7,"topic":"a","data":1,"meta":{}}"#, "7", "bad_command"),
        ] {
            let CommandError { id: of, error } = parse(text, None).unwrap_err();
            assert_eq!((&*of, error.code.text()), (id, code), "{text}: {error}");
        }
    }

    #[test]
    fn a_field_that_is_none_is_named_with_the_one_that_was_meant() {
        for (name, known) in [
            ("topics", "topic"),
            ("Topic", "topic"),
            ("tpoic", "topic"),
            ("tag", "tags"),
            ("mesage", "message"),
            ("limits", "limit"),
            ("users", "user"),
        ] {
            let text = format!(r#"{{"type":"subscribe","id":11,"{name}":["a"]}}"#);
            let CommandError { id, error } = parse(&text, None).unwrap_err();
            let message = format!("there is no field {name}: did you mean {known}?");
            assert_eq!((&*id, &*error.message), ("11", &*message));
        }
        let text = format!(r#"{{"type":"ping","id":11,"{}":1}}"#, "é".repeat(1_000));
        let error = parse(&text, None).unwrap_err().error;
        assert!(error.message.contains("the fields of commands are type, id, topic"), "{error}");
        assert!(error.message.len() < 300, "{error}");
        // The constant and the struct have the same fields.
        let all: Vec<String> = FIELDS.iter().map(|field| format!(r#""{field}":null"#)).collect();
        let error = serde_json::from_str::<Body<'_>>(&format!("{{{}}}", all.join(","))).err();
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("expected a string"), "type alone can't be null: {error}");
        let error = serde_json::from_str::<Body<'_>>(r#"{"type":"x","":1}"#).err().unwrap();
        for field in error.to_string().split('`').skip(3).step_by(2) {
            assert!(FIELDS.contains(&field), "{field}");
        }
    }

    #[test]
    fn replies_are_json() {
        let mut out = Vec::new();
        let error = ReplyError::new(ErrorCode::BadData, "a \"b\"");
        reply_error("\"x\"", error, &mut out);
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value["error"]["message"], "a \"b\"");
        let mut out = Vec::new();
        reply_ok("3", "{}", &mut out);
        assert_eq!(out, br#"{"type":"reply","id":3,"ok":{}}"#);
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics(
            kind in "subscribe|publish|ack|login|logout|presence|presence_update|history|ping|x",
            fields in r#"(,"(topic|since|tags|key|message|user|data|id|meta|limit|reverse)":("[a-z0-9:@/]{0,12}"|\[("a"|1)?\]|7|null)){0,4}"#,
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
