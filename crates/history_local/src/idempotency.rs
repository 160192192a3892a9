//! Idempotency keys: the message for which a key was used, so that a repeat gets the same reply.

use std::collections::{BTreeSet, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};

use tables::{HashIndex, Hashed, fold};

/// The recently used keys of all topics.
pub struct Idempotency {
    keys_max: usize,
    hasher: RandomState,
    /// The keys in the order of their use; the first has the serial `first`.
    entries: VecDeque<Entry>,
    first: u64,
    /// From this serial on offsets grow. Earlier entries were loaded.
    ordered: u64,
    /// The time by which ages are counted, in milliseconds since 1970.
    age_ms: u64,
    /// How far that is behind the time of day while this is doubted; otherwise 0.
    doubted_ms: u64,
    /// The keys that were used while the time of day is doubted, by serial.
    doubted: BTreeSet<u64>,
    /// Serials, of which 32 bits are enough: there are fewer entries.
    index: HashIndex<Hashed, 256>,
}

struct Entry {
    /// The topic's name and the key.
    text: Box<str>,
    topic_bytes: u32,
    hash: u32,
    offset: u64,
    /// When it was used, by the time of ages.
    at_ms: u64,
}

/// The largest difference of the time of day and the time of ages without a doubt, in milliseconds.
const APART_MAX_MS: u64 = 30_000;

impl Entry {
    fn is(&self, topic: &str, key: &str) -> bool {
        self.topic_bytes as usize == topic.len()
            && self.text.len() == topic.len() + key.len()
            && self.text.starts_with(topic)
            && self.text.ends_with(key)
    }

    fn is_expired(&self, now_ms: u64, seconds_max: u64) -> bool {
        now_ms.saturating_sub(self.at_ms) >= seconds_max.saturating_mul(1_000)
    }
}

impl Idempotency {
    /// Makes a table of at most `keys_max` keys: the last ones.
    pub fn new(keys_max: usize) -> Self {
        Idempotency {
            keys_max: keys_max.min(u32::MAX as usize / 2),
            hasher: RandomState::new(),
            entries: VecDeque::new(),
            first: 0,
            ordered: 0,
            age_ms: 0,
            doubted_ms: 0,
            doubted: BTreeSet::new(),
            index: HashIndex::default(),
        }
    }

    /// Sets the time by which ages are counted and the time of day, in milliseconds since 1970. When the time of day
    /// is doubted no longer, keys that were used meanwhile retain their age.
    pub fn set_time(&mut self, age_ms: u64, unix_ms: u64) {
        let behind_ms = unix_ms.saturating_sub(age_ms);
        let doubted_ms = if behind_ms > APART_MAX_MS { behind_ms } else { 0 };
        let before_ms = std::mem::replace(&mut self.age_ms, age_ms);
        let jump_ms = std::mem::replace(&mut self.doubted_ms, doubted_ms);
        if doubted_ms > 0 || self.doubted.is_empty() {
            return;
        }
        // Either ages are counted by the new time from now on, or the time of day has returned.
        let is_believed = age_ms.saturating_sub(before_ms) > jump_ms / 2;
        for serial in std::mem::take(&mut self.doubted) {
            let at = serial.wrapping_sub(self.first) as usize;
            if let Some(entry) = self.entries.get_mut(at).filter(|_| is_believed) {
                entry.at_ms = entry.at_ms.saturating_add(jump_ms);
            }
        }
    }

    /// Returns the offset of the message for which this key was used in the topic, less than `seconds_max` seconds
    /// ago.
    pub fn seen(&self, topic_hash: u64, topic: &str, key: &str, seconds_max: u64) -> Option<u64> {
        let serial = self.find(self.hash(topic_hash, key), topic, key)?;
        let entry = self.entry(serial)?;
        (!entry.is_expired(self.age_ms, seconds_max)).then_some(entry.offset)
    }

    /// Records the message for which a key is used now, and replaces an earlier one. Forgets expired keys, used
    /// `seconds_max` seconds ago, and the first ones beyond the limit.
    pub fn remember(
        &mut self,
        topic_hash: u64,
        topic: &str,
        key: &str,
        offset: u64,
        seconds_max: u64,
    ) {
        let at_ms = self.age_ms + self.doubted_ms;
        self.remember_at(topic_hash, topic, key, offset, at_ms, seconds_max);
    }

