//! What requests mean: resume tokens, tags, acknowledgements.

use auth::{LoginRule, Policy, Principal};
use model::tags::{TAG_BYTES_MAX, TAGS_MAX};
use model::{CloseReason, ConnectionId, Data, Encoding, Message, Name, ResumeRequest, Rules};

use crate::http::Http;
use crate::phoenix::{Phoenix, Serializer};
use crate::request::{Acknowledgement, Open, ReplyTo};
use crate::websocket::frame::{self, Opcode};
use crate::websocket::{Decoder, WebSocket};
use crate::{
    Codecs, Delivery, Listener, Liveness, Protocol, ProtocolRef, Protocols, Read, Reader,
    Recognised, Request, Settings, standard,
};

const ID: ConnectionId = ConnectionId { node: model::NodeId(9), shard: 1, slot: 2, serial: 3 };

fn settings() -> Settings {
    let rules = Rules { publish_prefixes: vec!["".into()], ..Rules::default() };
    Settings {
        topics_per_connection_max: 8,
        ..Settings::for_tests(Policy::new(rules, LoginRule::Allow))
    }
}

/// The request, and the reply if the protocol writes one.
fn routed(method: &str, target: &str, headers: &str, body: &str) -> (Request, String) {
    routed_with(&settings(), method, target, headers.as_bytes(), body)
}

fn routed_with(
    settings: &Settings,
    method: &str,
    target: &str,
    headers: &[u8],
    body: &str,
) -> (Request, String) {
    let line =
        format!("{method} {target} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n", body.len());
    let mut bytes = [line.as_bytes(), headers, b"\r\n", body.as_bytes()].concat();
    let (read, out) = read(settings, &Http, &mut bytes);
    assert_eq!(read.consumed, bytes.len());
    (read.request.unwrap(), String::from_utf8_lossy(&out).into_owned())
}

/// The time, in seconds since 1970.
const NOW_S: u64 = 1_000_000;

/// Lets a protocol read bytes.
fn read(settings: &Settings, protocol: ProtocolRef, bytes: &mut [u8]) -> (Read, Vec<u8>) {
    let mut out = Vec::new();
    let mut reader = Reader {
        settings,
        protocols: standard(),
        id: ID,
        peer: Default::default(),
        speaker: &|| Principal::anonymous(Vec::new()),
        stranger: false,
        now_ms: NOW_S * 1_000,
        decisions: crate::request::Decisions::NONE,
        codecs: &mut Codecs::new(6, 64),
        decoder: &mut Decoder::default(),
        open: false,
    };
    (protocol.read(&mut reader, bytes, &mut out), out)
}

/// The request of a listener on the transport, or the name of the error.
fn listens(path: &str, query: &str, headers: &str) -> Result<(ResumeRequest, Vec<Name>), String> {
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let upgrade = if path == "/ws" { upgrade } else { "" };
    match routed("GET", &format!("{path}?{query}"), &format!("{upgrade}{headers}"), "") {
        (Request::Open(Open { resume, tags, .. }), _) => Ok((resume, tags)),
        (Request::Poll(poll), _) => Ok((poll.resume, poll.tags)),
        (Request::Replied { .. }, reply) => Err(code(&reply)),
        other => panic!("{other:?}"),
    }
}

fn code(reply: &str) -> String {
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 400 "), "{reply}");
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    body["error"]["code"].as_str().unwrap().into()
}

const PATHS: [&str; 4] = ["/sse", "/stream", "/poll", "/ws"];

