//! Clients that request the existing messages: `since=start` and `since=last:N`.

use serde_json::{Value, json};

use crate::recovery::listener::*;
use crate::recovery::node::*;
use crate::support::*;

/// Publishes numbers in batches, so that many are on disk soon.
fn fill(node: &Node, topic: &str, numbers: std::ops::Range<u64>) {
    let publish = |n| json!({"publish": {"topic": topic, "data": n}});
    let commands: Vec<Value> = numbers.map(publish).collect();
    for part in commands.chunks(1_000) {
        let response = node.post("/api/batch", json!({"commands": part}));
        assert!(response["results"].as_array().unwrap().iter().all(|it| it["error"].is_null()));
    }
    node.flush();
}

#[test]
fn every_transport_gets_what_is_there_and_then_what_comes() {
    for storage in BOTH {
        let mut node = Node::new(storage);
        for style in ALL {
            fill(&node, &format!("h:{style:?}"), 0..700);
        }
        if storage == Storage::Disk {
            node.restart();
        }
        for style in ALL {
            let topic = format!("h:{style:?}");
            let mut have = 700;
            for (since, first) in [
                ("start", 0),
                ("last:1", 699),
                ("last:5", 695),
                ("last:600", 100),
                ("last:1000", 0),
            ] {
                let query = format!("since={since}");
                let mut listener = Listener::with(&node, style, &[&topic], &query);
                let first = if since == "start" { 0 } else { first + have - 700 };
                let first = if since == "last:1000" { 0 } else { first };
                assert_eq!(
                    listener.recovered(&node),
                    (json!(true), Value::Null),
                    "{storage:?} {style:?} {since}"
                );
                let got = listener.take(&node, (have - first) as usize);
                assert_eq!(got, numbers(first..have), "{storage:?} {style:?} {since}");
                node.count(&topic, have..have + 1);
                assert_eq!(listener.take(&node, 1), [json!(have)], "{style:?} {since}");
                // The client reconnects with the same request and its position.
                listener.cut();
                node.count(&topic, have + 1..have + 3);
                listener.connect(&node);
                let got = listener.take(&node, 2);
                assert_eq!(got, numbers(have + 1..have + 3), "{storage:?} {style:?} {since}");
                assert_eq!(listener.recovered(&node).0, true);
                have += 3;
            }
        }
    }
}

#[test]
fn what_is_gone_is_not_missed_by_a_client_that_requests_what_is_there() {
    for storage in BOTH {
        let mut node = Node::new(storage);
        for style in ALL {
            let topic = format!("small:{style:?}");
            node.count(&topic, 0..8);
            if storage == Storage::Disk {
                node.restart();
            }
            for (since, first) in [("start", 5), ("last:2", 6), ("last:100", 5)] {
                let query = format!("since={since}");
                let mut listener = Listener::with(&node, style, &[&topic], &query);
                let recovered = listener.recovered(&node);
                assert_eq!(recovered, (json!(true), Value::Null), "{storage:?} {style:?} {since}");
                let got = listener.take(&node, 8 - first);
                assert_eq!(got, numbers(first as u64..8), "{storage:?} {style:?} {since}");
            }
        }
    }
}

#[test]
fn a_reply_names_the_position_before_its_first_message() {
    for storage in BOTH {
        let mut node = Node::new(storage);
        let ids = node.count("small:1", 0..6);
        if storage == Storage::Disk {
            node.restart();
        }
        let mut socket = websocket(&node, "");
        for (since, before) in [("start", 2), ("last:2", 3)] {
            let subscribe =
                json!({"type": "subscribe", "id": 1, "topic": "small:1", "since": since});
            let reply = command(&mut socket, subscribe);
            // The position is between the two messages: the flush of the store has an offset, too.
            let position = reply["ok"]["since"].as_str().unwrap();
            assert!(
                position >= ids[before].as_str() && position < ids[before + 1].as_str(),
                "{reply}"
            );
            for number in before + 1..6 {
                assert_eq!(receive(&mut socket)["data"], number as u64, "{storage:?} {since}");
            }
            // A client that reconnects with this position misses nothing.
            let back = format!("since:small:1={position}");
            let mut stream = Listener::with(&node, ResumeStyle::Stream, &["small:1"], &back);
            assert_eq!(stream.recovered(&node).0, true);
            assert_eq!(stream.take(&node, 5 - before), numbers(before as u64 + 1..6));
        }
    }
}

