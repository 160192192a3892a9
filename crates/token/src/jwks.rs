//! Keys that issuers publish. The caller fetches them; this module decides when, and has the keys that came.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::key::{Key, KeyError, KeySet};

/// Seconds from the end of a fetch to the next one, at least, whatever keys tokens name.
pub const FETCH_SECONDS_MIN: u64 = 5;

/// Seconds after which a failed fetch is repeated, and sooner if a token needs it.
const RETRY_SECONDS: u64 = 30;

/// A fetch that the caller has not begun after this many seconds counts as failed.
const REQUESTED_SECONDS_MAX: u64 = 10;

/// The published keys of all issuers.
pub struct Jwks {
    sources: Vec<Source>,
    /// Seconds after which keys are fetched again.
    refresh_s: u64,
    state: RwLock<FetchState>,
    /// Counts the responses and the ends of fetches.
    version: AtomicU64,
    wake: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
}

/// An address at which keys are published.
#[derive(Debug, PartialEq, Eq)]
struct Source {
    url: String,
    /// The keys count for tokens of this issuer only.
    issuer: Option<Arc<str>>,
}

#[derive(Default)]
struct FetchState {
    /// The key sets, by source.
    sets: Vec<Option<KeySet>>,
    /// By source: true while the fetch under way still has to bring its keys, or if the last one did not bring
    /// them. Its present keys are then not known.
    missing: Vec<bool>,
    /// The JSON from each address, for another process.
    read: HashMap<String, Arc<[u8]>>,
    /// When the last fetch ended, in seconds since 1970.
    ended_s: u64,
    /// True while a fetch is under way.
    fetching: bool,
    /// When that fetch began, in seconds since 1970.
    began_s: u64,
    /// Since when a token waits for a key that is not known, in seconds since 1970.
    requested_s: Option<u64>,
}

/// The state that passes to another process.
pub(crate) struct JwksState {
    /// The JSON from each address.
    pub sets: Vec<(String, Arc<[u8]>)>,
    /// When the last fetch ended, in seconds since 1970.
    pub ended_s: u64,
    /// Since when a token waits for keys, in seconds since 1970. The keys of a fetch under way count.
    pub requested_s: Option<u64>,
}

impl fmt::Debug for Jwks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jwks").field("sources", &self.sources).finish_non_exhaustive()
    }
}

/// Why a key that a token names is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// A fetch is under way, and may bring it.
    Coming,
    /// The last fetch did not bring it.
    Unknown,
    /// The keys could not be fetched, so that it may exist.
    Unavailable,
}

impl Default for Jwks {
    fn default() -> Self {
        Jwks::new(&[], &[], FETCH_SECONDS_MIN)
    }
}

impl Jwks {
    /// Keys at these addresses. Those whose address begins with one of the issuers count for tokens of
    /// that issuer only, so that no issuer speaks for another.
    pub fn new(urls: &[String], issuers: &[String], refresh_s: u64) -> Self {
        let source = |url: &String| Source {
            url: url.clone(),
            issuer: auth::issuer_of(url, issuers).map(Arc::from),
        };
        let sources: Vec<Source> = urls.iter().map(source).collect();
        let sets = sources.iter().map(|_| None).collect();
        let missing = sources.iter().map(|_| true).collect();
        Jwks {
            sources,
            refresh_s: refresh_s.max(FETCH_SECONDS_MIN),
            state: RwLock::new(FetchState { sets, missing, ..FetchState::default() }),
            version: AtomicU64::new(0),
            wake: Mutex::new(None),
        }
    }

    /// True when keys come from the same places, as often, and count for the same issuers.
    pub fn is_same(&self, other: &Jwks) -> bool {
        self.sources == other.sources && self.refresh_s == other.refresh_s
    }

    /// How long after they were fetched keys are fetched again, in seconds.
    pub fn refresh_seconds(&self) -> u64 {
        self.refresh_s
    }

