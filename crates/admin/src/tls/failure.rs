//! The reasons why TLS with a server fails, with advice.

use std::fmt;

use rustls::{AlertDescription, CertificateError, Error};

/// The reason why TLS with a server fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsFailure {
    /// No trusted authority has signed the server's certificate.
    UnknownAuthority,
    /// The server's certificate does not have the name in the server's URL.
    OtherName,
    /// The server's certificate has expired.
    Expired,
    /// The server's certificate becomes valid later.
    NotYetValid,
    /// The server's certificate is invalid in another way.
    InvalidCertificate,
    /// The server sends something other than TLS.
    NotTls,
    /// The server closes the connection during the handshake.
    Closed,
    /// Both sides have no version or cipher suite in common.
    NothingInCommon,
    /// The server ends the connection with the alert of this number.
    Alert(u8),
    /// The server breaks a rule of TLS, or damaged records arrive.
    Violation,
}

impl TlsFailure {
    /// Returns the failure for an error of rustls.
    pub fn of(error: &Error) -> Self {
        match error {
            Error::InvalidCertificate(error) => match error {
                // The second means an authority with the name of a trusted one and another key.
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    TlsFailure::UnknownAuthority
                }
                CertificateError::NotValidForName
                | CertificateError::NotValidForNameContext { .. } => TlsFailure::OtherName,
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    TlsFailure::Expired
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    TlsFailure::NotYetValid
                }
                // A self-signed certificate claims to be an authority's.
                CertificateError::Other(inner) if inner.0.to_string() == "CaUsedAsEndEntity" => {
                    TlsFailure::UnknownAuthority
                }
                _ => TlsFailure::InvalidCertificate,
            },
            Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => TlsFailure::NotTls,
            Error::PeerIncompatible(_) => TlsFailure::NothingInCommon,
            Error::AlertReceived(
                AlertDescription::ProtocolVersion | AlertDescription::HandshakeFailure,
            ) => TlsFailure::NothingInCommon,
            Error::AlertReceived(alert) => TlsFailure::Alert((*alert).into()),
            _ => TlsFailure::Violation,
        }
    }
}

impl fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TlsFailure::UnknownAuthority => {
                "the server's certificate is not signed by a trusted authority: name the file of \
                 its authority with --ca"
            }
            TlsFailure::OtherName => {
                "the server's certificate is for another host: write the target with a host name \
                 that is in the certificate"
            }
            TlsFailure::Expired => {
                "the server's certificate has expired: renew it, unless this machine's clock is wrong"
            }
            TlsFailure::NotYetValid => {
                "the server's certificate is not valid yet: set this machine's clock, or wait"
            }
            TlsFailure::InvalidCertificate => {
                "the server's certificate is invalid: run openssl s_client -connect HOST:PORT to \
                 see why"
            }
            TlsFailure::NotTls => {
                "the server does not speak TLS at this port: use its TLS port, or connect without \
                 TLS"
            }
            TlsFailure::Closed => {
                "the server closed the connection during the TLS handshake: does it speak TLS at \
                 this port?"
            }
            TlsFailure::NothingInCommon => {
                "the server speaks neither TLS 1.3 nor TLS 1.2 with a secure cipher suite"
            }
            TlsFailure::Alert(alert) => {
                return write!(
                    f,
                    "the server ended the handshake with the TLS alert {:?}",
                    AlertDescription::from(*alert)
                );
            }
            TlsFailure::Violation => "the server violated the TLS protocol",
        })
    }
}
