//! By slot: what a token, or the application's response, grants to a connection.
//!
//! A credential takes 16 bytes, and only connections with a token or a response have one. Connections with equal
//! grants share one grant set. The users are not stored here: the hub has their own topics.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::sync::Arc;

use auth::{Principal, Source, TokenMark};
use hashbrown::HashTable;
use model::Name;
use tables::{PageTable, Slab};

use crate::auth::grant_set::GrantSet;

/// The token of one connection.
#[derive(Clone, Copy)]
struct Credential {
    /// The number of its grant set plus one, with the bits [`WARNED`] and [`HOOK`].
    grant_set: NonZeroU32,
    /// Seconds since 1970; 0 is never.
    expires_s: u32,
    mark: TokenMark,
}

const _: () = assert!(size_of::<Option<Credential>>() <= 16);

/// The client got a warning that its token expires, or the application got the request whether the client may stay.
const WARNED: u32 = 1 << 31;

/// The credential comes from the application, not from a token.
const HOOK: u32 = 1 << 30;

/// The application gets its request at least so many seconds before a connection ends, but not before half of the
/// connection's time is over.
const REFRESH_SECONDS_MIN: u32 = 10;

/// For so many seconds after the time of a connection is over, the engine retries its request to the application.
/// Then the connection ends without a reply.
const REFRESH_RETRY_SECONDS: u32 = 10;

/// The tokens of all connections.
#[derive(Default)]
pub(crate) struct Credentials {
    by_slot: PageTable<Credential>,
    /// Each with the number of its connections.
    grant_sets: Slab<(GrantSet, u32)>,
    /// The numbers of the grant sets, by the hashes of the sets.
    numbers: HashTable<u32>,
    hasher: RandomState,
}

/// When the server warns of the end of a token, and when it closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// Clients get a warning so many seconds before the end; 0 sends none.
    pub warning_s: u32,
    /// Closes are spread over so many seconds, so that clients whose tokens end at one moment don't all reconnect at
    /// one moment.
    pub spread_s: u32,
}

impl Expiry {
    /// How many seconds before the end the application gets the request whether a connection may stay.
    pub(crate) fn refresh_s(self) -> u32 {
        self.warning_s.max(REFRESH_SECONDS_MIN)
    }
}

/// What is due because of a connection's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenDue {
    /// Warn the client that its token expires at this time, in seconds since 1970.
    Warn(u32),
    /// Request the application's decision whether the connection, which ends at this time, may stay.
    Refresh(u32),
    /// Close the connection.
    Expired,
}

impl Credentials {
    /// Stores what a principal's token or the application grants, in place of what the connection had. A principal
    /// from neither gets no credential.
    pub fn insert(&mut self, slot: u32, principal: &Principal) {
        self.remove(slot);
        let hook = match principal.source {
            Source::Token => 0,
            Source::Hook => HOOK,
            Source::Anonymous | Source::Application => return,
        };
        let number = self.number_of(GrantSet::of(principal));
        self.grant_sets[number].1 += 1;
        // A time after 2106 is as good as never.
        let expires_s = principal.expires.map_or(0, |at| u32::try_from(at).unwrap_or(0));
        if let Some(grant_set) = NonZeroU32::new((number + 1) | hook) {
            self.by_slot.insert(slot, Credential { grant_set, expires_s, mark: principal.mark });
        }
    }

    /// Removes the credential of a connection.
    pub fn remove(&mut self, slot: u32) {
        let Some(gone) = self.by_slot.remove(slot) else {
            return;
        };
        let number = number(gone);
        let (grant_set, count) = &mut self.grant_sets[number];
        *count -= 1;
        if *count == 0 {
            let hash = self.hasher.hash_one(&*grant_set);
            if let Ok(entry) = self.numbers.find_entry(hash, |it| *it == number) {
                entry.remove();
            }
            self.grant_sets.remove(number);
        }
    }

