//! Principals, and what they may do: one principal, one decision.
//!
//! A [`Principal`] comes with every request and every connection. A [`Policy`] decides what it may do with a topic:
//! [`Policy::decide`]. No cryptography, no clock, no I/O: callers read tokens to make principals, and end what has
//! expired.

#![forbid(unsafe_code)]
#![warn(clippy::match_wildcard_for_single_variants, clippy::wildcard_enum_match_arm)]

mod authenticator;
mod certificate_user;
mod decision;
mod deny;
mod grants;
mod patterns;
mod policy;
mod principal;
mod scope;
#[cfg(test)]
mod tests;

pub use authenticator::{Authenticator, TokenError, TopicToken, Verified, issuer_of};
pub use certificate_user::CertificateUser;
pub use decision::{Action, Audience, Consent, Decision, Hook, Permit};
pub use deny::Deny;
pub use grants::{Grants, Patterns};
pub use policy::{LoginRule, Policy};
pub use principal::{Principal, Source, TokenMark};
pub use scope::{Scope, ScopeError};
