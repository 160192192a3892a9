//! Orders a certificate.

use std::error::Error as _;
use std::time::Duration;

use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, ChallengeType, Error, Identifier, NewAccount,
    NewOrder, OrderStatus, RetryPolicy,
};

use crate::certificate::{self, CertificateError};
use crate::folder::{Folder, FolderError};
use crate::http::Http;

/// How long an authority may check challenges, and how long it may sign.
const PATIENCE: Duration = Duration::from_secs(120);

/// What answers challenges at the port with TLS.
pub trait Challenges: Sync {
    /// Handshakes that offer [`ALPN`](crate::ALPN) alone, for this host, get the certificate in this PEM from now on.
    ///
    /// # Errors
    /// Why the PEM can't be used.
    fn set(&self, host: &str, pem: &str) -> Result<(), String>;

    /// Ends that for all hosts.
    fn clear(&self);
}

/// What is ordered, and from whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The authority's directory, an `https://` URL.
    pub directory: String,
    /// The hosts of the certificate. The authority connects to port 443 of each.
    pub hosts: Vec<String>,
    /// Where the authority reaches the operator, such as `mailto:ops@example.com`. The operator has agreed to its terms.
    pub contacts: Vec<String>,
    /// The certificates that the authority's directory must be signed by, in PEM; `None` trusts those that the host trusts.
    pub trusted: Option<String>,
    /// Where the account and the certificate are stored.
    pub folder: Folder,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum AcmeError {
    /// The authority can't be called.
    #[error("the authority can't be called: {0}")]
    Client(String),
    /// The authority refuses, or can't be reached.
    #[error("{step}: {text}")]
    Authority {
        /// What was requested.
        step: &'static str,
        /// The authority's words, or why it can't be reached.
        text: String,
    },
    /// The authority did not find the answer to a challenge.
    #[error(
        "the authority could not verify a host: port 443 of each of tls.acme_hosts must lead to client.listen_tls, past \
         any proxy that ends TLS (status {0})"
    )]
    NotVerified(String),
    /// The authority offers no TLS-ALPN-01 for a host.
    #[error("the authority does not verify {0} by TLS-ALPN-01")]
    NoChallenge(String),
    /// The answer to a challenge can't be shown.
    #[error("a challenge: {0}")]
    Challenge(String),
    /// A host is no name that certificates have.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The folder can't be read or written.
    #[error(transparent)]
    Folder(#[from] FolderError),
}

/// Orders a certificate for all hosts, and stores it in the folder with its new key. The account is made at the first
/// order and stored.
///
/// # Errors
/// When the authority refuses or can't be reached, or the folder can't be written.
pub async fn obtain(order: &Order, challenges: &dyn Challenges) -> Result<(), AcmeError> {
    let result = run(order, challenges).await;
    challenges.clear();
    result
}

async fn run(wanted: &Order, challenges: &dyn Challenges) -> Result<(), AcmeError> {
    let account = account(wanted).await?;
    let hosts: Vec<Identifier> = wanted.hosts.iter().cloned().map(Identifier::Dns).collect();
    let order = account.new_order(&NewOrder::new(&hosts)).await;
    let mut order = order.map_err(|error| refused("an order", &error))?;
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(|error| refused("an order", &error))?;
        if authorization.status == AuthorizationStatus::Valid {
            continue;
        }
        let host = authorization.identifier().to_string();
        let challenge = authorization.challenge(ChallengeType::TlsAlpn01);
        let mut challenge = challenge.ok_or_else(|| AcmeError::NoChallenge(host.clone()))?;
        let digest = challenge.key_authorization().digest();
        let pem = certificate::of_challenge(&host, digest.as_ref())?;
        challenges.set(&host, &pem).map_err(AcmeError::Challenge)?;
        challenge.set_ready().await.map_err(|error| refused("a challenge", &error))?;
    }
    let patience = RetryPolicy::new().timeout(PATIENCE);
    let status = order.poll_ready(&patience).await;
    let status = status.map_err(|error| refused("a challenge", &error))?;
    if status != OrderStatus::Ready {
        return Err(AcmeError::NotVerified(format!("{status:?}").to_lowercase()));
    }
    let (key, request) = certificate::request(&wanted.hosts)?;
    let signed = order.finalize_csr(&request).await;
    signed.map_err(|error| refused("the certificate", &error))?;
    let chain = order.poll_certificate(&patience).await;
    let chain = chain.map_err(|error| refused("the certificate", &error))?;
    wanted.folder.store_certificate(&(chain + &key))?;
    Ok(())
}

/// The account in the folder if it is one of this authority, or a new one.
async fn account(order: &Order) -> Result<Account, AcmeError> {
    let http = Http::new(order.trusted.as_deref()).map_err(AcmeError::Client)?;
    let builder = Account::builder_with_http(Box::new(http));
    if let Some(json) = order.folder.account()? {
        let stored = serde_json::from_str::<(String, AccountCredentials)>(&json);
        match stored {
            Ok((directory, credentials)) if directory == order.directory => {
                let account = builder.from_credentials(credentials).await;
                return account.map_err(|error| refused("the account", &error));
            }
            Ok(_) => {
                tracing::info!("an account is made, for the stored one is of another authority")
            }
            Err(error) => {
                tracing::warn!(%error, "an account is made, for the stored one can't be read");
            }
        }
    }
    let contacts: Vec<&str> = order.contacts.iter().map(String::as_str).collect();
    let new = NewAccount {
        contact: &contacts,
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let created = builder.create(&new, order.directory.clone(), None).await;
    let (account, credentials) = created.map_err(|error| refused("the account", &error))?;
    let json = serde_json::to_string(&(&order.directory, &credentials));
    let json = json.map_err(|error| AcmeError::Client(error.to_string()))?;
    order.folder.store_account(&json)?;
    Ok(account)
}

fn refused(step: &'static str, error: &Error) -> AcmeError {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text.push_str(": ");
        text.push_str(&error.to_string());
        next = error.source();
    }
    AcmeError::Authority { step, text }
}
