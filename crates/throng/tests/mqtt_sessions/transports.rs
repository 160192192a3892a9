//! All transports share one set of topics.

use serde_json::{Value, json};

use crate::mqtt::client::*;
use crate::mqtt_sessions::serve;
use crate::support::{receive, websocket};

/// A Phoenix channel of a client that speaks version 2 of its serializer.
struct Channel(crate::support::WebSocket);

impl Channel {
    fn join(server: &crate::mqtt_sessions::Server, topic: &str) -> Self {
        let url = format!("ws://{}/socket/websocket?vsn=2.0.0&user=carol", server.client);
        let (socket, _) = tungstenite::client(url, server.connect()).unwrap();
        let mut channel = Channel(socket);
        channel.push(topic, "phx_join", json!({}));
        channel
    }

    fn push(&mut self, topic: &str, event: &str, payload: Value) {
        let message = json!(["1", "1", topic, event, payload]).to_string();
        self.0.send(tungstenite::Message::text(message)).unwrap();
        let reply = self.until("phx_reply");
        assert_eq!(reply["status"], "ok", "{reply}");
    }

    fn until(&mut self, event: &str) -> Value {
        loop {
            let message = receive(&mut self.0);
            if message[3] == event {
                return message[4].clone();
            }
        }
    }

    /// Returns the next binary frame.
    fn bytes(&mut self) -> Vec<u8> {
        loop {
            if let tungstenite::Message::Binary(bytes) = self.0.read().unwrap() {
                return bytes.to_vec();
            }
        }
    }
}

#[test]
fn what_mqtt_publishes_each_transport_receives() {
    let server = serve(&[]);
    for (at, version) in [V3, V5].into_iter().enumerate() {
        let topic = format!("sensors/{at}");
        let query = format!("topic={topic}");
        let mut sse = server.listen(&format!("/sse?{query}"));
        let mut listener = server.listen(&format!("/sse?{query}&format=json"));
        let mut stream = server.listen(&format!("/stream?{query}"));
        let mut ws = websocket(&server, &query);
        let mut channel = Channel::join(&server, &topic);
        server.until_members(&topic.replace('/', "%2F"), 5);
        let mut sensor = Connect::new(version, "sensor").user("bob").open(server.client);
        for qos in 0..=2 {
            let text = format!("{qos} \u{e9}\n\u{1f600}");
            sensor.publish(&topic, &text, qos);
            assert_eq!(sse.data(), text, "SSE");
            let event: Value = serde_json::from_str(&listener.data()).unwrap();
            assert_eq!((&event["topic"], &event["data"]), (&json!(topic), &json!(text)), "SSE");
            let line = loop {
                let line = stream.object();
                if line["type"] == "message" {
                    break line;
                }
            };
            assert_eq!((&line["topic"], &line["data"]), (&json!(topic), &json!(text)), "stream");
            let message = receive(&mut ws);
            assert_eq!(message["data"], text.as_str(), "{message}");
            assert_eq!(message["sender"], "bob", "{message}");
            let payload = channel.until("message");
            assert_eq!(payload["data"], text.as_str(), "{payload}");
        }
        // The server treats JSON of MQTT clients as text, since it does not know its type.
        sensor.publish(&topic, "{\"t\":1}", 1);
        assert_eq!(receive(&mut ws)["data"], "{\"t\":1}");
        assert_eq!(channel.until("message")["data"], "{\"t\":1}");
        assert_eq!(sse.data(), "{\"t\":1}");
        listener.data();
        // Bytes stay bytes on transports that have them, and become Base64 on others.
        let payload = [0xff, 0, 0xfe, b'x'];
        sensor.publish_all(Publish { payload: &payload, ..Publish::new(&topic, "", 1) });
        assert_eq!(sse.data(), "/wD+eA==");
        let event: Value = serde_json::from_str(&listener.data()).unwrap();
        assert_eq!((&event["data"], &event["encoding"]), (&json!("/wD+eA=="), &json!("base64")));
        let frame = channel.bytes();
        assert!(frame.ends_with(&payload), "{frame:?}");
        sensor.disconnect();
    }
}

#[test]
fn what_the_application_publishes_mqtt_receives() {
    let server = serve(&[]);
    let mut phones = [V3, V5].map(|version| {
        let name = format!("phone-{version:?}");
        let mut phone = Connect::new(version, &name).user("alice").open(server.client);
        phone.subscribe(&[filter("news/+", 2), filter("@alice", 1), filter("*", 1)]);
        phone
    });
    let mut each = |call: &str, body: Value, expected: (&str, &str, u8)| {
        server.post(call, body);
        for phone in &mut phones {
            let got = phone.message();
            assert_eq!((got.topic.as_str(), got.payload.as_str(), got.qos), expected, "{call}");
        }
    };
    let publish = "/api/publish";
    each(publish, json!({"topic": "news/1", "data": "text"}), ("news/1", "text", 2));
    each(publish, json!({"topic": "news/1", "data": ""}), ("news/1", "", 2));
    let object = json!({"topic": "news/1", "data": {"a": [1, null, "é"]}});
    each(publish, object, ("news/1", "{\"a\":[1,null,\"é\"]}", 2));
    each(publish, json!({"topic": "news/1", "data": 7}), ("news/1", "7", 2));
    let binary = json!({"topic": "news/1", "data": "aGkA", "encoding": "base64"});
    each(publish, binary, ("news/1", "hi\0", 2));
    each("/api/send", json!({"user": "alice", "data": "you"}), ("@alice", "you", 1));
    each("/api/broadcast", json!({"data": ["all"]}), ("*", "[\"all\"]", 1));
    // The messages of a batch arrive in order.
    let batch: Vec<Value> = (0..50).map(|n| json!({"topic": "news/2", "data": n})).collect();
    server.post(
        "/api/batch",
        json!({"commands": batch.iter().map(|it| json!({"publish": it})).collect::<Vec<_>>()}),
    );
    for phone in &mut phones {
        let got: Vec<String> = phone.messages(50).into_iter().map(|(_, payload)| payload).collect();
        assert_eq!(got, (0..50).map(|n| n.to_string()).collect::<Vec<_>>());
        phone.is_quiet();
    }
}

#[test]
fn what_other_clients_publish_mqtt_receives() {
    let server = serve(&[("THRONG_CLIENT_PUBLISH_PREFIXES", "room/")]);
    let mut phone = Connect::new(V5, "phone").open(server.client);
    phone.subscribe(&[filter("room/#", 1)]);
    let mut channel = Channel::join(&server, "room/1");
    channel.push("room/1", "say", json!({"text": "from a channel"}));
    let got = phone.message();
    let said: Value = serde_json::from_str(&got.payload).unwrap();
    assert_eq!((got.topic.as_str(), &said["text"]), ("room/1", &json!("from a channel")), "{said}");
    let mut ws = websocket(&server, "topic=room/1");
    let publish = json!({"type": "publish", "id": 1, "topic": "room/1", "data": "from a socket"});
    let reply = crate::support::command(&mut ws, publish);
    assert!(reply["error"].is_null(), "{reply}");
    assert_eq!(phone.message().payload, "from a socket");
    assert_eq!(channel.until("message")["data"], "from a socket");
    phone.is_quiet();
}
