//! Properties of all messages: each side reads what the other writes, and no bytes cause a panic.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::longpoll::{self, NDJSON};
use super::tests::{
    ChannelMessage, ChannelPayload, client_binary, client_broadcast, client_read, client_text,
};
use super::*;

/// Text with escapes, and with characters of one to four bytes; at most 252 bytes.
fn name() -> impl Strategy<Value = String> {
    "[a-z:\"\\\\\n\u{e9}\u{20ac}\u{1f600}]{0,63}"
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({})),
        name().prop_map(|text| json!({ "text": text, "more": [1, null] })),
        name().prop_map(Value::String),
        any::<i64>().prop_map(|number| json!([number])),
    ]
}

fn serializer() -> impl Strategy<Value = Serializer> {
    prop_oneof![Just(Serializer::V1), Just(Serializer::V2)]
}

fn within_limits(incoming: &Incoming<Payload<'_>>) {
    for reference in [&incoming.join_ref, &incoming.ref_] {
        assert!(reference.as_ref().is_none_or(|text| text.len() <= REF_BYTES_MAX));
    }
    assert!(incoming.topic.len() <= TOPIC_BYTES_MAX);
    assert!(incoming.event.len() <= EVENT_BYTES_MAX);
    // The server can reply to every message, in both forms.
    for content in [Content::Json("{}"), Content::Binary(b"!")] {
        let mut out = Vec::new();
        assert!(
            Serializer::V2.reply(incoming.address(), ReplyStatus::Ok, content, &mut out).is_ok()
        );
    }
}

