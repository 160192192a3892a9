//! Clients that read slowly: the server encrypts waiting messages when they leave, and they arrive complete and in
//! order.

use std::io::{Read, Write};

use crate::support::tls::Authority;

/// More bytes than the sockets take, in messages that are smaller and larger than a record.
const MESSAGES: usize = 200;

fn text(number: usize) -> String {
    format!("{number} {}", "x".repeat(if number.is_multiple_of(10) { 100_000 } else { 3_000 }))
}

#[test]
fn what_waits_for_slow_readers_comes_whole_and_in_order() {
    let authority = Authority::new();
    let server = authority.server(
        &["--shards", "1"],
        &[
            ("THRONG_LIMITS_MESSAGE_BYTES_MAX", "1MiB"),
            ("THRONG_LIMITS_OUTBOX_BYTES_MAX", "64MiB"),
            ("THRONG_LIMITS_OUTBOX_MESSAGES_MAX", "10000"),
            ("THRONG_LIMITS_OUTBOXES_BYTES_MAX", "1GiB"),
            ("THRONG_SOCKET_SEND_BUFFER_BYTES", "16KiB"),
        ],
    );
    let address = server.client_tls.unwrap();
    let mut clients: Vec<_> = (0..3).map(|_| authority.connect(address)).collect();
    // One of the clients uses no TLS.
    let mut plain = server.listen("/stream?topic=t");
    for client in &mut clients {
        client.write_all(b"GET /stream?topic=t HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    }
    server.until_members("t", 4);
    for number in 0..MESSAGES {
        server.publish("t", text(number).into());
    }
    server.until("much waits", |server| server.metric("throng_outbox_bytes") > 1e6);
    server.publish("t", "end".into());
    for client in &mut clients {
        let mut all = Vec::new();
        let mut buffer = vec![0; 1_000];
        while !all.ends_with(b"\"end\"}\n\r\n") {
            let read = client.read(&mut buffer).unwrap();
            assert!(read > 0, "the server has closed");
            all.extend_from_slice(&buffer[..read]);
        }
        let all = String::from_utf8(all).unwrap();
        // Skips the lines of the chunked encoding.
        let lines = all.lines().filter(|line| line.starts_with('{'));
        let values = lines.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let texts: Vec<String> =
            values.filter_map(|value| Some(value["data"].as_str()?.to_string())).collect();
        let expected = (0..MESSAGES).map(text).chain(["end".into()]);
        assert!(texts.iter().cloned().eq(expected), "{} messages", texts.len());
    }
    while plain.object()["data"] != "end" {}
    server.until("nothing waits", |server| server.metric("throng_outbox_bytes") == 0.0);
    drop(clients);
    server.until("the memory is free", |server| {
        server.metric("throng_outbox_memory_bytes") == 0.0
            && server.metric("throng_tls_connections") == 0.0
    });
}
