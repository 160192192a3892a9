//! TLS for tests: an authority, certificates in files, clients of rustls, and a tunnel for clients without TLS.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};

use super::{Scratch, Server, TIMEOUT};

/// A TLS connection by rustls.
pub type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// A certificate authority, and a folder with its certificate (`ca.pem`) and the server's (`server.pem`,
/// `server.key`).
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
    folder: Scratch,
}

impl Authority {
    /// Creates an authority, with a certificate for `localhost` and `127.0.0.1`.
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "an authority of tests");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let folder = Scratch::new("tls");
        folder.write("ca.pem", &pem("CERTIFICATE", certificate.der()));
        let authority = Authority { issuer: Issuer::new(params, key), certificate, folder };
        authority.sign("server", &["localhost", "127.0.0.1"], 2099);
        authority
    }

    /// Writes `NAME.pem` and `NAME.key`: a certificate for these hosts, valid until the end of a year.
    pub fn sign(&self, name: &str, hosts: &[&str], year: i32) {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).into()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 12, 31);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        // Renames the files, so that the server never reads half a file.
        self.folder.write("new.key", &pem("PRIVATE KEY", &key.serialize_der()));
        self.folder.write("new.pem", &pem("CERTIFICATE", certificate.der()));
        std::fs::rename(self.path("new.key"), self.path(&format!("{name}.key"))).unwrap();
        std::fs::rename(self.path("new.pem"), self.path(&format!("{name}.pem"))).unwrap();
    }

    /// Writes `NAME.pem` and `NAME.key`: a client's certificate with this common name, or without one for `""`.
    pub fn sign_user(&self, name: &str, common_name: &str) {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if !common_name.is_empty() {
            params.distinguished_name.push(DnType::CommonName, common_name);
        }
        params.not_after = rcgen::date_time_ymd(2099, 12, 31);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        self.folder.write(&format!("{name}.key"), &pem("PRIVATE KEY", &key.serialize_der()));
        self.folder.write(&format!("{name}.pem"), &pem("CERTIFICATE", certificate.der()));
    }

    /// Returns the path of a file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the settings of a server with TLS at ports of its choice.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let path = |name: &str| self.path(name).display().to_string();
        vec![
            ("THRONG_CLIENT_LISTEN_TLS", "127.0.0.1:0".into()),
            ("THRONG_TLS_CERTIFICATE_FILE", path("server.pem")),
            ("THRONG_TLS_KEY_FILE", path("server.key")),
        ]
    }

    /// Starts a server with TLS and these settings.
    pub fn server(&self, flags: &[&str], settings: &[(&str, &str)]) -> Server {
        let tls = self.settings();
        let tls = tls.iter().map(|(name, value)| (*name, value.as_str()));
        Server::with(flags, &tls.chain(settings.iter().copied()).collect::<Vec<_>>())
    }

    /// Returns the authorities that a rustls client trusts.
    pub fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        roots
    }

    /// Returns the configuration of a rustls client.
    pub fn client_config(&self) -> Arc<ClientConfig> {
        let builder = ClientConfig::builder().with_root_certificates(self.roots());
        Arc::new(builder.with_no_client_auth())
    }

    /// Returns the configuration of a rustls server with a certificate that [`Authority::sign`] wrote.
    pub fn server_config(&self, name: &str) -> Arc<ServerConfig> {
        let certificate = CertificateDer::from_pem_file(self.path(&format!("{name}.pem"))).unwrap();
        let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).unwrap();
        let builder = ServerConfig::builder().with_no_client_auth();
        Arc::new(builder.with_single_cert(vec![certificate], key).unwrap())
    }

    /// Connects, and performs the handshake.
    pub fn connect(&self, address: SocketAddr) -> TlsStream {
        connect_with(&self.client_config(), address)
    }
}

/// Returns a file in PEM (RFC 7468).
fn pem(label: &str, der: &[u8]) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// Connects with this configuration, and performs the handshake.
pub fn connect_with(config: &Arc<ClientConfig>, address: SocketAddr) -> TlsStream {
    let name = ServerName::try_from("localhost").unwrap();
    let mut connection = ClientConnection::new(config.clone(), name).unwrap();
    let mut socket = super::connect(address);
    while connection.is_handshaking() {
        connection.complete_io(&mut socket).unwrap();
    }
    StreamOwned::new(connection, socket)
}

