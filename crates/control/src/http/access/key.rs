//! A key of the API.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

use auth::{Principal, Scope};
use quotas::Limits;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::RequiredScope;

/// A key as the configuration has it.
#[derive(Clone)]
pub struct ApiKey {
    /// Its name in logs and metrics.
    pub name: String,
    /// The SHA-256 of its text.
    pub hash: [u8; 32],
    /// Its scopes.
    pub scopes: Vec<Scope>,
    /// When it expires, in seconds since 1970; `None` is never.
    pub expires: Option<u64>,
    /// What all its callers together may do in a second.
    pub limits: Limits,
}

impl ApiKey {
    /// A key by its text, with the scope `admin`, without expiry and limits.
    pub fn of_text(name: &str, key: &str) -> Self {
        ApiKey {
            name: name.into(),
            hash: hash(key),
            scopes: vec![Scope::Admin],
            expires: None,
            limits: Limits::NONE,
        }
    }
}

/// Hashes a key, or a session's id. Both are random and long, so that guessing them is hopeless and the hash may be
/// fast.
pub(super) fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// Returns the wall-clock time, in seconds since 1970.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns the principal of the callers of a node that requires no key.
pub(super) fn everything() -> &'static Principal {
    static EVERYTHING: LazyLock<Principal> = LazyLock::new(Principal::application);
    &EVERYTHING
}

/// A key that requests are compared with.
pub(crate) struct Key {
    pub name: Arc<str>,
    pub(super) hash: [u8; 32],
    pub(super) scopes: Vec<Scope>,
    pub(super) expires: Option<u64>,
    pub(super) limits: Limits,
    pub(super) principal: Principal,
    pub(super) calls: AtomicU64,
}

impl Key {
    /// A key that has been used for this many calls.
    pub(super) fn new(key: ApiKey, calls: u64) -> Self {
        let ApiKey { name, hash, scopes, expires, limits } = key;
        let principal = Principal::application_with(&scopes);
        let calls = AtomicU64::new(calls);
        Key { name: name.into(), hash, scopes, expires, limits, principal, calls }
    }

    /// Reports whether it has this hash, in constant time.
    pub(super) fn is(&self, hash: &[u8; 32]) -> bool {
        self.hash.ct_eq(hash).into()
    }

    /// Reports whether its scopes allow what requires this.
    pub(super) fn may(&self, required_scope: RequiredScope) -> bool {
        self.scopes.iter().any(|scope| match (required_scope, scope) {
            (_, Scope::Admin) | (RequiredScope::Nothing | RequiredScope::Key, _) => true,
            (RequiredScope::Read, Scope::Read) | (RequiredScope::Publish, Scope::Publish(_)) => {
                true
            }
            (RequiredScope::Read, Scope::Publish(_)) | (RequiredScope::Publish, Scope::Read) => {
                false
            }
            (RequiredScope::Admin, Scope::Read | Scope::Publish(_)) => false,
        })
    }
}
