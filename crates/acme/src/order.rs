//! Orders a certificate.

use std::error::Error as _;
use std::fmt;
use std::time::Duration;

use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, ChallengeType, Error, ExternalAccountKey,
    Identifier, NewAccount, NewOrder, OrderStatus, RetryPolicy,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::certificate::{self, CertificateError};
use crate::folder::{Folder, FolderError};
use crate::http::Http;

/// How long an authority may verify challenges, and how long it may sign.
const AUTHORITY_TIMEOUT: Duration = Duration::from_secs(120);

/// Passes replies to challenges to the handshakes of the port with TLS.
pub trait Challenges: Sync {
    /// Handshakes of an authority (RFC 8737) for this host get the certificate in this PEM from now on.
    ///
    /// # Errors
    /// When the PEM can't be used; the text says why.
    fn set(&self, host: &str, pem: &str) -> Result<(), String>;

    /// Ends all challenges: handshakes of an authority get the certificate of other clients.
    fn clear(&self);
}

/// The key that binds the ACME account to the operator's account at the authority (external account binding: RFC 8555,
/// 7.3.4).
#[derive(Clone, PartialEq, Eq)]
pub struct EabKey {
    /// The id of the key.
    pub id: String,
    /// Its bytes.
    pub key: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for EabKey {
    /// Prints no key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EabKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A certificate to order, and its authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The authority's directory, an `https://` URL.
    pub directory: String,
    /// The hosts of the certificate. The authority connects to port 443 of each.
    pub hosts: Vec<String>,
    /// Where the authority reaches the operator, such as `mailto:ops@example.com`. The operator has agreed to its
    /// terms.
    pub contacts: Vec<String>,
    /// The key that binds a new account to the operator's at the authority; `None` where the authority demands none.
    pub eab_key: Option<EabKey>,
    /// The certificates that must have signed that of the authority's server, in PEM; `None` trusts those that the
    /// host trusts.
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
    /// The authority rejects the request, or can't be reached.
    #[error("{step}: {text}")]
    Authority {
        /// The request.
        step: &'static str,
        /// The authority's error, or why it can't be reached.
        text: String,
    },
    /// The authority did not get the reply to a challenge.
    #[error(
        "the authority could not verify {0}: port 443 of each host in tls.acme_hosts must reach \
         client.listen_tls, without a proxy that terminates TLS in between"
    )]
    NotVerified(String),
    /// The authority demands an external account.
    #[error(
        "the authority requires an account with it (external account binding): set \
         tls.acme_eab_key_id and tls.acme_eab_key_file to the values that it shows for your \
         account"
    )]
    NoExternalAccount,
    /// The authority sent something other than certificates.
    #[error("the authority sent no readable certificate")]
    NoCertificate,
    /// The authority offers no TLS-ALPN-01 for a host.
    #[error("the authority does not offer TLS-ALPN-01 for {0}")]
    NoChallenge(String),
    /// The reply to a challenge can't be used in handshakes.
    #[error("a challenge: {0}")]
    Challenge(String),
    /// One of the hosts is no DNS name.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The folder can't be read or written.
    #[error(transparent)]
    Folder(#[from] FolderError),
}

/// Orders a certificate for all hosts, and stores it in the folder with its new key. The first order makes an
/// account and stores it.
///
/// # Errors
/// When the authority rejects a request or can't be reached, or the folder can't be written.
pub async fn obtain(order: &Order, challenges: &dyn Challenges) -> Result<(), AcmeError> {
    let result = obtain_and_store(order, challenges).await;
    challenges.clear();
    result
}

async fn obtain_and_store(order: &Order, challenges: &dyn Challenges) -> Result<(), AcmeError> {
    let account = account(order).await?;
    let hosts: Vec<Identifier> = order.hosts.iter().cloned().map(Identifier::Dns).collect();
    let placed = account.new_order(&NewOrder::new(&hosts)).await;
    if placed.as_ref().err().is_some_and(is_account_gone) {
        // The next order makes a new account.
        order.folder.remove_account()?;
    }
    let mut placed = placed.map_err(|error| refused("an order", &error))?;
    reply_to_challenges(&mut placed, challenges).await?;
    let polls = RetryPolicy::new().timeout(AUTHORITY_TIMEOUT);
    let status = placed.poll_ready(&polls).await;
    let status = status.map_err(|error| refused("a challenge", &error))?;
    if status != OrderStatus::Ready {
        return Err(AcmeError::NotVerified(why_not_verified(&mut placed).await));
    }
    let (key, request) = certificate::request(&order.hosts)?;
    let signed = placed.finalize_csr(&request).await;
    signed.map_err(|error| refused("the certificate", &error))?;
    let chain = placed.poll_certificate(&polls).await;
    let chain = chain.map_err(|error| refused("the certificate", &error))?;
    let certificates = CertificateDer::pem_slice_iter(chain.as_bytes());
    if certificates.filter_map(Result::ok).count() == 0 {
        return Err(AcmeError::NoCertificate);
    }
    let pem = Zeroizing::new(format!("{}\n{}", chain.trim_end(), *key));
    order.folder.store_certificate(&pem)?;
    Ok(())
}

