//! The unsent bytes of a slow connection.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::core::metrics::Metrics;
use crate::core::settings::Settings;

/// The unsent bytes of a slow connection, shared with all connections that wait for the same message.
#[derive(Default)]
pub struct Outbox {
    chunks: VecDeque<Chunk>,
    /// The sent bytes of the first chunk.
    sent: usize,
    bytes: usize,
    messages: usize,
    /// The time in microseconds at which it was created: it has had unsent bytes since then.
    since_us: u64,
    pace: Pace,
}

/// Bytes in the memory of outboxes. They count from the first outbox of a shard that takes them until the last has
/// sent them.
pub struct Piece {
    bytes: Arc<[u8]>,
    metrics: Arc<Metrics>,
}

impl Piece {
    /// Counts the memory until the last outbox drops the piece.
    pub fn new(bytes: Arc<[u8]>, metrics: &Arc<Metrics>) -> Arc<Self> {
        metrics.outbox_memory.add(bytes.len() as u64);
        Arc::new(Piece { bytes, metrics: metrics.clone() })
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.metrics.outbox_memory.sub(self.bytes.len() as u64);
    }
}

/// A piece in one outbox.
pub struct Chunk {
    piece: Arc<Piece>,
    messages: u32,
}

/// Bytes of memory of a chunk besides its piece.
const CHUNK_BYTES: u64 = 64;

impl Chunk {
    /// Creates a chunk of so many messages.
    pub fn new(piece: Arc<Piece>, messages: u32) -> Self {
        piece.metrics.outbox_memory.add(CHUNK_BYTES);
        Chunk { piece, messages }
    }

    /// Returns the bytes of its piece.
    pub fn bytes(&self) -> usize {
        self.piece.bytes.len()
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.piece.metrics.outbox_memory.sub(CHUNK_BYTES);
    }
}

/// How fast bytes leave.
#[derive(Default)]
struct Pace {
    /// The beginning of the present span, in microseconds.
    since_us: u64,
    /// Bytes that left in the present span, and in the one before.
    left: usize,
    before: usize,
}

/// The span over which the pace is measured, in microseconds.
const PACE_US: u64 = 1_000_000;

impl Pace {
    fn left(&mut self, bytes: usize, now_us: u64) {
        let age_us = now_us.saturating_sub(self.since_us);
        if age_us >= PACE_US {
            self.before = if age_us < 2 * PACE_US { self.left } else { 0 };
            self.left = 0;
            self.since_us += age_us - age_us % PACE_US;
        }
        self.left += bytes;
    }

    /// Returns the bytes that left in the last whole span.
    fn now(&self, now_us: u64) -> usize {
        match now_us.saturating_sub(self.since_us) / PACE_US {
            0 => self.left.max(self.before),
            1 => self.left,
            _ => 0,
        }
    }
}

/// How much more may wait for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Capacity {
    /// At most half of the capacity is used, or the reader does not keep pace but is below its limits.
    Enough,
    /// Over half of it is used, by a reader that keeps pace.
    Half,
    /// All of it is used, by a reader that keeps pace: a burst may wait.
    Burst,
    /// It is a slow consumer, and must be closed.
    None,
}

/// While its reader keeps pace, an outbox may have so many times its limits: a burst may be more than the fastest
/// reader takes at once.
const BURST: usize = 4;

/// A reader keeps pace if it takes this part of the outbox's limit in a second.
const PACE_PART: usize = 4;

impl Outbox {
    /// Creates an empty outbox. A reader that has just become slow keeps pace for a first span.
    pub fn new(now_us: u64) -> Self {
        let pace = Pace { since_us: now_us, left: 0, before: usize::MAX };
        Outbox { pace, since_us: now_us, ..Outbox::default() }
    }

