//! Recovery gaps: clients learn that the server can't deliver what they missed, and why. They continue
//! with new messages.

use serde_json::{Value, json};

use crate::recovery::listener::*;
use crate::recovery::node::*;
use crate::support::*;

/// Connects a listener to a topic, and checks that it gets a recovery gap with this reason, and then new messages.
fn expect_gap(node: &Node, mut listener: Listener, reason: &str) {
    listener.connect(node);
    let recovery = listener.recovered(node);
    assert_eq!(recovery, (json!(false), json!(reason)), "{:?}", listener.style);
    let rest = listener.rest(node);
    assert!(!rest.contains(&json!("old")), "{:?}: {rest:?}", listener.style);
    // The listener's position is valid again.
    listener.cut();
    listener.connect(node);
    assert_eq!(listener.rest(node), numbers(0..0), "{:?}", listener.style);
}

#[test]
fn history_in_memory_ends_with_the_process() {
    let mut node = Node::new(Storage::Memory);
    let positions: Vec<Listener> = ALL
        .iter()
        .map(|style| {
            let topic = format!("h:{style:?}");
            let mut listener = Listener::new(&node, *style, &[&topic]);
            node.publish_with(&topic, json!("old"), json!({}));
            assert_eq!(listener.take(&node, 1), [json!("old")]);
            listener.cut();
            listener
        })
        .collect();
    node.restart();
    positions.into_iter().for_each(|listener| expect_gap(&node, listener, "epoch_changed"));
}

#[test]
fn history_in_a_store_survives_a_restart() {
    let mut node = Node::new(Storage::Disk);
    let mut listeners: Vec<Listener> =
        ALL.iter().map(|style| Listener::new(&node, *style, &["d:1"])).collect();
    node.count("d:1", 0..3);
    for listener in &mut listeners {
        assert_eq!(listener.take(&node, 3), numbers(0..3));
        listener.cut();
    }
    // The publisher has its response, so the message is on disk.
    node.count("d:1", 3..6);
    node.crash();
    let last = node.count("d:1", 6..7).remove(0);
    for mut listener in listeners {
        listener.connect(&node);
        assert_eq!(listener.take(&node, 4), numbers(3..7), "{:?}", listener.style);
        assert_eq!(listener.recovered(&node), (json!(true), Value::Null), "{:?}", listener.style);
    }
    let (_, page) = node.history("d:1", "");
    assert_eq!(page["messages"].as_array().unwrap().last().unwrap()["id"], last);
}

#[test]
fn messages_dropped_by_limits_are_too_old() {
    for storage in BOTH {
        let node = Node::new(storage);
        for style in ALL {
            let topic = format!("small:{style:?}");
            let mut listener = Listener::new(&node, style, &[&topic]);
            node.count(&topic, 0..1);
            assert_eq!(listener.take(&node, 1), numbers(0..1));
            listener.cut();
            // The history has three messages, which are all that the listener missed.
            node.count(&topic, 1..4);
            listener.connect(&node);
            assert_eq!(listener.take(&node, 3), numbers(1..4), "{storage:?} {style:?}");
            assert_eq!(listener.recovered(&node).0, true, "{storage:?} {style:?}");
            listener.cut();
            node.count(&topic, 4..8);
            listener.connect(&node);
            let recovery = listener.recovered(&node);
            assert_eq!(recovery, (json!(false), json!("too_old")), "{storage:?} {style:?}");
            // The listener gets the messages that the history still has.
            assert_eq!(listener.rest(&node), numbers(5..8), "{storage:?} {style:?}");
        }
    }
}

