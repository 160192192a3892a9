//! Verifies tokens by keys, claims and revocations.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use auth::{Authenticator, Grants, TokenError, TopicToken, Verified};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use model::ErrorCode;
use serde::Deserialize;

use crate::claims::{Claims, Expected};
use crate::jwks::Missing;
use crate::revocation::Token;
use crate::{Algorithm, Jwks, Key, Revocations};

/// Bytes of a token, at most.
const TOKEN_BYTES_MAX: usize = 16 << 10;

/// Keys that are tried on one token, at most.
const TRIED_KEYS_MAX: usize = 8;

/// The requirements for tokens.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Keys that are known from the start.
    pub keys: Vec<Key>,
    /// The accepted algorithms; any that fits a key if there is none.
    pub algorithms: Vec<Algorithm>,
    /// The accepted issuers; any with a valid signature if there is none.
    pub issuers: Vec<String>,
    /// The required audience. Without one, a token must name none.
    pub audience: Option<String>,
    /// True if clients need a token.
    pub required: bool,
    /// The grants of clients without a token, and of tokens without grants.
    pub anonymous_grants: Arc<Grants>,
}

/// Verifies tokens.
#[derive(Debug)]
pub struct Authority {
    settings: Settings,
    jwks: Arc<Jwks>,
    revocations: Arc<Revocations>,
    stats: Arc<Stats>,
}

/// Counts of accepted and rejected tokens.
#[derive(Debug, Default)]
pub struct Stats {
    accepted: AtomicU64,
    /// By the codes of errors.
    rejected: [AtomicU64; CODES.len()],
}

/// The codes of all errors.
const CODES: [ErrorCode; 4] = [
    ErrorCode::InvalidToken,
    ErrorCode::TokenExpired,
    ErrorCode::TokenRevoked,
    ErrorCode::KeysUnavailable,
];

impl Stats {
    /// The number of accepted tokens.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// The number of rejected tokens, by the code of the error.
    pub fn rejected(&self) -> impl Iterator<Item = (ErrorCode, u64)> {
        CODES.into_iter().zip(self.rejected.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    fn count<T>(&self, judged: &Result<T, TokenError>) {
        match judged {
            Ok(_) => &self.accepted,
            // The token is verified again.
            Err(TokenError::KeysComing) => return,
            Err(error) => {
                let at = CODES.iter().position(|code| *code == error.code()).unwrap_or(0);
                &self.rejected[at]
            }
        }
        .fetch_add(1, Ordering::Relaxed);
    }
}

/// The header of a token (RFC 7515, section 4).
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that must be understood. None is known here.
    crit: Option<serde::de::IgnoredAny>,
}

impl Authority {
    /// Makes an authority with these keys and revocations. Some keys may still have to be fetched.
    pub fn new(
        settings: Settings,
        jwks: Arc<Jwks>,
        revocations: Arc<Revocations>,
        stats: Arc<Stats>,
    ) -> Self {
        Authority { settings, jwks, revocations, stats }
    }

