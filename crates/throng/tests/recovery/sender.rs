//! The sender of a message: every transport has it, live, in recovery and in the history.

use serde_json::{Value, json};

use crate::recovery::listener::*;
use crate::recovery::node::*;
use crate::support::*;

/// Starts a server where clients may publish to any topic.
fn open(storage: Storage) -> Node {
    Node::with(storage, &[("THRONG_CLIENT_PUBLISH_PREFIXES", "h:,c:,q:,plain:")])
}

/// Publishes by `POST /publish` with these parameters. Returns the response.
fn post(node: &Node, query: &str, headers: &str, body: &str) -> Value {
    let (status, response) = try_post(node, query, headers, body);
    assert_eq!(status, 200, "{response}");
    response
}

fn try_post(node: &Node, query: &str, headers: &str, body: &str) -> (u16, Value) {
    let mut stream = Stream::new(node.connect());
    let length = body.len();
    stream.send(&format!(
        "POST /publish?{query} HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    ));
    let (status, response) = stream.read_reply();
    (status, serde_json::from_str(&response).unwrap())
}

/// Publishes in all ways. Returns the data and the sender of each message.
fn publish_in_all_ways(node: &Node, topic: &str) -> Vec<(Value, Value)> {
    let mut socket = websocket(node, "user=alice&user=bob");
    let publish = |socket: &mut WebSocket, data: &str| {
        let publish = json!({"type": "publish", "id": 1, "topic": topic, "data": data});
        let reply = command(socket, publish);
        assert!(reply["ok"]["id"].is_string(), "{reply}");
    };
    publish(&mut socket, "first user");
    command(&mut socket, json!({"type": "logout", "id": 2, "user": "alice"}));
    publish(&mut socket, "after a logout");
    command(&mut socket, json!({"type": "logout", "id": 2, "user": "bob"}));
    publish(&mut socket, "nobody");
    command(&mut socket, json!({"type": "login", "id": 2, "user": "zo\"ë"}));
    publish(&mut socket, "after a login");
    post(node, &format!("topic={topic}&user=bob&user=alice"), "", "by HTTP");
    post(node, &format!("topic={topic}"), "", "by HTTP as nobody");
    node.publish_with(topic, json!("the application"), json!({}));
    let spoken_for = json!({"sender": "carol", "tags": ["t"], "key": "k", "ttl_seconds": 3600});
    node.publish_with(topic, json!("spoken for"), spoken_for);
    let batch = json!({"publish": {"topic": topic, "data": "in a batch", "sender": "dave"}});
    let batch = node.post("/api/batch", json!({"commands": [batch]}));
    assert!(batch["results"][0]["ok"]["id"].is_string(), "{batch}");
    let all = [
        ("first user", json!("alice")),
        ("after a logout", json!("bob")),
        ("nobody", Value::Null),
        ("after a login", json!("zo\"ë")),
        ("by HTTP", json!("bob")),
        ("by HTTP as nobody", Value::Null),
        ("the application", Value::Null),
        ("spoken for", json!("carol")),
        ("in a batch", json!("dave")),
    ];
    all.into_iter().map(|(data, sender)| (json!(data), sender)).collect()
}

fn senders(messages: &[Value]) -> Vec<(Value, Value)> {
    let of = |message: &Value| (message["data"].clone(), message["sender"].clone());
    messages.iter().map(of).collect()
}

#[test]
fn every_transport_says_who_sent_a_message_live_in_recovery_and_in_history() {
    for storage in BOTH {
        let mut node = open(storage);
        for style in ALL {
            let topic = format!("h:{style:?}");
            let mut listener = Listener::new(&node, style, &[&topic]);
            let mut away = Listener::new(&node, style, &[&topic]);
            let take = |listener: &mut Listener, node: &Node| -> Vec<Value> {
                (0..9).map(|_| listener.next(node)).collect()
            };
            node.publish(&topic, json!("before"));
            assert_eq!(away.take(&node, 1), listener.take(&node, 1));
            away.cut();
            let want = publish_in_all_ways(&node, &topic);
            assert_eq!(senders(&take(&mut listener, &node)), want, "{storage:?} {style:?}");
            let latest = node.api("GET", &format!("/api/messages?topic={topic}"), None).1;
            let mut latest = senders(latest["messages"].as_array().unwrap());
            latest.reverse();
            assert_eq!(latest[1..], want);
            if storage == Storage::Disk {
                node.restart();
            }
            away.connect(&node);
            assert_eq!(senders(&take(&mut away, &node)), want, "{storage:?} {style:?}");
            let (_, page) = node.history(&topic, "");
            assert_eq!(senders(&page["messages"].as_array().unwrap()[1..]), want, "{storage:?}");
            let absent = page["messages"][7].as_object().unwrap().get("sender");
            assert_eq!(absent, None, "left out where nobody is known");
        }
    }
}

#[test]
fn messages_without_history_and_bytes_have_a_sender_too() {
    let node = open(Storage::Memory);
    for style in ALL {
        let topic = format!("plain:{style:?}");
        let user = format!("al{style:?}");
        let mut listener = Listener::with(&node, style, &[&topic], &format!("user={user}"));
        let want = publish_in_all_ways(&node, &topic);
        let got: Vec<Value> = want.iter().map(|_| listener.next(&node)).collect();
        assert_eq!(senders(&got), want, "{style:?}");
        node.post("/api/send", json!({"user": user, "data": 1, "sender": "bob"}));
        assert_eq!(listener.next(&node)["sender"], "bob");
        node.post("/api/broadcast", json!({"data": 1, "sender": "carol"}));
        assert_eq!(listener.next(&node)["sender"], "carol");
    }
    // The head of a binary frame has the sender.
    let mut socket = websocket(&node, "topic=plain:bytes&user=alice");
    let frame = b"{\"type\":\"publish\",\"topic\":\"plain:bytes\"}\n\x00\xff";
    socket.send(tungstenite::Message::binary(&frame[..])).unwrap();
    let bytes = loop {
        if let tungstenite::Message::Binary(bytes) = socket.read().unwrap() {
            break bytes;
        }
    };
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
    let head: Value = serde_json::from_slice(&bytes[..end]).unwrap();
    assert_eq!((&head["sender"], &bytes[end + 1..]), (&json!("alice"), &b"\x00\xff"[..]));
}

#[test]
fn a_repeat_keeps_its_sender_and_the_state_and_dead_letters_have_one() {
    for storage in BOTH {
        let mut node = open(storage);
        let once = |sender: &str| {
            let more = json!({"idempotency_key": "once", "sender": sender});
            node.publish_with("h:once", json!("x"), more)
        };
        assert_eq!(once("alice"), once("bob"));
        let (_, page) = node.history("h:once", "");
        assert_eq!(senders(page["messages"].as_array().unwrap()), [(json!("x"), json!("alice"))]);

        post(&node, "topic=c:1&user=alice&key=a", "", "1");
        post(&node, "topic=c:1&user=bob&key=a", "", "2");
        post(&node, "topic=c:1&user=carol&key=b", "", "3");
        node.flush();
        if storage == Storage::Disk {
            node.crash();
        }
        for style in ALL {
            let mut newcomer = Listener::new(&node, style, &["c:1"]);
            let state: Vec<Value> = (0..2).map(|_| newcomer.next(&node)).collect();
            let want = [(json!("2"), json!("bob")), (json!("3"), json!("carol"))];
            assert_eq!(senders(&state), want, "{storage:?} {style:?}");
        }

        let mut dead = Listener::new(&node, ResumeStyle::Stream, &["dead"]);
        let mut reader = Listener::with(&node, ResumeStyle::Ws, &["q:1"], "user=al");
        post(&node, "topic=q:1&user=bob", "", "lost");
        assert_eq!(reader.next(&node)["sender"], "bob");
        let letter = dead.next(&node);
        assert_eq!(letter["data"]["sender"], "bob", "{letter}");
        assert_eq!(letter.get("sender"), None, "the server wrote it: {letter}");
    }
}

#[test]
fn invalid_senders_are_rejected() {
    let node = open(Storage::Memory);
    for bad in ["", "a\nb", &"x".repeat(255)] {
        for (call, mut body) in [
            ("publish", json!({"topic": "h:1", "data": 1})),
            ("send", json!({"user": "al", "data": 1})),
            ("broadcast", json!({"data": 1})),
        ] {
            body["sender"] = json!(bad);
            let (status, refused) = node.api("POST", &format!("/api/{call}"), Some(body));
            assert_eq!((status, &refused["error"]["code"]), (400, &json!("bad_sender")), "{call}");
        }
    }
    // Only its users determine a client's sender.
    let mut socket = websocket(&node, "user=al");
    let forged = json!({"type": "publish", "id": 1, "topic": "h:1", "data": 1, "sender": "bob"});
    assert_eq!(command(&mut socket, forged)["error"]["code"], "bad_command");
    let (status, refused) = try_post(&node, "topic=h:1&user=al&sender=bob", "", "x");
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("bad_parameter")));
    post(&node, "topic=h:1&user=al", "", "x");
    let (_, page) = node.history("h:1", "");
    assert_eq!(senders(page["messages"].as_array().unwrap()), [(json!("x"), json!("al"))]);
}
