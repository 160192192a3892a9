//! Passes cursors, and their counts of deliveries, to another process.

use minicbor::{Decode, Encode};
use model::Name;
use model::name::personal;

use super::{Cursors, Entry, OWN, USES};
use crate::delivery_counts::DeliveryCountsRecord;
use crate::slab::{List, NONE};

/// A cursor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct CursorRecord {
    #[n(0)]
    acknowledged: Option<u64>,
    #[n(1)]
    given_up: Option<u64>,
    /// When it was last used, in the steps of [`Entry::used`].
    #[cbor(n(2), default)]
    used: u32,
}

/// The user and the topic of a cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whose {
    user: Name,
    topic: Name,
}

impl Entry {
    /// The key of its records: the length of the user's name in two bytes, the higher one first, and the
    /// names of the user and of the topic. [`OWN`] as length is the user's own topic, without its name.
    fn key(&self) -> Vec<u8> {
        let mut key = Vec::with_capacity(2 + self.text.len());
        key.extend(self.user_bytes.to_be_bytes());
        key.extend(self.text.as_bytes());
        key
    }

    fn record(&self) -> CursorRecord {
        let cursor = self.cursor();
        let (acknowledged, given_up) = (cursor.acknowledged, cursor.given_up);
        CursorRecord { acknowledged, given_up, used: self.used }
    }
}

impl Whose {
    /// Parses the key of a record; `None` if it is invalid.
    pub fn of_key(key: &[u8]) -> Option<Self> {
        let (user_bytes, text) = key.split_first_chunk::<2>()?;
        let text = std::str::from_utf8(text).ok()?;
        let (user, topic) = match u16::from_be_bytes(*user_bytes) {
            OWN => (text, personal(text)),
            bytes => {
                let (user, topic) = text.split_at_checked(bytes.into())?;
                (user, topic.into())
            }
        };
        Some(Whose { user: user.into(), topic })
    }
}

impl Cursors {
    /// Visits the cursors in a range of numbers. Returns where the next range begins; `None` at the end.
    pub fn each(
        &self,
        from: u32,
        count: u32,
        mut each: impl FnMut(Vec<u8>, CursorRecord),
    ) -> Option<u32> {
        self.each_entry(from, count, |_, entry| each(entry.key(), entry.record()))
    }

    /// Visits the counts of deliveries in the same way.
    pub fn each_delivery_count(
        &self,
        from: u32,
        count: u32,
        mut each: impl FnMut(Vec<u8>, DeliveryCountsRecord),
    ) -> Option<u32> {
        if self.delivery_counts.is_empty() {
            return None;
        }
        self.each_entry(from, count, |at, entry| {
            if let Some(record) = self.delivery_counts.record(at) {
                each(entry.key(), record);
            }
        })
    }

    fn each_entry(&self, from: u32, count: u32, mut each: impl FnMut(u32, &Entry)) -> Option<u32> {
        let end = self.entries.slots();
        let to = from.saturating_add(count).min(end);
        for at in from..to {
            if let Some(entry) = self.entries.get(at) {
                each(at, entry);
            }
        }
        (to < end).then_some(to)
    }

    /// Imports a cursor of another process. Limits apply only in [`Cursors::settle`].
    pub fn put(&mut self, Whose { user, topic }: &Whose, record: CursorRecord) {
        let CursorRecord { acknowledged, given_up, used } = record;
        let at = self.find_or_add(user, topic);
        let entry = &mut self.entries[at];
        entry.is_known = acknowledged.is_some();
        entry.acknowledged = acknowledged.unwrap_or(0);
        entry.given_up = given_up.unwrap_or(0);
        entry.used = used;
        self.entries.unlink(&mut self.used, at);
        self.entries.link(&mut self.used, at);
        self.uses = self.uses.max((u64::from(used) + 1) * USES);
    }

    /// Imports the deliveries that another process counted.
    pub fn put_delivery_counts(
        &mut self,
        Whose { user, topic }: &Whose,
        record: DeliveryCountsRecord,
    ) {
        let at = self.find_or_add(user, topic);
        self.delivery_counts.put(at, record);
    }

    /// Removes an imported cursor that the other process no longer has.
    pub fn remove(&mut self, Whose { user, topic }: &Whose) {
        if let Some(at) = self.find(self.hash(user, topic), user, topic) {
            self.drop(at);
        }
    }

    /// Removes a cursor's imported counts, which the other process no longer has.
    pub fn remove_delivery_counts(&mut self, Whose { user, topic }: &Whose) {
        if let Some(at) = self.find(self.hash(user, topic), user, topic) {
            self.delivery_counts.done(at, u64::MAX);
        }
    }

    /// Ends the import: drops cursors beyond this process's limits.
    pub fn settle(&mut self) {
        if self.entries.len() > self.cursors_max / 2 {
            // The last used cursors must stay.
            self.order_by_use();
        }
        while self.entries.len() > self.cursors_max {
            self.drop_oldest();
        }
    }

    fn order_by_use(&mut self) {
        let mut all = Vec::with_capacity(self.entries.len());
        let mut at = self.used.oldest;
        while at != NONE {
            all.push((self.entries[at].used, at));
            at = self.entries.newer(at);
        }
        all.sort_by_key(|(used, _)| *used);
        self.used = List::EMPTY;
        for (_, at) in all {
            self.entries.link(&mut self.used, at);
        }
    }

    fn find_or_add(&mut self, user: &str, topic: &str) -> u32 {
        let hash = self.hash(user, topic);
        match self.find(hash, user, topic) {
            Some(at) => at,
            None => self.add(hash, Entry::new(user, topic)),
        }
    }
}