    /// Records a key that was used at this time of day, in milliseconds since 1970.
    pub fn remember_at(
        &mut self,
        topic_hash: u64,
        topic: &str,
        key: &str,
        offset: u64,
        at_ms: u64,
        seconds_max: u64,
    ) {
        while self.entries.front().is_some_and(|entry| entry.is_expired(self.age_ms, seconds_max)) {
            self.drop_first();
        }
        if self.keys_max == 0 {
            return;
        }
        if self.entries.len() == self.keys_max {
            self.drop_first();
        }
        let hash = self.hash(topic_hash, key);
        if let Some(former) = self.find(hash, topic, key) {
            // Its entry stays until it is the first.
            self.index.remove(hash, former);
        }
        let serial = self.first + self.entries.len() as u64;
        if self.entries.back().is_some_and(|last| last.offset >= offset) {
            self.ordered = serial;
        }
        let text = [topic, key].concat().into_boxed_str();
        let topic_bytes = topic.len() as u32;
        let is_doubted = self.doubted_ms > 0 && at_ms > self.age_ms + APART_MAX_MS;
        if is_doubted {
            self.doubted.insert(serial);
        }
        let at_ms = if is_doubted { at_ms.saturating_sub(self.doubted_ms) } else { at_ms };
        self.entries.push_back(Entry { text, topic_bytes, hash, offset, at_ms });
        self.index.insert(hash, serial as u32);
    }

