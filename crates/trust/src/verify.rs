//! Verifies a server's certificate by rules that rustls does not have.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The server certificates that are accepted.
#[derive(Debug)]
pub(super) enum Accepted {
    /// Those of the authorities in a file, and the certificates in the file themselves.
    ///
    /// rustls alone would reject a self-signed certificate from `openssl req -x509`: it is marked as an authority's,
    /// and rustls accepts no such certificate for a server.
    Listed { chains: Arc<WebPkiServerVerifier>, certificates: Vec<CertificateDer<'static>> },
    /// INSECURE: every certificate, for any host and of any time. Anyone between the client and the server can read and
    /// change all bytes.
    Any,
}

/// Verifies a server's certificate by a rule, and in each case that the server has the certificate's key. So a
/// handshake costs the same under every rule.
#[derive(Debug)]
pub(super) struct Verifier {
    pub accepted: Accepted,
    pub algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match &self.accepted {
            Accepted::Listed { chains, certificates } if !certificates.contains(certificate) => {
                return chains.verify_server_cert(certificate, intermediates, name, ocsp, now);
            }
            Accepted::Listed { .. } => {
                verify_time(certificate, now)?;
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
            }
            Accepted::Any => {}
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Checks that a certificate is valid at this time.
fn verify_time(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
        return Err(CertificateError::BadEncoding.into());
    };
    let (validity, now) = (parsed.validity(), i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    match () {
        () if now < validity.not_before.timestamp() => Err(CertificateError::NotValidYet.into()),
        () if now > validity.not_after.timestamp() => Err(CertificateError::Expired.into()),
        () => Ok(()),
    }
}