#[test]
fn a_listener_says_where_it_was_and_what_it_wants() {
    let token = |text: &str| text.parse::<model::Since>().unwrap();
    let all = |text: &str| ResumeRequest { all: Some(token(text)), topics: vec![] };
    for path in PATHS {
        let resume = |query: &str, headers: &str| {
            listens(path, &format!("topic=a/b&user=alice&{query}"), headers).map(|it| it.0)
        };
        assert_eq!(resume("", ""), Ok(ResumeRequest::default()));
        assert_eq!(resume("since=", ""), Ok(ResumeRequest::default()));
        assert_eq!(resume("since=5f3a91c2:7/9-0000000b.8", ""), Ok(all("5f3a91c2:7/9-0000000b.8")));
        assert_eq!(resume("lastEventID=5f3a91c2%3A7", ""), Ok(all("5f3a91c2:7")));
        let each =
            resume("since:%40alice=5f3a91c2:3&since:a/b=5f3a91c2:1&since:a/b=5f3a91c2:2", "");
        let each = each.unwrap();
        assert_eq!(each.of("@alice"), Some(&token("5f3a91c2:3")));
        assert_eq!((each.of("a/b"), each.of("c")), (Some(&token("5f3a91c2:2")), None));
        assert_eq!(each.topics.len(), 2);

        let last = "Last-Event-ID: 5f3a91c2:9\r\n";
        assert_eq!(resume("since=5f3a91c2:7&since:a/b=5f3a91c2:1", last), Ok(all("5f3a91c2:9")));
        let elsewhere = || model::Since::from(model::ResumeToken::from(model::ELSEWHERE));
        let foreign = ResumeRequest { all: Some(elsewhere()), topics: vec![] };
        for id in ["17", "some text", "5f3a91c2:", "f\u{fc}r"] {
            let header = format!("Last-Event-ID: {id}\r\n");
            let url = format!("lastEventID={}", id.replace(' ', "+"));
            for (query, header) in [("", &*header), (&url, "")] {
                assert_eq!(resume(query, header), Ok(foreign.clone()), "{id}");
                let query = |since: &str| format!("{since}&{query}");
                assert_eq!(
                    resume(&query("since=5f3a91c2:7"), header),
                    Ok(all("5f3a91c2:7")),
                    "{id}"
                );
                let named = resume(&query("since:a/b=5f3a91c2:1"), header).unwrap();
                assert_eq!(named.of("a/b"), Some(&token("5f3a91c2:1")), "{id}");
                assert_eq!(named.of("@alice"), Some(&elsewhere()), "{id}");
            }
            assert_eq!(resume(&url, last), Ok(all("5f3a91c2:9")), "the header is newer");
        }
        for (query, header) in [("", "Last-Event-ID: \r\n"), ("lastEventID=", "")] {
            assert_eq!(resume(query, header), Ok(ResumeRequest::default()), "none is given");
        }
        for text in ["start", "last:50"] {
            let named = ResumeRequest { all: None, topics: vec![("a/b".into(), token(text))] };
            assert_eq!(resume(&format!("since={text}"), ""), Ok(all(text)));
            assert_eq!(resume(&format!("since:a/b={text}"), ""), Ok(named));
            // A browser reconnects with the same URL: its header is newer.
            assert_eq!(resume(&format!("since={text}"), last), Ok(all("5f3a91c2:9")));
            assert_eq!(resume(&format!("since:a/b={text}"), last), Ok(all("5f3a91c2:9")));
            for url in ["lastEventID=5f3a91c2:9&since=", "lastEventID=5f3a91c2:9&since:a/b="] {
                assert_eq!(resume(&format!("{url}{text}"), ""), Ok(all("5f3a91c2:9")));
            }
            let id = format!("Last-Event-ID: {text}\r\n");
            assert_eq!(resume("", &id), Ok(foreign.clone()), "it is no event's id");
        }
        for bad in ["since=last:0", "since:a/b=last:1001", "since=START", "lastEventID=start"] {
            assert_eq!(resume(bad, ""), Err("bad_since".into()), "{bad}");
        }
        for bad in ["since=7", "since:a/b=x", "since:c=5f3a91c2:1", "since:@bob=5f3a91c2:1"] {
            assert_eq!(resume(bad, ""), Err("bad_since".into()), "{bad}");
        }
        assert!(listens(path, "since:t=5f3a91c2:1&topic=t", "").is_ok(), "in any order");

        let tags = |query: &str| listens(path, &format!("topic=t{query}"), "").map(|it| it.1);
        assert_eq!(tags("&tag=red&tag=a+b&tag=red"), Ok(vec!["red".into(), "a b".into()]));
        assert_eq!(tags("&tag="), Err("bad_tag".into()));
        let long = "x".repeat(TAG_BYTES_MAX + 1);
        assert_eq!(tags(&format!("&tag={long}")), Err("bad_tag".into()));
        let many: String = (0..=TAGS_MAX).map(|number| format!("&tag={number}")).collect();
        assert_eq!(tags(&many), Err("bad_tag".into()));
    }
}

