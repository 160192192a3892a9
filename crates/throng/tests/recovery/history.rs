//! The history API: reading, deleting, and options of a publish.

use serde_json::{Value, json};

use crate::recovery::listener::*;
use crate::recovery::node::*;

#[test]
fn pages_cover_the_whole_history_in_both_directions() {
    for storage in BOTH {
        let mut node = Node::new(storage);
        let mut ids = Vec::new();
        for number in 0..25 {
            ids.extend(node.count("h:1", number..number + 1));
            node.publish("h:2", json!("x"));
        }
        if storage == Storage::Disk {
            node.restart();
        }
        for (reverse, want) in [(false, numbers(0..25)), (true, numbers(0..25))] {
            let mut all = Vec::new();
            let mut query = format!("limit=7&reverse={reverse}");
            let mut pages = 0;
            loop {
                let (datas, page) = node.history("h:1", &query);
                all.extend(datas);
                pages += 1;
                assert_eq!(page["complete"], true);
                assert_eq!(page["more"], page["next"].is_string(), "{page}");
                match page["next"].as_str() {
                    Some(next) => query = format!("limit=7&reverse={reverse}&since={next}"),
                    None => break,
                }
            }
            if reverse {
                all.reverse();
            }
            assert_eq!((all, pages), (want, 4), "{storage:?} reverse={reverse}");
        }
        let (datas, page) = node.history("h:1", &format!("since={}", ids[20]));
        assert_eq!(datas, numbers(21..25));
        // A connection can resume without a gap from the end of the last page.
        let last = page["last"].as_str().unwrap();
        node.count("h:1", 25..27);
        let mut listener = Listener::away(ResumeStyle::Ws, &["h:1"], "").seen(last);
        listener.connect(&node);
        assert_eq!(listener.rest(&node), numbers(25..27));
        let (datas, _) = node.history("h:1", &format!("since={}&reverse=true&limit=2", ids[20]));
        assert_eq!(datas, [json!(19), json!(18)]);
        let message = &page["messages"][0];
        assert_eq!((&message["id"], &message["topic"]), (&json!(ids[21]), &json!("h:1")));
        assert!(message["published_at"].as_u64() > Some(1_600_000_000_000));
    }
}

#[test]
fn invalid_history_requests_are_rejected() {
    let node = Node::new(Storage::Memory);
    let refused = |method: &str, target: &str, status: u16, code: &str| {
        let (got, error) = node.api(method, target, None);
        assert_eq!((got, &error["error"]["code"]), (status, &json!(code)), "{target}: {error}");
        error
    };
    refused("GET", "/api/history/plain", 404, "no_history");
    refused("DELETE", "/api/history/plain", 404, "no_history");
    refused("GET", "/api/history/h:1?since=x", 400, "bad_since");
    let error =
        refused("GET", &format!("/api/history/h:1?since={ELSEWHERE}"), 409, "epoch_changed");
    let id = node.count("h:1", 0..1).remove(0);
    assert_eq!(error["error"]["epoch"], id.split(':').next().unwrap(), "{error}");
    // An id with a partition, which this server does not have.
    let partition = id.replace(':', ".7:");
    refused("GET", &format!("/api/history/h:1?since={partition}"), 409, "epoch_changed");
    assert_eq!(node.history("h:never", "").0, numbers(0..0));
    // A user's own topic has the messages that wait for the user.
    node.send("al", json!("waits"));
    assert_eq!(node.history("@al", "").0, [json!("waits")]);
}

#[test]
fn deleted_messages_are_a_recovery_gap() {
    for storage in BOTH {
        let mut node = Node::new(storage);
        let mut live = Listener::new(&node, ResumeStyle::Stream, &["h:1"]);
        let ids = node.count("h:1", 0..5);
        node.count("h:2", 0..2);
        let (status, deleted) = node.api("DELETE", "/api/history/h:1", None);
        assert_eq!((status, &deleted["deleted"]), (200, &json!(true)), "{deleted}");
        for restarted in [false, true] {
            if restarted {
                match storage {
                    Storage::Disk | Storage::Postgres => node.restart(),
                    Storage::Memory => break,
                }
            }
            assert_eq!(node.history("h:1", "").0, numbers(0..0), "{storage:?}");
            assert_eq!(node.history("h:2", "").0, numbers(0..2));
            for style in ALL {
                let mut back = Listener::away(style, &["h:1"], "").seen(&ids[1]);
                back.connect(&node);
                let recovery = back.recovered(&node);
                assert_eq!(recovery, (json!(false), json!("too_old")), "{storage:?} {style:?}");
                let mut whole = Listener::away(style, &["h:1"], "").seen(&ids[4]);
                whole.connect(&node);
                assert_eq!(whole.recovered(&node).0, true, "{storage:?} {style:?}");
            }
        }
        if storage == Storage::Memory {
            assert_eq!(live.rest(&node), numbers(0..5));
        }
        node.count("h:1", 5..6);
        assert_eq!(node.history("h:1", "").0.last(), Some(&json!(5)));
    }
}

