//! Certificates of clients.

use std::sync::Arc;

use rcgen::{CertificateParams, DnType, PKCS_ECDSA_P256_SHA256, SanType};

use super::support::{Authority, Client, acceptor, client_of, connect, exchange_data, settings};
use crate::{
    Acceptor, AcceptorError, ClientCertificates, HandshakeErrorKind, Name, PemError, Settings,
    Version,
};

fn required(authority: &Authority) -> Acceptor {
    let client_certificates = ClientCertificates::Required { authorities: authority.pem() };
    Acceptor::new(Settings { client_certificates, ..settings() }).unwrap()
}

fn optional(authority: &Authority) -> Acceptor {
    let client_certificates = ClientCertificates::Optional { authorities: authority.pem() };
    Acceptor::new(Settings { client_certificates, ..settings() }).unwrap()
}

#[test]
fn a_certificate_identifies_a_client() {
    let authority = Authority::new("clients");
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "sensor 7");
    params.subject_alt_names = vec![
        SanType::DnsName("Sensor7.test".try_into().unwrap()),
        SanType::URI("spiffe://test/sensor/7".try_into().unwrap()),
        SanType::Rfc822Name("seven@test".try_into().unwrap()),
        SanType::IpAddress("10.0.0.7".parse().unwrap()),
        SanType::IpAddress("fd00::7".parse().unwrap()),
    ];
    let signed = authority.sign(&PKCS_ECDSA_P256_SHA256, &params);
    for version in [Version::Tls13, Version::Tls12] {
        for acceptor in [required(&authority), optional(&authority)] {
            let config = Arc::new(client_of(version, Some(&signed)));
            let mut client = Client::new(&config, "localhost");
            let established = connect(&acceptor, &mut client, &[]).unwrap();
            let peer = established.client_certificate.clone().unwrap();
            assert_eq!(peer.common_name.as_deref(), Some("sensor 7"));
            assert_eq!(
                peer.names,
                [
                    Name::Host("sensor7.test".into()),
                    Name::Uri("spiffe://test/sensor/7".into()),
                    Name::Email("seven@test".into()),
                    Name::Address("10.0.0.7".parse().unwrap()),
                    Name::Address("fd00::7".parse().unwrap()),
                ]
            );
            let expected =
                aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &signed.certificate);
            assert_eq!(peer.fingerprint, expected.as_ref());
            exchange_data(&mut client, established);
        }
    }
}

#[test]
fn a_client_without_a_certificate_is_accepted_where_it_is_optional() {
    let authority = Authority::new("clients");
    for version in [Version::Tls13, Version::Tls12] {
        let config = Arc::new(client_of(version, None));
        let mut client = Client::new(&config, "localhost");
        let established = connect(&optional(&authority), &mut client, &[]).unwrap();
        assert_eq!(established.client_certificate, None);
        let mut client = Client::new(&config, "localhost");
        let error = connect(&required(&authority), &mut client, &[]).unwrap_err();
        assert_eq!(error.kind, HandshakeErrorKind::NoCertificate);
        assert_eq!(error.alert.unwrap().name(), "certificate_required");
    }
}

#[test]
fn a_certificate_of_another_authority_is_rejected_even_where_it_is_optional() {
    let (authority, other) = (Authority::new("clients"), Authority::new("clients"));
    let signed = other.sign(&PKCS_ECDSA_P256_SHA256, &CertificateParams::default());
    for version in [Version::Tls13, Version::Tls12] {
        for acceptor in [required(&authority), optional(&authority)] {
            let config = Arc::new(client_of(version, Some(&signed)));
            let error =
                connect(&acceptor, &mut Client::new(&config, "localhost"), &[]).unwrap_err();
            assert_eq!(error.kind, HandshakeErrorKind::Certificate);
        }
    }
}

#[test]
fn an_expired_certificate_is_rejected() {
    let authority = Authority::new("clients");
    let mut params = CertificateParams::default();
    params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let signed = authority.sign(&PKCS_ECDSA_P256_SHA256, &params);
    for version in [Version::Tls13, Version::Tls12] {
        let config = Arc::new(client_of(version, Some(&signed)));
        let error = connect(&required(&authority), &mut Client::new(&config, "localhost"), &[]);
        let error = error.unwrap_err();
        assert_eq!(error.kind, HandshakeErrorKind::Certificate);
        assert_eq!(error.alert.unwrap().name(), "certificate_expired");
    }
}

#[test]
fn a_certificate_that_is_not_requested_is_not_sent() {
    let signed =
        Authority::new("clients").sign(&PKCS_ECDSA_P256_SHA256, &CertificateParams::default());
    let config = Arc::new(client_of(Version::Tls13, Some(&signed)));
    let established = connect(&acceptor(), &mut Client::new(&config, "localhost"), &[]).unwrap();
    assert_eq!(established.client_certificate, None);
}

#[test]
fn invalid_settings_are_errors() {
    let with = |authorities: Vec<u8>| {
        let client_certificates = ClientCertificates::Required { authorities };
        Acceptor::new(Settings { client_certificates, ..settings() }).unwrap_err()
    };
    assert_eq!(with(Vec::new()), AcceptorError::Authorities(PemError::NoCertificate));
    let mut pem = Authority::new("clients").pem();
    pem.extend(super::support::pem("CERTIFICATE", b"none"));
    assert_eq!(with(pem), AcceptorError::InvalidAuthority(2));
    let none = Settings { identities: Vec::new(), ..settings() };
    assert_eq!(Acceptor::new(none).unwrap_err(), AcceptorError::NoIdentity);
    let text = format!("{:?}", acceptor());
    assert!(text.contains("localhost"), "{text}");
}
