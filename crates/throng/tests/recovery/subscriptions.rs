//! Topics that users enter on connect, and what a configuration can't ask for.

use std::process::Command;

use serde_json::json;

use crate::home::*;
use crate::listener::*;

#[test]
fn users_enter_their_topics_on_every_transport() {
    for keeps in BOTH {
        let mut home = Home::new(keeps);
        for (idiom, user) in ALL.into_iter().zip(["al", "bo", "cy", "di"]) {
            let feeds = [format!("h:{user}"), format!("plain{user}")];
            let change = json!({"user": user, "add": feeds});
            let changed = home.post("/api/subscriptions", change);
            assert_eq!((&changed["added"], &changed["count"]), (&json!(2), &json!(2)), "{changed}");
            if keeps == Keeps::Disk {
                home.crash();
            }
            let mut listener = Listener::with(&home, idiom, &[], &format!("user={user}"));
            for feed in &feeds {
                assert_eq!(listener.rest_before(&home, feed), numbers(0..0), "{idiom:?}");
            }
            if idiom == Idiom::Poll {
                continue;
            }
            // While it is here.
            let late = format!("h:late{user}");
            let change = json!({"user": user, "add": [late], "remove": [feeds[1]]});
            assert_eq!(home.post("/api/subscriptions", change)["connections"], 1);
            assert_eq!(home.publish(&feeds[1], json!("left"))["members"], 0);
            home.publish(&late, json!("entered"));
            assert_eq!(listener.take(&home, 1), [json!("entered")], "{keeps:?} {idiom:?}");
            let (_, listed) = home.api("GET", &format!("/api/subscriptions/{user}"), None);
            let mut want = vec![feeds[0].clone(), late];
            want.sort();
            assert_eq!(listed["topics"], json!(want));
        }
    }
}

/// `published`: something was kept before anybody came.
fn a_feed_waits(published: bool) {
    for keeps in BOTH {
        let mut home = Home::new(keeps);
        if published {
            home.count("h:1", 0..1);
        }
        let changes: Vec<_> =
            ["al", "bo"].map(|user| json!({"user": user, "add": ["w:feed"]})).into();
        home.post("/api/subscriptions", json!({"changes": changes}));
        // Each has been here once: from then on the feed is theirs.
        for user in ["al", "bo"] {
            let mut listener = Listener::with(&home, Idiom::Ws, &[], &format!("user={user}"));
            home.until_members("w:feed", 1);
            listener.cut();
            home.until_members("w:feed", 0);
        }
        let mut online = Listener::with(&home, Idiom::Sse, &[], "user=al");
        home.until_members("w:feed", 1);
        let id = home.count("w:feed", 0..1).remove(0);
        assert_eq!(online.take(&home, 1), numbers(0..1), "{keeps:?}");
        assert_eq!(home.ack(json!({"user": "al", "topic": "w:feed", "id": id})).0, 200);
        if keeps == Keeps::Disk {
            home.restart();
        }
        let mut later = Listener::with(&home, Idiom::Stream, &[], "user=bo");
        assert_eq!(later.take(&home, 1), numbers(0..1), "{keeps:?}");
        let mut online = Listener::with(&home, Idiom::Sse, &[], "user=al");
        online.is_quiet(&home, 300);
    }
}

#[test]
fn a_feed_waits_for_followers_who_acknowledge() {
    a_feed_waits(true);
}

#[test]
fn a_feed_waits_for_followers_who_came_first_of_all() {
    a_feed_waits(false);
}

#[test]
fn what_comes_back_of_a_feed_is_what_was_missed() {
    for keeps in BOTH {
        let home = Home::new(keeps);
        home.post("/api/subscriptions", json!({"user": "al", "add": ["h:feed", "h:other"]}));
        let mut listener = Listener::with(&home, Idiom::Sse, &[], "user=al");
        home.count("h:feed", 0..2);
        home.count("h:other", 2..4);
        let mut first = listener.take(&home, 4);
        first.sort_by_key(|data| data.as_u64());
        assert_eq!(first, numbers(0..4));
        listener.cut();
        home.count("h:feed", 4..6);
        home.count("h:other", 6..8);
        listener.come(&home);
        assert_eq!(listener.take(&home, 4), numbers(4..8), "{keeps:?}");
        assert_eq!(listener.recovered(&home).0, true);
    }
}

#[test]
fn durable_topics_need_a_store_and_a_configuration_says_so() {
    let folder = std::env::temp_dir().join(format!("throng-durable-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("throng.toml");
    let rule = "[[topics]]\npattern = \"d:*\"\nhistory_messages_max = 9\ndurable = true\n";
    for (text, key) in [
        (rule, "topics[0].durable"),
        ("[offline]\nenabled = true\ndurable = true\n", "offline.durable"),
    ] {
        std::fs::write(&file, text).unwrap();
        let output = Command::new("timeout")
            .args([
                "20",
                env!("CARGO_BIN_EXE_throng"),
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--admin",
                "127.0.0.1:0",
                "--config",
            ])
            .arg(&file)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{said}");
        assert!(said.contains(key) && said.contains("store.data"), "{said}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
