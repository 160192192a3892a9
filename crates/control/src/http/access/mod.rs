//! Access to the API: its keys with their scopes, and the sessions of browsers that have signed in with one.

mod key;
mod rates;
mod required_scope;
mod sessions;
mod sign_ins;

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use proxies::Networks;

pub use key::ApiKey;
pub(crate) use key::Key;
use model::ErrorCode;
pub(crate) use rates::{COMMAND, PUBLISH, RejectionCounts};
pub(crate) use required_scope::{RequiredScope, Row, Table};
use sessions::{Attempt, Sessions};
pub use sign_ins::SignIns;

use super::Rejection;
use super::host::{host_name, is_local};

/// The configuration of access.
#[derive(Clone, Default)]
pub struct AccessSettings {
    /// The keys. While there is none, no call requires one.
    pub keys: Vec<ApiKey>,
    /// Names that browsers may have for this port, beside `localhost` and addresses.
    pub hosts: Vec<String>,
    /// Proxies that are trusted to name their clients.
    pub proxies: Networks,
    /// How long a browser stays signed in.
    pub session: Duration,
}

/// The keys and sessions that may call: shared by all requests, and changed by a reload.
#[derive(Default)]
pub struct Access {
    ring: RwLock<Arc<Ring>>,
    sessions: Mutex<Sessions>,
    rejected: [AtomicU64; COUNTED.len() + 1],
    /// Calls that were rejected for the rates of keys.
    pub(crate) rejections: RejectionCounts,
}

/// The settings in force.
#[derive(Default)]
pub(crate) struct Ring {
    keys: Vec<Arc<Key>>,
    hosts: Vec<String>,
    proxies: Networks,
    session: Duration,
}

/// Codes of rejections that have a count of their own.
const COUNTED: [ErrorCode; 9] = [
    ErrorCode::BadHost,
    ErrorCode::BadKey,
    ErrorCode::CrossOrigin,
    ErrorCode::ExpiredKey,
    ErrorCode::InsufficientScope,
    ErrorCode::NoKey,
    ErrorCode::NoSession,
    ErrorCode::RateLimited,
    ErrorCode::TooManyAttempts,
];

/// The label of all other rejections.
const OTHER: &str = "other";

impl Access {
    /// Access with these settings.
    pub fn new(settings: AccessSettings) -> Arc<Self> {
        let access = Access::default();
        access.set(settings);
        Arc::new(access)
    }

    /// Changes the settings. Sessions of keys that are gone end.
    pub fn set(&self, settings: AccessSettings) {
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        let before = ring.clone();
        let key = |key: ApiKey| {
            // The count of a key's calls continues under the key's name.
            let old = before.keys.iter().find(|old| *old.name == *key.name);
            Arc::new(Key::new(key, old.map_or(0, |old| old.calls.load(Ordering::Relaxed))))
        };
        let AccessSettings { keys, hosts, proxies, session } = settings;
        let keys = keys.into_iter().map(key).collect();
        *ring = Arc::new(Ring { keys, hosts, proxies, session });
        self.sessions().retain(|hash| ring.keys.iter().any(|key| key.hash == *hash));
    }

