//! The client port's HTTP, byte by byte: invalid requests, splits, pipelines, timeouts.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::*;
use serde_json::json;

/// Sends bytes after which the server closes. Returns the status and the response.
fn status(server: &Server, bytes: &[u8]) -> (u16, String) {
    let reply = server.exchange(bytes);
    let status = reply.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no status in {reply:?}")), reply)
}

#[test]
fn each_invalid_request_has_its_status_and_a_json_body() {
    let server = Server::start();
    let long = "x".repeat(9_000);
    let close = "Host: t\r\nConnection: close\r\n";
    for (request, want, code) in [
        (format!("GET /nope HTTP/1.1\r\n{close}\r\n"), 404, "not_found"),
        (format!("POST /sse HTTP/1.1\r\n{close}Content-Length: 0\r\n\r\n"), 405, "method_not_allowed"),
        (format!("DELETE /publish HTTP/1.1\r\n{close}\r\n"), 405, "method_not_allowed"),
        ("GET /sse HTTP/1.1\r\n\r\n".into(), 400, "bad_host"),
        ("\x16\x03\x01\x02 hello TLS\r\n\r\n".into(), 400, "bad_request"),
        (format!("POST /publish?topic=a HTTP/1.1\r\n{close}Content-Length: 99999\r\n\r\n"), 413, "body_too_large"),
        (format!("POST /publish?topic=a HTTP/1.1\r\n{close}Transfer-Encoding: chunked\r\n\r\n"), 411, "length_required"),
        (format!("GET /{long} HTTP/1.1\r\n{close}\r\n"), 414, "uri_too_long"),
        (format!("GET /sse HTTP/1.1\r\n{close}X: {long}\r\n\r\n"), 431, "head_too_large"),
        (format!("GET /ws HTTP/1.1\r\n{close}\r\n"), 426, "upgrade_required"),
        ("GET /ws HTTP/1.1\r\nHost: t\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 8\r\n\r\n".into(), 426, "bad_version"),
        ("GET /ws HTTP/1.1\r\nHost: t\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short\r\n\r\n".into(), 400, "bad_key"),
        (format!("GET /sse?topic=@bob HTTP/1.1\r\n{close}\r\n"), 400, "bad_topic"),
        (format!("GET /sse?user=%FF HTTP/1.1\r\n{close}\r\n"), 400, "bad_query"),
        (format!("GET /poll HTTP/1.1\r\n{close}\r\n"), 400, "no_topic"),
        (format!("GET /poll?topic=a&since=7 HTTP/1.1\r\n{close}\r\n"), 400, "bad_since"),
        (format!("GET /echo HTTP/1.1\r\n{close}\r\n"), 404, "not_found"),
        ("GET /stream HTTP/1.0\r\n\r\n".into(), 505, "bad_version"),
    ] {
        let (got, reply) = status(&server, request.as_bytes());
        assert_eq!(got, want, "{request:.80}\n{reply}");
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"]["code"], code, "{reply}");
        assert!(body["error"]["message"].as_str().unwrap().len() > 10);
        if want == 405 {
            assert!(header(head, "allow").is_some(), "{reply}");
        }
        if want == 426 {
            assert_eq!(header(head, "sec-websocket-version"), Some("13"));
        }
    }
    let many: String = (0..150).map(|n| format!("&topic={n}")).collect();
    assert_eq!(server.get(&format!("/sse?{many}")).1["error"]["code"], "too_many_topics");
}

#[test]
fn head_and_options_and_health() {
    let server = Server::start();
    let (_, reply) = status(&server, b"HEAD /sse?topic=a HTTP/1.1\r\nHost: t\r\n\r\n");
    assert!(reply.contains("text/event-stream") && reply.ends_with("\r\n\r\n"), "{reply}");
    let preflight = b"OPTIONS /publish HTTP/1.1\r\nHost: t\r\nOrigin: http://a\r\nAccess-Control-Request-Headers: x-token\r\nConnection: close\r\n\r\n";
    let (status_, reply) = status(&server, preflight);
    assert_eq!(status_, 204);
    assert_eq!(header(&reply, "access-control-allow-headers"), Some("x-token"));
    assert!(header(&reply, "access-control-allow-methods").unwrap().contains("POST"));
    assert_eq!(server.get("/healthz"), (200, json!({"status": "ok"})));
    let mut stream = Stream::new(server.connect());
    stream
        .send("HEAD /healthz HTTP/1.1\r\nHost: t\r\n\r\nGET /healthz HTTP/1.1\r\nHost: t\r\n\r\n");
    assert!(stream.head().contains("Content-Length: 15"));
    assert_eq!(stream.read_reply(), (200, "{\"status\":\"ok\"}".into()));
}

