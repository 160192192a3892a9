//! What a token says once it is verified, and who verifies it.

use std::fmt;
use std::sync::Arc;

use model::{CodedError, ErrorCode, Name};

use crate::{Grants, Principal, Source, TokenMark};

/// Says what tokens are worth. No I/O and no clock: what it waits for, others fetch.
pub trait Authenticator: Send + Sync + fmt::Debug {
    /// What a client's token says, at this time in seconds since 1970.
    ///
    /// # Errors
    /// Why it counts for nothing.
    fn verify(&self, token: &str, now_s: u64) -> Result<Verified, TokenError>;

    /// What a token for one topic says, at this time in seconds since 1970.
    ///
    /// # Errors
    /// Why it counts for nothing.
    fn verify_topic(&self, token: &str, now_s: u64) -> Result<TopicToken, TokenError>;

    /// What may be done without a token.
    fn anonymous_grants(&self) -> Arc<Grants>;

    /// Nothing may be done without a token.
    fn is_required(&self) -> bool;

    /// A number that is another one as soon as a token for which [`TokenError::KeysComing`] was said
    /// may have another answer.
    fn keys_version(&self) -> u64;
}

/// What a verified token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Whose it is, the subject first.
    pub users: Vec<Name>,
    /// What its bearer may do at the most.
    pub grants: Arc<Grants>,
    /// What the application says of its bearer to others: the text of a JSON object.
    pub info: Option<Arc<str>>,
    /// When it ceases to be valid, in seconds since 1970; `None` is never.
    pub expires: Option<u64>,
    /// What a revocation needs to know of it.
    pub mark: TokenMark,
}

/// What a token for one topic says: one of these users may enter the topic, see who is there and read
/// what was before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicToken {
    /// Whose it is.
    pub users: Vec<Name>,
    /// The topic.
    pub topic: Name,
}

impl TopicToken {
    /// Whether it is for this topic and for one of the principal's users.
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

/// The issuer whose keys an address has: the longest, for one may be within another, with which it begins.
/// Keys at any other address are nobody's in particular.
pub fn issuer_of<'i>(url: &str, issuers: &'i [String]) -> Option<&'i str> {
    let within = |issuer: &&'i str| {
        let issuer = issuer.trim_end_matches('/');
        url.strip_prefix(issuer).is_some_and(|rest| rest.starts_with('/'))
    };
    issuers.iter().map(String::as_str).filter(within).max_by_key(|issuer| issuer.len())
}

/// Why a token counts for nothing. The text says what happened, whose fault it is and what to do; it
/// repeats nothing of the token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is none.
    #[error("this is not a JSON Web Token: {0}")]
    Malformed(&'static str),
    /// It is signed in a way that is not allowed here.
    #[error(
        "the token is signed in a way that doesn't count here: the server's configuration \
         (auth.algorithms and the keys of auth) says which do"
    )]
    Algorithm,
    /// No key is known that could have signed it.
    #[error("the token is signed with a key that this server doesn't know")]
    UnknownKey,
    /// The same, and the keys are being fetched: ask again in a moment.
    #[error("the server is fetching the keys of this token's issuer: try again in a moment")]
    KeysComing,
    /// The same, and the keys could not be fetched.
    #[error("the server could not fetch the keys of this token's issuer so far: try again later")]
    KeysUnavailable,
    /// The signature is none of the keys'.
    #[error("the token's signature is not right: it was changed, or is not signed for this server")]
    Signature,
    /// Its time is over.
    #[error("the token has expired: get a new one from whoever issued it")]
    Expired,
    /// Its time has not begun.
    #[error(
        "the token is not valid yet: compare the clocks of the server and of whoever issued it"
    )]
    NotYet,
    /// It is of an issuer that does not count here.
    #[error("the token's issuer (iss) doesn't count here: see auth.issuers")]
    Issuer,
    /// It is for others.
    #[error("the token is not for this server (aud): see auth.audience")]
    Audience,
    /// It was revoked.
    #[error("the token was revoked: get a new one from whoever issued it")]
    Revoked,
    /// A claim is not what it has to be.
    #[error("the token can't be used: {0}")]
    Claim(String),
}

impl TokenError {
    /// Its name for programs.
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
