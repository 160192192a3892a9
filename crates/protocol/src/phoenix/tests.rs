//! The protocol's own examples byte for byte, the limits, and a small client that reads them back like
//! `serializer.js` of phoenix.js.

use serde_json::{Value, json};

use super::*;
use crate::Codecs;
use crate::protocol::Protocol;
use crate::websocket::frame::Opcode;

/// A message as a client has decoded it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ChannelMessage {
    pub join_ref: Option<String>,
    pub ref_: Option<String>,
    pub topic: String,
    pub event: String,
    pub payload: ChannelPayload,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum ChannelPayload {
    Json(Value),
    Binary(Vec<u8>),
    /// The response of a binary reply, and its status.
    Response(String, Vec<u8>),
}

/// A client's text message.
pub(super) fn client_text(serializer: Serializer, message: &ChannelMessage) -> String {
    let ChannelMessage { join_ref, ref_, topic, event, payload } = message;
    let ChannelPayload::Json(payload) = payload else { panic!("not for text") };
    match serializer {
        Serializer::V1 => json!({
            "topic": topic, "event": event, "payload": payload, "ref": ref_, "join_ref": join_ref
        }),
        Serializer::V2 => json!([join_ref, ref_, topic, event, payload]),
    }
    .to_string()
}

/// A client's binary push.
pub(super) fn client_binary(message: &ChannelMessage) -> Vec<u8> {
    let ChannelPayload::Binary(payload) = &message.payload else { panic!("not for binary") };
    let join_ref = message.join_ref.as_deref().unwrap_or("");
    let texts = [join_ref, message.ref_.as_deref().unwrap_or(""), &message.topic, &message.event];
    let mut out = vec![0];
    out.extend(texts.iter().map(|text| u8::try_from(text.len()).unwrap()));
    out.extend(texts.concat().bytes());
    out.extend(payload);
    out
}

/// Decodes a frame as a client does.
pub(super) fn client_read(serializer: Serializer, form: Form, bytes: &[u8]) -> ChannelMessage {
    if form == Form::Binary {
        assert_eq!(serializer, Serializer::V2);
        return client_read_binary(bytes);
    }
    let value: Value = serde_json::from_slice(bytes).unwrap();
    let [join_ref, ref_, topic, event, payload] = match serializer {
        Serializer::V1 => ["join_ref", "ref", "topic", "event", "payload"].map(|key| &value[key]),
        Serializer::V2 => [0, 1, 2, 3, 4].map(|at| &value[at]),
    };
    ChannelMessage {
        join_ref: join_ref.as_str().map(Into::into),
        ref_: ref_.as_str().map(Into::into),
        topic: topic.as_str().unwrap().into(),
        event: event.as_str().unwrap().into(),
        payload: ChannelPayload::Json(payload.clone()),
    }
}

fn client_read_binary(bytes: &[u8]) -> ChannelMessage {
    let count = [3, 4, 2][usize::from(bytes[0])];
    let mut rest = &bytes[1 + count..];
    let mut texts = bytes[1..=count].iter().map(|&length| {
        let (text, left) = rest.split_at(length.into());
        rest = left;
        std::str::from_utf8(text).unwrap().to_string()
    });
    let mut next = || texts.next().unwrap();
    let (join_ref, ref_) = match bytes[0] {
        0 => (Some(next()), None),
        1 => (Some(next()), Some(next())),
        _ => (None, None),
    };
    let (topic, last) = (next(), next());
    let data = rest.to_vec();
    let (event, payload) = match bytes[0] {
        1 => (EVENT_REPLY.to_string(), ChannelPayload::Response(last, data)),
        _ => (last, ChannelPayload::Binary(data)),
    };
    ChannelMessage { join_ref, ref_, topic, event, payload }
}

fn text(encode: impl FnOnce(&mut Vec<u8>) -> Result<Form, PhoenixError>) -> String {
    let mut out = Vec::new();
    assert_eq!(encode(&mut out), Ok(Form::Text));
    String::from_utf8(out).unwrap()
}

fn bytes(encode: impl FnOnce(&mut Vec<u8>) -> Result<Form, PhoenixError>) -> Vec<u8> {
    let mut out = Vec::new();
    assert_eq!(encode(&mut out), Ok(Form::Binary));
    out
}

