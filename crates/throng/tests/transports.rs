//! Every transport over real sockets: published messages arrive in the transport's format.

use crate::support::*;
use serde_json::json;

#[test]
fn sse_carries_text_json_lines_events_and_ids() {
    let server = Server::start();
    let mut stream = server.listen("/sse?topic=news&user=alice");
    let [(field, retry)] = &stream.event()[..] else { panic!("one line") };
    // The server varies the setting from 75 % to 125 %.
    assert_eq!((field.as_str(), (1500..=2500).contains(&retry.parse().unwrap())), ("retry", true));
    let first = server.publish("news", json!("hello"));
    assert_eq!(first["members"], 1);
    let id = first["id"].as_str().unwrap().to_string();
    assert_eq!(stream.event(), [("id".to_string(), id), ("data".into(), "hello".into())]);
    server.post("/api/publish", json!({"topic": "news", "event": "tick", "data": {"a": [1, 2]}}));
    let event = stream.event();
    assert_eq!(event[1], ("event".to_string(), "tick".to_string()));
    assert_eq!(event[2], ("data".to_string(), "{\"a\":[1,2]}".to_string()));
    server.publish("news", json!("two\nlines"));
    assert_eq!(stream.data(), "two\nlines");
    server.post("/api/send", json!({"user": "alice", "data": 7}));
    assert_eq!(stream.data(), "7");
    server.post("/api/broadcast", json!({"data": "all"}));
    assert_eq!(stream.data(), "all");
    server.post("/api/publish", json!({"topic": "news", "data": "AP8=", "encoding": "base64"}));
    assert_eq!(stream.data(), "AP8=");
}

#[test]
fn sse_has_heartbeats_and_the_headers_that_browsers_and_proxies_need() {
    let server = Server::with(&[], &[("THRONG_TIMEOUTS_SSE_HEARTBEAT_SECONDS", "1")]);
    let mut stream = Stream::new(server.connect());
    stream.send(
        "GET /sse?topic=a&format=json HTTP/1.1\r\nHost: t\r\nLast-Event-ID: 0000000a:1\r\n\r\n",
    );
    let head = stream.head();
    assert_eq!(header(&head, "content-type"), Some("text/event-stream"));
    assert_eq!(header(&head, "access-control-allow-origin"), Some("*"));
    assert!(header(&head, "cache-control").unwrap().contains("no-store, no-transform"));
    while stream.line() != ":" {}
    server.publish("a", json!({"x": 1}));
    let object: serde_json::Value = serde_json::from_str(&stream.data()).unwrap();
    assert_eq!((&object["topic"], &object["data"]["x"]), (&json!("a"), &json!(1)));
}

#[test]
fn a_stream_begins_with_a_welcome_and_has_heartbeats() {
    let server = Server::with(&[], &[("THRONG_TIMEOUTS_STREAM_HEARTBEAT_SECONDS", "1")]);
    let mut stream = server.listen("/stream?user=foo&user=bar&topic=t");
    let welcome = stream.object();
    assert_eq!(welcome["type"], "welcome");
    assert_eq!(welcome["text"], "Hello, foo and bar");
    assert_eq!(stream.object(), json!({"type": "heartbeat"}));
    let sent = server.post("/api/send", json!({"user": "bar", "data": "hi"}));
    let got = std::iter::repeat_with(|| stream.object()).find(|object| object["type"] == "message");
    let want = json!({"type": "message", "topic": "@bar", "id": sent["id"], "event": "message", "data": "hi"});
    assert_eq!(got.unwrap(), want);
}

