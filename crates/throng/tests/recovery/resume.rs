//! Clients that resume get exactly what they missed, in their transport's way.

use std::time::Duration;

use random::Random;
use serde_json::{Value, json};

use crate::recovery::listener::*;
use crate::recovery::node::*;
use crate::support::*;

/// Returns the id and the data of the next event with data. Remembers ids that arrive alone, as a browser does.
fn event(stream: &mut Stream, last: &mut String) -> (String, String) {
    loop {
        let event = stream.event();
        let of = |name: &str| event.iter().find(|(field, _)| field == name);
        if let Some((_, id)) = of("id") {
            *last = id.clone();
        }
        if let Some((_, data)) = of("data").filter(|_| of("event").is_none()) {
            return (last.clone(), data.clone());
        }
    }
}

fn reconnect(server: &Server, target: &str, last: &str) -> Stream {
    let mut stream = Stream::new(server.connect());
    stream.send(&format!("GET {target} HTTP/1.1\r\nHost: t\r\nLast-Event-ID: {last}\r\n\r\n"));
    assert!(stream.head().starts_with("HTTP/1.1 200 "));
    stream
}

/// Returns the data before a sentinel to topic h:1, with the last id after each message.
fn before_sentinel(server: &Server, stream: &mut Stream, last: &str) -> Vec<(String, String)> {
    server.publish("h:1", json!("mark"));
    let mut last = last.to_string();
    let mut all = Vec::new();
    loop {
        let (id, data) = event(stream, &mut last);
        if data == "mark" {
            return all;
        }
        all.push((id, data));
    }
}

#[test]
fn an_event_stream_cut_after_any_message_gets_exactly_the_rest() {
    for storage in BOTH {
        let mut node = Node::new(storage);
        let topics = ["h:1", "plain", "h:2", "h:1", "plain", "h:3", "h:3", "h:2", "plain", "h:1"];
        let target = "/sse?topic=h:1&topic=h:2&topic=plain&topic=h:3";
        let mut live = node.listen(target);
        let mut received = Vec::new();
        let mut last = String::new();
        for (at, topic) in topics.iter().enumerate() {
            node.publish(topic, json!(format!("{at}")));
            let (id, data) = event(&mut live, &mut last);
            assert_eq!(data, at.to_string());
            received.push(id);
        }
        drop(live);
        for restarted in [false, true] {
            if restarted && storage == Storage::Memory {
                break;
            }
            if restarted {
                node.restart();
            }
            for (cut, position) in received.iter().enumerate() {
                let rest = (cut + 1..topics.len()).filter(|at| topics[*at] != "plain");
                let want: Vec<String> = rest.map(|at| at.to_string()).collect();
                let is_ours = |data: &str| data.parse::<usize>().is_ok();
                let mut stream = reconnect(&node, target, position);
                let rest = before_sentinel(&node, &mut stream, position);
                let got: Vec<&str> =
                    rest.iter().map(|(_, data)| data.as_str()).filter(|it| is_ours(it)).collect();
                assert_eq!(got, want, "{storage:?}: cut after {cut}, {position}");
                // Cuts the connection again after the first of these messages.
                let Some((position, _)) = rest.first().filter(|_| !want.is_empty()) else {
                    continue;
                };
                let mut stream = reconnect(&node, target, position);
                let rest = before_sentinel(&node, &mut stream, position);
                let got: Vec<&str> =
                    rest.iter().map(|(_, data)| data.as_str()).filter(|it| is_ours(it)).collect();
                assert_eq!(got, want[1..], "{storage:?}: cut after {cut} and one more, {position}");
            }
        }
    }
}

