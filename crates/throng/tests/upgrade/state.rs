//! The new server has the state of topics, users and clients that are away.

use std::time::Instant;

use serde_json::{Value, json};

use crate::support::{Stream, TIMEOUT, WebSocket, command, header, receive, websocket};
use crate::upgrade::node::{BOTH, Node, Options, Storage};

fn ok(node: &Node, target: &str) -> Value {
    let (status, response) = node.api("GET", target, None);
    assert_eq!(status, 200, "{target}: {response}");
    response
}

fn id(response: &Value) -> String {
    response["id"].as_str().unwrap_or_else(|| panic!("no id: {response}")).into()
}

/// Waits until a topic's history has `count` messages.
fn until_stored(node: &Node, topic: &str, count: usize) {
    node.until("the messages are readable", |server| {
        let page = server.api("GET", &format!("/api/history/{topic}"), None).1;
        page["messages"].as_array().is_some_and(|all| all.len() == count)
    });
}

/// Reads up to the message with this text, and returns it.
fn message(socket: &mut WebSocket, text: &str) -> Value {
    let end = Instant::now() + TIMEOUT;
    loop {
        assert!(Instant::now() < end, "no {text:?} comes");
        let message = receive(socket);
        if message["data"] == text {
            return message;
        }
    }
}

/// Reads up to the presence notice that has this user among `what`, and returns it.
fn notice_of(socket: &mut WebSocket, what: &str, user: &str) -> Value {
    let end = Instant::now() + TIMEOUT;
    loop {
        assert!(Instant::now() < end, "{user} is not among the {what}");
        let notice = receive(socket);
        if notice["event"] == "presence_diff" && !notice["data"][what][user].is_null() {
            return notice;
        }
    }
}

#[test]
fn presence_stays_and_no_member_receives_of_it() {
    for storage in BOTH {
        let node = Node::new(storage);
        let enter = |user: &str| {
            let mut socket = websocket(&node, &format!("user={user}"));
            let subscribe =
                json!({"type": "subscribe", "id": 1, "topic": "room:a", "meta": {"of": user}});
            assert!(command(&mut socket, subscribe)["error"].is_null());
            socket
        };
        let mut sockets: Vec<WebSocket> = ["alice", "bob", "carol", "alice"].map(enter).into();
        // When zoe has come and gone, the others' notices have all arrived.
        let zoe = enter("zoe");
        sockets.iter_mut().for_each(|socket| _ = notice_of(socket, "joins", "zoe"));
        drop(zoe);
        sockets.iter_mut().for_each(|socket| _ = notice_of(socket, "leaves", "zoe"));
        let before = node.get("/presence?topic=room:a").1;
        assert_eq!(before["connections"], 4, "{before}");
        for _ in 0..2 {
            node.upgrade();
            assert_eq!(node.get("/presence?topic=room:a").1, before, "{storage:?}");
        }
        // The next notice has bob's earlier ref, and no other user.
        let gone = before["presences"]["bob"]["metas"][0]["phx_ref"].clone();
        drop(sockets.remove(1));
        for socket in &mut sockets {
            let notice = receive(socket);
            assert_eq!(notice["event"], "presence_diff", "{notice}");
            let leaves = notice["data"]["leaves"].as_object().unwrap();
            assert_eq!(leaves.len(), 1, "{notice}");
            let left = &leaves["bob"]["metas"];
            assert_eq!((&left[0]["phx_ref"], &left[1]), (&gone, &Value::Null), "{notice}");
            assert_eq!(notice["data"]["joins"], json!({}), "{notice}");
        }
        // A new member gets a new ref.
        let _dora = enter("dora");
        let notice = receive(&mut sockets[0]);
        let came = notice["data"]["joins"]["dora"]["metas"][0]["phx_ref"].as_str();
        let came = came.unwrap_or_else(|| panic!("{notice}"));
        assert!(!before.to_string().contains(came), "{notice}");
    }
}

