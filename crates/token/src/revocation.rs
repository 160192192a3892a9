//! Revocations: tokens that are no longer valid, though they have not expired.

use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

use model::Name;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

/// A revocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// The revoked tokens.
    pub revoked: Revoked,
    /// Until when it is stored, in seconds since 1970: the tokens have expired by then.
    pub until: u64,
}

/// The tokens of a revocation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Revoked {
    /// The one with this `jti`.
    Jti(String),
    /// The tokens of a user that were issued then or before, in seconds since 1970, and those without a time of
    /// issue.
    User {
        /// The user.
        user: String,
        /// The time.
        issued_before: u64,
    },
    /// The tokens of all users that were issued then or before, in seconds since 1970, and those without a time of
    /// issue.
    IssuedBefore(u64),
}

impl Revoked {
    /// Returns the text under which it is stored.
    pub fn key(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads what [`Revoked::key`] made.
    pub fn of_key(key: &str) -> Option<Self> {
        serde_json::from_str(key).ok()
    }
}

/// Returns a hash of a token's `jti`, for [`auth::TokenMark`]. Never 0.
pub fn id_hash(jti: &str) -> u32 {
    let mut hasher = SipHasher13::new();
    hasher.write(jti.as_bytes());
    let bytes = hasher.finish().to_le_bytes();
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).max(1)
}

/// All revocations.
#[derive(Debug, Default)]
pub struct Revocations {
    lists: RwLock<RevocationLists>,
    /// The number of revocations. Most servers have none, and need no lookup.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct RevocationLists {
    /// Until when each is stored.
    ids: HashMap<Box<str>, u64>,
    /// The time of issue, and until when the revocation is stored.
    users: HashMap<Name, (u64, u64)>,
    all: Option<(u64, u64)>,
}

impl RevocationLists {
    fn count(&self) -> usize {
        self.ids.len() + self.users.len() + usize::from(self.all.is_some())
    }
}

/// The outcome of adding a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddOutcome {
    /// The revocation is new, or means more tokens or a longer time than the one before.
    New,
    /// The revocation is known.
    Known,
    /// The number of revocations is at its limit, and this one is not among them.
    Full,
}

/// The parts of a token that revocations match.
pub(crate) struct Token<'a> {
    pub jti: Option<&'a str>,
    pub users: &'a [Name],
    pub issued_s: u64,
}

impl Revocations {
    /// Adds a revocation, unless there are `max` and it is not among them. Of two for the same tokens the later one
    /// counts.
    pub fn add(&self, revocation: &Revocation, max: usize) -> AddOutcome {
        let Revocation { revoked, until } = revocation;
        let mut lists = self.lists.write().unwrap_or_else(PoisonError::into_inner);
        let is_new = match revoked {
            Revoked::Jti(jti) => !lists.ids.contains_key(&**jti),
            Revoked::User { user, .. } => !lists.users.contains_key(&**user),
            Revoked::IssuedBefore(_) => lists.all.is_none(),
        };
        if is_new && lists.count() >= max {
            return AddOutcome::Full;
        }
        let later = |known: &mut (u64, u64), before: u64| {
            let latest = (known.0.max(before), known.1.max(*until));
            std::mem::replace(known, latest) != latest
        };
        let has_changed = match revoked {
            Revoked::Jti(jti) => {
                let known = lists.ids.entry(jti.as_str().into()).or_default();
                let latest = (*known).max(*until);
                std::mem::replace(known, latest) != latest
            }
            Revoked::User { user, issued_before } => {
                later(lists.users.entry(user.as_str().into()).or_default(), *issued_before)
            }
            Revoked::IssuedBefore(before) => later(lists.all.get_or_insert_default(), *before),
        };
        self.count.store(lists.count(), Ordering::Relaxed);
        if is_new || has_changed { AddOutcome::New } else { AddOutcome::Known }
    }

