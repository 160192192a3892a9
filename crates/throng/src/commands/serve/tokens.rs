//! The check of tokens, by the configuration.

use std::sync::Arc;

use auth::{Authenticator, Grants, Patterns};
use config::Config;
use control::{Authorities, KeyFetcher};
use token::{Algorithm, Authority, Jwks, Key, KeyError};

use crate::error::CommandError;

/// The largest file with a public key, in bytes.
const KEY_FILE_BYTES_MAX: u64 = 64 << 10;

/// The state of tokens that outlives a reload of the configuration.
#[derive(Default)]
pub(super) struct Tokens {
    pub revocations: Arc<token::Revocations>,
    pub stats: Arc<token::Stats>,
    pub fetcher: KeyFetcher,
}

/// The authenticator, which checks tokens, and the keys to fetch for it.
pub(super) struct Auth {
    /// `None` if the configuration has no key.
    pub authenticator: Option<Arc<dyn Authenticator>>,
    pub jwks: Arc<Jwks>,
}

impl Tokens {
    /// Creates the state without a revoked token. Keys are fetched from servers of these authorities alone.
    pub fn new(authorities: Authorities) -> Self {
        Tokens { fetcher: KeyFetcher::new(authorities), ..Tokens::default() }
    }

    /// Returns the authenticator for this configuration. Fetched keys of the former configuration stay if they come
    /// from the same places.
    ///
    /// # Errors
    /// When a key can't be read or used.
    pub fn auth(&self, config: &Config, before: Option<&Arc<Jwks>>) -> Result<Auth, CommandError> {
        let settings = &config.auth;
        let new = Jwks::new(&settings.jwks_urls, &settings.issuers, settings.jwks_refresh_seconds);
        let jwks = match before {
            Some(before) if before.is_same(&new) => before.clone(),
            _ => {
                let fetcher = self.fetcher.clone();
                new.set_wake(move || fetcher.wake());
                Arc::new(new)
            }
        };
        if !config.has_tokens() {
            return Ok(Auth { authenticator: None, jwks });
        }
        let (revocations, stats) = (self.revocations.clone(), self.stats.clone());
        let authority = Authority::new(authority(config)?, jwks.clone(), revocations, stats);
        Ok(Auth { authenticator: Some(Arc::new(authority)), jwks })
    }
}

/// Returns the requirements that tokens must meet.
///
/// # Errors
/// When a key can't be read or used.
pub(crate) fn authority(config: &Config) -> Result<token::Settings, CommandError> {
    let auth = &config.auth;
    let wrong = |setting: &str, error: KeyError| CommandError::Usage(format!("{setting}: {error}"));
    let mut keys = Vec::new();
    if !auth.hmac_key.is_empty() {
        keys.push(Key::shared(&auth.hmac_key).map_err(|error| wrong("auth.hmac_key", error))?);
    }
    for path in &auth.public_key_files {
        let setting = format!("auth.public_key_files: {path}");
        let pem = files::read_text(path.as_ref(), KEY_FILE_BYTES_MAX)
            .map_err(|error| CommandError::Usage(format!("auth.public_key_files: {error}")))?;
        keys.push(Key::public(&pem).map_err(|error| wrong(&setting, error))?);
    }
    let algorithms: Vec<Algorithm> =
        auth.algorithms.iter().filter_map(|name| name.parse().ok()).collect();
    let fits = |key: &Key| key.algorithms().iter().any(|known| algorithms.contains(known));
    if !algorithms.is_empty() && auth.jwks_urls.is_empty() && !keys.iter().any(fits) {
        let message = "auth.algorithms: no key fits any of these algorithms: name one that fits \
                       auth.hmac_key or a file of auth.public_key_files";
        return Err(CommandError::Usage(message.into()));
    }
    Ok(token::Settings {
        keys,
        algorithms,
        issuers: auth.issuers.clone(),
        audience: Some(auth.audience.clone()).filter(|audience| !audience.is_empty()),
        required: auth.required,
        anonymous_grants: Arc::new(Grants::Patterns(grants(&auth.anonymous_grants))),
    })
}

/// Sorts patterns by their actions. The configuration has validated them.
fn grants(written: &[String]) -> Patterns {
    let of = |action: &str| {
        let pairs = written.iter().filter_map(|grant| grant.split_once(':'));
        pairs.filter(|(known, _)| *known == action).map(|(_, pattern)| pattern.into()).collect()
    };
    Patterns {
        subscribe: of("subscribe"),
        publish: of("publish"),
        presence: of("presence"),
        history: of("history"),
    }
}