#[test]
fn a_parameter_that_was_meant_to_be_ours_is_named_and_others_pass() {
    for path in PATHS {
        for (query, right) in [
            ("topics=news", "topic"),
            ("channel=news&t=1", "topic"),
            ("users=alice", "user"),
            ("topic=news&usr=alice", "user"),
            ("topic=news&channel=web&users=alice", "user"),
            ("topic=news&lastEvenID=5f3a91c2:7", "lastEventID"),
        ] {
            let error = listens(path, query, "").unwrap_err();
            assert_eq!(error, "bad_parameter", "{path}?{query}");
            let (_, reply) = routed("GET", &format!("/sse?{query}"), "", "");
            assert!(reply.contains(&format!("did you mean {right}?")), "{reply}");
        }
        for query in [
            "topic=news&utm_source=x&_=17&tab=2&nocache",
            // The request has the right one: the other is the page's own.
            "topic=news&channel=web&user=alice&user_id=17",
            "topic=news&lastEventID=&lastEvenID=5",
            // Clients write it in different ways.
            "topic=news&lastEventId=5f3a91c2:7",
            "topic=news&Last-Event-Id=5f3a91c2:7",
            "topic=news&event=tick&key=x&since:",
        ] {
            assert!(listens(path, query, "").is_ok(), "{path}?{query}");
        }
    }
    let (_, reply) = routed("POST", "/publish?channel=news", "", "x");
    assert!(reply.contains("did you mean topic?"), "{reply}");
    // Without an error, the message would be published twice, or with another sender than the client expects.
    for name in ["idempotency_key", "id", "sender", "no_history", "ttl_seconds", "if_offset"] {
        let (_, reply) = routed("POST", &format!("/publish?topic=t&{name}=k"), "", "x");
        assert_eq!(code(&reply), "bad_parameter", "{name}");
        assert!(reply.contains(&format!("/publish has no parameter {name}: ")), "{reply}");
        assert!(reply.contains("POST /api/publish on the admin port"), "{reply}");
    }
    // A reader that turns pages like this would get the same page every time.
    for name in ["before", "offset", "page", "until", "cursor"] {
        let (_, reply) = routed("GET", &format!("/history?topic=t&{name}=1"), "", "");
        assert_eq!(code(&reply), "bad_parameter", "{name}");
        assert!(reply.contains("did you mean since with reverse=true?"), "{reply}");
    }
    assert!(listens("/sse", "topic=t&before=1&id=2&page=3", "").is_ok());
    let (_, reply) = routed("GET", "/presence?topics=news", "", "");
    assert!(reply.contains("did you mean topic?"), "{reply}");
}

#[test]
fn a_client_in_no_topic_gets_an_error() {
    for (target, is_listed) in [
        ("/sse", true),
        ("/sse?format=json&x=1", true),
        ("/sse?topic=news", false),
        ("/sse?user=alice", false),
        ("/stream", true),
        ("/stream?topic=news", false),
        ("/stream?user=alice", false),
    ] {
        let (_, reply) = routed("GET", target, "", "");
        let says = reply.contains("in no topic") && reply.contains("?topic=news&user=alice");
        assert_eq!(says, is_listed, "{target}: {reply}");
        if target.starts_with("/sse") && is_listed {
            // A comment, which no EventSource passes to the page.
            let line = reply.lines().find(|line| line.contains("in no topic")).unwrap();
            assert!(line.starts_with(": ") && reply.ends_with("\n\n"), "{reply}");
        }
    }
}

#[test]
fn a_publisher_may_give_a_message_attributes() {
    let publish = |query: &str| match routed("POST", &format!("/publish?topic=t{query}"), "", "x") {
        (Request::Publish { publication, .. }, _) => Ok(publication),
        (_, reply) => Err(code(&reply)),
    };
    assert_eq!(publish("").unwrap().attributes, None);
    let publication = publish("&tag=red&tag=blue&key=price").unwrap();
    assert_eq!(
        (publication.tags(), publication.key().unwrap().as_str()),
        (&["red".into(), "blue".into()][..], "price")
    );
    assert_eq!(publication.data, Data::Text("x".into()));
    assert_eq!(publish("&key=").unwrap_err(), "bad_key");
    assert_eq!(publish("&tag=").unwrap_err(), "bad_tag");
    // The page may have a parameter of this name for itself.
    assert!(listens("/sse", "topic=t&key=", "").is_ok());
}