#[test]
fn an_event_stream_resumes_by_header_or_query() {
    let node = Node::new(Storage::Memory);
    let ids = node.count("h:1", 0..5);
    for target in [
        format!("/sse?topic=h:1&lastEventID={}", ids[1]),
        format!("/sse?topic=h:1&since={}", ids[1]),
        format!("/sse?topic=h:1&since:h:1={}", ids[1]),
    ] {
        let mut stream = node.listen(&target);
        assert_eq!(stream.event()[0].0, "retry");
        let recovery = stream.event();
        assert_eq!(recovery[0], ("event".into(), "recovery".into()), "{target}");
        let recovery: Value = serde_json::from_str(&recovery[1].1).unwrap();
        assert_eq!((&recovery["recovered"], &recovery["since"]), (&json!(true), &json!(ids[1])));
        for number in 2..5 {
            assert_eq!(stream.data(), number.to_string(), "{target}");
        }
    }
    // The header is newer than the URL that the browser first used.
    let target = format!("/sse?topic=h:1&lastEventID={}", ids[0]);
    let mut stream = reconnect(&node, &target, &ids[3]);
    let mut last = String::new();
    assert_eq!(event(&mut stream, &mut last).1, "4");
    // A client that resumes nothing gets no recovery event, but it gets its position.
    let mut fresh = node.listen("/sse?topic=h:1");
    assert_eq!(fresh.event()[0].0, "retry");
    assert_eq!(fresh.event(), [("id".to_string(), ids[4].clone())]);
    node.count("h:1", 5..6);
    assert_eq!(fresh.data(), "5");
}

#[test]
fn every_transport_recovers_missed_messages_and_then_new_ones() {
    for storage in BOTH {
        let mut node = Node::new(storage);
        for style in ALL {
            let topic = format!("h:{style:?}");
            let mut listener = Listener::new(&node, style, &[&topic]);
            node.count(&topic, 0..3);
            assert_eq!(listener.take(&node, 2), numbers(0..2));
            listener.cut();
            node.count(&topic, 3..6);
            if storage == Storage::Disk {
                node.restart();
            }
            listener.connect(&node);
            // A poll may have received the third message with the others.
            let rest = listener.rest(&node);
            assert_eq!(rest, numbers(2..6), "{storage:?} {style:?}");
            assert_eq!(listener.recovered(&node), (json!(true), Value::Null), "{style:?}");
            node.count(&topic, 6..8);
            assert_eq!(listener.rest(&node), numbers(6..8), "{storage:?} {style:?}");
        }
    }
}

#[test]
fn a_stream_resumes_each_topic_or_all_at_once() {
    let node = Node::new(Storage::Memory);
    let one = node.count("h:1", 0..4);
    let two = node.count("h:2", 10..14);
    let query = format!("since:h:1={}&since:h:2={}", one[2], two[0]);
    let mut each = Listener::with(&node, ResumeStyle::Stream, &["h:1", "h:2"], &query);
    assert_eq!(each.rest(&node), [json!(3), json!(11), json!(12), json!(13)]);
    assert_eq!(each.recovered(&node), (json!(true), Value::Null));
    let query = format!("since={}&since:h:2={}", one[2], two[2]);
    let mut both = Listener::with(&node, ResumeStyle::Stream, &["h:1", "h:2"], &query);
    assert_eq!(both.rest(&node), [json!(3), json!(13)]);
    let mut all =
        Listener::with(&node, ResumeStyle::Stream, &["h:1", "h:2"], &format!("since={}", one[3]));
    assert_eq!(all.rest(&node), numbers(10..14));
    // The resume token names a topic that the request does not.
    let (status, refused) = node.get(&format!("/stream?topic=h:1&since:h:2={}", one[0]));
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("bad_since")));
    let (status, refused) = node.get("/stream?topic=h:1&since=yesterday");
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("bad_since")));
}

