//! The last message of each topic that was published to be retained (MQTT 5.0, section 3.3.1.3).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use filters::NameMap;
use minicbor::{Decode, Encode};
use model::{Envelope, Epoch, Message, Name, Position, Publication};

use crate::record::PublicationRecord;

/// The part of the server whose records these are in a store.
pub const RETAINED: &str = "mqtt_retained";

/// Retained messages that one sweep looks at.
const SWEPT: usize = 1_024;

/// What the rest of Throng knows of retained messages. No call blocks.
pub trait Retained: Send + Sync {
    /// The topic's message. It may have expired.
    fn get(&self, topic: &str) -> Option<Arc<Envelope>>;

    /// Some messages of the topics that a filter matches, in the order of the topics' names, behind one of
    /// these.
    fn matching(&self, filter: &str, after: Option<&str>, limit: usize) -> RetainedPage;

    /// The messages of all topics, in the order of the topics' names, behind one of these; without what the node
    /// says of itself.
    fn all(&self, after: Option<&str>, limit: usize) -> RetainedPage;

    /// Removes the topic's message, and tells nobody. False where there was none.
    fn remove(&self, topic: &str) -> bool;

    /// Removes some of what has expired, in milliseconds since 1970, and goes on there at the next call.
    fn sweep(&self, now_ms: u64);

    /// Figures.
    fn stats(&self) -> RetainedStats;
}

/// Some retained messages.
#[derive(Debug, Default)]
pub struct RetainedPage {
    /// In the order of their topics' names.
    pub messages: Vec<Arc<Envelope>>,
    /// Where the next page begins; nothing when this was the last one.
    pub after: Option<Name>,
}

/// Figures of retained messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetainedStats {
    /// Messages.
    pub messages: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Messages that were not retained: there were as many as may be.
    pub refused: u64,
}

/// Writes a record of a topic, or without a value removes it.
pub type Keep = Box<dyn Fn(&str, Option<Vec<u8>>) + Send + Sync>;

/// The retained messages of one process.
pub struct LocalRetained {
    messages: RwLock<Held>,
    keep: Option<Keep>,
    messages_max: AtomicUsize,
    bytes_max: AtomicUsize,
    refused: AtomicU64,
    /// When the node's clock began, in milliseconds since 1970.
    clock_began_ms: AtomicU64,
    /// Behind which name the next sweep begins.
    swept: Mutex<Option<Name>>,
}

#[derive(Default)]
struct Held {
    names: NameMap<Arc<Envelope>>,
    /// What they hold, but for the node's own.
    bytes: usize,
    /// Topics in which the node speaks of itself.
    own: usize,
}

/// A retained message as it is stored.
#[derive(Encode, Decode)]
#[cbor(map)]
struct Record {
    #[n(0)]
    publication: PublicationRecord,
    #[n(1)]
    epoch: u32,
    #[n(2)]
    offset: u64,
    /// When it was published, in milliseconds since 1970; nothing where an older version wrote it.
    #[n(3)]
    at_ms: Option<u64>,
}

impl LocalRetained {
    /// None yet. `keep` writes them to a store.
    pub fn new(keep: Option<Keep>) -> Self {
        LocalRetained {
            messages: RwLock::default(),
            keep,
            messages_max: AtomicUsize::new(100_000),
            bytes_max: AtomicUsize::new(64 << 20),
            refused: AtomicU64::new(0),
            clock_began_ms: AtomicU64::new(0),
            swept: Mutex::default(),
        }
    }

    /// Takes in what a store holds, by topic. Gives how many could not be read.
    pub fn load(
        &self,
        records: impl IntoIterator<Item = (String, Vec<u8>)>,
        hash: impl Fn(&str) -> u64,
    ) -> usize {
        let mut held = self.write();
        let mut unread = 0;
        for (topic, bytes) in records {
            let Ok(Record { publication, epoch, offset, at_ms }) = minicbor::decode(&bytes) else {
                unread += 1;
                continue;
            };
            let publication = Publication { topic: topic.into(), ..publication.into() };
            let hash = hash(&publication.topic);
            let id = Position { epoch: Epoch(epoch), offset };
            let message = Message::new(publication, id, hash, 0);
            let message = Message { at_ms: at_ms.unwrap_or(0), ..message };
            held.insert(Arc::new(message.into()));
        }
        unread
    }

    /// Takes other limits: messages, and their bytes. What is there stays.
    pub fn set_limits(&self, messages_max: usize, bytes_max: usize) {
        self.messages_max.store(messages_max, Relaxed);
        self.bytes_max.store(bytes_max, Relaxed);
    }

    /// The node's clock began then, in milliseconds since 1970: messages are stored with their time.
    pub fn set_clock(&self, began_ms: u64) {
        self.clock_began_ms.store(began_ms, Relaxed);
    }

