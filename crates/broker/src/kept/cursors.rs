//! How far each user has acknowledged a topic's messages.

use std::hash::{BuildHasher, Hasher, RandomState};

use wire::Name;
use wire::message::PERSONAL;

use super::index::{Index, fold};
use super::slab::{List, NONE, Slab};

/// The cursors that were last used. One for a user's own topic takes about 70 bytes, and its name if
/// that has over 24.
pub struct Cursors {
    cursors_max: usize,
    hasher: RandomState,
    entries: Slab<Entry>,
    index: Index,
    /// From the one that was not used for the longest.
    used: List,
}

/// How far a user is in a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Everything up to this offset is done.
    pub acknowledged: u64,
    /// The first message after it, once its deliveries were counted; 0 before.
    pub head: u64,
    /// How often that was delivered.
    pub tries: u32,
}

struct Entry {
    /// The user's name, and then the topic's if that is not the user's own.
    text: Name,
    /// The length of the user's name, or [`OWN`].
    user_bytes: u16,
    tries: u16,
    /// When the last of them was counted, in seconds of the node's clock.
    tried_s: u32,
    acknowledged: u64,
    head: u64,
}

/// The topic is the user's own.
const OWN: u16 = u16::MAX;

impl Entry {
    fn new(user: &str, topic: &str, acknowledged: u64) -> Entry {
        let (text, user_bytes) = match is_own(user, topic) {
            true => (Name::from(user), OWN),
            false => {
                let mut text = Name::with_capacity(user.len() + topic.len());
                text.push_str(user);
                text.push_str(topic);
                (text, user.len() as u16)
            }
        };
        Entry { text, user_bytes, tries: 0, tried_s: 0, acknowledged, head: 0 }
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

/// Whether the topic is the user's personal one.
fn is_own(user: &str, topic: &str) -> bool {
    topic.strip_prefix(PERSONAL) == Some(user)
}

impl Cursors {
    /// Knows at most so many cursors: those last used.
    pub fn new(cursors_max: usize) -> Self {
        Cursors {
            cursors_max: cursors_max.min(u32::MAX as usize / 2),
            hasher: RandomState::new(),
            entries: Slab::new(),
            index: Index::new(),
            used: List::EMPTY,
        }
    }

    /// The offset up to which the user has acknowledged the topic's messages; `None` when nothing
    /// is known of it.
    pub fn get(&self, user: &str, topic: &str) -> Option<u64> {
        Some(self.cursor(user, topic)?.acknowledged)
    }

    /// The whole cursor.
    pub fn cursor(&self, user: &str, topic: &str) -> Option<Cursor> {
        let entry = &self.entries[self.find(self.hash(user, topic), user, topic)?];
        let Entry { acknowledged, head, tries, .. } = *entry;
        Some(Cursor { acknowledged, head, tries: tries.into() })
    }

    /// The user has all messages up to this offset. False when that was known: a cursor never goes
    /// back.
    pub fn acknowledge(&mut self, user: &str, topic: &str, offset: u64) -> bool {
        let (at, is_new) = self.enter(user, topic, offset);
        let Some(entry) = at.map(|at| &mut self.entries[at]) else { return is_new };
        if offset > entry.acknowledged {
            entry.acknowledged = offset;
            if entry.head <= offset {
                (entry.head, entry.tries) = (0, 0);
            }
            return true;
        }
        is_new
    }

    /// Counts a delivery of the first message that the user has not acknowledged, and gives how
    /// often this one was delivered; 0 when it is acknowledged.
    ///
    /// Deliveries of one message within `seconds` count once.
    pub fn tried(&mut self, user: &str, topic: &str, offset: u64, now_s: u32, seconds: u32) -> u32 {
        // It is the first: all before it is done.
        let (at, _) = self.enter(user, topic, offset.saturating_sub(1));
        let Some(entry) = at.map(|at| &mut self.entries[at]) else { return 1 };
        if offset <= entry.acknowledged {
            return 0;
        }
        if entry.head != offset {
            (entry.head, entry.tries) = (offset, 0);
        }
        if entry.tries == 0 || now_s.wrapping_sub(entry.tried_s) >= seconds {
            entry.tries = entry.tries.saturating_add(1);
            entry.tried_s = now_s;
        }
        entry.tries.into()
    }

    /// True when the next new cursor takes the place of another.
    pub fn is_full(&self) -> bool {
        self.entries.len() >= self.cursors_max
    }

    /// Cursors that are known.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The cursor, used just now; and whether it was not known before. `None` when none may be
    /// known.
    fn enter(&mut self, user: &str, topic: &str, acknowledged: u64) -> (Option<u32>, bool) {
        let hash = self.hash(user, topic);
        if let Some(at) = self.find(hash, user, topic) {
            self.entries.unlink(&mut self.used, at);
            self.entries.link(&mut self.used, at);
            return (Some(at), false);
        }
        if self.cursors_max == 0 {
            return (None, true);
        }
        if self.entries.len() == self.cursors_max {
            self.drop_oldest();
        }
        let at = self.entries.insert(Entry::new(user, topic, acknowledged));
        self.entries.link(&mut self.used, at);
        self.index.insert(hash, at);
        (Some(at), true)
    }

    fn drop_oldest(&mut self) {
        let at = self.used.oldest;
        if at == NONE {
            return;
        }
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

    #[test]
    fn a_cursor_never_goes_back() {
        let mut cursors = Cursors::new(10);
        assert_eq!(cursors.get("alice", "@alice"), None);
        assert!(cursors.acknowledge("alice", "@alice", 0), "it is known from now on");
        assert!(!cursors.acknowledge("alice", "@alice", 0));
        assert_eq!(cursors.get("alice", "@alice"), Some(0));
        assert!(cursors.acknowledge("alice", "@alice", 7));
        assert!(!cursors.acknowledge("alice", "@alice", 5));
        assert_eq!(cursors.get("alice", "@alice"), Some(7));
        assert_eq!(cursors.get("alice", "alice"), None);
        assert_eq!(cursors.get("alic", "e@alice"), None);
        assert_eq!(cursors.get("@alice", "alice"), None);
    }

    #[test]
    fn deliveries_of_the_first_message_are_counted() {
        let mut cursors = Cursors::new(10);
        assert_eq!(cursors.tried("bob", "jobs", 5, 0, 0), 1);
        assert_eq!(cursors.tried("bob", "jobs", 5, 0, 0), 2);
        assert_eq!(cursors.get("bob", "jobs"), Some(4), "it was the first: those before are done");
        cursors.acknowledge("bob", "jobs", 4);
        assert_eq!(cursors.tried("bob", "jobs", 5, 0, 0), 3);
        assert_eq!(cursors.tried("bob", "jobs", 8, 0, 0), 1, "5 has expired, say");
        assert!(cursors.acknowledge("bob", "jobs", 6));
        assert_eq!(cursors.tried("bob", "jobs", 8, 0, 0), 2, "it is still not acknowledged");
        assert!(cursors.acknowledge("bob", "jobs", 8));
        assert_eq!(cursors.tried("bob", "jobs", 8, 0, 0), 0);
        let cursor = Cursor { acknowledged: 8, head: 0, tries: 0 };
        assert_eq!(cursors.cursor("bob", "jobs"), Some(cursor));
    }

    #[test]
    fn a_cursor_takes_little_memory() {
        assert!(size_of::<Option<Entry>>() <= 48, "{}", size_of::<Option<Entry>>());
        assert_eq!(
            Entry::new("a user of 24 bytes, here", "@a user of 24 bytes, here", 1).text.len(),
            24
        );
    }

    proptest! {
        #[test]
        fn it_knows_the_cursors_last_used(
            cursors_max in 0_usize..12,
            steps in prop::collection::vec((0_u8..3, 0_usize..4, 0_usize..5, 0_u64..30), 0..300),
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
                prop_assert_eq!(cursors.cursor(user_name, topic_name), known);
                if kind == 0 {
                    continue;
                }
                let mut cursor = known.unwrap_or(Cursor {
                    acknowledged: if kind == 1 { offset } else { offset.saturating_sub(1) },
                    ..Cursor::default()
                });
                if kind == 1 {
                    let moved = known.is_none_or(|known| offset > known.acknowledged);
                    prop_assert_eq!(cursors.acknowledge(user_name, topic_name, offset), moved);
                    cursor.acknowledged = cursor.acknowledged.max(offset);
                    if cursor.head <= cursor.acknowledged {
                        (cursor.head, cursor.tries) = (0, 0);
                    }
                } else {
                    let tries = cursors.tried(user_name, topic_name, offset, 0, 0);
                    if offset > cursor.acknowledged {
                        let same = cursor.head == offset;
                        cursor.tries = if same { cursor.tries + 1 } else { 1 };
                        cursor.head = offset;
                        prop_assert_eq!(tries, cursor.tries);
                    } else if cursors_max > 0 {
                        prop_assert_eq!(tries, 0);
                    }
                }
                if let Some(at) = at {
                    model.remove(at);
                }
                model.push(((user, topic), cursor));
                model.drain(..model.len().saturating_sub(cursors_max));
                prop_assert_eq!(cursors.len(), model.len());
            }
        }
    }
}