/// Passes the reply to the challenge of each host that is not verified yet on to handshakes, and has the authority
/// verify it.
async fn reply_to_challenges(
    placed: &mut instant_acme::Order,
    challenges: &dyn Challenges,
) -> Result<(), AcmeError> {
    let mut authorizations = placed.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(|error| refused("an order", &error))?;
        if authorization.status == AuthorizationStatus::Valid {
            continue;
        }
        let host = authorization.identifier().to_string();
        let challenge = authorization.challenge(ChallengeType::TlsAlpn01);
        let mut challenge = challenge.ok_or_else(|| AcmeError::NoChallenge(host.clone()))?;
        let digest = challenge.key_authorization().digest();
        let pem = certificate::challenge_reply(&host, digest.as_ref())?;
        challenges.set(&host, &pem).map_err(AcmeError::Challenge)?;
        challenge.set_ready().await.map_err(|error| refused("a challenge", &error))?;
    }
    Ok(())
}

/// Lists the hosts that the authority did not verify, with the reason that it states.
async fn why_not_verified(placed: &mut instant_acme::Order) -> String {
    let mut reasons = Vec::new();
    let mut authorizations = placed.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let host = authorization.identifier().to_string();
        let Ok(state) = authorization.refresh().await else { continue };
        let errors = state.challenges.iter().filter_map(|challenge| challenge.error.as_ref());
        reasons.extend(errors.map(|error| format!("{host} ({error})")));
    }
    match reasons.is_empty() {
        true => "a host".into(),
        false => reasons.join(", "),
    }
}

/// Returns the account in the folder if it is one of this authority, or makes a new one.
async fn account(order: &Order) -> Result<Account, AcmeError> {
    let http = Http::new(order.trusted.as_deref()).map_err(AcmeError::Client)?;
    let builder = Account::builder_with_http(Box::new(http));
    if let Some(json) = order.folder.account()? {
        match serde_json::from_str::<StoredAccount>(&json) {
            Ok(stored) if stored.is_for(order) => {
                let account = builder.from_credentials(stored.credentials).await;
                let account = account.map_err(|error| refused("the account", &error))?;
                return match stored.contacts == order.contacts {
                    true => Ok(account),
                    false => with_contacts(account, order, &json).await,
                };
            }
            Ok(_) => {
                tracing::info!(
                    "a new account is created, because the stored one belongs to another \
                     authority or another external account"
                );
            }
            Err(error) => {
                tracing::warn!(
                    %error,
                    "a new account is created, because the stored one can't be read"
                );
            }
        }
    }
    let contacts: Vec<&str> = order.contacts.iter().map(String::as_str).collect();
    let new = NewAccount {
        contact: &contacts,
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let binding =
        order.eab_key.as_ref().map(|eab| ExternalAccountKey::new(eab.id.clone(), &eab.key));
    let created = builder.create(&new, order.directory.clone(), binding.as_ref()).await;
    let (account, credentials) = created.map_err(|error| match is_binding_missing(&error) {
        true => AcmeError::NoExternalAccount,
        false => refused("the account", &error),
    })?;
    store_account(order, credentials)?;
    Ok(account)
}

/// An account in the folder.
#[derive(Serialize, Deserialize)]
struct StoredAccount {
    directory: String,
    contacts: Vec<String>,
    /// The id of the key that bound it to an external account.
    #[serde(default)]
    eab_key_id: Option<String>,
    credentials: AccountCredentials,
}

impl StoredAccount {
    /// True if orders may use it. Its external account counts if one is configured.
    fn is_for(&self, order: &Order) -> bool {
        let eab_key_id = order.eab_key.as_ref().map(|eab| &eab.id);
        let is_same_customer = eab_key_id.is_none_or(|id| self.eab_key_id.as_ref() == Some(id));
        self.directory == order.directory && is_same_customer
    }
}

fn store_account(order: &Order, credentials: AccountCredentials) -> Result<(), AcmeError> {
    let (directory, contacts) = (order.directory.clone(), order.contacts.clone());
    let eab_key_id = order.eab_key.as_ref().map(|eab| eab.id.clone());
    let stored = StoredAccount { directory, contacts, eab_key_id, credentials };
    let json = serde_json::to_string(&stored);
    let json = json.map_err(|error| AcmeError::Client(error.to_string()))?;
    order.folder.store_account(&Zeroizing::new(json))?;
    Ok(())
}

/// Changes the contacts of the account at the authority, and in the folder.
async fn with_contacts(account: Account, order: &Order, json: &str) -> Result<Account, AcmeError> {
    let contacts: Vec<&str> = order.contacts.iter().map(String::as_str).collect();
    let updated = account.update_contacts(&contacts).await;
    updated.map_err(|error| refused("the contacts of the account", &error))?;
    let stored = serde_json::from_str::<StoredAccount>(json);
    let stored = stored.map_err(|error| AcmeError::Client(error.to_string()))?;
    store_account(order, stored.credentials)?;
    Ok(account)
}

/// The error of an authority that demands an external account (RFC 8555, 6.7).
const BINDING_MISSING: &str = "urn:ietf:params:acme:error:externalAccountRequired";

fn is_binding_missing(error: &Error) -> bool {
    matches!(error, Error::Api(problem) if problem.r#type.as_deref() == Some(BINDING_MISSING))
}

/// The error of an authority that does not know the account (RFC 8555, 6.7).
const ACCOUNT_GONE: &str = "urn:ietf:params:acme:error:accountDoesNotExist";

fn is_account_gone(error: &Error) -> bool {
    matches!(error, Error::Api(problem) if problem.r#type.as_deref() == Some(ACCOUNT_GONE))
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
