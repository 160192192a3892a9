//! What is written to the application and read from it: JSON both ways, no I/O.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::name::check_name;
use model::{ConnectionId, Data, Name};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use shard::{Changes, HookRefusal, WebhookRequest, WebhookResponse, Whose};

/// The response of a reply that has none.
const NO_RESPONSE: &str = "{}";

/// What an event takes besides its payload and names, in bytes, roughly.
const EVENT_BYTES: usize = 128;

/// What an event takes in a request, in bytes, roughly.
pub(super) fn event_bytes(ask: &WebhookRequest) -> usize {
    EVENT_BYTES + held_bytes(ask)
}

/// What a client makes a request hold in memory, in bytes: its payload and the names in it.
pub(super) fn held_bytes(ask: &WebhookRequest) -> usize {
    let users: usize = ask.users.iter().map(|user| user.len()).sum();
    let tags: usize = ask.tags.iter().map(|tag| tag.len()).sum();
    let payload = ask.payload.as_ref().map_or(0, Data::bytes);
    let name = |name: &Option<Name>| name.as_ref().map_or(0, |name| name.len());
    payload + ask.topic.len() + name(&ask.event) + name(&ask.key) + tags + users
}

/// The body of the HTTP request that carries these requests, in their order.
pub(super) fn write<'a>(asks: impl Iterator<Item = &'a WebhookRequest>) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(br#"{"events":["#);
    for (at, ask) in asks.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        event(&mut out, ask);
    }
    out.extend_from_slice(b"]}");
    out
}