    /// Stores a revocation until this time, in place of one for the same tokens; without a time removes it.
    pub(crate) fn replace(&self, revoked: &Revoked, until: Option<u64>) {
        let mut lists = self.lists.write().unwrap_or_else(PoisonError::into_inner);
        match (revoked, until) {
            (Revoked::Jti(jti), Some(until)) => _ = lists.ids.insert(jti.as_str().into(), until),
            (Revoked::Jti(jti), None) => _ = lists.ids.remove(jti.as_str()),
            (Revoked::User { user, issued_before }, Some(until)) => {
                lists.users.insert(user.as_str().into(), (*issued_before, until));
            }
            (Revoked::User { user, .. }, None) => _ = lists.users.remove(user.as_str()),
            (Revoked::IssuedBefore(before), until) => {
                lists.all = until.map(|until| (*before, until))
            }
        }
        self.count.store(lists.count(), Ordering::Relaxed);
    }

    /// Removes those whose time is over, in seconds since 1970, and returns them.
    pub fn sweep(&self, now_s: u64) -> Vec<Revoked> {
        if self.count() == 0 {
            return Vec::new();
        }
        let mut gone = Vec::new();
        let mut lists = self.lists.write().unwrap_or_else(PoisonError::into_inner);
        lists.ids.retain(|jti, until| {
            let stays = *until > now_s;
            if !stays {
                gone.push(Revoked::Jti(jti.to_string()));
            }
            stays
        });
        lists.users.retain(|user, (before, until)| {
            let stays = *until > now_s;
            if !stays {
                gone.push(Revoked::User { user: user.to_string(), issued_before: *before });
            }
            stays
        });
        if let Some((before, _)) = lists.all.take_if(|(_, until)| *until <= now_s) {
            gone.push(Revoked::IssuedBefore(before));
        }
        self.count.store(lists.count(), Ordering::Relaxed);
        gone
    }

    /// Returns the first `max` revocations behind a [key](Revoked::key), in the order of their keys.
    pub fn page(&self, after: &str, max: usize) -> Vec<Revocation> {
        let all = self.list(usize::MAX).into_iter().map(|it| (it.revoked.key(), it));
        let mut page: Vec<_> = all.filter(|(key, _)| &**key > after).collect();
        let by_key = |one: &(String, _), other: &(String, _)| one.0.cmp(&other.0);
        if page.len() > max {
            page.select_nth_unstable_by(max, by_key);
            page.truncate(max);
        }
        page.sort_unstable_by(by_key);
        page.into_iter().map(|(_, revocation)| revocation).collect()
    }

    /// Returns at most `max` revocations: that of all users first, then those of users, then those of one token each.
    pub fn list(&self, max: usize) -> Vec<Revocation> {
        let lists = self.lists.read().unwrap_or_else(PoisonError::into_inner);
        let ids = lists.ids.iter().map(|(jti, until)| Revocation {
            revoked: Revoked::Jti(jti.to_string()),
            until: *until,
        });
        let users = lists.users.iter().map(|(user, (before, until))| Revocation {
            revoked: Revoked::User { user: user.to_string(), issued_before: *before },
            until: *until,
        });
        let all = lists.all.iter().map(|(before, until)| Revocation {
            revoked: Revoked::IssuedBefore(*before),
            until: *until,
        });
        all.chain(users).chain(ids).take(max).collect()
    }

    /// Returns the number of revocations.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn holds(&self, token: &Token<'_>) -> bool {
        if self.count() == 0 {
            return false;
        }
        let lists = self.lists.read().unwrap_or_else(PoisonError::into_inner);
        let before = |it: Option<&(u64, u64)>| it.is_some_and(|(at, _)| token.issued_s <= *at);
        token.jti.is_some_and(|jti| lists.ids.contains_key(jti))
            || token.users.iter().any(|user| before(lists.users.get(user)))
            || before(lists.all.as_ref())
    }
}
