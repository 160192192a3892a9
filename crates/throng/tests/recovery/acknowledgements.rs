//! Acknowledgements: messages wait for a user until the user acknowledges them.

use serde_json::{Value, json};

use crate::recovery::listener::*;
use crate::recovery::node::*;
use crate::support::*;

/// Receives `count` messages. Returns the id of the last one and the data of all.
fn take(node: &Node, listener: &mut Listener, count: usize) -> (String, Vec<Value>) {
    let messages: Vec<Value> = (0..count).map(|_| listener.next(node)).collect();
    let last = id(messages.last().unwrap());
    (last, messages.iter().map(|message| message["data"].clone()).collect())
}

#[test]
fn messages_wait_for_users_who_are_offline() {
    for storage in EVERYWHERE {
        let mut node = Node::new(storage);
        for style in ALL {
            let user = format!("al{style:?}");
            let query = format!("user={user}");
            for number in 0..4 {
                node.send(&user, json!(number));
            }
            if storage.outlives_server() {
                node.restart();
            }
            let mut first = Listener::away(style, &[], &query);
            first.connect(&node);
            let (_, datas) = take(&node, &mut first, 4);
            assert_eq!(datas, numbers(0..4), "{storage:?} {style:?}");
            // The client has not acknowledged these messages.
            first.cut();
            let mut second = Listener::away(style, &[], &query);
            second.connect(&node);
            let (_, datas) = take(&node, &mut second, 4);
            assert_eq!(datas, numbers(0..4), "{storage:?} {style:?}");
            second.cut();
            let (_, page) = node.history(&format!("@{user}"), "");
            let third = page["messages"][2]["id"].clone();
            let (status, done) = node.ack(json!({"user": user, "id": third}));
            assert_eq!(status, 200, "{done}");
            assert_eq!(done, json!({"topic": format!("@{user}"), "acknowledged": third}));
            node.flush();
            if storage.outlives_server() {
                node.crash();
            }
            let mut last = Listener::away(style, &[], &query);
            last.connect(&node);
            let (_, datas) = take(&node, &mut last, 1);
            assert_eq!(datas, [json!(3)], "{storage:?} {style:?}");
            let (_, cursor) = node.api("GET", &format!("/api/cursors/{user}"), None);
            assert_eq!(cursor["acknowledged"], third);
        }
    }
}

/// Acknowledges in the transport's way. `topic` is the name to acknowledge.
fn acknowledge(node: &Node, listener: &mut Listener, user: &str, topic: &str, last: &str) {
    if listener.style == ResumeStyle::Ws {
        let ack = json!({"type": "ack", "id": 1, "topic": topic, "message": last});
        let reply = listener.command(ack);
        assert_eq!(reply["ok"], json!({"topic": topic, "acknowledged": last}), "{reply}");
        return;
    }
    let (status, done) = node.ack(json!({"user": user, "topic": topic, "id": last}));
    assert_eq!((status, &done["acknowledged"]), (200, &json!(last)), "{done}");
}

#[test]
fn the_window_bounds_unacknowledged_messages() {
    for storage in EVERYWHERE {
        let node = Node::new(storage);
        for style in [ResumeStyle::Sse, ResumeStyle::Stream, ResumeStyle::Ws] {
            let (user, topic) = (format!("al{style:?}"), format!("w:{style:?}"));
            let query = format!("user={user}");
            let mut listener = Listener::with(&node, style, &[&topic], &query);
            node.until_members(&topic, 1);
            node.count(&topic, 0..10);
            let (last, datas) = take(&node, &mut listener, 3);
            assert_eq!(datas, numbers(0..3), "{storage:?} {style:?}");
            listener.is_quiet(&node);
            acknowledge(&node, &mut listener, &user, &topic, &last);
            let (last, datas) = take(&node, &mut listener, 3);
            assert_eq!(datas, numbers(3..6), "{storage:?} {style:?}");
            // Acknowledgements are cumulative, and older ones change nothing.
            acknowledge(&node, &mut listener, &user, &topic, &last);
            let (_, datas) = take(&node, &mut listener, 3);
            assert_eq!(datas, numbers(6..9), "{storage:?} {style:?}");
            listener.is_quiet(&node);
            // Another connection of the user, with another transport, has its own window...
            let other = if style == ResumeStyle::Ws { ResumeStyle::Sse } else { ResumeStyle::Ws };
            let mut other = Listener::with(&node, other, &[&topic], &query);
            let (last, datas) = take(&node, &mut other, 3);
            assert_eq!(datas, numbers(6..9), "{storage:?} {style:?}");
            // ... and its acknowledgements open both.
            acknowledge(&node, &mut other, &user, &topic, &last);
            assert_eq!(take(&node, &mut listener, 1).1, [json!(9)], "{storage:?} {style:?}");
            assert_eq!(take(&node, &mut other, 1).1, [json!(9)], "{storage:?} {style:?}");
            // A connection without a user gets live messages, without acknowledgements.
            let mut anonymous = Listener::new(&node, style, &[&topic]);
            node.count(&topic, 20..28);
            assert_eq!(anonymous.take(&node, 8), numbers(20..28), "{storage:?} {style:?}");
        }
    }
}

