//! The last message of each topic that was published to be retained (MQTT 5.0, section 3.3.1.3).

mod handover;
mod queue;
mod shared;
#[cfg(test)]
mod simulation;
mod sync;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use filters::NameMap;
use minicbor::{Decode, Encode};
use model::{Envelope, Epoch, Message, MessageSource, Name, Position, Publication};

use crate::contract::Done;
use crate::record::PublicationRecord;
use crate::unstored::Unstored;

pub use self::handover::RetainedPart;
pub use self::queue::{RetainedQueue, RetainedWrite, Wake};
pub use self::shared::RetainedRow;
pub use self::sync::{DamagedRecord, SyncPage};

/// The name of these records in a store.
pub const RETAINED: &str = "mqtt_retained";

/// Retained messages that one sweep scans, and records that it writes again, at most.
const SWEPT: usize = 1_024;

/// Topics whose records may wait to be written again: beyond it no other one is retained.
const UNSTORED_MAX: usize = 65_536;

/// Removed topics that are remembered until messages that were published before have come.
const REMOVED_MAX: usize = 65_536;

/// How long that is remembered: longer than a store takes to write a message.
const REMOVED_US: u64 = 60_000_000;

/// The interface of retained messages for the rest of Throng. No call blocks.
pub trait Retained: Send + Sync {
    /// Returns the topic's message. It may have expired.
    fn get(&self, topic: &str) -> Option<Arc<Envelope>>;

    /// Returns some messages of the topics that a filter matches, in the order of the topics' names, after one of
    /// these.
    fn matching(&self, filter: &str, after: Option<&str>, limit: usize) -> RetainedPage;

    /// Returns the messages of all topics, in the order of the topics' names, after one of these; without the node's
    /// messages about itself.
    fn all(&self, after: Option<&str>, limit: usize) -> RetainedPage;

    /// Removes the topic's message, without a notice. Returns false if there was none.
    fn remove(&self, topic: &str) -> bool;

    /// Begins to note all removals, until [`end_sync`](Retained::end_sync). A node that joins a cluster calls this
    /// before it gets messages of other nodes.
    fn begin_sync(&self);

    /// Returns messages for a node that joins, after a topic: about `bytes_max` bytes. It leaves out messages that have
    /// expired at a time in milliseconds since 1970, and the node's messages about itself.
    fn sync_page(&self, after: Option<&str>, bytes_max: usize, now_ms: u64) -> SyncPage;

    /// Retains the messages of another node's page, except for topics of which this node has learned something newer
    /// since it began. Returns how many it has retained. `hash` is the hash of a topic's name in this process.
    ///
    /// # Errors
    /// If a record can't be read. The messages before it are retained.
    fn apply_page(
        &self,
        page: &SyncPage,
        hash: &dyn Fn(&str) -> u64,
    ) -> Result<usize, DamagedRecord>;

    /// Ends the sync: the node has the messages of the others.
    fn end_sync(&self);

    /// Removes some messages that have expired at a time in milliseconds since 1970, and goes on there at the next
    /// call. Writes some of the records again that the store has rejected.
    fn sweep(&self, now_ms: u64);

    /// Returns true if several nodes share a table of them: then each has what any of them retains or removes.
    fn is_shared(&self) -> bool;

    /// Calls `done` with true once the shared table has everything that this node has retained or removed; at once if there
    /// is none, and with false if too many calls wait.
    fn settle(&self, done: Done);

    /// Returns counts.
    fn stats(&self) -> RetainedStats;
}

/// Some retained messages.
#[derive(Debug, Default)]
pub struct RetainedPage {
    /// The messages, in the order of their topics' names.
    pub messages: Vec<Arc<Envelope>>,
    /// The name after which the next page begins; `None` on the last page.
    pub after: Option<Name>,
}

/// Counts of retained messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetainedStats {
    /// Messages.
    pub messages: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Messages that were not retained because of a limit.
    pub refused: u64,
    /// Topics whose message or removal is not in the shared table yet.
    pub pending: usize,
}

/// Writes a record of a topic, or removes it if there is no value. Reports once, from any thread, whether it is
/// stored.
pub type RetainedWriter = Box<dyn Fn(&str, Option<Vec<u8>>, Done) + Send + Sync>;