    /// True when there are no addresses.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Sets the callback for a token that waits for keys: [`Jwks::begin`] is then due. The callback must not block.
    pub fn set_wake(&self, wake: impl Fn() + Send + Sync + 'static) {
        *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(wake));
    }

    /// Returns the addresses to fetch now, at this time in seconds since 1970: none or all. The caller passes what
    /// comes from each to [`Jwks::fetched`].
    pub fn begin(&self, now_s: u64) -> Vec<String> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let missing = state.missing.contains(&true);
        let wait_s = match (state.requested_s, missing) {
            (Some(_), _) => FETCH_SECONDS_MIN,
            (None, true) => RETRY_SECONDS.min(self.refresh_s),
            (None, false) => self.refresh_s,
        };
        if state.fetching || self.is_empty() || now_s.abs_diff(state.ended_s) < wait_s {
            return Vec::new();
        }
        (state.fetching, state.began_s, state.requested_s) = (true, now_s, None);
        state.missing.fill(true);
        self.sources.iter().map(|source| source.url.clone()).collect()
    }

    /// Takes the JSON from an address. Tokens that wait for one of these keys can be verified from now on, even if
    /// other keys are still being fetched. Invalid JSON leaves the keys as they were.
    ///
    /// # Errors
    /// When it is no set of keys.
    pub fn fetched(&self, url: &str, json: &[u8]) -> Result<usize, KeyError> {
        let mut set = KeySet::read(json)?;
        let (keys, mut state) =
            (set.len(), self.state.write().unwrap_or_else(PoisonError::into_inner));
        for (at, source) in self.sources.iter().enumerate().filter(|(_, it)| it.url == url) {
            set.0.iter_mut().for_each(|key| key.issuer.clone_from(&source.issuer));
            state.sets[at] = Some(set.clone());
            state.missing[at] = false;
            state.read.insert(url.into(), json.into());
        }
        // Before others see the keys: see Authority::claims.
        self.version.fetch_add(1, Ordering::Relaxed);
        Ok(keys)
    }

    /// Ends a fetch at this time, in seconds since 1970: all responses have come, or their time is over, and tokens
    /// wait no longer. A slow fetch counts from its end: otherwise the next one would begin at once, and tokens with
    /// unknown keys would wait for ever.
    pub fn end(&self, now_s: u64) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        (state.fetching, state.ended_s) = (false, now_s);
        // Before others see the end: see Authority::claims.
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the state that passes to another process.
    pub(crate) fn export(&self) -> JwksState {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let sets = state.read.iter().map(|(url, json)| (url.clone(), json.clone())).collect();
        let requested_s = state.requested_s.or_else(|| state.fetching.then_some(state.began_s));
        JwksState { sets, ended_s: state.ended_s, requested_s }
    }

    /// Takes over when the last fetch ended, and since when a token waits for keys, in seconds since 1970.
    pub(crate) fn import(&self, ended_s: u64, requested_s: Option<u64>) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        (state.ended_s, state.requested_s) = (ended_s, requested_s);
    }

    /// True when this issuer publishes its keys at an address of its own.
    pub(crate) fn has_own(&self, issuer: &str) -> bool {
        self.sources.iter().any(|source| source.issuer.as_deref() == Some(issuer))
    }

    /// Counts the responses and the ends of fetches.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    /// True if keys at this source may be of tokens that name this issuer: the keys at its own address, or if it
    /// has none, those at addresses of no issuer in particular.
    fn may_speak_for(&self, source: &Source, issuer: Option<&str>) -> bool {
        match issuer.filter(|issuer| self.has_own(issuer)) {
            None => source.issuer.is_none(),
            own => source.issuer.as_deref() == own,
        }
    }

    /// True when a key of this name is known that may be of tokens that name this issuer.
    pub(crate) fn has_named(&self, id: &str, issuer: Option<&str>) -> bool {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let mut sets = self.sources.iter().zip(&state.sets);
        sets.any(|(source, set)| {
            self.may_speak_for(source, issuer)
                && set.as_ref().is_some_and(|set| set.0.iter().any(|key| key.is_named(id)))
        })
    }

    /// Returns the first result of `test` on a key.
    pub(crate) fn find<T>(&self, mut test: impl FnMut(&Key) -> Option<T>) -> Option<T> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.sets.iter().flatten().flat_map(|set| &set.0).find_map(&mut test)
    }

    /// Called when a token that names this issuer has a key that is not known, at this time in seconds since 1970.
    pub(crate) fn missing(&self, issuer: Option<&str>, now_s: u64) -> Missing {
        if !self.sources.iter().any(|source| self.may_speak_for(source, issuer)) {
            return Missing::Unknown;
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let begins = |since_s: u64| now_s.abs_diff(since_s) < REQUESTED_SECONDS_MAX;
        if state.fetching || state.requested_s.is_some_and(begins) {
            return Missing::Coming;
        }
        if state.requested_s.is_none() && now_s.abs_diff(state.ended_s) >= FETCH_SECONDS_MIN {
            state.requested_s = Some(now_s);
            drop(state);
            if let Some(wake) = &*self.wake.lock().unwrap_or_else(PoisonError::into_inner) {
                wake();
            }
            return Missing::Coming;
        }
        let mut sources = self.sources.iter().zip(&state.missing);
        let is_missing =
            sources.any(|(source, missing)| *missing && self.may_speak_for(source, issuer));
        // With `requested_s`, the caller has not begun a fetch.
        match is_missing || state.requested_s.is_some() {
            true => Missing::Unavailable,
            false => Missing::Unknown,
        }
    }

    /// Returns the number of keys of each address, by its URL; `None` before any have come.
    pub fn state(&self) -> Vec<(String, Option<usize>)> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let counts = state.sets.iter().map(|set| set.as_ref().map(KeySet::len));
        self.sources.iter().map(|source| source.url.clone()).zip(counts).collect()
    }
}
