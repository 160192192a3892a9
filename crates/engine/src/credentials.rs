//! What connections were granted by tokens, by slot.
//!
//! Sixteen bytes a connection, and only for those that have a token: what a token grants is shared by
//! all connections to which the same is granted, and whose it is, the users' own topics say in the hub.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use auth::{Grants, Principal, Source, TokenMark};
use model::Name;
use tables::{PageTable, Slab};

/// The token of one connection.
#[derive(Clone, Copy)]
struct Credential {
    /// The number of its badge and one, and [`WARNED`].
    badge: NonZeroU32,
    /// In seconds since 1970; 0 is never.
    expires_s: u32,
    mark: TokenMark,
}

const _: () = assert!(size_of::<Option<Credential>>() <= 16);

/// The client was told that its token expires.
const WARNED: u32 = 1 << 31;

/// What many tokens say alike.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Badge {
    grants: Arc<Grants>,
    info: Option<Arc<str>>,
}

/// The tokens of all connections.
#[derive(Default)]
pub(crate) struct Credentials {
    by_slot: PageTable<Credential>,
    /// Each with the number of its connections.
    badges: Slab<(Badge, u32)>,
    numbers: HashMap<Badge, u32>,
}

/// When a connection's token ends, and what goes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// Clients are told so long before, in seconds; 0 is not at all.
    pub warning_s: u32,
    /// Connections are closed over so long, in seconds, so that those whose tokens end at one moment
    /// don't come back at one moment.
    pub spread_s: u32,
}

/// What is due because of a connection's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenDue {
    /// Tell the client that it expires, at this time in seconds since 1970.
    Warn(u32),
    /// Close the connection.
    Expired,
}

impl Credentials {
    /// Takes up what a principal's token says, in place of what there was. Nothing for one without a
    /// token.
    pub fn insert(&mut self, slot: u32, principal: &Principal) {
        self.remove(slot);
        if principal.source != Source::Token {
            return;
        }
        let badge = Badge { grants: principal.grants.clone(), info: principal.info.clone() };
        let number = match self.numbers.get(&badge) {
            Some(number) => {
                self.badges[*number].1 += 1;
                *number
            }
            None => {
                let number = self.badges.insert((badge.clone(), 1));
                self.numbers.insert(badge, number);
                number
            }
        };
        // A time after 2106 is as good as never.
        let expires_s = principal.expires.map_or(0, |at| u32::try_from(at).unwrap_or(0));
        if let Some(badge) = NonZeroU32::new(number + 1) {
            self.by_slot.insert(slot, Credential { badge, expires_s, mark: principal.mark });
        }
    }

    /// The connection has no token any more.
    pub fn remove(&mut self, slot: u32) {
        let Some(gone) = self.by_slot.remove(slot) else {
            return;
        };
        let number = number(gone);
        let (badge, count) = &mut self.badges[number];
        *count -= 1;
        if *count == 0 {
            self.numbers.remove(badge);
            self.badges.remove(number);
        }
    }

    /// True when the connection has a token.
    pub fn has(&self, slot: u32) -> bool {
        self.by_slot.get(slot).is_some()
    }

    /// The principal of a connection with a token and these users; gives them back where there is none.
    pub fn principal(&self, slot: u32, users: Vec<Name>) -> Result<Principal, Vec<Name>> {
        let Some(found) = self.by_slot.get(slot) else {
            return Err(users);
        };
        let (Badge { grants, info }, _) = &self.badges[number(*found)];
        let expires = (found.expires_s > 0).then_some(found.expires_s.into());
        let (grants, info) = (grants.clone(), info.clone());
        Ok(Principal { users, grants, info, expires, mark: found.mark, source: Source::Token })
    }

    /// What the application says of a connection to others.
    pub fn info(&self, slot: u32) -> Option<&str> {
        let found = self.by_slot.get(slot)?;
        self.badges[number(*found)].0.info.as_deref()
    }

    /// What marks the token of a connection.
    pub fn mark(&self, slot: u32) -> Option<TokenMark> {
        self.by_slot.get(slot).map(|found| found.mark)
    }

    /// What is due because of a connection's token, at this time in seconds since 1970.
    pub fn due(&self, slot: u32, now_s: u64, expiry: Expiry) -> Option<TokenDue> {
        let found = self.by_slot.get(slot)?;
        let left_s = i64::from(found.expires_s) - i64::try_from(now_s).unwrap_or(i64::MAX);
        if found.expires_s == 0 {
            return None;
        }
        let late_s = spread(slot, expiry.spread_s);
        if left_s <= -i64::from(late_s) {
            return Some(TokenDue::Expired);
        }
        // The warnings are spread over the first half of the time that they leave.
        let warned = found.badge.get() & WARNED != 0;
        let early_s = expiry.warning_s - spread(slot, expiry.spread_s.min(expiry.warning_s / 2));
        let warn = !warned && expiry.warning_s > 0 && left_s > 0 && left_s <= i64::from(early_s);
        warn.then_some(TokenDue::Warn(found.expires_s))
    }

