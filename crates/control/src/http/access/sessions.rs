//! Sessions of browsers that have signed in, and failed sign-ins of addresses.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

/// Sessions of one key; a new one replaces the oldest.
const SESSIONS_PER_KEY_MAX: usize = 64;

/// Sign-ins of one address that may fail in [`WINDOW`].
const FAILURES_MAX: u32 = 10;

/// How long a failure counts, from the first of an address.
const WINDOW: Duration = Duration::from_secs(60);

/// Addresses whose failures are counted; a new one replaces the one that failed longest ago.
const ADDRESSES_MAX: usize = 4_096;

/// Random bytes of a session's id.
const ID_BYTES: usize = 32;

/// Makes a new session's id, for the browser's cookie.
pub(super) fn new_id() -> Result<String, getrandom::Error> {
    let mut bytes = [0; ID_BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(BASE64_URL_SAFE_NO_PAD.encode(bytes))
}

/// A browser that is signed in.
struct Session {
    /// The hash of the key that it signed in with.
    key: [u8; 32],
    began: Instant,
}

struct Failures {
    count: u32,
    since: Instant,
}

/// Whether an address may try to sign in.
pub(super) enum Attempt {
    May,
    /// Not until this time has passed.
    Wait(Duration),
}

/// The sessions by the hash of their ids, so that the memory reveals no id.
#[derive(Default)]
pub(super) struct Sessions {
    open: HashMap<[u8; 32], Session>,
    failures: HashMap<IpAddr, Failures>,
}

impl Sessions {
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Begins a session of a key.
    pub fn open(&mut self, id: [u8; 32], key: [u8; 32], lasts: Duration, now: Instant) {
        self.open.retain(|_, session| now < session.began + lasts);
        let of_key = || self.open.iter().filter(|(_, session)| session.key == key);
        if of_key().count() >= SESSIONS_PER_KEY_MAX
            && let Some(oldest) = of_key().min_by_key(|(_, session)| session.began)
        {
            let oldest = *oldest.0;
            self.open.remove(&oldest);
        }
        self.open.insert(id, Session { key, began: now });
    }

    /// Returns the hash of the key of a session, if the session has not expired.
    pub fn find(&mut self, id: &[u8; 32], lasts: Duration, now: Instant) -> Option<[u8; 32]> {
        let session = self.open.get(id)?;
        if now < session.began + lasts {
            return Some(session.key);
        }
        self.open.remove(id);
        None
    }

    /// Ends a session.
    pub fn close(&mut self, id: &[u8; 32]) {
        self.open.remove(id);
    }

    /// Ends the sessions of other keys than these.
    pub fn retain(&mut self, is_there: impl Fn(&[u8; 32]) -> bool) {
        self.open.retain(|_, session| is_there(&session.key));
    }

    /// Returns all sessions: the hash of each one's id, that of its key, and when it began.
    pub fn all(&self) -> impl Iterator<Item = ([u8; 32], [u8; 32], Instant)> {
        self.open.iter().map(|(id, session)| (*id, session.key, session.began))
    }

    /// Replaces the session with this id by that of another process. `None` ends it.
    pub fn replace(&mut self, id: [u8; 32], session: Option<([u8; 32], Instant)>) {
        match session {
            Some((key, began)) => _ = self.open.insert(id, Session { key, began }),
            None => _ = self.open.remove(&id),
        }
    }

    /// Returns whether an address may try to sign in.
    pub fn attempt(&mut self, address: IpAddr, now: Instant) -> Attempt {
        let Some(failures) = self.failures.get(&address) else { return Attempt::May };
        let until = failures.since + WINDOW;
        if now >= until {
            self.failures.remove(&address);
            return Attempt::May;
        }
        match failures.count < FAILURES_MAX {
            true => Attempt::May,
            false => Attempt::Wait(until - now),
        }
    }

    /// Counts a sign-in that failed.
    pub fn failed(&mut self, address: IpAddr, now: Instant) {
        if self.failures.len() >= ADDRESSES_MAX
            && !self.failures.contains_key(&address)
            && let Some((oldest, _)) =
                self.failures.iter().min_by_key(|(_, failures)| failures.since)
        {
            let oldest = *oldest;
            self.failures.remove(&oldest);
        }
        let failures = self.failures.entry(address).or_insert(Failures { count: 0, since: now });
        failures.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(n).into()
    }

    #[test]
    fn an_address_that_fails_too_often_waits() {
        let (mut sessions, now) = (Sessions::default(), Instant::now());
        let may = |sessions: &mut Sessions, n, now| {
            matches!(sessions.attempt(address(n), now), Attempt::May)
        };
        for _ in 0..FAILURES_MAX {
            assert!(may(&mut sessions, 1, now));
            sessions.failed(address(1), now);
        }
        assert!(!may(&mut sessions, 1, now) && may(&mut sessions, 2, now));
        let Attempt::Wait(wait) = sessions.attempt(address(1), now + WINDOW / 2) else { panic!() };
        assert_eq!(wait, WINDOW / 2);
        assert!(may(&mut sessions, 1, now + WINDOW));
        sessions.failed(address(1), now + WINDOW);
        assert!(may(&mut sessions, 1, now + WINDOW));
    }

    #[test]
    fn only_so_many_addresses_are_counted() {
        let (mut sessions, now) = (Sessions::default(), Instant::now());
        for n in 0..2 * ADDRESSES_MAX {
            sessions.failed(address(n as u32), now + Duration::from_micros(n as u64));
        }
        assert_eq!(sessions.failures.len(), ADDRESSES_MAX);
        assert!(!sessions.failures.contains_key(&address(0)));
    }

    #[test]
    fn a_session_ends_with_its_time_and_its_key() {
        let (mut sessions, now, lasts) =
            (Sessions::default(), Instant::now(), Duration::from_secs(10));
        sessions.open([1; 32], [7; 32], lasts, now);
        sessions.open([2; 32], [8; 32], lasts, now);
        assert_eq!(sessions.find(&[1; 32], lasts, now + lasts / 2), Some([7; 32]));
        // A reload has made all of them shorter.
        assert_eq!(sessions.find(&[1; 32], lasts / 4, now + lasts / 2), None);
        assert_eq!(sessions.find(&[1; 32], lasts, now), None);
        sessions.retain(|key| *key != [8; 32]);
        assert_eq!(sessions.len(), 0);
        sessions.open([3; 32], [7; 32], lasts, now);
        sessions.open([4; 32], [7; 32], lasts, now + lasts);
        assert_eq!(sessions.len(), 1, "the first is over");
        sessions.close(&[4; 32]);
        assert_eq!(sessions.len(), 0);
    }

    #[test]
    fn the_oldest_session_of_a_key_gives_way() {
        let (mut sessions, now, lasts) =
            (Sessions::default(), Instant::now(), Duration::from_secs(1_000));
        sessions.open([255; 32], [8; 32], lasts, now);
        for n in 0..=SESSIONS_PER_KEY_MAX as u8 {
            sessions.open([n; 32], [7; 32], lasts, now + Duration::from_secs(n.into()));
        }
        assert_eq!(sessions.len(), SESSIONS_PER_KEY_MAX + 1);
        assert_eq!(sessions.find(&[0; 32], lasts, now), None);
        assert!(sessions.find(&[255; 32], lasts, now).is_some(), "it is another key's");
        assert_ne!(new_id().unwrap(), new_id().unwrap());
    }
}