    /// Forgets the message with this offset, which was not published after all, so that a repeat publishes it. Works
    /// only for one of the last offsets, because offsets grow.
    pub fn forget(&mut self, offset: u64) {
        let from = self.ordered.saturating_sub(self.first) as usize;
        let (mut low, mut high) = (from.min(self.entries.len()), self.entries.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.entries[middle].offset < offset {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        if let Some(entry) = self.entries.get(low).filter(|entry| entry.offset == offset) {
            self.index.remove(entry.hash, (self.first + low as u64) as u32);
        }
    }

    /// Visits at most `count` keys from a serial on, which include forgotten ones: serial, topic, key, offset, and
    /// time of day in milliseconds since 1970. Returns the serial where the next range begins; `None` at the end.
    pub fn each_from(
        &self,
        from: u64,
        count: usize,
        mut each: impl FnMut(u64, &str, &str, u64, u64),
    ) -> Option<u64> {
        let skipped = from.saturating_sub(self.first) as usize;
        let first = self.first.max(from);
        let mut serial = first;
        for entry in self.entries.iter().skip(skipped).take(count) {
            let Entry { text, topic_bytes, hash, offset, at_ms } = entry;
            if self.index.find(*hash, |known| known == serial as u32).is_some() {
                let (topic, key) = text.split_at(*topic_bytes as usize);
                let is_doubted = !self.doubted.is_empty() && self.doubted.contains(&serial);
                let doubted_ms = if is_doubted { self.doubted_ms } else { 0 };
                each(serial, topic, key, *offset, at_ms + doubted_ms);
            }
            serial += 1;
        }
        (serial > first).then_some(serial)
    }

    /// Returns the number of keys in memory; some may have expired.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    fn hash(&self, topic_hash: u64, key: &str) -> u32 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u64(topic_hash);
        hasher.write(key.as_bytes());
        fold(hasher.finish())
    }

    fn find(&self, hash: u32, topic: &str, key: &str) -> Option<u32> {
        let is = |serial| self.entry(serial).is_some_and(|entry| entry.is(topic, key));
        self.index.find(hash, is)
    }

    fn entry(&self, serial: u32) -> Option<&Entry> {
        self.entries.get(serial.wrapping_sub(self.first as u32) as usize)
    }

    fn drop_first(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            // The index has another serial if the key was used again.
            self.index.remove(entry.hash, self.first as u32);
            if !self.doubted.is_empty() {
                self.doubted.remove(&self.first);
            }
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HASH: u64 = 7;

    #[test]
    fn a_repeat_is_known_for_a_while() {
        let mut keys = Idempotency::new(10);
        let seen = |keys: &mut Idempotency, topic, key, now_ms| {
            keys.set_time(now_ms, now_ms);
            keys.seen(HASH, topic, key, 2)
        };
        keys.set_time(1_000, 1_000);
        keys.remember(HASH, "a", "k", 5, 2);
        assert_eq!(seen(&mut keys, "a", "k", 2_999), Some(5));
        assert_eq!(seen(&mut keys, "a", "k", 3_000), None);
        assert_eq!(seen(&mut keys, "b", "k", 1_000), None, "another topic of the same hash");
        assert_eq!(seen(&mut keys, "", "ak", 1_000), None);
        assert_eq!(seen(&mut keys, "ak", "", 1_000), None);
        // The clock went back.
        assert_eq!(seen(&mut keys, "a", "k", 10), Some(5));
        keys.set_time(3_000, 3_000);
        keys.remember(HASH, "a", "other", 6, 2);
        assert_eq!(keys.len(), 1);
    }

    #[test]
    fn a_key_that_is_used_while_the_time_of_day_is_doubted_is_known_as_long_as_any() {
        const DECADE_MS: u64 = 10 * 365 * 24 * 3_600_000;
        for (is_believed, is_passed_on) in
            [(true, false), (true, true), (false, false), (false, true)]
        {
            let mut keys = Idempotency::new(10);
            keys.set_time(0, 0);
            keys.remember(HASH, "a", "before", 4, 60);
            keys.set_time(1_000, 1_000 + DECADE_MS);
            keys.remember(HASH, "a", "k", 5, 60);
            // Another jump does not show how long ago the key was used.
            keys.set_time(20_000, 20_000 + 2 * DECADE_MS);
            assert_eq!(keys.seen(HASH, "a", "k", 60), Some(5));
            if is_passed_on {
                let mut new = Idempotency::new(10);
                new.set_time(20_000, 20_000 + 2 * DECADE_MS);
                let take = |_, topic: &str, key: &str, offset, at_ms| {
                    new.remember_at(HASH, topic, key, offset, at_ms, 60);
                };
                assert_eq!(keys.each_from(0, 10, take), Some(2));
                keys = new;
            }
            let after_ms = if is_believed { 2 * DECADE_MS } else { 0 };
            let mut known = |now_ms, key| {
                keys.set_time(now_ms + after_ms, now_ms + after_ms);
                keys.seen(HASH, "a", key, 60)
            };
            let before = Some(4).filter(|_| !is_believed);
            assert_eq!((known(59_000, "before"), known(60_999, "k")), (before, Some(5)));
            assert_eq!(known(61_000, "k"), None);
        }
    }

    #[test]
    fn a_key_without_a_written_message_is_forgotten() {
        let mut keys = Idempotency::new(10);
        // Loaded keys may come in any order.
        for (key, offset) in [("x", 9), ("y", 3), ("z", 5), ("k", 11), ("l", 12)] {
            keys.remember(HASH, "a", key, offset, 60);
        }
        keys.forget(11);
        keys.forget(10);
        assert_eq!(keys.seen(HASH, "a", "k", 60), None);
        assert_eq!(keys.seen(HASH, "a", "l", 60), Some(12));
        keys.remember(HASH, "a", "k", 13, 60);
        assert_eq!(keys.seen(HASH, "a", "k", 60), Some(13));
        // Forgetting a former use of the key must not remove the new one.
        keys.forget(11);
        assert_eq!(keys.seen(HASH, "a", "k", 60), Some(13));
    }

    proptest! {
        #[test]
        fn the_table_holds_the_last_keys(
            keys_max in 0_usize..20,
            steps in prop::collection::vec((0_u8..4, 0_u8..4, 0_u8..10, 0_u64..400), 0..300),
        ) {
            let mut keys = Idempotency::new(keys_max);
            let mut model: Vec<(String, String, u64, u64)> = Vec::new();
            let (mut now_ms, mut offset) = (0, 0);
            for (kind, topic, key, delay_ms) in steps {
                let (topic, key) = (format!("t{topic}"), format!("k{key}"));
                now_ms += delay_ms;
                keys.set_time(now_ms, now_ms);
                if kind == 0 {
                    let unwritten = offset - u64::from(offset > 3) * 3;
                    keys.forget(unwritten);
                    // The forgotten key still takes an entry.
                    for entry in model.iter_mut().filter(|entry| entry.2 == unwritten) {
                        entry.0 = "forgotten".into();
                    }
                }
                if kind == 1 {
                    let is = |entry: &&(String, String, u64, u64)| entry.0 == topic && entry.1 == key;
                    let want = model.iter().rev().find(is).filter(|entry| now_ms - entry.3 < 2_000);
                    let seen = keys.seen(HASH, &topic, &key, 2);
                    prop_assert_eq!(seen, want.map(|entry| entry.2));
                }
                if kind > 1 {
                    offset += 1;
                    keys.remember(HASH, &topic, &key, offset, 2);
                    for entry in model.iter_mut().filter(|entry| entry.0 == topic && entry.1 == key) {
                        entry.0 = "again".into();
                    }
                    model.retain(|entry| now_ms - entry.3 < 2_000);
                    model.push((topic, key, offset, now_ms));
                    model.drain(..model.len().saturating_sub(keys_max));
                    prop_assert_eq!(keys.len(), model.len());
                }
            }
        }
    }
}
