//! What requests to others have in common: TLS, and how errors are told.

use std::error::Error;
use std::io;
use std::sync::Arc;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;

/// What requests say of who makes them.
pub(crate) const AGENT: &str = concat!("throng/", env!("CARGO_PKG_VERSION"));

/// Connects by TCP, and by TLS where the URL says so.
pub(crate) type Connector = HttpsConnector<HttpConnector>;

/// Reads the certificates that the host trusts, or takes Mozilla's where it has none.
///
/// # Errors
/// When TLS can't be set up.
pub(crate) fn connector() -> io::Result<Connector> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = HttpsConnectorBuilder::new();
    let builder = match builder.with_provider_and_native_roots(provider.clone()) {
        Ok(builder) => builder,
        Err(error) => {
            tracing::debug!(%error, "Mozilla's certificates are trusted, for the host has none");
            HttpsConnectorBuilder::new()
                .with_provider_and_webpki_roots(provider)
                .map_err(io::Error::other)?
        }
    };
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    Ok(builder.https_or_http().enable_http1().wrap_connector(tcp))
}

/// An error with all that caused it.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text.push_str(": ");
        text.push_str(&error.to_string());
        next = error.source();
    }
    text
}
