//! The admin port's connections: only so many, none that says nothing for long, and none that
//! takes for ever to say what it wants.

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

/// From the first byte of a request to the first byte of its answer. What has arrived in half of
/// this is answered, with 408 if need be; a head that dribbles in more slowly ends the connection,
/// or a few peers, without the key, could hold all places.
pub(crate) const REQUEST_MAX: Duration = Duration::from_secs(60);

/// A listener with bounds.
pub(crate) struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
    patience: Patience,
}

/// How long a connection is waited for.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// Nothing moves on it.
    pub idle_max: Duration,
    /// A request is under way.
    pub request_max: Duration,
}

impl Bounded {
    pub fn new(listener: TcpListener, connections_max: usize, patience: Patience) -> Self {
        Bounded { listener, places: Arc::new(Semaphore::new(connections_max)), patience }
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
        let patience = self.patience;
        let end = Box::pin(tokio::time::sleep(patience.idle_max));
        (Timed { stream, end, patience, asking_since: None, _place: place }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that fails when nothing moves on it, or when a request takes too long.
pub(crate) struct Timed {
    stream: TcpStream,
    /// When it fails.
    end: Pin<Box<Sleep>>,
    patience: Patience,
    /// When the first byte came that has seen no answer.
    asking_since: Option<Instant>,
    _place: OwnedSemaphorePermit,
}

impl Timed {
    fn moved<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            let idle = Instant::now() + self.patience.idle_max;
            let asked = self.asking_since.map(|since| since + self.patience.request_max);
            self.end.as_mut().reset(asked.map_or(idle, |asked| asked.min(idle)));
            return poll;
        }
        self.end.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Timed {
    fn wrote(
        &mut self,
        context: &mut Context<'_>,
        poll: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if poll.is_ready() {
            self.asking_since = None;
        }
        self.moved(context, poll)
    }
}

impl AsyncRead for Timed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.asking_since.get_or_insert_with(Instant::now);
        }
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
        self.wrote(context, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wrote(context, poll)
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn bounded(idle_ms: u64, request_ms: u64) -> (Bounded, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let patience = Patience {
            idle_max: Duration::from_millis(idle_ms),
            request_max: Duration::from_millis(request_ms),
        };
        (Bounded::new(listener, 1, patience), address)
    }

    #[tokio::test]
    async fn a_connection_too_many_waits_for_a_place() {
        let (mut bounded, address) = bounded(60_000, 60_000).await;
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
        let (mut bounded, address) = bounded(50, 60_000).await;
        let _silent = TcpStream::connect(address).await.unwrap();
        let (mut accepted, _) = bounded.accept().await;
        let read = tokio::time::timeout(Duration::from_secs(5), accepted.read_u8()).await;
        assert_eq!(read.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    /// Sends a byte every 20 ms until the other end is gone, for 4 seconds at most.
    async fn dribble(mut stream: TcpStream) {
        for _ in 0..200 {
            if stream.write_all(b"x").await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    #[tokio::test]
    async fn a_request_that_dribbles_in_fails_though_something_moves() {
        let (mut bounded, address) = bounded(1_000, 100).await;
        tokio::spawn(dribble(TcpStream::connect(address).await.unwrap()));
        let (mut accepted, _) = bounded.accept().await;
        let mut heard = Vec::new();
        let end = accepted.read_to_end(&mut heard).await.unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::TimedOut);
        assert!((1..100).contains(&heard.len()), "{}", heard.len());
    }

    #[tokio::test]
    async fn an_answer_gives_the_next_request_its_full_time() {
        let (mut bounded, address) = bounded(10_000, 500).await;
        tokio::spawn(dribble(TcpStream::connect(address).await.unwrap()));
        let (mut accepted, _) = bounded.accept().await;
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(800) {
            accepted.read_u8().await.unwrap();
            accepted.write_all(b"y").await.unwrap();
        }
    }

    #[tokio::test]
    async fn an_answer_without_end_goes_on_while_something_moves() {
        let (mut bounded, address) = bounded(300, 300).await;
        let mut peer = TcpStream::connect(address).await.unwrap();
        peer.write_all(b"x").await.unwrap();
        let (mut accepted, _) = bounded.accept().await;
        accepted.read_u8().await.unwrap();
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(900) {
            accepted.write_all(b"y").await.unwrap();
            // A server also waits for what the peer says next, or for its end.
            let more = tokio::time::timeout(Duration::from_millis(50), accepted.read_u8()).await;
            assert!(more.is_err(), "{more:?}");
        }
    }
}
