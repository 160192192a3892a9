//! Phoenix Channels over WebSocket, as phoenix.js speaks them: serializer V2 around the topics of
//! the request.
//!
//! phoenix.js counts its refs up for as long as it lives. This client stores no count: joins have the
//! refs from 1, once, and all heartbeats have the same ref.

use std::io::Write;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::ws::Ws;
use super::{
    Client, ClientError, Event, Goodbye, Head, PENDING_BYTES_MAX, Request, closing, recovery,
};
use model::ErrorCode;
use model::event::STATE_COMPLETE;
use protocol::json;
use protocol::phoenix::{
    EVENT_CLOSE, EVENT_ERROR, EVENT_PRESENCE_DIFF, EVENT_PRESENCE_STATE, EVENT_REPLY, Payload,
    Serializer,
};
use protocol::websocket::frame::{self, Opcode};

pub(super) struct Phoenix;

const HEARTBEAT_REF: &str = "0";

/// The reasons that Phoenix and Throng give for a rejected join. Others are the application's own.
const REJECTIONS: [&str; 5] = [
    ErrorCode::Unauthorized.text(),
    "too many channels joined",
    "unmatched topic",
    "join crashed",
    "the application is busy: try again later",
];

const INVALID: ClientError =
    ClientError::InvalidBody("a message is not a Phoenix message: [join_ref,ref,topic,event,…]");

impl Client for Phoenix {
    fn name(&self) -> &'static str {
        "phoenix"
    }

    fn default_target(&self) -> &'static str {
        "/socket/websocket?user={user}&topic={topic}"
    }

    /// The client joins its topics, so they are not in the URL; and this is V2 whatever the URL says.
    fn request(&self, request: &Request<'_>, out: &mut Vec<u8>) {
        let (path, query) = request.target.split_once('?').unwrap_or((request.target, ""));
        let mut target = format!("{path}?vsn=2.0.0");
        for pair in query.split('&') {
            let key = pair.split('=').next().unwrap_or("");
            if !matches!(key, "" | "topic" | "vsn") && !key.starts_with("since:") {
                target.push('&');
                target.push_str(pair);
            }
        }
        Ws.request(&Request { target: &target, token: None, ..*request }, out);
    }

    fn head(&self, head: &Head<'_>) -> Result<(), ClientError> {
        Ws.head(head)
    }

    fn joins(&self) -> bool {
        true
    }

    /// All joins have the same resume token, if the request has one. Without a topic, the reply to a heartbeat shows
    /// that the connection is open.
    fn join(&self, request: &Request<'_>, out: &mut Vec<u8>) -> u32 {
        let query = request.target.split_once('?').map_or("", |(_, query)| query);
        let pairs: Vec<_> = protocol::query::pairs(query).filter_map(Result::ok).collect();
        let own = |topic: &str| {
            let of = |key: &str| key.strip_prefix("since:") == Some(topic);
            pairs.iter().find(|(key, _)| of(key)).map(|(_, token)| &**token)
        };
        let (mut joins, mut text) = (0, Vec::new());
        for (_, topic) in pairs.iter().filter(|(key, _)| key == "topic") {
            joins += 1;
            text.clear();
            // Writing to a Vec can't fail.
            let _ = write!(text, "[\"{joins}\",\"{joins}\",");
            json::string(topic, &mut text);
            text.extend_from_slice(b",\"phx_join\",{");
            if let Some(token) = own(topic).or(request.token) {
                text.extend_from_slice(b"\"since\":");
                json::string(token, &mut text);
            }
            text.extend_from_slice(b"}]");
            push_text(&text, out);
        }
        if joins == 0 {
            push_heartbeat("1", out);
            joins = 1;
        }
        joins
    }

    fn acknowledge(&self, user: &str, id: &str, out: &mut Vec<u8>) -> bool {
        let mut text = b"[null,\"ack\",".to_vec();
        json::string(&model::name::personal(user), &mut text);
        text.extend_from_slice(b",\"ack\",{\"id\":");
        json::string(id, &mut text);
        text.extend_from_slice(b"}]");
        push_text(&text, out);
        true
    }

    fn heartbeat(&self, out: &mut Vec<u8>) {
        push_heartbeat(HEARTBEAT_REF, out);
    }

    fn body(
        &self,
        body: &[u8],
        ended: bool,
        out: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> Result<usize, ClientError> {
        let (mut parts, mut outcome) = (Vec::new(), Ok(()));
        let used = Ws.body(&body[..whole(body)], ended, out, &mut |event| match event {
            _ if outcome.is_err() => {}
            Event::Part(part) => parts.extend_from_slice(part),
            Event::Message(message) if parts.is_empty() => outcome = read_message(message, emit),
            Event::Message(last) => {
                parts.extend_from_slice(last);
                outcome = read_message(&parts, emit);
                parts.clear();
            }
            other => emit(other),
        });
        // An error in a message comes before one in the bytes after it.
        outcome.and(used)
    }
}

