//! What a server accepts: made once, and again when its certificates or settings change.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};

use crate::callbacks::Callbacks;
use crate::certificate::Certificate;
use crate::handshake::Handshake;
use crate::identity::{AlpnChallenges, CHALLENGE_ALPN, Identities, Identity, crypto_provider};
use crate::pem::{self, PemError};
use crate::suite::Version;
use crate::tickets::{TicketKeys, Ticketer};

/// Tickets that a client of TLS 1.3 gets with each handshake. A client uses one ticket to resume, and gets the next
/// one then.
const TICKETS: usize = 1;

static ALL_VERSIONS: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
static TLS13_ONLY: &[&SupportedProtocolVersion] = &[&TLS13];

/// The mode in [`ticket_context`] for tickets of [`Acceptor::stream_config`]. The modes of handshakes are smaller
/// numbers.
const STREAM_TICKETS: u8 = 3;

/// The settings of an [`Acceptor`].
pub struct Settings {
    /// The server's certificates and keys, at least one. A client that names a host of an identity gets that
    /// identity; any other client gets the first.
    pub identities: Vec<Identity>,
    /// The lowest version that clients may speak.
    pub version_min: Version,
    /// Whether clients prove their identity by a certificate.
    pub client_certificates: ClientCertificates,
    /// The keys of tickets. All acceptors share them, and so does an acceptor that replaces another: tickets stay
    /// valid.
    pub ticket_keys: TicketKeys,
    /// Replies to the challenges of an authority. All acceptors share them.
    pub challenges: AlpnChallenges,
}

/// Whether clients prove their identity by a certificate.
pub enum ClientCertificates {
    /// The server requests no certificate.
    None,
    /// A client may have no certificate. An invalid certificate ends the handshake.
    Optional {
        /// Certificates of the authorities that sign those of clients, in PEM.
        authorities: Vec<u8>,
    },
    /// The server rejects a client without a valid certificate.
    Required {
        /// Certificates of the authorities that sign those of clients, in PEM.
        authorities: Vec<u8>,
    },
}

/// Why [`Acceptor::new`] rejects settings. Each variant is a mistake in the settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcceptorError {
    /// There is no identity.
    #[error("TLS needs a certificate and its key")]
    NoIdentity,
    /// The authorities are no PEM with certificates.
    #[error("the authorities of clients: {0}")]
    Authorities(PemError),
    /// An authority is not X.509. The number counts from 1.
    #[error(
        "the authorities of clients: certificate number {0} is not a readable X.509 certificate"
    )]
    InvalidAuthority(usize),
    /// rustls rejects the configuration that the settings give.
    #[error("TLS can't be set up: {0}")]
    Library(String),
}

/// Begins handshakes. A clone shares everything with its original.
#[derive(Clone)]
pub struct Acceptor(Arc<Inner>);

struct Inner {
    config: ServerConfig,
    identities: Arc<Identities>,
    versions: &'static [&'static SupportedProtocolVersion],
    ticket_keys: TicketKeys,
}

impl Acceptor {
    /// Makes an acceptor. This parses the certificates of authorities, and takes some milliseconds.
    ///
    /// # Errors
    /// When there is no identity, or an authority is not valid.
    pub fn new(settings: Settings) -> Result<Self, AcceptorError> {
        let Settings { identities, version_min, client_certificates, ticket_keys, challenges } =
            settings;
        if identities.is_empty() {
            return Err(AcceptorError::NoIdentity);
        }
        let provider = Arc::new(crypto_provider());
        let (verifier, context) = match &client_certificates {
            ClientCertificates::None => {
                (WebPkiClientVerifier::no_client_auth(), ticket_context(0, &[]))
            }
            ClientCertificates::Optional { authorities } => {
                client_verifier(&provider, authorities, false)?
            }
            ClientCertificates::Required { authorities } => {
                client_verifier(&provider, authorities, true)?
            }
        };
        let versions = match version_min {
            Version::Tls12 => ALL_VERSIONS,
            Version::Tls13 => TLS13_ONLY,
        };
        let identities = Arc::new(Identities::new(identities, challenges));
        let resolver = Arc::new(Callbacks::new(0, Arc::clone(&identities)));
        let ticketer = Ticketer { keys: ticket_keys.clone(), context };
        let mut config = server_config(versions, verifier, resolver, ticketer)?;
        config.enable_secret_extraction = true;
        Ok(Acceptor(Arc::new(Inner { config, identities, versions, ticket_keys })))
    }