    /// Returns for how many milliseconds it has had unsent bytes without a break.
    pub fn age_ms(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.since_us) / 1_000
    }

    /// True while its reader takes at least so many bytes a second.
    pub fn keeps_pace(&self, bytes_min: usize, now_us: u64) -> bool {
        self.pace.now(now_us) >= bytes_min
    }

    /// Returns the number of unsent bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends a chunk with `sent` bytes that have left; only the first chunk may have any.
    pub fn push(&mut self, chunk: Chunk, sent: usize) {
        debug_assert!(sent == 0 || self.chunks.is_empty());
        self.bytes += chunk.bytes() - sent;
        self.messages += chunk.messages as usize;
        if self.chunks.is_empty() {
            self.sent = sent;
        }
        self.chunks.push_back(chunk);
    }

    /// Returns the unsent parts in order.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.chunks
            .iter()
            .enumerate()
            .map(|(at, chunk)| &chunk.piece.bytes[if at == 0 { self.sent } else { 0 }..])
    }

    /// Returns the unsent parts, each with its number of messages.
    pub fn export(&self) -> impl Iterator<Item = (&[u8], u32)> {
        self.parts().zip(self.chunks.iter().map(|chunk| chunk.messages))
    }

    /// Drops so many bytes, which have left.
    pub fn advance(&mut self, mut sent: usize, now_us: u64) {
        self.pace.left(sent, now_us);
        self.bytes -= sent;
        while let Some(first) = self.chunks.front() {
            let rest = first.bytes() - self.sent;
            if sent < rest {
                self.sent += sent;
                return;
            }
            sent -= rest;
            self.sent = 0;
            self.messages -= first.messages as usize;
            self.chunks.pop_front();
        }
    }

    /// True when everything has left.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns the capacity that the connection has left.
    pub fn capacity(&self, settings: &Settings, now_us: u64) -> Capacity {
        // One reply may exceed the limits, since the client's next request comes after it; so may a page of a
        // catch-up, since the next is made when this has left.
        if self.is_one() || !self.exceeds_limits(settings, 1, 2) {
            return Capacity::Enough;
        }
        match (self.exceeds_limits(settings, 1, 1), self.keeps_pace_of(settings, now_us)) {
            (false, true) => Capacity::Half,
            (false, false) => Capacity::Enough,
            (true, true) if !self.exceeds_limits(settings, BURST, 1) => Capacity::Burst,
            (true, _) => Capacity::None,
        }
    }

    /// True while the reader takes its bytes at a fair rate.
    pub fn keeps_pace_of(&self, settings: &Settings, now_us: u64) -> bool {
        self.keeps_pace(settings.outbox_bytes_max / PACE_PART, now_us)
    }

    /// True when it has more than this part of its limits.
    fn exceeds_limits(&self, settings: &Settings, times: usize, part: usize) -> bool {
        let max = |max: usize| max.saturating_mul(times) / part;
        self.bytes > max(settings.outbox_bytes_max)
            || self.messages > max(settings.outbox_messages_max)
    }

    /// True when it has exactly one chunk.
    pub fn is_one(&self) -> bool {
        self.chunks.len() == 1
    }

    /// Appends the chunks of another outbox, of which no byte may have left.
    pub fn append(&mut self, other: Outbox) {
        debug_assert_eq!(other.sent, 0);
        other.chunks.into_iter().for_each(|chunk| self.push(chunk, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outbox_gives_its_bytes_in_order_however_they_leave() {
        let metrics = Arc::new(Metrics::default());
        let chunk = |text: &str| Chunk::new(Piece::new(text.as_bytes().into(), &metrics), 1);
        for step in 1..9 {
            let mut outbox = Outbox::default();
            outbox.push(chunk("xxabc"), 2);
            outbox.push(chunk("de"), 0);
            outbox.push(chunk("fgh"), 0);
            let mut out = Vec::new();
            while !outbox.is_empty() {
                let left: Vec<u8> = outbox.parts().flatten().copied().collect();
                assert_eq!(left.len(), outbox.bytes());
                let now = step.min(left.len());
                out.extend_from_slice(&left[..now]);
                outbox.advance(now, 0);
            }
            assert_eq!(out, b"abcdefgh");
            assert_eq!((outbox.bytes, outbox.messages), (0, 0));
            assert_eq!(metrics.outbox_memory.get(), 0);
        }
    }

    #[test]
    fn a_piece_in_many_outboxes_is_one_piece_of_memory() {
        let metrics = Arc::new(Metrics::default());
        let piece = Piece::new(vec![0; 1_000].into(), &metrics);
        let mut outboxes: Vec<Outbox> = (0..50).map(|_| Outbox::new(0)).collect();
        outboxes.iter_mut().for_each(|it| it.push(Chunk::new(piece.clone(), 1), 0));
        drop(piece);
        assert_eq!(metrics.outbox_memory.get(), 1_000 + 50 * CHUNK_BYTES);
        outboxes.truncate(1);
        assert_eq!(metrics.outbox_memory.get(), 1_000 + CHUNK_BYTES);
        outboxes.clear();
        assert_eq!(metrics.outbox_memory.get(), 0);
    }

    #[test]
    fn a_reader_keeps_pace_for_a_first_second_and_while_it_reads() {
        let second = PACE_US;
        let metrics = Arc::new(Metrics::default());
        let mut outbox = Outbox::new(5 * second);
        outbox.push(Chunk::new(Piece::new(vec![0; 1_000].into(), &metrics), 1), 0);
        assert!(outbox.keeps_pace(100, 5 * second + second / 2));
        assert!(!outbox.keeps_pace(100, 6 * second), "it has read nothing");
        outbox.advance(100, 6 * second);
        assert!(outbox.keeps_pace(100, 6 * second) && outbox.keeps_pace(100, 8 * second - 1));
        assert!(!outbox.keeps_pace(100, 8 * second));
        for tenth in 0..40 {
            outbox.advance(10, 8 * second + tenth * second / 10);
            assert_eq!(outbox.keeps_pace(100, 8 * second + tenth * second / 10), tenth >= 9);
        }
    }
}
