//! Compacted topics: a message has a key, and a marker tells clients when they have the whole state.

use serde_json::{Value, json};

use crate::recovery::listener::*;
use crate::recovery::node::*;
use crate::support::*;

fn set(node: &Node, topic: &str, key: &str, data: Value) {
    node.publish_with(topic, data, json!({"key": key}));
}

/// Returns the keys and the data of the messages before the marker, which must be the topic's.
fn until_complete(node: &Node, listener: &mut Listener, topic: &str) -> Vec<(Value, Value)> {
    let mut messages = Vec::new();
    loop {
        assert!(messages.len() < 10_000, "{:?}: the state has no end", listener.style);
        match listener.next_or_state(node) {
            Ok(message) => messages.push((message["key"].clone(), message["data"].clone())),
            Err(state) => {
                assert_eq!(state, topic, "{:?}", listener.style);
                return messages;
            }
        }
    }
}

#[test]
fn a_marker_says_when_the_state_is_complete() {
    for storage in BOTH {
        let mut node = Node::new(storage);
        for style in ALL {
            let topic = format!("c:{style:?}");
            // An empty state is also complete.
            let mut empty = Listener::new(&node, style, &[&topic]);
            assert_eq!(until_complete(&node, &mut empty, &topic), [], "{storage:?} {style:?}");
            for round in 0..3 {
                let publish = |key: u64| {
                    let key = format!("k{key}");
                    json!({"publish": {"topic": topic, "data": round, "key": key}})
                };
                let commands: Vec<Value> = (0..300).map(publish).collect();
                let reply = node.post("/api/batch", json!({"commands": commands}));
                let results = reply["results"].as_array().unwrap();
                assert!(results.iter().all(|result| result["error"].is_null()), "{reply}");
            }
        }
        node.flush();
        if storage == Storage::Disk {
            node.restart();
        }
        for style in ALL {
            let topic = format!("c:{style:?}");
            let state = |key: u64| (json!(format!("k{key}")), json!(2));
            for since in ["", "since=start", "since=last:5"] {
                let mut newcomer = Listener::with(&node, style, &[&topic], since);
                let got = until_complete(&node, &mut newcomer, &topic);
                // The topic retains a hundred messages, and the disk may have a tenth more.
                let want: Vec<_> = (200..300).map(state).collect();
                let (more, newest) = got.split_at(got.len().saturating_sub(100));
                assert_eq!(newest, want, "{storage:?} {style:?} {since}");
                let more_max = if storage == Storage::Disk { 10 } else { 0 };
                assert!(more.len() <= more_max, "{storage:?} {style:?} {since}: {more:?}");
                // Changes follow. Each reconnect has its own marker.
                set(&node, &topic, "k299", json!(2));
                assert_eq!(newcomer.take(&node, 1), [json!(2)], "{storage:?} {style:?} {since}");
                newcomer.cut();
                set(&node, &topic, "k299", json!(2));
                newcomer.connect(&node);
                let mut missed = until_complete(&node, &mut newcomer, &topic);
                if style == ResumeStyle::Poll && missed.is_empty() {
                    // The response before had this marker.
                    missed = until_complete(&node, &mut newcomer, &topic);
                }
                assert_eq!(missed, [state(299)], "{storage:?} {style:?} {since}");
            }
        }
    }
}

#[test]
fn who_was_away_for_too_long_takes_the_state_anew() {
    for storage in BOTH {
        let mut node = Node::new(storage);
        for style in ALL {
            let topic = format!("c3:{style:?}");
            set(&node, &topic, "old", json!(0));
            let mut listener = Listener::new(&node, style, &[&topic]);
            assert_eq!(until_complete(&node, &mut listener, &topic).len(), 1);
            listener.cut();
            set(&node, &topic, "old", Value::Null);
            for key in ["a", "b", "c"] {
                set(&node, &topic, key, json!(key));
            }
            if storage == Storage::Disk {
                node.restart();
            }
            // The history has dropped the removal of the key, so only the whole state shows it.
            listener.connect(&node);
            let recovered = listener.recovered(&node);
            assert_eq!(recovered, (json!(false), json!("too_old")), "{storage:?} {style:?}");
            let got = until_complete(&node, &mut listener, &topic);
            let want = ["a", "b", "c"].map(|key| (json!(key), json!(key)));
            assert_eq!(got, want, "{storage:?} {style:?}");
            assert_eq!(listener.rest(&node), [json!(null); 0], "{storage:?} {style:?}");
        }
    }
}