#[test]
fn a_poll_waits_and_gets_exactly_the_new_messages() {
    let server = Server::with(&["--shards", "3"], &[]);
    // Without messages the response is empty, and has the token to resume from.
    let (status, empty) = server.get("/poll?topic=a&timeout=0");
    assert_eq!((status, &empty["messages"]), (200, &json!([])));
    let mut since = empty["since"].as_str().unwrap().to_string();
    let mut got = Vec::new();
    // Each poll has a connection of its own, so it may reach any shard.
    for round in 0..20 {
        server.publish("a", json!(round * 2));
        server.publish("elsewhere", json!("x"));
        server.publish("a", json!(round * 2 + 1));
        let (_, response) = server.get(&format!("/poll?topic=a&since={since}"));
        assert_eq!(response["recovered"], true);
        got.extend(response["messages"].as_array().unwrap().iter().map(|m| m["data"].clone()));
        since = response["since"].as_str().unwrap().to_string();
    }
    assert_eq!(got, (0..40).map(|n| json!(n)).collect::<Vec<_>>());
    // A message or a broadcast wakes a waiting poll, and its connection stays usable.
    let mut stream = Stream::new(server.connect());
    for wake in ["/api/publish", "/api/send", "/api/broadcast"] {
        stream.send("GET /poll?topic=w&user=u HTTP/1.1\r\nHost: t\r\n\r\n");
        server.until_members("w", 1);
        let body = match wake {
            "/api/publish" => json!({"topic": "w", "data": wake}),
            "/api/send" => json!({"user": "u", "data": wake}),
            _ => json!({"data": wake}),
        };
        server.post(wake, body);
        let response: serde_json::Value = serde_json::from_str(&stream.read_reply().1).unwrap();
        assert_eq!(response["messages"][0]["data"], wake);
        assert_eq!(response.get("recovered"), None);
    }
    // A token of another epoch gets a response at once, which has `recovered: false`.
    let (_, response) = server.get("/poll?topic=a&since=00000000:1&timeout=20");
    assert_eq!(response["recovered"], false);
    let (_, response) = server.get("/poll?topic=quiet&timeout=1");
    assert_eq!(response["messages"], json!([]));
}

#[test]
fn websocket_commands_are_served_with_their_id() {
    let server = Server::with(&[], &[("THRONG_CLIENT_PUBLISH_PREFIXES", "chat/")]);
    let mut socket = websocket(&server, "user=alice");
    let reply = command(&mut socket, json!({"type": "subscribe", "id": 1, "topic": "chat/1"}));
    assert_eq!(reply, json!({"type": "reply", "id": 1, "ok": {"topic": "chat/1"}}));
    let mut other = websocket(&server, "topic=chat/1");
    let reply = command(
        &mut other,
        json!({"type": "publish", "id": "p", "topic": "chat/1", "event": "say", "data": {"t": "hi"}}),
    );
    let message = receive(&mut socket);
    assert_eq!(message["id"], reply["ok"]["id"]);
    assert_eq!((&message["event"], &message["data"]), (&json!("say"), &json!({"t": "hi"})));
    let refused =
        command(&mut socket, json!({"type": "publish", "id": 2, "topic": "x", "data": 1}));
    assert_eq!(refused["error"]["code"], "forbidden");
    let bad = command(&mut socket, json!({"type": "jump", "id": 3}));
    assert_eq!((&bad["id"], &bad["error"]["code"]), (&json!(3), &json!("bad_command")));
    assert!(command(&mut socket, json!({"type": "ping", "id": 4}))["ok"].is_object());
    command(&mut socket, json!({"type": "unsubscribe", "id": 5, "topic": "chat/1"}));
    server.until_members("chat%2F1", 1);
    let again = command(&mut socket, json!({"type": "unsubscribe", "id": 6, "topic": "chat/1"}));
    assert_eq!(again["error"]["code"], "not_subscribed");
    server.post("/api/send", json!({"user": "alice", "data": null}));
    assert_eq!(receive(&mut socket)["data"], json!(null));
}

#[test]
fn websocket_carries_bytes_as_binary_frames() {
    let server = Server::start();
    let mut socket = websocket(&server, "topic=b");
    server.post("/api/publish", json!({"topic": "b", "data": "AP8=", "encoding": "base64"}));
    let frame = loop {
        if let tungstenite::Message::Binary(frame) = socket.read().unwrap() {
            break frame;
        }
    };
    let (head, payload) = frame.split_at(frame.iter().position(|byte| *byte == b'\n').unwrap());
    let head: serde_json::Value = serde_json::from_slice(head).unwrap();
    assert_eq!((head["topic"].as_str(), payload), (Some("b"), &b"\n\x00\xff"[..]));
}