#[test]
fn a_delete_covers_all_earlier_messages() {
    for storage in BOTH {
        let node = Node::new(storage);
        for round in 0..20 {
            (0..10).for_each(|number| _ = node.publish("h:1", json!(number)));
            let (status, deleted) = node.api("DELETE", "/api/history/h:1", None);
            assert_eq!(status, 200, "{deleted}");
            assert_eq!(node.history("h:1", "").0, numbers(0..0), "{storage:?} {round}");
        }
    }
}

#[test]
fn a_repeated_publish_is_served_and_not_published() {
    for storage in BOTH {
        let mut node = Node::new(storage);
        let mut live = Listener::new(&node, ResumeStyle::Stream, &["h:1"]);
        let body = json!({"topic": "h:1", "data": 1, "idempotency_key": "k"});
        let first = node.post("/api/publish", body.clone());
        assert!(first["repeated"].is_null(), "{first}");
        let again = |node: &Node, data: u64| {
            let mut body = body.clone();
            body["data"] = json!(data);
            let again = node.post("/api/publish", body);
            assert_eq!((&again["id"], &again["repeated"]), (&first["id"], &json!(true)), "{again}");
        };
        again(&node, 2);
        assert_eq!(live.rest(&node), numbers(1..2));
        if storage == Storage::Disk {
            node.restart();
            again(&node, 3);
            node.crash();
            again(&node, 4);
        }
        // An idempotency key counts only for its topic.
        let other =
            node.post("/api/publish", json!({"topic": "h:2", "data": 1, "idempotency_key": "k"}));
        assert!(other["repeated"].is_null());
        node.flush();
        assert_eq!(node.history("h:2", "").0, numbers(1..2));
        let mail = json!({"user": "al", "data": 1, "idempotency_key": "k"});
        let mailed = node.post("/api/send", mail.clone());
        assert_eq!(node.post("/api/send", mail)["id"], mailed["id"]);
        let (status, refused) = node.api(
            "POST",
            "/api/publish",
            Some(json!({"topic": "plain", "data": 1, "idempotency_key": "k"})),
        );
        assert_eq!((status, &refused["error"]["code"]), (400, &json!("no_history")));
    }
}

#[test]
fn simultaneous_repeats_are_published_once() {
    for storage in BOTH {
        let node = Node::new(storage);
        let topic = if storage == Storage::Disk { "d:1" } else { "h:1" };
        let ids: Vec<Value> = std::thread::scope(|scope| {
            let publish = || {
                let body = json!({"topic": topic, "data": 1, "idempotency_key": "k"});
                node.post("/api/publish", body)["id"].clone()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(publish)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        assert_eq!(node.history(topic, "").0, numbers(1..2));
    }
}

#[test]
fn a_conditional_publish_is_rejected_if_a_newer_message_exists() {
    for storage in BOTH {
        let mut node = Node::new(storage);
        let publish = |node: &Node, if_offset: Value| {
            let body = json!({"topic": "h:1", "data": 1, "if_offset": if_offset});
            node.api("POST", "/api/publish", Some(body))
        };
        let (status, first) = publish(&node, json!(0));
        assert_eq!(status, 200, "{first}");
        node.flush();
        node.publish("h:2", json!("elsewhere"));
        for wrong in [json!(0), json!(first["offset"].as_u64().unwrap() - 1)] {
            let (status, refused) = publish(&node, wrong);
            let error = &refused["error"];
            assert_eq!((status, &error["code"]), (409, &json!("newer_message")), "{refused}");
            assert_eq!(error["last"], first["id"]);
        }
        let (status, second) = publish(&node, first["id"].clone());
        assert_eq!(status, 200, "{second}");
        if storage == Storage::Disk {
            node.restart();
        }
        assert_eq!(publish(&node, first["offset"].clone()).0, 409);
        assert_eq!(publish(&node, second["offset"].clone()).0, 200);
        let (status, refused) = publish(&node, json!(ELSEWHERE));
        assert_eq!((status, &refused["error"]["code"]), (409, &json!("epoch_changed")));
        // Exactly one of many simultaneous publishes succeeds.
        node.flush();
        let (_, page) = node.history("h:1", "");
        let last = page["last"].clone();
        let done: Vec<u16> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| publish(&node, last.clone()).0)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(done.iter().filter(|status| **status == 200).count(), 1, "{done:?}");
    }
}

#[test]
fn a_message_may_skip_the_history() {
    let node = Node::new(Storage::Memory);
    let mut listener = Listener::new(&node, ResumeStyle::Stream, &["h:1"]);
    let before = node.count("h:1", 0..1).remove(0);
    let id = node.publish_with("h:1", json!("now"), json!({"no_history": true}));
    assert_ne!(id.split(':').next(), before.split(':').next(), "of the other numbering");
    node.count("h:1", 1..2);
    // Messages of the history and other messages have no common order.
    let mut got = listener.take(&node, 3);
    got.sort_by_key(|data| data.to_string());
    assert_eq!(got, [json!("now"), json!(0), json!(1)]);
    assert_eq!(node.history("h:1", "").0, numbers(0..2));
    for style in ALL {
        let mut back = Listener::away(style, &["h:1"], "").seen(&before);
        back.connect(&node);
        assert_eq!(back.take(&node, 1), numbers(1..2), "{style:?}");
    }
}
