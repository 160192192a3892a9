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

/// A socket of the admin port. With TLS, the first read performs the handshake, so that the limits on the time of a
/// request's head bound it, too.
pub(super) enum Socket {
    Plain(TcpStream),
    Handshake(Box<Accept<TcpStream>>),
    Tls(Box<TlsStream<TcpStream>>),
    /// The handshake failed.
    Failed,
}

impl Socket {
    /// Wraps an accepted connection. `tls` is the configuration of a port with TLS.
    pub fn new(stream: TcpStream, tls: Option<Arc<ServerConfig>>) -> Self {
        match tls {
            Some(config) => Socket::Handshake(Box::new(TlsAcceptor::from(config).accept(stream))),
            None => Socket::Plain(stream),
        }
    }

    /// Whether the connection came to a port with TLS.
    pub fn has_tls(&self) -> bool {
        !matches!(self, Socket::Plain(_))
    }

    /// Rejects a connection above the limit: writes `reply`, or a TLS alert at a port with TLS, and does not wait.
    pub fn reject(stream: &TcpStream, has_tls: bool, reply: &[u8]) {
        // The buffer of a new socket has capacity for both. A client that is gone needs neither.
        let _ = stream.try_write(if has_tls { &tls::ALERT_OVERLOADED } else { reply });
    }

    /// Performs the handshake. Returns the stream to read from and write to when it is done.
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

/// A stream without TLS, or one whose handshake is done.
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
        // Closing the socket ends a handshake that is not done.
        match &*self {
            Socket::Handshake(_) | Socket::Failed => Poll::Ready(Ok(())),
            Socket::Plain(_) | Socket::Tls(_) => {
                ready!(self.poll_open(context))?.poll_shutdown(context)
            }
        }
    }
}