#[test]
fn clients_publish_by_post_only_where_rules_allow_it() {
    let server = Server::with(&[], &[("THRONG_CLIENT_PUBLISH_PREFIXES", "open/")]);
    let mut stream = server.listen("/sse?topic=open/1");
    let post = |target: &str, media: &str, body: &str| {
        let mut stream = Stream::new(server.connect());
        stream.send(&format!(
            "POST {target} HTTP/1.1\r\nHost: t\r\nContent-Type: {media}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        stream.read_reply()
    };
    assert_eq!(post("/publish?topic=open/1", "text/plain", "hi").0, 200);
    assert_eq!(stream.data(), "hi");
    assert_eq!(post("/publish?topic=open/1&event=e", "application/json", "{\"a\": 1}").0, 200);
    assert_eq!(stream.data(), "{\"a\":1}");
    assert_eq!(post("/publish?topic=closed", "text/plain", "hi").0, 403);
    assert_eq!(post("/publish?topic=open/1", "application/json", "{").0, 400);
    assert_eq!(post("/publish", "text/plain", "hi").0, 400);
    assert_eq!(post("/publish?topic=open/1", "text/plain", &"x".repeat(70_000)).0, 413);
}

#[test]
fn one_message_reaches_each_transport_exactly_once() {
    let server = Server::with(&["--shards", "4"], &[]);
    let mut sse: Vec<_> =
        (0..40).map(|n| server.listen(&format!("/sse?topic=t&user=s{n}"))).collect();
    let mut streams: Vec<_> =
        (0..40).map(|n| server.listen(&format!("/stream?topic=t&user=h{n}"))).collect();
    let mut sockets: Vec<_> =
        (0..40).map(|n| websocket(&server, &format!("topic=t&user=w{n}"))).collect();
    streams.iter_mut().for_each(|stream| assert_eq!(stream.object()["type"], "welcome"));
    for n in 0..30 {
        assert_eq!(server.publish("t", json!(n))["members"], 120);
    }
    for n in 0..30 {
        sse.iter_mut().for_each(|stream| assert_eq!(stream.data(), n.to_string()));
        streams.iter_mut().for_each(|stream| assert_eq!(stream.next_object()["data"], n));
        sockets.iter_mut().for_each(|socket| assert_eq!(receive(socket)["data"], n));
    }
}

#[test]
fn a_batch_to_one_connection_arrives_in_order() {
    let server = Server::with(&["--shards", "1"], &[]);
    let mut stream = server.listen("/sse?topic=a&topic=b&user=u");
    let publish = |topic: &str, n: u32| json!({"publish": {"topic": topic, "data": n}});
    let commands: Vec<_> =
        (0..300).map(|n| publish(if n % 2 == 0 { "a" } else { "b" }, n)).collect();
    let response = server.post("/api/batch", json!({"commands": commands}));
    assert_eq!(response["results"].as_array().unwrap().len(), 300);
    let mut last = [None; 2];
    for _ in 0..300 {
        let n: u32 = stream.data().parse().unwrap();
        let topic = (n % 2) as usize;
        assert!(last[topic].is_none_or(|last| last + 2 == n), "{last:?} then {n}");
        last[topic] = Some(n);
    }
}

#[test]
fn a_request_without_a_topic_gets_what_is_missing() {
    let server = Server::start();
    let mut stream = Stream::new(server.connect());
    stream.send("GET /sse HTTP/1.1\r\nHost: t\r\n\r\n");
    assert!(stream.head().starts_with("HTTP/1.1 200 "));
    assert!(stream.line().starts_with("retry: "));
    assert_eq!(stream.line(), "");
    let greeting = stream.line();
    assert!(greeting.starts_with(": ") && greeting.contains("/sse?topic=news&user=alice"));
    // A stream without a topic still gets broadcasts.
    server.post("/api/broadcast", json!({"data": "all"}));
    assert_eq!(stream.data(), "all");
    let mut stream = server.listen("/stream");
    let welcome = stream.object();
    assert_eq!((&welcome["users"], &welcome["topics"]), (&json!([]), &json!([])));
    assert!(welcome["text"].as_str().unwrap().contains("/stream?topic=news&user=alice"));
    let (status, refused) = server.get("/poll");
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("no_topic")));

    for path in ["/sse", "/stream", "/poll"] {
        let (status, refused) = server.get(&format!("{path}?topics=news"));
        assert_eq!((status, &refused["error"]["code"]), (400, &json!("bad_parameter")), "{path}");
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.contains("no parameter topics: did you mean topic?"), "{message}");
    }
    let url = |path: &str| format!("ws://{}{path}", server.client);
    let refused = tungstenite::client(url("/ws?channel=news"), server.connect());
    let Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(response))) = refused
    else {
        panic!("it opened")
    };
    assert_eq!(response.status(), 400);
    // The server ignores parameters of others, and all that a Phoenix client sends.
    drop(server.listen("/sse?topic=news&utm_source=x&_=1&tab=2"));
    let phoenix = url("/socket/websocket?vsn=2.0.0&topics=a&channel=b&users=c");
    assert!(tungstenite::client(phoenix, server.connect()).is_ok());
}