#[test]
fn each_of_several_states_has_its_marker() {
    let node = Node::new(Storage::Memory);
    set(&node, "c:1", "a", json!(1));
    set(&node, "c:2", "b", json!(2));
    let ids = node.count("h:1", 10..12);
    for style in ALL {
        let query = format!("since:h:1={}", ids[0]);
        let query = if style == ResumeStyle::Ws { "" } else { &query };
        let mut listener = Listener::with(&node, style, &["c:1", "h:1", "c:2", "c:3"], query);
        let (mut data, mut states) = (Vec::new(), Vec::new());
        while states.len() < 3 {
            match listener.next_or_state(&node) {
                Ok(message) => data.push(message["data"].as_u64().unwrap()),
                Err(state) => states.push(state.as_str().unwrap().to_string()),
            }
        }
        data.sort_unstable();
        states.sort_unstable();
        let want = if style == ResumeStyle::Ws { vec![1, 2] } else { vec![1, 2, 11] };
        assert_eq!((data, states), (want, vec!["c:1".into(), "c:2".into(), "c:3".into()]));
    }
}

#[test]
fn the_marker_of_an_event_stream_has_no_id() {
    let node = Node::new(Storage::Memory);
    set(&node, "c:1", "a", json!("on"));
    let mut stream = node.listen("/sse?topic=c:1");
    assert_eq!(stream.event()[0].0, "retry");
    let of = |name: &str, value: &str| (name.to_string(), value.to_string());
    let message = stream.event();
    assert_eq!((message[0].0.as_str(), &message[1]), ("id", &of("data", "on")));
    let marker = stream.event();
    let data = r#"{"type":"state_complete","topic":"c:1"}"#;
    assert_eq!(marker, [of("event", "state_complete"), of("data", data)]);
    let (status, refused) = node.api(
        "POST",
        "/api/publish",
        Some(json!({"topic": "c:1", "key": "a", "data": 1, "event": "state_complete"})),
    );
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("reserved_event")));
}

#[test]
fn what_the_application_puts_a_connection_into_has_its_state() {
    let node = Node::new(Storage::Memory);
    set(&node, "c:1", "a", json!("on"));
    for style in [ResumeStyle::Sse, ResumeStyle::Stream, ResumeStyle::Ws] {
        let mut listener = Listener::with(&node, style, &[], &format!("user=al{style:?}"));
        node.until_members(&format!("@al{style:?}"), 1);
        node.post("/api/subscribe", json!({"user": format!("al{style:?}"), "topic": "c:1"}));
        let got = until_complete(&node, &mut listener, "c:1");
        assert_eq!(got, [(json!("a"), json!("on"))], "{style:?}");
    }
}

