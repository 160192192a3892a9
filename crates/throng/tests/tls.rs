//! TLS: the port for clients with it, and the server's certificates.

mod acme;
mod admin_port;
mod certificates;
mod client_certificates;
mod clients;
mod handshakes;
mod hostile;
mod outgoing;
mod proxied;
mod slow_readers;

use std::io::Write;

use rustls::version::{TLS12, TLS13};

use crate::support::tls::{Authority, connect_with, exchange, read_until};

const HEALTHY: &str = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

#[test]
fn requests_and_streams_come_by_both_versions_and_without_tls() {
    let authority = Authority::new();
    let server = authority.server(&["--shards", "2"], &[]);
    let address = server.client_tls.unwrap();
    for version in [&TLS12, &TLS13] {
        let mut config = rustls::ClientConfig::builder_with_protocol_versions(&[version])
            .with_root_certificates(authority.roots())
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let config = std::sync::Arc::new(config);
        let mut stream = connect_with(&config, address);
        assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
        assert_eq!(stream.conn.protocol_version(), Some(version.version));
        let reply = exchange(&mut stream, HEALTHY);
        assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
        let mut stream = connect_with(&config, address);
        stream.write_all(b"GET /sse?topic=news HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
        server.until_members("news", 1);
        server.publish("news", "hello by TLS".into());
        read_until(&mut stream, "hello by TLS");
        // The client sees the end of the connection before, possibly earlier than the server has counted it.
        server.until("one is open", |server| server.metric("throng_tls_connections") == 1.0);
        drop(stream);
        server.until_members("news", 0);
    }
    assert_eq!(server.get("/healthz").0, 200, "the port without TLS");
    // The second connection of each version resumed the session of the first.
    for result in ["full", "resumed"] {
        let name = format!("throng_tls_handshakes_total{{result=\"{result}\"}}");
        assert_eq!(server.metric(&name), 2.0, "{result}");
    }
    server.until("nobody is left", |server| server.metric("throng_tls_connections") == 0.0);
}

/// All bytes of a large message arrive in both directions, whatever the records are.
#[test]
fn large_messages_come_whole_both_ways() {
    let authority = Authority::new();
    let server = authority.server(
        &["--shards", "1"],
        &[
            ("THRONG_LIMITS_MESSAGE_BYTES_MAX", "1MiB"),
            ("THRONG_LIMITS_FRAME_BYTES_MAX", "2MiB"),
            ("THRONG_LIMITS_OUTBOX_BYTES_MAX", "8MiB"),
            ("THRONG_CLIENT_PUBLISH_PREFIXES", "*"),
        ],
    );
    let address = server.client_tls.unwrap();
    let url = format!("ws://{address}/ws");
    let mut socket = tungstenite::client(url, authority.connect(address)).unwrap().0;
    let mut send = |text: String| socket.send(tungstenite::Message::text(text)).unwrap();
    send("{\"type\":\"subscribe\",\"id\":1,\"topic\":\"t\"}".into());
    let text: String = (0..900_000).map(|at| char::from(b'a' + (at % 25) as u8)).collect();
    send(format!("{{\"type\":\"publish\",\"id\":2,\"topic\":\"t\",\"data\":\"{text}\"}}"));
    let mut received = None;
    while received.is_none() {
        let message = socket.read().unwrap();
        assert!(!message.is_close(), "{message}");
        if !message.is_text() {
            continue;
        }
        let value: serde_json::Value = serde_json::from_str(message.to_text().unwrap()).unwrap();
        received = value.get("data").cloned();
    }
    assert!(received.unwrap() == text, "the message is not the one that was sent");
}

#[test]
fn a_session_is_resumed_and_keys_are_updated() {
    let authority = Authority::new();
    let server = authority.server(&[], &[]);
    let address = server.client_tls.unwrap();
    let config = authority.client_config();
    for resumed in 0..3 {
        let mut stream = connect_with(&config, address);
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
        // The client changes its key, and requests that the server change its own.
        stream.conn.refresh_traffic_keys().unwrap();
        let reply = exchange(&mut stream, HEALTHY);
        assert_eq!(reply.matches("HTTP/1.1 200 ").count(), 2, "{reply}");
        let count = server.metric("throng_tls_handshakes_total{result=\"resumed\"}");
        assert_eq!(count, f64::from(resumed));
    }
}
