//! Topics by the wildcards of MQTT, for clients of SSE, HTTP streams, WebSocket and Phoenix.

use crate::support::*;
use serde_json::{Value, json};

fn server_with(settings: &[(&str, &str)]) -> Server {
    let mut all = vec![("THRONG_CLIENT_WILDCARDS", "true")];
    all.extend(settings);
    Server::with(&["--shards", "2"], &all)
}

fn server() -> Server {
    server_with(&[])
}

/// Publishes a message that comes after all earlier ones, so that a missing one is noticed.
fn end(server: &Server, topic: &str) {
    server.publish(topic, json!("end"));
}

fn until_connections(server: &Server, connections: f64) {
    server.until("they are connected", |server| {
        server.metric("throng_connections{transport=\"http\"}") == 0.0
            && server.api("GET", "/api/stats", None).1["connections"] == json!(connections as u64)
    });
}

#[test]
fn an_event_source_receives_all_topics_of_a_filter() {
    let server = server();
    let mut one = server.listen("/sse?topic=sensors/%2B/temp&filter=mqtt&format=json");
    let mut all = server.listen("/stream?topic=sensors/%23&filter=mqtt");
    let welcome = all.object();
    assert_eq!(welcome["topics"], json!(["sensors/#"]), "{welcome}");
    let request = b"GET /sse?topic=a/%23&filter=mqtt&since=start HTTP/1.1\r\nHost: a\r\n\
                    Connection: close\r\n\r\n";
    let outcome = server.exchange(request);
    assert!(outcome.starts_with("HTTP/1.1 400") && outcome.contains("bad_since"), "{outcome}");
    // Without filter=mqtt this is the name of a plain topic.
    let mut plain = server.listen("/sse?topic=sensors/%2B/temp&format=json");
    until_connections(&server, 3.0);
    for topic in ["sensors/7/temp", "sensors/7/humidity", "sensors", "other/7/temp"] {
        server.publish(topic, json!(topic));
    }
    end(&server, "sensors/8/temp");
    end(&server, "sensors/+/temp");
    let mut events = |count| -> Vec<Value> {
        let read = |_| serde_json::from_str::<Value>(&one.data()).unwrap();
        (0..count).map(read).collect()
    };
    let events = events(2);
    assert_eq!(events[0]["topic"], "sensors/7/temp");
    assert_eq!(
        (&events[1]["topic"], &events[1]["data"]),
        (&json!("sensors/8/temp"), &json!("end"))
    );
    let events: Vec<Value> = (0..4).map(|_| all.next_object()["topic"].clone()).collect();
    let expected = ["sensors/7/temp", "sensors/7/humidity", "sensors", "sensors/8/temp"];
    assert_eq!(events, expected.map(Value::from));
    assert!(plain.data().contains("sensors/+/temp"));
}

#[test]
fn a_message_comes_once_however_many_filters_match_it() {
    let server = server();
    let query = "topic=a/%2B&topic=a/%23&topic=a/1&topic=b&filter=mqtt";
    let mut socket = websocket(&server, query);
    let mut events = server.listen(&format!("/sse?{query}"));
    until_connections(&server, 2.0);
    for n in 0..200 {
        server.publish(if n % 3 == 0 { "a/1" } else { "a/2" }, json!(n));
    }
    end(&server, "b");
    let expected: Vec<Value> = (0..200).map(Value::from).chain([json!("end")]).collect();
    let by_socket: Vec<Value> = (0..201).map(|_| receive(&mut socket)["data"].clone()).collect();
    // Only messages of one topic are in order, so b's message may come anywhere.
    let sorted = |mut all: Vec<Value>| {
        all.sort_by_key(|it| it.as_u64().unwrap_or(u64::MAX));
        all
    };
    assert_eq!(sorted(by_socket), expected);
    let by_sse = (0..201).map(|_| serde_json::from_str(&events.data()).unwrap_or(json!("end")));
    assert_eq!(sorted(by_sse.collect()), expected);
}

