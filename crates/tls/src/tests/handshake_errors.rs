//! Handshakes that fail: the alert that the client gets, and the error that the caller gets.

use std::sync::Arc;

use proptest::prelude::*;

use super::support::{
    ALPN, Authority, Client, NOW, acceptor, client, client_of, client_with, connect, settings,
    suites,
};
use crate::{
    Acceptor, Alert, HANDSHAKE_BYTES_MAX, HandshakeError, HandshakeErrorKind, Progress, Settings,
    Version,
};

/// Begins a handshake with these bytes. Returns the result, and the bytes that the server sends.
fn receive(bytes: &[u8]) -> (Result<Progress, HandshakeError>, Vec<u8>) {
    let mut out = Vec::new();
    (acceptor().handshake(ALPN, NOW).on_received(bytes, &mut out), out)
}

fn hello() -> Vec<u8> {
    Client::new(&Arc::new(client()), "localhost").output()
}

#[test]
fn a_client_with_other_application_protocols_is_rejected() {
    let mut config = client();
    config.alpn_protocols = vec![b"h2".to_vec(), b"mqtt".to_vec()];
    let error = connect(&acceptor(), &mut Client::new(&Arc::new(config), "localhost"), &[]);
    let error = error.unwrap_err();
    assert_eq!(error.kind, HandshakeErrorKind::Alpn);
    assert_eq!(error.alert, Some(Alert::NO_APPLICATION_PROTOCOL));
}

#[test]
fn a_client_of_a_lower_version_is_rejected() {
    let acceptor = Acceptor::new(Settings { version_min: Version::Tls13, ..settings() }).unwrap();
    let config = Arc::new(client_of(Version::Tls12, None));
    let error = connect(&acceptor, &mut Client::new(&config, "localhost"), &[]).unwrap_err();
    assert_eq!(error.kind, HandshakeErrorKind::Version);
    assert_eq!(error.alert, Some(Alert::PROTOCOL_VERSION));
    assert!(error.to_string().starts_with("version: "), "{error}");
}

#[test]
fn a_client_without_a_common_suite_is_rejected() {
    let mut settings = settings();
    settings.identities.truncate(1);
    let acceptor = Acceptor::new(settings).unwrap();
    let rsa: Vec<_> =
        suites().iter().filter(|suite| format!("{suite:?}").contains("_RSA_")).copied().collect();
    let config = Arc::new(client_with(&rsa));
    let error = connect(&acceptor, &mut Client::new(&config, "localhost"), &[]).unwrap_err();
    assert_eq!(error.kind, HandshakeErrorKind::Incompatible);
    assert_eq!(error.alert, Some(Alert::HANDSHAKE_FAILURE));
}

/// Returns a ClientHello of TLS 1.2 and below with one suite, as other libraries offer and rustls does not.
fn raw_hello(version: [u8; 2], suite: [u8; 2], compression: u8) -> Vec<u8> {
    let mut hello = version.to_vec();
    hello.extend([7; 32]);
    // No session.
    hello.push(0);
    hello.extend([0, 2, suite[0], suite[1]]);
    hello.extend([1, compression]);
    // Groups (P-256), formats of points, signatures (ECDSA with SHA-256, RSA with SHA-256), extended master secret.
    hello.extend([0, 28]);
    hello.extend([0, 10, 0, 4, 0, 2, 0, 23]);
    hello.extend([0, 11, 0, 2, 1, 0]);
    hello.extend([0, 13, 0, 6, 0, 4, 4, 3, 4, 1]);
    hello.extend([0, 23, 0, 0]);
    let length = hello.len() as u8;
    [&[22, 3, 1, 0, length + 4, 1, 0, 0, length][..], &hello].concat()
}

