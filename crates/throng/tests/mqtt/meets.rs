//! MQTT and the other transports in the same topics.

use protocol::mqtt::{Value, id};
use serde_json::json;

use crate::mqtt::client::*;
use crate::mqtt::server;
use crate::support::{receive, websocket};

#[test]
fn what_mqtt_publishes_others_hear() {
    let server = server(&[]);
    let mut events = server.listen("/sse?topic=sensors/7/temp&format=json");
    let mut socket = websocket(&server, "topic=sensors/7/temp");
    let mut sensor = Connect::new(V3, "sensor").open(server.client);
    server.until_members("sensors%2F7%2Ftemp", 2);
    sensor.publish("sensors/7/temp", "21.5", 1);
    let event: serde_json::Value = serde_json::from_str(&events.data()).unwrap();
    assert_eq!((&event["topic"], &event["data"]), (&json!("sensors/7/temp"), &json!("21.5")));
    assert_eq!(receive(&mut socket)["data"], "21.5");
    // What is no text comes as bytes.
    let binary = Publish { payload: &[0xff, 0, 1], ..Publish::new("sensors/7/temp", "", 0) };
    sensor.publish_all(binary);
    let event: serde_json::Value = serde_json::from_str(&events.data()).unwrap();
    assert_eq!((&event["data"], &event["encoding"]), (&json!("/wAB"), &json!("base64")));
}

#[test]
fn what_the_application_publishes_comes_as_its_bytes() {
    let server = server(&[]);
    for version in [V3, V5] {
        let mut alice = Connect::new(version, "phone").user("alice").open(server.client);
        alice.subscribe(&[filter("news", 2), filter("@alice", 1), filter("*", 1)]);
        server.publish("news", json!("hello"));
        server.publish("news", json!({"a": [1, 2]}));
        let got = [alice.message(), alice.message()];
        assert_eq!(got.each_ref().map(|it| it.payload.as_str()), ["hello", "{\"a\":[1,2]}"]);
        // The application's messages are as sure as a subscription wants them.
        assert_eq!(got.map(|it| it.qos), [2, 2]);
        server.post("/api/send", json!({"user": "alice", "data": "to alice"}));
        let sent = alice.message();
        assert_eq!(
            (sent.topic.as_str(), sent.payload.as_str(), sent.qos),
            ("@alice", "to alice", 1)
        );
        server.post("/api/broadcast", json!({"data": "to all"}));
        let told = alice.message();
        assert_eq!((told.topic.as_str(), told.payload.as_str()), ("*", "to all"));
        alice.is_quiet();
        alice.disconnect();
    }
}

#[test]
fn nobody_reads_what_is_another_users() {
    let server = server(&[]);
    let mut bob = Connect::new(V5, "b").user("bob").open(server.client);
    assert_eq!(bob.subscribe_with(&[filter("@alice", 1), filter("@bob", 1)], &[]), [0x87, 1]);
    bob.subscribe(&[filter("#", 1), filter("+", 1)]);
    server.post("/api/send", json!({"user": "alice", "data": "secret"}));
    server.post("/api/send", json!({"user": "bob", "data": "own"}));
    assert_eq!(bob.message().payload, "own");
    server.post("/api/broadcast", json!({"data": "no wildcard reaches it"}));
    bob.is_quiet();
    // Nor may clients publish there.
    for topic in ["@bob", "@alice", "*", "$SYS/x"] {
        let publish = Publish::new(topic, "x", 1);
        bob.send(&publish.bytes(V5));
        bob.hears(&[Heard::Confirm("PUBACK", 1, 0x87)]);
    }
    bob.is_quiet();
}

#[test]
fn the_user_is_the_user_name() {
    let server = server(&[]);
    let _alice = Connect::new(V3, "phone").user("alice").open(server.client);
    server.until("alice is there", |server| {
        let answer = server.api("GET", "/api/users/alice", None).1;
        answer["connections"].as_array().is_some_and(|all| all.len() == 1)
    });
    let (_, answer) = server.api("GET", "/api/users/alice", None);
    assert_eq!(answer["connections"][0]["transport"], "mqtt", "{answer}");
}

#[test]
fn the_application_puts_clients_into_topics_and_takes_them_out() {
    let server = server(&[]);
    let mut alice = Connect::new(V5, "phone").user("alice").open(server.client);
    alice.subscribe(&[filter("own", 1)]);
    let topics = json!({"user": "alice", "topic": "given"});
    server.post("/api/subscribe", topics.clone());
    server.publish("given", json!("one"));
    assert_eq!(alice.message().payload, "one");
    server.publish("own", json!("two"));
    let own = alice.message();
    assert_eq!((own.payload.as_str(), own.qos), ("two", 1));
    server.post("/api/unsubscribe", topics);
    server.publish("given", json!("three"));
    server.post("/api/unsubscribe", json!({"user": "alice", "topic": "own"}));
    server.publish("own", json!("four"));
    alice.is_quiet();
    server.post("/api/disconnect", json!({"user": "alice"}));
    alice.is_told(0x98);
}

