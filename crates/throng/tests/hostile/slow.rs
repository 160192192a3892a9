//! Peers that are slow, stop in the middle, or are gone without a word.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use super::*;

/// Nobody but those who are meant to be is there, and nothing is held for anyone.
pub(super) fn is_at_rest(server: &Server, sse: u64) -> bool {
    let connections =
        |of: &str| server.metric(&format!("throng_connections{{transport=\"{of}\"}}"));
    let others = ["http", "stream", "poll", "ws", "phoenix", "phoenix_longpoll"];
    connections("sse") == sse as f64
        && others.iter().all(|of| connections(of) == 0.0)
        && server.metric("throng_outboxes") == 0.0
        && server.metric("throng_outbox_bytes") == 0.0
        && server.metric("throng_longpoll_sessions") == 0.0
}

#[test]
fn heads_and_bodies_that_never_end_are_given_up() {
    let settings = [("THRONG_TIMEOUTS_HEAD_SECONDS", "1"), ("THRONG_TIMEOUTS_IDLE_SECONDS", "2")];
    let server = Server::with(&[], &settings);
    let mut witness = Witness::new(&server);
    let begun: Vec<&[u8]> = vec![
        b"G",
        b"GET /sse?topic=a HTTP/1.1\r\n",
        b"GET /sse?topic=a HTTP/1.1\r\nHost: t\r\nX: ",
        b"POST /publish?topic=a HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n\r\nabc",
        b"POST /socket/longpoll HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\r\n[",
        b"POST /ack HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
        b"\r\n\r\n\r\n",
        b"",
    ];
    let mut slow: Vec<TcpStream> = Vec::new();
    for at in 0..160 {
        let mut socket = server.connect();
        socket.write_all(begun[at % begun.len()]).unwrap();
        slow.push(socket);
    }
    // A byte now and then earns no more time.
    for _ in 0..6 {
        std::thread::sleep(Duration::from_millis(300));
        slow.iter_mut().for_each(|socket| drop(socket.write_all(b"x")));
        witness.hears(&server);
    }
    for (at, mut socket) in slow.into_iter().enumerate() {
        let mut all = Vec::new();
        let _ = socket.read_to_end(&mut all);
        let told = String::from_utf8_lossy(&all);
        // What can be refused by its head is, before its body is there.
        let refused = ["408 ", "400 ", "100 ", "403 "].map(|it| format!("HTTP/1.1 {it}"));
        // What came after its end may have reset the connection and what it was told.
        let fine = told.is_empty()
            || refused.iter().any(|it| told.starts_with(it))
            || told.contains("{\"status\":410}");
        assert!(fine, "{:?}: {told}", String::from_utf8_lossy(begun[at % begun.len()]));
    }
    server.until("all are gone", |server| is_at_rest(server, 1));
    witness.hears(&server);
}

#[test]
fn who_says_that_no_more_comes_is_answered_and_let_go() {
    let server = Server::start();
    let mut witness = Witness::new(&server);
    let close = "Connection: close\r\n";
    for (request, want) in [
        ("GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n".to_string(), "HTTP/1.1 200 "),
        (format!("GET /nope HTTP/1.1\r\nHost: t\r\n{close}\r\n"), "HTTP/1.1 404 "),
        ("GET /healthz HTTP/1.1\r\nHost: t\r\n\r\nGET /healthz HT".into(), "HTTP/1.1 200 "),
        ("GET /he".into(), ""),
        ("POST /publish?topic=a HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nab".into(), ""),
        ("GET /sse?topic=a HTTP/1.1\r\nHost: t\r\n\r\n".into(), "HTTP/1.1 200 "),
        ("GET /poll?topic=a HTTP/1.1\r\nHost: t\r\n\r\n".into(), ""),
        (upgrade("/ws", ""), "HTTP/1.1 101 "),
    ] {
        let mut socket = server.connect();
        socket.write_all(request.as_bytes()).unwrap();
        // The answer is under way, or was; then the end is heard.
        std::thread::sleep(Duration::from_millis(50));
        socket.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        let _ = socket.read_to_end(&mut all);
        let all = String::from_utf8_lossy(&all);
        assert!(all.starts_with(want), "{request:?}: {all}");
    }
    server.until("all are gone", |server| is_at_rest(server, 1));
    witness.hears(&server);
}

