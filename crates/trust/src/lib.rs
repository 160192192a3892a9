//! The server certificates that a client accepts: those of the host's authorities, those in a file, or all.

#![forbid(unsafe_code)]

mod verify;

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::{ClientConfig, RootCertStore};

use verify::{Accepted, Verifier};

/// The certificates that clients trust.
#[derive(Clone, Copy, Debug)]
pub enum Trust<'a> {
    /// Those of the authorities that this machine trusts.
    System,
    /// Those of the authorities in this PEM, and the certificates in it themselves.
    Pem(&'a str),
    /// INSECURE: all. Anyone between the client and the server can read and change all bytes.
    Any,
}

/// The reason why no certificate can be trusted.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The host has no authorities.
    #[error(
        "this machine has no list of trusted authorities (Debian: apt install ca-certificates)"
    )]
    NoAuthorities,
    /// The PEM can't be parsed.
    #[error("the PEM is damaged: {0}")]
    Damaged(pem::Error),
    /// A part of the PEM is labelled as a certificate and is none.
    #[error("a certificate in it is invalid: {0}")]
    Invalid(rustls::Error),
    /// The PEM has no certificate.
    #[error(
        "there is no certificate in it: it needs a part that begins with -----BEGIN CERTIFICATE-----"
    )]
    NoCertificate,
    /// TLS can't be set up.
    #[error("TLS can't be set up: {0}")]
    Tls(Box<dyn std::error::Error + Send + Sync>),
}

/// Makes the configuration of clients that trust these servers, without a certificate of their own. They speak TLS 1.2
/// and 1.3.
///
/// # Errors
/// When there is nothing to trust, or the PEM is damaged.
pub fn client_config(trust: Trust<'_>) -> Result<ClientConfig, TrustError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions().map_err(tls_error)?.dangerous();
    let algorithms = provider.signature_verification_algorithms;
    let verifier = |accepted| Arc::new(Verifier { accepted, algorithms });
    let builder = match trust {
        Trust::System => builder.with_custom_certificate_verifier(system(provider)?),
        Trust::Pem(pem) => {
            builder.with_custom_certificate_verifier(verifier(listed(pem, provider)?))
        }
        Trust::Any => builder.with_custom_certificate_verifier(verifier(Accepted::Any)),
    };
    Ok(builder.with_no_client_auth())
}

fn system(provider: Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>, TrustError> {
    let mut roots = RootCertStore::empty();
    // If an authority's file can't be read, the client rejects the servers of that authority.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(TrustError::NoAuthorities);
    }
    chains(roots, provider)
}

fn listed(pem: &str, provider: Arc<CryptoProvider>) -> Result<Accepted, TrustError> {
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(TrustError::Damaged)?;
    let mut roots = RootCertStore::empty();
    for certificate in &certificates {
        roots.add(certificate.clone()).map_err(TrustError::Invalid)?;
    }
    if certificates.is_empty() {
        return Err(TrustError::NoCertificate);
    }
    Ok(Accepted::Listed { chains: chains(roots, provider)?, certificates })
}

fn chains(
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, TrustError> {
    let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
    builder.build().map_err(tls_error)
}

fn tls_error(error: impl std::error::Error + Send + Sync + 'static) -> TrustError {
    TrustError::Tls(error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_certificate_is_refused_with_what_it_needs() {
        let error = |pem| client_config(Trust::Pem(pem)).unwrap_err().to_string();
        assert!(error("").contains("-----BEGIN CERTIFICATE-----"));
        assert!(
            error("-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n")
                .contains("damaged")
        );
        let empty = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(error(empty).contains("is invalid"));
    }
}