    /// Returns the number of a grant set. Inserts the set if it has no equal.
    fn number_of(&mut self, grant_set: GrantSet) -> u32 {
        let Credentials { grant_sets, numbers, hasher, .. } = self;
        let hash = hasher.hash_one(&grant_set);
        if let Some(number) = numbers.find(hash, |it| grant_sets[*it].0 == grant_set) {
            return *number;
        }
        let number = grant_sets.insert((grant_set, 0));
        numbers.insert_unique(hash, number, |it| hasher.hash_one(&grant_sets[*it].0));
        number
    }

    /// Called before the users of a connection change. A grant set without its owner's name is replaced by one with
    /// the name, so that the token goes on to grant the same.
    pub fn users_change(&mut self, slot: u32, users: Vec<Name>) {
        let is_owners = |found: &Credential| self.grant_sets[number(*found)].0.is_owners();
        if !self.by_slot.get(slot).is_some_and(is_owners) {
            return;
        }
        let warned = self.is_warned(slot);
        if let Ok(principal) = self.principal(slot, users) {
            // Without users, `insert` leaves no name out.
            self.insert(slot, &Principal { users: Vec::new(), ..principal });
        }
        if warned {
            self.set_warned(slot);
        }
    }

    /// True when the connection has a token, or a response of the application has named its user.
    pub fn has(&self, slot: u32) -> bool {
        self.by_slot.get(slot).is_some()
    }

    /// True when a response of the application has named the user.
    pub fn is_by_hook(&self, slot: u32) -> bool {
        self.by_slot.get(slot).is_some_and(is_by_hook)
    }

    /// Returns the principal of a connection with a token and these users. Gives the users back if the connection has
    /// no token.
    pub fn principal(&self, slot: u32, users: Vec<Name>) -> Result<Principal, Vec<Name>> {
        let Some(found) = self.by_slot.get(slot) else {
            return Err(users);
        };
        let (grant_set, _) = &self.grant_sets[number(*found)];
        let expires = (found.expires_s > 0).then_some(found.expires_s.into());
        let (grants, info) = (Arc::new(grant_set.grants(&users)), grant_set.info(&users));
        let source = if is_by_hook(found) { Source::Hook } else { Source::Token };
        let mark = found.mark;
        Ok(Principal { users, client: None, grants, info, expires, mark, source })
    }

    /// Returns the info that the application gives other members about a connection with these users.
    pub fn info(&self, slot: u32, users: &[Name]) -> Option<Arc<str>> {
        let found = self.by_slot.get(slot)?;
        self.grant_sets[number(*found)].0.info(users)
    }

    /// Returns the mark of the connection's token.
    pub fn mark(&self, slot: u32) -> Option<TokenMark> {
        self.by_slot.get(slot).map(|found| found.mark)
    }

    /// Returns what is due because of a connection's token, at this time in seconds since 1970.
    pub fn due(&self, slot: u32, now_s: u64, expiry: Expiry) -> Option<TokenDue> {
        let found = self.by_slot.get(slot)?;
        let left_s = i64::from(found.expires_s) - i64::try_from(now_s).unwrap_or(i64::MAX);
        if found.expires_s == 0 {
            return None;
        }
        let warned = found.grant_set.get() & WARNED != 0;
        let late_s = spread(slot, expiry.spread_s);
        if is_by_hook(found) && !warned {
            if left_s <= -i64::from(late_s + REFRESH_RETRY_SECONDS) {
                return Some(TokenDue::Expired);
            }
            // However short the time is, half of it is left for the response.
            let half_s = found.expires_s.saturating_sub(found.mark.issued_s) / 2;
            let span_s = expiry.refresh_s().min(half_s);
            let early_s = span_s - spread(slot, expiry.spread_s.min(span_s / 2));
            return (left_s <= i64::from(early_s)).then_some(TokenDue::Refresh(found.expires_s));
        }
        if left_s <= -i64::from(late_s) {
            return Some(TokenDue::Expired);
        }
        if is_by_hook(found) {
            return None;
        }
        // The warnings are spread over the first half of the time that they leave.
        let early_s = expiry.warning_s - spread(slot, expiry.spread_s.min(expiry.warning_s / 2));
        let warn = !warned && expiry.warning_s > 0 && left_s > 0 && left_s <= i64::from(early_s);
        warn.then_some(TokenDue::Warn(found.expires_s))
    }