/// Appends a text frame. Its mask is zero, as in replies to pings.
fn push_text(text: &[u8], out: &mut Vec<u8>) {
    frame::encode_masked(Opcode::Text, false, text, [0; 4], out);
}

fn push_heartbeat(ref_: &str, out: &mut Vec<u8>) {
    push_text(format!("[null,\"{ref_}\",\"phoenix\",\"heartbeat\",{{}}]").as_bytes(), out);
}

/// Returns how many of the bytes are complete messages: a fragmented message counts once it has its last fragment.
/// Bytes that break the rules count in full, so that their reader reports the error.
fn whole(bytes: &[u8]) -> usize {
    let (mut at, mut end, mut fragments) = (0, 0, false);
    loop {
        let (head, head_bytes) = match frame::Head::parse(&bytes[at..]) {
            Ok(Some((head, _))) if head.length > PENDING_BYTES_MAX as u64 => return bytes.len(),
            Ok(Some(parsed)) => parsed,
            Ok(None) => return end,
            Err(_) => return bytes.len(),
        };
        at += head_bytes + head.length as usize;
        if at > bytes.len() {
            return end;
        }
        if !head.opcode.is_control() {
            fragments = !head.fin;
        }
        if !fragments {
            end = at;
        }
    }
}

/// Reads a message: a text message begins with its bracket, a binary one with its kind.
fn read_message(message: &[u8], emit: &mut dyn FnMut(Event<'_>)) -> Result<(), ClientError> {
    if message.first() != Some(&b'[') {
        return read_binary(message, emit);
    }
    let text = simdutf8::basic::from_utf8(message).map_err(|_| INVALID)?;
    let incoming = Serializer::V2.parse_text(text).map_err(|_| INVALID)?;
    let Payload::Json(payload) = incoming.payload else {
        return Err(INVALID);
    };
    let payload = payload.get();
    match incoming.event.as_str() {
        EVENT_REPLY => reply(&incoming.topic, incoming.ref_.as_deref(), payload, emit)?,
        // The server no longer sends the topic, but an open connection would still count as a subscriber.
        EVENT_CLOSE => end("phx_close", emit),
        EVENT_ERROR => match closing(payload.as_bytes()) {
            "other" => end("phx_error", emit),
            reason => end(reason, emit),
        },
        EVENT_PRESENCE_STATE | EVENT_PRESENCE_DIFF | STATE_COMPLETE => {}
        _ => {
            emit(Event::Message(payload.as_bytes()));
            // A message with history has its id as its ref.
            incoming.ref_.as_deref().into_iter().for_each(|id| emit(Event::Token(id)));
        }
    }
    Ok(())
}

fn reply(
    topic: &str,
    ref_: Option<&str>,
    payload: &str,
    emit: &mut dyn FnMut(Event<'_>),
) -> Result<(), ClientError> {
    #[derive(Deserialize)]
    struct Reply<'a> {
        status: &'a str,
        #[serde(borrow)]
        response: Option<&'a RawValue>,
    }
    let reply: Reply<'_> = serde_json::from_str(payload).map_err(|_| INVALID)?;
    match reply.status {
        "ok" if ref_ == Some(HEARTBEAT_REF) => emit(Event::Heartbeat),
        "ok" => {
            emit(Event::Open);
            let response = reply.response.map_or("", RawValue::get);
            recovery(response.as_bytes(), Some(topic), emit);
        }
        _ => return Err(rejected(reply.response.map_or("", RawValue::get))),
    }
    Ok(())
}

fn rejected(response: &str) -> ClientError {
    #[derive(Deserialize)]
    struct Why<'a> {
        reason: &'a str,
    }
    let reason = serde_json::from_str(response).map_or("", |why: Why<'_>| why.reason);
    ClientError::Rejected(REJECTIONS.into_iter().find(|known| *known == reason).unwrap_or("other"))
}

fn end(said: &'static str, emit: &mut dyn FnMut(Event<'_>)) {
    emit(Event::Goodbye(Goodbye::Named(said)));
    emit(Event::End);
}

