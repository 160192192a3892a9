//! The admin port's listener. It limits the number of connections, how long one may be silent, and the time of a
//! request.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Sleep;

use super::admission::{AdmissionError, CloseReason, Connections, Peer, Permit};
use super::gate::Gate;
use super::socket::Socket;
use crate::certificates::Certificates;

/// Connections that may wait in the kernel to be accepted. In a burst above that, TCP lets clients try again only
/// after a second.
pub(crate) const BACKLOG: i32 = 4_096;

/// The largest head of a request, with all of a browser's cookies for localhost. The server would otherwise buffer
/// some 400 KiB for each peer that never ends one.
const HEAD_BYTES_MAX: usize = 32 << 10;

/// Connections that are accepted before other tasks run.
const ACCEPTS: u64 = 16;

/// How long accept rests after an error. Meanwhile the evicted connection is closed.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// The response to a connection above the limit.
const OVERLOADED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n\
    Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nRetry-After: 1\r\n\
    Content-Length: 133\r\nConnection: close\r\n\r\n\
    {\"error\":{\"code\":\"overloaded\",\"message\":\"all connections of the admin port are busy \
    (admin.connections_max): try again in a second\"}}";

/// The response to a connection whose head is too large.
const HEAD_TOO_LARGE: &[u8] = b"HTTP/1.1 431 Request Header Fields Too Large\r\n\
    Content-Type: application/json\r\nCache-Control: no-store\r\n\
    X-Content-Type-Options: nosniff\r\nContent-Length: 90\r\nConnection: close\r\n\r\n\
    {\"error\":{\"code\":\"head_too_large\",\"message\":\"the request head has more than 32768 bytes\"}}";

/// A listener with bounds.
pub(crate) struct Bounded {
    /// `None` after another process has taken it over.
    listener: Option<TcpListener>,
    /// The listener with TLS, and the certificates by which it accepts connections.
    tls: Option<(TcpListener, Arc<Certificates>)>,
    address: io::Result<SocketAddr>,
    connections: Arc<Connections>,
    gate: Arc<Gate>,
    accepted: u64,
}

impl Bounded {
    pub fn new(listener: TcpListener, connections: Arc<Connections>, gate: Arc<Gate>) -> Self {
        let address = listener.local_addr();
        Bounded { listener: Some(listener), tls: None, address, connections, gate, accepted: 0 }
    }

    /// Also accepts the connections of a port with TLS.
    pub fn with_tls(self, listener: TcpListener, certificates: Arc<Certificates>) -> Self {
        Bounded { tls: Some((listener, certificates)), ..self }
    }

    /// Accepts the next connection of either port. Waits for ever when another process has taken the listeners over.
    async fn next(&mut self) -> io::Result<Accepted> {
        while let Some(listener) = &self.listener {
            let tls = self.tls.as_ref();
            let accept_tls = async {
                match tls {
                    Some((listener, _)) => listener.accept().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                accepted = listener.accept() => {
                    let (stream, address) = accepted?;
                    return Ok(Accepted { stream, address, tls: None });
                }
                accepted = accept_tls => {
                    let (stream, address) = accepted?;
                    let tls = tls.and_then(|(_, certificates)| certificates.config());
                    // Without a certificate the connection is closed: a reply in plain would leak.
                    if tls.is_some() {
                        return Ok(Accepted { stream, address, tls });
                    }
                }
                () = self.gate.forwarded() => break,
            }
        }
        (self.listener, self.tls) = (None, None);
        std::future::pending().await
    }
}

/// A connection that was accepted.
struct Accepted {
    stream: TcpStream,
    address: SocketAddr,
    /// The configuration of the port, if that is one with TLS.
    tls: Option<Arc<rustls::ServerConfig>>,
}

impl Listener for Bounded {
    type Io = Timed;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Timed, SocketAddr) {
        loop {
            let Accepted { stream, address, tls } = match self.next().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "the admin port could not accept a connection");
                    self.connections.evict_one();
                    tokio::time::sleep(ACCEPT_REST).await;
                    continue;
                }
            };
            let permit = loop {
                match self.connections.admit(address.ip()) {
                    Ok(permit) => break Some(permit),
                    Err(AdmissionError::Until(then)) => tokio::time::sleep_until(then).await,
                    Err(AdmissionError::Never) => break None,
                }
            };
            let Some(permit) = permit else {
                Socket::reject(&stream, tls.is_some(), OVERLOADED);
                continue;
            };
            self.accepted += 1;
            if permit.is_pressed || self.accepted.is_multiple_of(ACCEPTS) {
                // Accepted connections send their requests before the next ones evict them.
                tokio::task::yield_now().await;
            }
            // Responses are small, and a client waits for each. A socket without the option is only slower.
            let _ = stream.set_nodelay(true);
            return (Timed::new(Socket::new(stream, tls), permit), address);
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.address {
            Ok(address) => Ok(*address),
            Err(error) => Err(error.kind().into()),
        }
    }
}