/// The retained messages of one process.
pub struct LocalRetained {
    messages: RwLock<RetainedTable>,
    writer: Option<RetainedWriter>,
    /// What this node writes to a table that several nodes share, if there is one.
    queue: OnceLock<Arc<RetainedQueue>>,
    /// Topics whose last record the store has rejected, so that it may have an older one.
    unstored: Unstored,
    messages_max: AtomicUsize,
    bytes_max: AtomicUsize,
    refused: AtomicU64,
    /// True while the node reads the messages of another node.
    is_syncing: AtomicBool,
    /// When the node's clock began, in milliseconds since 1970.
    clock_began_ms: AtomicU64,
    /// The name after which the next sweep begins.
    swept: Mutex<Option<Name>>,
}

#[derive(Default)]
struct RetainedTable {
    names: NameMap<Arc<Envelope>>,
    /// Their bytes, without the node's own messages.
    bytes: usize,
    /// The number of the node's own messages.
    own: usize,
    /// When a removal was published that may overtake a message, by topic: a message that was published before comes
    /// when it is on disk.
    removed: HashMap<Name, u64>,
    /// The removals in order. Only the last entry of a topic counts.
    removals: VecDeque<(u64, Name)>,
}

/// A retained message in its stored form.
#[derive(Encode, Decode)]
#[cbor(map)]
struct Record {
    #[n(0)]
    publication: PublicationRecord,
    #[n(1)]
    epoch: u32,
    #[n(2)]
    offset: u64,
    /// When it was published, in milliseconds since 1970; `None` if an older version wrote it.
    #[n(3)]
    at_ms: Option<u64>,
}

impl Record {
    /// Returns the message, by default of the topic in the record. Its time is before all messages of this process.
    fn message(self, topic: Option<Name>, hash: &dyn Fn(&str) -> u64) -> Message {
        let Record { publication, epoch, offset, at_ms } = self;
        let publication = Publication::from(publication);
        let topic = topic.unwrap_or_else(|| publication.topic.clone());
        let (hash, id) = (hash(&topic), Position { epoch: Epoch(epoch), offset });
        let message = Message::new(Publication { topic, ..publication }, id, hash, 0);
        Message { at_ms: at_ms.unwrap_or(0), ..message }
    }
}

impl LocalRetained {
    /// Makes an empty table. `writer` writes messages to a store.
    pub fn new(writer: Option<RetainedWriter>) -> Self {
        LocalRetained {
            messages: RwLock::default(),
            writer,
            queue: OnceLock::new(),
            unstored: Unstored::default(),
            messages_max: AtomicUsize::new(100_000),
            bytes_max: AtomicUsize::new(64 << 20),
            refused: AtomicU64::new(0),
            is_syncing: AtomicBool::new(false),
            clock_began_ms: AtomicU64::new(0),
            swept: Mutex::default(),
        }
    }

    /// Loads a store's records, by topic. Returns how many could not be read.
    pub fn load(
        &self,
        records: impl IntoIterator<Item = (String, Vec<u8>)>,
        hash: impl Fn(&str) -> u64,
    ) -> usize {
        let mut table = self.write();
        let mut unread = 0;
        for (topic, bytes) in records {
            let Ok(record) = minicbor::decode::<Record>(&bytes) else {
                unread += 1;
                continue;
            };
            table.insert(Arc::new(record.message(Some(topic.into()), &hash).into()));
        }
        unread
    }

    /// Changes the limits: messages, and their bytes. Present messages stay.
    pub fn set_limits(&self, messages_max: usize, bytes_max: usize) {
        self.messages_max.store(messages_max, Relaxed);
        self.bytes_max.store(bytes_max, Relaxed);
    }

    /// Sets when the node's clock began, in milliseconds since 1970: messages are stored with their time.
    pub fn set_clock(&self, began_ms: u64) {
        self.clock_began_ms.store(began_ms, Relaxed);
    }

    /// Makes the message its topic's retained one. A message without a payload removes the retained one. A message
    /// that was published before the present one, and has waited for a store, comes too late.
    pub fn retain(&self, message: &Arc<Envelope>) {
        self.retain_from(message, MessageSource::Here);
    }

