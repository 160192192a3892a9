//! What is on its way to the members of topics, and whether they keep up.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use model::Message;

use crate::delivery::outbox::Capacity;

/// What is on its way is counted by topic in so many places. Two topics in one place slow each
/// other's publishers for the time of a fan-out.
pub const PLACES: usize = 1024;

/// What a message on its way counts beside its payload, in bytes: few large ones hold up as much as
/// many small ones.
const MESSAGE_BYTES: u64 = 1 << 10;

/// Connections that wait, and members that must catch up, are scanned again after so long, and
/// later the more there are: as much again for each [`SCAN_ITEMS`].
pub const SCAN_US: u64 = 1_000;
/// See [`SCAN_US`].
pub const SCAN_ITEMS: usize = 256;

/// So long in a row a member that is out of capacity has those refused who can't wait.
pub const FULL_US_MAX: u64 = 2_000_000;

/// A member that was short of capacity is remembered for so long: until then it has no new time.
pub const SHORTAGE_US: u64 = 10_000_000;

/// What is on its way to the members of topics in one shard, and whether they keep up. Written to by
/// the broker and the shard, read by whoever publishes.
pub struct Waiting {
    /// Bytes, by a topic's place.
    bytes: Box<[AtomicU64]>,
    /// There is something in `short`.
    any_short: AtomicBool,
    /// Topics of which a member that keeps pace is short of capacity, by hash: the least capacity.
    short: Mutex<HashMap<u64, Capacity>>,
}

impl Default for Waiting {
    fn default() -> Self {
        Waiting {
            bytes: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
            any_short: AtomicBool::new(false),
            short: Mutex::default(),
        }
    }
}

impl Waiting {
    /// True while a member of some topic is short of capacity.
    pub fn any_short(&self) -> bool {
        self.any_short.load(Ordering::Relaxed)
    }

    /// The bytes on their way to the topics of this place.
    pub(crate) fn place(&self, hash: u64) -> &AtomicU64 {
        #[expect(clippy::cast_possible_truncation, reason = "only the low bits of a hash count")]
        &self.bytes[hash as usize % PLACES]
    }

    /// The least capacity that a member of the topic has.
    pub fn capacity(&self, hash: u64) -> Capacity {
        if !self.any_short.load(Ordering::Relaxed) {
            return Capacity::Enough;
        }
        let short = self.short.lock().unwrap_or_else(PoisonError::into_inner);
        short.get(&hash).copied().unwrap_or(Capacity::Enough)
    }

    /// Notes the least capacity that a member of the topic has.
    pub fn set_capacity(&self, hash: u64, capacity: Capacity) {
        let mut short = self.short.lock().unwrap_or_else(PoisonError::into_inner);
        match capacity {
            Capacity::Enough => short.remove(&hash),
            Capacity::Half | Capacity::Full | Capacity::None => short.insert(hash, capacity),
        };
        self.any_short.store(!short.is_empty(), Ordering::Relaxed);
    }

    /// The shard has ended: nobody is held up by what it had.
    pub fn end(&self) {
        self.bytes.iter().for_each(|bytes| bytes.store(0, Ordering::Relaxed));
        self.any_short.store(false, Ordering::Relaxed);
    }

    fn bytes(message: &Message) -> u64 {
        message.publication.bytes() as u64 + MESSAGE_BYTES
    }

    /// A message is on its way to its members.
    pub fn enter(&self, message: &Message) {
        self.place(message.topic_hash).fetch_add(Self::bytes(message), Ordering::Relaxed);
    }

    /// It has reached them all.
    pub fn leave(&self, message: &Message) {
        self.place(message.topic_hash).fetch_sub(Self::bytes(message), Ordering::Relaxed);
    }
}