#[test]
fn a_token_that_names_a_partition_starts_anew_and_reports_it() {
    let node = Node::new(Storage::Memory);
    let ids = node.count("h:1", 0..2);
    let partition = ids[0].as_str().replace(':', ".7:");
    let query = format!("since={partition}/{partition}-00000001.1");
    let mut listener = Listener::with(&node, ResumeStyle::Stream, &["h:1"], &query);
    node.count("h:1", 2..3);
    assert_eq!(listener.rest(&node), [json!(2)]);
    assert_eq!(listener.recovered(&node), (json!(false), json!("epoch_changed")));
    for topic in ["h:1", "plain"] {
        let (_, response) = node.get(&format!("/poll?topic={topic}&since={partition}&timeout=0"));
        assert_eq!(
            (&response["recovered"], &response["reason"]),
            (&json!(false), &json!("epoch_changed"))
        );
    }
}

#[test]
fn a_poll_resumes_topics_with_and_without_history() {
    for storage in BOTH {
        let node = Node::new(storage);
        let (_, first) = node.get("/poll?topic=h:1&topic=plain&timeout=0");
        let mut since = first["since"].as_str().unwrap().to_string();
        let mut got = [Vec::new(), Vec::new()];
        for round in 0..20u64 {
            node.publish("plain", json!(round * 2));
            node.count("h:1", round * 2..round * 2 + 2);
            node.publish("plain", json!(round * 2 + 1));
            node.publish("h:2", json!("x"));
            node.flush();
            let (_, response) = node.get(&format!("/poll?topic=h:1&topic=plain&since={since}"));
            assert_eq!(response["recovered"], true, "{response}");
            for message in response["messages"].as_array().unwrap() {
                let list = usize::from(message["topic"] == "plain");
                got[list].push(message["data"].clone());
            }
            since = response["since"].as_str().unwrap().to_string();
        }
        let (_, response) =
            node.get(&format!("/poll?topic=h:1&topic=plain&since={since}&timeout=0"));
        assert_eq!((&response["messages"], &response["recovered"]), (&json!([]), &json!(true)));
        assert_eq!(got, [numbers(0..40), numbers(0..40)], "{storage:?}");
    }
}

#[test]
fn a_waiting_poll_is_woken_and_its_token_stays_valid() {
    let node = Node::new(Storage::Disk);
    let mut poll = Listener::new(&node, ResumeStyle::Poll, &["h:1", "plain"]);
    for number in 0..6 {
        std::thread::scope(|scope| {
            let node = &node;
            scope.spawn(move || {
                node.until_members("h:1", 1);
                node.publish(if number % 2 == 0 { "h:1" } else { "plain" }, json!(number));
            });
            assert_eq!(poll.next(node)["data"], number);
        });
    }
    assert_eq!(poll.rest(&node), numbers(0..0));
}

#[test]
fn a_websocket_recovers_each_topic_separately() {
    let node = Node::new(Storage::Memory);
    let one = node.count("h:1", 0..3);
    let two = node.count("h:2", 10..13);
    let mut socket = websocket(&node, "");
    let subscribe = |topic: &str, since: &str| json!({"type": "subscribe", "id": topic, "topic": topic, "since": since});
    let reply = command(&mut socket, subscribe("h:1", &one[0]));
    assert_eq!(reply["ok"], json!({"topic": "h:1", "since": one[0], "recovered": true}));
    for number in 1..3 {
        assert_eq!(receive(&mut socket)["data"], number);
    }
    let reply = command(&mut socket, subscribe("h:2", &two[1]));
    assert_eq!(reply["ok"], json!({"topic": "h:2", "since": two[1], "recovered": true}));
    let message = receive(&mut socket);
    assert_eq!((&message["data"], &message["id"]), (&json!(12), &json!(two[2])));
    let reply = command(&mut socket, subscribe("plain", &one[0]));
    let want = json!({"topic": "plain", "recovered": false, "reason": "no_history"});
    assert_eq!(reply["ok"], want);
    let reply = command(&mut socket, subscribe("h:3", ELSEWHERE));
    assert_eq!(reply["ok"]["reason"], "epoch_changed");
    let reply = command(&mut socket, subscribe("h:3", "never"));
    assert_eq!(reply["error"]["code"], "bad_since");
    // The client unsubscribes and subscribes again.
    command(&mut socket, json!({"type": "unsubscribe", "id": 1, "topic": "h:1"}));
    let ids = node.count("h:1", 3..6);
    command(&mut socket, subscribe("h:1", &ids[0]));
    assert_eq!(receive(&mut socket)["data"], 4);
    assert_eq!(receive(&mut socket)["data"], 5);
    node.count("h:1", 6..7);
    assert_eq!(receive(&mut socket)["data"], 6);
}