/// A socket that is closed before what came for it was read is reset.
#[test]
fn a_storm_of_resets_leaves_nothing_behind() {
    let server = Server::with(&["--demo"], &[("THRONG_TIMEOUTS_LONGPOLL_SECONDS", "1")]);
    let mut witness = Witness::new(&server);
    let requests: [Vec<u8>; 6] = [
        b"GET /chat.js HTTP/1.1\r\nHost: t\r\n\r\n".repeat(5),
        b"GET /sse?topic=storm&user=a HTTP/1.1\r\nHost: t\r\n\r\n".to_vec(),
        b"GET /stream?topic=storm HTTP/1.1\r\nHost: t\r\n\r\n".to_vec(),
        b"GET /poll?topic=storm HTTP/1.1\r\nHost: t\r\n\r\n".to_vec(),
        upgrade("/ws?topic=storm", "").into_bytes(),
        [
            upgrade("/socket/websocket?vsn=2.0.0&user=b", "").into_bytes(),
            super::websocket::frame(0x81, br#"["1","1","room:storm","phx_join",{}]"#),
        ]
        .concat(),
    ];
    for round in 0..60 {
        let mut storm: Vec<TcpStream> = Vec::new();
        for request in &requests {
            let mut socket = server.connect();
            socket.write_all(request).unwrap();
            storm.push(socket);
        }
        if round % 3 == 0 {
            server.publish("storm", json!("x".repeat(1_000)));
        }
        std::thread::sleep(Duration::from_millis(round % 4));
        drop(storm);
    }
    server.until("all are gone", |server| is_at_rest(server, 1));
    server.until("nobody is in their topics", |server| {
        ["storm", "room:storm"].iter().all(|topic| {
            let (_, told) = server.api("GET", &format!("/api/topics/{topic}"), None);
            told["members"].as_u64().unwrap_or(0) == 0
        })
    });
    assert_eq!(server.get("/presence?topic=room:storm").1["users"], 0);
    witness.hears(&server);
}

/// Readers that never read hold no more than an outbox each, and nobody waits for them.
#[test]
fn a_thousand_readers_that_never_read_are_bounded() {
    const READERS: usize = 1_000;
    const OUTBOX_BYTES: usize = 8 << 10;
    let settings = [
        ("THRONG_SOCKET_SEND_BUFFER_BYTES", "4KiB"),
        ("THRONG_LIMITS_OUTBOX_BYTES_MAX", "8KiB"),
        ("THRONG_LIMITS_MESSAGE_BYTES_MAX", "4KiB"),
    ];
    let server = Server::with(&["--shards", "2"], &settings);
    let mut witness = Witness::new(&server);
    let mut deaf = Vec::new();
    for at in 0..READERS {
        let path = ["/sse", "/stream", "/poll"][at % 3];
        let mut socket = server.connect();
        write!(socket, "GET {path}?topic=loud HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
        deaf.push(socket);
    }
    server.until_members("loud", READERS as u64);
    let mut listener = server.listen("/sse?topic=loud");
    let payload = "z".repeat(2_000);
    for n in 0..1_000 {
        server.publish("loud", json!(format!("{n:04}{payload}")));
        assert!(listener.data().starts_with(&format!("{n:04}")));
        let bytes = server.metric("throng_outbox_bytes");
        // Four times as much, while it can't be told from one that keeps pace.
        assert!(bytes <= (READERS * OUTBOX_BYTES * 4) as f64, "{bytes}");
        let streams = READERS - READERS.div_ceil(3) + 1;
        if server.metric("throng_slow_consumers_closed_total") >= streams as f64 {
            break;
        }
        assert!(n < 999, "slow readers are never closed");
    }
    witness.hears(&server);
    drop(deaf);
    server.until("all are gone", |server| is_at_rest(server, 2));
}

/// A process that was stopped for a while has lost nobody and nothing.
#[test]
fn a_server_that_stood_still_goes_on_where_it_was() {
    let settings =
        [("THRONG_TIMEOUTS_PHOENIX_SILENCE_SECONDS", "10"), ("THRONG_TIMEOUTS_HEAD_SECONDS", "10")];
    let server = Server::with(&["--demo"], &settings);
    let mut sse = server.listen("/sse?topic=room:a");
    let mut socket = super::support::websocket(&server, "topic=room:a");
    let url = format!("ws://{}/socket/websocket?vsn=2.0.0", server.client);
    let (mut phoenix, _) = tungstenite::client(url, server.connect()).unwrap();
    let join = r#"["1","1","room:a","phx_join",{}]"#;
    phoenix.send(tungstenite::Message::text(join)).unwrap();
    assert_eq!(receive(&mut phoenix)[4]["status"], "ok");
    server.until_members("room:a", 3);
    server.signal("-STOP");
    let mut asked = server.connect();
    asked.write_all(b"GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
    let beat = r#"[null,"7","phoenix","heartbeat",{}]"#;
    phoenix.send(tungstenite::Message::text(beat)).unwrap();
    let mut left: Vec<TcpStream> = (0..50).map(|_| server.connect()).collect();
    left.iter_mut().for_each(|socket| socket.write_all(b"GET /sse HTTP/1.1\r\n").unwrap());
    std::thread::sleep(Duration::from_secs(3));
    drop(left);
    server.signal("-CONT");
    let mut answer = String::new();
    asked.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    server.publish("room:a", json!({"n": 1}));
    assert_eq!(sse.data(), r#"{"n":1}"#);
    assert_eq!(receive(&mut socket)["data"]["n"], 1);
    let said: Vec<_> = (0..3).map(|_| receive(&mut phoenix)).collect();
    assert!(said.iter().any(|it| it[1] == "7" && it[4]["status"] == "ok"), "{said:?}");
    assert!(said.iter().any(|it| it[4]["n"] == 1), "{said:?}");
    assert_eq!(server.publish("room:a", json!({"n": 2}))["members"], 3);
}
