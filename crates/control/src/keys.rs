//! Fetches the keys that issuers of tokens publish: when they are due, and at once when a token names a key
//! that is not known.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use token::Jwks;
use tokio::time::timeout;

use crate::monitor::process::unix_seconds;
use crate::node::Node;
use crate::outgoing::{AGENT, Connector, chain, connector};

/// How long one response may take.
const FETCH_MAX: Duration = Duration::from_secs(5);

/// The largest set of keys, in bytes.
const SET_BYTES_MAX: usize = 256 << 10;

/// How often the server checks whether keys are due.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Fetches keys as long as the node runs.
pub(crate) async fn fetch(node: Arc<Node>) {
    let client = match connector(node.keys.authorities()) {
        Ok(connector) => Client::builder(TokioExecutor::new()).build(connector),
        Err(error) => {
            tracing::error!(%error, "token keys can't be fetched, because TLS can't be set up");
            return;
        }
    };
    loop {
        let jwks = node.live().jwks.clone();
        let urls = jwks.begin(unix_seconds());
        if !urls.is_empty() {
            let fetches = urls.iter().map(|url| take(&client, &jwks, url));
            futures_util::future::join_all(fetches).await;
            jwks.end(unix_seconds());
        }
        // A request that came meanwhile ends the wait at once. The next poll finds keys that are due.
        let _ = timeout(POLL_INTERVAL, node.keys.woken()).await;
    }
}

/// Fetches a set, and applies it as soon as it is there: no client waits for another issuer that is slow.
async fn take(client: &Client<Connector, Empty<Bytes>>, jwks: &Jwks, url: &str) {
    let reply = fetch_set(client, url).await;
    match reply.and_then(|json| jwks.fetched(url, &json).map_err(|it| it.to_string())) {
        Ok(keys) => tracing::debug!(url, keys, "token keys were fetched"),
        Err(error) => tracing::warn!(
            url,
            error,
            "token keys can't be fetched: the earlier keys stay valid, and tokens with other keys \
             are rejected"
        ),
    }
}

async fn fetch_set(client: &Client<Connector, Empty<Bytes>>, url: &str) -> Result<Bytes, String> {
    let fetched = async {
        let request = hyper::Request::get(url)
            .header(hyper::header::ACCEPT, "application/jwk-set+json, application/json")
            .header(hyper::header::USER_AGENT, AGENT)
            .body(Empty::new())
            .map_err(|error| error.to_string())?;
        let reply = client.request(request).await.map_err(|error| chain(&error))?;
        if !reply.status().is_success() {
            return Err(format!("the server responded with status {}", reply.status()));
        }
        let body = Limited::new(reply.into_body(), SET_BYTES_MAX).collect().await;
        body.map(|body| body.to_bytes()).map_err(|error| error.to_string())
    };
    let late = |_| format!("the server did not respond within {} s", FETCH_MAX.as_secs());
    timeout(FETCH_MAX, fetched).await.map_err(late)?
}
