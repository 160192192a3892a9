//! The handshake. rustls performs it, and is dropped with all its buffers when the records begin.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{ConnectionTrafficSecrets, HandshakeKind, ProtocolVersion, ServerConfig};

use crate::alert::Alert;
use crate::callbacks::Callbacks;
use crate::certificate::Certificate;
use crate::handshake_error::{HandshakeError, HandshakeErrorKind};
use crate::keys::Keys;
use crate::records::Records;
use crate::suite::{Aead, NONCE_BYTES, Version, suite_name};

/// The limit on the bytes that a client sends in a handshake, in all records together. Most of them are its
/// certificate chain.
pub const HANDSHAKE_BYTES_MAX: usize = 65_536;

const HEADER_BYTES: usize = 5;

/// Bytes of the longest record body that rustls accepts (RFC 5246, 6.2.3).
const BODY_BYTES_MAX: usize = 16_384 + 2_048;

/// Content types of records (RFC 8446, B.1).
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;

/// A handshake that is under way.
pub struct Handshake {
    state: State,
    callbacks: Arc<Callbacks>,
    /// Bytes that the client sent and rustls has not consumed. The first `fed_bytes` are complete records that
    /// rustls has seen.
    buffer: Vec<u8>,
    fed_bytes: usize,
    /// Bytes of all records that rustls has seen.
    total_bytes: usize,
    /// True once the server has sent anything.
    has_replied: bool,
}

enum State {
    /// The client has sent nothing. Idle connections stay in this state, so rustls is not set up yet.
    Waiting(Arc<ServerConfig>),
    Underway(Box<UnbufferedServerConnection>),
    /// The handshake succeeded or failed.
    Finished,
}

/// The state of a handshake after a call.
#[derive(Debug)]
pub enum Progress {
    /// The client must send more.
    Pending,
    /// The handshake is done.
    Done(Box<Established>),
}

/// A connection whose handshake is done.
#[derive(Debug)]
pub struct Established {
    /// Encrypts and decrypts everything after the handshake.
    pub records: Records,
    /// Bytes that the client sent after its handshake: the first for [`Records::open`].
    pub unread: Vec<u8>,
    /// The client's certificate, which one of the authorities has signed.
    pub client_certificate: Option<Certificate>,
    /// The version of TLS.
    pub version: Version,
    /// The cipher suite, by its name at IANA.
    pub suite: &'static str,
    /// True if the client resumed a session with a ticket.
    pub is_resumed: bool,
    /// The host that the client named, in lower case.
    pub server_name: Option<String>,
    /// The application protocol that both have agreed on.
    pub alpn: Option<Vec<u8>>,
}

/// What rustls needs next.
enum Step {
    /// Another call.
    Continue,
    /// Another record.
    Record,
    /// Nothing: the handshake is done.
    Done,
}

impl Handshake {
    pub(crate) fn new(config: ServerConfig, callbacks: Arc<Callbacks>) -> Self {
        Handshake {
            state: State::Waiting(Arc::new(config)),
            callbacks,
            buffer: Vec::new(),
            fed_bytes: 0,
            total_bytes: 0,
            has_replied: false,
        }
    }

    /// Takes bytes that the client sent, and appends the server's bytes to `out`. Between calls the handshake stores
    /// at most [`HANDSHAKE_BYTES_MAX`] bytes and part of a header.
    ///
    /// # Errors
    /// When the server rejects the client, or the client gives up. `out` may have an alert, which the caller sends
    /// before it closes the connection. Later calls fail as well.
    pub fn on_received(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Progress, HandshakeError> {
        self.buffer.extend_from_slice(bytes);
        let progress = self.advance(out);
        if progress.is_err() {
            self.state = State::Finished;
            self.buffer = Vec::new();
        }
        progress
    }

    /// Returns the memory of input that rustls has not consumed, in bytes.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    fn advance(&mut self, out: &mut Vec<u8>) -> Result<Progress, HandshakeError> {
        if let State::Waiting(config) = &self.state {
            match self.buffer.first() {
                None => return Ok(Progress::Pending),
                Some(&HANDSHAKE) => {}
                Some(_) => {
                    let reason = "the client doesn't speak TLS, which this port expects";
                    return Err(HandshakeError::new(HandshakeErrorKind::NotTls, None, reason));
                }
            }
            let connection = UnbufferedServerConnection::new(Arc::clone(config))
                .map_err(|error| HandshakeError::from_library(&error, None))?;
            self.state = State::Underway(Box::new(connection));
        }
        loop {
            match self.step(out)? {
                Step::Continue => {}
                Step::Record if self.feed_record(out)? => {}
                Step::Record => return Ok(Progress::Pending),
                Step::Done => return self.establish(out).map(|it| Progress::Done(Box::new(it))),
            }
        }
    }

