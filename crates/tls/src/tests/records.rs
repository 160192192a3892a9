//! Records against those of rustls.

use std::sync::Arc;

use proptest::prelude::*;

use super::support::{Client, Server, acceptor, client_with, connect, suites};
use crate::testing::update_write_key;
use crate::{Alert, EXPORT_BYTES_MAX, Records, Version};

/// An event on an open connection.
#[derive(Clone, Debug)]
enum Event {
    ClientSends(usize),
    ServerSends(usize),
    ClientUpdatesKey,
    ServerUpdatesKey,
    /// Another process takes the server's side over.
    Import,
}

fn event() -> impl Strategy<Value = Event> {
    let size = || prop_oneof![4 => 0..300_usize, 2 => 0..40_000_usize, 1 => Just(16_384), 1 => Just(16_385)];
    prop_oneof![
        4 => size().prop_map(Event::ClientSends),
        4 => size().prop_map(Event::ServerSends),
        1 => Just(Event::ClientUpdatesKey),
        1 => Just(Event::ServerUpdatesKey),
        1 => Just(Event::Import),
    ]
}

fn data(size: usize, seed: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 31 + seed) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn each_side_reads_what_the_other_has_written(
        suite in 0..suites().len(),
        events in prop::collection::vec(event(), 1..12),
        pieces in prop::collection::vec(1..20_000_usize, 1..6),
        together in any::<bool>(),
    ) {
        let mut client = Client::new(&Arc::new(client_with(&suites()[suite..=suite])), "localhost");
        let established = connect(&acceptor(), &mut client, &[]).unwrap();
        let is_13 = established.version == Version::Tls13;
        let mut server = Server::new(established.records);
        let mut pieces = pieces.into_iter().cycle();
        // The bytes under way to each side, and the data that it must read from them.
        let (mut to_server, mut server_reads) = (established.unread, Vec::new());
        let (mut to_client, mut client_reads) = (Vec::new(), Vec::new());
        for (at, event) in events.iter().enumerate() {
            match event {
                Event::ClientSends(size) => {
                    to_server.extend(client.send(&data(*size, at)));
                    server_reads.extend(data(*size, at));
                }
                Event::ServerSends(size) => {
                    to_client.extend(server.send(&data(*size, at)));
                    client_reads.extend(data(*size, at));
                }
                Event::ClientUpdatesKey if is_13 => {
                    client.0.refresh_traffic_keys().unwrap();
                    to_server.extend(client.output());
                }
                Event::ServerUpdatesKey if is_13 => update_write_key(&mut server.records, &mut to_client),
                Event::ClientUpdatesKey | Event::ServerUpdatesKey => {}
                Event::Import => {
                    let mut bytes = Vec::new();
                    server.records.export(&mut bytes);
                    prop_assert!(bytes.len() <= EXPORT_BYTES_MAX);
                    server.records = Records::import(&bytes).unwrap();
                }
            }
            if together && at + 1 < events.len() {
                continue;
            }
            // The bytes under way arrive, in pieces.
            let mut read = Vec::new();
            let mut rest = &mut to_server[..];
            while !rest.is_empty() {
                let size = pieces.next().unwrap().min(rest.len());
                let (piece, behind) = rest.split_at_mut(size);
                server.records.open(&mut server.pending, piece, &mut read, &mut to_client).unwrap();
                rest = behind;
            }
            prop_assert!(read == server_reads);
            prop_assert!(client.receive(&to_client).unwrap() == client_reads);
            // The client replies to a key update.
            to_server = client.output();
            to_client.clear();
            server_reads.clear();
            client_reads.clear();
        }
        let (plain, out) = server.receive(&to_server);
        prop_assert!(plain.is_empty());
        prop_assert!(client.receive(&out).unwrap().is_empty());
    }
}

#[test]
fn both_sides_close() {
    for suite in suites() {
        let mut client = Client::new(&Arc::new(client_with(&[*suite])), "localhost");
        let mut server = Server::new(connect(&acceptor(), &mut client, &[]).unwrap().records);
        let mut out = server.send(b"last words");
        server.records.close(&mut out);
        server.records.close(&mut out);
        assert!(server.records.seal(b"more", &mut out).is_err());
        assert_eq!(server.records.sealed_len(4), 0);
        client.0.read_tls(&mut &out[..]).unwrap();
        let state = client.0.process_new_packets().unwrap();
        assert!(state.peer_has_closed() && state.plaintext_bytes_to_read() == 10);
        // The client may send more.
        assert_eq!(server.receive(&client.send(b"thanks")).0, b"thanks");
        client.0.send_close_notify();
        let (mut plain, mut out) = (Vec::new(), Vec::new());
        let opened =
            server.records.open(&mut server.pending, &mut client.output(), &mut plain, &mut out);
        assert!(opened.unwrap().is_closed && plain.is_empty() && out.is_empty());
    }
}

#[test]
fn a_fatal_alert_ends_the_connection() {
    for suite in suites() {
        let mut client = Client::new(&Arc::new(client_with(&[*suite])), "localhost");
        let mut server = Server::new(connect(&acceptor(), &mut client, &[]).unwrap().records);
        let mut out = Vec::new();
        server.records.alert(Alert::INTERNAL_ERROR, &mut out);
        let error = client.receive(&out).unwrap_err();
        assert_eq!(error, rustls::Error::AlertReceived(rustls::AlertDescription::InternalError));
    }
}