fn event(out: &mut Vec<u8>, ask: &WebhookRequest) {
    out.extend_from_slice(br#"{"kind":"#);
    string(out, ask.kind.name());
    out.extend_from_slice(br#","topic":"#);
    string(out, &ask.topic);
    if let Some(event) = &ask.event {
        out.extend_from_slice(br#","event":"#);
        string(out, event);
    }
    if let Some(data) = &ask.payload {
        out.extend_from_slice(br#","payload":"#);
        payload(out, data);
    }
    if !ask.tags.is_empty() {
        out.extend_from_slice(br#","tags":"#);
        strings(out, &ask.tags);
    }
    if let Some(key) = &ask.key {
        out.extend_from_slice(br#","key":"#);
        string(out, key);
    }
    who(out, &ask.users, ask.connection, ask.transport);
    out.push(b'}');
}

/// The body of the HTTP request that carries these events, which the application is told; `lost` is how
/// many were dropped since it last took some.
pub(super) fn told<'a>(events: impl Iterator<Item = &'a [u8]>, lost: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(br#"{"events":["#);
    for (at, event) in events.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(event);
    }
    out.push(b']');
    if lost > 0 {
        out.extend_from_slice(format!(r#","lost":{lost}"#).as_bytes());
    }
    out.push(b'}');
    out
}

fn begin(number: u64, at_ms: u64, kind: &str) -> Vec<u8> {
    format!(r#"{{"kind":"{kind}","id":"{number}","time":{at_ms}"#).into_bytes()
}

/// An event about a node that begins.
pub(super) fn started(number: u64, at_ms: u64, node: &str) -> Vec<u8> {
    let mut out = begin(number, at_ms, "started");
    out.extend_from_slice(br#","node":"#);
    string(&mut out, node);
    out.push(b'}');
    out
}

/// An event about a topic.
pub(super) fn about_topic(number: u64, at_ms: u64, kind: &str, topic: &str) -> Vec<u8> {
    let mut out = begin(number, at_ms, kind);
    out.extend_from_slice(br#","topic":"#);
    string(&mut out, topic);
    out.push(b'}');
    out
}

/// An event about a connection; `end` is why it has ended, and how many seconds it was there.
pub(super) fn about_connection(
    number: u64,
    at_ms: u64,
    kind: &str,
    whose: &Whose,
    topic: Option<&Name>,
    end: Option<(&str, u32)>,
) -> Vec<u8> {
    let mut out = begin(number, at_ms, kind);
    if let Some(topic) = topic {
        out.extend_from_slice(br#","topic":"#);
        string(&mut out, topic);
    }
    if let Some((reason, seconds)) = end {
        out.extend_from_slice(format!(r#","reason":"{reason}","seconds":{seconds}"#).as_bytes());
    }
    who(&mut out, &whose.users, whose.connection, whose.transport);
    out.push(b'}');
    out
}

/// Whose it is, and where from.
fn who(out: &mut Vec<u8>, users: &[Name], connection: ConnectionId, transport: &str) {
    out.extend_from_slice(br#","user":"#);
    match users.first() {
        Some(user) => string(out, user),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(br#","users":"#);
    strings(out, users);
    out.extend_from_slice(br#","connection":"#);
    string(out, &connection.to_string());
    out.extend_from_slice(br#","transport":"#);
    string(out, transport);
}

fn payload(out: &mut Vec<u8>, data: &Data) {
    match data {
        Data::Json(text) => out.extend_from_slice(text.as_bytes()),
        Data::Text(text) => string(out, text),
        Data::Binary(bytes) => {
            out.extend_from_slice(br#"{"data":""#);
            out.extend_from_slice(STANDARD.encode(bytes).as_bytes());
            out.extend_from_slice(br#"","encoding":"base64"}"#);
        }
    }
}

fn strings(out: &mut Vec<u8>, texts: &[Name]) {
    protocol::json::strings(texts, out);
}

fn string(out: &mut Vec<u8>, text: &str) {
    // Writing text to a Vec can't fail.
    let _ = serde_json::to_writer(out, text);
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    replies: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Reply<'a> {
    #[serde(default)]
    status: Status,
    // `default` is for where there is none: a null that is there is a response.
    #[serde(borrow, default, deserialize_with = "some")]
    response: Option<&'a RawValue>,
    #[serde(borrow)]
    meta: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "some")]
    payload: Option<&'a RawValue>,
    /// Of the payload.
    encoding: Option<String>,
    tags: Option<Vec<String>>,
    key: Option<String>,
}

/// What a response that is an error may say to clients that are no Phoenix clients.
#[derive(Deserialize)]
struct Reason<'a> {
    #[serde(borrow)]
    code: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    reason: Option<&'a RawValue>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    #[default]
    Ok,
    Error,
}

fn some<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

/// Why an answer, or one reply in it, can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AnswerError {
    #[error("{0}")]
    Json(String),
    #[error("{0}")]
    Value(String),
    #[error("{events} events were answered by {replies} replies")]
    Count { events: usize, replies: usize },
}

/// What an answer holds for each event.
pub(super) type Responses = Vec<Result<WebhookResponse, AnswerError>>;

/// The responses to so many events, in their order. A reply that can't be read concerns its own
/// event only.
pub(super) fn read(body: &[u8], events: usize) -> Result<Responses, AnswerError> {
    if body.trim_ascii().is_empty() {
        return Ok(vec![Ok(WebhookResponse::yes()); events]);
    }
    let answer: Answer = object(body)?;
    let replies = answer.replies;
    if replies.len() != events {
        return Err(AnswerError::Count { events, replies: replies.len() });
    }
    let reply = |raw: &RawValue| object(raw.get().as_bytes()).and_then(response);
    Ok(replies.into_iter().map(reply).collect())
}

fn object<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, AnswerError> {
    protocol::object::read(body).map_err(|error| AnswerError::Json(error.to_string()))
}

fn response(reply: Reply) -> Result<WebhookResponse, AnswerError> {
    let response = reply.response.map_or_else(|| NO_RESPONSE.into(), compact);
    if reply.status == Status::Error {
        return Ok(WebhookResponse::Error(Box::new(refusal(response))));
    }
    let meta = reply.meta.map(compact);
    if meta.as_ref().is_some_and(|meta| !meta.starts_with('{')) {
        return Err(AnswerError::Value("meta is no object".into()));
    }
    let data = |raw| protocol::data::from_json(raw, reply.encoding.as_deref());
    let payload = reply.payload.map(data).transpose().map_err(AnswerError::Value)?;
    let tags = reply.tags.map(model::tags::list).transpose().map_err(AnswerError::Value)?;
    if let Some(error) = reply.key.as_deref().and_then(|key| check_name(key).err()) {
        return Err(AnswerError::Value(format!("key: {error}")));
    }
    let changes = Changes { meta, payload, tags, key: reply.key.map(Name::from) };
    Ok(WebhookResponse::Ok { response, changes: Box::new(changes) })
}

/// The text of a JSON value in one line.
fn compact(raw: &RawValue) -> Box<str> {
    match protocol::data::from_json(raw, Some("json")) {
        Ok(Data::Json(text)) => text,
        // Unreachable with this encoding.
        _ => raw.get().into(),
    }
}

/// The code of a refusal for which the application has given none.
const REFUSED: &str = "forbidden";

/// A code of the application's, in bytes.
const CODE_BYTES_MAX: usize = 64;

/// A message of the application's, in bytes.
const MESSAGE_BYTES_MAX: usize = 1 << 10;

/// Why the application refuses: its `code`, and its `message` or `reason`, as far as it says so.
fn refusal(response: Box<str>) -> HookRefusal {
    let reason: Option<Reason> = object(response.as_bytes()).ok();
    let text = |raw: Option<&RawValue>| -> Option<String> { serde_json::from_str(raw?.get()).ok() };
    let code = reason.as_ref().and_then(|reason| text(reason.code));
    let code = code.filter(|code| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        (1..=CODE_BYTES_MAX).contains(&code.len()) && code.bytes().all(plain)
    });
    let message = reason.and_then(|reason| text(reason.message).or_else(|| text(reason.reason)));
    let message = message.filter(|message| message.len() <= MESSAGE_BYTES_MAX);
    HookRefusal {
        status: 403,
        code: code.as_deref().unwrap_or(REFUSED).into(),
        message: message.as_deref().unwrap_or("the application refuses it").into(),
        response,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use shard::WebhookKind;

    use super::super::tests::ask;
    use super::*;

    fn written(ask: &WebhookRequest) -> Value {
        let mut body: Value = serde_json::from_slice(&write([ask].into_iter())).unwrap();
        body["events"][0].take()
    }

    #[test]
    fn an_event_is_written_with_all_that_is_known_of_it() {
        let mut request = ask(7);
        request.topic = "room:\"1\"".into();
        request.payload = Some(Data::Json(r#"{"n":1.00}"#.into()));
        let want = json!({
            "kind": "message", "topic": "room:\"1\"", "event": "say", "payload": {"n": 1.0},
            "user": "alice", "users": ["alice", "bob"], "connection": "00000009-0-7-3",
            "transport": "phoenix",
        });
        assert_eq!(written(&request), want);
        let raw = String::from_utf8(write([&request].into_iter())).unwrap();
        assert!(raw.contains(r#""payload":{"n":1.00},"#), "numbers keep their digits: {raw}");
    }

    #[test]
    fn payloads_that_are_no_json_become_json() {
        let mut request = ask(7);
        request.kind = WebhookKind::Publish;
        request.users.clear();
        (request.tags, request.key) = (vec!["a".into(), "b\"".into()], Some("k".into()));
        request.payload = Some(Data::Text("a\n\"b\"".into()));
        let event = written(&request);
        assert_eq!(event["kind"], "publish");
        assert_eq!((&event["tags"], &event["key"]), (&json!(["a", "b\""]), &json!("k")));
        assert_eq!(event["payload"], "a\n\"b\"");
        assert_eq!((&event["user"], &event["users"]), (&Value::Null, &json!([])));
        request.payload = Some(Data::Binary([0, 255].into()));
        assert_eq!(written(&request)["payload"], json!({"data": "AP8=", "encoding": "base64"}));
        (request.kind, request.payload, request.event) = (WebhookKind::Subscribe, None, None);
        let event = written(&request);
        assert_eq!(event["kind"], "subscribe");
        assert!(event.get("payload").is_none() && event.get("event").is_none(), "{event}");
    }

    #[test]
    fn events_stay_in_order() {
        let asks: Vec<WebhookRequest> = (0..3).map(ask).collect();
        let body: Value = serde_json::from_slice(&write(asks.iter())).unwrap();
        let names: Vec<_> = (0..3).map(|n| body["events"][n]["connection"].clone()).collect();
        assert_eq!(names, ["00000009-0-0-3", "00000009-0-1-3", "00000009-0-2-3"]);
    }

    /// Whether a response is ok, and what it has.
    fn plain(response: WebhookResponse) -> (bool, String) {
        match response {
            WebhookResponse::Ok { response, .. } => (true, response.into()),
            WebhookResponse::Error(refusal) => (false, refusal.response.into()),
            WebhookResponse::Silent(reason) => panic!("{reason}"),
        }
    }

    fn responses(body: &str) -> Vec<Option<(bool, String)>> {
        let responses = read(body.as_bytes(), 1).unwrap().into_iter();
        responses.map(|v| v.ok().map(plain)).collect()
    }

    #[test]
    fn a_reply_may_leave_out_what_it_does_not_say() {
        for (body, ok, response) in [
            ("", true, "{}"),
            (" \r\n", true, "{}"),
            (r#"{"replies":[{}]}"#, true, "{}"),
            (r#"{"replies":[{"status":"error"}]}"#, false, "{}"),
            (r#"{"replies":[{"status":"ok","response":null}]}"#, true, "null"),
            (r#"{"replies":[{"response":"a \n\u00e9"}]}"#, true, r#""a \n\u00e9""#),
            ("{\"replies\":[{\"response\":{ \"a\" :\n[1, 2.50]}}]}", true, r#"{"a":[1,2.50]}"#),
            (r#" {"replies":[{"more":1}],"more":[]} "#, true, "{}"),
        ] {
            assert_eq!(responses(body), [Some((ok, response.to_string()))], "{body}");
        }
    }

    #[test]
    fn a_reply_that_can_not_be_read_leaves_the_others() {
        for reply in ["1", "null", "[]", r#"["ok",1]"#, r#"{"status":"later"}"#] {
            let body = format!(r#"{{"replies":[{{}},{reply},{{"status":"error"}}]}}"#);
            let responses = read(body.as_bytes(), 3).unwrap();
            let oks: Vec<_> = responses.into_iter().map(|v| v.ok().map(|v| plain(v).0)).collect();
            assert_eq!(oks, [Some(true), None, Some(false)], "{reply}");
        }
    }

    #[test]
    fn what_the_application_changes_is_read_or_an_error() {
        let changes = |reply: &str| {
            let body = format!(r#"{{"replies":[{reply}]}}"#);
            match read(body.as_bytes(), 1).unwrap().remove(0) {
                Ok(WebhookResponse::Ok { changes, .. }) => Some(*changes),
                other => other.err().map(|_| None).unwrap_or_else(|| panic!("{reply}")),
            }
        };
        let some = |reply| changes(reply).unwrap_or_else(|| panic!("{reply}"));
        assert_eq!(some("{}"), Changes::default());
        assert_eq!(some(r#"{"meta":{ "a": 1 }}"#).meta.as_deref(), Some(r#"{"a":1}"#));
        assert_eq!(some(r#"{"payload":"hi"}"#).payload, Some(Data::Text("hi".into())));
        assert_eq!(some(r#"{"payload":null}"#).payload, Some(Data::Json("null".into())));
        let bytes = some(r#"{"payload":"AP8=","encoding":"base64"}"#).payload;
        assert_eq!(bytes, Some(Data::Binary([0, 255].into())));
        let named = some(r#"{"tags":["a","a"],"key":"k"}"#);
        assert_eq!((named.tags, named.key), (Some(vec!["a".into()]), Some("k".into())));
        for wrong in [
            r#"{"meta":1}"#,
            r#"{"meta":"{}"}"#,
            r#"{"payload":1,"encoding":"base64"}"#,
            r#"{"payload":"?","encoding":"base64"}"#,
            r#"{"payload":1,"encoding":"gzip"}"#,
            r#"{"tags":[""]}"#,
            r#"{"tags":"a"}"#,
            r#"{"key":"a\nb"}"#,
            r#"{"key":""}"#,
        ] {
            assert_eq!(changes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_refusal_says_what_the_application_says_as_far_as_that_may_be_said() {
        let long = format!(r#"{{"message":"{}"}}"#, "x".repeat(MESSAGE_BYTES_MAX + 1));
        let none = (REFUSED, "the application refuses it");
        for (response, want) in [
            (r#"{"code":"muted_1","message":"be quiet"}"#, ("muted_1", "be quiet")),
            (r#"{"reason":"members only"}"#, (REFUSED, "members only")),
            (r#"{"code":"No Code\r\n","message":1}"#, none),
            (r#"{"code":""}"#, none),
            (r#""members only""#, none),
            ("{}", none),
            (long.as_str(), none),
        ] {
            let body = format!(r#"{{"replies":[{{"status":"error","response":{response}}}]}}"#);
            let read = read(body.as_bytes(), 1).unwrap().remove(0).unwrap();
            let WebhookResponse::Error(refusal) = read else { panic!("{read:?}") };
            assert_eq!((&*refusal.code, &*refusal.message), want, "{response}");
            assert_eq!((refusal.status, &*refusal.response), (403, response));
        }
    }

    #[test]
    fn an_answer_without_a_reply_for_each_event_is_an_error() {
        for body in [
            "ok",
            "{}",
            "[[{}]]",
            r#"{"replies":{}}"#,
            r#"{"replies":[]}"#,
            r#"{"replies":[{},{}]}"#,
            r#"{"replies":[{}]"#,
            r#"{"replies":[{}]}{}"#,
        ] {
            assert!(read(body.as_bytes(), 1).is_err(), "{body}");
        }
        assert!(read(b"{\"replies\":[{\"response\":\"\xff\"}]}", 1).is_err());
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn replies_are_read_as_they_were_written(
            replies in prop::collection::vec((any::<bool>(), any_value()), 1..6),
        ) {
            let written: Vec<Value> = replies
                .iter()
                .map(|(ok, value)| {
                    json!({"status": if *ok { "ok" } else { "error" }, "response": value})
                })
                .collect();
            let body = serde_json::to_vec_pretty(&json!({"replies": written})).unwrap();
            let responses = read(&body, replies.len()).unwrap();
            prop_assert_eq!(responses.len(), replies.len());
            for (response, (ok, value)) in responses.into_iter().zip(replies) {
                let (is_ok, response) = plain(response.unwrap());
                prop_assert_eq!(is_ok, ok);
                prop_assert!(!response.contains(['\n', '\r']));
                let read: Value = serde_json::from_str(&response).unwrap();
                prop_assert_eq!(read, value);
            }
        }

        #[test]
        fn whatever_comes_is_an_error_or_whole(body in any::<Vec<u8>>(), events in 0usize..5) {
            if let Ok(responses) = read(&body, events) {
                prop_assert_eq!(responses.len(), events);
            }
        }

        #[test]
        fn what_looks_like_an_answer_is_an_error_or_whole(
            body in r#"\{"replies":\[(\{("status":"(ok|error|no)"),?("response":[0-9{}\[\]"nul]{0,6})?\},?){0,3}\]\}?"#,
            events in 0usize..4,
        ) {
            if let Ok(responses) = read(body.as_bytes(), events) {
                prop_assert_eq!(responses.len(), events);
                for response in responses.into_iter().flatten() {
                    let (_, response) = plain(response);
                    let read = serde_json::from_str::<Value>(&response);
                    prop_assert!(read.is_ok(), "{response}");
                }
            }
        }
    }
}