    pub(crate) fn ring(&self) -> Arc<Ring> {
        self.ring.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the caller with this token in `Authorization: Bearer`.
    pub(crate) fn by_token(&self, ring: &Ring, token: &str) -> Result<Caller, Rejection> {
        let key = ring.find(&key::hash(token)).ok_or_else(|| {
            let message = "this is not an API key of this node";
            Rejection::with_status(StatusCode::UNAUTHORIZED, ErrorCode::BadKey, message)
        })?;
        Caller::with(key, None)
    }

    /// Returns the caller whose browser sent this session.
    pub(crate) fn by_session(&self, ring: &Ring, id: &str) -> Result<Caller, Rejection> {
        let id = key::hash(id);
        let hash = self.sessions().find(&id, ring.session, Instant::now());
        let key = hash.and_then(|hash| ring.find(&hash)).ok_or_else(|| {
            let message = "this session has ended: sign in again (POST /api/session)";
            Rejection::new(ErrorCode::NoSession, message)
        })?;
        Caller::with(key, Some(id))
    }

    /// Signs a browser in with a key, and returns the session's id. Rejects an address that has failed too often.
    pub(crate) fn sign_in(
        &self,
        address: IpAddr,
        key: &str,
    ) -> Result<(Caller, String), Rejection> {
        let (ring, now) = (self.ring(), Instant::now());
        if let Attempt::Wait(wait) = self.sessions().attempt(address, now) {
            return Err(Rejection::too_many_attempts(wait));
        }
        let caller =
            self.by_token(&ring, key).inspect_err(|_| self.sessions().failed(address, now))?;
        if !caller.may(RequiredScope::Read) {
            return Err(caller.lacks(RequiredScope::Read));
        }
        let id = sessions::new_id().map_err(|error| {
            let message = format!("the system has no random numbers for a session: {error}");
            Rejection::new(ErrorCode::Overloaded, message)
        })?;
        let hash = caller.key.as_ref().map(|key| key.hash).unwrap_or_default();
        self.sessions().open(key::hash(&id), hash, ring.session, now);
        Ok((caller, id))
    }

    /// Ends a caller's session.
    pub(crate) fn sign_out(&self, caller: &Caller) {
        if let Some(id) = &caller.session {
            self.sessions().close(id);
        }
    }

    /// Reports whether a caller that was admitted earlier would be admitted now.
    pub(crate) fn is_valid(&self, caller: &Caller, required_scope: RequiredScope) -> bool {
        let ring = self.ring();
        let Some(key) = &caller.key else { return ring.keys.is_empty() };
        let now = ring.find(&key.hash).and_then(|key| Caller::with(key, None).ok());
        let session = caller.session.as_ref();
        now.is_some_and(|now| now.may(required_scope))
            && session
                .is_none_or(|id| self.sessions().find(id, ring.session, Instant::now()).is_some())
    }

    /// Counts a rejection by its code.
    pub(crate) fn count(&self, code: ErrorCode) {
        let at = COUNTED.iter().position(|counted| *counted == code).unwrap_or(COUNTED.len());
        self.rejected[at].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts, for the metrics.
    pub(crate) fn stats(&self) -> Stats {
        let count = |at: usize| self.rejected[at].load(Ordering::Relaxed);
        let calls = |key: &Arc<Key>| (key.name.to_string(), key.calls.load(Ordering::Relaxed));
        let label = |at: usize| COUNTED.get(at).map_or(OTHER, |code| code.text());
        Stats {
            calls: self.ring().keys.iter().map(calls).collect(),
            rejected: std::array::from_fn(|at| (label(at), count(at))),
            sessions: self.sessions().len(),
        }
    }
}

/// The counts, for the metrics.
pub(crate) struct Stats {
    /// Calls by the key's name.
    pub calls: Vec<(String, u64)>,
    /// Rejections by their code.
    pub rejected: [(&'static str, u64); COUNTED.len() + 1],
    /// Browsers that are signed in.
    pub sessions: usize,
}

impl Ring {
    /// Reports whether calls require a key.
    pub fn requires_key(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Returns the key with this hash. Compares all keys, each in constant time.
    fn find(&self, hash: &[u8; 32]) -> Option<Arc<Key>> {
        let mut found = None;
        for key in &self.keys {
            if key.is(hash) {
                found = Some(key);
            }
        }
        found.cloned()
    }

    /// Reports whether this is a name of the node: a web page can make any other one point here (DNS rebinding).
    pub fn knows(&self, host: &str) -> bool {
        let name = host_name(host);
        is_local(host) || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    /// Proxies that are trusted to name their clients.
    pub fn proxies(&self) -> &Networks {
        &self.proxies
    }

    /// How long a browser stays signed in.
    pub fn session(&self) -> Duration {
        self.session
    }
}

/// The caller of a request. Every request that reaches its call has one.
#[derive(Clone)]
pub(crate) struct Caller {
    /// `None` while the node requires no key: then the caller may do everything.
    key: Option<Arc<Key>>,
    /// Of a browser that is signed in: the hash of its session's id.
    session: Option<[u8; 32]>,
}

impl Caller {
    /// The caller of a node that requires no key.
    pub fn without_key() -> Self {
        Caller { key: None, session: None }
    }

    /// Returns the caller with this key, if the key has not expired.
    fn with(key: Arc<Key>, session: Option<[u8; 32]>) -> Result<Self, Rejection> {
        if key.expires.is_some_and(|expires| expires <= key::unix_seconds()) {
            let message =
                format!("the API key {:?} has expired: use a newer one (throng key new)", key.name);
            return Err(Rejection::new(ErrorCode::ExpiredKey, message));
        }
        Ok(Caller { key: Some(key), session })
    }

    /// The name of the caller's key in the configuration.
    pub fn name(&self) -> Option<&str> {
        self.key.as_deref().map(|key| &*key.name)
    }

    /// The key's scopes.
    pub fn scopes(&self) -> Vec<String> {
        match &self.key {
            Some(key) => key.scopes.iter().map(ToString::to_string).collect(),
            None => vec![auth::Scope::Admin.to_string()],
        }
    }

    /// The caller's principal, for the policy.
    pub fn principal(&self) -> &auth::Principal {
        match &self.key {
            Some(key) => &key.principal,
            None => key::everything(),
        }
    }

    /// Reports whether the caller may do what requires this scope.
    pub fn may(&self, required_scope: RequiredScope) -> bool {
        self.key.as_ref().is_none_or(|key| key.may(required_scope))
    }

    /// Rejects a caller who lacks this scope.
    pub fn check(&self, required_scope: RequiredScope) -> Result<(), Rejection> {
        match self.may(required_scope) {
            true => Ok(()),
            false => Err(self.lacks(required_scope)),
        }
    }

    /// Returns the rejection of a caller who lacks this scope.
    pub fn lacks(&self, required_scope: RequiredScope) -> Rejection {
        let scope = required_scope.scope();
        let (name, wants) = (self.name().unwrap_or_default(), required_scope.wants());
        let message = format!(
            "the API key {name:?} may not do this: it requires the scope {wants}, or admin"
        );
        Rejection::insufficient_scope(scope, message)
    }

    /// Counts the call.
    pub fn count(&self) {
        if let Some(key) = &self.key {
            key.calls.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Extracts the caller that the guard has let through. Rejects the request if no guard has run.
impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Rejection> {
        parts.extensions.get::<Caller>().cloned().ok_or_else(Rejection::no_key)
    }
}

#[cfg(test)]
mod tests;
