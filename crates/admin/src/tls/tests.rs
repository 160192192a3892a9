//! Handshakes in memory, with certificates of all kinds.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConnection, ServerConfig, ServerConnection};

use super::*;

/// A certificate, and its key.
struct Signed {
    certificate: CertificateDer<'static>,
    key: KeyPair,
}

/// The contents of a certificate.
struct Says {
    name: &'static str,
    is_authority: bool,
    years: (i32, i32),
}

const GOOD: Says = Says { name: "localhost", is_authority: false, years: (2000, 2099) };

impl Says {
    fn params(&self) -> CertificateParams {
        let mut params = CertificateParams::new(vec![self.name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, self.name);
        if self.is_authority {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        params.not_before = rcgen::date_time_ymd(self.years.0, 1, 1);
        params.not_after = rcgen::date_time_ymd(self.years.1, 1, 1);
        params
    }

    fn self_signed(&self) -> Signed {
        let key = KeyPair::generate().unwrap();
        let certificate = self.params().self_signed(&key).unwrap().der().clone();
        Signed { certificate, key }
    }

    /// Returns the certificate, signed by a new authority, and the authority's.
    fn signed(&self) -> (Signed, CertificateDer<'static>) {
        let says = Says { name: "authority", is_authority: true, years: (2000, 2099) };
        let authority = says.self_signed();
        let issuer = Issuer::new(says.params(), authority.key);
        let key = KeyPair::generate().unwrap();
        let certificate = self.params().signed_by(&key, &issuer).unwrap().der().clone();
        (Signed { certificate, key }, authority.certificate)
    }
}

fn pem(certificate: &CertificateDer<'_>) -> String {
    let text = data_encoding::BASE64.encode(certificate);
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}

/// Performs a handshake with a server that has this certificate.
fn handshake(tls: &Tls, server: &Signed) -> Result<(), TlsFailure> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = PrivateKeyDer::Pkcs8(server.key.serialize_der().into());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![server.certificate.clone()], key)
        .unwrap();
    let mut server = ServerConnection::new(Arc::new(config)).unwrap();
    let name = server_name(&Url::parse_any("https://localhost:1").unwrap()).unwrap();
    let mut client = ClientConnection::new(tls.0.clone(), name).unwrap();
    while client.is_handshaking() {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut bytes.as_slice()).unwrap();
        server.process_new_packets().unwrap();
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        client.read_tls(&mut bytes.as_slice()).unwrap();
        client.process_new_packets().map_err(|error| TlsFailure::of(&error))?;
    }
    Ok(())
}

#[test]
fn certificates_of_the_named_authority_are_trusted_and_no_others() {
    let (server, authority) = GOOD.signed();
    let (_, other) = GOOD.signed();
    let trusting = |pem: &str| Tls::new(Trust::Pem(pem)).unwrap();
    assert_eq!(handshake(&trusting(&pem(&authority)), &server), Ok(()));
    let both = pem(&other) + &pem(&authority);
    assert_eq!(handshake(&trusting(&both), &server), Ok(()));
    let refused = handshake(&trusting(&pem(&other)), &server);
    assert_eq!(refused, Err(TlsFailure::UnknownAuthority));
    assert_eq!(handshake(&Tls::new(Trust::Any).unwrap(), &server), Ok(()));
}

/// `openssl req -x509` makes such certificates, which claim to be an authority's.
#[test]
fn a_certificate_in_the_file_is_trusted_itself() {
    let other = pem(&GOOD.signed().1);
    for is_authority in [true, false] {
        let server = Says { is_authority, ..GOOD }.self_signed();
        let trusting = |pem: &str| handshake(&Tls::new(Trust::Pem(pem)).unwrap(), &server);
        assert_eq!(trusting(&pem(&server.certificate)), Ok(()));
        assert_eq!(trusting(&other), Err(TlsFailure::UnknownAuthority));
    }
}

#[test]
fn names_and_times_of_certificates_are_verified() {
    for (says, failure) in [
        (Says { name: "example.com", ..GOOD }, TlsFailure::OtherName),
        (Says { years: (2000, 2001), ..GOOD }, TlsFailure::Expired),
        (Says { years: (2098, 2099), ..GOOD }, TlsFailure::NotYetValid),
    ] {
        let (server, authority) = says.signed();
        let refused = handshake(&Tls::new(Trust::Pem(&pem(&authority))).unwrap(), &server);
        assert_eq!(refused, Err(failure), "signed by an authority");
        let server = says.self_signed();
        let itself = pem(&server.certificate);
        let refused = handshake(&Tls::new(Trust::Pem(&itself)).unwrap(), &server);
        assert_eq!(refused, Err(failure), "in the file itself");
        assert_eq!(handshake(&Tls::new(Trust::Any).unwrap(), &server), Ok(()));
    }
}

#[test]
fn a_file_without_certificates_is_an_error() {
    for (text, want) in [
        ("", "there is no certificate in it"),
        ("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", "damaged"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "invalid"),
    ] {
        let error = format!("{:#}", Tls::new(Trust::Pem(text)).unwrap_err());
        assert!(error.contains(want), "{error}");
    }
}

#[test]
fn failures_say_what_helps() {
    for (failure, want) in [
        (TlsFailure::UnknownAuthority, "--ca"),
        (TlsFailure::OtherName, "write the target with a host name that is in the certificate"),
        (TlsFailure::Expired, "renew it"),
        (TlsFailure::NotTls, "connect without TLS"),
        (TlsFailure::Alert(80), "InternalError"),
    ] {
        assert!(failure.to_string().contains(want), "{failure}");
    }
}