/// Limits also drop messages that wait for users, in topics with acknowledgements and in users' own topics.
#[test]
fn what_waited_and_was_dropped_is_too_old() {
    for storage in BOTH {
        let mut node = Node::with(storage, &[("THRONG_INBOX_MESSAGES_MAX", "3")]);
        for style in ALL {
            for own in [false, true] {
                let user = format!("al{style:?}{own}");
                let topic = if own { format!("@{user}") } else { format!("ws:{style:?}") };
                // A connection enters the user's own topic by itself. Only a poll or an event stream can name its
                // position.
                if own && !matches!(style, ResumeStyle::Sse | ResumeStyle::Poll) {
                    continue;
                }
                let topics: &[&str] = if own { &[] } else { &[&topic] };
                let publish = |node: &Node, numbers: std::ops::Range<u64>| -> Vec<String> {
                    let send = |number| node.send(&user, json!(number));
                    if own { numbers.map(send).collect() } else { node.count(&topic, numbers) }
                };
                let mut listener = Listener::with(&node, style, topics, &format!("user={user}"));
                let first = publish(&node, 0..1).remove(0);
                let message = listener.next(&node);
                assert_eq!(message["data"], 0, "{storage:?} {style:?} {own}");
                node.ack(json!({"user": user, "topic": topic, "id": first}));
                listener.cut();
                // The history has three messages, which are all that the listener missed.
                publish(&node, 1..4);
                listener.connect(&node);
                let at = format!("{storage:?} {style:?} {own}");
                assert_eq!(listener.take(&node, 3), numbers(1..4), "{at}");
                assert_eq!(listener.recovered(&node).0, true, "{at}");
                listener.cut();
                publish(&node, 4..8);
                for restarts in [false, storage == Storage::Disk] {
                    if restarts {
                        node.restart();
                    }
                    let mut listener = Listener::away(style, topics, &format!("user={user}"));
                    listener = listener.seen(&first);
                    listener.connect(&node);
                    let recovery = listener.recovered(&node);
                    assert_eq!(recovery, (json!(false), json!("too_old")), "{at} {restarts}");
                    assert_eq!(listener.take(&node, 3), numbers(5..8), "{at} {restarts}");
                }
                // A user that has acknowledged up to the dropped messages misses nothing.
                let page = node.history(&topic, "").1;
                node.ack(json!({"user": user, "topic": topic, "id": page["messages"][0]["id"]}));
                let mut listener =
                    Listener::away(style, topics, &format!("user={user}")).seen(&first);
                listener.connect(&node);
                assert_eq!(listener.recovered(&node).0, true, "{at}");
                assert_eq!(listener.take(&node, 2), numbers(6..8), "{at}");
            }
        }
    }
}

/// A user that was away while the limit dropped messages gets a gap notice, even without a position.
#[test]
fn an_absent_user_learns_of_what_was_dropped() {
    for storage in BOTH {
        let mut node = Node::with(storage, &[("THRONG_INBOX_MESSAGES_MAX", "3")]);
        for style in ALL {
            let user = format!("al{style:?}");
            let query = format!("user={user}");
            // No notice goes to a user that has got all messages, or that is new.
            let mut page = Listener::away(style, &[], &query);
            page.connect(&node);
            (0..3).for_each(|number| _ = node.send(&user, json!(number)));
            assert_eq!(page.take(&node, 3), numbers(0..3), "{storage:?} {style:?}");
            assert!(!page.recoveries.iter().any(|it| it["recovered"] == json!(false)));
            page.cut();
            (3..8).for_each(|number| _ = node.send(&user, json!(number)));
            for restarts in [false, storage == Storage::Disk] {
                if restarts {
                    node.restart();
                }
                let at = format!("{storage:?} {style:?} {restarts}");
                let mut page = Listener::away(style, &[], &query);
                page.connect(&node);
                let recovery = page.recovered(&node);
                assert_eq!(recovery, (json!(false), json!("too_old")), "{at}");
                assert_eq!(page.take(&node, 3), numbers(5..8), "{at}");
                if style == ResumeStyle::Ws {
                    // It resumes each topic separately, and the connection enters this one by itself.
                    continue;
                }
                // A client with `since=start` has missed nothing.
                let mut page = Listener::away(style, &[], &format!("{query}&since=start"));
                page.connect(&node);
                assert_eq!(page.take(&node, 3), numbers(5..8), "{at}");
                assert!(!page.recoveries.iter().any(|it| it["recovered"] == json!(false)), "{at}");
            }
            // The cursor is the position: when it is past the dropped messages, none is missed.
            let page = node.history(&format!("@{user}"), "").1;
            node.ack(json!({"user": user, "id": page["messages"][0]["id"]}));
            let mut page = Listener::away(style, &[], &query);
            page.connect(&node);
            assert_eq!(page.take(&node, 2), numbers(6..8), "{storage:?} {style:?}");
            assert!(!page.recoveries.iter().any(|it| it["recovered"] == json!(false)));
        }
        if storage == Storage::Memory {
            let dropped = node.metric("throng_history_dropped_total{by=\"messages\"}");
            assert_eq!(dropped, 4.0 * 5.0);
        }
    }
}