    /// Whether the client was told that its token expires.
    pub fn is_warned(&self, slot: u32) -> bool {
        self.by_slot.get(slot).is_some_and(|found| found.badge.get() & WARNED != 0)
    }

    /// The client was told that its token expires.
    pub fn set_warned(&mut self, slot: u32) {
        if let Some(found) = self.by_slot.get_mut(slot) {
            found.badge |= WARNED;
        }
    }

    /// Connections with a token.
    pub fn count(&self) -> usize {
        self.by_slot.count()
    }

    /// Gives room back that a crowd has left.
    pub fn tidy(&mut self) {
        self.by_slot.tidy();
        self.badges.tidy();
        if self.numbers.capacity() > 4 * self.numbers.len().max(64) {
            self.numbers.shrink_to(2 * self.numbers.len());
        }
    }
}

fn number(credential: Credential) -> u32 {
    (credential.badge.get() & !WARNED) - 1
}

/// The place of a slot in a span of so many seconds and one: neighbours are far apart.
fn spread(slot: u32, seconds: u32) -> u32 {
    let hash = u64::from(slot.wrapping_mul(0x9e37_79b9));
    u32::try_from((hash * (u64::from(seconds) + 1)) >> 32).unwrap_or(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use auth::Patterns;

    fn principal(pattern: &str, info: Option<&str>, expires: Option<u64>) -> Principal {
        let subscribe = vec![pattern.into()];
        let grants = Arc::new(Grants::Patterns(Patterns { subscribe, ..Patterns::default() }));
        Principal { info: info.map(Arc::from), ..Principal::token(Vec::new(), grants, expires) }
    }

    #[test]
    fn equal_grants_are_held_once_and_given_back() {
        let mut credentials = Credentials::default();
        for slot in 0..3_000 {
            // Each is made anew, as from a token.
            credentials.insert(slot, &principal("news", None, Some(100)));
        }
        credentials.insert(3_000, &principal("news", Some("{}"), None));
        assert_eq!((credentials.count(), credentials.badges.count()), (3_001, 2));
        assert_eq!(credentials.info(3_000), Some("{}"));
        let found = credentials.principal(7, vec!["al".into()]).unwrap();
        assert_eq!(found.expires, Some(100));
        assert_eq!(*found.grants, *principal("news", None, None).grants);
        // Another token in place of the one before.
        credentials.insert(3_000, &principal("news", None, None));
        assert_eq!(credentials.badges.count(), 1);
        credentials.insert(3_000, &Principal::anonymous(Vec::new()));
        assert!(!credentials.has(3_000));
        (0..3_000).for_each(|slot| credentials.remove(slot));
        credentials.tidy();
        assert_eq!((credentials.badges.count(), credentials.numbers.len()), (0, 0));
        assert!(credentials.principal(7, Vec::new()).is_err());
    }

    #[test]
    fn a_token_warns_once_and_ends_within_its_spread() {
        let expiry = Expiry { warning_s: 60, spread_s: 30 };
        let mut ends = std::collections::BTreeSet::new();
        for slot in 0..1_000 {
            let mut credentials = Credentials::default();
            credentials.insert(slot, &principal("news", None, Some(1_000)));
            let due = |credentials: &Credentials, now_s| credentials.due(slot, now_s, expiry);
            let warned = (0..1_000).find(|now| due(&credentials, *now).is_some()).unwrap();
            assert!((940..=970).contains(&warned), "{warned}");
            assert_eq!(due(&credentials, warned), Some(TokenDue::Warn(1_000)));
            credentials.set_warned(slot);
            let end = (warned..2_000).find(|now| due(&credentials, *now).is_some()).unwrap();
            assert_eq!(due(&credentials, end), Some(TokenDue::Expired));
            assert!((1_000..=1_030).contains(&end), "{end}");
            ends.insert(end);
        }
        assert_eq!(ends.len(), 31, "all seconds of the spread");
        let mut credentials = Credentials::default();
        credentials.insert(1, &principal("news", None, None));
        assert_eq!(credentials.due(1, u64::MAX, expiry), None);
        // One that comes with a token that is about to end is told at once.
        credentials.insert(1, &principal("news", None, Some(1_000)));
        assert_eq!(credentials.due(1, 999, expiry), Some(TokenDue::Warn(1_000)));
        let silent = Expiry { warning_s: 0, spread_s: 0 };
        assert_eq!(credentials.due(1, 999, silent), None);
        assert_eq!(credentials.due(1, 1_000, silent), Some(TokenDue::Expired));
    }
}
