//! What outgoing requests share: TLS, and the text of errors.

use std::error::Error;
use std::io;
use std::sync::Arc;

use hyper_rustls::builderstates::WantsSchemes;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::ClientConfig;
use trust::{Trust, TrustError};

/// The `User-Agent` of requests.
pub(crate) const AGENT: &str = concat!("throng/", env!("CARGO_PKG_VERSION"));

/// Connects by TCP, and by TLS if the URL says so.
pub(crate) type Connector = HttpsConnector<HttpConnector>;

/// Which servers outgoing requests trust.
#[derive(Clone, Debug, Default)]
pub struct Authorities(Option<Arc<ClientConfig>>);

impl Authorities {
    /// Trusts the authorities that the host trusts, or Mozilla's if it has none. They are read when the first request
    /// needs them.
    pub const SYSTEM: Authorities = Authorities(None);

    /// Trusts the authorities in this PEM alone, and the certificates in it themselves.
    ///
    /// # Errors
    /// When it is damaged, or has no certificate.
    pub fn new(pem: &str) -> Result<Self, TrustError> {
        let config = trust::client_config(Trust::Pem(pem))?;
        Ok(Authorities(Some(Arc::new(config))))
    }
}

/// Connects to servers of these authorities.
///
/// # Errors
/// When TLS can't be set up.
pub(crate) fn connector(authorities: &Authorities) -> io::Result<Connector> {
    let builder = match &authorities.0 {
        Some(config) => HttpsConnectorBuilder::new().with_tls_config(ClientConfig::clone(config)),
        None => system()?,
    };
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    Ok(builder.https_or_http().enable_http1().wrap_connector(tcp))
}

/// Reads the certificates that the host trusts, or takes Mozilla's if it has none.
fn system() -> io::Result<HttpsConnectorBuilder<WantsSchemes>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = HttpsConnectorBuilder::new();
    match builder.with_provider_and_native_roots(provider.clone()) {
        Ok(builder) => Ok(builder),
        Err(error) => {
            tracing::debug!(
                %error,
                "this host has no certificates of authorities: Mozilla's list is used"
            );
            HttpsConnectorBuilder::new()
                .with_provider_and_webpki_roots(provider)
                .map_err(io::Error::other)
        }
    }
}

/// Returns an error's text with all that caused it.
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
