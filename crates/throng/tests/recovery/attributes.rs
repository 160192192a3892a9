//! Attributes of messages: tags to filter by, and keys of compacted topics.

use serde_json::{Value, json};

use crate::recovery::listener::*;
use crate::recovery::node::*;

fn tagged(node: &Node, topic: &str) {
    node.publish_with(topic, json!("red"), json!({"tags": ["red"]}));
    node.publish_with(topic, json!("none"), json!({}));
    node.publish_with(topic, json!("blue"), json!({"tags": ["blue"]}));
    node.publish_with(topic, json!("both"), json!({"tags": ["blue", "red"]}));
    node.publish_with(topic, json!("green"), json!({"tags": ["green"]}));
}

/// Publishes a sentinel with a tag that the listener selects, and returns the data before it.
fn until_sentinel(node: &Node, listener: &mut Listener, topic: &str) -> Vec<Value> {
    let sentinel = sentinel();
    node.publish_with(topic, sentinel.clone(), json!({"tags": ["red"]}));
    listener.before(node, &sentinel)
}

#[test]
fn subscribers_filter_by_tags_live_and_in_recovery() {
    for storage in BOTH {
        let mut node = Node::new(storage);
        for topic in ["h:t", "plain"] {
            for style in ALL {
                let topic = &format!("{topic}{style:?}");
                let mut one = Listener::with(&node, style, &[topic], "tag=red");
                let mut two = Listener::with(&node, style, &[topic], "tag=blue&tag=red");
                tagged(&node, topic);
                let (red, both) = (json!("red"), json!("both"));
                assert_eq!(until_sentinel(&node, &mut one, topic), [red.clone(), both.clone()]);
                let want = [red.clone(), json!("blue"), both.clone()];
                assert_eq!(until_sentinel(&node, &mut two, topic), want, "{style:?}");
                if !topic.starts_with("h:") {
                    continue;
                }
                one.cut();
                tagged(&node, topic);
                if storage == Storage::Disk {
                    node.restart();
                }
                one.connect(&node);
                let got = until_sentinel(&node, &mut one, topic);
                assert_eq!(got, [red, both], "{storage:?} {style:?}");
            }
        }
    }
}

#[test]
fn messages_to_users_and_to_all_pass_any_tag() {
    let node = Node::new(Storage::Memory);
    for style in ALL {
        let user = format!("al{style:?}");
        let query = format!("user={user}&tag=red");
        let mut listener = Listener::with(&node, style, &["h:1"], &query);
        node.publish_with("h:1", json!("blue"), json!({"tags": ["blue"]}));
        node.send(&user, json!("mail"));
        assert_eq!(listener.take(&node, 1), [json!("mail")], "{style:?}");
        node.post("/api/broadcast", json!({"data": "all"}));
        assert_eq!(listener.take(&node, 1), [json!("all")], "{style:?}");
    }
}

#[test]
fn invalid_tags_are_rejected() {
    let node = Node::new(Storage::Memory);
    for bad in [json!([""]), json!(["x".repeat(65)]), json!(vec!["a"; 17])] {
        let body = json!({"topic": "h:1", "data": 1, "tags": bad});
        let (status, refused) = node.api("POST", "/api/publish", Some(body));
        // A repeated tag counts once.
        let ok = bad == json!(vec!["a"; 17]) && status == 200;
        assert!(ok || refused["error"]["code"] == "bad_tags", "{bad}: {status} {refused}");
    }
    let (status, refused) = node.get("/sse?topic=h:1&tag=");
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("bad_tag")));
    let page_of = |query: &str| node.history("h:1", query).1;
    node.publish_with("h:1", json!(1), json!({"tags": ["red", "é"], "key": "k"}));
    let message = page_of("reverse=true&limit=1")["messages"][0].clone();
    assert_eq!((&message["tags"], &message["key"]), (&json!(["red", "é"]), &json!("k")));
}

fn set(node: &Node, key: &str, data: Value) {
    node.publish_with("c:1", data, json!({"key": key}));
}

#[test]
fn a_compact_topic_gives_newcomers_the_state_and_then_changes() {
    for storage in BOTH {
        let mut node = Node::new(storage);
        for round in 0..5 {
            for key in ["a", "c"] {
                set(&node, key, json!(format!("{key}{round}")));
            }
        }
        let state = [json!("a4"), json!("c4")];
        assert_eq!(node.history("c:1", "").0, state, "{storage:?}");
        if storage == Storage::Disk {
            node.restart();
        }
        for (round, style) in ALL.into_iter().enumerate() {
            let mut newcomer = Listener::new(&node, style, &["c:1"]);
            assert_eq!(newcomer.take(&node, 2), state, "{storage:?} {style:?}");
            let key = format!("d{round}");
            set(&node, &key, json!(round));
            assert_eq!(newcomer.take(&node, 1), [json!(round)], "{storage:?} {style:?}");
            // A connected listener gets changes only.
            newcomer.cut();
            set(&node, "c", json!("c5"));
            set(&node, "c", json!("c4"));
            newcomer.connect(&node);
            let got = newcomer.take(&node, 1);
            assert_eq!(got, [json!("c4")], "{storage:?} {style:?}");
            assert_eq!(newcomer.recovered(&node).0, true, "{storage:?} {style:?}");
            // A listener from another epoch gets the complete state.
            let mut lost = Listener::away(style, &["c:1"], "").seen(ELSEWHERE);
            lost.connect(&node);
            let (a, last) = (lost.take(&node, 1), lost.rest(&node));
            assert_eq!((a, last.last()), (state[..1].to_vec(), Some(&json!("c4"))), "{style:?}");
            node.api("DELETE", "/api/history/c:1", None);
            set(&node, "a", json!("a4"));
            set(&node, "c", json!("c4"));
        }
    }
}

/// Checks that listeners that knew a key get its removal, and that new ones do not get the key.
fn null_removes(storage: Storage, restart: bool) {
    for style in ALL {
        let mut node = Node::new(storage);
        set(&node, "a", json!("a"));
        set(&node, "b", json!("b"));
        let mut known = Listener::new(&node, style, &["c:1"]);
        assert_eq!(known.take(&node, 2), [json!("a"), json!("b")], "{storage:?} {style:?}");
        known.cut();
        set(&node, "b", Value::Null);
        if restart {
            node.restart();
        }
        known.connect(&node);
        assert_eq!(known.rest(&node), [Value::Null], "{storage:?} {style:?}");
        let mut newcomer = Listener::new(&node, style, &["c:1"]);
        assert_eq!(newcomer.rest(&node), [json!("a")], "{storage:?} {style:?}");
    }
}

#[test]
fn null_removes_a_key() {
    null_removes(Storage::Memory, false);
    null_removes(Storage::Disk, false);
}

#[test]
fn null_removes_a_key_on_disk_as_well() {
    null_removes(Storage::Disk, true);
}
