//! Counts of deliveries, after which messages are given up.

use std::collections::HashMap;

use minicbor::{Decode, Encode};

/// Deliveries of messages that are not acknowledged yet, by cursor and message. It has at most `messages_max`
/// messages: those of the cursors with the latest deliveries. It counts a forgotten message from zero, so the server
/// delivers it more often, never less.
pub struct DeliveryCounts {
    messages_max: usize,
    young: HashMap<u32, Vec<Tried>>,
    /// The older ones. When the young ones reach their limit, they replace these.
    old: HashMap<u32, Vec<Tried>>,
    /// Messages among the young ones.
    messages: usize,
}

/// Deliveries of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Tried {
    #[n(0)]
    offset: u64,
    #[n(1)]
    count: u32,
    /// When the last one was counted, in seconds of the node's clock.
    #[n(2)]
    tried_s: u32,
}

/// The record of a cursor's messages in a handover.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct DeliveryCountsRecord {
    /// The messages, in the order of their offsets.
    #[n(0)]
    messages: Vec<Tried>,
    /// True if they are among the older ones.
    #[cbor(n(1), default)]
    is_old: bool,
}

impl DeliveryCounts {
    pub fn new(messages_max: usize) -> Self {
        DeliveryCounts { messages_max, young: HashMap::new(), old: HashMap::new(), messages: 0 }
    }

    /// Counts a delivery of a message, and returns how many there were. Deliveries within `apart_s` seconds count
    /// once.
    pub fn count(&mut self, cursor: u32, offset: u64, now_s: u32, apart_s: u32) -> u32 {
        if self.messages >= self.messages_max.div_ceil(2) {
            self.old = std::mem::take(&mut self.young);
            self.messages = 0;
        }
        let messages = &mut self.messages;
        let all = self.young.entry(cursor).or_insert_with(|| {
            let all = self.old.remove(&cursor).unwrap_or_default();
            *messages += all.len();
            all
        });
        let at = all.binary_search_by_key(&offset, |it| it.offset).unwrap_or_else(|at| {
            *messages += 1;
            all.insert(at, Tried { offset, count: 0, tried_s: 0 });
            at
        });
        let it = &mut all[at];
        if it.count == 0 || now_s.wrapping_sub(it.tried_s) >= apart_s {
            it.count = it.count.saturating_add(1);
            it.tried_s = now_s;
        }
        it.count
    }

    /// Returns true if it counts no message.
    pub fn is_empty(&self) -> bool {
        self.young.is_empty() && self.old.is_empty()
    }

    /// Returns the record of a cursor's messages.
    pub fn record(&self, cursor: u32) -> Option<DeliveryCountsRecord> {
        let young = self.young.get(&cursor);
        let messages = young.or_else(|| self.old.get(&cursor))?.clone();
        Some(DeliveryCountsRecord { messages, is_old: young.is_none() })
    }

    /// Replaces the counts of a cursor's messages by those of another process.
    pub fn put(&mut self, cursor: u32, record: DeliveryCountsRecord) {
        self.done(cursor, u64::MAX);
        let DeliveryCountsRecord { mut messages, is_old } = record;
        messages.sort_unstable_by_key(|it| it.offset);
        messages.dedup_by_key(|it| it.offset);
        if messages.is_empty() {
            return;
        }
        if !is_old {
            self.messages += messages.len();
        }
        let all = if is_old { &mut self.old } else { &mut self.young };
        all.insert(cursor, messages);
    }

    /// Removes the counts up to this offset, where all messages are done.
    pub fn done(&mut self, cursor: u32, through: u64) {
        for (all, is_young) in [(&mut self.young, true), (&mut self.old, false)] {
            let Some(tried) = all.get_mut(&cursor) else { continue };
            let before = tried.len();
            tried.retain(|it| it.offset > through);
            let gone = before - tried.len();
            if tried.is_empty() {
                all.remove(&cursor);
            }
            if is_young {
                self.messages -= gone;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_has_a_count_of_its_own() {
        let mut delivery_counts = DeliveryCounts::new(100);
        for round in 1..=3 {
            assert_eq!(delivery_counts.count(7, 10, round * 30, 30), round);
            assert_eq!(delivery_counts.count(7, 10, round * 30 + 29, 30), round, "too soon after");
        }
        // The second message was behind the first, and was delivered with it only the last time.
        assert_eq!(delivery_counts.count(7, 12, 90, 30), 1);
        assert_eq!(delivery_counts.count(8, 10, 90, 30), 1, "another user's");
        delivery_counts.done(7, 11);
        assert_eq!(delivery_counts.count(7, 12, 120, 30), 2);
        assert_eq!(delivery_counts.count(7, 10, 120, 30), 1);
    }

    #[test]
    fn delivery_counts_stay_within_their_limit() {
        let mut delivery_counts = DeliveryCounts::new(8);
        for cursor in 0..1_000 {
            assert_eq!(delivery_counts.count(cursor, 1, 0, 1), 1);
            assert_eq!(delivery_counts.count(2_000, 1, cursor, 1), cursor + 1, "it is in use");
            let entries: usize = delivery_counts
                .young
                .values()
                .chain(delivery_counts.old.values())
                .map(Vec::len)
                .sum();
            assert!(entries <= 10, "{entries}");
            delivery_counts.done(cursor, 1);
        }
        for offset in 0..100 {
            delivery_counts.count(1, offset, 0, 1);
        }
        let entries: usize =
            delivery_counts.young.values().chain(delivery_counts.old.values()).map(Vec::len).sum();
        assert!(entries <= 108, "{entries}");
    }
}
