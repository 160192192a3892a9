//! The layer between a thread's connections and their sockets. Connections with TLS have a session here, which
//! encrypts what they send and decrypts what they receive; all others send their bytes unchanged.
//!
//! An idle session has no buffer: the thread's buffers serve all of them.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic,
};

/// Bytes that encryption adds to a short message, at most.
const OVERHEAD_BYTES: usize = 64;

/// The TLS of one connection.
struct Session {
    connection: UnbufferedClientConnection,
    /// Received bytes of an incomplete record or handshake message.
    incomplete: Vec<u8>,
    /// Encrypted bytes that the kernel has not taken.
    unsent: Vec<u8>,
    /// The handshake is done.
    is_ready: bool,
}

/// The result of received bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    /// The handshake is done.
    pub is_ready: bool,
    /// The server sends nothing more.
    pub is_closed: bool,
}

/// The TLS of a thread's connections.
#[derive(Default)]
pub(super) struct Sessions {
    /// By connection. Empty until the first one begins.
    sessions: Vec<Option<Box<Session>>>,
    /// Encrypted bytes of one message.
    encrypted: Vec<u8>,
}

impl Sessions {
    /// Begins the session of a connection: its first bytes stay queued for [`Sessions::flush`].
    pub fn begin(
        &mut self,
        index: u32,
        connection: UnbufferedClientConnection,
    ) -> Result<(), rustls::Error> {
        let (incomplete, unsent) = (Vec::new(), Vec::new());
        let mut session = Box::new(Session { connection, incomplete, unsent, is_ready: false });
        session.process(&mut [], &mut Vec::new()).1?;
        let index = index as usize;
        if self.sessions.len() <= index {
            self.sessions.resize_with(index + 1, || None);
        }
        self.sessions[index] = Some(session);
        Ok(())
    }

    /// Ends the session of a connection, if it has one.
    pub fn remove(&mut self, index: u32) {
        if let Some(session) = self.sessions.get_mut(index as usize) {
            *session = None;
        }
    }

    fn get(&mut self, index: u32) -> Option<&mut Session> {
        self.sessions.get_mut(index as usize)?.as_deref_mut()
    }

    /// Returns whether a connection has TLS.
    pub fn has(&self, index: u32) -> bool {
        self.sessions.get(index as usize).is_some_and(Option::is_some)
    }

    /// Returns whether the handshake of a connection is under way.
    pub fn is_handshaking(&self, index: u32) -> bool {
        matches!(self.sessions.get(index as usize), Some(Some(session)) if !session.is_ready)
    }

    /// Sends bytes as send(2) does, by TLS if the connection has it. With TLS it takes all of them or none: what the
    /// kernel does not take stays queued for [`Sessions::flush`].
    ///
    /// # Errors
    /// As send(2); EAGAIN while the handshake is under way or earlier bytes are queued.
    pub fn send(&mut self, index: u32, socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
        let session = self.sessions.get_mut(index as usize).and_then(Option::as_mut);
        let Some(session) = session else {
            return send(socket, bytes, SendFlags::NOSIGNAL);
        };
        session.flush(socket)?;
        let encrypted = &mut self.encrypted;
        let length = session.write(|traffic| encrypt(traffic, bytes, encrypted))?;
        let sent = match send(socket, &encrypted[..length], SendFlags::NOSIGNAL) {
            Ok(sent) => sent,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(error) => return Err(error),
        };
        session.unsent.extend_from_slice(&encrypted[sent..length]);
        Ok(bytes.len())
    }

    /// Sends the queued bytes, if the connection has TLS.
    ///
    /// # Errors
    /// As send(2); EAGAIN if some bytes stay queued.
    pub fn flush(&mut self, index: u32, socket: &OwnedFd) -> Result<(), Errno> {
        self.get(index).map_or(Ok(()), |session| session.flush(socket))
    }

    /// Takes the bytes that a connection with TLS has received, and appends the decrypted bytes to `plain`. Replies
    /// of the handshake stay queued for [`Sessions::flush`].
    ///
    /// # Errors
    /// If the handshake failed, or the server ended the connection by an alert. `plain` has the bytes from before
    /// that.
    pub fn receive(
        &mut self,
        index: u32,
        bytes: &mut [u8],
        plain: &mut Vec<u8>,
    ) -> Result<Received, rustls::Error> {
        let Some(session) = self.get(index) else { return Ok(Received::default()) };
        let mut whole = std::mem::take(&mut session.incomplete);
        let bytes = if whole.is_empty() {
            bytes
        } else {
            whole.extend_from_slice(bytes);
            &mut whole
        };
        let (used, outcome) = session.process(bytes, plain);
        let rest = &mut bytes[used..];
        let is_closed = outcome.inspect_err(|_| session.take_alert(rest))?;
        session.incomplete = rest.to_vec();
        Ok(Received { is_ready: session.is_ready, is_closed })
    }