/// Publishes many messages at once, so that members get several in one piece.
#[test]
fn each_of_many_messages_comes_once_however_many_filters_match_it() {
    let server = server();
    let mut socket =
        websocket(&server, "topic=a/%2B&topic=a/%23&topic=%2B/1&topic=a/1&filter=mqtt");
    until_connections(&server, 1.0);
    let publish = |n: u64| json!({"publish": {"topic": "a/1", "data": n}});
    for first in (0..5_000).step_by(500) {
        let commands: Vec<Value> = (first..first + 500).map(publish).collect();
        server.post("/api/batch", json!({"commands": commands}));
        for n in first..first + 500 {
            assert_eq!(receive(&mut socket)["data"], n);
        }
    }
}

#[test]
fn a_websocket_subscribes_and_unsubscribes_by_filter() {
    let server = server();
    let mut socket = websocket(&server, "topic=done");
    let mut send_request = |kind: &str, topic: &str, more: Value| {
        let mut object = json!({"type": kind, "id": 1, "topic": topic, "filter": "mqtt"});
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        command(&mut socket, object)
    };
    let none = json!({});
    assert_eq!(send_request("subscribe", "a/+", none.clone())["ok"], json!({"topic": "a/+"}));
    assert_eq!(send_request("subscribe", "a/+", none.clone())["ok"], json!({"topic": "a/+"}));
    let code = |outcome: Value| outcome["error"]["code"].as_str().unwrap_or("none").to_string();
    assert_eq!(code(send_request("subscribe", "a/b+", none.clone())), "bad_filter");
    assert_eq!(code(send_request("subscribe", "$share/g/a", none.clone())), "bad_filter");
    assert_eq!(code(send_request("subscribe", "a/#", json!({"filter": "glob"}))), "bad_filter");
    assert_eq!(code(send_request("subscribe", "a/#", json!({"tags": ["x"]}))), "bad_filter");
    assert_eq!(code(send_request("subscribe", "@alice", none.clone())), "bad_topic");
    assert_eq!(code(send_request("unsubscribe", "a/#", none.clone())), "not_subscribed");
    assert_eq!(code(send_request("subscribe", "b/#", json!({"since": "start"}))), "bad_since");
    // A filter recovers no missed messages, and the reply has `recovered: false`.
    let again = send_request("subscribe", "b/#", json!({"since": "5f3a91c2:7"}));
    assert_eq!(again["ok"]["recovered"], false, "{again}");
    server.publish("a/1", json!(1));
    assert_eq!(receive(&mut socket)["data"], 1);
    let leave = json!({"type": "unsubscribe", "id": 2, "topic": "a/+", "filter": "mqtt"});
    assert_eq!(command(&mut socket, leave)["ok"], json!({"topic": "a/+"}));
    server.publish("a/1", json!(2));
    end(&server, "done");
    assert_eq!(receive(&mut socket)["data"], "end");
}

fn phoenix(server: &Server) -> WebSocket {
    let url = format!("ws://{}/socket/websocket?vsn=2.0.0", server.client);
    tungstenite::client(url, server.connect()).unwrap().0
}

fn push(socket: &mut WebSocket, message: Value) -> Value {
    socket.send(tungstenite::Message::text(message.to_string())).unwrap();
    receive(socket)
}

