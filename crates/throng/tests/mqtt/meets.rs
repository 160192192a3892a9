//! MQTT together with users, the application, other transports, and a drain. `mqtt_sessions/transports.rs` tests
//! messages between transports.

use protocol::mqtt::id;
use serde_json::json;

use crate::mqtt::client::*;
use crate::mqtt::raw;
use crate::mqtt::server;
use crate::support::{Scratch, Server, command, receive, websocket};

#[test]
fn no_client_reads_what_is_another_users() {
    let server = server(&[]);
    let mut bob = Connect::new(V5, "b").user("bob").open(server.client);
    assert_eq!(bob.subscribe_with(&[filter("@alice", 1), filter("@bob", 1)], &[]), [0x87, 1]);
    bob.subscribe(&[filter("#", 1), filter("+", 1)]);
    server.post("/api/send", json!({"user": "alice", "data": "secret"}));
    server.post("/api/send", json!({"user": "bob", "data": "own"}));
    assert_eq!(bob.message().payload, "own");
    server.post("/api/broadcast", json!({"data": "no wildcard reaches it"}));
    bob.is_quiet();
    // Clients may not publish to these topics either.
    for topic in ["@bob", "@alice", "*", "$SYS/x"] {
        let publish = Publish::new(topic, "x", 1);
        bob.send(&publish.bytes(V5));
        bob.expect_events(&[Event::Confirm("PUBACK", 1, 0x87)]);
    }
    bob.is_quiet();
}

#[test]
fn what_the_server_says_of_itself_no_client_says() {
    let folder = Scratch::new("mqtt-system");
    let rule = "[[topics]]\npattern = \"*\"\npublish = \"allow\"\n";
    let file = folder.write("throng.toml", rule);
    let flags = ["--mqtt", "127.0.0.1:0", "--config", file.to_str().unwrap()];
    let server = Server::with(&flags, &[("THRONG_MQTT_SYS_SECONDS", "0")]);
    let topic = "$SYS/broker/version";
    let mut listener = Connect::new(V5, "listener").open(server.client);
    listener.subscribe(&[filter("$SYS/#", 1), filter(topic, 1)]);

    for (version, reason) in [(V3, 5), (V5, 0x87)] {
        let will = Connect::new(version, "will").will(topic, "mine", 1);
        assert_eq!(will.try_open(server.client).1.code, reason);
    }
    let mut five = Connect::new(V5, "five").open(server.client);
    five.send(&Publish::new(topic, "mine", 1).bytes(V5));
    five.expect_events(&[Event::Confirm("PUBACK", 1, 0x87)]);
    let reply = server.exchange(
        b"POST /publish?topic=$SYS/broker/version HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\
          Content-Length: 4\r\n\r\nmine",
    );
    assert!(reply.starts_with("HTTP/1.1 403") && reply.contains("$SYS"), "{reply}");
    let mut socket = websocket(&server, "");
    let publish = json!({"type": "publish", "id": 1, "topic": topic, "data": "mine"});
    assert_eq!(command(&mut socket, publish)["error"]["code"], "forbidden");
    let url = format!("ws://{}/socket/websocket?vsn=2.0.0", server.client);
    let mut phoenix = tungstenite::client(url, server.connect()).unwrap().0;
    for (event, status) in [("phx_join", "ok"), ("mine", "error")] {
        let push = json!(["1", "1", topic, event, {}]).to_string();
        phoenix.send(tungstenite::Message::text(push)).unwrap();
        assert_eq!(receive(&mut phoenix)[4]["status"], status, "{event}");
    }
    let (status, reply) =
        server.api("POST", "/api/publish", Some(json!({"topic": topic, "data": "mine"})));
    assert_eq!((status, &reply["error"]["code"]), (403, &json!("forbidden")));
    listener.is_quiet();
}

#[test]
fn the_user_is_the_user_name() {
    let server = server(&[]);
    let _alice = Connect::new(V3, "phone").user("alice").open(server.client);
    server.until("alice is there", |server| {
        let reply = server.api("GET", "/api/users/alice", None).1;
        reply["connections"].as_array().is_some_and(|all| all.len() == 1)
    });
    let (_, reply) = server.api("GET", "/api/users/alice", None);
    assert_eq!(reply["connections"][0]["transport"], "mqtt", "{reply}");
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
    alice.is_ended_for(0x98);
}

#[test]
fn a_drained_client_gets_the_other_server() {
    for (reference, reason) in [("", 0x8b), ("other.example:1883", 0x9c)] {
        let server = server(&[("THRONG_MQTT_SERVER_REFERENCE", reference)]);
        let mut five = Connect::new(V5, "five").open(server.client);
        let mut three = Connect::new(V3, "three").open(server.client);
        server.signal("-TERM");
        match five.next() {
            Event::Disconnect(found, properties) => {
                assert_eq!(found, reason);
                let found = properties.iter().find(|(of, _)| *of == id::SERVER_REFERENCE);
                let found = found.map(|(_, reference)| reference.as_str());
                assert_eq!(found.unwrap_or_default(), reference);
            }
            other => panic!("{other:?}"),
        }
        three.expect_events(&[Event::Closed]);
    }
}