    /// Notifies the server that the client sends nothing more. If the alert does not fit, only the close of the
    /// socket ends the connection.
    pub fn say_close(&mut self, index: u32, socket: &OwnedFd) {
        let encrypted = &mut self.encrypted;
        let session = self.sessions.get_mut(index as usize).and_then(Option::as_mut);
        if let Some(session) = session
            && session.flush(socket).is_ok()
            && let Ok(length) = session.write(|traffic| close_notify(traffic, encrypted))
        {
            let _ = send(socket, &encrypted[..length], SendFlags::NOSIGNAL);
        }
    }
}

type Traffic<'a> = WriteTraffic<'a, ClientConnectionData>;

impl Session {
    /// Takes received bytes as far as they are complete. Appends the decrypted bytes to `plain` and bytes to send to
    /// `self.unsent`. Returns how many bytes it took, and whether the server has closed its side.
    fn process(
        &mut self,
        bytes: &mut [u8],
        plain: &mut Vec<u8>,
    ) -> (usize, Result<bool, rustls::Error>) {
        let (mut used, mut is_closed) = (0, false);
        loop {
            let UnbufferedStatus { mut discard, state } =
                self.connection.process_tls_records(&mut bytes[used..]);
            let mut outcome = None;
            match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        match record {
                            Ok(record) => {
                                discard += record.discard;
                                plain.extend_from_slice(record.payload);
                            }
                            Err(error) => {
                                outcome = Some(Err(error));
                                break;
                            }
                        }
                    }
                }
                Ok(ConnectionState::EncodeTlsData(data)) => encode(data, &mut self.unsent),
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::PeerClosed) => is_closed = true,
                Ok(ConnectionState::WriteTraffic(_)) => {
                    self.is_ready = true;
                    outcome = Some(Ok(is_closed));
                }
                // `Closed` or `BlockedHandshake`: the other states belong to servers.
                Ok(_) => outcome = Some(Ok(is_closed)),
                Err(error) => outcome = Some(Err(error)),
            }
            used += discard;
            if let Some(outcome) = outcome {
                return (used, outcome);
            }
        }
    }

    /// After an error, queues the alert that notifies the server of it, for [`Session::flush`].
    fn take_alert(&mut self, bytes: &mut [u8]) {
        let state = self.connection.process_tls_records(bytes).state;
        if let Ok(ConnectionState::EncodeTlsData(data)) = state {
            encode(data, &mut self.unsent);
        }
    }

    /// Encrypts by `write`, which returns the number of encrypted bytes.
    fn write(
        &mut self,
        write: impl FnOnce(Traffic<'_>) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        if !self.is_ready {
            return Err(Errno::AGAIN);
        }
        // The session has taken all complete records, so the next state is that of the traffic.
        match self.connection.process_tls_records(&mut self.incomplete).state {
            Ok(ConnectionState::WriteTraffic(traffic)) => write(traffic),
            _ => Err(Errno::CONNABORTED),
        }
    }

    fn flush(&mut self, socket: &OwnedFd) -> Result<(), Errno> {
        while !self.unsent.is_empty() {
            match send(socket, &self.unsent, SendFlags::NOSIGNAL) {
                Ok(bytes) if bytes == self.unsent.len() => self.unsent = Vec::new(),
                Ok(bytes) => drop(self.unsent.drain(..bytes)),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Appends a record of the handshake.
fn encode(mut data: EncodeTlsData<'_, ClientConnectionData>, out: &mut Vec<u8>) {
    let before = out.len();
    let mut length = 0;
    loop {
        out.resize(before + length, 0);
        match data.encode(&mut out[before..]) {
            Err(EncodeError::InsufficientSize(needed)) => length = needed.required_size,
            Ok(_) | Err(EncodeError::AlreadyEncoded) => return,
        }
    }
}

/// Encrypts a message into the begin of `out`. Returns the number of encrypted bytes.
fn encrypt(mut traffic: Traffic<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<usize, Errno> {
    fill(out, bytes.len() + OVERHEAD_BYTES, |out| traffic.encrypt(bytes, out))
}

/// As [`encrypt`], with the alert that closes the client's side.
fn close_notify(mut traffic: Traffic<'_>, out: &mut Vec<u8>) -> Result<usize, Errno> {
    fill(out, OVERHEAD_BYTES, |out| traffic.queue_close_notify(out))
}

/// Calls `write` with a buffer, which grows until it is long enough.
fn fill(
    out: &mut Vec<u8>,
    mut length: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, EncryptError>,
) -> Result<usize, Errno> {
    loop {
        if out.len() < length {
            out.resize(length, 0);
        }
        match write(out) {
            Ok(written) => return Ok(written),
            Err(EncryptError::InsufficientSize(needed)) => length = needed.required_size,
            Err(EncryptError::EncryptExhausted) => return Err(Errno::CONNABORTED),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use rustix::net::sockopt;
    use rustls::crypto::aws_lc_rs;
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::version::{TLS12, TLS13};
    use rustls::{ServerConfig, ServerConnection, SupportedProtocolVersion};

    use super::*;
    use crate::tls::{Tls, Trust};

    /// The index of the connection that tests use.
    const INDEX: u32 = 3;

    /// A session, its socket, and the server at the socket's other end.
    struct Pair {
        sessions: Sessions,
        socket: OwnedFd,
        server: ServerConnection,
        their_socket: UnixStream,
    }

    impl Pair {
        fn new(version: &'static SupportedProtocolVersion) -> Self {
            Pair::trusting(version, Trust::Any)
        }

        fn trusting(version: &'static SupportedProtocolVersion, trust: Trust<'_>) -> Self {
            let rcgen::CertifiedKey { cert, signing_key } =
                rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
            let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
            let provider = Arc::new(aws_lc_rs::default_provider());
            let config = ServerConfig::builder_with_provider(provider)
                .with_protocol_versions(&[version])
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![cert.der().clone()], key)
                .unwrap();
            let server = ServerConnection::new(Arc::new(config)).unwrap();
            let (socket, their_socket) = UnixStream::pair().unwrap();
            socket.set_nonblocking(true).unwrap();
            their_socket.set_nonblocking(true).unwrap();
            let mut sessions = Sessions::default();
            let connection =
                Tls::new(trust).unwrap().begin(ServerName::try_from("localhost").unwrap()).unwrap();
            sessions.begin(INDEX, connection).unwrap();
            Pair { sessions, socket: socket.into(), server, their_socket }
        }

        /// Lets the server read and reply, and returns the bytes that it received.
        fn server(&mut self) -> Vec<u8> {
            let mut said = Vec::new();
            while self.server.read_tls(&mut self.their_socket).is_ok_and(|bytes| bytes > 0) {
                self.server.process_new_packets().unwrap();
                // The reader reports an empty buffer by an error.
                let _ = self.server.reader().read_to_end(&mut said);
            }
            while self.server.wants_write() {
                self.server.write_tls(&mut self.their_socket).unwrap();
            }
            said
        }

        /// Lets the client read pieces of this length, and returns the bytes that it received.
        fn client(&mut self, length: usize) -> (Vec<u8>, Received) {
            let (mut plain, mut last) = (Vec::new(), Received::default());
            let mut buffer = vec![0; length];
            while let Ok(bytes) = rustix::io::read(&self.socket, &mut buffer) {
                let taken = self.sessions.receive(INDEX, &mut buffer[..bytes], &mut plain).unwrap();
                last = Received { is_closed: last.is_closed | taken.is_closed, ..taken };
                if bytes == 0 {
                    break;
                }
            }
            (plain, last)
        }

        /// Performs the handshake; the client reads pieces of this length.
        fn handshake(&mut self, length: usize) {
            while self.sessions.is_handshaking(INDEX) {
                self.sessions.flush(INDEX, &self.socket).unwrap();
                self.server();
                self.client(length);
            }
            self.sessions.flush(INDEX, &self.socket).unwrap();
            self.server();
            self.client(length);
            assert!(!self.server.is_handshaking());
        }
    }

    #[test]
    fn both_versions_carry_bytes_both_ways_in_pieces_of_any_length() {
        for version in [&TLS12, &TLS13] {
            for length in [1, 7, 333, 16 << 10] {
                let mut pair = Pair::new(version);
                assert_eq!(pair.sessions.send(INDEX, &pair.socket, b"early"), Err(Errno::AGAIN));
                pair.handshake(length);
                assert_eq!(pair.sessions.send(INDEX, &pair.socket, b"request"), Ok(7));
                assert_eq!(pair.server(), b"request");
                pair.server.writer().write_all(&[b'x'; 50_000]).unwrap();
                pair.server();
                assert_eq!(pair.client(length).0, [b'x'; 50_000]);
                pair.server.send_close_notify();
                pair.server();
                assert!(pair.client(length).1.is_closed, "{length}");
            }
        }
    }

    #[test]
    fn an_idle_session_has_no_buffers() {
        let mut pair = Pair::new(&TLS13);
        pair.handshake(100);
        pair.server.writer().write_all(b"hello").unwrap();
        pair.server();
        assert_eq!(pair.client(2).0, b"hello");
        let session = pair.sessions.get(INDEX).unwrap();
        assert_eq!((session.incomplete.capacity(), session.unsent.capacity()), (0, 0));
        pair.sessions.remove(INDEX);
        assert!(!pair.sessions.has(INDEX) && !pair.sessions.is_handshaking(INDEX));
    }

    /// Bytes that the kernel does not take stay queued, and later ones are rejected until they are sent.
    #[test]
    fn what_a_full_socket_does_not_take_leaves_later() {
        let mut pair = Pair::new(&TLS13);
        pair.handshake(4_096);
        sockopt::set_socket_send_buffer_size(&pair.socket, 4_096).unwrap();
        let message = vec![b'm'; 300_000];
        assert_eq!(pair.sessions.send(INDEX, &pair.socket, &message), Ok(message.len()));
        assert_eq!(pair.sessions.send(INDEX, &pair.socket, b"next"), Err(Errno::AGAIN));
        let mut said = pair.server();
        while said.len() < message.len() {
            let _ = pair.sessions.flush(INDEX, &pair.socket);
            said.extend(pair.server());
        }
        assert!(said == message, "another message");
        assert_eq!(pair.sessions.send(INDEX, &pair.socket, b"next"), Ok(4));
        assert_eq!(pair.server(), b"next");
    }

    #[test]
    fn keys_are_updated_on_request_and_a_close_is_said() {
        let mut pair = Pair::new(&TLS13);
        pair.handshake(4_096);
        for _ in 0..3 {
            pair.server.refresh_traffic_keys().unwrap();
            pair.server.writer().write_all(b"new keys").unwrap();
            pair.server();
            assert_eq!(pair.client(5).0, b"new keys");
            assert_eq!(pair.sessions.send(INDEX, &pair.socket, b"seen"), Ok(4));
            assert_eq!(pair.server(), b"seen");
        }
        pair.sessions.say_close(INDEX, &pair.socket);
        pair.server.read_tls(&mut pair.their_socket).unwrap();
        assert!(pair.server.process_new_packets().unwrap().peer_has_closed());
    }

    #[test]
    fn a_server_that_speaks_no_tls_is_an_error_and_gets_an_alert() {
        let mut pair = Pair::new(&TLS13);
        let mut response = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec();
        let error = pair.sessions.receive(INDEX, &mut response, &mut Vec::new()).unwrap_err();
        assert_eq!(crate::tls::TlsFailure::of(&error), crate::tls::TlsFailure::NotTls);
        pair.sessions.flush(INDEX, &pair.socket).unwrap();
        let mut sent = vec![0; 4_096];
        let bytes = pair.their_socket.read(&mut sent).unwrap();
        let fatal = b"\x15\x03\x03\x00\x02\x02";
        assert!(sent[..bytes].windows(6).any(|window| window == fatal), "{:?}", &sent[..bytes]);
    }

    #[test]
    fn a_certificate_that_is_not_trusted_is_an_error_and_gets_an_alert() {
        let other = rcgen::generate_simple_self_signed(["other".to_owned()]).unwrap().cert;
        let text = data_encoding::BASE64.encode(other.der());
        let pem = format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
        for (version, length) in [(&TLS12, 1), (&TLS12, 4_096), (&TLS13, 1), (&TLS13, 4_096)] {
            let mut pair = Pair::trusting(version, Trust::Pem(&pem));
            pair.sessions.flush(INDEX, &pair.socket).unwrap();
            pair.server();
            let mut buffer = vec![0; length];
            let error = loop {
                let bytes = rustix::io::read(&pair.socket, &mut buffer).unwrap();
                let taken = pair.sessions.receive(INDEX, &mut buffer[..bytes], &mut Vec::new());
                if let Err(error) = taken {
                    break error;
                }
                pair.sessions.flush(INDEX, &pair.socket).unwrap();
            };
            let failure = crate::tls::TlsFailure::of(&error);
            assert_eq!(failure, crate::tls::TlsFailure::UnknownAuthority);
            pair.sessions.flush(INDEX, &pair.socket).unwrap();
            while pair.server.read_tls(&mut pair.their_socket).is_ok_and(|bytes| bytes > 0) {}
            let error = pair.server.process_new_packets().unwrap_err();
            assert!(matches!(error, rustls::Error::AlertReceived(_)), "{error}");
        }
    }

    #[test]
    fn a_connection_without_a_session_sends_as_it_is() {
        let (socket, mut other) = UnixStream::pair().unwrap();
        let mut sessions = Sessions::default();
        assert_eq!(sessions.send(0, &socket.into(), b"plain"), Ok(5));
        let mut buffer = [0; 16];
        assert_eq!(other.read(&mut buffer).unwrap(), 5);
    }
}
