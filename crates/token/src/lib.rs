//! JSON Web Tokens (RFC 7519) of clients: their keys, their claims and their revocations.
//!
//! Shards verify tokens with an [`Authority`]. It does no I/O and has no clock: the caller fetches the keys of
//! [`Jwks`] and stores [`Revocation`]s. A library verifies signatures, each key with the algorithms of its own kind
//! and no other: no token passes without a signature, and no public key counts as a shared one.

#![forbid(unsafe_code)]
#![warn(clippy::match_wildcard_for_single_variants, clippy::wildcard_enum_match_arm)]

mod algorithm;
mod authority;
mod claims;
mod handover;
mod jwks;
mod key;
mod revocation;
mod sign;
#[cfg(test)]
mod tests;

pub use self::handover::{JwksPart, RevocationsPart};
pub use algorithm::Algorithm;
pub use authority::{Authority, Settings, Stats};
pub use claims::{INFO_BYTES_MAX, PATTERNS_MAX, grants, info};
pub use jwks::{FETCH_SECONDS_MIN, Jwks};
pub use key::{HMAC_KEY_BYTES_MIN, Key, KeyError, KeySet};
pub use revocation::{AddOutcome, Revocation, Revocations, Revoked, id_hash};
pub use sign::{SignError, Signer, read_unverified};