#[test]
fn acknowledgements_by_the_application_open_the_window() {
    let node = Node::new(Storage::Memory);
    let mut listener = Listener::with(&node, ResumeStyle::Stream, &["w:1"], "user=al");
    node.count("w:1", 0..6);
    let (last, _) = take(&node, &mut listener, 3);
    node.post("/api/ack", json!({"user": "al", "topic": "w:1", "id": last}));
    assert_eq!(take(&node, &mut listener, 3).1, numbers(3..6));
}

#[test]
fn polls_have_a_window_as_well() {
    let node = Node::new(Storage::Memory);
    // From here on the server retains the topic's messages for the user.
    node.get("/poll?topic=w:1&user=al&timeout=0");
    node.count("w:1", 0..6);
    let (_, response) = node.get("/poll?topic=w:1&user=al&timeout=0");
    assert_eq!(datas(&response), numbers(0..3));
}

#[test]
fn polls_acknowledge_by_post() {
    for storage in EVERYWHERE {
        let mut node = Node::new(storage);
        node.send("al", json!(0));
        node.send("al", json!(1));
        let poll =
            |node: &Node, since: &str| node.get(&format!("/poll?user=al&timeout=0{since}")).1;
        let first = poll(&node, "");
        assert_eq!(datas(&first), numbers(0..2));
        // A resume token is no acknowledgement, but the client that sends it has the message.
        let since = format!("&since={}", first["since"].as_str().unwrap());
        assert_eq!(datas(&poll(&node, &since)), numbers(0..0));
        assert_eq!(datas(&poll(&node, "")), numbers(0..2));
        let last = first["messages"][1]["id"].clone();
        assert_eq!(node.ack(json!({"user": "al", "id": last})).0, 200);
        assert_eq!(datas(&poll(&node, "")), numbers(0..0));
        node.send("al", json!(2));
        if storage.outlives_server() {
            node.crash();
        }
        assert_eq!(datas(&poll(&node, "")), numbers(2..3), "{storage:?}");
    }
}

/// Checks that these messages become dead letters of a user. Their data are the numbers from 0.
fn become_letters(node: &Node, dead: &mut Listener, user: &str, topic: &str, ids: &[String]) {
    for (number, id) in ids.iter().enumerate() {
        let letter = dead.next(node);
        assert_eq!(letter["event"], "dead_letter");
        let want = json!({
            "topic": topic, "user": user, "id": id, "event": "message", "tries": 2, "data": number
        });
        assert_eq!(letter["data"], want);
    }
    // The server updates the cursor after it has published the letter.
    let path = format!("/api/cursors/{user}?topic={topic}");
    let last = ids.last().unwrap();
    node.until("all are given up", |node| node.api("GET", &path, None).1["given_up"] == *last);
}

/// Clients that don't acknowledge on the connection itself get a message again when they reconnect.
#[test]
fn unacknowledged_messages_are_redelivered_and_then_become_dead_letters() {
    for storage in EVERYWHERE {
        let node = Node::new(storage);
        for style in [ResumeStyle::Sse, ResumeStyle::Stream] {
            let (user, topic) = (format!("al{style:?}"), format!("q:{style:?}"));
            let open = || Listener::with(&node, style, &[&topic], &format!("user={user}"));
            // Deliveries of a message within a second count as one.
            let pause = || std::thread::sleep(std::time::Duration::from_millis(1_100));
            let mut dead = Listener::new(&node, ResumeStyle::Stream, &["dead"]);
            let mut listener = open();
            let ids = node.count(&topic, 0..2);
            for delivery in 1..=2 {
                let received = listener.take(&node, 2);
                assert_eq!(received, numbers(0..2), "{storage:?} {style:?} {delivery}");
                pause();
                listener.is_quiet(&node);
                dead.is_quiet(&node);
                listener = open();
            }
            become_letters(&node, &mut dead, &user, &topic, &ids);
            // The next message has its own delivery count. Its acknowledgement ends the deliveries.
            let id = node.count(&topic, 2..3).remove(0);
            assert_eq!(listener.next(&node)["id"], id, "{storage:?} {style:?}");
            acknowledge(&node, &mut listener, &user, &topic, &id);
            listener = open();
            node.count(&topic, 3..4);
            assert_eq!(listener.take(&node, 1), numbers(3..4), "{storage:?} {style:?}");
            dead.is_quiet(&node);
        }
    }
}