/// For requests: the connection that they came on, the peer's address, and whether the connection has TLS.
#[derive(Clone)]
pub(crate) struct On(pub Arc<Peer>, pub SocketAddr, pub bool);

impl Connected<IncomingStream<'_, Bounded>> for On {
    fn connect_info(stream: IncomingStream<'_, Bounded>) -> Self {
        let Timed { permit, stream: socket, .. } = stream.io();
        On(permit.peer.clone(), *stream.remote_addr(), socket.has_tls())
    }
}

/// A connection that fails if no bytes move, if a request takes too long, or if it is evicted for another.
pub(crate) struct Timed {
    stream: Socket,
    /// Wakes the task that checks the deadline.
    end: Pin<Box<Sleep>>,
    permit: Permit,
}

impl Timed {
    fn new(stream: Socket, permit: Permit) -> Self {
        let end = Box::pin(tokio::time::sleep_until(permit.peer.deadline().0));
        Timed { stream, end, permit }
    }

    fn peer(&self) -> &Peer {
        &self.permit.peer
    }

    /// Ends a waiting connection if its time is over or it is evicted.
    fn waits<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if self.peer().is_evicted(context.waker()) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        loop {
            let (deadline, reason) = self.peer().deadline();
            if self.end.deadline() != deadline {
                self.end.as_mut().reset(deadline);
            }
            if self.end.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            // The connection's phase may have changed since, and its deadline with it.
            if self.peer().deadline().0 <= deadline {
                self.permit.connections.count(reason);
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
    }

    fn wrote(
        &mut self,
        context: &mut Context<'_>,
        poll: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if poll.is_ready() {
            self.peer().sent();
            return poll;
        }
        self.stuck(context)
    }

    /// The client does not read what was written. With TLS the flush notices it, not the write.
    fn stuck<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.peer().set_stuck();
        self.waits(context)
    }
}

