//! Session tickets (RFC 8446, 4.6.1; RFC 5077 in TLS 1.2). A client shows its ticket when it connects again, and both
//! sides save the signatures. The session is in the ticket, encrypted, so the server stores nothing.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::rand;
use rustls::server::ProducesTickets;
use zeroize::Zeroizing;

/// Seconds for which a key encrypts new tickets. Then the next key does.
pub const TICKET_KEY_SECONDS: u64 = 12 * 3_600;

/// Seconds for which a ticket is valid, as the server announces it to clients. The server accepts the ticket until it
/// forgets the key: for this time at least, and for twice this time at most.
pub const TICKET_SECONDS: u32 = 12 * 3_600;

/// Seconds after which the server forgets a key: clients store the last tickets of that key for no longer.
const KEY_LIFETIME_SECONDS: u64 = TICKET_KEY_SECONDS + TICKET_SECONDS as u64;

/// The key that encrypts, and the one before it.
const KEYS: usize = 2;

const NAME_BYTES: usize = 16;
const KEY_BYTES: usize = 32;

/// The version of the format of exports.
const FORMAT: u8 = 1;

/// The keys of tickets. A clone shares them: all listeners and threads use the same, and the next process imports them.
///
/// A stolen key decrypts the recorded traffic of TLS 1.2 sessions whose tickets it has encrypted. So keys are never
/// written to disk, and each is forgotten after a day (RFC 9325, 3.4).
#[derive(Clone)]
pub struct TicketKeys(Arc<RwLock<VecDeque<Key>>>);

/// The newest key is first.
struct Key {
    /// Each ticket begins with the name of its key. It is random.
    name: [u8; NAME_BYTES],
    bytes: Zeroizing<[u8; KEY_BYTES]>,
    /// When the key was made, in seconds since 1970.
    created: u64,
    expanded: LessSafeKey,
}

/// Why there are no keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TicketKeysError {
    /// The kernel has no random numbers.
    #[error("the kernel returned no random numbers for the keys of TLS tickets")]
    Random,
    /// The bytes are not what `export` writes.
    #[error(
        "the keys of TLS tickets from the other process can't be read: clients can't resume their sessions"
    )]
    Damaged,
}

impl TicketKeys {
    /// Makes the first key; `now` is in seconds since 1970.
    ///
    /// # Errors
    /// When there are no random numbers.
    pub fn new(now: u64) -> Result<Self, TicketKeysError> {
        Ok(TicketKeys(Arc::new(RwLock::new(VecDeque::from([Key::random(now)?])))))
    }

    /// Makes the next key if it is due, and forgets keys that are too old; `now` is in seconds since 1970. Call it
    /// every minute or so, and after an import. Returns whether it made a key.
    ///
    /// A key whose creation time is too far in the future counts as old, too, so a wrong clock does not extend its
    /// lifetime.
    ///
    /// # Errors
    /// When there are no random numbers. No key changes then.
    pub fn rotate(&self, now: u64) -> Result<bool, TicketKeysError> {
        {
            let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
            if !is_due(&keys, now) && !keys.iter().any(|key| key.is_expired(now)) {
                return Ok(false);
            }
        }
        let next = Key::random(now)?;
        let mut keys = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have rotated since.
        let is_rotated = is_due(&keys, now);
        if is_rotated {
            keys.push_front(next);
        }
        keys.truncate(KEYS);
        keys.retain(|key| !key.is_expired(now));
        Ok(is_rotated)
    }

    /// Returns the keys as bytes, for the next process.
    pub fn export(&self) -> Zeroizing<Vec<u8>> {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        // One allocation, so that growing leaves no copies in memory.
        let mut bytes = Zeroizing::new(Vec::with_capacity(1 + KEYS * Key::EXPORT_BYTES));
        bytes.push(FORMAT);
        for key in keys.iter() {
            bytes.extend_from_slice(&key.created.to_be_bytes());
            bytes.extend_from_slice(&key.name);
            bytes.extend_from_slice(&*key.bytes);
        }
        bytes
    }