#[test]
fn history_resume_tokens_and_keys_of_before_are_good() {
    for storage in BOTH {
        let node = Node::new(storage);
        let with_key = |number: u32| {
            json!({"topic": "h:a", "data": number, "idempotency_key": format!("key-{number}"),
                "tags": ["t"], "event": "tick", "sender": "alice"})
        };
        let ids: Vec<String> =
            (0..5).map(|n| id(&node.post("/api/publish", with_key(n)))).collect();
        for value in ["old", "new"] {
            node.post("/api/publish", json!({"topic": "c:a", "data": value, "key": "k"}));
        }
        let recent = node.get("/poll?topic=plain&timeout=0").1["since"].clone();
        let plain = id(&node.publish("plain", json!("without history")));
        until_stored(&node, "h:a", 5);
        node.until("the state is readable", |server| {
            let page = server.api("GET", "/api/history/c:a", None).1;
            page["messages"][0]["data"] == "new"
        });
        let history = ok(&node, "/api/history/h:a");
        let state = ok(&node, "/api/history/c:a");
        node.upgrade();
        assert_eq!(ok(&node, "/api/history/h:a"), history, "{storage:?}");
        assert_eq!(ok(&node, "/api/history/c:a"), state, "{storage:?}");
        // A client that reconnects gets the messages that it missed, on each transport.
        let first = &ids[1];
        let mut sse = Stream::new(node.connect());
        sse.send(&format!(
            "GET /sse?topic=h:a HTTP/1.1\r\nHost: t\r\nLast-Event-ID: {first}\r\n\r\n"
        ));
        assert!(header(&sse.head(), "content-type").is_some());
        assert!(sse.data().contains("\"recovered\":true"));
        assert_eq!([sse.data(), sse.data(), sse.data()], ["2", "3", "4"]);
        let (_, poll) = node.get(&format!("/poll?topic=h:a&since={first}&timeout=0"));
        assert_eq!(
            (&poll["recovered"], poll["messages"].as_array().unwrap().len()),
            (&json!(true), 3)
        );
        let mut ws = websocket(&node, "");
        let reply =
            command(&mut ws, json!({"type": "subscribe", "id": 1, "topic": "h:a", "since": first}));
        assert_eq!(reply["ok"]["recovered"], true, "{reply}");
        // The new process also has the recent messages of topics without history.
        let (_, poll) =
            node.get(&format!("/poll?topic=plain&timeout=0&since={}", recent.as_str().unwrap()));
        assert_eq!(poll["messages"][0]["data"], "without history", "{storage:?}: {poll}");
        // A publish with a known idempotency key is not repeated.
        for (number, id) in (0..).zip(&ids) {
            let again = node.post("/api/publish", with_key(number));
            assert_eq!((&again["id"], &again["repeated"]), (&json!(id), &json!(true)), "{again}");
        }
        // Offsets continue.
        let split = |id: &str| {
            let (epoch, offset) = id.split_once(':').unwrap();
            (epoch.to_string(), offset.parse::<u64>().unwrap())
        };
        let next = id(&node.publish("h:a", json!(5)));
        let (last, next) = (split(&ids[4]), split(&next));
        assert_eq!(last.0, next.0, "{storage:?}");
        assert!(next.1 > last.1, "{last:?} {next:?}");
        let (last, next) = (split(&plain), split(&id(&node.publish("plain", json!(2)))));
        // The server also publishes its own topics ($SYS), so offsets may skip some.
        assert!(last.0 == next.0 && last.1 < next.1, "{storage:?}: {last:?} {next:?}");
    }
}

