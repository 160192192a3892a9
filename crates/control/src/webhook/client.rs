//! One HTTP request to the application: HTTP/1.1 with keep-alive, and TLS.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use axum::http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy::{self, Client as Pool};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::error::{ErrorKind, RequestError};
use super::signature::{self, RequestId, SigningKey};
use crate::outgoing::{AGENT, Authorities, Connector, chain, connector};
use crate::spans::{TRACEPARENT, Tracer};

/// An unused connection is closed after this time. Servers close it after 2 seconds or more, and a request that meets
/// their close would fail.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// The limit on a response in bytes, and [`RESPONSE_BYTES_PER_EVENT`] more for each event.
const RESPONSE_BYTES: usize = 1 << 20;

/// See [`RESPONSE_BYTES`].
const RESPONSE_BYTES_PER_EVENT: usize = 16 << 10;

/// Proves to the application that this server sends.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Proof {
    /// A bearer token.
    pub secret: Option<String>,
    /// A key that signs each request.
    pub key: Option<SigningKey>,
}

/// The body of a response that took the request, or why it can't be read.
pub(super) type Taken = Result<Vec<u8>, RequestError>;

/// A client that is created for the first request: a node that sends nothing needs no certificates in memory.
pub(super) struct LazyClient {
    client: Option<Client>,
    idle_connections_max: usize,
    clients: Clients,
}

/// The state that all clients of a node share.
#[derive(Clone)]
pub(super) struct Clients {
    /// Which certificates of servers are trusted.
    pub authorities: Authorities,
    /// Begins a span of each request, where a collector is configured.
    pub tracer: Option<Arc<Tracer>>,
}

impl LazyClient {
    /// See [`Client::new`].
    pub fn new(idle_connections_max: usize, clients: Clients) -> Self {
        LazyClient { client: None, idle_connections_max, clients }
    }

    pub fn get(&mut self) -> Result<Client, RequestError> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let client = Client::new(self.idle_connections_max, &self.clients).map_err(|error| {
            RequestError::new(ErrorKind::Unreachable, format!("TLS can't be set up: {error}"))
        })?;
        Ok(self.client.insert(client).clone())
    }
}

/// Connections to all applications.
#[derive(Clone)]
pub(super) struct Client {
    pool: Pool<Connector, Full<Bytes>>,
    tracer: Option<Arc<Tracer>>,
}

impl Client {
    /// Makes a client that has at most this many unused connections to a host.
    ///
    /// # Errors
    /// If TLS can't be set up.
    pub fn new(idle_connections_max: usize, clients: &Clients) -> io::Result<Self> {
        let pool = Pool::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(idle_connections_max)
            .build(connector(&clients.authorities)?);
        Ok(Client { pool, tracer: clients.tracer.clone() })
    }

