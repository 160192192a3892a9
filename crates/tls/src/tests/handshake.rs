//! Handshakes that succeed.

use std::sync::Arc;

use proptest::prelude::*;
use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};

use super::support::{
    ALPN, AUTHORITY, Client, NOW, acceptor, client, client_of, client_with, connect, exchange_data,
    params, server, settings, suites,
};
use crate::{Acceptor, Progress, Version};

#[test]
fn each_suite_is_supported() {
    let acceptor = acceptor();
    for suite in suites() {
        let mut client = Client::new(&Arc::new(client_with(&[*suite])), "localhost");
        let established = connect(&acceptor, &mut client, &[]).unwrap();
        let name = format!("{:?}", suite.suite()).replace("TLS13_", "TLS_");
        assert_eq!(established.suite, name);
        let version = if suite.tls13().is_some() { Version::Tls13 } else { Version::Tls12 };
        assert_eq!(established.version, version);
        assert_eq!(established.records.version(), version);
        assert!(!established.is_resumed);
        assert_eq!(established.server_name.as_deref(), Some("localhost"));
        assert_eq!(established.alpn.as_deref(), Some(&b"http/1.1"[..]));
        assert_eq!(established.client_certificate, None);
        exchange_data(&mut client, established);
    }
}

#[test]
fn the_server_prefers_the_cheapest_suite() {
    let mut client = Client::new(&Arc::new(client()), "localhost");
    let established = connect(&acceptor(), &mut client, &[]).unwrap();
    assert_eq!(established.suite, "TLS_AES_128_GCM_SHA256");
    let mut client = Client::new(&Arc::new(client_of(Version::Tls12, None)), "localhost");
    let established = connect(&acceptor(), &mut client, &[]).unwrap();
    assert_eq!(established.suite, "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256");
}

#[test]
fn a_client_without_alpn_is_accepted() {
    let mut config = client();
    config.alpn_protocols.clear();
    let mut client = Client::new(&Arc::new(config), "localhost");
    assert_eq!(connect(&acceptor(), &mut client, &[]).unwrap().alpn, None);
}

#[test]
fn a_hello_in_many_records_is_accepted() {
    for size in [1, 7, 100] {
        let mut client = Client::new(&Arc::new(client()), "localhost");
        let hello = client.output();
        let mut records = Vec::new();
        for piece in hello[5..].chunks(size) {
            records.extend([22, 3, 1, 0, piece.len() as u8]);
            records.extend(piece);
        }
        let (mut handshake, mut out) = (acceptor().handshake(ALPN, NOW), Vec::new());
        assert!(matches!(handshake.on_received(&records, &mut out), Ok(Progress::Pending)));
        client.receive(&std::mem::take(&mut out)).unwrap();
        let progress = handshake.on_received(&client.output(), &mut out).unwrap();
        let Progress::Done(established) = progress else { panic!("the handshake does not end") };
        client.receive(&out).unwrap();
        exchange_data(&mut client, *established);
    }
}

#[test]
fn data_right_behind_the_handshake_is_not_lost() {
    for suite in suites() {
        let mut client = Client::new(&Arc::new(client_with(&[*suite])), "localhost");
        // The client sends this data with the last message of its handshake.
        std::io::Write::write_all(&mut client.0.writer(), b"at once").unwrap();
        let established = connect(&acceptor(), &mut client, &[]).unwrap();
        let mut server = super::support::Server::new(established.records);
        let (mut received, _) = server.receive(&established.unread);
        received.extend(server.receive(&client.output()).0);
        assert_eq!(received, b"at once", "{suite:?}");
    }
}

#[test]
fn a_client_gets_the_certificate_of_the_host_that_it_names() {
    let (first, second, wild) =
        (server(&["one.test"]), server(&["two.test"]), server(&["*.wild.test"]));
    let exact = server(&["exact.wild.test"]);
    let all = [&first, &second, &wild, &exact];
    let mut settings = settings();
    settings.identities = all.iter().map(|signed| signed.identity()).collect();
    let acceptor = Acceptor::new(settings).unwrap();
    let hosts: Vec<_> = acceptor.certificates().flat_map(crate::Certificate::hosts).collect();
    assert_eq!(hosts, ["one.test", "two.test", "*.wild.test", "exact.wild.test"]);
    for (host, expected) in [
        ("one.test", &first),
        ("two.test", &second),
        ("TWO.test", &second),
        ("any.wild.test", &wild),
        ("exact.wild.test", &exact),
        ("a.b.wild.test", &first),
        ("wild.test", &first),
        ("other.test", &first),
        // A client names no host if it connects to an address.
        ("127.0.0.1", &first),
    ] {
        for version in [Version::Tls13, Version::Tls12] {
            let mut client = Client::new(&Arc::new(client_of(version, None)), host);
            // The client rejects a certificate for another host.
            let _ = connect(&acceptor, &mut client, &[]);
            let chosen = client.0.peer_certificates().map(|chain| chain[0].clone());
            if let Some(chosen) = chosen {
                assert_eq!(chosen, expected.certificate, "{host}");
            } else {
                assert_eq!(expected.certificate, first.certificate, "{host}");
            }
        }
    }
}

#[test]
fn each_kind_of_key_signs() {
    for algorithm in [&PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384, &PKCS_ED25519] {
        let signed = AUTHORITY.sign(algorithm, &params(&["localhost"]));
        let mut settings = settings();
        settings.identities = vec![signed.identity()];
        let acceptor = Acceptor::new(settings).unwrap();
        let mut client = Client::new(&Arc::new(client()), "localhost");
        let established = connect(&acceptor, &mut client, &[]).unwrap();
        exchange_data(&mut client, established);
    }
}

#[test]
fn a_client_that_guessed_the_wrong_group_gets_a_retry_request() {
    for version in [Version::Tls13, Version::Tls12] {
        let mut config = client_of(version, None);
        let mut provider = (**config.crypto_provider()).clone();
        // The client guesses its first group, which the server does not support.
        provider.kx_groups = vec![
            rustls::crypto::aws_lc_rs::kx_group::MLKEM1024,
            rustls::crypto::aws_lc_rs::kx_group::SECP384R1,
        ];
        config = rebuild(config, provider, version);
        let mut client = Client::new(&Arc::new(config), "localhost");
        let established = connect(&acceptor(), &mut client, &[]).unwrap();
        exchange_data(&mut client, established);
    }
}

fn rebuild(
    config: rustls::ClientConfig,
    provider: rustls::crypto::CryptoProvider,
    version: Version,
) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(AUTHORITY.certificate.clone()).unwrap();
    let versions = match version {
        Version::Tls13 => &[&rustls::version::TLS13],
        Version::Tls12 => &[&rustls::version::TLS12],
    };
    let mut rebuilt = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    rebuilt.alpn_protocols = config.alpn_protocols;
    rebuilt
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_handshake_succeeds_in_pieces_of_any_size(
        suite in 0..suites().len(),
        pieces in prop::collection::vec(1..2_000_usize, 1..8),
        small in any::<bool>(),
    ) {
        let pieces = if small { vec![1] } else { pieces };
        let mut client = Client::new(&Arc::new(client_with(&suites()[suite..=suite])), "localhost");
        let established = connect(&acceptor(), &mut client, &pieces).unwrap();
        exchange_data(&mut client, established);
    }
}
