//! Requests to the authority.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Request, Response};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use trust::{Trust, TrustError};

/// The largest response, in bytes. A chain of certificates has some thousand.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// How long a response may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A client that trusts the host's certificates, or those in a PEM alone.
pub(crate) struct Http(Client<HttpsConnector<HttpConnector>, BodyWrapper<Bytes>>);

impl Http {
    /// Makes a client. `trusted` is the PEM; `None` trusts the host's certificates.
    ///
    /// # Errors
    /// When the PEM is damaged, or there is no certificate to trust.
    pub fn new(trusted: Option<&str>) -> Result<Self, String> {
        let trust = trusted.map_or(Trust::System, Trust::Pem);
        let config = trust::client_config(trust).map_err(|error| match error {
            TrustError::NoAuthorities => format!("{error}, and tls.acme_ca_file names none"),
            error => error.to_string(),
        })?;
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(config).https_only().enable_http1();
        Ok(Http(Client::builder(TokioExecutor::new()).build(connector.build())))
    }
}

impl HttpClient for Http {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let response = self.0.request(request);
        let whole = async {
            let response = response.await.map_err(|error| Error::Other(error.into()))?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await;
            let body = body.map_err(Error::Other)?;
            Ok(BytesResponse::from(Response::from_parts(parts, Full::new(body.to_bytes()))))
        };
        Box::pin(async {
            match tokio::time::timeout(TIMEOUT, whole).await {
                Ok(response) => response,
                Err(late) => Err(Error::Other(late.into())),
            }
        })
    }
}
