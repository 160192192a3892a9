//! The client's side of TLS: the certificates that a client trusts, and why a handshake fails.
//!
//! A client never resumes a session, so that each connection of a load generator costs the server a full handshake.

mod failure;
mod verify;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rustls::client::{Resumption, UnbufferedClientConnection, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

pub use failure::TlsFailure;

use crate::http::{Connection, Layer};
use crate::url::Url;

use verify::{Accepted, Verifier};

/// Whose certificates clients trust.
#[derive(Clone, Copy, Debug)]
pub enum Trust<'a> {
    /// Those of the authorities that this machine trusts.
    System,
    /// Those of the authorities in this PEM, and the certificates in it themselves.
    Pem(&'a str),
    /// All.
    Any,
}

/// The configuration by which clients speak TLS. A clone shares it with its original.
#[derive(Clone, Debug)]
pub struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Reads the certificates that clients trust.
    ///
    /// # Errors
    /// If there are none.
    pub fn new(trust: Trust<'_>) -> Result<Self> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions()?.dangerous();
        let algorithms = provider.signature_verification_algorithms;
        let verifier = |accepted| Arc::new(Verifier { accepted, algorithms });
        let builder = match trust {
            Trust::System => builder.with_custom_certificate_verifier(system(provider)?),
            Trust::Pem(pem) => {
                builder.with_custom_certificate_verifier(verifier(listed(pem, provider)?))
            }
            Trust::Any => builder.with_custom_certificate_verifier(verifier(Accepted::Any)),
        };
        let mut config = builder.with_no_client_auth();
        config.resumption = Resumption::disabled();
        Ok(Self(Arc::new(config)))
    }

    /// Begins the client's side of a connection to a server of this name.
    ///
    /// # Errors
    /// Never, with the configuration of [`Tls::new`].
    pub fn begin(
        &self,
        name: ServerName<'static>,
    ) -> Result<UnbufferedClientConnection, rustls::Error> {
        UnbufferedClientConnection::new(self.0.clone(), name)
    }

    /// The layer for blocking connections to a server; `None` where it speaks no TLS.
    ///
    /// # Errors
    /// If no certificate can have the server's name.
    pub fn layer(&self, url: &Url) -> Result<Option<Layer>> {
        if !url.is_tls {
            return Ok(None);
        }
        let (config, name) = (self.0.clone(), server_name(url)?);
        Ok(Some(Arc::new(move |mut socket| {
            let mut connection = ClientConnection::new(config.clone(), name.clone())?;
            while connection.is_handshaking() {
                connection.complete_io(&mut socket).map_err(explained)?;
            }
            Ok(Box::new(Stream(StreamOwned::new(connection, socket))))
        })))
    }
}

/// The name that a server's certificate must have.
///
/// # Errors
/// If no certificate can have it.
pub fn server_name(url: &Url) -> Result<ServerName<'static>> {
    let name = url.host_name();
    ServerName::try_from(name.to_owned())
        .with_context(|| format!("{name}: no certificate can have this name"))
}

fn system(provider: Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>> {
    let mut roots = RootCertStore::empty();
    // The client refuses a server whose authority stands in a file that can't be read.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    ensure!(
        !roots.is_empty(),
        "this machine has no list of trusted authorities (Debian: apt install ca-certificates): name the server's \
         with --ca FILE"
    );
    Ok(WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?)
}

fn listed(pem: &str, provider: Arc<CryptoProvider>) -> Result<Accepted> {
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| anyhow::anyhow!("the PEM is damaged: {error}"))?;
    let mut roots = RootCertStore::empty();
    for certificate in &certificates {
        roots.add(certificate.clone()).context("a certificate in it is invalid")?;
    }
    ensure!(
        !certificates.is_empty(),
        "there is no certificate in it: it needs a part that begins with -----BEGIN CERTIFICATE-----"
    );
    let chains = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
    Ok(Accepted::Listed { chains, certificates })
}

/// Returns the error of a handshake, with what helps.
fn explained(error: io::Error) -> anyhow::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match (inner, error.kind()) {
        (Some(inner), _) => anyhow::anyhow!("{}", TlsFailure::of(inner)),
        (None, io::ErrorKind::UnexpectedEof) => anyhow::anyhow!("{}", TlsFailure::Closed),
        (None, _) => error.into(),
    }
}

/// A blocking connection by TLS.
struct Stream(StreamOwned<ClientConnection, TcpStream>);

impl Connection for Stream {
    fn socket(&self) -> &TcpStream {
        &self.0.sock
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests;
