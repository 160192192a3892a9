//! The admin port's connections: only so many, and none that says nothing for long.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// Connections at the same time; more wait in the kernel's backlog until one ends.
pub(crate) const CONNECTIONS_MAX: usize = 1_024;

/// A connection on which nothing moves for so long is closed. It is longer than the 15 seconds of
/// a usual scrape interval and than the time that HTTP clients keep a connection for reuse.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(120);

/// A listener with bounds.
pub(crate) struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
    idle_max: Duration,
}

impl Bounded {
    pub fn new(listener: TcpListener, connections_max: usize, idle_max: Duration) -> Self {
        Bounded { listener, places: Arc::new(Semaphore::new(connections_max)), idle_max }
    }
}

impl Listener for Bounded {
    type Io = Timed;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Timed, SocketAddr) {
        let place = match self.places.clone().acquire_owned().await {
            Ok(place) => place,
            // The semaphore is never closed.
            Err(_) => std::future::pending().await,
        };
        let (stream, address) = Listener::accept(&mut self.listener).await;
        // Answers are small and somebody waits for each. A socket that refuses is a slower one.
        let _ = stream.set_nodelay(true);
        let idle = Box::pin(tokio::time::sleep(self.idle_max));
        (Timed { stream, idle, idle_max: self.idle_max, _place: place }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that fails when nothing moves on it.
pub(crate) struct Timed {
    stream: TcpStream,
    idle: Pin<Box<Sleep>>,
    idle_max: Duration,
    _place: OwnedSemaphorePermit,
}

impl Timed {
    fn moved<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.idle.as_mut().reset(Instant::now() + self.idle_max);
            return poll;
        }
        self.idle.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Timed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.moved(context, poll)
    }
}

impl AsyncWrite for Timed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.moved(context, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.moved(context, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    async fn bounded(connections_max: usize, idle_max: Duration) -> (Bounded, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (Bounded::new(listener, connections_max, idle_max), address)
    }

    #[tokio::test]
    async fn a_connection_too_many_waits_for_a_place() {
        let (mut bounded, address) = bounded(1, IDLE_MAX).await;
        let _one = TcpStream::connect(address).await.unwrap();
        let _two = TcpStream::connect(address).await.unwrap();
        let (first, _) = bounded.accept().await;
        let early = tokio::time::timeout(Duration::from_millis(50), bounded.accept()).await;
        assert!(early.is_err());
        drop(first);
        let second = tokio::time::timeout(Duration::from_secs(5), bounded.accept()).await;
        assert!(second.is_ok());
    }

    #[tokio::test]
    async fn a_connection_that_says_nothing_fails() {
        let (mut bounded, address) = bounded(1, Duration::from_millis(50)).await;
        let _silent = TcpStream::connect(address).await.unwrap();
        let (mut accepted, _) = bounded.accept().await;
        let read = tokio::time::timeout(Duration::from_secs(5), accepted.read_u8()).await;
        assert_eq!(read.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
