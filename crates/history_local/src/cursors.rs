//! Users' positions in topics, up to which they have acknowledged messages.

mod handover;

use std::hash::{BuildHasher, Hasher, RandomState};

use history::Cursor;
use model::Name;
use model::name::PERSONAL;
use tables::{HashIndex, Hashed, fold};

use crate::delivery_counts::DeliveryCounts;
use crate::slab::{List, NONE, Slab};
pub use handover::{CursorRecord, Whose};

/// The last used cursors. One for a user's own topic takes about 70 bytes, plus its name if that has over 24.
pub struct Cursors {
    cursors_max: usize,
    delivery_counts: DeliveryCounts,
    hasher: RandomState,
    entries: Slab<Entry>,
    index: HashIndex<Hashed, 256>,
    /// The cursors, from the least recently used one on.
    used: List,
    /// How often any cursor was used.
    uses: u64,
}

struct Entry {
    /// The user's name, and then the topic's if that is not the user's own.
    text: Name,
    /// 0 if `is_known` is false.
    acknowledged: u64,
    /// 0 is none: offsets begin with 1.
    given_up: u64,
    /// When it was last used, in steps of [`USES`] uses of any cursor.
    used: u32,
    /// The length of the user's name, or [`OWN`].
    user_bytes: u16,
    /// True if the user has acknowledged a message, or the server assumes so.
    is_known: bool,
}

/// The mark of a user's own topic.
const OWN: u16 = u16::MAX;

/// The number of uses that only the order of the list distinguishes.
const USES: u64 = if cfg!(test) { 1 } else { 256 };

impl Entry {
    fn new(user: &str, topic: &str) -> Entry {
        let (text, user_bytes) = match is_own(user, topic) {
            true => (Name::from(user), OWN),
            false => {
                let mut text = Name::with_capacity(user.len() + topic.len());
                text.push_str(user);
                text.push_str(topic);
                (text, user.len() as u16)
            }
        };
        Entry { text, acknowledged: 0, given_up: 0, used: 0, user_bytes, is_known: false }
    }

    fn cursor(&self) -> Cursor {
        Cursor {
            acknowledged: Some(self.acknowledged).filter(|_| self.is_known),
            given_up: Some(self.given_up).filter(|offset| *offset > 0),
        }
    }

    fn done(&self) -> u64 {
        self.acknowledged.max(self.given_up)
    }

    fn is(&self, user: &str, topic: &str) -> bool {
        if self.user_bytes == OWN {
            return is_own(user, topic) && self.text == user;
        }
        self.user_bytes as usize == user.len()
            && self.text.len() == user.len() + topic.len()
            && self.text.starts_with(user)
            && self.text.ends_with(topic)
    }
}

/// Returns true if the topic is the user's personal one.
fn is_own(user: &str, topic: &str) -> bool {
    topic.strip_prefix(PERSONAL) == Some(user)
}

impl Cursors {
    /// Makes a table of at most `cursors_max` cursors: those last used.
    pub fn new(cursors_max: usize) -> Self {
        Cursors {
            cursors_max: cursors_max.min(u32::MAX as usize / 2),
            delivery_counts: DeliveryCounts::new(cursors_max),
            hasher: RandomState::new(),
            entries: Slab::new(),
            index: HashIndex::default(),
            used: List::EMPTY,
            uses: 0,
        }
    }

    /// Returns the user's cursor in the topic; `None` if this table does not know it.
    pub fn get(&self, user: &str, topic: &str) -> Option<Cursor> {
        Some(self.entries[self.find(self.hash(user, topic), user, topic)?].cursor())
    }

    /// Moves the user's cursor to this offset: the user has all messages up to it. Returns false if the cursor was
    /// there already; it never goes back.
    pub fn acknowledge(&mut self, user: &str, topic: &str, offset: u64) -> bool {
        let Some(at) = self.enter(user, topic) else { return true };
        let entry = &mut self.entries[at];
        if entry.is_known && offset <= entry.acknowledged {
            return false;
        }
        entry.is_known = true;
        entry.acknowledged = offset;
        self.delivery_counts.done(at, entry.done());
        true
    }

    /// Sets the user's cursor, as it is elsewhere: it may go back.
    pub fn set(&mut self, user: &str, topic: &str, cursor: Cursor) {
        let Some(at) = self.enter(user, topic) else { return };
        let entry = &mut self.entries[at];
        entry.is_known = cursor.acknowledged.is_some();
        entry.acknowledged = cursor.acknowledged.unwrap_or(0);
        entry.given_up = cursor.given_up.unwrap_or(0);
        self.delivery_counts.done(at, entry.done());
    }