#[test]
fn an_acknowledgement_is_a_body_or_a_query() {
    let acked = |target: &str, body: &str| match routed("POST", target, "", body) {
        (Request::Acknowledge { principal, acknowledgement, .. }, reply) => {
            assert_eq!(reply, "");
            let principal = principal.unwrap();
            // A client without a need for proof is the user that it names.
            assert_eq!(Some(&principal.users[0]), acknowledgement.user.as_ref());
            let Acknowledgement { user, topic, id } = acknowledgement;
            Ok((user.unwrap().to_string(), topic.map(String::from), id.to_string()))
        }
        (_, reply) => Err(code(&reply)),
    };
    let of = |topic: Option<&str>| {
        Ok(("alice".to_string(), topic.map(str::to_string), "5f3a91c2:7".to_string()))
    };
    let body = |fields: &str| acked("/ack", &format!("{{{fields}}}"));
    let own = r#""user":"alice","id":"5f3a91c2:7""#;
    assert_eq!(body(own), of(None));
    assert_eq!(body(&format!(r#"{own},"topic":"orders""#)), of(Some("orders")));
    assert_eq!(body(&format!(r#"{own},"topic":"@alice""#)), of(None));
    assert_eq!(body(r#""topic":"@al\u0069ce","id":"5f3a91c2:7/9-0000000b.8""#), of(None));
    assert_eq!(acked("/ack?user=alice&id=5f3a91c2:7&x=1", ""), of(None));
    assert_eq!(acked("/ack?user=alice&id=5f3a91c2%3A7&topic=orders", ""), of(Some("orders")));
    // A proxy that guards users sees the query only, so a body can't name another.
    let both = |query: &str, fields: &str| {
        acked(&format!("/ack?{query}"), &format!(r#"{{{fields},"id":"5f3a91c2:7"}}"#))
    };
    assert_eq!(both("user=alice", r#""user":"alice""#), of(None));
    assert_eq!(both("user=alice", r#""topic":"@alice""#), of(None));
    assert_eq!(both("user=alice", r#""topic":"orders","user":"alice""#), of(Some("orders")));
    for body in [r#""user":"bob""#, r#""topic":"@bob""#, r#""user":"bob","topic":"orders""#] {
        assert_eq!(both("user=alice", body), Err("bad_user".into()), "{body}");
        assert_eq!(both("user=alice&user=bob", body), Err("bad_user".into()), "{body}");
    }
    assert_eq!(acked("/ack?user=alice&user=bob&id=5f3a91c2:7", ""), Err("bad_user".into()));
    for (bad, code) in [
        ("", "bad_id"),
        (r#""id":"5f3a91c2:7""#, "bad_user"),
        (r#""user":"","id":"5f3a91c2:7""#, "bad_user"),
        (r#""user":"alice","id":"7""#, "bad_id"),
        (r#""user":"alice","id":7"#, "bad_request"),
        (r#""user":"alice","id":"5f3a91c2:7","x":1"#, "bad_request"),
        (r#""user":"alice","topic":"@bob","id":"5f3a91c2:7""#, "bad_topic"),
        (r#""user":"alice","topic":"","id":"5f3a91c2:7""#, "bad_topic"),
        (r#""user":"alice","topic":"*","id":"5f3a91c2:7""#, "bad_topic"),
        (r#""topic":"@","id":"5f3a91c2:7""#, "bad_topic"),
    ] {
        assert_eq!(body(bad), Err(code.into()), "{bad}");
    }
    assert_eq!(acked("/ack?id=%FF", ""), Err("bad_query".into()));
    assert_eq!(acked("/ack", "7"), Err("bad_request".into()));
    let fields = r#"["alice",null,"5f3a91c2:7"]"#;
    assert_eq!(acked("/ack", fields), Err("bad_request".into()), "an array is no object");

    let (_, reply) = routed("GET", "/ack", "", "");
    assert!(reply.starts_with("HTTP/1.1 405 ") && reply.contains("Allow: POST, OPTIONS\r\n"));
    let (_, reply) =
        routed("OPTIONS", "/ack", "Access-Control-Request-Headers: content-type\r\n", "");
    assert!(reply.starts_with("HTTP/1.1 204 "), "{reply}");
    assert!(reply.contains("Access-Control-Allow-Origin: *\r\n"));
}

/// Reads a WebSocket's message, and returns the request, and the reply if the protocol writes one.
fn read_as(protocol: ProtocolRef, opcode: Opcode, message: &[u8]) -> (Option<Request>, Vec<u8>) {
    let mut bytes = Vec::new();
    frame::encode_masked(opcode, false, message, [1; 4], &mut bytes);
    let (read, out) = read(&settings(), protocol, &mut bytes);
    assert_eq!(read.consumed, bytes.len());
    (read.request, out)
}

fn read_text(text: &str) -> (Option<Request>, Vec<u8>) {
    read_as(&WebSocket { window_bits: 0 }, Opcode::Text, text.as_bytes())
}

const PHOENIX: ProtocolRef = &Phoenix { serializer: Serializer::V2, polled: false };

#[test]
fn a_page_of_a_foreign_origin_opens_no_websocket_whatever_its_bytes() {
    let listed = Settings { cors_origins: vec!["http://good.example".into()], ..settings() };
    let opens = |settings: &Settings, origins: &[u8]| {
        let upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        let headers = [&upgrade[..], origins].concat();
        let replies = ["/ws", "/socket/websocket?vsn=2.0.0"].map(|target| {
            let (action, reply) = routed_with(settings, "GET", target, &headers, "");
            assert_eq!(matches!(action, Request::Open(_)), reply.starts_with("HTTP/1.1 101 "));
            reply.split(' ').nth(1).unwrap().to_string()
        });
        assert_eq!(replies[0], replies[1]);
        replies[0].clone()
    };
    for (origins, want) in [
        (&b""[..], "101"),
        (b"Origin: http://good.example\r\n", "101"),
        (b"Origin: http://good.example\r\nOrigin: http://good.example\r\n", "101"),
        (b"Origin: http://evil.example\r\n", "403"),
        (b"Origin: \xff\r\n", "403"),
        (b"Origin: \r\n", "403"),
        (b"Origin: null\r\n", "403"),
        (b"Origin: http://good.example\xff\r\n", "403"),
        (b"Origin: http://good.example\r\nOrigin: http://evil.example\r\n", "403"),
        (b"Origin: \xff\r\nOrigin: http://good.example\r\n", "403"),
    ] {
        assert_eq!(opens(&listed, origins), want, "{}", String::from_utf8_lossy(origins));
        assert_eq!(opens(&settings(), origins), "101", "any origin is allowed");
    }
    let cors = |origins: &[u8]| routed_with(&listed, "GET", "/healthz", origins, "").1;
    assert!(
        cors(b"Origin: http://good.example\r\n").contains("Allow-Origin: http://good.example\r\n")
    );
    for foreign in [
        &b"Origin: \xff\r\nOrigin: http://good.example\r\n"[..],
        b"Origin: http://good.example\r\nOrigin: http://evil.example\r\n",
    ] {
        assert!(!cors(foreign).contains("Allow-Origin"), "{}", String::from_utf8_lossy(foreign));
    }
}

#[test]
fn an_event_that_a_page_takes_for_the_servers_is_not_published() {
    for (event, refused) in [
        ("recovery", Some("403 reserved_event")),
        ("error", Some("403 reserved_event")),
        ("open", Some("403 reserved_event")),
        ("phx_close", Some("403 reserved_event")),
        ("presence_state", Some("403 reserved_event")),
        ("a%0Ab", Some("400 bad_event")),
        ("update", None),
        ("message", None),
    ] {
        let (action, reply) = routed("POST", &format!("/publish?topic=t&event={event}"), "", "x");
        let (status, code) = refused.unwrap_or("200 ").split_once(' ').unwrap();
        assert_eq!(matches!(action, Request::Publish { .. }), refused.is_none(), "{event}");
        assert!(refused.is_none() || reply.starts_with(&format!("HTTP/1.1 {status} ")), "{reply}");
        assert!(reply.contains(code), "{reply}");
        if !event.contains('%') {
            let text =
                format!(r#"{{"type":"publish","id":1,"topic":"t","data":1,"event":"{event}"}}"#);
            let (request, _) = read_text(&text);
            let publishes = matches!(request, Some(Request::Publish { .. }));
            assert_eq!(publishes, refused.is_none(), "{request:?}");
        }
    }
    // The page may have a parameter of this name for itself.
    assert!(listens("/sse", "topic=t&event=error", "").is_ok());
}

#[test]
fn an_array_is_no_websocket_command() {
    let fields =
        r#"["subscribe",1,"t",null,null,null,null,null,null,null,null,null,null,null,null,null]"#;
    let (None, frame) = read_text(fields) else { panic!() };
    let reply = String::from_utf8_lossy(&frame);
    assert!(reply.contains(r#""error":{"code":"bad_json""#) && reply.contains("object"), "{reply}");
}

/// A client of a newer protocol or of another dialect gets an error and stays connected.
#[test]
fn a_phoenix_message_of_an_unknown_kind_is_served() {
    for message in [&b"\x09\0\0\0\0"[..], b"\x04\x01\0\0\x01t{}", b"\0\0\0\x01\0\xff"] {
        let (None, frame) = read_as(PHOENIX, Opcode::Binary, message) else { panic!() };
        let reply = String::from_utf8_lossy(&frame[2..]).into_owned();
        let reply: serde_json::Value = serde_json::from_str(reply.trim_start_matches(|c| c != '['))
            .unwrap_or_else(|error| panic!("{error}: {reply}"));
        assert_eq!((&reply[2], &reply[3]), (&"phoenix".into(), &"phx_reply".into()));
        assert_eq!(reply[4]["status"], "error");
        assert!(reply[4]["response"]["reason"].as_str().is_some_and(|why| why.len() > 10));
    }
    for message in [&b""[..], b"\0", b"\x03\x01\x01"] {
        let (request, _) = read_as(PHOENIX, Opcode::Binary, message);
        assert!(matches!(request, Some(Request::Close(CloseReason::ProtocolError))), "{request:?}");
    }
}

#[test]
fn a_websocket_comes_back_and_acknowledges() {
    let (request, _) =
        read_text(r#"{"type":"subscribe","id":1,"topic":"t","since":"5f3a91c2:7","tags":["a"]}"#);
    let Some(Request::Subscribe(id, subscribe, _)) = request else { panic!("{request:?}") };
    assert_eq!((&*id, subscribe.topic.as_str()), ("1", "t"));
    assert_eq!((subscribe.since, subscribe.tags), ("5f3a91c2:7".parse().ok(), vec!["a".into()]));
    let (request, _) =
        read_text(r#"{"type":"ack","id":"x","topic":"orders","message":"5f3a91c2:7"}"#);
    let Some(Request::Acknowledge { acknowledgement, to: ReplyTo::Id(id), .. }) = request else {
        panic!("{request:?}")
    };
    let position = "5f3a91c2:7".parse().unwrap();
    let want = Acknowledgement { user: None, topic: Some("orders".into()), id: position };
    assert_eq!((&*id, acknowledgement), ("\"x\"", want));
}

#[test]
fn browsers_get_different_retry_times() {
    let (_, reply) = routed("GET", "/sse?topic=t", "", "");
    let retry = reply.lines().find_map(|line| line.strip_prefix("retry: ")).unwrap();
    assert!((1500..=2500).contains(&retry.parse::<u32>().unwrap()), "{retry}");
}

proptest::proptest! {
    #[test]
    fn no_query_does_harm(query in "[a-z@:%&=+0-9/-]{0,60}", ack in r#"[{}\[\]",:a-z0-9/@-]{0,60}"#) {
        for path in PATHS {
            routed("GET", &format!("{path}?{query}"), "", "");
        }
        routed("POST", &format!("/ack?{query}"), "", "");
        routed("POST", "/ack", "", &ack);
        routed("POST", &format!("/publish?{query}"), "", "x");
    }

    #[test]
    fn an_acknowledgement_names_one_user_and_a_position(
        user in proptest::option::of("[@a-c]{0,3}"), topic in proptest::option::of("[@*a-c]{0,3}"),
        offset: u64,
    ) {
        let id = format!("0000000a:{offset}");
        let read = Acknowledgement::read(user.as_deref(), topic.as_deref(), Some(&id));
        if let Ok(Acknowledgement { user: who, topic: of, id: position }) = read {
            proptest::prop_assert_eq!(position.to_string(), id);
            proptest::prop_assert!(of.iter().all(|name| model::name::check_topic(name).is_ok()));
            proptest::prop_assert!(user.is_none() || who.as_deref() == user.as_deref());
        }
    }
}

#[test]
fn every_encoding_has_its_own_number_and_every_name_one_way_in() {
    for protocol in standard().all() {
        assert_eq!(standard().of(protocol.encoding()).name(), protocol.name());
        assert_eq!(standard().delivery(protocol.encoding()), protocol.delivery());
    }
    let names: Vec<&str> = standard().names().map(|protocol| protocol.name()).collect();
    let want =
        ["http", "sse", "stream", "poll", "ws", "echo", "phoenix", "phoenix_longpoll", "mqtt"];
    assert_eq!(names, want);
    let settings = settings();
    let found = standard().recognise(b"GET / HTTP/1.1", &settings);
    assert_eq!(found.map(|it| it.name()), Some("http"));
    assert_eq!(standard().begin(Listener::Client).map(|it| it.name()), Some("http"));
}

/// A protocol that has its own listener, and may be off.
struct Own(bool);

impl Protocol for Own {
    fn name(&self) -> &'static str {
        "own"
    }

    fn encoding(&self) -> Encoding {
        Encoding(17 - u8::from(self.0))
    }

    fn delivery(&self) -> Delivery {
        Delivery::Pushed
    }

    fn liveness(&self, _: &Settings) -> Liveness {
        Liveness::Unchecked
    }

    fn recognise(&self, first: &[u8]) -> Recognised {
        Recognised::by_prefix(&[0x10], first)
    }

    fn is_on(&self, _: &Settings) -> bool {
        self.0
    }

    fn listener(&self) -> Option<Listener> {
        Some(Listener::Mqtt)
    }

    fn read(&self, _: &mut Reader<'_>, _: &mut [u8], _: &mut Vec<u8>) -> Read {
        Read::MORE
    }

    fn encode(&self, _: &Message, _: &mut Codecs, _: &mut Vec<u8>) {}

    fn goodbye(&self, _: CloseReason, _: u32, out: &mut Vec<u8>) {
        out.push(b'!');
    }
}

#[test]
fn a_protocol_that_is_off_recognises_nothing() {
    let settings = settings();
    for (protocol, want) in [(&Own(true), "own"), (&Own(false), "http")] {
        let protocols = Protocols::new(&crate::http::Http).with(protocol);
        let found = protocols.recognise(&[0x10, 4], &settings);
        assert_eq!(found.map(|it| it.name()), Some(want));
        // With the protocol off, the server needs no first byte to decide.
        assert_eq!(protocols.recognise(&[], &settings).is_none(), protocol.0);
        let found = protocols.recognise(b"GET", &settings);
        assert_eq!(found.map(|it| it.name()), Some("http"));
    }
}

#[test]
fn a_listener_is_the_first_encodings_that_claims_it() {
    let protocols = Protocols::new(&crate::http::Http);
    assert!(protocols.begin(Listener::Mqtt).is_none());
    let protocols = protocols.with(&Own(false)).with(&Own(true));
    assert_eq!(protocols.begin(Listener::Mqtt).map(|it| it.encoding()), Some(Encoding(17)));
    assert_eq!(protocols.begin(Listener::Client).map(|it| it.encoding()), Some(Encoding(0)));
    for listener in Listener::ALL {
        assert_eq!(Listener::ALL[listener as usize], listener);
    }
    let mut out = Vec::new();
    Own(true).turn_away(&[], CloseReason::Overloaded, &mut out);
    assert_eq!(out, b"!");
}

#[test]
#[should_panic(expected = "another protocol has encoding 3")]
fn a_number_is_given_once() {
    let _ = standard().clone().with(&crate::stream::Stream);
}
