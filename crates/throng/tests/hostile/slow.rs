//! Peers that are slow, stop in the middle, or vanish.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use super::*;

/// Returns whether only so many SSE connections are open, and no buffers are in use.
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
fn endless_heads_and_bodies_time_out() {
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
    let mut slow: Vec<(usize, TcpStream, Vec<u8>)> = Vec::new();
    for at in 0..160 {
        let mut socket = server.connect();
        socket.write_all(begun[at % begun.len()]).unwrap();
        socket.set_nonblocking(true).unwrap();
        slow.push((at % begun.len(), socket, Vec::new()));
    }
    // A client that sends a byte now and then does not extend the timeout: otherwise this would never end.
    server.until("all are closed", |server| {
        witness.assert_receives(server);
        std::thread::sleep(Duration::from_millis(300));
        slow.retain_mut(|(at, socket, response)| {
            let _ = socket.write_all(b"x");
            match socket.read_to_end(response) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                _ => {}
            }
            let response = String::from_utf8_lossy(response);
            // The server rejects a request with an invalid head before the body arrives.
            let refused = ["408 ", "400 ", "100 ", "403 "].map(|it| format!("HTTP/1.1 {it}"));
            // Input after the close may have reset the connection and so discarded the response.
            let fine = response.is_empty()
                || refused.iter().any(|it| response.starts_with(it))
                || response.contains("{\"status\":410}");
            assert!(fine, "{:?}: {response}", String::from_utf8_lossy(begun[*at]));
            false
        });
        slow.is_empty()
    });
    server.until("all are gone", |server| is_at_rest(server, 1));
    witness.assert_receives(&server);
}

#[test]
fn half_closed_connections_are_served_and_closed() {
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
        let mut stream = Stream::new(socket);
        // The server sends its response, and then notices the half-close.
        let head = if want.is_empty() { String::new() } else { stream.head() };
        assert!(head.starts_with(want), "{request:?}: {head}");
        stream.reader.get_ref().shutdown(Shutdown::Write).unwrap();
        stream.rest();
    }
    server.until("all are gone", |server| is_at_rest(server, 1));
    witness.assert_receives(&server);
}

/// Closing a socket with unread input resets the connection.
#[test]
fn many_resets_leave_no_state_behind() {
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
    server.until("their topics are empty", |server| {
        ["storm", "room:storm"].iter().all(|topic| {
            let (_, response) = server.api("GET", &format!("/api/topics/{topic}"), None);
            response["members"].as_u64().unwrap_or(0) == 0
        })
    });
    server
        .until("all have left", |server| server.get("/presence?topic=room:storm").1["users"] == 0);
    witness.assert_receives(&server);
}

/// Readers that never read use no more than an outbox each, and delay no other client.
#[test]
fn a_thousand_stalled_readers_use_bounded_memory() {
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
        let path = ["/sse?", "/stream?", "/poll?timeout=120&"][at % 3];
        let mut socket = server.connect();
        write!(socket, "GET {path}topic=loud HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
        deaf.push(socket);
    }
    server.until_members("loud", READERS as u64);
    let mut listener = server.listen("/sse?topic=loud");
    let payload = "z".repeat(2_000);
    for n in 0..1_000 {
        server.publish("loud", json!(format!("{n:04}{payload}")));
        assert!(listener.data().starts_with(&format!("{n:04}")));
        let bytes = server.metric("throng_outbox_bytes");
        // The limit is four times as high while the server can't tell it from a reader that keeps
        // pace.
        assert!(bytes <= (READERS * OUTBOX_BYTES * 4) as f64, "{bytes}");
        let streams = READERS - READERS.div_ceil(3) + 1;
        if server.metric("throng_slow_consumers_closed_total") >= streams as f64 {
            break;
        }
        assert!(n < 999, "slow readers are never closed");
    }
    witness.assert_receives(&server);
    drop(deaf);
    server.until("all are gone", |server| is_at_rest(server, 2));
}

/// A process that was stopped for a while loses no connection and no message.
#[test]
fn a_stopped_server_resumes_without_loss() {
    let settings =
        [("THRONG_TIMEOUTS_PHOENIX_SILENCE_SECONDS", "60"), ("THRONG_TIMEOUTS_HEAD_SECONDS", "60")];
    let server = Server::with(&["--demo"], &settings);
    let mut sse = server.listen("/sse?topic=room:a");
    let mut socket = crate::support::websocket(&server, "topic=room:a");
    // The position in the room's history comes before the presence snapshot.
    let list = loop {
        let message = receive(&mut socket);
        if message["type"] == "message" {
            break message;
        }
    };
    assert_eq!((sse.data().as_str(), &list["data"]), ("{}", &json!({})));
    let url = format!("ws://{}/socket/websocket?vsn=2.0.0", server.client);
    let (mut phoenix, _) = tungstenite::client(url, server.connect()).unwrap();
    let join = r#"["1","1","room:a","phx_join",{}]"#;
    phoenix.send(tungstenite::Message::text(join)).unwrap();
    assert_eq!(receive(&mut phoenix)[4]["status"], "ok");
    server.until_members("room:a", 3);
    server.pause();
    let mut requested = server.connect();
    requested.write_all(b"GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
    let beat = r#"[null,"7","phoenix","heartbeat",{}]"#;
    phoenix.send(tungstenite::Message::text(beat)).unwrap();
    let mut left: Vec<TcpStream> = (0..50).map(|_| server.connect()).collect();
    left.iter_mut().for_each(|socket| socket.write_all(b"GET /sse HTTP/1.1\r\n").unwrap());
    std::thread::sleep(Duration::from_secs(2));
    drop(left);
    server.signal("-CONT");
    let mut reply = String::new();
    requested.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    server.publish("room:a", json!({"n": 1}));
    assert_eq!(sse.data(), r#"{"n":1}"#);
    assert_eq!(receive(&mut socket)["data"]["n"], 1);
    let said: Vec<_> = (0..3).map(|_| receive(&mut phoenix)).collect();
    assert!(said.iter().any(|it| it[1] == "7" && it[4]["status"] == "ok"), "{said:?}");
    assert!(said.iter().any(|it| it[4]["n"] == 1), "{said:?}");
    assert_eq!(server.publish("room:a", json!({"n": 2}))["members"], 3);
}