    /// Returns the claims of a token whose signature is valid, and which is in force.
    fn claims(&self, token: &str, now_s: u64) -> Result<Claims, TokenError> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::Malformed("it is too long"));
        }
        let mut parts = token.split('.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(TokenError::Malformed("it does not have three parts separated by dots"));
        };
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part);
        let header =
            decode(header).map_err(|_| TokenError::Malformed("its header is not base64url"))?;
        let header: Header = serde_json::from_slice(&header)
            .map_err(|_| TokenError::Malformed("its header is not an object with alg"))?;
        if header.crit.is_some() {
            return Err(TokenError::Malformed(
                "its header has crit, which this server does not support",
            ));
        }
        let algorithm = header.alg.parse::<Algorithm>().map_err(|_| TokenError::Algorithm)?;
        let (allowed, id) = (&self.settings.algorithms, header.kid.as_deref());
        if !allowed.is_empty() && !allowed.contains(&algorithm) {
            return Err(TokenError::Algorithm);
        }
        let published = loop {
            let version = self.jwks.version();
            match self.verified_by(token, (payload, signature), algorithm, id, now_s) {
                Ok(published) => break published,
                // Keys came after these were searched, and before the error was chosen: they may have the right one.
                Err(_) if self.jwks.version() != version => {}
                Err(error) => return Err(error),
            }
        };
        let payload =
            decode(payload).map_err(|_| TokenError::Malformed("its claims are not base64url"))?;
        let claims = Claims::read(&payload)?;
        let issuer = claims.iss.as_deref();
        let speaks = match published {
            // A key of the configuration, which is the operator's.
            None => true,
            Some(Some(bound_to)) => issuer == Some(&*bound_to),
            // A key at an address of no issuer in particular can't sign for issuers that publish their own.
            Some(None) => !issuer.is_some_and(|issuer| self.jwks.has_own(issuer)),
        };
        if !speaks {
            return Err(TokenError::Issuer);
        }
        let Settings { issuers, audience, .. } = &self.settings;
        claims.check(&Expected { issuers, audience: audience.as_deref(), now_s })?;
        let users = claims.users()?;
        let issued_s = claims.issued_s().into();
        let token = Token { jti: claims.jti.as_deref(), users: &users, issued_s };
        if self.revocations.holds(&token) {
            return Err(TokenError::Revoked);
        }
        Ok(claims)
    }

    /// Finds the key that signed a token. Returns `None` for a key of the configuration, else the issuer that the
    /// published key is bound to, if it is bound.
    ///
    /// # Errors
    /// When no known key did.
    fn verified_by(
        &self,
        token: &str,
        (payload, signature): (&str, &str),
        algorithm: Algorithm,
        id: Option<&str>,
        now_s: u64,
    ) -> Result<Option<Option<Arc<str>>>, TokenError> {
        let signed = token.get(..token.len() - signature.len() - 1).unwrap_or_default();
        let mut tried_keys = 0;
        let mut is_by = |key: &Key| {
            if tried_keys == TRIED_KEYS_MAX || !key.fits(algorithm, id) {
                return None;
            }
            tried_keys += 1;
            let verified = jsonwebtoken::crypto::verify(
                signature,
                signed.as_bytes(),
                &key.decoding,
                algorithm.inner(),
            );
            verified.is_ok_and(|right| right).then(|| key.issuer.clone())
        };
        if self.settings.keys.iter().find_map(&mut is_by).is_some() {
            return Ok(None);
        }
        match self.jwks.find(&mut is_by) {
            Some(bound_to) => Ok(Some(bound_to)),
            None => Err(self.unsigned(algorithm, (id, payload), tried_keys, now_s)),
        }
    }

    /// Returns the error of a token that no key has verified, after `tried_keys` were tried.
    fn unsigned(
        &self,
        algorithm: Algorithm,
        (id, payload): (Option<&str>, &str),
        tried_keys: usize,
        now_s: u64,
    ) -> TokenError {
        let fits = self.settings.keys.iter().any(|key| key.algorithms().contains(&algorithm));
        // Issuers don't publish shared keys.
        let published =
            !self.jwks.is_empty() && algorithm.family() != jsonwebtoken::AlgorithmFamily::Hmac;
        // The issuer in the token is not proven: it only says whose keys could fit.
        let issuer = claimed_issuer(payload);
        let issuer = issuer.as_deref();
        // A key of that name is known: a newer one would have another.
        let named = id.is_some_and(|id| self.jwks.has_named(id, issuer));
        if published && !named {
            match self.jwks.missing(issuer, now_s) {
                Missing::Coming => return TokenError::KeysComing,
                Missing::Unavailable => return TokenError::KeysUnavailable,
                Missing::Unknown => {}
            }
        }
        match (tried_keys, fits || published) {
            (0, false) => TokenError::Algorithm,
            (0, true) => TokenError::UnknownKey,
            _ => TokenError::Signature,
        }
    }
}

/// Returns the issuer that a token names, if any.
fn claimed_issuer(payload: &str) -> Option<String> {
    Claims::read(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?.iss
}

impl Authenticator for Authority {
    fn verify(&self, token: &str, now_s: u64) -> Result<Verified, TokenError> {
        let otherwise = &self.settings.anonymous_grants;
        let judged = self.claims(token, now_s).and_then(|claims| claims.verified(otherwise));
        self.stats.count(&judged);
        judged
    }

    fn verify_topic(&self, token: &str, now_s: u64) -> Result<TopicToken, TokenError> {
        let judged = self.claims(token, now_s).and_then(Claims::topic);
        self.stats.count(&judged);
        judged
    }

    fn anonymous_grants(&self) -> Arc<Grants> {
        self.settings.anonymous_grants.clone()
    }

    fn is_required(&self) -> bool {
        self.settings.required
    }

    fn keys_version(&self) -> u64 {
        self.jwks.version()
    }
}
