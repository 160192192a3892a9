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
    /// What logs and metrics call it.
    pub name: String,
    /// The SHA-256 of what callers send.
    pub hash: [u8; 32],
    /// What it may be used for.
    pub scopes: Vec<Scope>,
    /// When it ceases to be valid, in seconds since 1970; `None` is never.
    pub expires: Option<u64>,
    /// What all who call with it may do in a second.
    pub limits: Limits,
}

impl ApiKey {
    /// A key by its text, for everything, without end and limits.
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

/// The hash of a key, or of a session's id. Both are random and long, so nobody finds them by trying,
/// and it may be fast.
pub(super) fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// What a wall clock says, in seconds since 1970.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The principal of whoever calls a node that asks for no key.
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
    /// A key that has been used for so many calls.
    pub(super) fn new(key: ApiKey, calls: u64) -> Self {
        let ApiKey { name, hash, scopes, expires, limits } = key;
        let principal = Principal::application_with(&scopes);
        let calls = AtomicU64::new(calls);
        Key { name: name.into(), hash, scopes, expires, limits, principal, calls }
    }

    /// Whether it has this hash. It takes the same time whatever the answer.
    pub(super) fn is(&self, hash: &[u8; 32]) -> bool {
        self.hash.ct_eq(hash).into()
    }

    /// Whether it may be used for what needs this.
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
