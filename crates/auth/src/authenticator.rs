//! What a verified token grants, and the trait that verifies tokens.

use std::fmt;
use std::sync::Arc;

use model::{CodedError, ErrorCode, Name};

use crate::{Grants, Principal, Source, TokenMark};

/// Verifies tokens. No I/O and no clock: callers fetch the keys that it waits for.
pub trait Authenticator: Send + Sync + fmt::Debug {
    /// Verifies a client's token at this time, in seconds since 1970.
    ///
    /// # Errors
    /// With the reason why it is not valid.
    fn verify(&self, token: &str, now_s: u64) -> Result<Verified, TokenError>;

    /// Verifies a token for one topic at this time, in seconds since 1970.
    ///
    /// # Errors
    /// With the reason why it is not valid.
    fn verify_topic(&self, token: &str, now_s: u64) -> Result<TopicToken, TokenError>;

    /// Returns the grants of clients without a token.
    fn anonymous_grants(&self) -> Arc<Grants>;

    /// True if clients need a token.
    fn is_required(&self) -> bool;

    /// Returns a number that changes as soon as a token with the error [`TokenError::KeysComing`] may get another
    /// result.
    fn keys_version(&self) -> u64;
}

/// The contents of a verified token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Its users, the subject first.
    pub users: Vec<Name>,
    /// What its bearer may do at the most.
    pub grants: Arc<Grants>,
    /// The application's info about its bearer for other members: the text of a JSON object.
    pub info: Option<Arc<str>>,
    /// When it ceases to be valid, in seconds since 1970; `None` is never.
    pub expires: Option<u64>,
    /// The mark by which revocations find it.
    pub mark: TokenMark,
}

/// The contents of a token for one topic: one of these users may join the topic, see its members and read its
/// history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicToken {
    /// Its users.
    pub users: Vec<Name>,
    /// The topic.
    pub topic: Name,
}

impl TopicToken {
    /// True if it is for this topic and for one of the principal's users.
    pub fn is_for(&self, principal: &Principal, topic: &str) -> bool {
        self.topic == topic && self.users.iter().any(|user| principal.is(user))
    }
}

impl From<Verified> for Principal {
    fn from(verified: Verified) -> Self {
        let Verified { users, grants, info, expires, mark } = verified;
        Principal { users, client: None, grants, info, expires, mark, source: Source::Token }
    }
}

/// Returns the issuer whose keys an address has: the longest with which the address begins, for one issuer may be
/// within another. Keys at any other address belong to no issuer in particular.
pub fn issuer_of<'i>(url: &str, issuers: &'i [String]) -> Option<&'i str> {
    let within = |issuer: &&'i str| {
        let issuer = issuer.trim_end_matches('/');
        url.strip_prefix(issuer).is_some_and(|rest| rest.starts_with('/'))
    };
    issuers.iter().map(String::as_str).filter(within).max_by_key(|issuer| issuer.len())
}

/// Why a token is not valid. The text says what happened, whose fault it is and what to do; it repeats nothing of
/// the token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The text is no token.
    #[error("this is not a JSON Web Token: {0}")]
    Malformed(&'static str),
    /// The token is signed in a way that is not allowed here.
    #[error(
        "the token's algorithm is not accepted: the server's configuration (auth.algorithms and \
         the keys of auth) says which algorithms are"
    )]
    Algorithm,
    /// No key is known that could have signed it.
    #[error("the token is signed with a key that this server does not have")]
    UnknownKey,
    /// No known key verifies the token, and the keys of its issuer are being fetched: try again in a moment.
    #[error("the server is fetching the keys of this token's issuer: try again in a moment")]
    KeysComing,
    /// No known key verifies the token, and the keys of its issuer could not be fetched.
    #[error(
        "the server has not been able to fetch the keys of this token's issuer: try again later"
    )]
    KeysUnavailable,
    /// The signature is of no key.
    #[error(
        "the token's signature is invalid: the token was changed, or is not signed for this server"
    )]
    Signature,
    /// The token's time is over.
    #[error("the token has expired: get a new one from its issuer")]
    Expired,
    /// The token's time has not begun.
    #[error(
        "the token is not valid yet: compare the clocks of the server and of the token's issuer"
    )]
    NotYet,
    /// The token's issuer is not accepted here.
    #[error("the token's issuer (iss) is not accepted: see auth.issuers")]
    Issuer,
    /// The token is for another audience.
    #[error("the token is not for this server (aud): see auth.audience")]
    Audience,
    /// The token was revoked.
    #[error("the token was revoked: get a new one from its issuer")]
    Revoked,
    /// A claim is not valid.
    #[error("the token can't be used: {0}")]
    Claim(String),
}

impl TokenError {
    /// Returns the error code.
    pub fn code(&self) -> ErrorCode {
        match self {
            TokenError::Expired => ErrorCode::TokenExpired,
            TokenError::Revoked => ErrorCode::TokenRevoked,
            TokenError::KeysComing | TokenError::KeysUnavailable => ErrorCode::KeysUnavailable,
            TokenError::Malformed(_)
            | TokenError::Algorithm
            | TokenError::UnknownKey
            | TokenError::Signature
            | TokenError::NotYet
            | TokenError::Issuer
            | TokenError::Audience
            | TokenError::Claim(_) => ErrorCode::InvalidToken,
        }
    }
}

impl From<TokenError> for CodedError {
    fn from(error: TokenError) -> Self {
        CodedError::new(error.code(), error.to_string())
    }
}
