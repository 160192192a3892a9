//! Serves requests that the previous process forwards.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use model::ErrorCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

use super::super::Rejection;
use super::super::admission::Connections;
use super::super::listener::{BACKLOG, On};
use super::forward::PEER;
use super::{Forwarding, Gate};

/// How long accept rests after an error.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// Serves at a socket that only the previous process can reach, until the gate forwards: the next process has this
/// socket then.
///
/// # Errors
/// If the socket can't be set up.
pub(crate) fn receive(
    listener: UnixListener,
    router: Router,
    connections: Arc<Connections>,
    gate: Arc<Gate>,
) -> io::Result<impl Future<Output = io::Result<()>>> {
    listener.set_nonblocking(true)?;
    rustix::net::listen(&listener, BACKLOG)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let router = router.layer(middleware::from_fn_with_state(connections, as_sent));
    Ok(async move { axum::serve(Before { listener, gate }, router).await })
}

/// The listener to which the previous process connects.
struct Before {
    listener: tokio::net::UnixListener,
    gate: Arc<Gate>,
}

impl Listener for Before {
    type Io = Counted;
    type Addr = ();

    async fn accept(&mut self) -> (Counted, ()) {
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                // The next process accepts from now on.
                () = self.gate.forwarded() => std::future::pending().await,
            };
            match accepted {
                Ok((stream, _)) => {
                    return (Counted { stream, _forwarding: Forwarding::new(&self.gate) }, ());
                }
                Err(error) => {
                    tracing::debug!(%error, "a forwarded request could not be accepted");
                    tokio::time::sleep(ACCEPT_REST).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection of the previous process, one for each request. This process waits for its end.
struct Counted {
    stream: UnixStream,
    _forwarding: Forwarding,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Gives a request the address of the peer that sent it to the previous process. That process counts the peer's
/// connection and limits its time.
async fn as_sent(
    State(connections): State<Arc<Connections>>,
    mut request: Request,
    next: Next,
) -> Response {
    let sent = request.headers_mut().remove(PEER);
    let sent = sent.as_ref().and_then(|peer| peer.to_str().ok()?.parse::<SocketAddr>().ok());
    let Some(address) = sent else {
        let message =
            "this socket is only for the process that was upgraded: call the admin port instead";
        return Rejection::with_status(StatusCode::FORBIDDEN, ErrorCode::BadHost, message)
            .into_response();
    };
    let peer = connections.peer_elsewhere(address.ip());
    request.extensions_mut().insert(ConnectInfo(On(peer, address, false)));
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use axum::body::{Body, to_bytes};

    use super::super::{Pass, forward};
    use super::*;
    use crate::http::admission::tests::limits;

    async fn reply(response: Response) -> (u16, String) {
        let status = response.status().as_u16();
        let bytes = to_bytes(response.into_body(), 1 << 10).await.unwrap();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_request_is_as_it_was_and_comes_from_who_sent_it() {
        let path = format!("throng-receive-{}", std::process::id());
        let path: PathBuf = std::env::temp_dir().join(path);
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let router = Router::new().fallback(async |request: Request| {
            let ConnectInfo(On(_, address, _)) = request.extensions().get().unwrap();
            let headers = request.headers();
            assert!(headers.get(PEER).is_none() && headers.get("keep-alive").is_none());
            let head =
                format!("{} {} {address} {:?}", request.method(), request.uri(), headers["host"]);
            let body = to_bytes(request.into_body(), 1 << 10).await.unwrap();
            format!("{head} {}", body.len())
        });
        let served =
            receive(listener, router, Connections::new(limits(1)), Arc::default()).unwrap();
        tokio::spawn(served);
        let gate = Arc::new(Gate::default());
        gate.forward(path.clone());
        let request = || {
            Request::put("/a?b=c%20d")
                .header("host", "b.example")
                .header("keep-alive", "timeout=5")
                // A client can't claim another address.
                .header("x-throng-peer", "127.0.0.1:1")
                .body(Body::from("12345"))
                .unwrap()
        };
        let Pass::To(to, forwarding) = gate.pass().await else { panic!("here") };
        let peer = "192.0.2.7:5000".parse().unwrap();
        let response = forward(request(), Some(peer), &to, forwarding).await;
        assert_eq!(response.headers()["connection"], "close");
        let want = "PUT /a?b=c%20d 192.0.2.7:5000 \"b.example\" 5";
        assert_eq!(reply(response).await, (200, want.into()));
        let Pass::To(to, forwarding) = gate.pass().await else { panic!("here") };
        let response = forward(request(), None, &to, forwarding).await;
        assert_eq!(reply(response).await.0, 403);
        assert_eq!(gate.forwarding(), 0);
        std::fs::remove_file(path).unwrap();
    }
}