    /// Lets rustls take one step. rustls gets one record at a time, so it never gets a record that follows the
    /// handshake.
    fn step(&mut self, out: &mut Vec<u8>) -> Result<Step, HandshakeError> {
        let State::Underway(connection) = &mut self.state else { return Err(already_finished()) };
        let status = connection.process_tls_records(&mut self.buffer[..self.fed_bytes]);
        let UnbufferedStatus { discard, state } = status;
        let step = match state {
            Ok(ConnectionState::EncodeTlsData(data)) => {
                self.has_replied = true;
                encode(data, out).map(|()| Step::Continue)
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                data.done();
                Ok(Step::Continue)
            }
            Ok(ConnectionState::BlockedHandshake) => Ok(Step::Record),
            Ok(ConnectionState::WriteTraffic(_)) => Ok(Step::Done),
            Ok(_) => {
                let reason = "the client sent data or closed before the handshake was done";
                Err(HandshakeError::new(HandshakeErrorKind::Protocol, None, reason))
            }
            Err(error) => {
                self.discard(discard);
                return Err(self.on_library_error(&error, out));
            }
        };
        self.discard(discard);
        step
    }

    /// Passes rustls one more record. Returns false if no record is complete.
    fn feed_record(&mut self, out: &mut Vec<u8>) -> Result<bool, HandshakeError> {
        let next = &self.buffer[self.fed_bytes..];
        let &[content_type, major, _, high, low, ..] = next else { return Ok(false) };
        let body_bytes = usize::from(u16::from_be_bytes([high, low]));
        let bytes = HEADER_BYTES + body_bytes;
        // An invalid header is an error at once: the handshake does not wait for the body.
        let (kind, alert, reason) = if !matches!(content_type, 20..=23) || major != 3 {
            let reason = "the client sent data that is not a TLS record";
            (HandshakeErrorKind::Protocol, Alert::UNEXPECTED_MESSAGE, reason)
        } else if body_bytes > BODY_BYTES_MAX {
            let reason = "the client sent a TLS record that exceeds the longest allowed one";
            (HandshakeErrorKind::Protocol, Alert::RECORD_OVERFLOW, reason)
        } else if self.total_bytes + bytes > HANDSHAKE_BYTES_MAX {
            let reason = "the client sent more bytes than a TLS handshake may have";
            (HandshakeErrorKind::TooLarge, Alert::DECODE_ERROR, reason)
        } else if next.len() < bytes {
            return Ok(false);
        } else {
            self.fed_bytes += bytes;
            self.total_bytes += bytes;
            return Ok(true);
        };
        if self.has_replied {
            // The alert may have to be encrypted, and only rustls has the keys.
            return Err(HandshakeError::new(kind, None, reason));
        }
        out.extend_from_slice(&[ALERT, 3, 3, 0, 2, 2, alert.0]);
        Err(HandshakeError::new(kind, Some(alert), reason))
    }

    fn discard(&mut self, bytes: usize) {
        self.buffer.drain(..bytes);
        self.fed_bytes -= bytes;
    }

    /// Appends the bytes that rustls sends because of an error, usually an alert.
    fn on_library_error(&mut self, error: &rustls::Error, out: &mut Vec<u8>) -> HandshakeError {
        let mut sent = None;
        while let State::Underway(connection) = &mut self.state
            && connection.wants_write()
        {
            let status = connection.process_tls_records(&mut self.buffer[..self.fed_bytes]);
            let Ok(ConnectionState::EncodeTlsData(data)) = status.state else { break };
            let begin = out.len();
            if let Err(error) = encode(data, out) {
                return error;
            }
            // An encrypted alert is longer, so the first pattern does not match it.
            sent = match &out[begin..] {
                [ALERT, _, _, 0, 2, _, alert] => Some(Alert(*alert)),
                _ => None,
            };
        }
        HandshakeError::from_library(error, sent)
    }

