//! Connections with TLS survive an upgrade: the new process has their keys and sequence numbers, partial records, and
//! waiting output.

use std::io::{Read, Write};

use crate::support::tls::{Authority, connect_with};
use crate::upgrade::api::Api;
use crate::upgrade::member::{Kind, Member, numbers};
use crate::upgrade::node::{BOTH, Node, Options, Storage};
use crate::upgrade::transports::receive_through;

fn node(
    authority: &Authority,
    storage: Storage,
    settings: &[(&'static str, &'static str)],
) -> Node {
    let settings = settings.to_vec();
    Node::with(Options { storage, settings, tls: Some(authority), ..Options::default() })
}

#[test]
fn each_transport_receives_each_message_once_through_tls() {
    let authority = Authority::new();
    for storage in BOTH {
        let node = node(&authority, storage, &[]);
        receive_through(&node, |publisher| {
            for _ in 0..3 {
                node.upgrade();
                assert!(node.metric("throng_tls_connections") > 10.0, "the members are there");
                publisher.until_more();
            }
        });
    }
}

/// A request in a record that arrives in parts, with an upgrade between them, at any byte.
#[test]
fn a_record_may_be_cut_anywhere() {
    let authority = Authority::new();
    let node = node(&authority, Storage::Memory, &[]);
    let config = authority.client_config();
    let address = node.client_tls.unwrap();
    // The record has 5 + 40 + 17 bytes.
    let mut halves = Vec::new();
    for at in [1, 4, 5, 6, 30, 61] {
        let mut stream = connect_with(&config, address);
        stream
            .conn
            .writer()
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: t\r\nA: bcd\r\n\r\n")
            .unwrap();
        let mut record = Vec::new();
        stream.conn.write_tls(&mut record).unwrap();
        stream.sock.write_all(&record[..at]).unwrap();
        halves.push((stream, record.split_off(at)));
    }
    for round in 0..2 {
        node.upgrade();
        let Some(middle) = (round == 0).then_some(1) else { continue };
        // One byte more, and another upgrade.
        for (stream, rest) in &mut halves {
            if rest.len() > 1 {
                stream.sock.write_all(&rest[..middle]).unwrap();
                rest.drain(..middle);
            }
        }
    }
    for (mut stream, rest) in halves {
        stream.sock.write_all(&rest).unwrap();
        let mut reply = [0; 13];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"HTTP/1.1 200 ");
    }
}

/// More messages than the sockets take.
const MESSAGES: usize = 120;
const BYTES: usize = 8_000;

#[test]
fn what_waits_for_clients_that_do_not_read_is_encrypted_once() {
    let authority = Authority::new();
    let settings = [("THRONG_SOCKET_SEND_BUFFER_BYTES", "16KiB")];
    let node = node(&authority, Storage::Memory, &settings);
    let kinds = [Kind::Sse, Kind::Stream, Kind::Ws, Kind::Phoenix, Kind::Mqtt5(1)];
    let mut members: Vec<Member> =
        kinds.iter().map(|kind| Member::open(&node, *kind, "h:unread")).collect();
    let text = |number: usize| format!("{number} {}", "x".repeat(BYTES));
    for part in 0..3 {
        let mut api = Api::new(node.admin);
        let range = part * MESSAGES..(part + 1) * MESSAGES;
        range.for_each(|number| _ = api.publish("h:unread", &text(number)));
        node.until("much waits", |server| server.metric("throng_outbox_bytes") > 1e6);
        node.upgrade();
    }
    node.publish("h:unread", "end".into());
    for member in &mut members {
        let received: Vec<String> = member
            .before_end()
            .iter()
            .map(|whole| {
                let number = whole.split(' ').next().unwrap();
                assert_eq!(*whole, text(number.parse().unwrap()));
                number.to_string()
            })
            .collect();
        member.check_received(&received, &numbers(0..3 * MESSAGES));
    }
    node.until("nothing waits", |server| server.metric("throng_outbox_bytes") == 0.0);
}

#[test]
fn sessions_are_resumed_at_the_new_process() {
    let authority = Authority::new();
    let node = node(&authority, Storage::Memory, &[]);
    let config = authority.client_config();
    let address = node.client_tls.unwrap();
    let request = || {
        let mut stream = connect_with(&config, address);
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
        // The ticket arrives before the response.
        stream.read_exact(&mut [0; 13]).unwrap();
    };
    request();
    node.upgrade();
    request();
    assert_eq!(node.metric("throng_tls_handshakes_total{result=\"resumed\"}"), 1.0);
}
