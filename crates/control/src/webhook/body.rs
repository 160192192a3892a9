//! What is written to the application and read from it: JSON both ways, no I/O.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use shard::{Ask, AskKind, Verdict};
use wire::Data;

/// The response of a reply that has none.
const NO_RESPONSE: &str = "{}";

/// What an event takes besides its payload and names, in bytes, roughly.
const EVENT_BYTES: usize = 128;

/// What an event takes in a request, in bytes, roughly.
pub(super) fn event_bytes(ask: &Ask) -> usize {
    EVENT_BYTES + held_bytes(ask)
}

/// What a client made a question hold in memory, in bytes: its payload and the names in it.
pub(super) fn held_bytes(ask: &Ask) -> usize {
    let users: usize = ask.users.iter().map(|user| user.len()).sum();
    ask.payload.bytes() + ask.topic.len() + ask.event.len() + users
}

/// The body of a request that asks these questions, in their order.
pub(super) fn write<'a>(asks: impl Iterator<Item = &'a Ask>) -> Vec<u8> {
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

fn event(out: &mut Vec<u8>, ask: &Ask) {
    let kind = match ask.kind {
        AskKind::Join => "join",
        AskKind::Event => "event",
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

/// The replies to so many events, in their order; or what is wrong with the answer. A reply that
/// is not understood concerns its own event only.
pub(super) fn read(body: &[u8], events: usize) -> Result<Vec<Result<Verdict, String>>, String> {
    if body.trim_ascii().is_empty() {
        let ok = Verdict { ok: true, response: NO_RESPONSE.into() };
        return Ok(vec![Ok(ok); events]);
    }
    let answer: Answer = object(body)?;
    let replies = answer.replies;
    if replies.len() != events {
        return Err(format!("{events} events were answered by {} replies", replies.len()));
    }
    let reply = |raw: &RawValue| object(raw.get().as_bytes()).map(verdict);
    Ok(replies.into_iter().map(reply).collect())
}

fn object<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, String> {
    wire::object::read(body).map_err(|error| error.to_string())
}

fn verdict(reply: Reply) -> Verdict {
    let response = match reply.response.map(|raw| (raw, Data::from_json(raw, Some("json")))) {
        None => NO_RESPONSE.into(),
        Some((_, Ok(Data::Json(text)))) => text,
        // Unreachable with this encoding.
        Some((raw, _)) => raw.get().into(),
    };
    Verdict { ok: reply.status == Status::Ok, response }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::tests::ask;
    use super::*;

    fn written(ask: &Ask) -> Value {
        let mut body: Value = serde_json::from_slice(&write([ask].into_iter())).unwrap();
        body["events"][0].take()
    }

    #[test]
    fn an_event_is_written_with_all_that_is_known_of_it() {
        let mut question = ask(7);
        question.topic = "room:\"1\"".into();
        question.payload = Data::Json(r#"{"n":1.00}"#.into());
        let want = json!({
            "kind": "event", "topic": "room:\"1\"", "event": "say", "payload": {"n": 1.0},
            "user": "alice", "users": ["alice", "bob"], "connection": "0-7-3",
        });
        assert_eq!(written(&question), want);
        let raw = String::from_utf8(write([&question].into_iter())).unwrap();
        assert!(raw.contains(r#""payload":{"n":1.00},"#), "numbers keep their digits: {raw}");
    }

    #[test]
    fn payloads_that_are_no_json_become_json() {
        let mut question = ask(7);
        question.kind = AskKind::Join;
        question.users.clear();
        question.payload = Data::Text("a\n\"b\"".into());
        let event = written(&question);
        assert_eq!(event["kind"], "join");
        assert_eq!(event["payload"], "a\n\"b\"");
        assert_eq!((&event["user"], &event["users"]), (&Value::Null, &json!([])));
        question.payload = Data::Binary([0, 255].into());
        assert_eq!(written(&question)["payload"], json!({"data": "AP8=", "encoding": "base64"}));
    }

    #[test]
    fn events_keep_their_order() {
        let asks: Vec<Ask> = (0..3).map(ask).collect();
        let body: Value = serde_json::from_slice(&write(asks.iter())).unwrap();
        let names: Vec<_> = (0..3).map(|n| body["events"][n]["connection"].clone()).collect();
        assert_eq!(names, ["0-0-3", "0-1-3", "0-2-3"]);
    }

    fn verdicts(body: &str) -> Vec<Option<(bool, String)>> {
        let verdicts = read(body.as_bytes(), 1).unwrap().into_iter();
        verdicts.map(|v| v.ok().map(|v| (v.ok, v.response.into()))).collect()
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
            assert_eq!(verdicts(body), [Some((ok, response.to_string()))], "{body}");
        }
    }

    #[test]
    fn one_reply_that_is_wrong_leaves_the_others() {
        for wrong in ["1", "null", "[]", r#"["ok",1]"#, r#"{"status":"later"}"#] {
            let body = format!(r#"{{"replies":[{{}},{wrong},{{"status":"error"}}]}}"#);
            let told: Vec<_> = read(body.as_bytes(), 3).unwrap();
            let told: Vec<_> = told.into_iter().map(|v| v.ok().map(|v| v.ok)).collect();
            assert_eq!(told, [Some(true), None, Some(false)], "{wrong}");
        }
    }

    #[test]
    fn an_answer_that_can_not_be_told_apart_is_wrong_as_a_whole() {
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
            let verdicts = read(&body, replies.len()).unwrap();
            prop_assert_eq!(verdicts.len(), replies.len());
            for (verdict, (ok, value)) in verdicts.into_iter().zip(replies) {
                let verdict = verdict.unwrap();
                prop_assert_eq!(verdict.ok, ok);
                prop_assert!(!verdict.response.contains(['\n', '\r']));
                let read: Value = serde_json::from_str(&verdict.response).unwrap();
                prop_assert_eq!(read, value);
            }
        }

        #[test]
        fn whatever_comes_is_refused_or_whole(body in any::<Vec<u8>>(), events in 0usize..5) {
            if let Ok(verdicts) = read(&body, events) {
                prop_assert_eq!(verdicts.len(), events);
            }
        }

        #[test]
        fn what_looks_like_an_answer_is_refused_or_whole(
            body in r#"\{"replies":\[(\{("status":"(ok|error|no)"),?("response":[0-9{}\[\]"nul]{0,6})?\},?){0,3}\]\}?"#,
            events in 0usize..4,
        ) {
            if let Ok(verdicts) = read(body.as_bytes(), events) {
                prop_assert_eq!(verdicts.len(), events);
                for verdict in verdicts.into_iter().flatten() {
                    let read = serde_json::from_str::<Value>(&verdict.response);
                    prop_assert!(read.is_ok(), "{}", verdict.response);
                }
            }
        }
    }
}