/// Reads until this text has arrived, and returns everything that arrived.
pub fn read_until(stream: &mut TlsStream, end: &str) -> String {
    let mut text = String::new();
    while !text.contains(end) {
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "{text}");
        text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    text
}

/// Sends a request, and reads the response to its end. The request asks the server to close.
pub fn exchange(stream: &mut TlsStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Returns an address through which clients without TLS reach a server with TLS, until the process ends.
pub fn tunnel(config: Arc<ClientConfig>, to: SocketAddr) -> SocketAddr {
    relay(to, move |plain, socket| {
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(config.clone(), name).unwrap();
        pump(plain, socket, connection.into());
    })
}

/// Returns an address through which clients with TLS reach a server without, until the process ends.
pub fn terminate(config: Arc<ServerConfig>, to: SocketAddr) -> SocketAddr {
    relay(to, move |socket, plain| {
        pump(plain, socket, ServerConnection::new(config.clone()).unwrap().into());
    })
}

/// Accepts connections, and opens one to this address for each. `pump` copies bytes between the two, and both are
/// closed when it returns. Returns the address of the listener.
fn relay(
    to: SocketAddr,
    pump: impl Fn(&TcpStream, &TcpStream) + Send + Sync + 'static,
) -> SocketAddr {
    let pump = Arc::new(pump);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for accepted in listener.incoming().map_while(Result::ok) {
            let pump = pump.clone();
            std::thread::spawn(move || {
                // A server that rejects the connection closes it.
                let Ok(opened) = TcpStream::connect(to) else { return };
                pump(&accepted, &opened);
                let _ = accepted.shutdown(std::net::Shutdown::Both);
                let _ = opened.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    address
}

/// Bytes that a tunnel holds in each direction.
const TUNNEL_BYTES: usize = 16 << 10;

/// Copies bytes both ways until a side has ended. A side that reads slowly delays the other one.
fn pump(plain: &TcpStream, socket: &TcpStream, mut connection: rustls::Connection) {
    plain.set_nonblocking(true).unwrap();
    socket.set_nonblocking(true).unwrap();
    let _ = (plain.set_nodelay(true), socket.set_nodelay(true));
    // Small buffers, so that the server notices a client that does not read.
    sockopt::set_socket_send_buffer_size(plain, TUNNEL_BYTES).unwrap();
    let mut received: Vec<u8> = Vec::new();
    let mut buffer = vec![0; TUNNEL_BYTES];
    let would_block = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
    let (mut has_left, mut has_ended) = (false, false);
    loop {
        let mut of_plain = PollFlags::empty();
        let mut of_socket = PollFlags::empty();
        of_plain.set(PollFlags::IN, !has_left && !connection.wants_write());
        of_plain.set(PollFlags::OUT, !received.is_empty());
        of_socket.set(PollFlags::IN, !has_ended && received.is_empty());
        of_socket.set(PollFlags::OUT, connection.wants_write());
        let mut ready = [PollFd::new(plain, of_plain), PollFd::new(socket, of_socket)];
        let timeout = TIMEOUT.saturating_mul(10).try_into().unwrap();
        if !poll(&mut ready, Some(&timeout)).is_ok_and(|ready| ready > 0) {
            return;
        }
        if of_plain.contains(PollFlags::IN) {
            match (&*plain).read(&mut buffer) {
                Ok(0) => {
                    has_left = true;
                    connection.send_close_notify();
                }
                Ok(read) => connection.writer().write_all(&buffer[..read]).unwrap(),
                Err(error) if would_block(&error) => {}
                Err(_) => return,
            }
        }
        while connection.wants_write() {
            match connection.write_tls(&mut &*socket) {
                Ok(_) => {}
                Err(error) if would_block(&error) => break,
                Err(_) => return,
            }
        }
        if of_socket.contains(PollFlags::IN) {
            match connection.read_tls(&mut &*socket) {
                Ok(0) => has_ended = true,
                Ok(_) => {}
                Err(error) if would_block(&error) => {}
                Err(_) => return,
            }
            let Ok(state) = connection.process_new_packets() else { return };
            received.resize(state.plaintext_bytes_to_read(), 0);
            connection.reader().read_exact(&mut received).unwrap();
            has_ended |= state.peer_has_closed();
        }
        while !received.is_empty() {
            match (&*plain).write(&received) {
                Ok(written) => drop(received.drain(..written)),
                Err(error) if would_block(&error) => break,
                Err(_) => return,
            }
        }
        if has_ended && received.is_empty() {
            return;
        }
    }
}
