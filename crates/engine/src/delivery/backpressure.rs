//! Messages on their way to the members of topics, and whether the members keep pace.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use model::Message;

use crate::delivery::outbox::Capacity;

/// Messages on their way are counted by the hash of their topic, in so many counters. Two topics that share a counter
/// slow each other's publishers for the time of a fan-out.
pub const COUNTERS: usize = 1024;

/// Each message on its way counts so many bytes besides its payload: few large ones slow publishers as much as many
/// small ones.
const MESSAGE_BYTES: u64 = 1 << 10;

/// The engine scans waiting connections, and members that must catch up, again after so many microseconds. The
/// interval grows by as much for each [`SCAN_ITEMS`] of them.
pub const SCAN_US: u64 = 1_000;
/// See [`SCAN_US`].
pub const SCAN_ITEMS: usize = 256;

/// A member out of capacity makes its topic reject publishers that can't wait, for at most so many microseconds in a
/// row.
pub const FULL_US_MAX: u64 = 2_000_000;

/// A member's shortage of capacity is remembered for so many microseconds: until then `FULL_US_MAX` does not begin
/// anew.
pub const SHORTAGE_US: u64 = 10_000_000;

/// Messages on their way to the members of topics in one shard, and whether the members keep pace. The broker and the
/// shard write it, publishers read it.
pub struct ShardBacklog {
    /// Bytes, by the hash of the topic modulo `COUNTERS`.
    bytes: Box<[AtomicU64]>,
    /// True when `short` is not empty.
    any_short: AtomicBool,
    /// By hash, the topics with a member that keeps pace but is short of capacity: the least capacity of a member.
    short: Mutex<HashMap<u64, Capacity>>,
}

impl Default for ShardBacklog {
    fn default() -> Self {
        ShardBacklog {
            bytes: (0..COUNTERS).map(|_| AtomicU64::new(0)).collect(),
            any_short: AtomicBool::new(false),
            short: Mutex::default(),
        }
    }
}

impl ShardBacklog {
    /// True while a member of some topic is short of capacity.
    pub fn any_short(&self) -> bool {
        self.any_short.load(Ordering::Relaxed)
    }

    /// Returns the bytes on their way to the topics with this hash modulo `COUNTERS`.
    pub(crate) fn counter(&self, hash: u64) -> &AtomicU64 {
        #[expect(clippy::cast_possible_truncation, reason = "only the low bits of a hash count")]
        &self.bytes[hash as usize % COUNTERS]
    }

    /// Returns the least capacity of the topic's members.
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
            Capacity::Half | Capacity::Burst | Capacity::None => short.insert(hash, capacity),
        };
        self.any_short.store(!short.is_empty(), Ordering::Relaxed);
    }

    /// Called when the shard has ended: its messages must not delay publishers.
    pub fn end(&self) {
        self.bytes.iter().for_each(|bytes| bytes.store(0, Ordering::Relaxed));
        self.any_short.store(false, Ordering::Relaxed);
    }

    fn bytes(message: &Message) -> u64 {
        message.publication.bytes() as u64 + MESSAGE_BYTES
    }

    /// Counts a message that is on its way to its members.
    pub fn enter(&self, message: &Message) {
        self.counter(message.topic_hash).fetch_add(Self::bytes(message), Ordering::Relaxed);
    }

    /// Called when a message has reached all of its members.
    pub fn leave(&self, message: &Message) {
        self.counter(message.topic_hash).fetch_sub(Self::bytes(message), Ordering::Relaxed);
    }
}
