//! For tests, fuzzing and the benchmark: an acceptor, and both sides of an open connection without a handshake.

use crate::acceptor::{Acceptor, ClientCertificates, Settings};
use crate::identity::Identity;
use crate::keys::Keys;
use crate::records::Records;
use crate::suite::{Aead, NONCE_BYTES, Version};
use crate::tickets::TicketKeys;

/// A self-signed certificate for `localhost`, valid until the year 4096.
pub const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----
MIIBRDCB6qADAgECAhRtUkCJfBRFx+rBqrF5lkIo+4TXEDAKBggqhkjOPQQDAjAU
MRIwEAYDVQQDDAlsb2NhbGhvc3QwIBcNNzUwMTAxMDAwMDAwWhgPNDA5NjAxMDEw
MDAwMDBaMBQxEjAQBgNVBAMMCWxvY2FsaG9zdDBZMBMGByqGSM49AgEGCCqGSM49
AwEHA0IABFrcV95Nl8RKMW61dgrlsT184rmm0Byqx1A41wQh2E5Z9FPnCq3AoXMX
mrXibuksvOnPRPjUCVGEfH0AfzlB0kijGDAWMBQGA1UdEQQNMAuCCWxvY2FsaG9z
dDAKBggqhkjOPQQDAgNJADBGAiEApwvLf7W1os8PuMgWBbAC/mE5oAz3fwdchqnt
Xm6oi8cCIQC6ZOEtTnVF9TdqycpBTdh0yvGxWs2RI9I4Xgikpcb+tQ==
-----END CERTIFICATE-----
";

/// The key of [`CERTIFICATE`]. It is public.
pub const KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgyLJjsic4lS8bKuMV
sWXm6bZYwHnmYeOAdjH4YVoSAyuhRANCAARa3FfeTZfESjFutXYK5bE9fOK5ptAc
qsdQONcEIdhOWfRT5wqtwKFzF5q14m7pLLzpz0T41AlRhHx9AH85QdJI
-----END PRIVATE KEY-----
";

/// An acceptor with [`CERTIFICATE`] that requests no certificates; `now` is in seconds since 1970.
///
/// # Panics
/// When the kernel has no random numbers.
pub fn acceptor(now: u64) -> Acceptor {
    let identity = Identity::from_pem(CERTIFICATE.as_bytes(), KEY.as_bytes());
    let settings = Settings {
        identities: vec![identity.expect("the certificate and its key are valid")],
        version_min: Version::Tls12,
        client_certificates: ClientCertificates::None,
        ticket_keys: TicketKeys::new(now).expect("random numbers"),
        challenges: crate::AlpnChallenges::default(),
    };
    Acceptor::new(settings).expect("the settings are complete")
}

/// The parameters of [`pair`]: a version, and the index of an algorithm (AES-128-GCM, AES-256-GCM, ChaCha20-Poly1305).
pub const KINDS: [(Version, usize); 6] = [
    (Version::Tls13, 0),
    (Version::Tls13, 1),
    (Version::Tls13, 2),
    (Version::Tls12, 0),
    (Version::Tls12, 1),
    (Version::Tls12, 2),
];

/// The records of a server, and those of its client, with keys made from `seed`.
pub fn pair((version, aead): (Version, usize), seed: u8) -> (Records, Records) {
    let aead = [Aead::Aes128Gcm, Aead::Aes256Gcm, Aead::ChaCha20Poly1305][aead];
    let keys = |side: u8| {
        let secret = [seed ^ side; 48];
        match version {
            Version::Tls12 => Keys::new(&secret[..aead.key_bytes()], [side; NONCE_BYTES], 1),
            Version::Tls13 => Keys::with_secret(aead, &secret[..aead.secret_bytes()], 0),
        }
    };
    let (client, server) = (0x11, 0x22);
    (
        Records::new(version, aead, keys(client), keys(server)),
        Records::new(version, aead, keys(server), keys(client)),
    )
}

/// Appends a record of any content type with any content, as a malicious client can. `content` has at most 65,000
/// bytes.
pub fn forge(records: &mut Records, content_type: u8, content: &[u8], out: &mut Vec<u8>) {
    records.seal_record(content_type, content, out);
}

/// Updates the key of the output, as `seal` does at the key's limit. Does nothing in TLS 1.2.
pub fn update_write_key(records: &mut Records, out: &mut Vec<u8>) {
    if records.version() == Version::Tls13 {
        records.update_write_key(out);
    }
}

/// Updates the key of the output like [`update_write_key`], and requests an update from the peer.
pub fn request_key_update(records: &mut Records, out: &mut Vec<u8>) {
    if records.version() == Version::Tls13 {
        forge(records, 22, &[24, 0, 0, 1, 1], out);
        // The record of this update is not sent: the forged one takes its place.
        records.update_write_key(&mut Vec::new());
    }
}
