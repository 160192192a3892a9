//! Limits: the server rejects what exceeds a limit with a response, and serves the rest.

use std::io::Write;
use std::process::Command;

use crate::support::*;
use serde_json::json;

#[test]
fn connections_over_the_limit_get_503_and_open_ones_stay() {
    let server = Server::with(&["--max-connections", "20"], &[]);
    let mut open: Vec<_> = (0..20).map(|_| server.listen("/sse?topic=a")).collect();
    let reply = server.exchange(b"GET /sse HTTP/1.1\r\nHost: t\r\n\r\n");
    assert!(reply.starts_with("HTTP/1.1 503 "), "{reply:?}");
    assert!(header(&reply, "retry-after").is_some() && reply.contains("overloaded"));
    server.publish("a", json!("still"));
    open.iter_mut().for_each(|stream| assert_eq!(stream.data(), "still"));
    open.pop();
    server.until("there is room again", |server| {
        server
            .exchange(b"GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
            .starts_with("HTTP/1.1 200")
    });
    assert!(server.metric("throng_connections_refused_total{reason=\"connections\"}") >= 1.0);
}

#[test]
fn connections_per_address_and_connect_rates_are_limited() {
    let settings =
        [("THRONG_LIMITS_CONNECTIONS_PER_ADDRESS_MAX", "3"), ("THRONG_CLIENT_STATUS_PAGE", "true")];
    let server = Server::with(&[], &settings);
    let open: Vec<_> = (0..3).map(|_| server.listen("/sse")).collect();
    let request = b"GET /status HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    assert!(server.exchange(request).starts_with("HTTP/1.1 503"));
    drop(open);
    server.until("the address is welcome again", |server| {
        server.exchange(request).starts_with("HTTP/1.1 200")
    });
    let request = b"GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    let server = Server::with(&["--shards", "1"], &[("THRONG_LIMITS_ACCEPT_PER_SECOND_MAX", "2")]);
    // All connect at once, so that a slow machine does not spread them over time.
    let sockets: Vec<_> = (0..60).map(|_| server.connect()).collect();
    let replies = sockets.into_iter().map(|mut socket| {
        // The server may have closed already.
        let _ = socket.write_all(request);
        Stream::new(socket).rest()
    });
    let (served, refused): (Vec<_>, Vec<_>) =
        replies.partition(|reply| reply.starts_with("HTTP/1.1 200"));
    assert!(!served.is_empty() && !refused.is_empty(), "{} of 60", served.len());
    assert!(refused.iter().all(|reply| reply.starts_with("HTTP/1.1 503")), "{refused:?}");
}

#[test]
fn a_slow_consumer_is_closed_and_delays_no_other_member() {
    let settings =
        [("THRONG_SOCKET_SEND_BUFFER_BYTES", "8KiB"), ("THRONG_LIMITS_OUTBOX_BYTES_MAX", "128KiB")];
    let server = Server::with(&["--shards", "1"], &settings);
    let slow = server.listen("/sse?topic=a");
    let mut quick = server.listen("/sse?topic=a");
    let payload = "z".repeat(60_000);
    // The kernel's buffers and one outbox bound the bytes that are sent.
    for _ in 0..400 {
        server.publish("a", json!(payload));
        assert_eq!(quick.data().len(), payload.len());
        if server.metric("throng_slow_consumers_closed_total") == 1.0 {
            break;
        }
    }
    assert_eq!(server.metric("throng_slow_consumers_closed_total"), 1.0);
    server.until("the outboxes are gone", |server| {
        server.metric("throng_outbox_bytes") == 0.0 && server.metric("throng_outboxes") == 0.0
    });
    server.until_members("a", 1);
    drop(slow);
}

#[test]
fn a_reader_that_catches_up_gets_everything_in_order() {
    let settings = [
        ("THRONG_SOCKET_SEND_BUFFER_BYTES", "8KiB"),
        ("THRONG_LIMITS_OUTBOX_BYTES_MAX", "64MiB"),
        ("THRONG_LIMITS_OUTBOX_MESSAGES_MAX", "100000"),
    ];
    for sender in ["io_uring", "write"] {
        let server = Server::with(&["--shards", "1", "--sender", sender], &settings);
        let mut stream = server.listen("/stream?topic=a");
        stream.object();
        for n in 0..200 {
            server.publish("a", json!({"n": n, "pad": "z".repeat(20_000)}));
        }
        assert!(server.metric("throng_outbox_bytes") > 0.0, "the test must fill the outbox");
        for n in 0..200 {
            let object = std::iter::repeat_with(|| stream.object())
                .find(|object| object["type"] == "message");
            assert_eq!(object.unwrap()["data"]["n"], n);
        }
        server.until("the outbox is gone", |server| server.metric("throng_outboxes") == 0.0);
    }
}

#[test]
fn a_client_gets_503_when_the_server_has_no_descriptors() {
    let mut command = Command::new("sh");
    let throng = env!("CARGO_BIN_EXE_throng");
    let line = format!(
        "ulimit -n 280; exec {throng} serve --listen 127.0.0.1:0 --admin 127.0.0.1:0 --shards 1"
    );
    command.args(["-c", &line]);
    let server = Server::run(command, &[]);
    let mut open = Vec::new();
    let reply = loop {
        let mut stream = Stream::new(server.connect());
        stream.send("GET /sse?topic=a HTTP/1.1\r\nHost: t\r\n\r\n");
        let head = stream.head();
        if !head.starts_with("HTTP/1.1 200") {
            break head;
        }
        open.push(stream);
        assert!(open.len() < 280);
    };
    assert!(reply.starts_with("HTTP/1.1 503"), "{reply}");
    assert!(open.len() > 150, "{}", open.len());
    server.publish("a", json!("x"));
    open.iter_mut().for_each(|stream| assert_eq!(stream.data(), "x"));
}

#[test]
fn connections_over_the_memory_limit_are_rejected() {
    let server = Server::with(&[], &[]);
    let mut listener = server.listen("/sse?topic=a");
    let tight = Server::with(&[], &[("THRONG_LIMITS_MEMORY_BYTES_MAX", "1MiB")]);
    tight.until("memory is full", |server| {
        server
            .exchange(b"GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
            .starts_with("HTTP/1.1 503")
    });
    assert_eq!(tight.metric("throng_memory_full"), 1.0);
    server.publish("a", json!(1));
    assert_eq!(listener.data(), "1");
}

#[test]
fn connections_spread_evenly_and_a_full_shard_loses_no_connection() {
    let mut command = Command::new("sh");
    let throng = env!("CARGO_BIN_EXE_throng");
    // Four shards hold about 500 connections each, so 1,700 fit.
    let line = format!(
        "ulimit -n 600; exec {throng} serve --listen 127.0.0.1:0 --admin 127.0.0.1:0 --shards 4 --max-connections 10000"
    );
    command.args(["-c", &line]);
    let server = Server::run(command, &[("THRONG_SOCKET_BACKLOG", "64")]);
    let mut open = Vec::new();
    let spread = |server: &Server| -> Vec<f64> {
        (0..4)
            .map(|n| server.metric(&format!("throng_shard_connections{{shard=\"{n}\"}}")))
            .collect()
    };
    let even = |counts: &[f64]| {
        let mean = counts.iter().sum::<f64>() / 4.0;
        counts.iter().all(|count| (count - mean).abs() <= mean * 0.10)
    };
    // The server balances connections 16 times a second, and distributes them randomly in between. So the test opens
    // and closes some until they are even.
    server.until("the connections spread evenly", |server| {
        if open.len() >= 1_500 {
            open.drain(..60);
        }
        (0..60).for_each(|_| open.push(server.listen("/sse?topic=a")));
        let all = open.len() as f64;
        server.until("all are counted", |server| spread(server).iter().sum::<f64>() == all);
        open.len() >= 600 && even(&spread(server))
    });
    while open.len() < 1_700 {
        open.push(server.listen("/sse?topic=a"));
    }
    assert_eq!(server.publish("a", json!(1))["members"], 1_700);
    open.iter_mut().for_each(|stream| assert_eq!(stream.data(), "1"));
}