#[test]
fn versions_suites_and_compression_that_are_not_safe_are_rejected() {
    const ECDHE_ECDSA_AES_128_GCM: [u8; 2] = [0xc0, 0x2b];
    let (accepted, out) = receive(&raw_hello([3, 3], ECDHE_ECDSA_AES_128_GCM, 0));
    assert!(matches!(accepted, Ok(Progress::Pending)) && out[0] == 22, "{accepted:?}");
    let rejected = |hello: Vec<u8>| {
        let (result, out) = receive(&hello);
        let error = result.unwrap_err();
        assert_eq!(out, [21, 3, 3, 0, 2, 2, error.alert.unwrap().0], "{error}");
        (error.kind, error.alert.unwrap())
    };
    // SSL 3, TLS 1.0 and TLS 1.1.
    for minor in 0..3 {
        let expected = (HandshakeErrorKind::Version, Alert::PROTOCOL_VERSION);
        assert_eq!(rejected(raw_hello([3, minor], ECDHE_ECDSA_AES_128_GCM, 0)), expected);
    }
    // RSA with AES-CBC, RSA with AES-GCM, ECDHE with AES-CBC, DHE with AES-GCM, RC4, no encryption.
    for suite in [[0, 0x2f], [0, 0x9c], [0xc0, 0x23], [0, 0x9e], [0xc0, 0x07], [0xc0, 0x06]] {
        let expected = (HandshakeErrorKind::Incompatible, Alert::HANDSHAKE_FAILURE);
        assert_eq!(rejected(raw_hello([3, 3], suite, 0)), expected, "{suite:02x?}");
    }
    let (kind, _) = rejected(raw_hello([3, 3], ECDHE_ECDSA_AES_128_GCM, 1));
    assert_eq!(kind, HandshakeErrorKind::Incompatible);
}

#[test]
fn a_client_that_does_not_trust_the_server_sends_an_alert() {
    for version in [Version::Tls13, Version::Tls12] {
        let signed = Authority::new("others")
            .sign(&rcgen::PKCS_ECDSA_P256_SHA256, &super::support::params(&["localhost"]));
        let acceptor =
            Acceptor::new(Settings { identities: vec![signed.identity()], ..settings() }).unwrap();
        let config = Arc::new(client_of(version, None));
        let error = connect(&acceptor, &mut Client::new(&config, "localhost"), &[]).unwrap_err();
        assert_eq!(error.kind, HandshakeErrorKind::Alert);
        assert_eq!(error.alert.unwrap().name(), "unknown_ca");
    }
}

#[test]
fn another_protocol_is_recognized_by_its_first_byte() {
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x10", b"\x00", b"\x15\x03\x03\x00\x02\x01\x00"]
    {
        let (error, out) = receive(bytes);
        assert_eq!(error.unwrap_err().kind, HandshakeErrorKind::NotTls);
        assert!(out.is_empty());
    }
}

#[test]
fn an_invalid_header_is_rejected_before_its_body_comes() {
    for (header, alert) in [
        ([22, 3, 1, 0xff, 0xff], Alert::RECORD_OVERFLOW),
        ([22, 9, 9, 0, 5], Alert::UNEXPECTED_MESSAGE),
        // SSL 2.
        ([22, 0, 2, 0, 5], Alert::UNEXPECTED_MESSAGE),
        ([22, 3, 1, 0, 0], Alert::DECODE_ERROR),
    ] {
        let (error, out) = receive(&header);
        let error = error.unwrap_err();
        assert_eq!(error.kind, HandshakeErrorKind::Protocol);
        assert_eq!(error.alert, Some(alert));
        assert_eq!(out, [21, 3, 3, 0, 2, 2, alert.0]);
    }
}

