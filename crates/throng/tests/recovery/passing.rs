//! Messages that no history has: presence notices, and publishes with `no_history`.

use serde_json::{Value, json};

use crate::recovery::listener::*;
use crate::recovery::node::*;
use crate::support::*;

/// Reads presence notices until one has this change of this user.
fn until(node: &Node, listener: &mut Listener, change: &str, user: &str) {
    loop {
        let message = listener.next(node);
        assert_eq!(message["event"], "presence_diff", "{:?}", listener.style);
        assert_eq!(message["id"], Value::Null, "{:?}: nobody can come back to it", listener.style);
        if message["data"][change].get(user).is_some() {
            return;
        }
    }
}

#[test]
fn who_comes_and_goes_pushes_nothing_out_of_a_history() {
    for storage in BOTH {
        let node = Node::new(storage);
        for style in ALL {
            let chat = format!("room:{style:?}");
            node.count(&chat, 0..3);
            let mut listener = Listener::with(&node, style, &[&chat], "user=al");
            for visitor in ["bo", "cy", "di"] {
                let query = format!("user={visitor}");
                let mut visits = Listener::with(&node, ResumeStyle::Ws, &[&chat], &query);
                until(&node, &mut listener, "joins", visitor);
                visits.cut();
                until(&node, &mut listener, "leaves", visitor);
            }
            node.flush();
            assert_eq!(node.history(&chat, "").0, numbers(0..3), "{storage:?} {style:?}");
        }
    }
}

#[test]
fn who_comes_back_after_what_passed_by_misses_nothing() {
    for storage in BOTH {
        let node = Node::new(storage);
        for style in ALL {
            let topic = format!("h:{style:?}");
            let mut listener = Listener::new(&node, style, &[&topic]);
            node.count(&topic, 0..2);
            node.publish_with(&topic, json!("types"), json!({"no_history": true}));
            let came: Vec<Value> = (0..3).map(|_| listener.next(&node)).collect();
            let (retained, passing): (Vec<&Value>, Vec<&Value>) =
                came.iter().partition(|message| message["id"].is_string());
            let retained: Vec<&Value> = retained.iter().map(|message| &message["data"]).collect();
            assert_eq!(retained, numbers(0..2).iter().collect::<Vec<_>>(), "{storage:?} {style:?}");
            assert_eq!((passing.len(), &passing[0]["data"]), (1, &json!("types")), "{style:?}");
            listener.cut();
            node.publish_with(&topic, json!("types no more"), json!({"no_history": true}));
            node.count(&topic, 2..4);
            listener.connect(&node);
            let mut came = listener.rest(&node);
            // A poll is no member between two responses, and gets both.
            came.retain(|data| style != ResumeStyle::Poll || data != "types no more");
            assert_eq!(came, numbers(2..4), "{storage:?} {style:?}");
        }
    }
}

#[test]
fn a_poll_with_acknowledgement_gets_what_passes_by() {
    let node = Node::new(Storage::Memory);
    let poll = |query: &str| {
        let target = format!("/poll?topic=q:1&user=al&{query}");
        json(node.client, "GET", &target, None, "").1
    };
    poll("timeout=0");
    let ids = node.count("q:1", 0..3);
    let all = poll("timeout=0");
    assert_eq!(datas(&all), numbers(0..3));
    let (status, done) = node.ack(json!({"user": "al", "topic": "q:1", "id": ids[2]}));
    assert_eq!(status, 200, "{done}");
    // Its id comes from another log, so its number is less than the acknowledged one.
    let passing = node.publish_with("q:1", json!("types"), json!({"no_history": true}));
    let offset = |id: &str| id.split_once(':').unwrap().1.parse::<u64>().unwrap();
    assert!(offset(&passing) < offset(&ids[2]), "{passing} {ids:?}");
    let since = format!("since={}", all["since"].as_str().unwrap());
    assert_eq!(datas(&poll(&since)), ["types"]);
}