    /// Reads bytes that `export` wrote.
    ///
    /// # Errors
    /// When the bytes are something else.
    pub fn import(bytes: &[u8]) -> Result<Self, TicketKeysError> {
        let keys = match bytes {
            [FORMAT, keys @ ..] => keys.chunks(Key::EXPORT_BYTES),
            _ => return Err(TicketKeysError::Damaged),
        };
        if !(1..=KEYS).contains(&keys.len()) {
            return Err(TicketKeysError::Damaged);
        }
        let keys: Option<_> = keys.map(Key::import).collect();
        let keys = keys.ok_or(TicketKeysError::Damaged)?;
        Ok(TicketKeys(Arc::new(RwLock::new(keys))))
    }

    /// Makes a ticket that only [`TicketKeys::open`] with the same context reads.
    fn seal(&self, context: &[u8], plain: &[u8]) -> Option<Vec<u8>> {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let key = keys.front()?;
        // A key may have 2^32 random nonces (NIST SP 800-38D, 8.3): 99,000 tickets a second.
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let mut ticket = Vec::with_capacity(NAME_BYTES + NONCE_LEN + plain.len() + 16);
        ticket.extend_from_slice(&key.name);
        ticket.extend_from_slice(&nonce);
        ticket.extend_from_slice(plain);
        let text = &mut ticket[NAME_BYTES + NONCE_LEN..];
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = key.expanded.seal_in_place_separate_tag(nonce, Aad::from(context), text).ok()?;
        ticket.extend_from_slice(tag.as_ref());
        Some(ticket)
    }

    fn open(&self, context: &[u8], ticket: &[u8]) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_first_chunk::<NAME_BYTES>()?;
        let (nonce, text) = rest.split_first_chunk::<NONCE_LEN>()?;
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let key = keys.iter().find(|key| key.name == *name)?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let mut text = text.to_vec();
        let opened = key.expanded.open_in_place(nonce, Aad::from(context), &mut text).ok()?;
        let plain_bytes = opened.len();
        text.truncate(plain_bytes);
        Some(text)
    }
}

/// Returns true if the next key is due.
fn is_due(keys: &VecDeque<Key>, now: u64) -> bool {
    keys.front().is_none_or(|key| now.abs_diff(key.created) >= TICKET_KEY_SECONDS)
}

impl fmt::Debug for TicketKeys {
    /// Prints no keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketKeys").finish_non_exhaustive()
    }
}

impl Key {
    const EXPORT_BYTES: usize = 8 + NAME_BYTES + KEY_BYTES;

    fn new(name: [u8; NAME_BYTES], bytes: [u8; KEY_BYTES], created: u64) -> Option<Self> {
        let bytes = Zeroizing::new(bytes);
        let expanded = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &*bytes).ok()?);
        Some(Key { name, bytes, created, expanded })
    }

    fn is_expired(&self, now: u64) -> bool {
        now.abs_diff(self.created) >= KEY_LIFETIME_SECONDS
    }

    fn random(now: u64) -> Result<Self, TicketKeysError> {
        let (mut name, mut bytes) = ([0; NAME_BYTES], [0; KEY_BYTES]);
        rand::fill(&mut name).map_err(|_| TicketKeysError::Random)?;
        rand::fill(&mut bytes).map_err(|_| TicketKeysError::Random)?;
        Key::new(name, bytes, now).ok_or(TicketKeysError::Random)
    }

    fn import(bytes: &[u8]) -> Option<Self> {
        let (created, rest) = bytes.split_first_chunk()?;
        let (name, rest) = rest.split_first_chunk()?;
        Key::new(*name, rest.try_into().ok()?, u64::from_be_bytes(*created))
    }
}

/// The tickets of one acceptor.
#[derive(Debug)]
pub(crate) struct Ticketer {
    pub(crate) keys: TicketKeys,
    /// A hash of what clients must prove. A ticket is valid only at listeners with the same requirements: a client
    /// without a certificate can't take the ticket of one listener to another that requires a certificate.
    pub(crate) context: [u8; 32],
}