    /// Returns the parsed certificates of the identities, in the order of the settings.
    pub fn certificates(&self) -> impl Iterator<Item = &Certificate> {
        self.0.identities.all().iter().map(Identity::certificate)
    }

    /// Returns a configuration for servers that use rustls's own streams. It has the same identities and the same
    /// keys of tickets, and requests no certificates of clients. `alpn` is as in [`Acceptor::handshake`].
    ///
    /// # Errors
    /// When rustls rejects the versions; it does not for those of [`Version`].
    pub fn stream_config(&self, alpn: &[&[u8]]) -> Result<ServerConfig, AcceptorError> {
        let verifier = WebPkiClientVerifier::no_client_auth();
        let context = ticket_context(STREAM_TICKETS, &[]);
        let ticketer = Ticketer { keys: self.0.ticket_keys.clone(), context };
        let mut config =
            server_config(self.0.versions, verifier, self.0.identities.clone(), ticketer)?;
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        Ok(config)
    }

    /// Begins the handshake of one connection.
    ///
    /// `alpn` lists the protocols that the listener speaks, the best first (RFC 7301). A client that offers only others
    /// is rejected; one that offers none is accepted. `now` is in seconds since 1970; it may be some seconds old.
    pub fn handshake(&self, alpn: &[&[u8]], now: u64) -> Box<Handshake> {
        let callbacks = Arc::new(Callbacks::new(now, Arc::clone(&self.0.identities)));
        let mut config = self.0.config.clone();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        if !self.0.identities.challenges().is_empty() {
            config.alpn_protocols.push(CHALLENGE_ALPN.to_vec());
        }
        config.cert_resolver = callbacks.clone();
        config.key_log = callbacks.clone();
        config.time_provider = callbacks.clone();
        Box::new(Handshake::new(config, callbacks))
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor").field("identities", &self.0.identities).finish_non_exhaustive()
    }
}

/// Makes the part of a configuration that is the same for all of the server's ports.
fn server_config(
    versions: &[&'static SupportedProtocolVersion],
    verifier: Arc<dyn ClientCertVerifier>,
    resolver: Arc<dyn ResolvesServerCert>,
    ticketer: Ticketer,
) -> Result<ServerConfig, AcceptorError> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(crypto_provider()))
        .with_protocol_versions(versions)
        .map_err(|error| AcceptorError::Library(error.to_string()))?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(resolver);
    // All suites are safe, and the server lists the cheapest first.
    config.ignore_client_order = true;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = Arc::new(ticketer);
    config.send_tls13_tickets = TICKETS;
    // No early data: an attacker can replay it (RFC 8446, 8).
    config.max_early_data_size = 0;
    Ok(config)
}

/// Makes the verifier of client certificates, and the context to which tickets are bound.
fn client_verifier(
    provider: &Arc<CryptoProvider>,
    authorities: &[u8],
    is_required: bool,
) -> Result<(Arc<dyn ClientCertVerifier>, [u8; 32]), AcceptorError> {
    let authorities = pem::certificates(authorities).map_err(AcceptorError::Authorities)?;
    let context = ticket_context(1 + u8::from(is_required), &authorities);
    let mut roots = RootCertStore::empty();
    for (index, authority) in authorities.into_iter().enumerate() {
        roots.add(authority).map_err(|_| AcceptorError::InvalidAuthority(index + 1))?;
    }
    let builder =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    let builder = if is_required { builder } else { builder.allow_unauthenticated() };
    let verifier = builder.build().map_err(|error| AcceptorError::Library(error.to_string()))?;
    Ok((verifier, context))
}

/// Returns a hash of what clients must prove: servers with different requirements have different hashes.
fn ticket_context(mode: u8, authorities: &[CertificateDer<'_>]) -> [u8; 32] {
    let mut hash = Context::new(&SHA256);
    hash.update(&[mode]);
    for authority in authorities {
        let authority = authority.as_ref();
        hash.update(&(authority.len() as u64).to_be_bytes());
        hash.update(authority);
    }
    let mut context = [0; 32];
    context.copy_from_slice(hash.finish().as_ref());
    context
}
