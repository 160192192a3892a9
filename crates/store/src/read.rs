//! What is read back, and the proof that it is all: a topic's messages know the one before them,
//! so that one that is gone is noticed like one that is changed.

use std::cell::Cell;

use redb::{Database, ReadTransaction, ReadableDatabase};
use wire::Name;

use crate::facts::Node;
use crate::fault::{Damage, Trouble};
use crate::find;
use crate::quiet::quietly;
use crate::record::{Head, Record, Row};
use crate::tables::{FACTS, MESSAGES, TOPICS};
use crate::topic::Topic;

/// Rows that one read passes over beside those that it gives.
const PASSED_MAX: usize = 4_096;

/// How much to read; the first limit that is reached counts, but one message is always given.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Messages.
    pub messages_max: usize,
    /// The bytes of their payloads.
    pub bytes_max: usize,
}

/// Messages of a topic, as they are on disk at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The messages.
    pub records: Vec<Record>,
    /// A message at or below this offset that is not there may have been dropped; above it, what
    /// is not there never was, has expired, or was replaced under its key.
    pub floor: u64,
    /// The topic's last offset that was ever stored; 0 if nothing is known of the topic.
    pub last: u64,
    /// How far was looked: to go on, look after (or before) this offset.
    pub through: u64,
    /// There is something beyond.
    pub more: bool,
    /// Messages after the first offset and up to the second may have been lost, for the file did
    /// not keep its last transaction: none of these are there, and the floor says so, too.
    pub lost: Option<(u64, u64)>,
    /// What comes next in this direction is damaged.
    pub damaged: bool,
}

/// The topic's row, or the floor of topics that have none; and the facts.
fn topic(txn: &ReadTransaction, name: &str) -> Result<(Result<Topic, u64>, Node), Trouble> {
    let node = Node::get(&txn.open_table(FACTS)?)?;
    let topic = find::topic(&txn.open_table(TOPICS)?, || Ok(node.tail), name)?;
    Ok((topic.ok_or(node.gone), node))
}

/// Runs a read of a topic: what goes wrong is said of the topic and the offset up to which `at`
/// says that all was well. redb may panic over a page that is damaged.
fn guarded<T>(
    name: &str,
    at: &Cell<(u64, u64)>,
    read: impl FnOnce() -> Result<T, Trouble>,
) -> Result<T, Trouble> {
    quietly(read).map_err(|trouble| {
        let (after, through) = at.get();
        trouble.of(name, after, through)
    })
}

/// The topic's floor and its last offset.
pub(crate) fn ends(db: &Database, name: &str) -> Result<(u64, u64), Trouble> {
    guarded(name, &Cell::new((0, u64::MAX)), || {
        let (topic, node) = topic(&db.begin_read()?, name)?;
        let (floor, last) = topic.map_or_else(|floor| (floor, 0), |row| (row.floor, row.last));
        Ok((floor.max(node.lost_through), last))
    })
}

/// The topic's messages after an offset, oldest first.
pub(crate) fn after(
    db: &Database,
    name: &str,
    after: u64,
    amount: Amount,
    now_ms: u64,
) -> Result<Stored, Trouble> {
    let at = Cell::new((after, u64::MAX));
    let mut reading = guarded(name, &at, || Reading::new(db, name, amount, now_ms, &at))?;
    let read = guarded(name, &at, || reading.after(after));
    reading.end(read)
}

/// The topic's messages before an offset, newest first.
pub(crate) fn before(
    db: &Database,
    name: &str,
    before: u64,
    amount: Amount,
    now_ms: u64,
) -> Result<Stored, Trouble> {
    let at = Cell::new((0, before));
    let mut reading = guarded(name, &at, || Reading::new(db, name, amount, now_ms, &at))?;
    let read = guarded(name, &at, || reading.before(before));
    reading.end(read)
}

/// A read of a topic.
struct Reading<'a> {
    txn: ReadTransaction,
    /// `None` if nothing is known of it.
    topic: Option<Topic>,
    name: Name,
    amount: Amount,
    now_ms: u64,
    /// What may be damaged when something is met: after the first offset, up to the second.
    at: &'a Cell<(u64, u64)>,
    stored: Stored,
    bytes: usize,
    passed: usize,
}

/// What became of a message.
enum Took {
    It,
    /// There is no room for it.
    Full,
    /// It is too old; so is all before it.
    Aged,
}

impl<'a> Reading<'a> {
    fn new(
        db: &Database,
        name: &str,
        amount: Amount,
        now_ms: u64,
        at: &'a Cell<(u64, u64)>,
    ) -> Result<Self, Trouble> {
        let txn = db.begin_read()?;
        let (topic, node) = topic(&txn, name)?;
        let (floor, last) = match &topic {
            Ok(topic) => (topic.floor, topic.last),
            Err(floor) => (*floor, 0),
        };
        let lost = (node.lost_through > 0).then_some((node.lost_after, node.lost_through));
        let floor = floor.max(node.lost_through);
        let stored = Stored {
            records: Vec::new(),
            floor,
            last,
            through: 0,
            more: false,
            lost,
            damaged: false,
        };
        let (topic, name) = (topic.ok(), Name::from(name));
        Ok(Reading { txn, topic, name, amount, now_ms, at, stored, bytes: 0, passed: 0 })
    }