/// Clients that acknowledge on the connection itself get a message again there, a second later.
#[test]
fn a_websocket_gets_unacknowledged_messages_again_and_then_they_become_dead_letters() {
    for storage in EVERYWHERE {
        let node = Node::new(storage);
        let mut dead = Listener::new(&node, ResumeStyle::Stream, &["dead"]);
        let mut listener = Listener::with(&node, ResumeStyle::Ws, &["q:1"], "user=al");
        let ids = node.count("q:1", 0..2);
        become_letters(&node, &mut dead, "al", "q:1", &ids);
        // The next message has its own delivery count. Before it each of the others was delivered twice.
        node.count("q:1", 2..3);
        let mut received: Vec<u64> = Vec::new();
        while received.last() != Some(&2) {
            received.push(listener.next(&node)["data"].as_u64().unwrap());
        }
        received.sort_unstable();
        assert_eq!(received, [0, 0, 1, 1, 2], "{storage:?}");
    }
}

#[test]
fn invalid_acknowledgements_are_rejected() {
    let node = Node::new(Storage::Memory);
    let last = node.send("al", json!(1));
    let (epoch, offset) = last.split_once(':').unwrap();
    let offset: u64 = offset.parse().unwrap();
    let ahead = format!("{epoch}:{}", offset + 1);
    let plain = node.publish_with("plain", json!(1), json!({}));
    for (body, status, code) in [
        (json!({"user": "al", "id": ahead}), 400, "bad_id"),
        (json!({"user": "al", "id": ELSEWHERE}), 409, "epoch_changed"),
        (json!({"user": "al", "id": plain}), 409, "epoch_changed"),
        (json!({"user": "al", "id": "x"}), 400, "bad_id"),
        (json!({"user": "al"}), 400, "bad_id"),
        (json!({"user": "al", "topic": "plain", "id": last}), 400, "not_acknowledged"),
        (json!({"user": "al", "topic": "h:1", "id": last}), 400, "not_acknowledged"),
        (json!({"user": "al", "topic": "@bo", "id": last}), 400, "bad_topic"),
        (json!({"topic": "w:1", "id": last}), 400, "bad_user"),
        (json!({"user": "", "id": last}), 400, "bad_user"),
    ] {
        let (got, refused) = node.ack(body.clone());
        let error = &refused["error"]["code"];
        assert_eq!((got, error), (status, &json!(code)), "{body}: {refused}");
        // The application's API call returns the same error.
        if body["user"].is_string() && body["id"].is_string() {
            let (got, refused) = node.api("POST", "/api/ack", Some(body.clone()));
            assert_eq!((got, &refused["error"]["code"]), (status, &json!(code)), "{body}");
        }
    }
    let mut socket = websocket(&node, "user=bo");
    for (ack, code) in [
        (json!({"topic": "@al", "message": last}), "no_user"),
        (json!({"user": "al", "message": last}), "no_user"),
        (json!({"topic": "plain", "message": last}), "not_acknowledged"),
        (json!({"message": ahead}), "bad_id"),
        (json!({"message": ELSEWHERE}), "epoch_changed"),
        (json!({"message": "x"}), "bad_id"),
    ] {
        let mut ack = ack;
        ack["type"] = json!("ack");
        ack["id"] = json!(1);
        let reply = command(&mut socket, ack.clone());
        assert_eq!(reply["error"]["code"], code, "{ack}: {reply}");
    }
    let mut anonymous = websocket(&node, "topic=w:1");
    let ack = json!({"type": "ack", "id": 1, "topic": "w:1", "message": last});
    assert_eq!(command(&mut anonymous, ack)["error"]["code"], "no_user");
    // None of these requests changed the cursor.
    let (_, cursor) = node.api("GET", "/api/cursors/al", None);
    assert_eq!(cursor["acknowledged"], Value::Null);
    assert_eq!(datas(&node.get("/poll?user=al&timeout=0").1), numbers(1..2));
}

#[test]
fn waiting_messages_may_expire() {
    for storage in EVERYWHERE {
        let node = Node::new(storage);
        node.post("/api/send", json!({"user": "al", "data": "late", "ttl_seconds": 1}));
        node.send("al", json!("in time"));
        node.until("the first has expired", |_| node.history("@al", "").0 == [json!("in time")]);
        let mut listener = Listener::with(&node, ResumeStyle::Stream, &[], "user=al");
        assert_eq!(listener.take(&node, 1), [json!("in time")], "{storage:?}");
        listener.is_quiet(&node);
    }
}

#[test]
fn the_oldest_of_too_many_waiting_messages_are_dropped() {
    for storage in EVERYWHERE {
        let node = Node::with(storage, &[("THRONG_INBOX_MESSAGES_MAX", "3")]);
        for number in 0..6 {
            node.send("al", json!(number));
        }
        let mut listener = Listener::with(&node, ResumeStyle::Ws, &[], "user=al");
        assert_eq!(listener.take(&node, 3), numbers(3..6), "{storage:?}");
        listener.is_quiet(&node);
    }
}