    /// Takes the message as its topic's. One without a payload removes what was there.
    pub fn retain(&self, message: &Arc<Envelope>) {
        let topic = &message.publication.topic;
        // What is stored is in the order of what is held: the store is given each change before the next one.
        let mut held = self.write();
        if message.publication.data.bytes() == 0 {
            held.remove(topic);
            return self.keep(topic, None);
        }
        if is_own(topic) {
            // What the node says of itself is another after a restart, and not for clients to crowd out.
            return held.insert(message.clone());
        }
        let before = held.names.get(topic).map_or(0, |before| before.bytes());
        let is_one_more = before == 0;
        let messages = held.names.len() - held.own + usize::from(is_one_more);
        let bytes = held.bytes - before + message.bytes();
        if messages > self.messages_max.load(Relaxed) || bytes > self.bytes_max.load(Relaxed) {
            self.refused.fetch_add(1, Relaxed);
            // The one that was there is the last one no longer.
            if !is_one_more {
                held.remove(topic);
                self.keep(topic, None);
            }
            return;
        }
        held.insert(message.clone());
        if self.keep.is_some() {
            let Position { epoch, offset } = message.id;
            let at_ms = match message.at_ms {
                0 => self.clock_began_ms.load(Relaxed) + message.published_us / 1_000,
                at_ms => at_ms,
            };
            let publication = PublicationRecord::from(&message.publication);
            let record = Record { publication, epoch: epoch.0, offset, at_ms: Some(at_ms) };
            self.keep(topic, minicbor::to_vec(record).ok());
        }
    }

    /// Removes what has expired of at most `limit` messages behind a name. Gives where to go on.
    fn sweep_some(&self, now_ms: u64, after: Option<&str>, limit: usize) -> Option<Name> {
        let (held, mut looked, mut expired, mut last) = (self.read(), 0, Vec::new(), None);
        for (name, message) in held.names.behind(after).take(limit) {
            looked += 1;
            last = Some(name);
            expired.extend(message.is_expired(now_ms).then(|| Name::from(name)));
        }
        let next = last.filter(|_| looked == limit).map(Name::from);
        drop(held);
        for topic in expired {
            let mut held = self.write();
            if held.names.get(&topic).is_some_and(|message| message.is_expired(now_ms)) {
                held.remove(&topic);
                self.keep(&topic, None);
            }
        }
        next
    }

