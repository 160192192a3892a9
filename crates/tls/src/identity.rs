//! The server's certificates and keys, and which of them a client gets.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustls::SignatureScheme;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::certificate::Certificate;
use crate::pem::{self, PemError};

/// A chain of certificates, and the private key of the first.
#[derive(Clone)]
pub struct Identity {
    certified: Arc<CertifiedKey>,
    certificate: Certificate,
}

/// Why a chain and a key give no identity. Each variant is a mistake in the files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The chain is no PEM with certificates.
    #[error("the certificate: {0}")]
    Chain(PemError),
    /// The key is no PEM with a private key.
    #[error("the key: {0}")]
    Key(PemError),
    /// A certificate of the chain is not X.509. The number counts from 1.
    #[error(
        "the certificate: number {0} in it can't be read as X.509: get it from its authority again"
    )]
    InvalidCertificate(usize),
    /// The key can't be parsed, or is of a kind that TLS does not use.
    #[error(
        "the key: it can't be read, or it is of a kind that is not supported: use RSA (2,048 bits or more), \
         ECDSA (P-256, P-384, P-521) or Ed25519"
    )]
    KeyKind,
    /// The key belongs to another certificate.
    #[error("the key does not belong to the certificate: both must come from the same request")]
    Mismatch,
    /// The key belongs to a later certificate of the chain. The number counts from 1.
    #[error(
        "the key belongs to certificate number {0} of the chain: the server's own certificate \
         comes first, then the one that signed it, and so on"
    )]
    Order(usize),
}

impl Identity {
    /// Reads a chain in PEM, the server's own certificate first, and its key in PEM. Both may be the same bytes.
    ///
    /// An expired certificate is no error, and neither is a certificate without a known authority:
    /// [`Identity::certificate`] has the end of its validity.
    ///
    /// # Errors
    /// When a certificate or the key is missing or damaged, the key is of an unsupported kind, or it does not belong to
    /// the first certificate.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, IdentityError> {
        let chain = pem::certificates(chain).map_err(IdentityError::Chain)?;
        let key = pem::key(key).map_err(IdentityError::Key)?;
        let mut certificate = None;
        for (index, der) in chain.iter().enumerate().rev() {
            let parsed = Certificate::parse(der);
            certificate = Some(parsed.ok_or(IdentityError::InvalidCertificate(index + 1))?);
        }
        let certificate = certificate.ok_or(IdentityError::Chain(PemError::NoCertificate))?;
        let key = crypto_provider().key_provider.load_private_key(key);
        let key = key.map_err(|_| IdentityError::KeyKind)?;
        let matches_key = |der| CertifiedKey::new(vec![der], Arc::clone(&key)).keys_match().is_ok();
        match chain.iter().position(|der| matches_key(der.clone())) {
            Some(0) => {}
            Some(index) => return Err(IdentityError::Order(index + 1)),
            None => return Err(IdentityError::Mismatch),
        }
        let certified = Arc::new(CertifiedKey::new(chain, key));
        Ok(Identity { certified, certificate })
    }

    /// Returns the first certificate of the chain, parsed.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }
}

impl fmt::Debug for Identity {
    /// Prints no key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// The cryptography that rustls uses, with the suites that the server offers, the best first: AES-128 is fast and its
/// keys are short. All are AEADs with ephemeral keys (RFC 9325, 4.2).
pub(crate) fn crypto_provider() -> CryptoProvider {
    use rustls::crypto::aws_lc_rs::{cipher_suite as suites, default_provider};
    let cipher_suites = vec![
        suites::TLS13_AES_128_GCM_SHA256,
        suites::TLS13_AES_256_GCM_SHA384,
        suites::TLS13_CHACHA20_POLY1305_SHA256,
        suites::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        suites::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        suites::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        suites::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        suites::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        suites::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ];
    CryptoProvider { cipher_suites, ..default_provider() }
}

/// Certificates that reply to the challenges of an authority that verifies hosts by TLS-ALPN-01 (RFC 8737). A clone
/// shares them with its original.
#[derive(Clone, Default)]
pub struct AlpnChallenges(Arc<RwLock<HashMap<String, Arc<CertifiedKey>>>>);

/// An authority that verifies a host offers this protocol and no other (RFC 8737, 6.2).
pub const CHALLENGE_ALPN: &[u8] = b"acme-tls/1";

impl AlpnChallenges {
    /// Sets the certificate for an authority that verifies this host. The PEM has the certificate and its key. The
    /// two are not compared: rustls can't read a certificate with the critical extension of a challenge.
    ///
    /// # Errors
    /// When the certificate or the key is missing or damaged.
    pub fn set(&self, host: &str, pem: &[u8]) -> Result<(), IdentityError> {
        let chain = pem::certificates(pem).map_err(IdentityError::Chain)?;
        let key = pem::key(pem).map_err(IdentityError::Key)?;
        let key = crypto_provider().key_provider.load_private_key(key);
        let key = key.map_err(|_| IdentityError::KeyKind)?;
        self.write().insert(host.to_ascii_lowercase(), Arc::new(CertifiedKey::new(chain, key)));
        Ok(())
    }