    /// Like [`retain`](Self::retain), for a message from this source.
    pub fn retain_from(&self, message: &Arc<Envelope>, source: MessageSource) {
        if let Some(queue) = self.queue.get()
            && !message.publication.is_own()
        {
            return self.retain_shared(queue, message, source);
        }
        let topic = &message.publication.topic;
        // The lock orders the store's records like the table: the store gets each change before the next one.
        let mut table = self.write();
        if table.knows_newer(message) {
            return;
        }
        table.removed.remove(topic);
        if message.publication.removes_retained() {
            self.note_removed(&mut table, message);
            return self.remove_from(&mut table, topic);
        }
        if message.publication.is_own() {
            // The node's message about itself changes with a restart, and clients must not crowd it out.
            return table.insert(message.clone());
        }
        if !self.has_capacity(&table, message) {
            self.refused.fetch_add(1, Relaxed);
            self.note_removed(&mut table, message);
            // The present message is no longer the last one.
            if table.of_clients(topic).is_some() {
                self.remove_from(&mut table, topic);
            }
            return;
        }
        table.insert(message.clone());
        self.store_record(&table, topic);
    }

    /// Returns true if the limits allow this message in the place of its topic's present one.
    fn has_capacity(&self, table: &RetainedTable, message: &Envelope) -> bool {
        let topic = &message.publication.topic;
        let before = table.of_clients(topic).map_or(0, |before| before.bytes());
        let is_one_more = before == 0;
        if self.is_shared() && !is_one_more && message.bytes() <= before {
            // Messages of other nodes may exceed this node's limits. What is no larger than before is retained all the same.
            return true;
        }
        let messages = table.names.len() - table.own + usize::from(is_one_more);
        let bytes = table.bytes - before + message.bytes();
        messages <= self.messages_max.load(Relaxed)
            && bytes <= self.bytes_max.load(Relaxed)
            && !(is_one_more && self.unstored() >= UNSTORED_MAX)
    }

    /// Returns how many topics have a message or a removal that is not stored.
    fn unstored(&self) -> usize {
        self.queue.get().map_or_else(|| self.unstored.len(), |queue| queue.pending())
    }

    /// Returns true if the store has accepted all records that it was given so far.
    pub fn is_stored(&self) -> bool {
        self.unstored.is_empty()
    }

    /// Writes some of the records that the store has rejected.
    pub fn store_again(&self) {
        self.unstored.store_again(SWEPT, |topic| self.store_record(&self.write(), topic));
    }

    /// Records that a message has removed its topic's. It can't overtake messages that the history delivers: they are
    /// in order.
    fn note_removed(&self, table: &mut RetainedTable, by: &Envelope) {
        let (may_be_overtaken, is_syncing) =
            (self.writer.is_some() && !by.is_retained(), self.is_syncing.load(Relaxed));
        if may_be_overtaken || is_syncing {
            table.note_removed(&by.publication.topic, by.published_us, is_syncing);
        }
    }

    /// Removes expired messages among at most `limit` after a name. Returns the name to go on with.
    fn sweep_some(&self, now_ms: u64, after: Option<&str>, limit: usize) -> Option<Name> {
        let (table, mut scanned, mut expired, mut last) = (self.read(), 0, Vec::new(), None);
        for (name, message) in table.names.behind(after).take(limit) {
            scanned += 1;
            last = Some(name);
            expired.extend(message.is_expired(now_ms).then(|| Name::from(name)));
        }
        let next = last.filter(|_| scanned == limit).map(Name::from);
        drop(table);
        for topic in expired {
            let mut table = self.write();
            if table.names.get(&topic).is_some_and(|message| message.is_expired(now_ms)) {
                self.remove_from(&mut table, &topic);
            }
        }
        next
    }

    /// Removes a topic's message here and from the store. If there is none, the store has none or is about to remove
    /// it.
    fn remove_from(&self, table: &mut RetainedTable, topic: &Name) {
        if table.remove(topic) {
            self.store_record(table, topic);
        }
    }

    /// Gives the store a topic's message.
    fn store_record(&self, table: &RetainedTable, topic: &Name) {
        let Some(writer) = &self.writer else { return };
        let message = table.of_clients(topic);
        let value = message.and_then(|message| minicbor::to_vec(self.record(message)).ok());
        writer(topic, value, self.unstored.unless_stored(topic, None));
    }

    fn record(&self, message: &Message) -> Record {
        let Position { epoch, offset } = message.id;
        let at_ms = match message.at_ms {
            0 => self.clock_began_ms.load(Relaxed) + message.published_us / 1_000,
            at_ms => at_ms,
        };
        let publication = PublicationRecord::from(&message.publication);
        Record { publication, epoch: epoch.0, offset, at_ms: Some(at_ms) }
    }