#[test]
fn who_is_drained_is_told_where_to_go() {
    for (reference, reason) in [("", 0x8b), ("other.example:1883", 0x9c)] {
        let server = server(&[("THRONG_MQTT_SERVER_REFERENCE", reference)]);
        let mut five = Connect::new(V5, "five").open(server.client);
        let mut three = Connect::new(V3, "three").open(server.client);
        server.signal("-TERM");
        match five.next() {
            Heard::Disconnect(told, properties) => {
                assert_eq!(told, reason);
                let told = properties.iter().find(|(of, _)| *of == id::SERVER_REFERENCE);
                let told = told.map(|(_, reference)| reference.as_str());
                assert_eq!(told.unwrap_or_default(), reference);
            }
            other => panic!("{other:?}"),
        }
        three.hears(&[Heard::Closed]);
    }
}

#[test]
fn the_server_tells_of_itself() {
    let server = server(&[("THRONG_MQTT_SYS_SECONDS", "1")]);
    let _away = Connect::kept(V5, "away").open(server.client);
    let mut client = Connect::new(V5, "watches").open(server.client);
    let filters = ["$SYS/broker/clients/+", "$SYS/broker/version", "$SYS/broker/uptime"];
    client.subscribe(&filters.map(|it| filter(it, 0)));
    let mut told = std::collections::BTreeMap::new();
    server.until("both are counted", |_| {
        let message = client.message();
        told.insert(message.topic, message.payload);
        told.get("$SYS/broker/clients/connected").is_some_and(|count| count == "2")
    });
    while !told.contains_key("$SYS/broker/version") {
        let message = client.message();
        told.insert(message.topic, message.payload);
    }
    assert!(told["$SYS/broker/version"].starts_with("throng "), "{told:?}");
    let mut other = Connect::new(V5, "wild").open(server.client);
    other.subscribe(&[filter("#", 0), filter("+/broker/uptime", 0)]);
    // The server has told of itself twice since, for everybody at once.
    client.drain();
    let mut uptimes = 0;
    while uptimes < 2 {
        uptimes += u32::from(client.message().topic == "$SYS/broker/uptime");
    }
    other.is_quiet();
}

#[test]
fn a_takeover_is_told_on_either_side_of_the_server() {
    let server = server(&[]);
    // Whatever shard each comes to.
    let mut before = Connect::new(V5, "same").open(server.client);
    for _ in 0..8 {
        let now = Connect::new(V5, "same").open(server.client);
        before.is_told(0x8e);
        before = now;
    }
    let mut three = Connect::new(V3, "same").open(server.client);
    before.is_told(0x8e);
    let mut five = Connect::kept(V5, "same").open(server.client);
    three.hears(&[Heard::Closed]);
    five.ping();
}

#[test]
fn packets_in_frames_are_split_and_merged_at_will() {
    let server = server(&[]);
    let mut request = format!("ws://{}/mqtt", server.client);
    request.push_str("?x=1");
    let request = tungstenite::http::Request::builder()
        .uri(request)
        .header("Host", "t")
        .header("Connection", "Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Version", "13")
        .header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
        .header("Sec-WebSocket-Protocol", "mqttv3.1, mqtt")
        .body(())
        .unwrap();
    let stream = crate::support::connect(server.client);
    let (mut socket, answer) = tungstenite::client(request, stream).unwrap();
    let chosen = answer.headers()["sec-websocket-protocol"].to_str().unwrap().to_string();
    assert!(["mqtt", "mqttv3.1"].contains(&chosen.as_str()), "{chosen}");
    let mut all = Connect::new(V3, "framed").bytes();
    all.extend(bytes(|out| {
        protocol::mqtt::client::subscribe(V3, 1, &[], &[filter("a/+", 1)], out)
    }));
    all.extend(Publish::new("a/b", "hello", 1).bytes(V3));
    // A byte a frame, and then all that is left at once.
    for byte in &all[..20] {
        socket.send(tungstenite::Message::Binary(vec![*byte].into())).unwrap();
    }
    socket.send(tungstenite::Message::Binary(all[20..].to_vec().into())).unwrap();
    let mut heard = Vec::new();
    while !heard.windows(5).any(|part| part == b"hello")
        || !heard.windows(4).any(|part| part == [0x40, 2, 0, 1])
    {
        match socket.read().unwrap() {
            tungstenite::Message::Binary(bytes) => heard.extend(bytes),
            other => panic!("{other:?}"),
        }
    }
    assert!(heard.starts_with(&[0x20, 2, 0, 0, 0x90, 3, 0, 1, 1]), "{heard:02x?}");
    // Text is not for MQTT.
    socket.send(tungstenite::Message::Text("x".into())).unwrap();
    let close = loop {
        match socket.read() {
            Ok(tungstenite::Message::Close(close)) => break close,
            Ok(_) => {}
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(u16::from(close.unwrap().code), 1002);
}

#[test]
fn retained_messages_come_from_the_application_too() {
    let server = server(&[]);
    let mut sensor = Connect::new(V5, "sensor").open(server.client);
    let publish = Publish::new("state/1", "on", 1).retained();
    sensor.publish_all(publish.with((id::CONTENT_TYPE, Value::Text("text/plain"))));
    let mut late = Connect::new(V5, "late").open(server.client);
    late.subscribe(&[filter("state/#", 1)]);
    let message = late.message();
    assert_eq!((message.payload.as_str(), message.retain), ("on", true));
    assert_eq!(message.property(id::CONTENT_TYPE), Some("text/plain"));
}