/// Reads a binary message: its kind, the lengths of its texts, the texts, the data.
fn read_binary(message: &[u8], emit: &mut dyn FnMut(Event<'_>)) -> Result<(), ClientError> {
    const REPLY: u8 = 1;
    let (&kind, rest) = message.split_first().ok_or(INVALID)?;
    let texts = match kind {
        0 => 3,
        REPLY => 4,
        2 => 2,
        _ => return Err(INVALID),
    };
    let (lengths, rest) = rest.split_at_checked(texts).ok_or(INVALID)?;
    let length = lengths.iter().copied().map(usize::from).sum();
    let (texts, data) = rest.split_at_checked(length).ok_or(INVALID)?;
    match kind {
        REPLY if lengths.ends_with(&[2]) && texts.ends_with(b"ok") => emit(Event::Open),
        REPLY => return Err(ClientError::Rejected("other")),
        _ => emit(Event::Message(data)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::strategy::Strategy as _;

    use super::*;
    use crate::{Feed, State};
    use protocol::phoenix::{Address, Content, Form, ReplyStatus};
    use protocol::websocket::handshake;

    const TARGET: &str = "/socket/websocket?user=u7&topic=a&topic=b%22c&vsn=1.0.0&topic=d&token=x";

    fn request(target: &str) -> Request<'_> {
        Request { host: "h", target, number: 7, token: None }
    }

    /// Returns the texts that a client sent, without frames and masks.
    fn texts(mut sent: &[u8]) -> Vec<String> {
        let mut texts = Vec::new();
        while let Some((head, head_bytes)) = frame::Head::parse(sent).unwrap() {
            let (text, rest) = sent[head_bytes..].split_at(head.length as usize);
            let mut text = text.to_vec();
            assert_eq!(head.opcode, Opcode::Text);
            frame::apply_mask(&mut text, head.mask.expect("a client masks"), 0);
            texts.push(String::from_utf8(text).unwrap());
            sent = rest;
        }
        assert!(sent.is_empty());
        texts
    }

    /// Returns a message as the server sends it.
    fn framed(
        write: impl FnOnce(&mut Vec<u8>) -> Result<Form, protocol::phoenix::PhoenixError>,
    ) -> Vec<u8> {
        let (mut payload, mut out) = (Vec::new(), Vec::new());
        let form = write(&mut payload).unwrap();
        frame::encode(form.opcode(), false, &payload, &mut out);
        out
    }

    fn replied(ref_: &str, topic: &str, status: ReplyStatus, response: &str) -> Vec<u8> {
        let join_ref = Some(ref_).filter(|_| topic != "phoenix");
        let to = Address { join_ref, ref_: Some(ref_), topic };
        framed(|out| Serializer::V2.reply(to, status, Content::Json(response), out))
    }

    fn broadcast(topic: &str, event: &str, content: Content<'_>) -> Vec<u8> {
        framed(|out| Serializer::V2.broadcast(topic, event, None, content, None, out))
    }

    fn granted(refs: &[&str]) -> Vec<u8> {
        refs.iter().flat_map(|ref_| replied(ref_, "a", ReplyStatus::Ok, "{}")).collect()
    }

    /// The events, and the bytes that the client sent in return.
    type Events = (Vec<String>, Vec<u8>);

    /// Returns the events of the bytes after the joins, in these pieces.
    fn read_pieces(target: &str, pieces: &[&[u8]]) -> Result<Events, ClientError> {
        let (mut state, mut pending, mut out, mut events) =
            (State::default(), Vec::new(), Vec::new(), Vec::new());
        let mut request_text = Vec::new();
        Phoenix.request(&request(target), &mut request_text);
        let request_text = String::from_utf8(request_text).unwrap();
        let key =
            request_text.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
        let mut head = Vec::new();
        handshake::response(&handshake::accept(key).unwrap(), None, None, &mut head);
        for (at, piece) in [head.as_slice()].iter().chain(pieces).enumerate() {
            let mut feed =
                Feed { client: &Phoenix, number: 7, pending: &mut pending, out: &mut out };
            state.feed(&mut feed, piece, &mut |event| {
                events.push(match event {
                    Event::Message(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                    other => format!("{other:?}"),
                });
            })?;
            if at == 0 {
                assert_eq!(events, ["Join"], "the head alone opens nothing");
                events.clear();
                state.join(&Phoenix, &request(target), &mut Vec::new());
            }
        }
        Ok((events, out))
    }

    /// Reads a stream in two pieces for every place to cut it, and byte by byte; all must give the same.
    fn read_all(target: &str, stream: &[u8]) -> Result<Events, ClientError> {
        let whole = read_pieces(target, &[stream]);
        for at in 0..stream.len() {
            let (a, b) = stream.split_at(at);
            assert_eq!(read_pieces(target, &[a, b]), whole, "cut at {at}");
        }
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(read_pieces(target, &bytes), whole);
        whole
    }

    fn events(target: &str, stream: &[u8]) -> Vec<String> {
        read_all(target, stream).unwrap().0
    }

    #[test]
    fn topics_of_the_url_are_joined_after_the_head_one_by_one() {
        let mut out = Vec::new();
        Phoenix.request(&request(TARGET), &mut out);
        assert!(out.starts_with(b"GET /socket/websocket?vsn=2.0.0&user=u7&token=x HTTP/1.1\r\n"));
        out.clear();
        assert_eq!(Phoenix.join(&request(TARGET), &mut out), 3);
        let joins = [
            r#"["1","1","a","phx_join",{}]"#,
            r#"["2","2","b\"c","phx_join",{}]"#,
            r#"["3","3","d","phx_join",{}]"#,
        ];
        assert_eq!(texts(&out), joins);
        let incoming = Serializer::V2.parse_text(joins[1]).unwrap();
        assert_eq!((incoming.kind(), &*incoming.topic), (protocol::phoenix::Event::Join, "b\"c"));
    }

    #[test]
    fn joins_send_a_resume_token_and_messages_bring_one() {
        let mut out = Vec::new();
        let token = Some("5f3a91c2:7");
        Phoenix.join(&Request { token, ..request("/?topic=a") }, &mut out);
        let [join] = &texts(&out)[..] else { panic!() };
        assert_eq!(join, r#"["1","1","a","phx_join",{"since":"5f3a91c2:7"}]"#);
        let message = framed(|out| {
            let id = Some("5f3a91c2:9".parse().unwrap());
            Serializer::V2.broadcast("a", "e", id, Content::Json("{}"), None, out)
        });
        let joined = r#"{"since":"5f3a91c2:8","recovered":true}"#;
        let stream = [replied("1", "a", ReplyStatus::Ok, joined), message].concat();
        let want = [
            "Open",
            "Entered(\"a\")",
            "Recovered(true)",
            "Token(\"5f3a91c2:8\")",
            "{}",
            "Token(\"5f3a91c2:9\")",
        ];
        assert_eq!(events("/?topic=a", &stream), want);
        out.clear();
        let each = "/?topic=a&since:b%22=5f3a91c2:3&topic=b%22";
        Phoenix.join(&Request { token, ..request(each) }, &mut out);
        Phoenix.acknowledge("al", "5f3a91c2:9", &mut out);
        let want = [
            r#"["1","1","a","phx_join",{"since":"5f3a91c2:7"}]"#,
            r#"["2","2","b\"","phx_join",{"since":"5f3a91c2:3"}]"#,
            r#"[null,"ack","@al","ack",{"id":"5f3a91c2:9"}]"#,
        ];
        assert_eq!(texts(&out), want);
        out.clear();
        Phoenix.request(&request(each), &mut out);
        assert!(out.starts_with(b"GET /?vsn=2.0.0 HTTP/1.1\r\n"));
        let received = replied("ack", "@al", ReplyStatus::Ok, r#"{"acknowledged":"5f3a91c2:9"}"#);
        let stream = [granted(&["1"]), received].concat();
        assert_eq!(events("/?topic=a", &stream), ["Open", "Acknowledged(\"5f3a91c2:9\")"]);
    }

    #[test]
    fn the_connection_is_open_when_all_joins_are_granted() {
        let ping = [0x89, 1, b'p'];
        assert_eq!(events(TARGET, &granted(&["2", "1"])), [""; 0]);
        let both = [granted(&["2", "1"]), ping.into(), granted(&["3", "3"])].concat();
        let (events, out) = read_all(TARGET, &both).unwrap();
        assert_eq!(events, ["Heartbeat", "Open"]);
        assert_eq!(out, [0x8a, 0x81, 0, 0, 0, 0, b'p']);
    }

    #[test]
    fn without_a_topic_a_heartbeat_opens_the_connection() {
        let target = "/socket/websocket";
        let mut out = Vec::new();
        assert_eq!(Phoenix.join(&request(target), &mut out), 1);
        Phoenix.heartbeat(&mut out);
        let beats = ["1", "0"].map(|at| format!(r#"[null,"{at}","phoenix","heartbeat",{{}}]"#));
        assert_eq!(texts(&out), beats);
        let stream =
            [beats[0].as_str(), &beats[1]].map(|beat| Serializer::V2.parse_text(beat).unwrap());
        let stream = stream.map(|incoming| {
            framed(|out| {
                Serializer::V2.reply(incoming.address(), ReplyStatus::Ok, Content::Json("{}"), out)
            })
        });
        assert_eq!(events(target, &stream.concat()), ["Open", "Heartbeat"]);
    }

    #[test]
    fn messages_come_as_their_payloads() {
        let push = |content| framed(|out| Serializer::V2.push("1", "a", "message", content, out));
        let fragments = broadcast("a", "e", Content::Text("in pieces"));
        let (first, last) = fragments[2..].split_at(9);
        let stream = [
            granted(&["1"]),
            broadcast("a", "message", Content::Text("~throng:\"x\"")),
            broadcast("a", "phx", Content::Json("{\"a\": 1}")),
            broadcast("a", "presence_diff", Content::Json("{\"joins\":{}}")),
            push(Content::Json("7")),
            framed(|out| Serializer::V2.push("1", "a", "presence_state", Content::Json("{}"), out)),
            push(Content::Binary(b"bytes")),
            broadcast("a", "message", Content::Binary(b"[more")),
            [&[0x01, 9], first, &[0x89, 0, 0x80, last.len() as u8], last].concat(),
        ];
        let want = [
            "Open",
            r#"{"data":"~throng:\"x\""}"#,
            "{\"a\": 1}",
            "{\"data\":7}",
            "bytes",
            "[more",
            "Heartbeat",
            "{\"data\":\"in pieces\"}",
        ];
        assert_eq!(events("/?topic=a", &stream.concat()), want);
    }

    #[test]
    fn a_close_and_an_error_end_the_connection_with_their_reason() {
        let target = "/?topic=a";
        for (response, why) in [
            (r#"{"reason":"unauthorized"}"#, "unauthorized"),
            (r#"{"reason":"of the application's own"}"#, "other"),
            ("[]", "other"),
        ] {
            let refused = replied("1", "a", ReplyStatus::Error, response);
            assert_eq!(read_all(target, &refused), Err(ClientError::Rejected(why)));
        }
        let to = Address { join_ref: Some("1"), ref_: Some("1"), topic: "a" };
        for (status, want) in
            [(ReplyStatus::Ok, Ok(())), (ReplyStatus::Error, Err(ClientError::Rejected("other")))]
        {
            let reply = framed(|out| Serializer::V2.reply(to, status, Content::Binary(b"x"), out));
            assert_eq!(read_all(target, &reply).map(|events| assert_eq!(events.0, ["Open"])), want);
        }
        let error = |reason| framed(|out| Serializer::V2.error("1", "a", reason, out));
        for (end, said) in [
            (framed(|out| Serializer::V2.close("1", "a", out)), "phx_close"),
            (error("it crashed"), "phx_error"),
            (error("drain"), "drain"),
        ] {
            let said = format!("Goodbye(Named({said:?}))");
            let stream = [granted(&["1"]), end].concat();
            assert_eq!(events(target, &stream), ["Open", &said, "End"]);
        }
        let closed = events(target, &[0x88, 2, 0x03, 0xf4]);
        assert_eq!(closed, ["Goodbye(Code(1012))"]);
    }

    #[test]
    fn anything_but_a_message_is_an_error() {
        let texts: [&[u8]; 8] = [
            b"",
            b"[null,null,\"a\",\"e\"]",
            b"{\"topic\":\"a\",\"event\":\"e\",\"payload\":{},\"ref\":null}",
            b"[null,null,\"\xff\",\"e\",{}]",
            b"[\"1\",\"1\",\"a\",\"phx_reply\",{}]",
            b"\x00\x01\x01",
            b"\x02\x01\x05ae",
            b"\x03",
        ];
        for text in texts {
            let mut stream = Vec::new();
            frame::encode(Opcode::Text, false, text, &mut stream);
            assert_eq!(read_all("/", &stream), Err(INVALID), "{}", text.escape_ascii());
        }
        let masked = [0x81, 0x80, 0, 0, 0, 0];
        assert!(matches!(read_all("/", &masked), Err(ClientError::InvalidBody(_))));
        let long = [0x81, 127, 0, 0, 0, 1, 0, 0, 0, 0];
        assert_eq!(read_all("/", &long), Err(ClientError::TooLong));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_of_a_server_make_it_panic(
            payload in proptest::prelude::prop_oneof![
                proptest::collection::vec(proptest::prelude::any::<u8>(), 0..60),
                r#"\[(null|"1"),(null|"[01]"),"a","(phx_reply|phx_error|e)",[{}:"a-z,]{0,12}\]"#
                    .prop_map(String::into_bytes),
            ],
            after in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..60),
            is_framed: bool, cut in 0usize..120,
        ) {
            let mut stream = Vec::new();
            if is_framed {
                frame::encode(Opcode::Text, false, &payload, &mut stream);
            } else {
                stream.extend(payload);
            }
            stream.extend(after);
            let (a, b) = stream.split_at(cut.min(stream.len()));
            let split = read_pieces("/?topic=a", &[a, b]);
            proptest::prop_assert_eq!(split, read_pieces("/?topic=a", &[&stream]));
        }

        #[test]
        fn any_messages_in_any_pieces_arrive(
            texts in proptest::collection::vec("[ -~é\n]{0,40}", 0..8), size in 1usize..100,
        ) {
            let mut stream = granted(&["1"]);
            for text in &texts {
                stream.extend(broadcast("a", "message", Content::Text(text)));
            }
            let pieces: Vec<&[u8]> = stream.chunks(size).collect();
            let (events, _) = read_pieces("/?topic=a", &pieces).unwrap();
            let data = |text: &String| serde_json::json!({"data": text});
            let payloads = events[1..].iter().map(|text| serde_json::from_str(text).unwrap());
            proptest::prop_assert_eq!(
                payloads.collect::<Vec<serde_json::Value>>(),
                texts.iter().map(data).collect::<Vec<_>>()
            );
        }
    }
}
