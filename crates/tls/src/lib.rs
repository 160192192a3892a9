//! The server's side of TLS 1.2 (RFC 5246) and 1.3 (RFC 8446), without sockets: bytes in, bytes out.
//!
//! An [`Acceptor`] is made from [`Settings`]: certificates, versions, and the requirements for clients. It begins a
//! [`Handshake`] for each connection, which rustls performs. When the handshake is done, rustls and its buffers are
//! dropped. Only [`Records`] remain: 224 bytes, nothing on the heap. They encrypt and decrypt data with the keys from
//! the handshake, and can be exported as bytes for another process.
//!
//! The server offers only what RFC 9325 recommends: ephemeral keys and AEADs (AES-GCM: RFC 5288, ChaCha20-Poly1305:
//! RFC 7905), no compression, no renegotiation, no early data. Clients resume sessions with tickets ([`TicketKeys`]),
//! so the server stores no sessions.
//!
//! The order of calls for one connection:
//!
//! 1. [`Acceptor::handshake`], then [`Handshake::on_received`] with each piece that the client sends, until it returns
//!    [`Progress::Done`] or an error.
//! 2. [`Records::open`] with [`Established::unread`], then with each piece that the client sends; [`Records::seal`] for
//!    data to the client; [`Records::close`] at the end.
//!
//! Each call appends the bytes to send to a buffer of the caller. The caller sends them after an error as well: they
//! may be an alert for the client.
//!
//! This crate uses no socket, clock or thread. Callers pass times in, as seconds since 1970. All input of a client
//! ends in data or in an error ([`HandshakeError`], [`RecordError`]), never in a panic.

#![forbid(unsafe_code)]
#![warn(clippy::match_wildcard_for_single_variants)]

mod acceptor;
mod alert;
mod callbacks;
mod certificate;
mod handshake;
mod handshake_error;
mod identity;
mod keys;
mod pem;
mod records;
mod suite;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod tickets;

pub use acceptor::{Acceptor, AcceptorError, ClientCertificates, Settings};
pub use alert::{ALERT_OVERLOADED, Alert};
pub use certificate::{Certificate, Name};
pub use handshake::{Established, HANDSHAKE_BYTES_MAX, Handshake, Progress};
pub use handshake_error::{HandshakeError, HandshakeErrorKind};
pub use identity::{AlpnChallenges, CHALLENGE_ALPN, Identity, IdentityError};
pub use pem::PemError;
pub use records::{
    EXPORT_BYTES_MAX, ImportError, KEY_BLOCKS_MAX, Opened, RECORD_BYTES_MAX, RECORD_DATA_BYTES_MAX,
    RECORDS_WITHOUT_DATA_MAX, RecordError, Records, WriteClosed,
};
pub use suite::Version;
pub use tickets::{TICKET_KEY_SECONDS, TICKET_SECONDS, TicketKeys, TicketKeysError};