#[test]
fn connections_cut_while_messages_flow_get_the_whole_sequence() {
    const MESSAGES: u64 = 80;
    for storage in BOTH {
        let node = Node::new(storage);
        let topics = ["h:1", "h:2", "h:3"];
        let listeners: Vec<Listener> = ALL
            .iter()
            .flat_map(|style| [*style; 3])
            .map(|it| Listener::new(&node, it, &topics))
            .collect();
        std::thread::scope(|scope| {
            let node = &node;
            for topic in topics {
                scope.spawn(move || node.count(topic, 0..MESSAGES));
            }
            for (at, mut listener) in listeners.into_iter().enumerate() {
                scope.spawn(move || {
                    let mut random = Random::of(77, at as u64);
                    let mut counts = [0; 3];
                    let mut left = random.below(20_u32);
                    while counts != [MESSAGES; 3] {
                        let message = listener.next(node);
                        let topic = topics.iter().position(|it| message["topic"] == *it).unwrap();
                        assert_eq!(
                            message["data"], counts[topic],
                            "{storage:?} {:?}: {message}",
                            listener.style
                        );
                        counts[topic] += 1;
                        left = left.saturating_sub(1);
                        if left == 0 {
                            listener.cut();
                            listener.connect(node);
                            left = 1 + random.below(40);
                        }
                    }
                });
            }
        });
    }
}

/// Recovers 3,000 missed messages with a slow reader.
fn one_reads_slowly(settings: &[(&str, &str)]) {
    const MESSAGES: u64 = 3_000;
    for storage in BOTH {
        let mut node = Node::with(storage, settings);
        let first = node.count("h:long", 0..1).remove(0);
        let pad = "x".repeat(3_000);
        let publish = |n| json!({"publish": {"topic": "h:long", "data": {"n": n, "pad": pad}}});
        for part in 0..3 {
            let range = (part * 1_000).max(1)..(part + 1) * 1_000;
            let commands: Vec<Value> = range.map(publish).collect();
            let response = node.post("/api/batch", json!({"commands": commands}));
            assert!(response["results"].as_array().unwrap().iter().all(|it| it["error"].is_null()));
        }
        node.flush();
        if storage == Storage::Disk {
            node.restart();
        }
        for style in ALL {
            let mut listener = Listener::away(style, &["h:long"], "").seen(&first);
            listener.connect(&node);
            for number in 1..MESSAGES {
                let message = listener.next(&node);
                assert_eq!(message["data"]["n"], number, "{storage:?} {style:?}");
                if number % 250 == 0 {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            assert_eq!(listener.rest(&node), numbers(0..0), "{storage:?} {style:?}");
            assert_eq!(listener.recovered(&node).0, true);
        }
    }
}

#[test]
fn a_slow_reader_gets_a_long_history_complete_and_in_order() {
    one_reads_slowly(&[]);
}

#[test]
fn a_small_outbox_suffices_for_a_long_history() {
    one_reads_slowly(&[
        ("THRONG_LIMITS_MESSAGE_BYTES_MAX", "8KiB"),
        ("THRONG_LIMITS_OUTBOX_BYTES_MAX", "16KiB"),
        ("THRONG_PRESENCE_LIST_BYTES_MAX", "8KiB"),
    ]);
}