#[test]
fn each_topic_may_begin_in_its_own_way() {
    let node = Node::new(Storage::Memory);
    let ids = node.count("h:1", 0..5);
    node.count("h:2", 10..15);
    node.count("h:3", 20..25);
    let topics = ["h:1", "h:2", "h:3"];
    let query = format!("since=last:1&since:h:1={}&since:h:2=start", ids[3]);
    for style in [ResumeStyle::Stream, ResumeStyle::Sse, ResumeStyle::Poll] {
        let mut listener = Listener::with(&node, style, &topics, &query);
        let mut got: Vec<u64> =
            listener.take(&node, 7).iter().map(|data| data.as_u64().unwrap()).collect();
        got.sort_unstable();
        assert_eq!(got, [4, 10, 11, 12, 13, 14, 24], "{style:?}");
        assert_eq!(listener.recovered(&node).0, true);
    }
}

#[test]
fn a_topic_without_history_has_nothing_there() {
    let node = Node::new(Storage::Memory);
    node.count("h:1", 0..2);
    for style in ALL {
        for since in ["start", "last:5"] {
            let query = format!("since={since}");
            let mut listener = Listener::with(&node, style, &["plain"], &query);
            let recovered = listener.recovered(&node);
            assert_eq!(recovered, (json!(false), json!("no_history")), "{style:?} {since}");
            // If one of several topics can't recover, the others still do.
            let mut listener = Listener::with(&node, style, &["plain", "h:1"], &query);
            let recovered = listener.recovered(&node);
            assert_eq!(recovered, (json!(false), json!("no_history")), "{style:?} {since}");
            assert_eq!(listener.rest_before(&node, "h:1"), numbers(0..2), "{style:?} {since}");
            node.api("DELETE", "/api/history/h:1", None);
            node.count("h:1", 0..2);
        }
    }
    for target in ["/sse", "/stream", "/poll"] {
        for since in ["last:0", "last:1001", "last:x", "begin"] {
            let (status, refused) = node.get(&format!("{target}?topic=h:1&since={since}"));
            assert_eq!((status, &refused["error"]["code"]), (400, &json!("bad_since")));
            let message = refused["error"]["message"].as_str().unwrap();
            assert!(message.contains("last:N"), "{message}");
        }
    }
}

#[test]
fn the_newest_are_counted_before_tags_choose() {
    let node = Node::new(Storage::Memory);
    for (number, tag) in ["red", "blue", "red", "blue", "red"].iter().enumerate() {
        node.publish_with("h:1", json!(number), json!({"tags": [tag]}));
    }
    for style in ALL {
        for (since, want) in [("start", vec![0, 2, 4]), ("last:3", vec![2, 4]), ("last:2", vec![4])]
        {
            let query = format!("tag=red&since={since}");
            let mut listener = Listener::with(&node, style, &["h:1"], &query);
            let want: Vec<Value> = want.into_iter().map(Value::from).collect();
            assert_eq!(listener.take(&node, want.len()), want, "{style:?} {since}");
        }
    }
}

#[test]
fn of_acknowledged_topics_cursors_say_what_waits() {
    let node = Node::new(Storage::Memory);
    let first = Listener::with(&node, ResumeStyle::Stream, &["w:1"], "user=al");
    let ids = node.count("w:1", 0..6);
    drop(first);
    let (status, _) = node.ack(json!({"user": "al", "topic": "w:1", "id": ids[1]}));
    assert_eq!(status, 200);
    for style in [ResumeStyle::Sse, ResumeStyle::Stream, ResumeStyle::Poll] {
        for since in ["start", "last:1"] {
            // The window has three messages. Acknowledged messages do not come again, and none is skipped.
            let query = format!("user=al&since={since}");
            let mut listener = Listener::with(&node, style, &["w:1"], &query);
            assert_eq!(listener.recovered(&node).0, true, "{style:?}");
            assert_eq!(listener.take(&node, 3), numbers(2..5), "{style:?} {since}");
        }
    }
    // The user's own topic behaves like any other.
    let mail: Vec<String> = (0..4).map(|number| node.send("bo", json!(number))).collect();
    node.ack(json!({"user": "bo", "id": mail[1]}));
    let mut inbox = Listener::with(&node, ResumeStyle::Sse, &[], "user=bo&since=start");
    assert_eq!(inbox.take(&node, 2), numbers(2..4));
}