#[test]
fn the_server_publishes_its_status() {
    let server = server(&[("THRONG_MQTT_SYS_SECONDS", "1")]);
    let _away = Connect::persistent(V5, "away").open(server.client);
    let mut client = Connect::new(V5, "watches").open(server.client);
    let filters = ["$SYS/broker/clients/+", "$SYS/broker/version", "$SYS/broker/uptime"];
    client.subscribe(&filters.map(|it| filter(it, 0)));
    let mut topics = std::collections::BTreeMap::new();
    server.until("both are counted", |_| {
        let message = client.message();
        topics.insert(message.topic, message.payload);
        topics.get("$SYS/broker/clients/connected").is_some_and(|count| count == "2")
    });
    while !topics.contains_key("$SYS/broker/version") {
        let message = client.message();
        topics.insert(message.topic, message.payload);
    }
    assert!(topics["$SYS/broker/version"].starts_with("throng "), "{topics:?}");
    let mut other = Connect::new(V5, "wild").open(server.client);
    other.subscribe(&[filter("#", 0), filter("+/broker/uptime", 0)]);
    // The server has since published its own topics twice, to all members at once.
    client.drain();
    let mut uptimes = 0;
    while uptimes < 2 {
        uptimes += u32::from(client.message().topic == "$SYS/broker/uptime");
    }
    other.is_quiet();
}

#[test]
fn a_takeover_is_reported_on_either_side_of_the_server() {
    let server = server(&[]);
    // The new connections come to different shards.
    let mut before = Connect::new(V5, "same").open(server.client);
    for _ in 0..8 {
        let now = Connect::new(V5, "same").open(server.client);
        before.is_ended_for(0x8e);
        before = now;
    }
    let mut three = Connect::new(V3, "same").open(server.client);
    before.is_ended_for(0x8e);
    let mut five = Connect::persistent(V5, "same").open(server.client);
    three.expect_events(&[Event::Closed]);
    five.ping();
}

#[test]
fn packets_in_frames_are_split_and_merged_at_will() {
    let server = server(&[]);
    let mut socket = raw::websocket(&server);
    let mut all = Connect::new(V3, "framed").bytes();
    all.extend(bytes(|out| {
        protocol::mqtt::client::subscribe(V3, 1, &[], &[filter("a/+", 1)], out)
    }));
    all.extend(Publish::new("a/b", "hello", 1).bytes(V3));
    // One byte in each frame, and then all the rest at once.
    for byte in &all[..20] {
        socket.send(tungstenite::Message::Binary(vec![*byte].into())).unwrap();
    }
    socket.send(tungstenite::Message::Binary(all[20..].to_vec().into())).unwrap();
    let mut packets = Vec::new();
    while !packets.windows(5).any(|part| part == b"hello")
        || !packets.windows(4).any(|part| part == [0x40, 2, 0, 1])
    {
        match socket.read().unwrap() {
            tungstenite::Message::Binary(bytes) => packets.extend(bytes),
            other => panic!("{other:?}"),
        }
    }
    assert!(packets.starts_with(&[0x20, 2, 0, 0, 0x90, 3, 0, 1, 1]), "{packets:02x?}");
    // MQTT requires binary frames.
    socket.send(tungstenite::Message::Text("x".into())).unwrap();
    assert_eq!(raw::closes(&mut socket), 1002);
}

#[test]
fn how_long_confirmed_messages_take_is_measured() {
    let server = server(&[]);
    let mut client = Connect::new(V5, "client").open(server.client);
    client.subscribe(&[filter("a/+", 1)]);
    server.publish("a/1", json!("x"));
    assert_eq!(client.message().payload, "x");
    let name = "throng_delivery_latency_seconds_count";
    server.until("it is measured", |server| server.metric(name) == 1.0);
}

#[test]
fn retained_messages_come_from_the_application_too() {
    let server = server(&[]);
    let state = |data: &str| {
        let mqtt = json!({"retain": true, "qos": 1, "content_type": "text/plain"});
        server.post("/api/publish", json!({"topic": "state/1", "data": data, "mqtt": mqtt}));
    };
    state("on");
    let mut late = Connect::new(V5, "late").open(server.client);
    late.subscribe(&[filter("state/#", 1)]);
    let message = late.message();
    assert_eq!((message.payload.as_str(), message.qos, message.retain), ("on", 1, true));
    assert_eq!(message.property(id::CONTENT_TYPE), Some("text/plain"));
    // An empty message removes it, and goes to current members.
    state("");
    let message = late.message();
    assert_eq!((message.payload.as_str(), message.retain), ("", false));
    let mut later = Connect::new(V5, "later").open(server.client);
    later.subscribe(&[filter("state/#", 1)]);
    later.is_quiet();
}