#[test]
fn a_phoenix_channel_may_be_a_filter() {
    let server = server();
    let mut socket = phoenix(&server);
    let by_filter = json!({"filter": "mqtt"});
    let reply = push(&mut socket, json!(["1", "1", "a/+", "phx_join", by_filter]));
    assert_eq!((&reply[2], &reply[4]["status"]), (&json!("a/+"), &json!("ok")), "{reply}");
    let reply = push(&mut socket, json!(["2", "2", "a/1", "phx_join", {}]));
    assert_eq!(reply[4]["status"], "ok");
    server.post("/api/publish", json!({"topic": "a/1", "event": "shout", "data": {"n": 1}}));
    // Each channel gets the message. The filter's channel gets it with the topic.
    let mut both = [receive(&mut socket), receive(&mut socket)];
    both.sort_by_key(|message| message[2].to_string());
    let [by_filter, by_topic] = both;
    assert_eq!(by_filter, json!([null, null, "a/+", "shout", {"n": 1, "phx_topic": "a/1"}]));
    assert_eq!(by_topic, json!([null, null, "a/1", "shout", {"n": 1}]));
    let reply = push(&mut socket, json!(["1", "3", "a/+", "say", {}]));
    assert_eq!(reply[4]["status"], "error", "nobody publishes to a filter: {reply}");
    let reply = push(&mut socket, json!(["1", "4", "a/+", "phx_leave", {}]));
    assert_eq!((&reply[2], &reply[4]["status"]), (&json!("a/+"), &json!("ok")));
    let close = receive(&mut socket);
    assert_eq!((&close[2], &close[3]), (&json!("a/+"), &json!("phx_close")));
    server.post("/api/publish", json!({"topic": "a/1", "event": "shout", "data": {"n": 2}}));
    assert_eq!(receive(&mut socket)[2], "a/1");
    for (topic, payload) in [
        ("b/c+", json!({"filter": "mqtt"})),
        ("b/+", json!({"filter": "regex"})),
        ("b/+", json!({"filter": "mqtt", "tags": ["x"]})),
    ] {
        let reply = push(&mut socket, json!(["5", "5", topic, "phx_join", payload]));
        assert_eq!(reply[4]["status"], "error", "{reply}");
    }
}

#[test]
fn topics_that_no_client_may_enter_at_will_are_not_listed() {
    let folder = Scratch::new("wildcards");
    let rule = "[[topics]]\npattern = \"secret/*\"\njoin = \"refuse\"\n";
    let file = folder.write("throng.toml", rule);
    let flags = ["--shards", "1", "--config", file.to_str().unwrap()];
    let server = Server::with(&flags, &[("THRONG_CLIENT_WILDCARDS", "true")]);
    let mut events = server.listen("/sse?topic=%23&user=alice&filter=mqtt&format=json");
    until_connections(&server, 1.0);
    server.publish("secret/1", json!(1));
    server.post("/api/send", json!({"user": "bob", "data": "to bob"}));
    server.publish("$internal/1", json!(1));
    end(&server, "open/1");
    let event: Value = serde_json::from_str(&events.data()).unwrap();
    assert_eq!(event["topic"], "open/1");
}

#[test]
fn wildcards_are_off_until_they_are_on() {
    let server = Server::start();
    let get = |target: &str| {
        let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        server.exchange(request.as_bytes())
    };
    let outcome = get("/sse?topic=a/%23&filter=mqtt");
    assert!(outcome.starts_with("HTTP/1.1 403") && outcome.contains("wildcards_off"), "{outcome}");
    for (target, code) in [
        ("/sse?topic=a/b%23&filter=mqtt", "bad_filter"),
        ("/sse?topic=a/%23&filter=glob", "bad_filter"),
        ("/poll?topic=a/%23&filter=mqtt", "bad_filter"),
        ("/sse?topic=a&filters=mqtt", "bad_parameter"),
    ] {
        let outcome = get(target);
        assert!(
            outcome.starts_with("HTTP/1.1 400") && outcome.contains(code),
            "{target}: {outcome}"
        );
    }
    let mut socket = websocket(&server, "topic=a");
    let send_request = json!({"type": "subscribe", "id": 1, "topic": "a/#", "filter": "mqtt"});
    assert_eq!(command(&mut socket, send_request)["error"]["code"], "wildcards_off");
    let mut socket = phoenix(&server);
    let reply = push(&mut socket, json!(["1", "1", "a/#", "phx_join", {"filter": "mqtt"}]));
    let reason = reply[4]["response"]["reason"].as_str().unwrap();
    assert!(reason.contains("client.wildcards"), "{reply}");
}