    fn keep(&self, topic: &str, value: Option<Vec<u8>>) {
        if let Some(keep) = &self.keep {
            keep(topic, value);
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Held> {
        self.messages.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Held> {
        self.messages.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the node speaks of itself in this topic.
fn is_own(topic: &str) -> bool {
    topic.starts_with("$SYS/")
}

impl Held {
    fn insert(&mut self, message: Arc<Envelope>) {
        if is_own(&message.publication.topic) {
            let before = self.names.insert(message.publication.topic.clone(), message);
            self.own += usize::from(before.is_none());
            return;
        }
        self.bytes += message.bytes();
        let before = self.names.insert(message.publication.topic.clone(), message);
        self.bytes -= before.map_or(0, |before| before.bytes());
    }

    fn remove(&mut self, topic: &str) {
        let Some(before) = self.names.remove(topic) else { return };
        match is_own(topic) {
            true => self.own -= 1,
            false => self.bytes -= before.bytes(),
        }
    }
}

impl Retained for LocalRetained {
    fn get(&self, topic: &str) -> Option<Arc<Envelope>> {
        self.read().names.get(topic).cloned()
    }

    fn matching(&self, filter: &str, after: Option<&str>, limit: usize) -> RetainedPage {
        let held = self.read();
        let page = held.names.matching(filter, after, limit);
        let messages = page.found.iter().map(|(_, message)| Arc::clone(message)).collect();
        RetainedPage { messages, after: page.after.map(Name::from) }
    }

    fn all(&self, after: Option<&str>, limit: usize) -> RetainedPage {
        let held = self.read();
        let mut rest = held.names.behind(after).filter(|(name, _)| !is_own(name));
        let messages: Vec<_> = rest.by_ref().take(limit).map(|(_, it)| it.clone()).collect();
        let more = rest.next().is_some();
        let last = messages.last().filter(|_| more);
        let after = last.map(|message| message.publication.topic.clone());
        RetainedPage { messages, after }
    }

    fn remove(&self, topic: &str) -> bool {
        let mut held = self.write();
        let is_there = held.names.get(topic).is_some();
        if is_there {
            held.remove(topic);
            self.keep(topic, None);
        }
        is_there
    }

    fn sweep(&self, now_ms: u64) {
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        let after = swept.take();
        *swept = self.sweep_some(now_ms, after.as_deref(), SWEPT);
    }

    fn stats(&self) -> RetainedStats {
        let held = self.read();
        let (messages, bytes) = (held.names.len() - held.own, held.bytes);
        RetainedStats { messages, bytes, refused: self.refused.load(Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use model::{Attributes, Data};

    use super::*;

    fn message(topic: &str, text: &str, offset: u64) -> Arc<Envelope> {
        let publication = Publication::new(topic, Data::Text(text.into()));
        Arc::new(Message::new(publication, Position { epoch: Epoch(1), offset }, 0, 0).into())
    }

    #[test]
    fn a_topic_has_its_last_message_until_it_is_removed() {
        type Kept = Vec<(String, Option<Vec<u8>>)>;
        let kept: Arc<Mutex<Kept>> = Arc::default();
        let notes = kept.clone();
        let keep = move |topic: &str, value| notes.lock().unwrap().push((topic.into(), value));
        let retained = LocalRetained::new(Some(Box::new(keep)));
        retained.set_clock(7_000);
        retained.retain(&message("a/b", "one", 1));
        retained.retain(&message("a/b", "two", 2));
        retained.retain(&message("a/c", "three", 3));
        let offsets = |filter: &str, after: Option<&str>, limit| {
            let page = retained.matching(filter, after, limit);
            let offsets: Vec<u64> = page.messages.iter().map(|it| it.id.offset).collect();
            (offsets, page.after.map(String::from))
        };
        assert_eq!(offsets("a/+", None, 9), (vec![2, 3], None));
        assert_eq!(offsets("a/+", None, 1), (vec![2], Some("a/b".into())));
        assert_eq!(offsets("a/+", Some("a/b"), 1).0, [3]);
        retained.retain(&message("$SYS/broker/uptime", "1 second", 4));
        retained.retain(&message("@al", "four", 5));
        let all = |after: Option<&str>, limit| {
            let page = retained.all(after, limit);
            let topics = page.messages.iter().map(|it| it.publication.topic.to_string());
            (topics.collect::<Vec<_>>(), page.after.map(String::from))
        };
        assert_eq!(all(None, 2), (vec!["@al".into(), "a/b".into()], Some("a/b".into())));
        assert_eq!(all(Some("a/b"), 1), (vec!["a/c".into()], None));
        retained.retain(&message("@al", "", 6));
        let stored = kept.lock().unwrap()[..3].to_vec();
        retained.retain(&message("a/b", "", 4));
        assert_eq!(offsets("#", None, 9).0, [3]);
        let bytes = message("a/c", "three", 3).bytes();
        let stats = RetainedStats { messages: 1, bytes, refused: 0 };
        assert_eq!(retained.stats(), stats);
        assert!(retained.remove("a/c") && !retained.remove("a/c") && !retained.remove("never"));
        assert_eq!(retained.stats(), RetainedStats::default());
        assert_eq!(kept.lock().unwrap()[6..], [("a/c".into(), None)]);

        let other = LocalRetained::new(None);
        let records = stored.into_iter().skip(1).map(|(topic, value)| (topic, value.unwrap()));
        let unread = other.load(records.chain([("x".into(), vec![0xff])]), |_| 7);
        let found = other.get("a/b").unwrap();
        let Data::Text(text) = &found.publication.data else { panic!() };
        assert_eq!((unread, &**text, found.id.offset, found.at_ms), (1, "two", 2, 7_000));
    }

    #[test]
    fn there_are_no_more_than_may_be_and_none_that_have_expired() {
        let retained = LocalRetained::new(None);
        retained.set_limits(2, usize::MAX);
        for (at, topic) in ["a", "b", "c", "a"].into_iter().enumerate() {
            retained.retain(&message(topic, "x", at as u64));
        }
        assert_eq!((retained.stats().messages, retained.stats().refused), (2, 1));
        assert!(retained.get("c").is_none() && retained.get("a").unwrap().id.offset == 3);
        // What the node says of itself counts for nothing.
        retained.retain(&message("$SYS/broker/uptime", "1 second", 8));
        assert_eq!((retained.stats().messages, retained.stats().refused), (2, 1));
        assert!(retained.get("$SYS/broker/uptime").is_some());
        retained.set_limits(2, 1);
        // What can't be retained takes the place of what was.
        retained.retain(&message("a", "y", 9));
        assert!(retained.get("a").is_none());

        retained.set_limits(9, usize::MAX);
        let expires = Attributes { expires_ms: Some(10), ..Attributes::default() };
        let publication = Publication {
            attributes: Some(Box::new(expires)),
            ..Publication::new("d", Data::Text("x".into()))
        };
        let id = Position { epoch: Epoch(1), offset: 9 };
        retained.retain(&Arc::new(Message::new(publication, id, 0, 0).into()));
        assert_eq!(retained.sweep_some(9, None, 9), None);
        assert_eq!(retained.stats().messages, 2);
        assert_eq!(retained.sweep_some(10, None, 2).as_deref(), Some("b"));
        retained.sweep(10);
        assert_eq!((retained.stats().messages, retained.get("d").is_none()), (1, true));
    }
}