#[test]
fn cursors_inboxes_and_subscriptions_go_along() {
    for storage in BOTH {
        let node = Node::new(storage);
        let job = id(&node.publish("jobs:a", json!("first")));
        node.publish("jobs:a", json!("second"));
        until_stored(&node, "jobs:a", 2);
        node.post("/api/ack", json!({"user": "alice", "topic": "jobs:a", "id": job}));
        node.post("/api/send", json!({"user": "alice", "data": "while you were away"}));
        node.post("/api/subscriptions", json!({"user": "alice", "add": ["h:x", "h:y"]}));
        // A connected user has a message without an acknowledgement.
        let mut bob = websocket(&node, "user=bob&topic=jobs:a");
        node.publish("jobs:a", json!("third"));
        let third = id(&message(&mut bob, "third"));
        let cursor = ok(&node, "/api/cursors/alice?topic=jobs:a");
        let subscriptions = ok(&node, "/api/subscriptions/alice");
        node.upgrade();
        assert_eq!(ok(&node, "/api/cursors/alice?topic=jobs:a"), cursor, "{storage:?}");
        assert_eq!(ok(&node, "/api/subscriptions/alice"), subscriptions, "{storage:?}");
        let reply =
            command(&mut bob, json!({"type": "ack", "id": 2, "topic": "jobs:a", "message": third}));
        assert!(reply["type"] == "reply", "{reply}");
        let mut stream = node.listen("/sse?user=alice&topic=jobs:a");
        let mut got = [stream.data(), stream.data(), stream.data()];
        got.sort();
        assert_eq!(got, ["second", "third", "while you were away"], "{storage:?}");
        node.until_members("h:y", 1);
        node.publish("h:y", json!("followed"));
        assert_eq!(stream.data(), "followed");
    }
}

/// The new server responds to waiting polls, with messages from after the upgrade.
#[test]
fn polls_that_wait_wait_on() {
    let node = Node::new(Storage::Memory);
    let mut poll = Stream::new(node.connect());
    poll.send("GET /poll?topic=plain&timeout=120 HTTP/1.1\r\nHost: t\r\n\r\n");
    node.until_members("plain", 1);
    let (_, opened) = node.get("/socket/longpoll?vsn=2.0.0&user=lp");
    let token = opened["token"].as_str().unwrap().to_string();
    let mut session = Stream::new(node.connect());
    session
        .send(&format!("GET /socket/longpoll?vsn=2.0.0&token={token} HTTP/1.1\r\nHost: t\r\n\r\n"));
    let mut short = Stream::new(node.connect());
    short.send("GET /poll?topic=short&timeout=3 HTTP/1.1\r\nHost: t\r\n\r\n");
    node.until_all_read();
    node.upgrade();
    // The timeout of one poll has passed.
    let (status, response) = short.read_reply();
    let response: Value = serde_json::from_str(&response).unwrap();
    assert_eq!((status, &response["messages"]), (200, &json!([])));
    node.until_members("plain", 1);
    node.publish("plain", json!("at last"));
    let (status, response) = poll.read_reply();
    let response: Value = serde_json::from_str(&response).unwrap();
    assert_eq!((status, &response["messages"][0]["data"]), (200, &json!("at last")));
    let join = r#"["1","1","say:x","phx_join",{}]"#;
    let push = format!(
        "POST /socket/longpoll?vsn=2.0.0&token={token} HTTP/1.1\r\nHost: t\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{join}",
        join.len()
    );
    assert!(node.exchange(push.as_bytes()).contains("{\"status\":200}"));
    let (status, response) = session.read_reply();
    assert!(status == 200 && response.contains("phx_reply"), "{status} {response}");
}

/// The new server has what the application has set at run time: a connection's topic, and a revocation.
#[test]
fn what_was_set_at_run_time_stays_set() {
    let node = Node::new(Storage::Memory);
    let mut ws = websocket(&node, "user=alice");
    node.post("/api/subscribe", json!({"user": "alice", "topic": "given"}));
    node.until_members("given", 1);
    node.upgrade();
    node.publish("given", json!("still"));
    message(&mut ws, "still");
    let node = Node::with(Options {
        more: "[auth]\nhmac_key = \"a key for tests, which others know of\"\n".into(),
        ..Options::default()
    });
    node.post("/api/revoke", json!({"user": "mallory"}));
    let revocations = ok(&node, "/api/revocations");
    assert_eq!(revocations["count"], 1, "{revocations}");
    node.upgrade();
    assert_eq!(ok(&node, "/api/revocations"), revocations);
}