#[test]
fn a_message_without_a_key_is_no_state() {
    for storage in BOTH {
        let node = Node::new(storage);
        let is_refused = |reply: &Value| {
            assert_eq!(reply["error"]["code"], "key_required", "{reply}");
            let message = reply["error"]["message"].as_str().unwrap();
            assert!(message.contains("compact = true") && message.contains("key"), "{message}");
        };
        for options in [json!({}), json!({"if_offset": 0}), json!({"idempotency_key": "x"})] {
            let mut body = json!({"topic": "cp:1", "data": 1});
            body.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
            let (status, refused) = node.api("POST", "/api/publish", Some(body));
            assert_eq!(status, 400, "{refused}");
            is_refused(&refused);
        }
        let publish = |key: Value| json!({"publish": {"topic": "cp:1", "data": 1, "key": key}});
        let body = json!({"commands": [publish(Value::Null), publish(json!("k"))]});
        let results = node.post("/api/batch", body);
        is_refused(&results["results"][0]);
        assert!(results["results"][1]["ok"]["id"].is_string(), "{results}");
        // A message with `no_history` may have no key.
        node.publish_with("cp:1", json!("typing"), json!({"no_history": true}));
        let (status, refused) =
            json(node.client, "POST", "/publish?topic=cp:1", Some(json!(1)), "");
        assert_eq!(status, 400);
        is_refused(&refused);
        let (status, _) =
            json(node.client, "POST", "/publish?topic=cp:1&key=h", Some(json!(2)), "");
        assert_eq!(status, 200);
        let mut socket = websocket(&node, "");
        let mut publish = json!({"type": "publish", "id": 1, "topic": "cp:1", "data": 3});
        is_refused(&command(&mut socket, publish.clone()));
        publish["key"] = json!("w");
        assert!(command(&mut socket, publish)["ok"]["id"].is_string());
        node.flush();
        assert_eq!(node.history("cp:1", "").0, [json!(1), json!(2), json!(3)]);
    }
}

/// A state of several pieces, and a later one that is gone: a newcomer never had that one, so it is no gap.
#[test]
fn a_newcomer_gets_a_long_state_once_although_a_later_state_has_expired() {
    for storage in BOTH {
        let node = Node::new(storage);
        let long = "x".repeat(3_000);
        let publish = |key: u64| json!({"publish": {"topic": "c:1", "data": long, "key": format!("k{key:02}")}});
        let commands: Vec<Value> = (0..99).map(publish).collect();
        node.post("/api/batch", json!({"commands": commands}));
        node.publish_with("c:1", json!(1), json!({"key": "brief", "ttl_seconds": 1}));
        let expected: Vec<Value> = (0..99).map(|key| json!(format!("k{key:02}"))).collect();
        let has_expired = |_: &Server| node.history("c:1", "").0.len() == 99;
        node.until("the state has expired", has_expired);
        // The server drops it a moment later.
        std::thread::sleep(std::time::Duration::from_millis(1_500));
        for style in ALL {
            for since in ["", "since=start"] {
                let mut newcomer = Listener::with(&node, style, &["c:1"], since);
                let got = until_complete(&node, &mut newcomer, "c:1");
                let keys: Vec<Value> = got.into_iter().map(|(key, _)| key).collect();
                assert!(keys == expected, "{storage:?} {style:?} {since}: {} keys", keys.len());
            }
        }
    }
}

#[test]
fn who_comes_and_goes_is_no_state() {
    let node = Node::new(Storage::Memory);
    set(&node, "cp:1", "a", json!(1));
    let mut listener = Listener::with(&node, ResumeStyle::Stream, &["cp:1"], "user=al");
    assert_eq!(until_complete(&node, &mut listener, "cp:1").len(), 1);
    // Current members get the notice, and later ones do not.
    let joined = listener.next(&node);
    assert_eq!((&joined["event"], &joined["key"]), (&json!("presence_diff"), &Value::Null));
    assert_eq!(node.history("cp:1", "").0, [json!(1)]);
}

#[test]
fn a_poll_that_comes_back_to_an_empty_state_waits() {
    for storage in BOTH {
        let node = Node::new(storage);
        let (_, first) = node.get("/poll?topic=c:1&timeout=9");
        assert_eq!(first["state_complete"], json!(["c:1"]), "{first}");
        let since = first["since"].as_str().unwrap();
        let began = std::time::Instant::now();
        let (_, second) = node.get(&format!("/poll?topic=c:1&timeout=1&since={since}"));
        assert_eq!(second["messages"], json!([]), "{second}");
        assert!(began.elapsed().as_millis() > 900, "it was answered at once: {second}");
    }
}