proptest! {
    #[test]
    fn a_clients_text_is_read(
        serializer in serializer(),
        join_ref in option::of(name()), ref_ in option::of(name()),
        topic in name(), event in name(), payload in value(),
    ) {
        let payload = ChannelPayload::Json(payload);
        let sent = ChannelMessage { join_ref, ref_, topic, event, payload };
        let text = client_text(serializer, &sent);
        let incoming = serializer.parse_text(&text).unwrap();
        within_limits(&incoming);
        let Payload::Json(raw) = incoming.payload else { panic!("text has JSON") };
        let read = ChannelMessage {
            join_ref: incoming.join_ref.map(Into::into),
            ref_: incoming.ref_.map(Into::into),
            topic: incoming.topic.into(),
            event: incoming.event.into(),
            payload: ChannelPayload::Json(serde_json::from_str(raw.get()).unwrap()),
        };
        prop_assert_eq!(read, sent);
    }

    #[test]
    fn a_clients_bytes_are_read(
        join_ref in option::of(name()), ref_ in option::of(name()),
        topic in name(), event in name(), payload in vec(any::<u8>(), 0..100),
    ) {
        let some = |text: Option<String>| text.filter(|text| !text.is_empty());
        let (join_ref, ref_) = (some(join_ref), some(ref_));
        let payload = ChannelPayload::Binary(payload);
        let sent = ChannelMessage { join_ref, ref_, topic, event, payload };
        let bytes = client_binary(&sent);
        let incoming = Serializer::V2.parse_binary(&bytes).unwrap();
        within_limits(&incoming);
        let Payload::Binary(raw) = incoming.payload else { panic!("a binary message has bytes") };
        let read = ChannelMessage {
            join_ref: incoming.join_ref.map(Into::into),
            ref_: incoming.ref_.map(Into::into),
            topic: incoming.topic.into(),
            event: incoming.event.into(),
            payload: ChannelPayload::Binary(raw.to_vec()),
        };
        prop_assert_eq!(read, sent);
    }

    #[test]
    fn broadcasts_of_supabases_client_are_read(
        refs in (name(), name()), topic in name(), event in name(),
        meta in option::of(0..1000), payload in value(), bytes in option::of(vec(any::<u8>(), 0..50)),
    ) {
        let metadata = meta.map_or(String::new(), |meta| json!({ "m": meta }).to_string());
        let texts = [&*refs.0, &*refs.1, &*topic, &*event, &*metadata];
        let text = payload.to_string();
        let sent = match &bytes {
            Some(bytes) => client_broadcast(texts, 0, bytes),
            None => client_broadcast(texts, 1, text.as_bytes()),
        };
        let incoming = Serializer::V2.parse_binary(&sent).unwrap();
        within_limits(&incoming);
        prop_assert_eq!((&*incoming.topic, &*incoming.event), (&*topic, EVENT_BROADCAST));
        prop_assert_eq!(incoming.ref_.as_deref().unwrap_or_default(), &*refs.1);
        let Payload::Json(raw) = &incoming.payload else { panic!("JSON") };
        let read: Value = serde_json::from_str(raw.get()).unwrap();
        let mut want = json!({ "type": "broadcast", "event": event, "payload": payload });
        if let Some(meta) = meta {
            want["meta"] = json!({ "m": meta });
        }
        if bytes.is_some() {
            want["payload"] = read["payload"].clone();
            prop_assert_eq!(&read["payload"]["encoding"], "base64");
        }
        prop_assert_eq!(read, want);
    }

    #[test]
    fn a_client_reads_what_is_sent(
        serializer in serializer(),
        join_ref in name().prop_filter("an empty one is none", |text| !text.is_empty()),
        ref_ in name(), topic in name(), event in name(),
        id in option::of((any::<u32>(), any::<u64>())),
        payload in value(), data in vec(any::<u8>(), 0..100),
    ) {
        let id = id.map(|(epoch, offset)| model::Position { epoch: model::Epoch(epoch), offset });
        let (text, mut out) = (payload.to_string(), Vec::new());
        let object = if payload.is_object() { payload.clone() } else { json!({"data": payload}) };
        let form = serializer.push(&join_ref, &topic, &event, Content::Json(&text), &mut out);
        let pushed = ChannelMessage {
            join_ref: Some(join_ref.clone()),
            ref_: None,
            topic: topic.clone(),
            event: event.clone(),
            payload: ChannelPayload::Json(object),
        };
        prop_assert_eq!(client_read(serializer, form.unwrap(), &out), pushed.clone());

        out.clear();
        let form = serializer.broadcast(&topic, &event, id, Content::Json(&text), None, &mut out);
        let ref_of = id.map(|id| id.to_string());
        let broadcast = ChannelMessage { join_ref: None, ref_: ref_of, ..pushed.clone() };
        prop_assert_eq!(client_read(serializer, form.unwrap(), &out), broadcast);

        if serializer == Serializer::V2 {
            let content = Content::Binary(&data);
            out.clear();
            let form = serializer.push(&join_ref, &topic, &event, content, &mut out);
            let payload = ChannelPayload::Binary(data.clone());
            let want = ChannelMessage { payload, ..pushed.clone() };
            prop_assert_eq!(client_read(serializer, form.unwrap(), &out), want.clone());

            out.clear();
            let form = serializer.broadcast(&topic, &event, id, content, None, &mut out);
            let want = ChannelMessage { join_ref: None, ..want };
            prop_assert_eq!(client_read(serializer, form.unwrap(), &out), want);

            out.clear();
            let to = Address { join_ref: Some(&join_ref), ref_: Some(&ref_), topic: &topic };
            let form = serializer.reply(to, ReplyStatus::Error, content, &mut out);
            let want = ChannelMessage {
                ref_: Some(ref_),
                event: EVENT_REPLY.into(),
                payload: ChannelPayload::Response("error".into(), data),
                ..pushed
            };
            prop_assert_eq!(client_read(serializer, form.unwrap(), &out), want);
        }
    }

    #[test]
    fn no_bytes_do_harm(serializer in serializer(), bytes in vec(any::<u8>(), 0..1200)) {
        for bytes in [bytes.clone(), [&[0], &bytes[..]].concat(), [&[3], &bytes[..]].concat()] {
            if let Ok(incoming) = serializer.parse_binary(&bytes) {
                within_limits(&incoming);
            }
            if let Ok(incoming) = serializer.parse_text(&String::from_utf8_lossy(&bytes)) {
                within_limits(&incoming);
            }
            for line in longpoll::lines(Some(NDJSON), &bytes).unwrap_or_default() {
                let _ = line.parse(serializer);
            }
        }
    }

    #[test]
    fn no_text_does_harm(
        serializer in serializer(),
        text in "[\\[\\]{},:\"\\\\0-9a-fnulrtopicevy\u{e9} ]{0,80}",
        cut in any::<prop::sample::Index>(),
        long in 250_usize..260,
    ) {
        let _ = serializer.parse_text(&text).map(|incoming| within_limits(&incoming));
        let long = "x".repeat(long);
        let whole = match serializer {
            Serializer::V1 => format!(
                r#"{{"topic":"{long}","event":"e","payload":{{}},"ref":"{long}","join_ref":null}}"#
            ),
            Serializer::V2 => format!(r#"[null,"{long}","{long}","e",{{}}]"#),
        };
        let read = serializer.parse_text(&whole);
        prop_assert_eq!(read.is_ok(), long.len() <= TOPIC_BYTES_MAX);
        let _ = read.map(|incoming| within_limits(&incoming));
        prop_assert!(serializer.parse_text(&whole[..cut.index(whole.len())]).is_err());
    }
}