/// The server does not end a poll because of the gap: a poll without a position would end at once, again and again.
#[test]
fn a_poll_that_requests_nothing_waits_although_messages_were_dropped() {
    for storage in BOTH {
        let few = [("THRONG_INBOX_MESSAGES_MAX", "2"), ("THRONG_INBOX_SECONDS_MAX", "1")];
        let node = Node::with(storage, &few);
        (0..4).for_each(|number| _ = node.send("al", json!(number)));
        node.until("all are too old", |_| node.history("@al", "").0.is_empty());
        let began = std::time::Instant::now();
        let (_, reply) = node.get("/poll?user=al&timeout=2");
        assert!(began.elapsed().as_millis() > 900, "{storage:?}: it was answered at once");
        assert_eq!(reply["reason"], "too_old", "{storage:?}: {reply}");
        if storage == Storage::Memory {
            // Each message was dropped once. The first two may have been too old before there were too many.
            let dropped =
                |by: &str| node.metric(&format!("throng_history_dropped_total{{by=\"{by}\"}}"));
            node.until("all are counted", |_| dropped("messages") + dropped("seconds") == 4.0);
            assert!(dropped("seconds") >= 2.0);
        }
    }
}

#[test]
fn what_limits_drop_is_counted() {
    for storage in BOTH {
        let node = Node::new(storage);
        let count = |by: &str| node.metric(&format!("throng_history_dropped_total{{by=\"{by}\"}}"));
        node.count("small:1", 0..8);
        node.until("they are dropped", |_| count("messages") == 5.0);
        node.count("brief:1", 0..4);
        node.until("they are too old", |_| count("seconds") == 4.0);
        let long = "x".repeat(60_000);
        (0..6).for_each(|_| _ = node.publish_with("c:1", json!(long), json!({"key": "k"})));
        assert_eq!(count("bytes"), 0.0, "a former state is not missed");
        for key in 0..25 {
            node.publish_with("c:1", json!(long), json!({"key": format!("k{key}")}));
        }
        node.until("keys are dropped", |_| count("bytes") >= 2.0);
    }
}

#[test]
fn messages_expire_by_age() {
    for storage in BOTH {
        let node = Node::new(storage);
        let id = node.count("brief:1", 0..1).remove(0);
        node.publish_with("brief:1", json!("old"), json!({}));
        node.until("it is too old", |_| node.history("brief:1", "").0.is_empty());
        for style in ALL {
            // Memory and disk may drop the message at different moments. Until both have, a client gets it.
            loop {
                let mut listener = Listener::away(style, &["brief:1"], "").seen(&id);
                listener.connect(&node);
                let got = listener.recovered(&node);
                if got == (json!(false), json!("too_old")) {
                    break;
                }
                assert_eq!(got, (json!(true), Value::Null), "{storage:?} {style:?}");
                assert_eq!(listener.rest(&node), [json!("old")], "{storage:?} {style:?}");
            }
        }
    }
}

#[test]
fn topics_without_history_report_a_recovery_gap() {
    let node = Node::new(Storage::Memory);
    let id = node.count("h:1", 0..1).remove(0);
    for style in [ResumeStyle::Sse, ResumeStyle::Stream, ResumeStyle::Ws] {
        expect_gap(&node, Listener::away(style, &["plain"], "").seen(&id), "no_history");
    }
    let (_, reply) = node.get(&format!("/poll?topic=plain&since:plain={id}&timeout=5"));
    let want = (&json!(false), &json!("no_history"));
    assert_eq!((&reply["recovered"], &reply["reason"]), want, "{reply}");
    // With a position for each topic, a topic without history does not affect the others.
    let query = format!("since:h:1={id}&since:plain={id}");
    let mut both = Listener::with(&node, ResumeStyle::Stream, &["h:1", "plain"], &query);
    node.count("h:1", 1..2);
    assert_eq!(both.take(&node, 1), numbers(1..2));
    assert_eq!(both.recoveries[0]["topics"], json!({"plain": "no_history"}));
    assert_eq!(both.recovered(&node), (json!(false), json!("no_history")));
}

