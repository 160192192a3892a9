//! A socket of the admin port, with TLS or without.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

/// The alert `internal_error` in a record of its own (RFC 8446, 6.2).
const REJECTED: [u8; 7] = [21, 3, 3, 0, 2, 2, 80];

/// A socket of the admin port. With TLS, the first read performs the handshake, so that the limits on a connection's time
/// hold for it, too.
pub(super) enum Socket {
    Plain(TcpStream),
    Handshake(Box<Accept<TcpStream>>),
    Tls(Box<TlsStream<TcpStream>>),
    /// The handshake failed.
    Failed,
}

impl Socket {
    /// A connection that was accepted. `tls` is what a port with TLS accepts connections by.
    pub fn new(stream: TcpStream, tls: Option<Arc<ServerConfig>>) -> Self {
        match tls {
            Some(config) => Socket::Handshake(Box::new(TlsAcceptor::from(config).accept(stream))),
            None => Socket::Plain(stream),
        }
    }

    /// Whether TLS encrypts the connection, or will.
    pub fn has_tls(&self) -> bool {
        !matches!(self, Socket::Plain(_))
    }

    /// Writes the reply to a connection that there is no place for, as far as a new socket takes it: `reply`, or an alert
    /// where no handshake will be.
    pub fn reject(stream: &TcpStream, has_tls: bool, reply: &[u8]) {
        // A new socket takes it whole, or nobody waits for it.
        let _ = stream.try_write(if has_tls { &REJECTED } else { reply });
    }

    /// What bytes are read from and written to, when the handshake is done.
    fn poll_open(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Pin<&mut dyn Open>>> {
        if let Socket::Handshake(accept) = self {
            match ready!(Pin::new(&mut **accept).poll(context)) {
                Ok(stream) => *self = Socket::Tls(Box::new(stream)),
                Err(error) => {
                    tracing::debug!(%error, "a TLS handshake at the admin port failed");
                    *self = Socket::Failed;
                    return Poll::Ready(Err(error));
                }
            }
        }
        match self {
            Socket::Plain(stream) => Poll::Ready(Ok(Pin::new(stream))),
            Socket::Tls(stream) => Poll::Ready(Ok(Pin::new(&mut **stream))),
            Socket::Handshake(_) => Poll::Pending,
            Socket::Failed => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

/// A socket whose handshake is done, if it has one.
trait Open: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Open for T {}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_open(context))?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(context))?.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(context))?.poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Only a read performs the handshake.
        match &*self {
            Socket::Handshake(_) | Socket::Failed => Poll::Ready(Ok(())),
            Socket::Plain(_) | Socket::Tls(_) => {
                ready!(self.poll_open(context))?.poll_flush(context)
            }
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A handshake that is not done ends with the socket.
        match &*self {
            Socket::Handshake(_) | Socket::Failed => Poll::Ready(Ok(())),
            Socket::Plain(_) | Socket::Tls(_) => {
                ready!(self.poll_open(context))?.poll_shutdown(context)
            }
        }
    }
}
