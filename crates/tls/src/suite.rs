//! Versions, and the algorithms that protect records.

use std::fmt;

use aws_lc_rs::{aead, hkdf};
use rustls::CipherSuite;

/// A version of TLS. RFC 9325, 3.1.1, forbids the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// TLS 1.2, RFC 5246.
    Tls12,
    /// TLS 1.3, RFC 8446.
    Tls13,
}

impl Version {
    /// The number, `1.2` or `1.3`.
    pub fn name(self) -> &'static str {
        match self {
            Version::Tls12 => "1.2",
            Version::Tls13 => "1.3",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How records are protected. The server offers suites with these only, also in TLS 1.2 (RFC 9325, 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aead {
    /// In TLS 1.2: RFC 5288.
    Aes128Gcm,
    /// In TLS 1.2: RFC 5288.
    Aes256Gcm,
    /// In TLS 1.2: RFC 7905.
    ChaCha20Poly1305,
}

/// Bytes of the longest key, and of the longest traffic secret (SHA-384).
pub(crate) const KEY_BYTES_MAX: usize = 32;
pub(crate) const SECRET_BYTES_MAX: usize = 48;

/// Bytes of a nonce, and of the tag that follows encrypted text.
pub(crate) const NONCE_BYTES: usize = 12;
pub(crate) const TAG_BYTES: usize = 16;

impl Aead {
    pub(crate) fn algorithm(self) -> &'static aead::Algorithm {
        match self {
            Aead::Aes128Gcm => &aead::AES_128_GCM,
            Aead::Aes256Gcm => &aead::AES_256_GCM,
            Aead::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        }
    }

    pub(crate) fn key_bytes(self) -> usize {
        match self {
            Aead::Aes128Gcm => 16,
            Aead::Aes256Gcm | Aead::ChaCha20Poly1305 => 32,
        }
    }

    /// Returns true for AES-GCM: a record of TLS 1.2 then has part of its nonce in it (RFC 5288, 3).
    pub(crate) fn is_gcm(self) -> bool {
        match self {
            Aead::Aes128Gcm | Aead::Aes256Gcm => true,
            Aead::ChaCha20Poly1305 => false,
        }
    }

    /// The key derivation of the one suite of TLS 1.3 with this algorithm.
    pub(crate) fn hkdf(self) -> hkdf::Algorithm {
        match self {
            Aead::Aes128Gcm | Aead::ChaCha20Poly1305 => hkdf::HKDF_SHA256,
            Aead::Aes256Gcm => hkdf::HKDF_SHA384,
        }
    }

    /// Bytes of a traffic secret of TLS 1.3.
    pub(crate) fn secret_bytes(self) -> usize {
        match self {
            Aead::Aes128Gcm | Aead::ChaCha20Poly1305 => 32,
            Aead::Aes256Gcm => 48,
        }
    }
}

/// Returns the name of a suite at IANA. rustls has other names for the suites of TLS 1.3.
pub(crate) fn suite_name(suite: CipherSuite) -> &'static str {
    match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
        CipherSuite::TLS13_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
        other => other.as_str().unwrap_or("unknown"),
    }
}
