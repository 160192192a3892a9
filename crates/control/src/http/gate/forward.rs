//! Forwards a request to the process that serves now.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use model::ErrorCode;
use tokio::net::UnixStream;

use super::super::Rejection;
use super::{Forwarding, until_end};

/// The address of the peer that is connected here. The process behind the socket trusts it, for no other process can
/// reach that socket.
pub(super) const PEER: HeaderName = HeaderName::from_static("x-throng-peer");

/// How long the new process may take to accept.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Time between two attempts, if the socket's queue is at capacity.
const CONNECT_REST: Duration = Duration::from_millis(5);

/// Headers that are about one connection, and not about the request.
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    // This process responds to the head if the client waits for that.
    header::EXPECT,
    HeaderName::from_static("keep-alive"),
];

/// Forwards a request to the process that listens at this socket, and closes the connection after the response. That
/// process gets the request as it came, with the address of the peer.
pub(crate) async fn forward(
    mut request: Request,
    peer: Option<SocketAddr>,
    to: &Path,
    forwarding: Forwarding,
) -> Response {
    let headers = request.headers_mut();
    strip(headers);
    headers.remove(PEER);
    if let Some(peer) = peer.and_then(|peer| HeaderValue::try_from(peer.to_string()).ok()) {
        headers.insert(PEER, peer);
    }
    let mut response = match exchange(request, to).await {
        Ok(response) => until_end(response, forwarding),
        Err(error) => {
            tracing::warn!(
                %error,
                "a request could not be forwarded to the process that serves now"
            );
            let message = "the server was upgraded, and the process that serves now did not \
                           reply: it may or may not have carried out the request; try again";
            Rejection::new(ErrorCode::GoingDown, message).into_response()
        }
    };
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

fn strip(headers: &mut HeaderMap) {
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// What went wrong between the two processes.
#[derive(Debug, thiserror::Error)]
enum ForwardError {
    #[error("it does not accept: {0}")]
    Connect(#[from] io::Error),
    #[error("it does not accept in time")]
    Timeout,
    #[error("it does not reply: {0}")]
    Http(#[from] hyper::Error),
}

async fn exchange(mut request: Request, to: &Path) -> Result<Response, ForwardError> {
    *request.version_mut() = axum::http::Version::HTTP_11;
    let stream = tokio::time::timeout(CONNECT_MAX, connect(to));
    let stream = stream.await.map_err(|_| ForwardError::Timeout)??;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The task ends with the response.
    tokio::spawn(connection);
    let mut response = sender.send_request(request).await?;
    strip(response.headers_mut());
    Ok(response.map(Body::new))
}

async fn connect(to: &Path) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(to).await {
            // The queue is at capacity: the others in it are accepted in a moment.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(CONNECT_REST).await;
            }
            result => return result,
        }
    }
}
