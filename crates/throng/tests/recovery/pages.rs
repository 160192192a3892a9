//! Pages of a topic's history for clients: `GET /history`, and the `history` command of a WebSocket.

use serde_json::{Value, json};

use crate::recovery::listener::*;
use crate::recovery::node::*;
use crate::support::*;

fn page(node: &Node, query: &str) -> Value {
    let (status, page) = node.get(&format!("/history?{query}"));
    assert_eq!(status, 200, "{query}: {page}");
    page
}

#[test]
fn clients_get_the_pages_that_the_application_gets() {
    for storage in BOTH {
        let mut node = Node::new(storage);
        let ids = node.count("h:1", 0..30);
        let more = json!({"tags": ["red"], "key": "k", "event": "tick", "sender": "alice"});
        node.publish_with("h:1", json!({"a": [1, "é"]}), more);
        node.publish_with("h:1", json!("AP8="), json!({"encoding": "base64"}));
        node.publish_with("h:1", json!("te\"xt\n"), json!({}));
        for restarted in [false, true] {
            if restarted && storage == Storage::Disk {
                node.restart();
            }
            let mut socket = websocket(&node, "");
            for (query, fields) in [
                ("".to_string(), json!({})),
                ("&limit=7".into(), json!({"limit": 7})),
                ("&limit=1000".into(), json!({"limit": 1000})),
                ("&since=start&limit=3".into(), json!({"since": "start", "limit": 3})),
                ("&since=last:5".into(), json!({"since": "last:5"})),
                ("&since=last:5&limit=2".into(), json!({"since": "last:5", "limit": 2})),
                ("&since=last:1000".into(), json!({"since": "last:1000"})),
                ("&reverse=true".into(), json!({"reverse": true})),
                ("&reverse=true&limit=4".into(), json!({"reverse": true, "limit": 4})),
                (format!("&since={}", ids[20]), json!({"since": ids[20]})),
                (
                    format!("&since={}&reverse=true&limit=3", ids[20]),
                    json!({"since": ids[20], "reverse": true, "limit": 3}),
                ),
            ] {
                let (status, want) = node.api("GET", &format!("/api/history/h:1?{query}"), None);
                assert_eq!(status, 200, "{want}");
                let got = page(&node, &format!("topic=h:1{query}"));
                assert_eq!(got, want, "{storage:?} {query}");
                let mut send_request = json!({"type": "history", "id": 1, "topic": "h:1"});
                send_request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
                assert_eq!(command(&mut socket, send_request)["ok"], want, "{storage:?} {query}");
            }
        }
        assert_eq!(datas(&page(&node, "topic=h:1&since=last:31&limit=2")), numbers(2..4));
    }
}

#[test]
fn pages_follow_each_other_and_then_a_connection() {
    for storage in BOTH {
        let mut node = Node::new(storage);
        node.count("h:1", 0..25);
        if storage == Storage::Disk {
            node.restart();
        }
        for since in ["start", "last:1000"] {
            let (mut all, mut query) = (Vec::new(), format!("&since={since}"));
            let last = loop {
                let page = page(&node, &format!("topic=h:1&limit=10{query}"));
                all.extend(datas(&page));
                match page["next"].as_str() {
                    Some(next) => query = format!("&since={next}"),
                    None => break page["last"].as_str().unwrap().to_string(),
                }
            };
            assert_eq!(all, numbers(0..25), "{storage:?} {since}");
            node.count("h:1", 25..27);
            let mut listener = Listener::away(ResumeStyle::Sse, &["h:1"], "").seen(&last);
            listener.connect(&node);
            assert_eq!(listener.take(&node, 2), numbers(25..27));
            node.api("DELETE", "/api/history/h:1", None);
            node.count("h:1", 0..25);
        }
    }
}

#[test]
fn a_page_ends_where_an_outbox_would_be_full() {
    let small = ("THRONG_LIMITS_OUTBOX_BYTES_MAX", "16KiB");
    let settings = [
        small,
        ("THRONG_LIMITS_MESSAGE_BYTES_MAX", "8KiB"),
        ("THRONG_PRESENCE_LIST_BYTES_MAX", "8KiB"),
    ];
    for storage in BOTH {
        let mut node = Node::with(storage, &settings);
        for number in 0..40 {
            node.publish("h:1", json!({"n": number, "pad": "x".repeat(1_000)}));
        }
        node.publish("h:1", json!({"n": 40, "pad": "x".repeat(8_000)}));
        node.flush();
        if storage == Storage::Disk {
            node.restart();
        }
        let mut socket = websocket(&node, "");
        let (mut all, mut since, mut pages) = (Vec::new(), "start".to_string(), 0);
        loop {
            let send_request = json!({"type": "history", "id": 1, "topic": "h:1", "limit": 100,
                "since": since});
            let page = command(&mut socket, send_request)["ok"].clone();
            let messages = page["messages"].as_array().unwrap();
            assert!(messages.len() <= 8 && page.to_string().len() < 9_000, "{}", messages.len());
            all.extend(messages.iter().map(|message| message["data"]["n"].clone()));
            pages += 1;
            match page["next"].as_str() {
                Some(next) => since = next.into(),
                None => break,
            }
        }
        assert_eq!((all, pages), (numbers(0..41), 7), "{storage:?}");
    }
}

