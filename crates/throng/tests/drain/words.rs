//! What clients of each protocol get during a drain.

use std::io::{Read, Write};
use std::net::SocketAddr;

use protocol::mqtt::id;
use serde_json::json;

use super::{is_ready, state, until_drained};
use crate::mqtt::client::{Connect, Event, V3, V5};
use crate::support::*;

const REFERENCE: &str = "other.example:1883";

/// Returns the code and the reason of the close frame. Skips pings and messages.
fn closed(socket: &mut WebSocket) -> (u16, String) {
    loop {
        if let tungstenite::Message::Close(frame) = socket.read().unwrap() {
            let frame = frame.expect("a code");
            return (frame.code.into(), frame.reason.to_string());
        }
    }
}

/// Checks the DISCONNECT that sends a client of MQTT 5 to another server.
fn assert_sent_elsewhere(reason: u8, properties: &[(u8, String)]) {
    assert_eq!(reason, 0x9c);
    let reference = properties.iter().find(|(of, _)| *of == id::SERVER_REFERENCE);
    assert_eq!(reference.map(|(_, reference)| reference.as_str()), Some(REFERENCE));
}

/// Returns true if a packet is a CONNACK that sends a client to the other server.
fn is_sent_elsewhere(packet: &[u8]) -> bool {
    let text = String::from_utf8_lossy(packet);
    matches!(packet, [0x20, _, 0, 0x9c, ..]) && text.contains(REFERENCE)
}

/// Connects until the rejection is as expected. A shard may reject a connection before or after it has read the
/// request, and in the second case the client may lose the response.
fn until_refused(server: &Server, at: SocketAddr, request: &[u8], is_it: impl Fn(&[u8]) -> bool) {
    server.until("a client is told to go elsewhere", |_| {
        let (mut socket, mut reply) = (connect(at), Vec::new());
        let _ = socket.write_all(request);
        let _ = socket.read_to_end(&mut reply);
        is_it(&reply)
    });
}

fn server() -> Server {
    let flags = ["--mqtt", "127.0.0.1:0", "--shards", "2"];
    Server::with(&flags, &[("THRONG_MQTT_SERVER_REFERENCE", REFERENCE)])
}

#[test]
fn each_protocol_has_its_words_and_new_clients_are_refused_in_them() {
    let server = server();
    let mut sse = server.listen("/sse?topic=a");
    let mut stream = server.listen("/stream?topic=a");
    let mut socket = websocket(&server, "topic=a");
    let url = format!("ws://{}/socket/websocket?vsn=2.0.0", server.client);
    let mut phoenix = tungstenite::client(url, server.connect()).unwrap().0;
    let join = r#"["1","1","a","phx_join",{}]"#;
    phoenix.send(tungstenite::Message::text(join)).unwrap();
    assert!(phoenix.read().unwrap().to_text().unwrap().contains("phx_reply"));
    let mut five = Connect::new(V5, "five").open(server.client);
    let mut three = Connect::new(V3, "three").open(server.client);
    let mut poll = Stream::new(server.connect());
    poll.send("GET /poll?topic=a&timeout=50 HTTP/1.1\r\nHost: t\r\n\r\n");
    let mut idle = Stream::new(server.connect());
    idle.send("GET /poll?topic=a&timeout=0 HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_eq!(idle.read_reply().0, 200);
    longpoll_session(&server);
    server.until_members("a", 5);
    server.publish("a", json!("last"));
    assert_eq!(poll.read_reply().0, 200);
    poll.send("GET /poll?topic=a&timeout=50 HTTP/1.1\r\nHost: t\r\n\r\n");
    server.until_members("a", 5);

    server.post("/api/drain", json!({"wait_seconds": 0, "seconds": 1}));
    let text = sse.rest();
    assert!(text.contains("data: last") && text.ends_with(": closing, use_another_server\n\n"));
    let text = stream.rest();
    let last = r#"{"type":"close","reason":"use_another_server","retry_ms":"#;
    assert!(text.contains(last) && text.ends_with("0\r\n\r\n"), "{text}");
    assert_eq!(closed(&mut socket), (1012, "use_another_server".into()));
    assert_eq!(closed(&mut phoenix).0, 1012);
    match five.next() {
        Event::Disconnect(reason, properties) => assert_sent_elsewhere(reason, &properties),
        other => panic!("{other:?}"),
    }
    five.expect_events(&[Event::Closed]);
    // MQTT 3 has no packet for that.
    three.expect_events(&[Event::Closed]);
    let head = poll.head();
    assert!(head.starts_with("HTTP/1.1 503 ") && header(&head, "retry-after").is_some(), "{head}");
    assert!(poll.rest().contains("\"code\":\"use_another_server\""));
    assert_eq!(idle.rest(), "");
    until_drained(&server);
    assert_eq!(
        server.metric("throng_connections_closed_total{reason=\"use_another_server\"}"),
        9.0
    );

    // The drained node rejects new clients, and names the other server.
    until_refused(
        &server,
        server.client,
        b"GET /sse?topic=a HTTP/1.1\r\nHost: t\r\n\r\n",
        |reply| {
            let reply = String::from_utf8_lossy(reply).to_ascii_lowercase();
            reply.starts_with("http/1.1 503 ")
                && reply.contains("\r\nretry-after: ")
                && reply.contains("\"code\":\"use_another_server\"")
        },
    );
    until_refused(&server, server.client, &Connect::new(V5, "late").bytes(), is_sent_elsewhere);
    assert!(server.metric("throng_connections_refused_total{reason=\"drained\"}") >= 2.0);
    // The node still serves the API.
    assert_eq!(server.publish("a", json!("nobody"))["members"], 0);
    assert!(!is_ready(&server));

    assert_eq!(server.api("DELETE", "/api/drain", None).1["stage"], "serving");
    assert!(is_ready(&server));
    let mut again = server.listen("/sse?topic=a");
    let mut five = Connect::new(V5, "five").open(server.client);
    five.ping();
    server.publish("a", json!("again"));
    assert_eq!(again.data(), "again");
    assert_eq!(state(&server)["connections"], 2);
}

/// The MQTT port behaves in the same way.
#[test]
fn the_mqtt_port_refuses_in_its_own_words() {
    let log = Scratch::new("drain");
    let path = log.path().join("log");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_throng"));
    let port = free_port();
    let mqtt = format!("127.0.0.1:{port}");
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--mqtt", &mqtt]);
    let out = std::fs::File::create(&path).unwrap();
    let server =
        Server::run_with_log(command, &[("THRONG_MQTT_SERVER_REFERENCE", REFERENCE)], out.into());
    let at = mqtt.parse().unwrap();
    let mut open = Connect::new(V5, "open").open(at);
    server.post("/api/drain", json!({"wait_seconds": 0, "seconds": 1}));
    match open.next() {
        Event::Disconnect(reason, properties) => assert_sent_elsewhere(reason, &properties),
        other => panic!("{other:?}"),
    }
    until_drained(&server);
    until_refused(&server, at, &Connect::new(V5, "late").bytes(), is_sent_elsewhere);
    let log = std::fs::read_to_string(path).unwrap();
    assert!(log.contains("the node drains") && log.contains("the node is drained"), "{log}");
}