    fn read(&self) -> RwLockReadGuard<'_, RetainedTable> {
        self.messages.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, RetainedTable> {
        self.messages.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RetainedTable {
    /// Returns the topic's message, unless it is the node's message about itself.
    fn of_clients(&self, topic: &str) -> Option<&Arc<Envelope>> {
        self.names.get(topic).filter(|message| !message.publication.is_own())
    }

    /// Returns true if the topic has a message or a removal that was published later.
    fn knows_newer(&self, message: &Message) -> bool {
        let topic = &message.publication.topic;
        let newest = self.names.get(topic).map(|newest| newest.published_us);
        newest.max(self.removed.get(topic).copied()) > Some(message.published_us)
    }

    /// Records that a publication at this time has removed a topic's message. Forgets older removals, unless they are
    /// to stay.
    fn note_removed(&mut self, topic: &Name, at_us: u64, others_stay: bool) {
        while let Some((first_us, _)) = self.removals.front()
            && (self.removals.len() >= REMOVED_MAX
                || (!others_stay && first_us + REMOVED_US < at_us))
        {
            let Some((first_us, topic)) = self.removals.pop_front() else { break };
            if self.removed.get(&topic) == Some(&first_us) {
                self.removed.remove(&topic);
            }
        }
        self.removed.insert(topic.clone(), at_us);
        self.removals.push_back((at_us, topic.clone()));
    }

    fn insert(&mut self, message: Arc<Envelope>) {
        match message.publication.is_own() {
            true => self.own += 1,
            false => self.bytes += message.bytes(),
        }
        let before = self.names.insert(message.publication.topic.clone(), message);
        before.into_iter().for_each(|before| self.has_left(&before));
    }

    /// Returns false if there was none.
    fn remove(&mut self, topic: &str) -> bool {
        let before = self.names.remove(topic);
        before.iter().for_each(|before| self.has_left(before));
        before.is_some()
    }

    fn has_left(&mut self, message: &Envelope) {
        match message.publication.is_own() {
            true => self.own -= 1,
            false => self.bytes -= message.bytes(),
        }
    }
}

impl Retained for LocalRetained {
    fn get(&self, topic: &str) -> Option<Arc<Envelope>> {
        self.read().names.get(topic).cloned()
    }

    fn matching(&self, filter: &str, after: Option<&str>, limit: usize) -> RetainedPage {
        let table = self.read();
        let page = table.names.matching(filter, after, limit);
        let messages = page.found.iter().map(|(_, message)| Arc::clone(message)).collect();
        RetainedPage { messages, after: page.after.map(Name::from) }
    }

    fn all(&self, after: Option<&str>, limit: usize) -> RetainedPage {
        let table = self.read();
        let mut rest = table.names.behind(after).filter(|(_, it)| !it.publication.is_own());
        let messages: Vec<_> = rest.by_ref().take(limit).map(|(_, it)| it.clone()).collect();
        let more = rest.next().is_some();
        let last = messages.last().filter(|_| more);
        let after = last.map(|message| message.publication.topic.clone());
        RetainedPage { messages, after }
    }

    fn remove(&self, topic: &str) -> bool {
        let mut table = self.write();
        let topic = Name::from(topic);
        let is_there = table.remove(&topic);
        if is_there {
            self.store_record(&table, &topic);
            self.queue
                .get()
                .into_iter()
                .for_each(|queue| queue.push(&topic, RetainedWrite::default()));
        }
        if self.is_syncing.load(Relaxed) {
            // Later messages must count as newer, whatever their time.
            table.note_removed(&topic, 0, true);
        }
        is_there
    }

    fn begin_sync(&self) {
        self.is_syncing.store(!self.is_shared(), Relaxed);
    }

    fn sync_page(&self, after: Option<&str>, bytes_max: usize, now_ms: u64) -> SyncPage {
        self.read_page(after, bytes_max, now_ms)
    }

    fn apply_page(
        &self,
        page: &SyncPage,
        hash: &dyn Fn(&str) -> u64,
    ) -> Result<usize, DamagedRecord> {
        self.apply_records(page, hash)
    }

    fn end_sync(&self) {
        self.is_syncing.store(false, Relaxed);
    }

    fn sweep(&self, now_ms: u64) {
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        let after = swept.take();
        *swept = self.sweep_some(now_ms, after.as_deref(), SWEPT);
        drop(swept);
        self.store_again();
    }

    fn is_shared(&self) -> bool {
        self.queue.get().is_some()
    }

    fn settle(&self, done: Done) {
        match self.queue.get() {
            Some(queue) => queue.settle(done),
            None => done(true),
        }
    }

    fn stats(&self) -> RetainedStats {
        let table = self.read();
        let (messages, bytes) = (table.names.len() - table.own, table.bytes);
        let pending = self.queue.get().map_or(0, |queue| queue.pending());
        RetainedStats { messages, bytes, refused: self.refused.load(Relaxed), pending }
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

    fn own(topic: &str, text: &str, offset: u64) -> Arc<Envelope> {
        let own = Attributes { is_own: true, ..Attributes::default() };
        let publication = Publication {
            attributes: Some(Box::new(own)),
            ..Publication::new(topic, Data::Text(text.into()))
        };
        Arc::new(Message::new(publication, Position { epoch: Epoch(1), offset }, 0, 0).into())
    }

    #[test]
    fn a_topic_has_its_last_message_until_it_is_removed() {
        type StoredRecords = Vec<(String, Option<Vec<u8>>)>;
        let stored_records: Arc<Mutex<StoredRecords>> = Arc::default();
        let notes = stored_records.clone();
        let writer = move |topic: &str, value, _| notes.lock().unwrap().push((topic.into(), value));
        let retained = LocalRetained::new(Some(Box::new(writer)));
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
        retained.retain(&own("$SYS/broker/uptime", "1 second", 4));
        retained.retain(&message("@al", "four", 5));
        let all = |after: Option<&str>, limit| {
            let page = retained.all(after, limit);
            let topics = page.messages.iter().map(|it| it.publication.topic.to_string());
            (topics.collect::<Vec<_>>(), page.after.map(String::from))
        };
        assert_eq!(all(None, 2), (vec!["@al".into(), "a/b".into()], Some("a/b".into())));
        assert_eq!(all(Some("a/b"), 1), (vec!["a/c".into()], None));
        retained.retain(&message("@al", "", 6));
        let stored = stored_records.lock().unwrap()[..3].to_vec();
        retained.retain(&message("a/b", "", 4));
        assert_eq!(offsets("#", None, 9).0, [3]);
        let bytes = message("a/c", "three", 3).bytes();
        let stats = RetainedStats { messages: 1, bytes, ..RetainedStats::default() };
        assert_eq!(retained.stats(), stats);
        assert!(retained.remove("a/c") && !retained.remove("a/c") && !retained.remove("never"));
        assert_eq!(retained.stats(), RetainedStats::default());
        assert_eq!(stored_records.lock().unwrap()[6..], [("a/c".into(), None)]);

        let other = LocalRetained::new(None);
        let records = stored.into_iter().skip(1).map(|(topic, value)| (topic, value.unwrap()));
        let unread = other.load(records.chain([("x".into(), vec![0xff])]), |_| 7);
        let found = other.get("a/b").unwrap();
        let Data::Text(text) = &found.publication.data else { panic!() };
        assert_eq!((unread, &**text, found.id.offset, found.at_ms), (1, "two", 2, 7_000));
    }

    /// Makes a message that the history delivers when it is on disk.
    fn written(topic: &str, text: &str, published_us: u64) -> Arc<Envelope> {
        let message = published(topic, text, published_us).message.clone();
        Arc::new(message.retained(model::Retention::History, 1).into())
    }

    fn published(topic: &str, text: &str, published_us: u64) -> Arc<Envelope> {
        let message = message(topic, text, published_us).message.clone();
        Arc::new(Message { published_us, ..message }.into())
    }

    #[test]
    fn what_was_published_last_is_retained_whenever_it_comes() {
        type StoredRecords = std::collections::HashMap<String, Option<Vec<u8>>>;
        let stored_records: Arc<Mutex<StoredRecords>> = Arc::default();
        let notes = stored_records.clone();
        let writer =
            move |topic: &str, value, _| drop(notes.lock().unwrap().insert(topic.into(), value));
        let retained = LocalRetained::new(Some(Box::new(writer)));
        let offset = |topic: &str| retained.get(topic).map(|it| it.id.offset);
        retained.retain(&published("a", "newer", 20));
        let stored = stored_records.lock().unwrap().get("a").cloned();
        retained.retain(&written("a", "older", 10));
        assert_eq!(
            (offset("a"), stored_records.lock().unwrap().get("a").cloned()),
            (Some(20), stored)
        );
        retained.retain(&published("a", "", 30));
        retained.retain(&written("a", "older than its removal", 25));
        assert_eq!((offset("a"), stored_records.lock().unwrap().get("a")), (None, Some(&None)));
        retained.retain(&written("a", "new", 31));
        retained.retain(&written("a", "", 29));
        assert_eq!(offset("a"), Some(31));
        // A message beyond the limit leaves its topic without a message.
        retained.set_limits(1, 0);
        retained.retain(&published("a", "too large", 50));
        retained.retain(&written("a", "", 40));
        retained.set_limits(1, usize::MAX);
        retained.retain(&written("a", "x", 45));
        assert_eq!(offset("a"), None);
    }

    #[test]
    fn what_the_store_does_not_take_is_given_to_it_again() {
        type Taken = (Vec<(String, bool)>, Vec<Done>, bool);
        let store: Arc<Mutex<Taken>> = Arc::default();
        let takes = store.clone();
        let writer = move |topic: &str, value: Option<Vec<u8>>, done: Done| {
            let mut takes = takes.lock().unwrap();
            if takes.2 {
                drop(takes);
                return done(false);
            }
            takes.0.push((topic.into(), value.is_some()));
            takes.1.push(done);
        };
        let retained = LocalRetained::new(Some(Box::new(writer)));
        let given = |is_full: bool| {
            let mut store = store.lock().unwrap();
            store.2 = is_full;
            (std::mem::take(&mut store.0), std::mem::take(&mut store.1))
        };
        let put = |topic: &str, is_there: bool| (topic.to_string(), is_there);
        retained.retain(&message("there", "x", 1));
        given(true);
        // The store has no capacity.
        for (topic, text) in [("new", "x"), ("gone", "x"), ("gone", ""), ("there", "")] {
            retained.retain(&message(topic, text, 2));
        }
        retained.sweep(0);
        assert!(!retained.is_stored() && given(false).0.is_empty());
        retained.sweep(0);
        assert!(retained.is_stored());
        let (puts, dones) = given(false);
        assert_eq!(puts, [put("gone", false), put("new", true), put("there", false)]);
        // The store fails after it has accepted them, and another message is published meanwhile.
        retained.retain(&message("there", "new", 3));
        dones.into_iter().for_each(|done| done(false));
        given(false);
        retained.sweep(0);
        let (puts, dones) = given(false);
        assert_eq!(puts, [put("gone", false), put("new", true), put("there", true)]);
        dones.into_iter().for_each(|done| done(true));
        retained.sweep(0);
        assert!(retained.is_stored() && given(false).0.is_empty());
        // Removals of messages that do not exist can't fill the store.
        retained.retain(&message("never", "", 4));
        assert!(given(false).0.is_empty());
    }

    #[test]
    fn what_was_removed_is_known_for_a_while() {
        let retained = LocalRetained::new(Some(Box::new(|_: &str, _, _| ())));
        for at in 1..=REMOVED_MAX as u64 + 10 {
            retained.retain(&published(&format!("t/{at}"), "", at));
            retained.retain(&published("often", "", at));
        }
        let table = retained.read();
        assert!(table.removals.len() <= REMOVED_MAX && table.removed.len() <= REMOVED_MAX);
        assert!(table.removed.contains_key("often"));
        drop(table);
        retained.retain(&published("later", "", 3 * REMOVED_US));
        assert_eq!((retained.read().removals.len(), retained.read().removed.len()), (1, 1));
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
        // The node's messages about itself do not count.
        retained.retain(&own("$SYS/broker/uptime", "1 second", 8));
        assert_eq!((retained.stats().messages, retained.stats().refused), (2, 1));
        assert!(retained.get("$SYS/broker/uptime").is_some());
        // A client's message there counts as everywhere.
        retained.retain(&message("$SYS/broker/version", "mine", 8));
        assert_eq!((retained.stats().messages, retained.stats().refused), (2, 2));
        retained.set_limits(2, 1);
        // A message that can't be retained replaces the present one.
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