#[test]
fn a_client_that_may_not_enter_a_topic_may_not_read_it() {
    let node = Node::new(Storage::Memory);
    node.send("al", json!("mail"));
    for topic in ["closed:1", "asks:1"] {
        node.publish(topic, json!(1));
    }
    let mut socket = websocket(&node, "user=bo");
    let mut refused = |target: &str, fields: Value, status: u16, code: &str| {
        let (got, refused) = node.get(&format!("/history?{target}"));
        assert_eq!((got, &refused["error"]["code"]), (status, &json!(code)), "{target}");
        let mut send_request = json!({"type": "history", "id": 1});
        send_request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let reply = command(&mut socket, send_request);
        assert_eq!(reply["error"]["code"], code, "{fields}: {reply}");
        refused["error"]["message"].as_str().unwrap().to_string()
    };
    refused("topic=closed:1", json!({"topic": "closed:1"}), 403, "forbidden");
    refused("topic=@al&user=bo", json!({"topic": "@al"}), 400, "bad_topic");
    let why = refused("topic=plain", json!({"topic": "plain"}), 400, "no_history");
    assert!(why.contains("[[topics]]") && why.contains("history_messages_max"), "{why}");
    refused("", json!({}), 400, "no_topic");
    refused("topic=*", json!({"topic": "*"}), 400, "bad_topic");
    refused("topic=h:1&limit=0", json!({"topic": "h:1", "limit": 0}), 400, "bad_limit");
    refused("topic=h:1&limit=1001", json!({"topic": "h:1", "limit": 1001}), 400, "bad_limit");
    refused("topic=h:1&limit=x", json!({"topic": "h:1", "limit": "x"}), 400, "bad_limit");
    refused("topic=h:1&reverse=1", json!({"topic": "h:1", "reverse": 1}), 400, "bad_reverse");
    refused("topic=h:1&since=x", json!({"topic": "h:1", "since": "x"}), 400, "bad_since");
    let both = json!({"topic": "h:1", "since": "last:5", "reverse": true});
    refused("topic=h:1&since=last:5&reverse=true", both, 400, "bad_since");
    let elsewhere = json!({"topic": "h:1", "since": ELSEWHERE});
    refused(&format!("topic=h:1&since={ELSEWHERE}"), elsewhere, 409, "epoch_changed");
    let (status, response) = node.get("/history?topics=h:1");
    assert_eq!((status, &response["error"]["code"]), (400, &json!("bad_parameter")));
    let (status, response) = node.get("/history?topic=h:1&topic=h:2");
    assert_eq!((status, &response["error"]["code"]), (400, &json!("no_topic")));
    // A request calls the webhook, and no application replies. A command is only for members.
    let (status, response) = node.get("/history?topic=asks:1");
    assert_eq!((status, &response["error"]["code"]), (503, &json!("unanswered")));
    let reply = command(&mut socket, json!({"type": "history", "id": 1, "topic": "asks:1"}));
    assert_eq!(reply["error"]["code"], "not_subscribed");
    // A topic without messages is empty if a rule names it.
    assert_eq!(datas(&page(&node, "topic=h:never")), numbers(0..0));
    // Only the user may read messages that were sent to the user.
    for query in ["user=al", "topic=@al", "topic=@al&user=al"] {
        assert_eq!(datas(&page(&node, query)), [json!("mail")], "{query}");
    }
    let mut own = websocket(&node, "user=al");
    for fields in [json!({"user": "al"}), json!({"topic": "@al"})] {
        let mut send_request = json!({"type": "history", "id": 1});
        send_request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        assert_eq!(datas(&command(&mut own, send_request)["ok"]), [json!("mail")]);
    }
    // These responses are like those of other short requests of a page.
    for (method, status) in [("HEAD", 200), ("POST", 405), ("DELETE", 405), ("OPTIONS", 204)] {
        let request = format!(
            "{method} /history?topic=h:1 HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        );
        let response = node.exchange(request.as_bytes());
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{method}: {response}");
        assert!(response.contains("Access-Control-Allow-Origin: *\r\n"), "{method}: {response}");
    }
    let response =
        node.exchange(b"GET /history?topic=h:1 HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    assert!(response.contains("Access-Control-Allow-Origin: *\r\n"), "{response}");
    assert!(response.contains("Cache-Control: no-store\r\n"), "{response}");
}

#[test]
fn many_pages_requested_for_at_once_come_one_after_the_other() {
    for storage in BOTH {
        let mut node = Node::new(storage);
        for number in 0..300 {
            node.publish("h:1", json!({"n": number, "pad": "x".repeat(1_000)}));
        }
        node.flush();
        if storage == Storage::Disk {
            node.restart();
        }
        let mut socket = websocket(&node, "topic=h:2");
        for id in 0..60 {
            let send_request = json!({"type": "history", "id": id, "topic": "h:1", "limit": 1000});
            socket.send(tungstenite::Message::text(send_request.to_string())).unwrap();
        }
        let (mut pages, mut refused) = (0, 0);
        while pages + refused < 60 {
            let reply = receive(&mut socket);
            match reply["ok"]["messages"].as_array() {
                // A page is half an outbox.
                Some(messages) => pages += usize::from((100..130).contains(&messages.len())),
                None => refused += usize::from(reply["error"]["code"] == "too_many_reads"),
            }
        }
        assert!(pages >= 16, "{storage:?}: {pages} pages, {refused} refused");
        // Messages and other replies go on.
        node.publish("h:2", json!("live"));
        assert_eq!(receive(&mut socket)["data"], "live");
        // Responses to pipelined requests come in order.
        let one = "GET /history?topic=h:1&limit=1 HTTP/1.1\r\nHost: t\r\n\r\n";
        let end = "GET /history?topic=h:1&limit=2 HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
        let replies = node.exchange(format!("{one}{one}{end}").as_bytes());
        assert_eq!(replies.matches("HTTP/1.1 200").count(), 3, "{replies}");
        assert_eq!(replies.matches("\"offset\":").count(), 4);
    }
}
