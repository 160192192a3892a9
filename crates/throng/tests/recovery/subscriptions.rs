//! Stored subscriptions that users enter on connect, and invalid configurations of them.

use std::process::Command;

use serde_json::json;

use crate::recovery::listener::*;
use crate::recovery::node::*;
use crate::support::*;

#[test]
fn users_enter_their_topics_on_every_transport() {
    for storage in BOTH {
        let mut node = Node::new(storage);
        for style in ALL {
            let user = &format!("al{style:?}");
            let feeds = [format!("h:{user}"), format!("plain{user}")];
            let change = json!({"user": user, "add": feeds});
            let changed = node.post("/api/subscriptions", change);
            assert_eq!((&changed["added"], &changed["count"]), (&json!(2), &json!(2)), "{changed}");
            if storage == Storage::Disk {
                node.crash();
            }
            let mut listener = Listener::with(&node, style, &[], &format!("user={user}"));
            for feed in &feeds {
                assert_eq!(listener.rest_before(&node, feed), numbers(0..0), "{style:?}");
            }
            if style == ResumeStyle::Poll {
                continue;
            }
            // The user is connected here.
            let late = format!("h:late{user}");
            let change = json!({"user": user, "add": [late], "remove": [feeds[1]]});
            assert_eq!(node.post("/api/subscriptions", change)["connections"], 1);
            assert_eq!(node.publish(&feeds[1], json!("left"))["members"], 0);
            node.publish(&late, json!("entered"));
            assert_eq!(listener.take(&node, 1), [json!("entered")], "{storage:?} {style:?}");
            let (_, listed) = node.api("GET", &format!("/api/subscriptions/{user}"), None);
            let mut want = vec![feeds[0].clone(), late];
            want.sort();
            assert_eq!(listed["topics"], json!(want));
        }
    }
}

/// With `published`, the feed has a message before any user connects.
fn a_feed_waits(published: bool) {
    for storage in BOTH {
        let mut node = Node::new(storage);
        if published {
            node.count("h:1", 0..1);
        }
        let changes: Vec<_> =
            ["al", "bo"].map(|user| json!({"user": user, "add": ["w:feed"]})).into();
        node.post("/api/subscriptions", json!({"changes": changes}));
        // Each user connects once. From then on the server retains the feed for the user.
        for user in ["al", "bo"] {
            let mut listener = Listener::with(&node, ResumeStyle::Ws, &[], &format!("user={user}"));
            node.until_members("w:feed", 1);
            listener.cut();
            node.until_members("w:feed", 0);
        }
        let mut online = Listener::with(&node, ResumeStyle::Sse, &[], "user=al");
        node.until_members("w:feed", 1);
        let id = node.count("w:feed", 0..1).remove(0);
        assert_eq!(online.take(&node, 1), numbers(0..1), "{storage:?}");
        assert_eq!(node.ack(json!({"user": "al", "topic": "w:feed", "id": id})).0, 200);
        if storage == Storage::Disk {
            node.restart();
        }
        let mut later = Listener::with(&node, ResumeStyle::Stream, &[], "user=bo");
        assert_eq!(later.take(&node, 1), numbers(0..1), "{storage:?}");
        let mut online = Listener::with(&node, ResumeStyle::Sse, &[], "user=al");
        online.is_quiet(&node);
    }
}

#[test]
fn a_feed_waits_for_acknowledging_followers() {
    a_feed_waits(true);
}

#[test]
fn a_feed_waits_for_followers_who_came_before_its_first_message() {
    a_feed_waits(false);
}

#[test]
fn a_feed_recovers_exactly_the_missed_messages() {
    for storage in BOTH {
        let node = Node::new(storage);
        node.post("/api/subscriptions", json!({"user": "al", "add": ["h:feed", "h:other"]}));
        let mut listener = Listener::with(&node, ResumeStyle::Sse, &[], "user=al");
        node.count("h:feed", 0..2);
        node.count("h:other", 2..4);
        let mut first = listener.take(&node, 4);
        first.sort_by_key(|data| data.as_u64());
        assert_eq!(first, numbers(0..4));
        listener.cut();
        node.count("h:feed", 4..6);
        node.count("h:other", 6..8);
        listener.connect(&node);
        assert_eq!(listener.take(&node, 4), numbers(4..8), "{storage:?}");
        assert_eq!(listener.recovered(&node).0, true);
    }
}

#[test]
fn a_configuration_with_durable_topics_needs_a_store() {
    let folder = Scratch::new("durable");
    let rule = "[[topics]]\npattern = \"d:*\"\nhistory_messages_max = 9\ndurable = true\n";
    for (text, key) in [
        (rule, "topics[0].durable"),
        ("[inbox]\nenabled = true\ndurable = true\n", "inbox.durable"),
    ] {
        let file = folder.write("throng.toml", text);
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"]);
        let output = output_within(command.arg(&file));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{said}");
        assert!(said.contains(key) && said.contains("store.data"), "{said}");
    }
}