    /// Ends all challenges.
    pub fn clear(&self) {
        self.write().clear();
    }

    /// True if no host has a challenge.
    pub(crate) fn is_empty(&self) -> bool {
        self.read().is_empty()
    }

    fn of(&self, host: &str) -> Option<Arc<CertifiedKey>> {
        self.read().get(&host.to_ascii_lowercase()).cloned()
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<String, Arc<CertifiedKey>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<String, Arc<CertifiedKey>>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for AlpnChallenges {
    /// Prints no key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.read().keys()).finish()
    }
}

/// The identities of a server, by their hosts.
pub(crate) struct Identities {
    all: Vec<Identity>,
    challenges: AlpnChallenges,
    /// Positions in `all`, by host or `*.domain`. A host has several positions if its keys are of different kinds.
    by_host: HashMap<String, Vec<usize>>,
}

impl Identities {
    /// A client that names none of the hosts gets the first identity.
    pub(crate) fn new(all: Vec<Identity>, challenges: AlpnChallenges) -> Self {
        let mut by_host: HashMap<_, Vec<_>> = HashMap::new();
        for (position, identity) in all.iter().enumerate() {
            for host in identity.certificate.hosts() {
                by_host.entry(host.to_owned()).or_default().push(position);
            }
        }
        Identities { all, challenges, by_host }
    }

    pub(crate) fn all(&self) -> &[Identity] {
        &self.all
    }

    pub(crate) fn challenges(&self) -> &AlpnChallenges {
        &self.challenges
    }

    /// Returns the certificate for a client: the reply to a challenge, or the certificate of an identity.
    pub(crate) fn choose_certificate(&self, hello: &ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let is_challenge = hello.alpn().is_some_and(|mut offered| {
            offered.next() == Some(CHALLENGE_ALPN) && offered.next().is_none()
        });
        let host = hello.server_name();
        let reply = host.filter(|_| is_challenge).and_then(|host| self.challenges.of(host));
        reply.or_else(|| self.choose(host, hello.signature_schemes()))
    }

    /// Returns the identity for a client that names this host (RFC 6066, 3) and can verify these signatures. If the
    /// host has no identity, the client gets the first one, and decides whether to accept it.
    pub(crate) fn choose(
        &self,
        host: Option<&str>,
        schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        let host = host.map(str::to_ascii_lowercase);
        let exact = host.as_deref().and_then(|host| self.by_host.get(host));
        // A `*` matches one label, the first (RFC 9525, 6.3).
        let wildcard = host.as_deref().and_then(|host| host.split_once('.'));
        let wildcard = wildcard.and_then(|(_, domain)| self.by_host.get(&format!("*.{domain}")));
        let positions = exact.into_iter().chain(wildcard).flatten().copied();
        let candidates = positions.chain([0]).filter_map(|position| self.all.get(position));
        let mut keys = candidates.map(|identity| &identity.certified);
        let first = keys.clone().next();
        keys.find(|certified| certified.key.choose_scheme(schemes).is_some()).or(first).cloned()
    }
}

impl ResolvesServerCert for Identities {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.choose_certificate(&hello)
    }
}

impl fmt::Debug for Identities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.all).finish()
    }
}