#[test]
fn an_id_beyond_the_last_offset_is_another_epoch() {
    let node = Node::new(Storage::Memory);
    let id = node.count("h:1", 0..1).remove(0);
    let ahead = format!("{}:1000", id.split(':').next().unwrap());
    for style in ALL {
        let mut listener = Listener::away(style, &["h:1"], "").seen(&ahead);
        listener.connect(&node);
        assert_eq!(listener.recovered(&node), (json!(false), json!("epoch_changed")), "{style:?}");
        assert_eq!(listener.rest(&node), numbers(0..0), "{style:?}");
    }
}

/// A page that used another server before returns with an id of that server.
#[test]
fn a_client_learns_that_the_id_of_another_server_recovers_nothing() {
    let node = Node::new(Storage::Memory);
    node.publish_with("h:1", json!("old"), json!({}));
    let recovery_gap = |text: &str| {
        let value: Value = serde_json::from_str(text).unwrap();
        assert_eq!(value["recovered"], false, "{text}");
        assert_eq!(value["reason"], "epoch_changed", "{text}");
    };
    for id in ["42", "some-text", "0185b7e2-6a1c"] {
        let header = format!("Host: t\r\nLast-Event-ID: {id}\r\n");
        let url = format!("&lastEventID={id}");
        for (query, header) in [("", &*header), (&url, "Host: t\r\n")] {
            let mut stream = Stream::new(node.connect());
            stream.send(&format!("GET /sse?topic=h:1{query} HTTP/1.1\r\n{header}\r\n"));
            assert!(stream.head().starts_with("HTTP/1.1 200 "), "{id}");
            recovery_gap(&stream.data());
            node.publish_with("h:1", json!("now"), json!({}));
            assert_eq!(stream.data(), "now");
        }
        let mut stream = Stream::new(node.connect());
        stream.send(&format!("GET /stream?topic=h:1 HTTP/1.1\r\n{header}\r\n"));
        assert!(stream.head().starts_with("HTTP/1.1 200 "), "{id}");
        assert_eq!(stream.object()["type"], "welcome");
        recovery_gap(&stream.object().to_string());
        let (_, reply) = node.get(&format!("/poll?topic=h:1&timeout=0&lastEventID={id}"));
        recovery_gap(&reply.to_string());
    }
}

#[test]
fn messages_expire_while_a_client_is_away() {
    for storage in BOTH {
        let mut node = Node::new(storage);
        let id = node.count("h:1", 0..1).remove(0);
        node.publish_with("h:1", json!("old"), json!({"ttl_seconds": 1}));
        node.publish_with("h:1", json!(1), json!({"ttl_seconds": 600}));
        node.until("one has expired", |_| node.history("h:1", "").0.len() == 2);
        assert_eq!(node.history("h:1", "").0, numbers(0..2), "{storage:?}");
        if storage == Storage::Disk {
            node.restart();
        }
        for style in ALL {
            let mut listener = Listener::away(style, &["h:1"], "").seen(&id);
            listener.connect(&node);
            assert_eq!(listener.take(&node, 1), numbers(1..2), "{storage:?} {style:?}");
            assert_eq!(listener.recovered(&node).0, true, "{storage:?} {style:?}");
        }
    }
}

#[test]
fn what_was_published_to_others_is_no_gap_for_a_poll() {
    let node = Node::with(Storage::Memory, &[("THRONG_LIMITS_RECENT_MESSAGES_MAX", "10")]);
    let id = state(&node);
    for topics in ["topic=c:1", "topic=plain", "topic=h:1&topic=plain&user=al"] {
        let (_, begin) = node.get(&format!("/poll?{topics}&timeout=0"));
        for number in 0..50 {
            node.publish("others", json!(number));
        }
        let since = begin["since"].as_str().unwrap();
        let (_, reply) = node.get(&format!("/poll?{topics}&timeout=0&since={since}"));
        assert_eq!(reply["recovered"], true, "{topics}: {reply}");
        assert_eq!(datas(&reply), numbers(0..0), "{topics} {id}");
        // The client learns of lost messages of its own topic.
        if topics.contains("plain") {
            for number in 0..50 {
                node.publish("plain", json!(number));
            }
            let (_, reply) = node.get(&format!("/poll?{topics}&timeout=0&since={since}"));
            assert_eq!((&reply["recovered"], &reply["reason"]), (&json!(false), &json!("too_old")));
        }
    }
}

/// Publishes a state with one key. Returns its id.
fn state(node: &Node) -> String {
    let body = json!({"topic": "c:1", "data": "on", "key": "lamp"});
    id(&node.post("/api/publish", body))
}
