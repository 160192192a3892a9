//! Handshakes that fail or never end: they cost little, and other clients do not wait for them.

use std::io::{Read, Write};

use crate::support::tls::{Authority, connect_with, exchange, read_until};
use crate::support::*;

/// Reads until the server closes. A reset also counts as the end.
fn rest(mut socket: impl Read) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = socket.read_to_end(&mut all);
    all
}

#[test]
fn what_is_no_tls_is_closed_and_counted() {
    let authority = Authority::new();
    let server = authority.server(&["--shards", "1"], &[]);
    let address = server.client_tls.unwrap();
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: t\r\n\r\n"[..],
        b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00",
        b"\x16\x03\x01\xff\xff\x01",
        b"\x15\x03\x03\x00\x02\x02\x28",
        &[0; 100],
    ] {
        let mut socket = connect(address);
        socket.write_all(garbage).unwrap();
        let reply = rest(socket);
        assert!(reply.len() <= 7 && !reply.starts_with(b"HTTP"), "{garbage:?}: {reply:?}");
    }
    assert_eq!(server.metric("throng_tls_handshakes_total{result=\"failed\"}"), 5.0);
    server.until("no handshake is left", |server| {
        server.metric("throng_tls_handshakes_pending") == 0.0
    });
}

/// The beginning of a ClientHello.
const BEGINNING: [u8; 12] = [22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3, 0];

#[test]
fn a_handshake_that_never_ends_is_closed_in_time() {
    let authority = Authority::new();
    let server = authority.server(&["--shards", "1"], &[("THRONG_TIMEOUTS_HEAD_SECONDS", "1")]);
    let address = server.client_tls.unwrap();
    let silent = connect(address);
    let mut begun = connect(address);
    begun.write_all(&BEGINNING).unwrap();
    assert_eq!((rest(silent).len(), rest(begun).len()), (0, 0), "an alert would need a handshake");
    server.until("nothing is left of them", |server| {
        server.metric("throng_tls_handshakes_pending") == 0.0
    });
}

#[test]
fn more_handshakes_than_may_be_under_way_are_rejected() {
    let authority = Authority::new();
    let settings = [("THRONG_TLS_HANDSHAKES_MAX", "3")];
    let server = authority.server(&["--shards", "1"], &settings);
    let address = server.client_tls.unwrap();
    let begun: Vec<_> = (0..3)
        .map(|_| {
            let mut socket = connect(address);
            socket.write_all(&BEGINNING).unwrap();
            socket
        })
        .collect();
    server.until("three are under way", |server| {
        server.metric("throng_tls_handshakes_pending") == 3.0
    });
    let mut one_more = connect(address);
    one_more.write_all(&BEGINNING).unwrap();
    assert_eq!(rest(one_more), [21, 3, 3, 0, 2, 2, 80], "internal_error");
    assert_eq!(server.metric("throng_tls_handshakes_total{result=\"refused\"}"), 1.0);
    drop(begun);
    server
        .until("none is under way", |server| server.metric("throng_tls_handshakes_pending") == 0.0);
    let reply = exchange(&mut authority.connect(address), super::HEALTHY);
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
}

#[test]
fn a_server_without_capacity_says_so_by_an_alert() {
    let authority = Authority::new();
    let server = authority.server(&["--shards", "1", "--max-connections", "1"], &[]);
    let listener = server.listen("/sse?topic=t");
    let mut refused = connect(server.client_tls.unwrap());
    // The alert may come before the write.
    let _ = refused.write_all(&BEGINNING);
    assert_eq!(rest(refused), [21, 3, 3, 0, 2, 2, 80], "internal_error");
    assert_eq!(server.metric("throng_connections_refused_total{reason=\"connections\"}"), 1.0);
    drop(listener);
}

/// Half a record uses memory, and all connections share one limit for it.
#[test]
fn half_records_take_up_no_more_than_they_may() {
    let authority = Authority::new();
    // The limit must allow two of the largest messages.
    let settings = [
        ("THRONG_LIMITS_MESSAGE_BYTES_MAX", "16KiB"),
        ("THRONG_LIMITS_FRAME_BYTES_MAX", "64KiB"),
        ("THRONG_LIMITS_LONGPOLL_BODY_BYTES_MAX", "64KiB"),
        ("THRONG_LIMITS_INPUT_BYTES_MAX", "1MiB"),
    ];
    let server = authority.server(&["--shards", "1"], &settings);
    let address = server.client_tls.unwrap();
    let config = authority.client_config();
    let clients: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = connect_with(&config, address);
            stream.conn.writer().write_all(&[b'x'; 16_000]).unwrap();
            let mut record = Vec::new();
            stream.conn.write_tls(&mut record).unwrap();
            // The server may have closed the connection because of the other clients' memory.
            let _ = stream.sock.write_all(&record[..15_000]);
            stream
        })
        .collect();
    server.until("some are closed", |server| {
        server.metric("throng_limited_total{name=\"limits.input_bytes_max\"}") >= 30.0
    });
    assert!(server.metric("throng_tls_input_memory_bytes") <= f64::from(1 << 20));
    drop(clients);
    server.until("the memory is free", |server| {
        server.metric("throng_tls_input_memory_bytes") == 0.0
    });
}

/// A record that can't be decrypted ends only its own connection.
#[test]
fn a_damaged_record_ends_its_connection_by_an_alert() {
    let authority = Authority::new();
    let server = authority.server(&["--shards", "1"], &[]);
    let address = server.client_tls.unwrap();
    let mut witness = authority.connect(address);
    witness.write_all(b"GET /sse?topic=t HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    server.until_members("t", 1);
    for damaged in [
        &[23, 3, 3, 0, 20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20][..],
        &[22, 3, 3, 0, 1, 0],
        b"GET / HTTP/1.1\r\n",
        &[23, 3, 3, 0xff, 0xff],
    ] {
        let mut stream = authority.connect(address);
        stream.sock.write_all(damaged).unwrap();
        let error = stream.read(&mut [0; 1]).unwrap_err().to_string();
        assert!(error.contains("received fatal alert"), "{damaged:?}: {error}");
    }
    server.publish("t", "still here".into());
    read_until(&mut witness, "still here");
}
