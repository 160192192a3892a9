use super::*;
use model::{
    CloseReason, ConnectionId, Data, Epoch, Message, Position, Publication, RecoveryGap,
    ResumeToken,
};
use protocol::http::{Http, HttpReply};
use protocol::json::recovery;
use protocol::phoenix::{Phoenix, Serializer};
use protocol::poll::{self, LongPoll};
use protocol::sse::{self, Sse};
use protocol::stream::{self, Stream};
use protocol::websocket::WebSocket;
use protocol::{Codecs, Protocol, ProtocolRef};

/// Feeds a stream in two pieces for every place to cut it, and byte by byte; all must give the same.
fn read(client: &'static dyn Client, stream: &[u8]) -> Result<(Vec<String>, Vec<u8>), ClientError> {
    let whole = read_pieces(client, &[stream]);
    for at in 0..stream.len() {
        let (a, b) = stream.split_at(at);
        assert_eq!(read_pieces(client, &[a, b]), whole, "cut at {at}");
    }
    let bytes: Vec<&[u8]> = stream.chunks(1).collect();
    assert_eq!(read_pieces(client, &bytes), whole);
    whole
}

fn read_pieces(
    client: &'static dyn Client,
    pieces: &[&[u8]],
) -> Result<(Vec<String>, Vec<u8>), ClientError> {
    let (mut state, mut pending, mut out, mut events) =
        (State::default(), Vec::new(), Vec::new(), Vec::new());
    for piece in pieces {
        let mut feed = Feed { client, number: 7, pending: &mut pending, out: &mut out };
        state.feed(&mut feed, piece, &mut |event| {
            events.push(match event {
                Event::Message(bytes) => format!("message {}", String::from_utf8_lossy(bytes)),
                Event::Part(bytes) => format!("part {}", String::from_utf8_lossy(bytes)),
                other => format!("{other:?}"),
            });
        })?;
    }
    Ok((events, out))
}

fn message(data: Data) -> Message {
    Message::new(Publication::new("t", data), Position { epoch: Epoch(10), offset: 7 }, 0, 0)
}

fn encoded(protocol: ProtocolRef, text: &str) -> Vec<u8> {
    protocol::encoded(&message(Data::Text(text.into())).into(), protocol, &mut Codecs::new(6, 64))
        .to_vec()
}

const SSE: Sse = Sse { json: false };
const WS: WebSocket = WebSocket { window_bits: 0 };

/// Transports that stay open, by the names of their clients.
const LASTING: [(&str, ProtocolRef); 3] = [("sse", &SSE), ("stream", &Stream), ("ws", &WS)];

const ID: ConnectionId = ConnectionId { node: model::NodeId(9), shard: 0, slot: 1, serial: 2 };

