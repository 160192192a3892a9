//! What is asked about tokens, and what it is made of.

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

/// A longer token is none, in bytes.
const TOKEN_BYTES_MAX: usize = 16 << 10;

/// Keys that are tried on one token.
const TRIES_MAX: usize = 8;

/// What tokens have to be.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Keys that are known from the start.
    pub keys: Vec<Key>,
    /// How tokens may be signed; in any way that the keys fit where there is none.
    pub algorithms: Vec<Algorithm>,
    /// Who may issue them; anybody whose signature is right where there is none.
    pub issuers: Vec<String>,
    /// For whom they are; without it for nobody in particular.
    pub audience: Option<String>,
    /// Nothing may be done without a token.
    pub required: bool,
    /// What may be done without a token, and with one that says nothing of it.
    pub anonymous_grants: Arc<Grants>,
}

/// Says what tokens are worth.
#[derive(Debug)]
pub struct Authority {
    settings: Settings,
    jwks: Arc<Jwks>,
    revocations: Arc<Revocations>,
    stats: Arc<Stats>,
}

/// How tokens were judged.
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
    /// Tokens that counted.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Tokens that did not, by the code of the error.
    pub fn rejected(&self) -> impl Iterator<Item = (ErrorCode, u64)> {
        CODES.into_iter().zip(self.rejected.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    fn count<T>(&self, judged: &Result<T, TokenError>) {
        match judged {
            Ok(_) => &self.accepted,
            // It is looked at again.
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
    /// What has to be understood, of which nothing is.
    crit: Option<serde::de::IgnoredAny>,
}

impl Authority {
    /// An authority with these keys, of which some may still have to be fetched, and these revocations.
    pub fn new(
        settings: Settings,
        jwks: Arc<Jwks>,
        revocations: Arc<Revocations>,
        stats: Arc<Stats>,
    ) -> Self {
        Authority { settings, jwks, revocations, stats }
    }

    /// The claims of a token whose signature is right, and which is in force.
    fn claims(&self, token: &str, now_s: u64) -> Result<Claims, TokenError> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::Malformed("it is too long"));
        }
        let mut parts = token.split('.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(TokenError::Malformed("it has not three parts with dots between them"));
        };
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part);
        let header =
            decode(header).map_err(|_| TokenError::Malformed("its header is not base64url"))?;
        let header: Header = serde_json::from_slice(&header)
            .map_err(|_| TokenError::Malformed("its header is not an object with alg"))?;
        if header.crit.is_some() {
            return Err(TokenError::Malformed(
                "its header has crit, of which nothing is known here",
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
            // Where it stands says nothing of whose it is: it is not for those who publish their own.
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

    /// Which key signed a token: nothing for a key of the configuration, else the issuer that a published key is bound
    /// to, if it is bound.
    ///
    /// # Errors
    /// No known key did.
    fn verified_by(
        &self,
        token: &str,
        (payload, signature): (&str, &str),
        algorithm: Algorithm,
        id: Option<&str>,
        now_s: u64,
    ) -> Result<Option<Option<Arc<str>>>, TokenError> {
        let signed = token.get(..token.len() - signature.len() - 1).unwrap_or_default();
        let mut tries = 0;
        let mut is_by = |key: &Key| {
            if tries == TRIES_MAX || !key.fits(algorithm, id) {
                return None;
            }
            tries += 1;
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
            None => Err(self.unsigned(algorithm, (id, payload), tries, now_s)),
        }
    }

    /// Why no key was right, of so many that were tried.
    fn unsigned(
        &self,
        algorithm: Algorithm,
        (id, payload): (Option<&str>, &str),
        tries: usize,
        now_s: u64,
    ) -> TokenError {
        let fits = self.settings.keys.iter().any(|key| key.algorithms().contains(&algorithm));
        // Nobody publishes a shared key.
        let published =
            !self.jwks.is_empty() && algorithm.family() != jsonwebtoken::AlgorithmFamily::Hmac;
        // Nothing proves what the token says of its issuer: it says whose keys could.
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
        match (tries, fits || published) {
            (0, false) => TokenError::Algorithm,
            (0, true) => TokenError::UnknownKey,
            _ => TokenError::Signature,
        }
    }
}

/// What a token says of its issuer, if anything.
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