    /// True when the client got the warning that its token expires.
    pub fn is_warned(&self, slot: u32) -> bool {
        self.by_slot.get(slot).is_some_and(|found| found.grant_set.get() & WARNED != 0)
    }

    /// Notes that the client got the warning, or the application the request.
    pub fn set_warned(&mut self, slot: u32) {
        if let Some(found) = self.by_slot.get_mut(slot) {
            found.grant_set |= WARNED;
        }
    }

    /// Returns the number of connections with a token.
    pub fn count(&self) -> usize {
        self.by_slot.count()
    }

    /// Gives memory back after a spike.
    pub fn shrink(&mut self) {
        self.by_slot.shrink();
        self.grant_sets.shrink();
        if self.numbers.capacity() > 4 * self.numbers.len().max(64) {
            let Credentials { grant_sets, numbers, hasher, .. } = self;
            numbers.shrink_to(2 * numbers.len(), |it| hasher.hash_one(&grant_sets[*it].0));
        }
    }
}

fn number(credential: Credential) -> u32 {
    (credential.grant_set.get() & !(WARNED | HOOK)) - 1
}

fn is_by_hook(credential: &Credential) -> bool {
    credential.grant_set.get() & HOOK != 0
}

/// Spreads slots over `0..=seconds`: neighbouring slots are far apart.
fn spread(slot: u32, seconds: u32) -> u32 {
    let hash = u64::from(slot.wrapping_mul(0x9e37_79b9));
    u32::try_from((hash * (u64::from(seconds) + 1)) >> 32).unwrap_or(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use auth::{Grants, Patterns};

    fn principal(pattern: &str, info: Option<&str>, expires: Option<u64>) -> Principal {
        let subscribe = vec![pattern.into()];
        let grants = Arc::new(Grants::Patterns(Patterns { subscribe, ..Patterns::default() }));
        Principal { info: info.map(Arc::from), ..Principal::token(Vec::new(), grants, expires) }
    }

    #[test]
    fn equal_grants_are_stored_once_and_given_back() {
        let mut credentials = Credentials::default();
        for slot in 0..3_000 {
            // Each principal is built anew, as from a token.
            credentials.insert(slot, &principal("news", None, Some(100)));
        }
        credentials.insert(3_000, &principal("news", Some("{}"), None));
        assert_eq!((credentials.count(), credentials.grant_sets.count()), (3_001, 2));
        assert_eq!(credentials.info(3_000, &[]).as_deref(), Some("{}"));
        let found = credentials.principal(7, vec!["al".into()]).unwrap();
        assert_eq!(found.expires, Some(100));
        assert_eq!(*found.grants, *principal("news", None, None).grants);
        // Another token replaces the one before.
        credentials.insert(3_000, &principal("news", None, None));
        assert_eq!(credentials.grant_sets.count(), 1);
        credentials.insert(3_000, &Principal::anonymous(Vec::new()));
        assert!(!credentials.has(3_000));
        (0..3_000).for_each(|slot| credentials.remove(slot));
        credentials.shrink();
        assert_eq!((credentials.grant_sets.count(), credentials.numbers.len()), (0, 0));
        assert!(credentials.principal(7, Vec::new()).is_err());
    }

    #[test]
    fn what_was_granted_to_one_user_is_not_the_next_ones() {
        let mut credentials = Credentials::default();
        let own = |user: &str| {
            let principal = principal(&format!("chat:{user}"), None, Some(9));
            Principal { users: vec![user.into()], ..principal }
        };
        for (slot, user) in (0..).zip(["al", "bo", "cy"]) {
            credentials.insert(slot, &own(user));
        }
        assert_eq!((credentials.count(), credentials.grant_sets.count()), (3, 1));
        credentials.set_warned(0);
        // A second user logs in, and then the first one logs out.
        credentials.users_change(0, vec!["al".into()]);
        for users in [vec!["al".into(), "bo".into()], vec!["bo".into()]] {
            let found = credentials.principal(0, users.clone()).unwrap();
            assert_eq!(found, Principal { users, ..own("al") });
            credentials.users_change(0, found.users);
        }
        assert!(credentials.is_warned(0));
        assert_eq!(credentials.principal(1, vec!["bo".into()]).unwrap(), own("bo"));
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
        // A client that connects with a token about to end gets the warning at once.
        credentials.insert(1, &principal("news", None, Some(1_000)));
        assert_eq!(credentials.due(1, 999, expiry), Some(TokenDue::Warn(1_000)));
        let silent = Expiry { warning_s: 0, spread_s: 0 };
        assert_eq!(credentials.due(1, 999, silent), None);
        assert_eq!(credentials.due(1, 1_000, silent), Some(TokenDue::Expired));
    }

    /// A principal that the application admits at this time for so many seconds.
    fn let_in(issued_s: u32, seconds: u64) -> Principal {
        let mark = TokenMark { issued_s, id_hash: 0 };
        let expires = Some(u64::from(issued_s) + seconds);
        Principal { source: Source::Hook, mark, ..principal("news", None, expires) }
    }

    #[test]
    fn the_application_gets_one_request_in_time() {
        for (seconds, warning_s, spread_s, first, last) in [
            (1_000, 60, 30, 940, 970),
            (1_000, 60, 0, 940, 940),
            // Without warnings of tokens, and for a short time.
            (1_000, 0, 30, 990, 995),
            (20, 60, 30, 10, 15),
            (2, 60, 30, 1, 1),
            (1, 0, 0, 1, 1),
        ] {
            let expiry = Expiry { warning_s, spread_s };
            for slot in 0..200 {
                let mut credentials = Credentials::default();
                credentials.insert(slot, &let_in(5_000, seconds));
                assert!(credentials.is_by_hook(slot));
                let due = |credentials: &Credentials, now: u64| {
                    credentials.due(slot, 5_000 + now, expiry)
                };
                let due_s = (0..2_000).find(|now| due(&credentials, *now).is_some()).unwrap();
                assert!((first..=last).contains(&due_s), "{seconds} {warning_s}: {due_s}");
                let expires_s = u32::try_from(5_000 + seconds).unwrap();
                assert_eq!(due(&credentials, due_s), Some(TokenDue::Refresh(expires_s)));
                // The request may be late, but not for ever.
                assert_eq!(due(&credentials, seconds + 9), Some(TokenDue::Refresh(expires_s)));
                let late = seconds + u64::from(spread_s) + 10;
                assert_eq!(due(&credentials, late), Some(TokenDue::Expired));
                credentials.set_warned(slot);
                let end = (due_s..2_000).find(|now| due(&credentials, *now).is_some()).unwrap();
                assert_eq!(due(&credentials, end), Some(TokenDue::Expired));
                assert!((seconds..=seconds + u64::from(spread_s)).contains(&end));
                // The next response counts from its own time.
                credentials.insert(slot, &let_in(6_000, seconds));
                assert_eq!(due(&credentials, 1_000), None);
            }
        }
        let mut credentials = Credentials::default();
        let forever = Principal { expires: None, ..let_in(1, 1) };
        credentials.insert(1, &forever);
        let never = Expiry { warning_s: 60, spread_s: 30 };
        assert_eq!(credentials.due(1, u64::MAX, never), None);
        assert_eq!(credentials.principal(1, Vec::new()).unwrap(), forever);
        // An admission and a token with the same grants share one grant set.
        credentials.insert(2, &principal("news", None, None));
        assert!(!credentials.is_by_hook(2));
        assert_eq!(credentials.grant_sets.count(), 1);
    }
}
