//! The client's side of TLS: the certificates that a client trusts, and the reasons why a handshake fails.
//!
//! A client never resumes a session, so that each connection of a load generator costs the server a full handshake.

mod failure;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
pub use trust::Trust;
use trust::TrustError;

pub use failure::TlsFailure;

use crate::http::{Connection, Layer};
use crate::url::Url;

/// The TLS configuration of clients. A clone shares it with its original.
#[derive(Clone, Debug)]
pub struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Reads the certificates that clients trust.
    ///
    /// # Errors
    /// If it finds none.
    pub fn new(trust: Trust<'_>) -> Result<Self> {
        let config = trust::client_config(trust).map_err(|error| match error {
            TrustError::NoAuthorities => {
                anyhow::anyhow!("{error}: name the file of the server's authority with --ca FILE")
            }
            error => error.into(),
        });
        let mut config = config?;
        config.resumption = Resumption::disabled();
        Ok(Self(Arc::new(config)))
    }

    /// Returns the configuration for rustls, for clients that do their own I/O.
    pub fn config(&self) -> Arc<ClientConfig> {
        self.0.clone()
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

    /// Returns the layer for blocking connections to a server; `None` if the server has no TLS.
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

/// Returns the name that a server's certificate must have.
///
/// # Errors
/// If no certificate can have it.
pub fn server_name(url: &Url) -> Result<ServerName<'static>> {
    let name = url.host_name();
    ServerName::try_from(name.to_owned())
        .with_context(|| format!("{name}: this name can't be in a certificate"))
}

/// Returns the error of a handshake, with advice.
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
