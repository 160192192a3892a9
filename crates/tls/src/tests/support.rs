//! Authorities, certificates, clients, and both sides of a connection.

use std::io::{Read, Write};
use std::sync::{Arc, LazyLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256,
    PKCS_RSA_SHA256, SignatureAlgorithm,
};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{ALL_CIPHER_SUITES, default_provider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedCipherSuite};

use crate::{
    Acceptor, AlpnChallenges, ClientCertificates, Established, HandshakeError, Identity, Progress,
    Records, Settings, TicketKeys, Version,
};

/// The time in tests, in seconds since 1970.
pub(super) const NOW: u64 = 1_800_000_000;

/// The application protocols of the server.
pub(super) const ALPN: &[&[u8]] = &[b"http/1.1"];

/// An authority that signs certificates.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(super) certificate: CertificateDer<'static>,
}

/// A certificate with its key, in DER.
pub(super) struct Signed {
    pub(super) certificate: CertificateDer<'static>,
    pub(super) key: Vec<u8>,
}

impl Authority {
    pub(super) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Authority { issuer: Issuer::new(params, key), certificate }
    }

    pub(super) fn pem(&self) -> Vec<u8> {
        pem("CERTIFICATE", &self.certificate)
    }

    /// Signs a certificate with a new key.
    pub(super) fn sign(
        &self,
        algorithm: &'static SignatureAlgorithm,
        params: &CertificateParams,
    ) -> Signed {
        self.sign_key(&KeyPair::generate_for(algorithm).unwrap(), params)
    }

    fn sign_key(&self, key: &KeyPair, params: &CertificateParams) -> Signed {
        let certificate = params.signed_by(key, &self.issuer).unwrap().der().clone();
        Signed { certificate, key: key.serialize_der() }
    }
}

impl Signed {
    pub(super) fn chain_pem(&self) -> Vec<u8> {
        pem("CERTIFICATE", &self.certificate)
    }

    pub(super) fn key_pem(&self) -> Vec<u8> {
        pem("PRIVATE KEY", &self.key)
    }

    pub(super) fn identity(&self) -> Identity {
        Identity::from_pem(&self.chain_pem(), &self.key_pem()).unwrap()
    }
}

/// The authority of servers.
pub(super) static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| Authority::new("servers"));

/// A fixed key, since a new one takes a second.
static RSA: LazyLock<Signed> = LazyLock::new(|| {
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("rsa_key.pem")).unwrap();
    let key = KeyPair::from_der_and_sign_algo(&key, &PKCS_RSA_SHA256).unwrap();
    AUTHORITY.sign_key(&key, &params(&["localhost"]))
});
static ECDSA: LazyLock<Signed> = LazyLock::new(|| server(&["localhost"]));

pub(super) fn params(hosts: &[&str]) -> CertificateParams {
    let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
    CertificateParams::new(hosts).unwrap()
}

/// A server's certificate with an ECDSA key.
pub(super) fn server(hosts: &[&str]) -> Signed {
    AUTHORITY.sign(&PKCS_ECDSA_P256_SHA256, &params(hosts))
}

pub(super) fn pem(label: &str, der: &[u8]) -> Vec<u8> {
    let mut pem = format!("-----BEGIN {label}-----\n");
    for line in STANDARD.encode(der).as_bytes().chunks(64) {
        pem.push_str(str::from_utf8(line).unwrap());
        pem.push('\n');
    }
    pem.push_str(&format!("-----END {label}-----\n"));
    pem.into_bytes()
}

/// Settings for `localhost` with keys of both kinds, without certificates of clients.
pub(super) fn settings() -> Settings {
    Settings {
        identities: vec![ECDSA.identity(), RSA.identity()],
        version_min: Version::Tls12,
        client_certificates: ClientCertificates::None,
        ticket_keys: TicketKeys::new(NOW).unwrap(),
        challenges: AlpnChallenges::default(),
    }
}

pub(super) fn acceptor() -> Acceptor {
    Acceptor::new(settings()).unwrap()
}

/// All suites of rustls. The server offers the same.
pub(super) fn suites() -> &'static [SupportedCipherSuite] {
    ALL_CIPHER_SUITES
}

/// A client with these suites only. It trusts the authority, and offers `http/1.1`.
pub(super) fn client_with(suites: &[SupportedCipherSuite]) -> ClientConfig {
    client_as(suites, None)
}