impl ProducesTickets for Ticketer {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        TICKET_SECONDS
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.keys.seal(&self.context, plain)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.keys.open(&self.context, ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_700_000_000;

    #[test]
    fn tickets_stay_valid_for_one_rotation_and_an_import() {
        let keys = TicketKeys::new(START).unwrap();
        let ticket = keys.seal(b"here", b"session").unwrap();
        assert_eq!(keys.open(b"here", &ticket).unwrap(), b"session");
        assert_eq!(keys.rotate(START + TICKET_KEY_SECONDS - 1), Ok(false));
        assert_eq!(keys.rotate(START + TICKET_KEY_SECONDS), Ok(true));
        let keys = TicketKeys::import(&keys.export()).unwrap();
        assert_eq!(keys.open(b"here", &ticket).unwrap(), b"session");
        let later = keys.seal(b"here", b"later").unwrap();
        assert_eq!(keys.rotate(START + TICKET_KEY_SECONDS), Ok(false));
        assert_eq!(keys.rotate(START + 2 * TICKET_KEY_SECONDS), Ok(true));
        assert_eq!(keys.open(b"here", &ticket), None);
        assert_eq!(keys.open(b"here", &later).unwrap(), b"later");
    }

    #[test]
    fn a_key_is_forgotten_in_time_however_late_the_rotation_is() {
        let keys = TicketKeys::new(START).unwrap();
        let ticket = keys.seal(b"here", b"session").unwrap();
        // The rotation is late: it is not due again when the first key expires.
        assert_eq!(keys.rotate(START + KEY_LIFETIME_SECONDS - 1), Ok(true));
        assert_eq!(keys.open(b"here", &ticket).unwrap(), b"session");
        assert_eq!(keys.rotate(START + KEY_LIFETIME_SECONDS), Ok(false));
        assert_eq!(keys.open(b"here", &ticket), None);
        assert!(keys.seal(b"here", b"session").is_some());
        // After a long pause, for example an import of old keys, no old key is left.
        let ticket = keys.seal(b"here", b"session").unwrap();
        assert_eq!(keys.rotate(START + 10 * KEY_LIFETIME_SECONDS), Ok(true));
        assert_eq!(keys.open(b"here", &ticket), None);
    }

    #[test]
    fn a_clock_that_was_wrong_does_not_keep_a_key() {
        let keys = TicketKeys::new(START + KEY_LIFETIME_SECONDS).unwrap();
        let ticket = keys.seal(b"here", b"session").unwrap();
        // A clock that goes back by some seconds changes nothing.
        assert_eq!(keys.rotate(START + KEY_LIFETIME_SECONDS - 10), Ok(false));
        assert_eq!(keys.rotate(START), Ok(true));
        assert_eq!(keys.open(b"here", &ticket), None);
        assert_eq!(keys.rotate(START + 1), Ok(false));
    }

    #[test]
    fn tickets_of_other_keys_or_contexts_and_damaged_ones_are_invalid() {
        let keys = TicketKeys::new(START).unwrap();
        let ticket = keys.seal(b"here", b"session").unwrap();
        assert_eq!(keys.open(b"there", &ticket), None);
        assert_eq!(TicketKeys::new(START).unwrap().open(b"here", &ticket), None);
        for position in 0..ticket.len() {
            let mut damaged = ticket.clone();
            damaged[position] ^= 1;
            assert_eq!(keys.open(b"here", &damaged), None, "byte {position}");
            assert_eq!(keys.open(b"here", &ticket[..position]), None, "cut at {position}");
        }
    }

    #[test]
    fn damaged_keys_are_rejected() {
        let bytes = TicketKeys::new(START).unwrap().export();
        for end in 0..bytes.len() {
            assert!(TicketKeys::import(&bytes[..end]).is_err(), "cut at {end}");
        }
        let twice: Vec<_> = bytes.iter().chain(&bytes[1..]).chain(&bytes[1..]).copied().collect();
        assert!(TicketKeys::import(&twice).is_err());
        assert!(TicketKeys::import(&[&[2], &bytes[1..]].concat()).is_err());
    }
}