#[test]
fn head_is_judged_as_get_is_and_has_no_body() {
    let secret = "0123456789abcdef0123456789abcdef";
    let required = [("THRONG_AUTH_HMAC_KEY", secret), ("THRONG_AUTH_REQUIRED", "true")];
    for (settings, statuses) in
        [(&[][..], &[200, 400, 404][..]), (&required, &[200, 400, 401, 404])]
    {
        let server = Server::with(&["--demo"], settings);
        let mut seen = std::collections::BTreeSet::new();
        for target in [
            "/healthz",
            "/nothing",
            "/history",
            "/history?topic=a",
            "/history?topic=room:a",
            "/history?topic=%ff",
            "/history?user=al&topic=b",
            "/presence",
            "/presence?topic=a",
            "/presence?topic=room:a",
            "/poll",
            "/poll?topic=a&timeout=0",
            "/poll?topic=a&timeout=x",
        ] {
            let reply = |method: &str| {
                let request =
                    format!("{method} {target} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
                let (status, reply) = status(&server, request.as_bytes());
                let (head, body) = reply.split_once("\r\n\r\n").unwrap();
                (status, head.to_owned(), body.to_owned())
            };
            let (status, head, body) = reply("GET");
            assert_eq!(reply("HEAD"), (status, head, String::new()), "{target}: {body}");
            seen.insert(status);
        }
        assert_eq!(Vec::from_iter(seen), statuses);
    }
}

#[test]
fn unlisted_origins_are_rejected() {
    let settings = [("THRONG_CLIENT_CORS_ORIGINS", "http://good.example,http://fine.example:81")];
    let server = Server::with(&[], &settings);
    let send_request = |origin: &str| {
        let request = format!(
            "GET /healthz HTTP/1.1\r\nHost: t\r\nOrigin: {origin}\r\nConnection: close\r\n\r\n"
        );
        let reply = status(&server, request.as_bytes()).1;
        header(&reply, "access-control-allow-origin").map(str::to_string)
    };
    assert_eq!(send_request("http://good.example").as_deref(), Some("http://good.example"));
    assert_eq!(send_request("http://fine.example"), None);
    let upgrade = "GET /ws HTTP/1.1\r\nHost: t\r\nOrigin: http://evil.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let mut stream = Stream::new(server.connect());
    stream.send(upgrade);
    assert_eq!(stream.read_reply().0, 403);
}

#[test]
fn pipelined_requests_are_served_in_order_also_behind_a_poll() {
    let server = Server::start();
    let mut stream = Stream::new(server.connect());
    stream.send("GET /healthz HTTP/1.1\r\nHost: t\r\n\r\nGET /nope HTTP/1.1\r\nHost: t\r\n\r\nGET /poll?topic=a HTTP/1.1\r\nHost: t\r\n\r\nGET /healthz HTTP/1.1\r\nHost: t\r\n\r\nGET /sse?topic=b HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_eq!(stream.read_reply().0, 200);
    assert_eq!(stream.read_reply().0, 404);
    server.until_members("a", 1);
    server.publish("a", json!("wake"));
    assert!(stream.read_reply().1.contains("wake"));
    assert_eq!(stream.read_reply().0, 200);
    assert!(stream.head().contains("text/event-stream"));
    server.publish("b", json!("on"));
    assert_eq!(stream.data(), "on");
}

#[test]
fn requests_arrive_byte_by_byte_and_frames_with_the_upgrade() {
    let server = Server::start();
    let mut stream = Stream::new(server.connect());
    for byte in b"GET /sse?topic=slow HTTP/1.1\r\nHost: t\r\n\r\n" {
        stream.reader.get_mut().write_all(&[*byte]).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(stream.head().starts_with("HTTP/1.1 200"));
    server.publish("slow", json!("x"));
    assert_eq!(stream.data(), "x");
    let mut stream = Stream::new(server.connect());
    let mut bytes = b"GET /ws HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".to_vec();
    // This is an empty ping with a mask of zeros, in two pieces.
    bytes.extend([0x89, 0x80, 0, 0]);
    stream.reader.get_mut().write_all(&bytes).unwrap();
    let head = stream.head();
    assert_eq!(header(&head, "sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    std::thread::sleep(Duration::from_millis(50));
    stream.reader.get_mut().write_all(&[0, 0]).unwrap();
    let mut all = Vec::new();
    while !all.ends_with(&[0x8a, 0x00]) {
        let mut byte = [0];
        std::io::Read::read_exact(&mut stream.reader, &mut byte).unwrap();
        all.extend(byte);
    }
}

#[test]
fn slow_and_idle_peers_get_a_408_and_are_closed() {
    let server = Server::with(&[], &[("THRONG_TIMEOUTS_HEAD_SECONDS", "1")]);
    let mut slow = Stream::new(server.connect());
    let has_replied = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut socket = slow.reader.get_ref().try_clone().unwrap();
        let has_replied = &has_replied;
        scope.spawn(move || {
            // The head has no end, and its bytes do not stop: only the time for a whole head can end this.
            let head = b"GET /sse?topic=a HTTP/1.1\r\nX: ".iter().copied();
            for byte in head.chain(std::iter::repeat_n(b'x', 600)) {
                if has_replied.load(Ordering::Relaxed) || socket.write_all(&[byte]).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let head = slow.head();
        has_replied.store(true, Ordering::Relaxed);
        assert!(head.starts_with("HTTP/1.1 408 "), "{head:?}");
    });
    drop(slow);
    let mut silent = server.connect();
    let mut rest = Vec::new();
    let _ = std::io::Read::read_to_end(&mut silent, &mut rest);
    assert!(rest.is_empty());
    drop(silent);
    server.until("both are counted", |server| {
        server.metric("throng_connections_closed_total{reason=\"request_timeout\"}") == 2.0
    });
    // Another timeout applies between two requests.
    let server = Server::with(&[], &[("THRONG_TIMEOUTS_IDLE_SECONDS", "2")]);
    let mut stream = Stream::new(server.connect());
    stream.send("GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n");
    stream.read_reply();
    assert_eq!(stream.rest(), "");
    drop(stream);
    server.until("it is counted", |server| {
        server.metric("throng_connections_closed_total{reason=\"idle\"}") == 1.0
    });
}

#[test]
fn a_large_body_gets_100_continue() {
    let server = Server::with(&[], &[("THRONG_CLIENT_PUBLISH_PREFIXES", "*")]);
    let mut listener = server.listen("/sse?topic=big");
    let mut stream = Stream::new(server.connect());
    let body = "y".repeat(60_000);
    stream.send(&format!(
        "POST /publish?topic=big HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        body.len()
    ));
    assert!(stream.head().starts_with("HTTP/1.1 100 "));
    stream.send(&body);
    assert_eq!(stream.read_reply().0, 200);
    assert_eq!(listener.data(), body);
}

#[test]
fn an_invalid_frame_closes_the_connection_with_its_code() {
    let server = Server::start();
    let mut good = websocket(&server, "topic=a");
    for (frame, code) in [
        (&[0x81, 0x00][..], 1002u16),
        (&[0x83, 0x80, 0, 0, 0, 0], 1002),
        (&[0x81, 0x81, 0, 0, 0, 0, 0xff], 1007),
        (&[0x82, 0xff, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], 1009),
    ] {
        let mut bad = websocket(&server, "topic=a");
        bad.get_mut().write_all(frame).unwrap();
        let closed = loop {
            match bad.read() {
                Ok(tungstenite::Message::Close(frame)) => break frame.unwrap(),
                Ok(_) => {}
                Err(error) => panic!("{frame:?}: {error}"),
            }
        };
        assert_eq!(u16::from(closed.code), code, "{frame:?}: {}", closed.reason);
    }
    server.publish("a", json!("still here"));
    assert_eq!(receive(&mut good)["data"], "still here");
}

/// The server sends the responses of a pipeline before it produces more, so a client that reads none of them costs
/// little. When the client goes, the server keeps nothing of it, even if its last request was a poll.
#[test]
fn an_unread_pipeline_costs_little_and_leaves_no_poll_behind() {
    let server = Server::with(&["--demo"], &[]);
    let request = b"GET /chat.js HTTP/1.1\r\nHost: t\r\n\r\n";
    for _ in 0..10 {
        let mut greedy = server.connect();
        greedy.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let _ = greedy.write_all(&request.repeat(1_500));
        let _ = greedy.write_all(b"GET /poll?topic=ghost&user=victim HTTP/1.1\r\nHost: t\r\n\r\n");
        std::thread::sleep(Duration::from_millis(50));
        assert!(server.metric("throng_outbox_bytes") < 2_000_000.0);
    }
    server.until_members("ghost", 0);
    server.until("they are gone", |server| {
        server.metric("throng_outbox_bytes") == 0.0 && server.metric("throng_outboxes") == 0.0
    });
    // A client that reads gets all responses in order.
    let mut patient = Stream::new(server.connect());
    patient.send(&String::from_utf8_lossy(&request.repeat(40)));
    patient.send("GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n");
    for _ in 0..40 {
        let (status, body) = patient.read_reply();
        assert!(status == 200 && body.len() > 1_000);
    }
    assert_eq!(patient.read_reply(), (200, r#"{"status":"ok"}"#.into()));
}
