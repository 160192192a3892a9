//! A proxy that passes TLS through sends the client's address by the PROXY protocol, before TLS.

use std::io::{Read, Write};

use rustls::{ClientConnection, StreamOwned};

use crate::support::tls::{Authority, TlsStream, exchange};
use crate::support::*;

const LINE: &[u8] = b"PROXY TCP4 192.0.2.1 127.0.0.1 4711 443\r\n";

fn server(authority: &Authority, more: &[(&str, &str)]) -> Server {
    let settings = [
        ("THRONG_CLIENT_TRUSTED_PROXIES", "127.0.0.1"),
        ("THRONG_CLIENT_PROXY_HEADER", "proxy-protocol"),
    ];
    authority.server(&["--shards", "1"], &[&settings[..], more].concat())
}

/// Connects with these bytes before TLS. The first TLS record leaves together with the last of them.
fn connect_behind(authority: &Authority, server: &Server, pieces: &[&[u8]]) -> TlsStream {
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let mut connection = ClientConnection::new(authority.client_config(), name).unwrap();
    let mut socket = connect(server.client_tls.unwrap());
    let (last, first) = pieces.split_last().unwrap();
    let mut received = server.metric("throng_received_bytes_total");
    for piece in first {
        socket.write_all(piece).unwrap();
        received += piece.len() as f64;
        server
            .until("the piece has come", |it| it.metric("throng_received_bytes_total") >= received);
    }
    let mut bytes = last.to_vec();
    connection.write_tls(&mut bytes).unwrap();
    socket.write_all(&bytes).unwrap();
    while connection.is_handshaking() {
        connection.complete_io(&mut socket).unwrap();
    }
    StreamOwned::new(connection, socket)
}

/// Opens a user's stream, and returns the address that the server has for the user.
fn address_of(server: &Server, stream: &mut TlsStream, user: &str) -> String {
    let request = format!("GET /sse?user={user} HTTP/1.1\r\nHost: t\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    let (_, reply) = server.api("GET", &format!("/api/users/{user}"), None);
    reply["connections"][0]["address"].as_str().unwrap_or_else(|| panic!("{reply}")).to_owned()
}

#[test]
fn the_header_comes_before_tls() {
    let authority = Authority::new();
    let server = server(&authority, &[]);
    let mut alice = connect_behind(&authority, &server, &[LINE]);
    assert_eq!(address_of(&server, &mut alice, "alice"), "192.0.2.1:4711");
    // Version 2, in pieces.
    let mut binary = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    binary.extend([198, 51, 100, 7, 127, 0, 0, 1, 0x12, 0x67, 1, 0xbb]);
    let pieces: Vec<&[u8]> = binary.chunks(5).collect();
    let mut bob = connect_behind(&authority, &server, &pieces);
    assert_eq!(address_of(&server, &mut bob, "bob"), "198.51.100.7:4711");
    // The proxy's own health check.
    let mut check = connect_behind(&authority, &server, &[b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"]);
    assert!(exchange(&mut check, super::HEALTHY).starts_with("HTTP/1.1 200 "));
}

#[test]
fn a_connection_without_the_header_ends() {
    let authority = Authority::new();
    let server = server(&authority, &[]);
    let mut hello = Vec::new();
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let mut connection = ClientConnection::new(authority.client_config(), name).unwrap();
    connection.write_tls(&mut hello).unwrap();
    for bytes in [&hello[..], b"PROXY TCP4 x\r\n", b"GET / HTTP/1.1\r\n\r\n"] {
        let mut socket = connect(server.client_tls.unwrap());
        socket.write_all(bytes).unwrap();
        let mut reply = Vec::new();
        let _ = socket.read_to_end(&mut reply);
        assert_eq!(reply, b"", "nothing in plain");
    }
    let mut after = connect_behind(&authority, &server, &[LINE]);
    assert!(exchange(&mut after, super::HEALTHY).starts_with("HTTP/1.1 200 "));
    server.until("none is left", |it| it.metric("throng_tls_connections") == 0.0);
}

#[test]
fn connections_count_for_the_address_behind_the_proxy() {
    let authority = Authority::new();
    let server = server(&authority, &[("THRONG_LIMITS_CONNECTIONS_PER_ADDRESS_MAX", "2")]);
    let mut streams: Vec<_> = (0..2)
        .map(|at| {
            let mut stream = connect_behind(&authority, &server, &[LINE]);
            address_of(&server, &mut stream, &format!("u{at}"));
            stream
        })
        .collect();
    let mut third = connect(server.client_tls.unwrap());
    third.write_all(LINE).unwrap();
    let mut reply = Vec::new();
    let _ = third.read_to_end(&mut reply);
    assert_eq!(reply, b"");
    let other = b"PROXY TCP4 192.0.2.2 127.0.0.1 4711 443\r\n";
    let mut stream = connect_behind(&authority, &server, &[other]);
    assert_eq!(address_of(&server, &mut stream, "other"), "192.0.2.2:4711");
    streams.clear();
}