/// Returns the same configuration as `client_with`, with this client certificate if there is one.
pub(super) fn client_as(suites: &[SupportedCipherSuite], signed: Option<&Signed>) -> ClientConfig {
    let provider = CryptoProvider { cipher_suites: suites.to_vec(), ..default_provider() };
    let mut roots = RootCertStore::empty();
    roots.add(AUTHORITY.certificate.clone()).unwrap();
    let versions: Vec<_> = [&rustls::version::TLS13, &rustls::version::TLS12]
        .into_iter()
        .filter(|version| suites.iter().any(|suite| suite.version() == *version))
        .collect();
    let builder = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&versions)
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match signed {
        None => builder.with_no_client_auth(),
        Some(signed) => {
            let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signed.key.clone()));
            builder.with_client_auth_cert(vec![signed.certificate.clone()], key).unwrap()
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

pub(super) fn client() -> ClientConfig {
    client_with(suites())
}

/// A client with this version only.
pub(super) fn client_of(version: Version, signed: Option<&Signed>) -> ClientConfig {
    let suites: Vec<_> = suites()
        .iter()
        .filter(|suite| suite.tls13().is_some() == (version == Version::Tls13))
        .copied()
        .collect();
    client_as(&suites, signed)
}

/// The client's side of a connection.
pub(super) struct Client(pub(super) ClientConnection);

impl Client {
    pub(super) fn new(config: &Arc<ClientConfig>, host: &str) -> Self {
        let host = ServerName::try_from(host.to_owned()).unwrap();
        Client(ClientConnection::new(Arc::clone(config), host).unwrap())
    }

    /// Returns everything that the client sends now.
    pub(super) fn output(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.0.wants_write() {
            self.0.write_tls(&mut bytes).unwrap();
        }
        bytes
    }

    /// Sends `data`, and returns the bytes.
    pub(super) fn send(&mut self, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in data.chunks(8_192) {
            self.0.writer().write_all(piece).unwrap();
            bytes.extend(self.output());
        }
        bytes
    }

    /// Receives bytes of the server, and returns the data in them.
    pub(super) fn receive(&mut self, mut bytes: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        let mut data = Vec::new();
        while !bytes.is_empty() {
            self.0.read_tls(&mut bytes).unwrap();
            self.0.process_new_packets()?;
            // The reader reports an error while the connection is open.
            let _ = self.0.reader().read_to_end(&mut data);
        }
        Ok(data)
    }
}

/// Performs a handshake. The server receives the client's bytes in pieces of these sizes, repeated.
pub(super) fn connect(
    acceptor: &Acceptor,
    client: &mut Client,
    pieces: &[usize],
) -> Result<Established, HandshakeError> {
    connect_at(acceptor, client, pieces, NOW)
}

pub(super) fn connect_at(
    acceptor: &Acceptor,
    client: &mut Client,
    pieces: &[usize],
    now: u64,
) -> Result<Established, HandshakeError> {
    let mut handshake = acceptor.handshake(ALPN, now);
    let mut pieces = pieces.iter().copied().filter(|piece| *piece > 0).cycle();
    for _ in 0..10 {
        let bytes = client.output();
        let (mut rest, mut out) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            let piece = pieces.next().unwrap_or(usize::MAX).min(rest.len());
            let (next, behind) = rest.split_at(piece);
            rest = behind;
            let progress = handshake.on_received(next, &mut out);
            if let Ok(Progress::Done(mut established)) = progress {
                established.unread.extend_from_slice(rest);
                client.receive(&out).unwrap();
                return Ok(*established);
            }
            if let Err(error) = progress {
                // The alert fails the client, too.
                let _ = client.receive(&out);
                return Err(error);
            }
        }
        if let Err(error) = client.receive(&out) {
            // The client sends an alert.
            let result = handshake.on_received(&client.output(), &mut Vec::new());
            return Err(result.expect_err(&error.to_string()));
        }
    }
    panic!("the handshake does not end");
}

/// The server's side of an open connection.
pub(super) struct Server {
    pub(super) records: Records,
    pub(super) pending: Vec<u8>,
}

impl Server {
    pub(super) fn new(records: Records) -> Self {
        Server { records, pending: Vec::new() }
    }

    /// Receives bytes of the client, and returns the data in them and what it sends.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let (mut plain, mut out) = (Vec::new(), Vec::new());
        let opened =
            self.records.open(&mut self.pending, &mut bytes.to_vec(), &mut plain, &mut out);
        opened.unwrap();
        (plain, out)
    }

    pub(super) fn send(&mut self, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let expected = self.records.sealed_len(data.len());
        self.records.seal(data, &mut out).unwrap();
        assert_eq!(out.len(), expected);
        out
    }
}

/// Sends data in both directions.
pub(super) fn exchange_data(client: &mut Client, established: Established) -> Server {
    let mut server = Server::new(established.records);
    let (mut received, reply) = server.receive(&established.unread);
    client.receive(&reply).unwrap();
    received.extend(server.receive(&client.send(b"from the client")).0);
    assert_eq!(received, b"from the client");
    let bytes = server.send(b"from the server");
    assert_eq!(client.receive(&bytes).unwrap(), b"from the server");
    server
}