    /// Moves the cursor past a message without an acknowledgement, when all before it is done. Returns false if the
    /// cursor was past it already.
    pub fn give_up(&mut self, user: &str, topic: &str, offset: u64) -> bool {
        let Some(at) = self.enter(user, topic) else { return true };
        let entry = &mut self.entries[at];
        if offset <= entry.given_up {
            return false;
        }
        entry.given_up = offset;
        self.delivery_counts.done(at, entry.done());
        true
    }

    /// Counts a delivery of a message, and returns how often it was delivered; 0 if it is done.
    ///
    /// Deliveries of one message within `apart_s` seconds count once.
    pub fn delivered(
        &mut self,
        user: &str,
        topic: &str,
        offset: u64,
        now_s: u32,
        apart_s: u32,
    ) -> u32 {
        let Some(at) = self.enter(user, topic) else { return 1 };
        if offset <= self.entries[at].done() {
            return 0;
        }
        self.delivery_counts.count(at, offset, now_s, apart_s)
    }

    /// Returns true if the next new cursor replaces another.
    pub fn is_full(&self) -> bool {
        self.entries.len() >= self.cursors_max
    }

    /// Returns the number of known cursors.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Returns the cursor, and marks it as used now. `None` if the table may have none.
    fn enter(&mut self, user: &str, topic: &str) -> Option<u32> {
        let hash = self.hash(user, topic);
        self.uses += 1;
        let used = (self.uses / USES) as u32;
        if let Some(at) = self.find(hash, user, topic) {
            self.entries.unlink(&mut self.used, at);
            self.entries.link(&mut self.used, at);
            self.entries[at].used = used;
            return Some(at);
        }
        if self.cursors_max == 0 {
            return None;
        }
        if self.entries.len() == self.cursors_max {
            self.drop_oldest();
        }
        Some(self.add(hash, Entry { used, ..Entry::new(user, topic) }))
    }

    fn add(&mut self, hash: u32, entry: Entry) -> u32 {
        let at = self.entries.insert(entry);
        self.entries.link(&mut self.used, at);
        self.index.insert(hash, at);
        at
    }

    fn drop_oldest(&mut self) {
        if self.used.oldest != NONE {
            self.drop(self.used.oldest);
        }
    }

    fn drop(&mut self, at: u32) {
        let Entry { text, user_bytes, .. } = &self.entries[at];
        let hash = match *user_bytes {
            OWN => self.hash_own(text),
            user_bytes => {
                let (user, topic) = text.split_at(user_bytes as usize);
                self.hash(user, topic)
            }
        };
        self.entries.unlink(&mut self.used, at);
        self.entries.remove(at);
        self.index.remove(hash, at);
        self.delivery_counts.done(at, u64::MAX);
    }

    fn find(&self, hash: u32, user: &str, topic: &str) -> Option<u32> {
        self.index.find(hash, |at| self.entries[at].is(user, topic))
    }

    fn hash(&self, user: &str, topic: &str) -> u32 {
        if is_own(user, topic) {
            return self.hash_own(user);
        }
        let mut hasher = self.hasher.build_hasher();
        hasher.write_usize(user.len());
        hasher.write(user.as_bytes());
        hasher.write(topic.as_bytes());
        fold(hasher.finish())
    }