    /// Takes a message, unless it is full.
    fn take(&mut self, topic: &Topic, offset: u64, head: &Head<'_>) -> Result<Took, Trouble> {
        let (stored, now_ms) = (&mut self.stored, self.now_ms);
        let is_aged = topic.keep.is_aged(head.at_ms, now_ms);
        let is_expired = head.is_expired(now_ms);
        if is_aged || (is_expired && topic.is_missed(head)) {
            // As its removal will tell.
            stored.floor = stored.floor.max(offset);
        }
        let is_given = !is_aged && !is_expired;
        let is_full = match is_given {
            true => {
                stored.records.len() >= self.amount.messages_max.max(1)
                    || (self.bytes + head.payload.len() > self.amount.bytes_max
                        && !stored.records.is_empty())
            }
            false => self.passed >= PASSED_MAX,
        };
        if is_full {
            stored.more = true;
            return Ok(Took::Full);
        }
        stored.through = offset;
        match is_given {
            true => {
                self.bytes += head.payload.len();
                stored.records.push(head.record(&self.name, offset)?);
            }
            false => self.passed += 1,
        }
        Ok(if is_aged { Took::Aged } else { Took::It })
    }

    fn missing(&self, after: u64, through: u64) -> Trouble {
        Damage::of(&self.name, after, through, "there should be one, and it is not there").into()
    }

    /// What was read before the damage is given; who goes on from there meets it first.
    fn end(mut self, read: Result<(), Trouble>) -> Result<Stored, Trouble> {
        match read {
            Err(trouble) if self.stored.records.is_empty() || !trouble.is_damage() => Err(trouble),
            Err(_) => {
                self.stored.more = true;
                self.stored.damaged = true;
                Ok(self.stored)
            }
            Ok(()) => Ok(self.stored),
        }
    }

    fn after(&mut self, after: u64) -> Result<(), Trouble> {
        self.stored.through = after;
        let (Some(topic), false) = (self.topic, after == u64::MAX) else { return Ok(()) };
        self.at.set((after, topic.newest));
        let messages = self.txn.open_table(MESSAGES)?;
        let number = topic.number;
        // The last that is known to be there, or to have been the last before what is.
        let mut known = after.max(topic.base);
        for row in messages.range((number, after + 1)..=(number, u64::MAX))? {
            let (key, value) = row?;
            let offset = key.value().1;
            if known < offset && offset <= topic.newest {
                // It alone is damaged if it can't be read.
                self.at.set((known, offset));
            }
            let row = Row::read(number, offset, value.value())?;
            // The first may come after messages that were not asked for.
            let is_next = match known > after {
                true => row.before == known,
                false => row.before <= known,
            };
            // A damaged page may lead anywhere, also back.
            let is_there = key.value().0 == number && known < offset && offset <= topic.newest;
            if !is_there || !is_next {
                return Err(self.missing(known, offset.max(known)));
            }
            known = offset;
            if let Took::Full = self.take(&topic, offset, &row.head()?)? {
                return Ok(());
            }
            self.at.set((known, topic.newest));
        }
        if known < topic.newest {
            return Err(self.missing(known, topic.newest));
        }
        self.stored.through = self.stored.last.max(after);
        Ok(())
    }

    fn before(&mut self, before: u64) -> Result<(), Trouble> {
        self.stored.through = before;
        let (Some(topic), false) = (self.topic, before == 0) else { return Ok(()) };
        self.at.set((topic.base, before.min(topic.newest)));
        let messages = self.txn.open_table(MESSAGES)?;
        let number = topic.number;
        // Which comes next, as the one after it knows.
        let mut next = topic.newest;
        if before <= topic.newest {
            let row = messages.range((number, before)..=(number, u64::MAX))?.next();
            let Some(row) = row else { return Err(self.missing(before, topic.newest)) };
            let (key, value) = row?;
            next = Row::read(number, key.value().1, value.value())?.before;
            if key.value().0 != number
                || key.value().1 < before
                || (next >= before && next != topic.base)
            {
                return Err(self.missing(topic.base, topic.newest));
            }
        }
        for row in messages.range((number, 0)..=(number, before - 1))?.rev() {
            let (key, value) = row?;
            let offset = key.value().1;
            if key.value().0 != number || offset != next || offset >= before {
                return Err(self.missing(offset.min(next), next.max(offset)));
            }
            let row = Row::read(number, offset, value.value())?;
            next = row.before;
            match self.take(&topic, offset, &row.head()?)? {
                Took::It => {}
                Took::Full | Took::Aged => return Ok(()),
            }
            self.at.set((topic.base, next));
        }
        if next != topic.base {
            return Err(self.missing(topic.base, next));
        }
        Ok(())
    }
}