#[test]
fn an_endless_hello_is_rejected() {
    // A ClientHello with the longest length, in records of one byte and of many.
    for size in [1_usize, 100, 16_000] {
        let mut handshake = acceptor().handshake(ALPN, NOW);
        let mut out = Vec::new();
        let mut record = vec![22, 3, 1, (size >> 8) as u8, size as u8];
        record.resize(5 + size, 0);
        let mut first = record.clone();
        first[5] = 1;
        let mut sent = 0;
        let error = loop {
            let bytes = if sent == 0 { &first } else { &record };
            match handshake.on_received(bytes, &mut out) {
                Ok(_) => sent += bytes.len(),
                Err(error) => break error,
            }
            assert!(sent <= HANDSHAKE_BYTES_MAX);
        };
        assert!(out.len() == 7 && out[0] == 21, "{out:?}");
        assert_eq!(error.alert, Some(Alert::DECODE_ERROR));
        let expected = [HandshakeErrorKind::TooLarge, HandshakeErrorKind::Protocol];
        assert!(expected.contains(&error.kind), "{error}");
    }
}

#[test]
fn a_handshake_that_failed_stays_failed() {
    let mut handshake = acceptor().handshake(ALPN, NOW);
    let mut out = Vec::new();
    assert!(handshake.on_received(b"GET", &mut out).is_err());
    let error = handshake.on_received(&hello(), &mut out).unwrap_err();
    assert_eq!(error.kind, HandshakeErrorKind::Internal);
    assert!(out.is_empty());
}

#[test]
fn labels_are_unique() {
    let labels: std::collections::HashSet<_> =
        HandshakeErrorKind::ALL.iter().map(|it| it.label()).collect();
    assert_eq!(labels.len(), HandshakeErrorKind::ALL.len());
}

/// Returns whether this byte is the content type or the version in the header of a record. Receivers ignore the
/// version (RFC 8446, 5.1), and in a handshake of TLS 1.3 rustls reads the encrypted content type.
fn is_type_or_version(mut records: &[u8], mut at: usize) -> bool {
    loop {
        let record = 5 + usize::from(u16::from_be_bytes([records[3], records[4]]));
        if at < record {
            return at < 3;
        }
        (records, at) = (&records[record..], at - record);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn random_bytes_establish_nothing(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        as_record in any::<bool>(),
    ) {
        let header = [22, 3, 1, (bytes.len() >> 8) as u8, bytes.len() as u8];
        let bytes = if as_record { [&header[..], &bytes].concat() } else { bytes };
        let done = matches!(receive(&bytes).0, Ok(Progress::Done(_)));
        prop_assert!(!done);
    }

    #[test]
    fn a_changed_hello_establishes_nothing(
        at in any::<prop::sample::Index>(), bit in 0..8, version in any::<bool>(),
    ) {
        let version = if version { Version::Tls13 } else { Version::Tls12 };
        let mut client = Client::new(&Arc::new(client_of(version, None)), "localhost");
        let mut bytes = client.output();
        let at = at.index(bytes.len());
        prop_assume!(!is_type_or_version(&bytes, at));
        bytes[at] ^= 1_u8 << bit;
        let mut handshake = acceptor().handshake(ALPN, NOW);
        let mut out = Vec::new();
        if handshake.on_received(&bytes, &mut out).is_err() {
            return Ok(());
        }
        // The server may accept it, but then the transcripts differ.
        let done = client.receive(&out).is_ok()
            && matches!(handshake.on_received(&client.output(), &mut out), Ok(Progress::Done(_)));
        prop_assert!(!done);
    }

    #[test]
    fn a_changed_second_flight_establishes_nothing(
        at in any::<prop::sample::Index>(), bit in 0..8, suite in 0..suites().len(),
    ) {
        let mut client = Client::new(&Arc::new(client_with(&suites()[suite..=suite])), "localhost");
        let mut handshake = acceptor().handshake(ALPN, NOW);
        let mut out = Vec::new();
        handshake.on_received(&client.output(), &mut out).unwrap();
        client.receive(&out).unwrap();
        let mut bytes = client.output();
        let at = at.index(bytes.len());
        prop_assume!(!is_type_or_version(&bytes, at));
        bytes[at] ^= 1_u8 << bit;
        let done = matches!(handshake.on_received(&bytes, &mut out), Ok(Progress::Done(_)));
        prop_assert!(!done);
    }
}
