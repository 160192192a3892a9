//! What is written to the application and read from it: JSON both ways, no I/O.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::Data;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use shard::{WebhookKind, WebhookRequest, WebhookResponse};

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
    ask.payload.bytes() + ask.topic.len() + ask.event.len() + users
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
    let kind = match ask.kind {
        WebhookKind::Join => "join",
        WebhookKind::Event => "event",
    };
    out.extend_from_slice(br#"{"kind":"#);
    string(out, kind);
    out.extend_from_slice(br#","topic":"#);
    string(out, &ask.topic);
    out.extend_from_slice(br#","event":"#);
    string(out, &ask.event);
    out.extend_from_slice(br#","payload":"#);
    payload(out, &ask.payload);
    out.extend_from_slice(br#","user":"#);
    match ask.users.first() {
        Some(user) => string(out, user),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(br#","users":["#);
    for (at, user) in ask.users.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        string(out, user);
    }
    out.extend_from_slice(br#"],"connection":"#);
    string(out, &ask.connection.to_string());
    out.push(b'}');
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
    #[error("{events} events were answered by {replies} replies")]
    Count { events: usize, replies: usize },
}

/// What an answer holds for each event.
pub(super) type Responses = Vec<Result<WebhookResponse, AnswerError>>;

/// The responses to so many events, in their order. A reply that can't be read concerns its own
/// event only.
pub(super) fn read(body: &[u8], events: usize) -> Result<Responses, AnswerError> {
    if body.trim_ascii().is_empty() {
        let ok = WebhookResponse { ok: true, response: NO_RESPONSE.into() };
        return Ok(vec![Ok(ok); events]);
    }
    let answer: Answer = object(body)?;
    let replies = answer.replies;
    if replies.len() != events {
        return Err(AnswerError::Count { events, replies: replies.len() });
    }
    let reply = |raw: &RawValue| object(raw.get().as_bytes()).map(response);
    Ok(replies.into_iter().map(reply).collect())
}

fn object<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, AnswerError> {
    protocol::object::read(body).map_err(|error| AnswerError::Json(error.to_string()))
}

fn response(reply: Reply) -> WebhookResponse {
    let response =
        match reply.response.map(|raw| (raw, protocol::data::from_json(raw, Some("json")))) {
            None => NO_RESPONSE.into(),
            Some((_, Ok(Data::Json(text)))) => text,
            // Unreachable with this encoding.
            Some((raw, _)) => raw.get().into(),
        };
    WebhookResponse { ok: reply.status == Status::Ok, response }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

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
        request.payload = Data::Json(r#"{"n":1.00}"#.into());
        let want = json!({
            "kind": "event", "topic": "room:\"1\"", "event": "say", "payload": {"n": 1.0},
            "user": "alice", "users": ["alice", "bob"], "connection": "00000009-0-7-3",
        });
        assert_eq!(written(&request), want);
        let raw = String::from_utf8(write([&request].into_iter())).unwrap();
        assert!(raw.contains(r#""payload":{"n":1.00},"#), "numbers keep their digits: {raw}");
    }

    #[test]
    fn payloads_that_are_no_json_become_json() {
        let mut request = ask(7);
        request.kind = WebhookKind::Join;
        request.users.clear();
        request.payload = Data::Text("a\n\"b\"".into());
        let event = written(&request);
        assert_eq!(event["kind"], "join");
        assert_eq!(event["payload"], "a\n\"b\"");
        assert_eq!((&event["user"], &event["users"]), (&Value::Null, &json!([])));
        request.payload = Data::Binary([0, 255].into());
        assert_eq!(written(&request)["payload"], json!({"data": "AP8=", "encoding": "base64"}));
    }

    #[test]
    fn events_stay_in_order() {
        let asks: Vec<WebhookRequest> = (0..3).map(ask).collect();
        let body: Value = serde_json::from_slice(&write(asks.iter())).unwrap();
        let names: Vec<_> = (0..3).map(|n| body["events"][n]["connection"].clone()).collect();
        assert_eq!(names, ["00000009-0-0-3", "00000009-0-1-3", "00000009-0-2-3"]);
    }

    fn responses(body: &str) -> Vec<Option<(bool, String)>> {
        let responses = read(body.as_bytes(), 1).unwrap().into_iter();
        responses.map(|v| v.ok().map(|v| (v.ok, v.response.into()))).collect()
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
            let oks: Vec<_> = responses.into_iter().map(|v| v.ok().map(|v| v.ok)).collect();
            assert_eq!(oks, [Some(true), None, Some(false)], "{reply}");
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
                let response = response.unwrap();
                prop_assert_eq!(response.ok, ok);
                prop_assert!(!response.response.contains(['\n', '\r']));
                let read: Value = serde_json::from_str(&response.response).unwrap();
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
                    let read = serde_json::from_str::<Value>(&response.response);
                    prop_assert!(read.is_ok(), "{}", response.response);
                }
            }
        }
    }
}