    /// Takes the keys out of rustls, and drops it.
    fn establish(&mut self, out: &mut Vec<u8>) -> Result<Established, HandshakeError> {
        let State::Underway(connection) = std::mem::replace(&mut self.state, State::Finished)
        else {
            return Err(already_finished());
        };
        if self.fed_bytes > 0 {
            let reason = "the client sent part of a message after its handshake";
            return Err(HandshakeError::new(HandshakeErrorKind::Protocol, None, reason));
        }
        let version = match connection.protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => Version::Tls12,
            Some(ProtocolVersion::TLSv1_3) => Version::Tls13,
            _ => {
                return Err(HandshakeError::internal("rustls chose a version that is not enabled"));
            }
        };
        let suite = connection
            .negotiated_cipher_suite()
            .ok_or_else(|| HandshakeError::internal("rustls names no cipher suite"))?;
        let is_resumed = connection.handshake_kind() == Some(HandshakeKind::Resumed);
        let alpn = connection.alpn_protocol().map(<[u8]>::to_vec);
        let leaf = connection.peer_certificates().and_then(|chain| chain.first()).cloned();
        let (secrets, _) = connection
            .dangerous_into_kernel_connection()
            .map_err(|error| HandshakeError::from_library(&error, None))?;
        let recorded = self.callbacks.take_recorded();
        let ((read, read_aead), (write, write_aead)) = match version {
            Version::Tls12 => (keys_tls12(secrets.rx)?, keys_tls12(secrets.tx)?),
            Version::Tls13 => (
                keys_tls13(secrets.rx, &recorded.client_secret)?,
                keys_tls13(secrets.tx, &recorded.server_secret)?,
            ),
        };
        if read_aead != write_aead {
            return Err(HandshakeError::internal("rustls uses two algorithms"));
        }
        let mut records = Records::new(version, read_aead, read, write);
        let client_certificate = match leaf {
            None => None,
            Some(leaf) => Some(self.client_certificate(&leaf).inspect_err(|error| {
                if let Some(alert) = error.alert {
                    records.alert(alert, out);
                }
            })?),
        };
        Ok(Established {
            records,
            unread: std::mem::take(&mut self.buffer),
            client_certificate,
            version,
            suite: suite_name(suite.suite()),
            is_resumed,
            server_name: recorded.server_name.map(|name| name.to_ascii_lowercase()),
            alpn,
        })
    }

    /// Parses the client's certificate. In a resumed session it comes from the ticket and rustls does not verify it
    /// again, so it may have expired since.
    fn client_certificate(&self, der: &CertificateDer<'_>) -> Result<Certificate, HandshakeError> {
        let error = |alert, reason| {
            HandshakeError::new(HandshakeErrorKind::Certificate, Some(alert), reason)
        };
        let certificate = Certificate::parse(der).ok_or_else(|| {
            error(Alert::BAD_CERTIFICATE, "the client's certificate can't be read as X.509")
        })?;
        if certificate.is_expired(self.callbacks.now()) {
            let reason = "the client's certificate has expired since it was given its ticket";
            return Err(error(Alert::CERTIFICATE_EXPIRED, reason));
        }
        Ok(certificate)
    }
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake")
            .field("buffered_bytes", &self.buffer.len())
            .field("total_bytes", &self.total_bytes)
            .finish_non_exhaustive()
    }
}

fn already_finished() -> HandshakeError {
    HandshakeError::internal("the handshake was finished already")
}

/// Appends the bytes that rustls sends.
fn encode(
    mut data: EncodeTlsData<'_, ServerConnectionData>,
    out: &mut Vec<u8>,
) -> Result<(), HandshakeError> {
    // With an empty buffer, rustls reports the size that it needs.
    let bytes = match data.encode(&mut []) {
        Err(EncodeError::InsufficientSize(needed)) => needed.required_size,
        _ => return Ok(()),
    };
    let begin = out.len();
    out.resize(begin + bytes, 0);
    data.encode(&mut out[begin..])
        .map(|_| ())
        .map_err(|error| HandshakeError::internal(&error.to_string()))
}

/// Makes keys of TLS 1.2 from the secrets that rustls extracted.
fn keys_tls12(
    (sequence, secrets): (u64, ConnectionTrafficSecrets),
) -> Result<(Keys, Aead), HandshakeError> {
    let (aead, key, iv) = extracted(&secrets)?;
    Ok((Keys::new(key, iv, sequence), aead))
}

/// Derives keys of TLS 1.3 from their secret, and compares them with the keys that rustls extracted.
fn keys_tls13(
    (sequence, secrets): (u64, ConnectionTrafficSecrets),
    secret: &[u8],
) -> Result<(Keys, Aead), HandshakeError> {
    let (aead, key, iv) = extracted(&secrets)?;
    let mismatch = || HandshakeError::internal("the secrets of rustls don't belong to its keys");
    if secret.len() != aead.secret_bytes() {
        return Err(mismatch());
    }
    let keys = Keys::with_secret(aead, secret, sequence);
    if keys.iv != iv || !keys.key.starts_with(key) {
        return Err(mismatch());
    }
    Ok((keys, aead))
}

fn extracted(
    secrets: &ConnectionTrafficSecrets,
) -> Result<(Aead, &[u8], [u8; NONCE_BYTES]), HandshakeError> {
    let (aead, key, iv) = match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Aead::Aes128Gcm, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Aead::Aes256Gcm, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (Aead::ChaCha20Poly1305, key, iv),
        _ => {
            return Err(HandshakeError::internal("rustls chose an algorithm that is not enabled"));
        }
    };
    match iv.as_ref().try_into() {
        Ok(iv) if key.as_ref().len() == aead.key_bytes() => Ok((aead, key.as_ref(), iv)),
        _ => Err(HandshakeError::internal("rustls has keys of another length")),
    }
}