impl AsyncRead for Timed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.peer().head_bytes() > HEAD_BYTES_MAX {
            if !self.peer().has_replies() {
                let _ = Pin::new(&mut self.stream).poll_write(context, HEAD_TOO_LARGE);
            }
            self.permit.connections.count(CloseReason::HeadTooLarge);
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        let before = buffer.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(context, buffer);
        if poll.is_pending() {
            return self.waits(context);
        }
        let bytes = &buffer.filled()[before..];
        if !bytes.is_empty() {
            self.peer().received(bytes);
        }
        poll
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
        match Pin::new(&mut self.stream).poll_flush(context) {
            Poll::Pending => self.stuck(context),
            ready => ready,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_shutdown(context) {
            Poll::Pending => self.stuck(context),
            ready => ready,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpSocket;
    use tokio::time::Instant;

    use super::*;
    use crate::http::admission::ConnectionLimits;
    use crate::http::admission::tests::limits;

    async fn bounded(limits: ConnectionLimits) -> (Bounded, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (Bounded::new(listener, Connections::new(limits), Arc::default()), address)
    }

    fn timeouts(head_ms: u64, idle_ms: u64) -> ConnectionLimits {
        let [head_max, idle_max] = [head_ms, idle_ms].map(Duration::from_millis);
        ConnectionLimits { head_max, idle_max, ..limits(1) }
    }

    async fn soon<T>(future: impl Future<Output = T>) -> T {
        tokio::time::timeout(Duration::from_secs(5), future).await.expect("in time")
    }

    #[test]
    fn replies_without_a_server_are_whole() {
        for reply in [OVERLOADED, HEAD_TOO_LARGE] {
            let text = std::str::from_utf8(reply).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{text}");
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            assert!(body["error"]["code"].is_string());
        }
        assert!(std::str::from_utf8(HEAD_TOO_LARGE).unwrap().contains("more than 32768 bytes"));
        assert_eq!(HEAD_BYTES_MAX, 32_768);
    }

    #[tokio::test]
    async fn a_silent_connection_is_evicted_for_a_new_one() {
        let (mut bounded, address) = bounded(timeouts(60_000, 60_000)).await;
        let _silent = TcpStream::connect(address).await.unwrap();
        let (mut first, _) = bounded.accept().await;
        let reads = tokio::spawn(async move { first.read_u8().await });
        tokio::task::yield_now().await;
        let mut other = TcpStream::connect(address).await.unwrap();
        let (mut second, _) = soon(bounded.accept()).await;
        let end = soon(reads).await.unwrap().unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::ConnectionAborted);
        other.write_all(b"x").await.unwrap();
        assert_eq!(soon(second.read_u8()).await.unwrap(), b'x');
    }

    #[tokio::test]
    async fn an_address_that_renews_its_share_does_not_delay_others() {
        let share = ConnectionLimits { per_address_max: 2, ..limits(100) };
        let (mut bounded, address) = bounded(share).await;
        let mut connections = VecDeque::new();
        let all = async {
            for _ in 0..1_000 {
                let socket = TcpSocket::new_v4().unwrap();
                socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
                let stream = socket.connect(address).await.unwrap();
                connections.push_back((stream, bounded.accept().await));
                connections.drain(..connections.len().saturating_sub(4));
            }
        };
        // If each connection waited until one of the two is 20 ms old, this would take 10 seconds.
        soon(all).await;
        let _other = TcpStream::connect(address).await.unwrap();
        assert_eq!(soon(bounded.accept()).await.1.ip(), address.ip());
    }

    #[tokio::test]
    async fn a_connection_over_the_limit_gets_a_response() {
        let (mut bounded, address) = bounded(timeouts(60_000, 60_000)).await;
        let mut busy = Vec::new();
        for _ in 0..33 {
            let peer = TcpStream::connect(address).await.unwrap();
            let (accepted, _) = bounded.accept().await;
            accepted.peer().begin(true);
            busy.push((peer, accepted.stream));
            std::mem::forget(accepted.permit);
        }
        let mut other = TcpStream::connect(address).await.unwrap();
        tokio::spawn(async move { bounded.accept().await });
        let mut reply = Vec::new();
        soon(other.read_to_end(&mut reply)).await.unwrap();
        assert_eq!(reply, OVERLOADED);
    }

    #[tokio::test]
    async fn a_connection_that_sends_nothing_fails() {
        let (mut bounded, address) = bounded(timeouts(50, 60_000)).await;
        let _silent = TcpStream::connect(address).await.unwrap();
        let (mut accepted, _) = bounded.accept().await;
        let read = soon(accepted.read_u8()).await;
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(bounded.connections.stats().closed.contains(&("silent", 1)));
    }

    #[tokio::test]
    async fn a_head_without_end_is_not_buffered() {
        let (mut bounded, address) = bounded(timeouts(60_000, 60_000)).await;
        let mut peer = TcpStream::connect(address).await.unwrap();
        let (mut accepted, _) = bounded.accept().await;
        let reads = tokio::spawn(async move {
            let mut received = Vec::new();
            let end = accepted.read_to_end(&mut received).await;
            (received.len(), end.unwrap_err().kind())
        });
        // The server may close the connection before all is written.
        let _ = peer.write_all(&[b'x'; 4 * HEAD_BYTES_MAX]).await;
        let (received, end) = soon(reads).await.unwrap();
        assert_eq!(end, io::ErrorKind::InvalidData);
        assert!(received <= 3 * HEAD_BYTES_MAX, "{received}");
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
    async fn a_head_that_dribbles_in_fails_though_something_moves() {
        let (mut bounded, address) = bounded(timeouts(100, 1_000)).await;
        tokio::spawn(dribble(TcpStream::connect(address).await.unwrap()));
        let (mut accepted, _) = bounded.accept().await;
        let mut received = Vec::new();
        let end = accepted.read_to_end(&mut received).await.unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::TimedOut);
        assert!((1..100).contains(&received.len()), "{}", received.len());
    }

    #[tokio::test]
    async fn a_reply_gives_the_next_request_its_full_time() {
        let (mut bounded, address) = bounded(timeouts(500, 10_000)).await;
        tokio::spawn(dribble(TcpStream::connect(address).await.unwrap()));
        let (mut accepted, _) = bounded.accept().await;
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(800) {
            accepted.read_u8().await.unwrap();
            accepted.write_all(b"y").await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_request_has_more_time_than_its_head() {
        let (mut bounded, address) = bounded(timeouts(100, 10_000)).await;
        let _peer = TcpStream::connect(address).await.unwrap();
        let (mut accepted, _) = bounded.accept().await;
        // The time of the head is running already when the head is whole.
        let first = tokio::time::timeout(Duration::from_millis(20), accepted.read_u8()).await;
        assert!(first.is_err(), "{first:?}");
        accepted.peer().begin(true);
        let more = tokio::time::timeout(Duration::from_millis(400), accepted.read_u8()).await;
        assert!(more.is_err(), "{more:?}");
    }

    #[tokio::test]
    async fn a_reply_without_end_goes_on_while_something_moves() {
        let (mut bounded, address) = bounded(timeouts(300, 300)).await;
        let mut peer = TcpStream::connect(address).await.unwrap();
        peer.write_all(b"x").await.unwrap();
        let (mut accepted, _) = bounded.accept().await;
        accepted.read_u8().await.unwrap();
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(900) {
            accepted.write_all(b"y").await.unwrap();
            // A server also waits for the peer's next bytes, or for its end.
            let more = tokio::time::timeout(Duration::from_millis(50), accepted.read_u8()).await;
            assert!(more.is_err(), "{more:?}");
        }
    }
}