use Serializer::{V1, V2};

/// The id of a message in history.
const RETAINED: model::Position =
    model::Position { epoch: model::Epoch(0x5f3a_91c2), offset: 1042 };

#[test]
fn versions_by_the_requirements_of_phoenix() {
    assert_eq!(Serializer::from_vsn(VSN_DEFAULT), Some(V1));
    for (vsn, want) in [("1.0.0", V1), ("1.0.12", V1), ("2.0.0", V2), ("2.0.9", V2)] {
        assert_eq!(Serializer::from_vsn(vsn), Some(want), "{vsn}");
    }
    for bad in [
        "",
        "1",
        "2",
        "2.0",
        "2.0.",
        "2.0.0.0",
        "2.0.x",
        "02.0.0",
        "2.0.01",
        "2.1.0",
        "1.1.0",
        "3.0.0",
        "0.9.0",
        "2.0.0-rc.1",
        " 2.0.0",
        "2.0.+1",
        "..",
    ] {
        assert_eq!(Serializer::from_vsn(bad), None, "{bad}");
    }
}

#[test]
fn the_documented_exchange_in_v2() {
    let exchange = [
        (
            r#"[null,"5","phoenix","heartbeat",{}]"#,
            (Event::Heartbeat, ReplyStatus::Ok, "{}"),
            r#"[null,"5","phoenix","phx_reply",{"status":"ok","response":{}}]"#,
        ),
        (
            r#"["1","1","room:a","phx_join",{"a":1}]"#,
            (Event::Join, ReplyStatus::Ok, r#"{"b":2}"#),
            r#"["1","1","room:a","phx_reply",{"status":"ok","response":{"b":2}}]"#,
        ),
        (
            r#"["1","9","room:a","phx_leave",{}]"#,
            (Event::Leave, ReplyStatus::Ok, "{}"),
            r#"["1","9","room:a","phx_reply",{"status":"ok","response":{}}]"#,
        ),
        (
            r#"["1","7","room:a","any_event",{"x":[]}]"#,
            (Event::Other, ReplyStatus::Error, r#"{"reason":"no"}"#),
            r#"["1","7","room:a","phx_reply",{"status":"error","response":{"reason":"no"}}]"#,
        ),
        (
            r#"[null,"8","b","any_event",{}]"#,
            (Event::Other, ReplyStatus::Error, r#"{"reason":"unmatched topic"}"#),
            r#"[null,"8","b","phx_reply",{"status":"error","response":{"reason":"unmatched topic"}}]"#,
        ),
    ];
    for (incoming, (kind, status, response), expected) in exchange {
        let incoming = V2.parse_text(incoming).unwrap();
        assert_eq!(incoming.kind(), kind);
        let reply = text(|out| V2.reply(incoming.address(), status, Content::Json(response), out));
        assert_eq!(reply, expected);
    }
    assert_eq!(text(|out| V2.close("1", "room:a", out)), r#"["1","1","room:a","phx_close",{}]"#);
    assert_eq!(
        text(|out| V2.error("1", "room:a", "gone \"bad\"", out)),
        r#"["1","1","room:a","phx_error",{"reason":"gone \"bad\""}]"#
    );
    assert_eq!(
        text(|out| V2.broadcast("room:a", "e", None, Content::Json(r#"{"a":1}"#), None, out)),
        r#"[null,null,"room:a","e",{"a":1}]"#
    );
    assert_eq!(
        text(|out| V2.broadcast("room:a", "e", Some(RETAINED), Content::Json("{}"), None, out)),
        r#"[null,"5f3a91c2:1042","room:a","e",{}]"#
    );
    assert_eq!(
        text(|out| V2.push("1", "room:a", "e", Content::Json(r#"{"a":1}"#), out)),
        r#"["1",null,"room:a","e",{"a":1}]"#
    );
    assert_eq!(Event::of("room:a", EVENT_HEARTBEAT), Event::Other);
}

#[test]
fn the_same_in_v1() {
    let join = r#"{"topic":"room:a","event":"phx_join","payload":{ "a": 1 },"ref":"1","x":0}"#;
    let incoming = V1.parse_text(join).unwrap();
    assert_eq!((incoming.kind(), incoming.join_ref.as_deref()), (Event::Join, None));
    assert!(matches!(&incoming.payload, Payload::Json(raw) if raw.get() == "{ \"a\": 1 }"));
    assert_eq!(
        text(|out| V1.reply(incoming.address(), ReplyStatus::Ok, Content::Json("{}"), out)),
        concat!(
            r#"{"topic":"room:a","event":"phx_reply","payload":{"status":"ok","response":{}},"#,
            r#""ref":"1","join_ref":null}"#
        )
    );
    assert_eq!(
        text(|out| V1.broadcast("t", "e", None, Content::Json(" {}"), None, out)),
        r#"{"topic":"t","event":"e","payload": {},"ref":null,"join_ref":null}"#
    );
    assert_eq!(
        text(|out| V1.broadcast("t", "e", Some(RETAINED), Content::Json("{}"), None, out)),
        r#"{"topic":"t","event":"e","payload":{},"ref":"5f3a91c2:1042","join_ref":null}"#
    );
    assert_eq!(
        text(|out| V1.push("1", "t", "e", Content::Binary(&[0, 255]), out)),
        concat!(
            r#"{"topic":"t","event":"e","payload":{"data":"AP8=","encoding":"base64"},"#,
            r#""ref":null,"join_ref":"1"}"#
        )
    );
    assert_eq!(
        text(|out| V1.close("1", "t", out)),
        r#"{"topic":"t","event":"phx_close","payload":{},"ref":"1","join_ref":"1"}"#
    );
    assert_eq!(
        text(|out| V1.error("1", "t", "r", out)),
        r#"{"topic":"t","event":"phx_error","payload":{"reason":"r"},"ref":"1","join_ref":"1"}"#
    );
}

#[test]
fn refs_are_any_json_and_come_back_as_they_came() {
    let join = V1.parse_text(r#"{"topic":"room:a","event":"phx_join","payload":{},"ref":1}"#);
    assert_eq!(
        text(|out| V1.reply(join.unwrap().address(), ReplyStatus::Ok, Content::Json("{}"), out)),
        concat!(
            r#"{"topic":"room:a","event":"phx_reply","payload":{"status":"ok","response":{}},"#,
            r#""ref":1,"join_ref":null}"#
        )
    );
    let push = V2.parse_text(r#"["1",9,"room:a","say",{}]"#).unwrap();
    assert_eq!(
        text(|out| V2.reply(push.address(), ReplyStatus::Ok, Content::Json("{}"), out)),
        r#"["1",9,"room:a","phx_reply",{"status":"ok","response":{}}]"#
    );
    // Binary messages have refs as text only.
    let bytes = bytes(|out| V2.reply(push.address(), ReplyStatus::Ok, Content::Binary(b"!"), out));
    assert_eq!(bytes, b"\x01\x01\x01\x06\x0219room:aok!");
    let long = format!("[null,{},\"t\",\"e\",{{}}]", "9".repeat(REF_BYTES_MAX + 1));
    assert!(matches!(V2.parse_text(&long), Err(PhoenixError::TooLong { field: "ref", .. })));
}

#[test]
fn data_other_than_an_object_arrives_in_one() {
    for (content, want) in [
        (Content::Json("[1]"), r#"{"data":[1]}"#),
        (Content::Json("null"), r#"{"data":null}"#),
        (Content::Json("\"{\""), r#"{"data":"{"}"#),
        (Content::Json(" {\"data\":1}"), " {\"data\":1}"),
        (Content::Text("{\"a\":1}"), r#"{"data":"{\"a\":1}"}"#),
        (Content::Base64(&[0, 255]), r#"{"data":"AP8=","encoding":"base64"}"#),
    ] {
        let broadcast = text(|out| V2.broadcast("t", "e", None, content, None, out));
        assert_eq!(broadcast, format!(r#"[null,null,"t","e",{want}]"#));
        let push = text(|out| V2.push("1", "t", "e", content, out));
        assert_eq!(push, format!(r#"["1",null,"t","e",{want}]"#));
    }
    let to = Address { join_ref: None, ref_: None, topic: "t" };
    assert_eq!(
        text(|out| V2.reply(to, ReplyStatus::Ok, Content::Text("hi"), out)),
        r#"[null,null,"t","phx_reply",{"status":"ok","response":"hi"}]"#
    );
    let data = model::Data::Binary([7].into());
    assert_eq!(Content::from(&data), Content::Binary(&[7]));
}

#[test]
fn the_server_says_who_sent_a_message() {
    let of = |sender| Annotations { sender, key: None, topic: None };
    for (content, known, unknown) in [
        (Content::Json("[1]"), r#"{"data":[1],"phx_sender":"al"}"#, r#"{"data":[1]}"#),
        (Content::Json("{}"), r#"{"phx_sender":"al"}"#, "{}"),
        (
            Content::Json(r#"{"phx_sender":"bob","a":1}"#),
            r#"{"a":1,"phx_sender":"al"}"#,
            r#"{"a":1}"#,
        ),
        (Content::Text("{}"), r#"{"data":"{}","phx_sender":"al"}"#, r#"{"data":"{}"}"#),
        (
            Content::Base64(&[0, 255]),
            r#"{"data":"AP8=","encoding":"base64","phx_sender":"al"}"#,
            r#"{"data":"AP8=","encoding":"base64"}"#,
        ),
    ] {
        for (sender, want) in [(Some("al"), known), (None, unknown)] {
            let sent = text(|out| V2.broadcast("t", "e", None, content, Some(&of(sender)), out));
            assert_eq!(sent, format!(r#"[null,null,"t","e",{want}]"#));
        }
    }
    let bytes = |of: Option<&Annotations<'_>>| {
        bytes(|out| V2.broadcast("t", "e", None, Content::Binary(&[1]), of, out))
    };
    assert_eq!(bytes(Some(&of(Some("al")))), bytes(None));
}

/// A message that a member gets with its next poll, as JSON.
fn polled(event: Option<&str>, json: &str) -> Value {
    let mut publication = model::Publication::new("t", model::Data::Json(json.into()));
    publication.event = event.map(Into::into);
    let mut out = Vec::new();
    let message = model::Message::new(publication, RETAINED, 0, 0);
    Phoenix { serializer: V2, polled: true }.encode(&message, &mut Codecs::new(6, 64), &mut out);
    // An element of the reply's array: a comma, and the message as a string.
    let message: String = serde_json::from_slice(&out[1..]).unwrap();
    serde_json::from_str(&message).unwrap()
}

#[test]
fn no_payload_says_who_sent_it_but_a_list_has_users_of_any_name() {
    let forged = r#"{"phx_sender":{"metas":[]}}"#;
    assert_eq!(polled(None, forged), json!([null, null, "t", "message", {}]));
    let listed = json!([null, null, "t", EVENT_PRESENCE_STATE, {"phx_sender": {"metas": []}}]);
    assert_eq!(polled(Some(EVENT_PRESENCE_STATE), forged), listed);
}

#[test]
fn binary_messages_byte_for_byte() {
    let incoming = V2.parse_binary(b"\x00\x01\x02\x03\x0412" as &[u8]).unwrap_err();
    assert_eq!(incoming, PhoenixError::Truncated { field: "ref" });
    let incoming = V2.parse_binary(b"\x00\x01\x02\x03\x04123topping\xff\x00").unwrap();
    let to = Address { join_ref: Some("1"), ref_: Some("23"), topic: "top" };
    assert_eq!((incoming.address(), incoming.event.as_str()), (to, "ping"));
    assert!(matches!(incoming.payload, Payload::Binary(b"\xff\x00")));
    let data = Content::from(&incoming.payload);
    assert_eq!(bytes(|out| V2.push("1", "top", "e", data, out)), b"\x00\x01\x03\x011tope\xff\x00");
    for id in [None, Some(RETAINED)] {
        let broadcast = bytes(|out| V2.broadcast("top", "e", id, data, None, out));
        assert_eq!(broadcast, b"\x02\x03\x01tope\xff\x00");
    }
    assert_eq!(
        bytes(|out| V2.reply(to, ReplyStatus::Ok, data, out)),
        b"\x01\x01\x02\x03\x02123topok\xff\x00"
    );
    assert_eq!(
        bytes(|out| V2.reply(Address { join_ref: None, ..to }, ReplyStatus::Error, data, out)),
        b"\x01\x00\x02\x03\x0523toperror\xff\x00"
    );
    let unreferenced = V2.parse_binary(b"\x00\x00\x00\x00\x00").unwrap();
    assert_eq!((unreferenced.join_ref, unreferenced.ref_), (None, None));
    assert_eq!(Form::Binary.opcode(), Opcode::Binary);
}

/// As realtime-js 2.109 writes it.
pub(super) fn client_broadcast(texts: [&str; 5], encoding: u8, payload: &[u8]) -> Vec<u8> {
    let lengths = texts.iter().map(|text| u8::try_from(text.len()).unwrap());
    let mut out = vec![3];
    out.extend(lengths.chain([encoding]));
    out.extend(texts.concat().bytes());
    out.extend(payload);
    out
}

#[test]
fn a_broadcast_of_supabases_client_is_a_push() {
    let read = |texts, encoding, payload: &[u8]| {
        V2.parse_binary(&client_broadcast(texts, encoding, payload)).map(|incoming| {
            let Payload::Json(raw) = &incoming.payload else { panic!("{incoming:?}") };
            let value: Value = serde_json::from_str(raw.get()).unwrap();
            (incoming.join_ref, incoming.ref_, incoming.topic, incoming.event, value)
        })
    };
    let texts = ["1", "2", "room:a", "cursor", ""];
    let want = json!({"type": "broadcast", "event": "cursor", "payload": {"x": 1.5}});
    let of = |value| {
        let text = |text: &str| model::Name::from(text);
        Ok((Some(text("1")), Some(text("2")), text("room:a"), text("broadcast"), value))
    };
    assert_eq!(read(texts, 1, b"{\"x\": 1.5}"), of(want.clone()));
    let with_meta = ["1", "2", "room:a", "cursor", "{\"id\":7}"];
    let mut marked = want.clone();
    marked["meta"] = json!({"id": 7});
    assert_eq!(read(with_meta, 1, b"{\"x\":1.5}"), of(marked));
    let mut bytes = want;
    bytes["payload"] = json!({"data": "AP8=", "encoding": "base64"});
    assert_eq!(read(texts, 0, &[0, 255]), of(bytes));
    let unreferenced = read(["", "", "t", "a\"b", ""], 1, b"null").unwrap();
    assert_eq!(
        (unreferenced.0, unreferenced.1, &unreferenced.4["event"]),
        (None, None, &json!("a\"b"))
    );

    // The data of one field never get into another.
    for payload in ["", "1,\"type\":2", "1}", "{} {}", "\u{feff}1"] {
        let want = Err(PhoenixError::InvalidBroadcast { field: "payload" });
        assert_eq!(read(texts, 1, payload.as_bytes()), want, "{payload}");
        if !payload.is_empty() {
            let texts = ["1", "2", "room:a", "cursor", payload];
            assert_eq!(
                read(texts, 1, b"1"),
                Err(PhoenixError::InvalidBroadcast { field: "metadata" })
            );
        }
    }
    assert_eq!(
        read(texts, 1, b"\"\xff\""),
        Err(PhoenixError::InvalidBroadcast { field: "payload" })
    );
    assert_eq!(read(texts, 2, b"1"), Err(PhoenixError::InvalidBroadcast { field: "encoding" }));
    let whole = client_broadcast(texts, 1, b"");
    for end in 1..whole.len() {
        let cut = V2.parse_binary(&whole[..end]).unwrap_err();
        assert!(
            matches!(cut, PhoenixError::Truncated { .. }) && !cut.is_passable(),
            "{end}: {cut}"
        );
    }
}

#[test]
fn errors_name_what_is_invalid() {
    for bad in [
        "",
        "null",
        "{}",
        "[]",
        "[null,null,\"t\",\"e\"]",
        "[null,null,null,\"e\",{}]",
        "[null,null,\"t\",\"e\",{]",
        "[null,null,\"t\",\"e\",{}] x",
        "[null,null,\"\\ud800\",\"e\",{}]",
    ] {
        let error = V2.parse_text(bad).unwrap_err();
        assert!(matches!(error, PhoenixError::NotAMessage { .. }), "{bad}");
        V1.parse_text(bad).unwrap_err();
    }
    V1.parse_text(r#"["1","1","t","e",{}]"#).unwrap_err();
    V1.parse_text(r#"{"topic":"t","event":"e","ref":null}"#).unwrap_err();
    V2.parse_text(r#"[null,null,"t","e",1,"more",{}]"#).unwrap();

    let long = format!("[null,null,{{\"{}\":1}},0,0]", "\u{e9}".repeat(500));
    let Err(PhoenixError::NotAMessage { why, .. }) = V2.parse_text(&long) else { panic!() };
    assert!(why.len() <= WHY_BYTES_MAX);
    let deep = format!("[null,null,\"t\",\"e\",{}{}]", "[".repeat(100_000), "]".repeat(100_000));
    V2.parse_text(&deep).unwrap();

    let json = br#"{"topic":"t","event":"e","payload":{},"ref":"1"}"#;
    assert_eq!(V1.parse_binary(json).unwrap().event, "e");
    assert!(matches!(V1.parse_binary(b"\0").unwrap_err(), PhoenixError::NotAMessage { .. }));
    assert_eq!(V1.parse_binary(b"\xff").unwrap_err(), PhoenixError::NotUtf8 { field: "message" });
    assert_eq!(V2.parse_binary(b"").unwrap_err(), PhoenixError::Truncated { field: "kind" });
    assert_eq!(
        V2.parse_binary(b"\0\0\0\0").unwrap_err(),
        PhoenixError::Truncated { field: "lengths" }
    );
    assert_eq!(V2.parse_binary(b"\x01\0\0\0\0").unwrap_err(), PhoenixError::UnknownKind(1));
    let latin = V2.parse_binary(b"\0\0\0\x01\0\xe9").unwrap_err();
    assert_eq!(latin, PhoenixError::NotUtf8 { field: "topic" });
}

#[test]
fn the_limits_are_reached_and_not_passed() {
    let (fits, too_long) = ("x".repeat(255), "x".repeat(256));
    for serializer in [V1, V2] {
        for (form, content) in [("json", Content::Json("{}")), ("bytes", Content::Binary(b"!"))] {
            let mut out = Vec::new();
            let to = Address { join_ref: Some(&fits), ref_: Some(&fits), topic: &fits };
            let form_of = serializer.reply(to, ReplyStatus::Ok, content, &mut out).unwrap();
            let read = client_read(serializer, form_of, &out);
            assert_eq!((&read.ref_, &read.topic), (&Some(fits.clone()), &fits), "{form}");
            out.clear();
            serializer.push(&fits, &fits, &fits, content, &mut out).unwrap();
            serializer.broadcast(&fits, &fits, None, content, None, &mut out).unwrap();

            let before = out.clone();
            let ours = |field, result: Result<Form, PhoenixError>| {
                let error = result.unwrap_err();
                assert_eq!(error, PhoenixError::CantEncode { field, bytes: 256, bytes_max: 255 });
            };
            let mut reply = |to| serializer.reply(to, ReplyStatus::Ok, content, &mut out);
            ours("join_ref", reply(Address { join_ref: Some(&too_long), ..to }));
            ours("ref", reply(Address { ref_: Some(&too_long), ..to }));
            ours("topic", reply(Address { topic: &too_long, ..to }));
            ours("event", serializer.push("1", "t", &too_long, content, &mut out));
            ours("topic", serializer.broadcast(&too_long, "e", None, content, None, &mut out));
            ours("event", serializer.broadcast("t", &too_long, None, content, None, &mut out));
            ours("join_ref", serializer.close(&too_long, "t", &mut out));
            ours("topic", serializer.error("1", &too_long, "r", &mut out));
            assert_eq!(out, before, "nothing is appended with an error");
        }
        let message = |field: usize, text: &str| {
            let mut texts = ["1", "2", "t", "e"].map(String::from);
            texts[field] = text.into();
            let [join_ref, ref_, topic, event] = texts;
            let payload = ChannelPayload::Json(json!({}));
            let (join_ref, ref_) = (Some(join_ref), Some(ref_));
            client_text(serializer, &ChannelMessage { join_ref, ref_, topic, event, payload })
        };
        for (at, field) in ["join_ref", "ref", "topic", "event"].into_iter().enumerate() {
            serializer.parse_text(&message(at, &fits)).unwrap();
            let error = serializer.parse_text(&message(at, &too_long)).unwrap_err();
            assert_eq!(error, PhoenixError::TooLong { field, bytes: 256, bytes_max: 255 });
        }
    }
}
