//! Why a handshake ends without a connection.

use std::fmt;

use rustls::{AlertDescription, Error, PeerIncompatible};

use crate::alert::Alert;

/// A handshake that failed. The connection is over: the caller sends the bytes in `out`, and closes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {reason}")]
pub struct HandshakeError {
    /// The cause.
    pub kind: HandshakeErrorKind,
    /// The alert that the server sends, or that the client has sent. `None` if there is no alert, or if rustls has
    /// encrypted it and does not report which one it is.
    pub alert: Option<Alert>,
    /// A sentence for the log.
    pub reason: String,
}

/// The cause of a failed handshake. Its text is a label of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandshakeErrorKind {
    /// The client does not speak TLS. Nothing is in `out`, so the caller may reply in the client's own protocol.
    NotTls,
    /// The client speaks only versions below the lowest that is allowed.
    Version,
    /// Client and server share no suite, group or signature scheme.
    Incompatible,
    /// The client offers only application protocols that the listener does not speak.
    Alpn,
    /// The server requires a certificate, and the client has none.
    NoCertificate,
    /// The client's certificate is not valid.
    Certificate,
    /// The client ended the handshake with an alert: often it does not trust the server's certificate.
    Alert,
    /// The client broke the protocol.
    Protocol,
    /// The client sent more than a handshake needs.
    TooLarge,
    /// The server is to blame.
    Internal,
}

impl HandshakeErrorKind {
    /// All kinds.
    pub const ALL: [HandshakeErrorKind; 10] = [
        HandshakeErrorKind::NotTls,
        HandshakeErrorKind::Version,
        HandshakeErrorKind::Incompatible,
        HandshakeErrorKind::Alpn,
        HandshakeErrorKind::NoCertificate,
        HandshakeErrorKind::Certificate,
        HandshakeErrorKind::Alert,
        HandshakeErrorKind::Protocol,
        HandshakeErrorKind::TooLarge,
        HandshakeErrorKind::Internal,
    ];

    /// The label of a metric.
    pub fn label(self) -> &'static str {
        match self {
            HandshakeErrorKind::NotTls => "not_tls",
            HandshakeErrorKind::Version => "version",
            HandshakeErrorKind::Incompatible => "incompatible",
            HandshakeErrorKind::Alpn => "alpn",
            HandshakeErrorKind::NoCertificate => "no_certificate",
            HandshakeErrorKind::Certificate => "certificate",
            HandshakeErrorKind::Alert => "alert",
            HandshakeErrorKind::Protocol => "protocol",
            HandshakeErrorKind::TooLarge => "too_large",
            HandshakeErrorKind::Internal => "internal",
        }
    }
}

impl fmt::Display for HandshakeErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

impl HandshakeError {
    pub(crate) fn new(
        kind: HandshakeErrorKind,
        alert: Option<Alert>,
        reason: impl Into<String>,
    ) -> Self {
        HandshakeError { kind, alert, reason: reason.into() }
    }

    pub(crate) fn internal(reason: &str) -> Self {
        Self::new(HandshakeErrorKind::Internal, None, reason)
    }

    /// Translates an error of rustls. `sent` is the alert that rustls sends for it, where it is in plain text.
    pub(crate) fn from_library(error: &Error, sent: Option<Alert>) -> Self {
        let (kind, alert) = match error {
            Error::AlertReceived(description) => {
                (HandshakeErrorKind::Alert, Some(Alert(u8::from(*description))))
            }
            Error::NoApplicationProtocol => {
                (HandshakeErrorKind::Alpn, Some(Alert::NO_APPLICATION_PROTOCOL))
            }
            Error::NoCertificatesPresented => {
                (HandshakeErrorKind::NoCertificate, sent.or(Some(Alert::CERTIFICATE_REQUIRED)))
            }
            Error::InvalidCertificate(why) => {
                let alert = Alert(u8::from(AlertDescription::from(why.clone())));
                (HandshakeErrorKind::Certificate, sent.or(Some(alert)))
            }
            Error::PeerIncompatible(
                PeerIncompatible::SupportedVersionsExtensionRequired
                | PeerIncompatible::ServerDoesNotSupportTls12Or13
                | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
                | PeerIncompatible::Tls12NotOffered
                | PeerIncompatible::Tls12NotOfferedOrEnabled,
            ) => (HandshakeErrorKind::Version, sent),
            Error::PeerIncompatible(_) => (HandshakeErrorKind::Incompatible, sent),
            Error::InappropriateMessage { .. }
            | Error::InappropriateHandshakeMessage { .. }
            | Error::InvalidMessage(_)
            | Error::PeerMisbehaved(_)
            | Error::PeerSentOversizedRecord
            | Error::DecryptError => (HandshakeErrorKind::Protocol, sent),
            _ => (HandshakeErrorKind::Internal, sent),
        };
        HandshakeError::new(kind, alert, error.to_string())
    }
}