    /// Sends a body and returns the body of the response, empty for 204. Takes as long as the application does.
    pub async fn post(
        &self,
        url: &str,
        id: &RequestId,
        proof: &Proof,
        events: usize,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, RequestError> {
        let request = request(url, id, proof, body)?;
        let response = self.send("webhook", request).await?;
        read(response, RESPONSE_BYTES + events * RESPONSE_BYTES_PER_EVENT, true).await
    }
}

impl Client {
    /// Sends a body. A status of 200 to 299 takes it, and the body of the response is ignored.
    pub async fn send_events(
        &self,
        url: &str,
        id: &RequestId,
        proof: &Proof,
        body: Vec<u8>,
    ) -> Result<(), RequestError> {
        let request = request(url, id, proof, body)?;
        let response = self.send("webhook events", request).await?;
        read(response, RESPONSE_BYTES, false).await.map(drop)
    }
}

impl Client {
    /// Sends a body. A status of 200 to 299 takes it, even if the body of the response can't be read.
    pub async fn forward(
        &self,
        url: &str,
        id: &RequestId,
        proof: &Proof,
        messages: usize,
        body: Vec<u8>,
    ) -> Result<Taken, RequestError> {
        let request = request(url, id, proof, body)?;
        let response = self.send("forward", request).await?;
        let bytes_max = RESPONSE_BYTES + messages * RESPONSE_BYTES_PER_EVENT;
        match read(response, bytes_max, false).await {
            Err(error) if error.kind == ErrorKind::Body => Ok(Err(error)),
            other => other.map(Ok),
        }
    }
}

impl Client {
    /// Sends a request, and a `traceparent` where the request is recorded: what the application does then continues the
    /// trace.
    async fn send(
        &self,
        name: &'static str,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, RequestError> {
        let send =
            |request| async { self.pool.request(request).await.map_err(|error| not_sent(&error)) };
        let Some(mut span) = self.tracer.as_ref().and_then(|tracer| tracer.request(name)) else {
            return send(request).await;
        };
        span.set_text("http.request.method", "POST");
        span.set_text("server.address", request.uri().host().unwrap_or_default());
        if let Some(port) = request.uri().port_u16() {
            span.set_number("server.port", port.into());
        }
        if let Ok(context) = HeaderValue::try_from(span.context().to_string()) {
            request.headers_mut().insert(TRACEPARENT, context);
        }
        let result = send(request).await;
        match &result {
            Ok(response) => {
                let status = response.status();
                span.set_number("http.response.status_code", status.as_u16().into());
                if !status.is_success() {
                    span.set_error(format!("status {status}"));
                }
            }
            Err(error) => span.set_error(&*error.cause),
        }
        span.end();
        result
    }
}

fn request(
    url: &str,
    id: &RequestId,
    proof: &Proof,
    body: Vec<u8>,
) -> Result<Request<Full<Bytes>>, RequestError> {
    let signed = signature::headers(id, proof.key.as_ref(), &body);
    let mut request = Request::post(url)
        .header(CONTENT_TYPE, "application/json")
        .header(USER_AGENT, AGENT)
        .body(Full::new(body.into()))
        .map_err(|error| RequestError::new(ErrorKind::Unreachable, chain(&error)))?;
    request.headers_mut().extend(signed);
    if let Some(secret) = &proof.secret {
        let invalid = |_| {
            // A more detailed error could show the secret.
            let cause = "the secret can't be sent in a header: it must be visible ASCII";
            RequestError::new(ErrorKind::Unreachable, cause)
        };
        let mut value = HeaderValue::from_str(&format!("Bearer {secret}")).map_err(invalid)?;
        value.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, value);
    }
    Ok(request)
}

async fn read(
    mut response: Response<Incoming>,
    bytes_max: usize,
    must_be_ok: bool,
) -> Result<Vec<u8>, RequestError> {
    let status = response.status();
    if status == StatusCode::NO_CONTENT {
        return Ok(Vec::new());
    }
    if !status.is_success() || must_be_ok && status != StatusCode::OK {
        let hint = if status.is_redirection() { "; redirects are not followed" } else { "" };
        let error = RequestError::new(ErrorKind::Status, format!("status {status}{hint}"));
        // A proxy responds so while the application behind it restarts.
        let is_passing = matches!(status.as_u16(), 429 | 502..=504);
        let is_final = status.is_client_error() && !matches!(status.as_u16(), 408 | 429);
        return Err(RequestError { is_passing, is_final, ..error });
    }
    let mut body = Vec::new();
    while let Some(frame) = response.frame().await {
        let frame = frame.map_err(|error| RequestError::new(kind(&error), chain(&error)))?;
        let Some(data) = frame.data_ref() else { continue };
        if body.len() + data.len() > bytes_max {
            let cause = format!("the response has more than {bytes_max} bytes");
            return Err(RequestError::new(ErrorKind::Body, cause));
        }
        body.extend_from_slice(data);
    }
    Ok(body)
}

fn not_sent(error: &legacy::Error) -> RequestError {
    let inner = error.source().and_then(|source| source.downcast_ref());
    RequestError::new(inner.map_or(ErrorKind::Unreachable, kind), chain(error))
}

fn kind(error: &hyper::Error) -> ErrorKind {
    if error.is_parse() { ErrorKind::Body } else { ErrorKind::Unreachable }
}