#[test]
fn events_of_a_stream_of_events() {
    let sse_client = by_name("sse").unwrap();
    let mut bytes = Vec::new();
    sse::open("", 2000, &mut bytes);
    bytes.extend(encoded(&SSE, "one\ntwo"));
    SSE.heartbeat(&mut bytes);
    bytes.extend(b"data: with crlf\r\n\r\n");
    SSE.goodbye(CloseReason::Drain, 1700, &mut bytes);
    let interim = [b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n".as_slice(), &bytes].concat();
    let (events, out) = read(sse_client, &interim).unwrap();
    let want = [
        "Open",
        "message id: 0000000a:7\ndata: one\ndata: two\n\n",
        "Token(\"0000000a:7\")",
        "Heartbeat",
        "message data: with crlf\r\n\r\n",
        "Goodbye(Named(\"drain\"))",
    ];
    assert_eq!(events, want);
    assert!(out.is_empty());
}

#[test]
fn lines_of_a_stream_in_chunks() {
    let mut bytes = Vec::new();
    stream::welcome("", ID, &["foo".into()], &[], &mut bytes);
    bytes.extend(encoded(&Stream, "x"));
    Stream.heartbeat(&mut bytes);
    bytes.extend(b"2;a=b\r\nhi\r\n3\r\n!\nz\r\n2\r\nz\n\r\n");
    Stream.goodbye(CloseReason::ByApplication, 1700, &mut bytes);
    let (events, _) = read(by_name("stream").unwrap(), &bytes).unwrap();
    let line = "{\"type\":\"message\",\"topic\":\"t\",\"id\":\"0000000a:7\",\"event\":\"message\",\"data\":\"x\"}";
    let want = [
        "Open".to_string(),
        format!("message {line}"),
        "Token(\"0000000a:7\")".into(),
        "Heartbeat".into(),
        "message hi!".into(),
        "message zz".into(),
        "Goodbye(Named(\"application\"))".into(),
        "End".into(),
    ];
    assert_eq!(events, want);
}

#[test]
fn a_poll_continues_from_its_token() {
    let id = Position { epoch: Epoch(10), offset: 9 };
    let messages = [message(Data::Text("a".into())), message(Data::Text("b".into()))];
    let body = poll::reply(messages.iter(), &id.into(), Some(true), None, &[]);
    let mut bytes = Vec::new();
    let outcome = HttpReply {
        status: 200,
        headers: "",
        content_type: "application/json",
        body: &body,
        keep_alive: true,
        head_only: false,
    };
    outcome.write(&mut bytes);
    outcome.write(&mut bytes);
    let poll = by_name("poll").unwrap();
    let (events, _) = read(poll, &bytes).unwrap();
    assert_eq!(events.len(), 12);
    assert_eq!(events[0], "Recovered(true)");
    assert!(events[1].ends_with("\"data\":\"a\"}"), "{events:?}");
    assert_eq!(events[2], "Token(\"0000000a:7\")");
    assert_eq!(events[5], "Again(\"0000000a:9\")");
    let mut out = Vec::new();
    let request =
        Request { host: "h", target: "/poll?topic=t", number: 0, token: Some("0000000a:9") };
    poll.request(&request, &mut out);
    assert!(out.starts_with(b"GET /poll?topic=t&since=0000000a:9 HTTP/1.1\r\nHost: h\r\n"));
    let invalid = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
    assert!(matches!(read(poll, invalid), Err(ClientError::InvalidBody(_))));
}

#[test]
fn a_websocket_checks_the_accept_key_replies_pings_and_reports_the_close() {
    let ws = by_name("ws").unwrap();
    let mut request = Vec::new();
    ws.request(&Request { host: "h", target: "/ws", number: 7, token: None }, &mut request);
    let text = String::from_utf8(request).unwrap();
    let key = text.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
    let accept = protocol::websocket::handshake::accept(key).unwrap();
    let mut bytes = Vec::new();
    protocol::websocket::handshake::response(&accept, None, None, &mut bytes);
    bytes.extend(encoded(&WS, "x"));
    bytes.extend([0x01, 1, b'a', 0x89, 1, b'p', 0x80, 1, b'b', 0x88, 2, 0x03, 0xf4]);
    let (events, out) = read(ws, &bytes).unwrap();
    assert!(events[1].contains("\"data\":\"x\""), "{events:?}");
    assert_eq!(events[2], "Token(\"0000000a:7\")");
    assert_eq!(events[3..], ["part a", "Heartbeat", "message b", "Goodbye(Code(1012))"]);
    assert_eq!(out, [0x8a, 0x81, 0, 0, 0, 0, b'p', 0x88, 0x82, 0, 0, 0, 0, 0x03, 0xf4]);
    let other = bytes.iter().position(|byte| *byte == b'=').unwrap();
    bytes[other - 1] ^= 1;
    assert!(matches!(read(ws, &bytes), Err(ClientError::InvalidHead(_))));
}

#[test]
fn each_transport_comes_back_with_what_it_saw() {
    let request = |name: &str, target| {
        let request =
            Request { host: "h", target, number: 7, token: Some("0000000a:7/9-0000000b.8") };
        let mut out = Vec::new();
        by_name(name).unwrap().request(&request, &mut out);
        String::from_utf8(out).unwrap()
    };
    assert!(request("sse", "/sse").contains("\r\nLast-Event-ID: 0000000a:7/9-0000000b.8\r\n"));
    for name in ["stream", "poll", "ws"] {
        assert!(
            request(name, "/x").starts_with("GET /x?since=0000000a:7/9-0000000b.8 HTTP/1.1\r\n")
        );
        assert!(
            request(name, "/x?a=b").starts_with("GET /x?a=b&since=0000000a:7/9-0000000b.8 HTTP")
        );
    }
    assert!(!request("phoenix", "/x?a=b").contains("0000000a"), "joins say it");
}

#[test]
fn a_recovery_line_is_not_a_message() {
    let token: ResumeToken = "0000000a:7/9-0000000b.8".parse().unwrap();
    let lost = [("news".into(), RecoveryGap::TooOld)];
    let line = |protocol: ProtocolRef, lost: Option<&[_]>| {
        let (mut json, mut out) = (Vec::new(), Vec::new());
        recovery(&token, lost, &mut json);
        protocol.recovery(&json, &mut Codecs::new(6, 64), &mut out);
        out
    };
    let ws_head = || {
        let mut out = Vec::new();
        let ws = by_name("ws").unwrap();
        ws.request(&Request { host: "h", target: "/ws", number: 7, token: None }, &mut out);
        let text = String::from_utf8(out).unwrap();
        let key = text.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
        let mut head = Vec::new();
        protocol::websocket::handshake::response(
            &protocol::websocket::handshake::accept(key).unwrap(),
            None,
            None,
            &mut head,
        );
        head
    };
    for (name, protocol) in LASTING {
        let mut bytes = match name {
            "ws" => ws_head(),
            "sse" => b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n".to_vec(),
            "stream" => b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(),
            other => panic!("no answer of {other}"),
        };
        for lost in [Some(&lost[..]), Some(&[]), None] {
            bytes.extend(line(protocol, lost));
            protocol.state_complete("state:lamp", &mut Codecs::new(6, 64), &mut bytes);
        }
        let (events, _) = read(by_name(name).unwrap(), &bytes).unwrap();
        let token_event = "Token(\"0000000a:7/9-0000000b.8\")";
        let gap = "Gap(\"too_old\")";
        let want = [
            "Open",
            gap,
            "Recovered(false)",
            token_event,
            "Recovered(true)",
            token_event,
            token_event,
        ];
        assert_eq!(events, want, "{name}");
    }
    let mut bytes = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n".to_vec();
    SSE.position(&token, &mut bytes);
    bytes.extend(b"event: recovery\ndata: the application's own\n\n");
    let (events, _) = read(by_name("sse").unwrap(), &bytes).unwrap();
    assert_eq!(events[1], "Token(\"0000000a:7/9-0000000b.8\")");
    assert!(events[2].starts_with("message event: recovery"), "{events:?}");
    let phoenix = &Phoenix { serializer: Serializer::V2, polled: false };
    for protocol in [&LongPoll as ProtocolRef, phoenix, &Http] {
        assert!(line(protocol, None).is_empty());
    }
}

#[test]
fn replies_to_commands_say_where_a_topic_is_entered_and_what_is_acknowledged() {
    let ws = by_name("ws").unwrap();
    let mut out = Vec::new();
    assert!(ws.subscribe("a\"", Some("0000000a:7"), &mut out) && ws.subscribe("b", None, &mut out));
    assert!(ws.acknowledge("al", "0000000a:9", &mut out));
    let mut sent = Vec::new();
    let mut rest = &out[..];
    while let Some((head, head_bytes)) = protocol::websocket::frame::Head::parse(rest).unwrap() {
        let (text, behind) = rest[head_bytes..].split_at(head.length as usize);
        sent.push(std::str::from_utf8(text).unwrap());
        rest = behind;
    }
    let want = [
        r#"{"type":"subscribe","id":1,"topic":"a\"","since":"0000000a:7"}"#,
        r#"{"type":"subscribe","id":1,"topic":"b"}"#,
        r#"{"type":"ack","id":2,"user":"al","message":"0000000a:9"}"#,
    ];
    assert_eq!(sent, want);
    assert!(sent.iter().all(|text| protocol::websocket::command::parse(text, None).is_ok()));
    for (ok, want) in [
        (
            r#"{"topic":"a","since":"0000000a:9","recovered":true}"#,
            &["Entered(\"a\")", "Recovered(true)", "Token(\"0000000a:9\")"][..],
        ),
        (r#"{"topic":"@al","acknowledged":"0000000a:9"}"#, &["Acknowledged(\"0000000a:9\")"]),
        (r#"{"topic":"a"}"#, &[]),
        ("7", &[]),
    ] {
        let mut events = Vec::new();
        let line = format!("{{\"type\":\"reply\",\"id\":1,\"ok\":{ok}}}");
        emit_json(line.as_bytes(), &mut |event| events.push(format!("{event:?}")));
        assert_eq!(events, want);
    }
}

#[test]
fn a_topic_can_not_pass_for_an_id() {
    let topic = r#"a","id":"b\"#;
    let publication = Publication::new(topic, Data::Text("x".into()));
    let message = Message::new(publication, Position { epoch: Epoch(10), offset: 7 }, 0, 0);
    let mut json = Vec::new();
    protocol::json::message(&message, &mut json);
    assert_eq!(message_id(&json), Some("0000000a:7"));
}

#[test]
fn a_published_text_can_not_pass_for_an_id() {
    let data = Data::Json(r#"{"a":"b","id":"zz"}"#.into());
    let id = Position { epoch: Epoch(10), offset: 7 };
    let message = Message::new(Publication::new(r#"a"b\"#, data), id, 0, 0).passing();
    let mut json = Vec::new();
    protocol::json::message(&message, &mut json);
    assert_eq!(message_id(&json), None);
}

#[test]
fn an_error_status_is_reported() {
    let bytes = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
    for client in ALL.into_iter().filter(|client| client.is_http()) {
        assert_eq!(read(client, bytes), Err(ClientError::Status(503)), "{}", client.name());
        assert_eq!(read(client, b"SSH-2.0-x\r\n"), Err(ClientError::NotHttp));
    }
    let html = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n";
    assert!(matches!(read(by_name("sse").unwrap(), html), Err(ClientError::InvalidHead(_))));
}

proptest::proptest! {
    #[test]
    fn no_bytes_of_a_server_make_it_panic(
        bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
        cut in 0usize..200, good_head: bool, chunked: bool,
    ) {
        for client in ALL {
            let mut stream = Vec::new();
            if good_head {
                stream.extend(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n");
                stream.extend(if chunked { b"Transfer-Encoding: chunked\r\n\r\n".as_slice() } else { b"\r\n" });
            }
            stream.extend(&bytes);
            let (a, b) = stream.split_at(cut.min(stream.len()));
            let split = read_pieces(client, &[a, b]);
            proptest::prop_assert_eq!(split, read_pieces(client, &[&stream]));
        }
    }

    #[test]
    fn any_messages_in_any_pieces_arrive(
        texts in proptest::collection::vec("[ -~é\n]{0,40}", 0..8), size in 1usize..100,
    ) {
        for (name, protocol) in LASTING {
            let client = by_name(name).unwrap();
            let mut stream = Vec::new();
            match name {
                "sse" => sse::open("", 1, &mut stream),
                "stream" => stream::welcome("", ID, &[], &[], &mut stream),
                "ws" => {
                    stream.extend(b"HTTP/1.1 101 x\r\nSec-WebSocket-Accept: ");
                    let mut request = Vec::new();
                    client.request(&Request { host: "h", target: "/", number: 7, token: None }, &mut request);
                    let text = String::from_utf8(request).unwrap();
                    let key = text.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "));
                    stream.extend(protocol::websocket::handshake::accept(key.unwrap()).unwrap().as_bytes());
                    stream.extend(b"\r\n\r\n");
                }
                other => panic!("no answer of {other}"),
            }
            for text in &texts {
                stream.extend(encoded(protocol, text));
            }
            let pieces: Vec<&[u8]> = stream.chunks(size).collect();
            let (events, _) = read_pieces(client, &pieces).unwrap();
            proptest::prop_assert_eq!(events.len(), 1 + 2 * texts.len(), "{:?}", events);
        }
    }
}

fn mqtt_packets(exactly: bool) -> Vec<u8> {
    use protocol::mqtt::write::{ConfirmType, PublishParts, confirm, connack, suback};
    use protocol::mqtt::{ReasonCode, Version};
    let mut out = Vec::new();
    connack(Version::V3, false, 0, &[], &mut out).unwrap();
    suback(Version::V3, 1, &[], &[1], &mut out).unwrap();
    PublishParts {
        version: Version::V3,
        dup: true,
        qos: if exactly { model::Qos::ExactlyOnce } else { model::Qos::AtLeastOnce },
        retain: false,
        topic: "t",
        id: 9,
        properties: std::iter::empty(),
        payload: b"hello",
    }
    .write(&mut out)
    .unwrap();
    if exactly {
        confirm(ConfirmType::Pubrel, Version::V3, 9, ReasonCode::Success, &[], &mut out).unwrap();
    }
    out
}

#[test]
fn mqtt_clients_confirm_what_comes() {
    let mqtt = by_name("mqtt").unwrap();
    let (events, out) = read(mqtt, &mqtt_packets(false)).unwrap();
    let delivery = "Delivery { id: 9, again: true, exactly: false }";
    assert_eq!(events, ["Join", "Open", delivery, "message hello"]);
    assert_eq!(out, [0x40, 2, 0, 9]);
    let (events, out) = read(mqtt, &mqtt_packets(true)).unwrap();
    let delivery = "Delivery { id: 9, again: true, exactly: true }";
    assert_eq!(events, ["Join", "Open", delivery, "message hello", "Released(9)"]);
    assert_eq!(out, [0x50, 2, 0, 9, 0x70, 2, 0, 9]);
    assert_eq!(read(mqtt, &[0x20, 2, 1, 0]).unwrap().0, ["Session", "Join"]);
    assert!(read(mqtt, &[0x20, 2, 0, 5]).unwrap_err().to_string().contains("CONNACK"));
    let refused = [0x20, 2, 0, 0, 0x90, 3, 0, 1, 0x80];
    assert!(matches!(read(mqtt, &refused), Err(ClientError::Rejected(_))));
    for wrong in [&b"HTTP/1.1 200 OK\r\n\r\n"[..], &[0x20, 2, 0, 0, 0x10, 0]] {
        assert!(read(mqtt, wrong).is_err());
    }
}

#[test]
fn an_mqtt_client_says_what_its_target_names() {
    use protocol::mqtt::{Packet, Side, Version};
    let mqtt = by_name("mqtt").unwrap();
    let target = "/mqtt?user=al&topic=a/b&topic=c&qos=2&session=run7&keepalive=0";
    let request = Request { host: "h", target, number: 7, token: None };
    let mut out = Vec::new();
    mqtt.request(&request, &mut out);
    let read = protocol::mqtt::read(&out, None, Side::Client, 1_000).unwrap().unwrap().0;
    let Packet::Connect(connect) = read else { panic!("{read:?}") };
    assert_eq!((connect.client, connect.user, connect.clean), ("run7-7", Some("al"), false));
    assert_eq!(connect.keep_alive_s, 0);
    out.clear();
    assert_eq!(mqtt.join(&request, &mut out), 1);
    let version = Some(Version::V3);
    let read = protocol::mqtt::read(&out, version, Side::Client, 1_000).unwrap().unwrap().0;
    let Packet::Subscribe(subscribe) = read else { panic!("{read:?}") };
    let filters: Vec<&str> = subscribe.subscriptions().map(|it| it.filter.filter).collect();
    assert_eq!(filters, ["@al", "a/b", "c"]);
    assert!(subscribe.subscriptions().all(|it| it.qos == model::Qos::ExactlyOnce));
    out.clear();
    mqtt.join(&Request { target: "/mqtt", ..request }, &mut out);
    assert_eq!(out, [0xc0, 0]);
}