    fn hash_own(&self, user: &str) -> u32 {
        fold(self.hasher.hash_one(user))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn acknowledged(cursors: &Cursors, user: &str, topic: &str) -> Option<u64> {
        cursors.get(user, topic)?.acknowledged
    }

    #[test]
    fn a_cursor_never_goes_back() {
        let mut cursors = Cursors::new(10);
        assert_eq!(cursors.get("alice", "@alice"), None);
        assert!(cursors.acknowledge("alice", "@alice", 0), "it is known from now on");
        assert!(!cursors.acknowledge("alice", "@alice", 0));
        assert_eq!(acknowledged(&cursors, "alice", "@alice"), Some(0));
        assert!(cursors.acknowledge("alice", "@alice", 7));
        assert!(!cursors.acknowledge("alice", "@alice", 5));
        assert_eq!(acknowledged(&cursors, "alice", "@alice"), Some(7));
        assert_eq!(cursors.get("alice", "alice"), None);
        assert_eq!(cursors.get("alic", "e@alice"), None);
        assert_eq!(cursors.get("@alice", "alice"), None);
    }

    #[test]
    fn deliveries_are_counted_by_message() {
        let mut cursors = Cursors::new(10);
        assert_eq!(cursors.delivered("bob", "jobs", 5, 0, 0), 1);
        assert_eq!(cursors.delivered("bob", "jobs", 5, 0, 0), 2);
        assert_eq!(cursors.delivered("bob", "jobs", 8, 0, 0), 1, "it came behind");
        assert_eq!(cursors.get("bob", "jobs"), Some(Cursor::default()), "nobody acknowledged");
        assert!(cursors.acknowledge("bob", "jobs", 4));
        assert_eq!(cursors.delivered("bob", "jobs", 5, 0, 0), 3);
        assert_eq!(cursors.delivered("bob", "jobs", 8, 0, 0), 2);
        assert!(cursors.acknowledge("bob", "jobs", 6));
        assert_eq!(cursors.delivered("bob", "jobs", 5, 0, 0), 0);
        assert_eq!(cursors.delivered("bob", "jobs", 8, 0, 0), 3, "it is still not acknowledged");
        assert!(cursors.acknowledge("bob", "jobs", 8));
        assert_eq!(cursors.delivered("bob", "jobs", 8, 0, 0), 0);
    }

    #[test]
    fn a_given_up_message_is_not_acknowledged() {
        let mut cursors = Cursors::new(10);
        assert!(cursors.give_up("bob", "@bob", 5) && !cursors.give_up("bob", "@bob", 5));
        let cursor = Cursor { acknowledged: None, given_up: Some(5) };
        assert_eq!(cursors.get("bob", "@bob"), Some(cursor));
        assert_eq!((cursor.done(), cursors.delivered("bob", "@bob", 5, 0, 0)), (Some(5), 0));
        assert!(cursors.acknowledge("bob", "@bob", 3) && cursors.acknowledge("bob", "@bob", 9));
        let cursor = Cursor { acknowledged: Some(9), given_up: Some(5) };
        assert_eq!((cursors.get("bob", "@bob"), cursor.done()), (Some(cursor), Some(9)));
    }

    #[test]
    fn a_cursor_is_set_to_what_it_is_elsewhere() {
        let mut cursors = Cursors::new(10);
        assert!(cursors.acknowledge("bob", "jobs", 9));
        for (acknowledged, given_up) in [(Some(5), Some(7)), (None, Some(7)), (Some(0), None)] {
            let cursor = Cursor { acknowledged, given_up };
            cursors.set("bob", "jobs", cursor);
            assert_eq!((cursors.get("bob", "jobs"), cursors.count()), (Some(cursor), 1));
        }
        assert_eq!(cursors.delivered("bob", "jobs", 6, 0, 0), 1);
    }

    #[test]
    fn a_cursor_takes_little_memory() {
        assert!(size_of::<Option<Entry>>() <= 48, "{}", size_of::<Option<Entry>>());
        assert_eq!(
            Entry::new("a user of 24 bytes, here", "@a user of 24 bytes, here").text.len(),
            24
        );
    }

    proptest! {
        #[test]
        fn the_table_holds_the_cursors_last_used(
            cursors_max in 0_usize..12,
            steps in prop::collection::vec((0_u8..4, 0_usize..4, 0_usize..5, 1_u64..30), 0..300),
        ) {
            let users = ["a", "@a", "b", "bb"];
            let topics = ["@a", "@@a", "@b", "b", "bb"];
            let mut cursors = Cursors::new(cursors_max);
            // The last used is last.
            let mut model: Vec<((usize, usize), Cursor)> = Vec::new();
            for (kind, user, topic, offset) in steps {
                let at = model.iter().position(|(of, _)| *of == (user, topic));
                let (user_name, topic_name) = (users[user], topics[topic]);
                let known = at.map(|at| model[at].1);
                prop_assert_eq!(cursors.get(user_name, topic_name), known);
                let mut cursor = known.unwrap_or_default();
                let known_offset = match kind {
                    0 => continue,
                    1 => &mut cursor.acknowledged,
                    2 => &mut cursor.given_up,
                    _ => {
                        let delivery_count = cursors.delivered(user_name, topic_name, offset, 0, 0);
                        let is_done = cursor.done().is_some_and(|done| offset <= done);
                        prop_assert_eq!(delivery_count == 0, is_done && cursors_max > 0);
                        &mut None
                    }
                };
                if kind < 3 {
                    let moved = known_offset.is_none_or(|known| offset > known);
                    *known_offset = (*known_offset).max(Some(offset));
                    let has_moved = match kind {
                        1 => cursors.acknowledge(user_name, topic_name, offset),
                        _ => cursors.give_up(user_name, topic_name, offset),
                    };
                    prop_assert_eq!(has_moved, moved);
                }
                if let Some(at) = at {
                    model.remove(at);
                }
                model.push(((user, topic), cursor));
                model.drain(..model.len().saturating_sub(cursors_max));
                prop_assert_eq!(cursors.count(), model.len());
            }
        }
    }
}
