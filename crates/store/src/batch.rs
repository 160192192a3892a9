//! What a transaction of the writer does to the tables. No clock, no thread: times are given.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

use redb::{ReadableTable, Table, WriteTransaction};
use wire::Name;

use crate::facts::Node;
use crate::fault::{Damage, Trouble};
use crate::find;
use crate::record::{Head, Row};
use crate::rows;
use crate::sum;
use crate::tables::{EXPIRIES, IDEMPOTENCY, KEYS, MESSAGES, TOPICS};
use crate::topic::{Keep, Topic};

/// Messages of one topic that retention drops in one transaction; the rest goes in the next.
const TRIM_MAX: usize = 16_384;

/// How long a message that says its key is no more stays in a compact topic, in seconds.
pub const TOMBSTONE_SECONDS: u64 = 86_400;

/// Rows that one look takes from the table of expiries, and from that of idempotency keys.
pub(crate) const SWEPT_MAX: usize = 8_192;

/// Something to write.
pub(crate) enum Op {
    Append(Append),
    /// At most so many messages, the oldest first: [`Applied::more`] says if there are more.
    Delete {
        topic: Name,
        through: u64,
        rows_max: usize,
    },
    Cursor {
        user: Name,
        topic: Name,
        offset: u64,
    },
    Subscriptions {
        puts: Vec<(Name, Box<[u8]>)>,
        names: Vec<(u32, Name)>,
    },
}

/// A message to write.
pub(crate) struct Append {
    pub topic: Name,
    pub offset: u64,
    pub at_ms: u64,
    pub record: Box<[u8]>,
    pub keep: Keep,
    pub idempotency_key: Option<Name>,
}

/// What a look through the topics found to do.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// Topics that have messages to drop, or have had none for long.
    pub topics: Vec<Name>,
    /// Messages have expired.
    pub expired: bool,
    /// Idempotency keys are older than this, in milliseconds since 1970.
    pub keys_before_ms: Option<u64>,
    /// Rows that go at most for the expired, and as many for the keys.
    pub rows_max: usize,
    /// Topics go that have had no message since this, in milliseconds since 1970.
    pub empty_before_ms: u64,
}

impl Due {
    pub fn is_nothing(&self) -> bool {
        self.topics.is_empty() && !self.expired && self.keys_before_ms.is_none()
    }
}

impl Op {
    /// The topic whose rows it changes.
    pub fn topic(&self) -> Option<&Name> {
        match self {
            Op::Append(append) => Some(&append.topic),
            Op::Delete { topic, .. } => Some(topic),
            Op::Cursor { .. } | Op::Subscriptions { .. } => None,
        }
    }
}

/// What a transaction leads to once it is committed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Applied {
    pub node: Node,
    /// The sweep took as many rows as it may: there may be more.
    pub more: bool,
}

/// The tables of messages while a transaction changes them.
pub(crate) struct Batch<'t> {
    node: Node,
    more: bool,
    now_ms: u64,
    opened: HashMap<Name, Opened>,
    topics: Table<'t, &'static str, &'static [u8]>,
    messages: Table<'t, (u64, u64), &'static [u8]>,
    keys: Table<'t, (u64, &'static str), u64>,
    expiries: Table<'t, (u64, u64, u64), &'static str>,
    idempotency: Table<'t, (u64, u64), (&'static str, &'static str, u64)>,
}

/// A topic that the transaction has to do with.
struct Opened {
    topic: Topic,
    was_empty: bool,
}

/// Applies operations in their order and then what retention asks for, but to no topic that is
/// known to be damaged.
pub(crate) fn apply<'a>(
    txn: &WriteTransaction,
    node: Node,
    now_ms: u64,
    ops: impl Iterator<Item = &'a Op>,
    due: &Due,
    damaged: &HashSet<Name>,
) -> Result<Applied, Trouble> {
    let mut batch = Batch::new(txn, node, now_ms)?;
    for op in ops {
        let node = &mut batch.node;
        match op {
            Op::Append(append) => batch.append(append)?,
            Op::Delete { topic, through, rows_max } => batch.delete(topic, *through, *rows_max)?,
            Op::Cursor { user, topic, offset } => {
                rows::put_cursor(txn, node, user, topic, *offset)?
            }
            Op::Subscriptions { puts, names } => rows::put_subscriptions(txn, node, puts, names)?,
        }
    }
    batch.sweep(due, damaged)?;
    let more = batch.more;
    let node = batch.finish(due.empty_before_ms)?;
    let node = Node { commits: node.commits + 1, ..node };
    node.put(txn)?;
    Ok(Applied { node, more })
}

fn all_of(number: u64) -> RangeInclusive<(u64, u64)> {
    (number, 0)..=(number, u64::MAX)
}

impl<'t> Batch<'t> {
    fn new(txn: &'t WriteTransaction, node: Node, now_ms: u64) -> Result<Self, Trouble> {
        Ok(Batch {
            node,
            more: false,
            now_ms,
            opened: HashMap::new(),
            topics: txn.open_table(TOPICS)?,
            messages: txn.open_table(MESSAGES)?,
            keys: txn.open_table(KEYS)?,
            expiries: txn.open_table(EXPIRIES)?,
            idempotency: txn.open_table(IDEMPOTENCY)?,
        })
    }

    /// The topic's row, as this transaction has it. `None` if there is none.
    fn find(&mut self, name: &Name) -> Result<Option<Topic>, Trouble> {
        if let Some(opened) = self.opened.get(name) {
            return Ok(Some(opened.topic));
        }
        let tail = self.node.tail;
        let Some(topic) = find::topic(&self.topics, || Ok(tail), name)? else {
            return Ok(None);
        };
        let opened = Opened { topic, was_empty: topic.count == 0 };
        self.opened.insert(name.clone(), opened);
        Ok(Some(topic))
    }

    /// A row for a topic that has none, between its neighbours.
    fn enter(&mut self, name: &Name) -> Result<Topic, Trouble> {
        self.node.next += 1;
        // The name may have had a row before.
        let floor = self.node.gone;
        let before = find::before(&self.topics, name)?;
        let topic = Topic { number: self.node.next, floor, before, ..Topic::default() };
        self.join(name, sum::of_name(name))?;
        self.topics.insert(name.as_str(), &*topic.encode(name))?;
        Ok(topic)
    }

    /// The row after this name is to say that this is before it.
    fn join(&mut self, name: &str, before: u64) -> Result<(), Trouble> {
        let Some((next, mut topic)) = find::after(&self.topics, name)? else {
            self.node.tail = before;
            return Ok(());
        };
        topic.before = before;
        self.topics.insert(&*next, &*topic.encode(&next))?;
        if let Some(opened) = self.opened.get_mut(&*next) {
            opened.topic.before = before;
        }
        Ok(())
    }

    fn put(&mut self, name: &Name, topic: Topic) {
        let opened = self.opened.entry(name.clone());
        opened.or_insert(Opened { topic, was_empty: false }).topic = topic;
    }

    fn append(&mut self, append: &Append) -> Result<(), Trouble> {
        let Append { offset, at_ms, record, keep, .. } = append;
        let (offset, at_ms) = (*offset, *at_ms);
        let head = Head::read(record)?;
        let mut topic = match self.find(&append.topic)? {
            Some(topic) => topic,
            None => self.enter(&append.topic)?,
        };
        topic.keep = *keep;
        topic.oldest_ms = if topic.count == 0 { at_ms } else { topic.oldest_ms.min(at_ms) };
        if let Some(key) = head.key.filter(|_| keep.compact) {
            let before = self.keys.insert((topic.number, key), offset)?.map(|row| row.value());
            if let Some(before) = before.filter(|before| *before != offset) {
                let has_key = |head: &Head<'_>| head.key == Some(key);
                self.remove_message(&append.topic, &mut topic, before, has_key)?;
            }
        }
        if offset <= topic.newest {
            // It may be there, though a caller that goes by the rules never hands it in twice.
            self.remove_message(&append.topic, &mut topic, offset, |_| true)?;
        }
        self.insert_message(&append.topic, &mut topic, offset, record)?;
        topic.count += 1;
        topic.bytes += head.payload.len() as u64;
        topic.last = topic.last.max(offset);
        self.node.last = self.node.last.max(offset);
        if let Some(expires_ms) = first_expiry(&head, keep.compact) {
            self.expiries.insert((expires_ms, topic.number, offset), append.topic.as_str())?;
        }
        if let Some(key) = &append.idempotency_key {
            let (table, node) = (&mut self.idempotency, &mut self.node);
            rows::put_idempotency_key(table, node, (at_ms, offset), (&append.topic, key))?;
        }
        self.put(&append.topic, topic);
        Ok(())
    }

    /// Writes a row. The one after it, if there is one, is to know it already, or to be told.
    fn write(&mut self, number: u64, offset: u64, row: Row<'_>) -> Result<(), Trouble> {
        let front = row.front(number, offset);
        let length = front.bytes().len() + row.record.len();
        let mut place = self.messages.insert_reserve((number, offset), length)?;
        let (first, rest) = place.as_mut().split_at_mut(front.bytes().len());
        first.copy_from_slice(front.bytes());
        rest.copy_from_slice(row.record);
        Ok(())
    }

    fn insert_message(
        &mut self,
        name: &str,
        topic: &mut Topic,
        offset: u64,
        record: &[u8],
    ) -> Result<(), Trouble> {
        let mut before = topic.newest;
        if offset <= topic.base {
            // The first, and before all that was dropped.
            let base = offset.saturating_sub(1);
            self.join_messages(name, topic, topic.base, base)?;
            topic.base = base;
            before = base;
        }
        if offset <= topic.newest {
            before = self.after_it(name, topic, offset)?.1;
            self.join_messages(name, topic, before, offset)?;
        }
        topic.newest = topic.newest.max(offset);
        self.write(topic.number, offset, Row { before, record })
    }

    /// The first message after an offset at which or before which there is one, the offset of the
    /// one before it, and its record.
    fn after_it(
        &self,
        name: &str,
        topic: &Topic,
        offset: u64,
    ) -> Result<(u64, u64, Vec<u8>), Trouble> {
        let number = topic.number;
        let missing = || Damage::of(name, offset, topic.newest, "it is not there");
        let found = self.messages.range((number, offset + 1)..=(number, u64::MAX))?.next();
        let (key, value) = found.ok_or_else(missing)??;
        let next = key.value().1;
        let row = Row::read(number, next, value.value());
        let row = row.map_err(|error| Trouble::from(error).of(name, offset, next))?;
        Ok((next, row.before, row.record.to_vec()))
    }

    /// The message that says that `before` is before it is to say `now`.
    fn join_messages(
        &mut self,
        name: &str,
        topic: &mut Topic,
        before: u64,
        now: u64,
    ) -> Result<(), Trouble> {
        if before == topic.newest {
            topic.newest = now;
            return Ok(());
        }
        let (next, known, record) = self.after_it(name, topic, before)?;
        if known != before {
            return Err(
                Damage::of(name, known.min(before), next, "one before it is missing").into()
            );
        }
        self.write(topic.number, next, Row { before: now, record: &record })
    }

    /// Removes a message if it is there and is the one that is meant, without a trace in the floor.
    fn remove_message(
        &mut self,
        name: &str,
        topic: &mut Topic,
        offset: u64,
        is_meant: impl FnOnce(&Head<'_>) -> bool,
    ) -> Result<(), Trouble> {
        let number = topic.number;
        let bad = |error| Trouble::from(error).of(name, offset.saturating_sub(1), offset);
        let row = self.messages.get((number, offset))?.map(|row| row.value().to_vec());
        let Some(row) = row else { return Ok(()) };
        let row = Row::read(number, offset, &row).map_err(bad)?;
        let head = row.head().map_err(bad)?;
        if !is_meant(&head) {
            return Ok(());
        }
        self.messages.remove((number, offset))?;
        self.join_messages(name, topic, offset, row.before)?;
        topic.count = topic.count.saturating_sub(1);
        topic.bytes = topic.bytes.saturating_sub(head.payload.len() as u64);
        for expires_ms in expiries(&head) {
            self.expiries.remove((expires_ms, number, offset))?;
        }
        Ok(())
    }

    /// Takes away the key's row if it means this message.
    fn remove_key(&mut self, number: u64, key: &str, offset: u64) -> Result<(), Trouble> {
        let is_last = self.keys.get((number, key))?.is_some_and(|row| row.value() == offset);
        if is_last {
            self.keys.remove((number, key))?;
        }
        Ok(())
    }

    fn delete(&mut self, name: &Name, through: u64, rows_max: usize) -> Result<(), Trouble> {
        let found = match self.find(name) {
            // Which messages were its own is not known any more. It begins anew.
            Err(Trouble::Damaged(_)) if self.topics.get(name.as_str())?.is_some() => {
                self.node.next += 1;
                let (number, before) = (self.node.next, find::before(&self.topics, name)?);
                let (floor, last, base, newest) = (through, through, through, through);
                let row = Topic { number, before, floor, last, base, newest, ..Topic::default() };
                self.opened.insert(name.clone(), Opened { topic: row, was_empty: false });
                return Ok(());
            }
            other => other?,
        };
        let Some(mut topic) = found else { return Ok(()) };
        let all = self.drop_oldest(name, &mut topic, rows_max, |_, offset, _| offset <= through);
        match all {
            // It is gone either way, and so is the damage.
            Err(Trouble::Damaged(_) | Trouble::Row(_)) if through >= topic.newest => {
                let before = self.find(name)?.unwrap_or(topic);
                topic = self.abandon(before)?;
            }
            other => other?,
        }
        self.put(name, topic);
        Ok(())
    }

    /// Drops all messages of a topic without looking at them, and begins it under another number:
    /// what other tables say of its messages says nothing of those that come.
    fn abandon(&mut self, topic: Topic) -> Result<Topic, Trouble> {
        self.messages.retain_in(all_of(topic.number), |_, _| false)?;
        self.node.next += 1;
        let floor = topic.floor.max(topic.newest);
        let (number, base) = (self.node.next, topic.newest);
        Ok(Topic { number, floor, base, count: 0, bytes: 0, ..topic })
    }

    /// Drops the topic's oldest messages while they are to go, at most so many.
    fn drop_oldest(
        &mut self,
        name: &str,
        topic: &mut Topic,
        rows_max: usize,
        mut goes: impl FnMut(&Topic, u64, &Head<'_>) -> bool,
    ) -> Result<(), Trouble> {
        let (mut through, mut rows, mut is_end) = (None, 0, true);
        let mut keys: Vec<(Name, u64)> = Vec::new();
        let mut expire: Vec<(u64, u64)> = Vec::new();
        for row in self.messages.range(all_of(topic.number))? {
            let (key, value) = row?;
            let offset = key.value().1;
            let row = Row::read(topic.number, offset, value.value());
            let head = row.and_then(|row| Ok((row.before, row.head()?)));
            let known = through.unwrap_or(topic.base);
            let is_next = |(before, _): &(u64, _)| *before == known && known < offset;
            let Some((_, head)) = head.ok().filter(is_next) else {
                let what = "it is not what was written";
                return Err(Damage::of(name, known, offset, what).into());
            };
            if rows == rows_max || !goes(topic, offset, &head) {
                topic.oldest_ms = head.at_ms;
                self.more |= rows == rows_max;
                is_end = false;
                break;
            }
            rows += 1;
            through = Some(offset);
            topic.count = topic.count.saturating_sub(1);
            topic.bytes = topic.bytes.saturating_sub(head.payload.len() as u64);
            keys.extend(head.key.map(|key| (key.into(), offset)));
            expire.extend(expiries(&head).map(|expires_ms| (expires_ms, offset)));
        }
        let last = through.unwrap_or(topic.base);
        if is_end && last != topic.newest {
            return Err(Damage::of(name, last, topic.newest, "it is not there").into());
        }
        if let Some(through) = through {
            topic.base = through;
            topic.floor = topic.floor.max(through);
            let range = (topic.number, 0)..=(topic.number, through);
            self.messages.retain_in(range, |_, _| false)?;
        }
        for (expires_ms, offset) in expire {
            self.expiries.remove((expires_ms, topic.number, offset))?;
        }
        keys.iter().try_for_each(|(key, offset)| self.remove_key(topic.number, key, *offset))
    }

    fn sweep(&mut self, due: &Due, damaged: &HashSet<Name>) -> Result<(), Trouble> {
        let mut whole = due.topics.iter().filter(|name| !damaged.contains(*name));
        whole.try_for_each(|name| self.find(name).map(|_| ()))?;
        if due.expired {
            self.expire(due.rows_max, damaged)?;
        }
        if let Some(before_ms) = due.keys_before_ms {
            let rows = self.idempotency.extract_from_if(..(before_ms, 0), |_, _| true)?;
            let mut swept = 0;
            for row in rows.take(due.rows_max) {
                self.node.idempotency.remove(row?.1.value().2);
                swept += 1;
            }
            self.more |= swept == due.rows_max;
        }
        Ok(())
    }

    fn expire(&mut self, rows_max: usize, damaged: &HashSet<Name>) -> Result<(), Trouble> {
        let mut gone = Vec::new();
        let rows =
            self.expiries.extract_from_if(..=(self.now_ms, u64::MAX, u64::MAX), |_, _| true)?;
        for row in rows.take(rows_max) {
            let (key, name) = row?;
            gone.push((Name::from(name.value()), key.value()));
        }
        self.more |= gone.len() == rows_max;
        for (name, (expires_ms, number, offset)) in gone {
            // What a damaged topic has is not given any more when it has expired.
            if damaged.contains(&name) {
                continue;
            }
            let Some(mut topic) = self.find(&name)?.filter(|topic| topic.number == number) else {
                continue;
            };
            let Some(row) = self.messages.get((number, offset))?.map(|row| row.value().to_vec())
            else {
                continue;
            };
            let head = Row::read(number, offset, &row).and_then(|row| row.head());
            let before = offset.saturating_sub(1);
            let head = head.map_err(|error| Trouble::from(error).of(&name, before, offset))?;
            if !expiries(&head).any(|ms| ms == expires_ms) {
                continue;
            }
            // What expires is worth nothing, so nobody misses it. But who has not seen that a key
            // is no more, or has another value, must be told that something is missing: the value
            // that they know went with this message.
            if !head.is_expired(self.now_ms) || topic.is_missed(&head) {
                topic.floor = topic.floor.max(offset);
            }
            self.remove_message(&name, &mut topic, offset, |_| true)?;
            if let Some(key) = head.key {
                self.remove_key(number, key, offset)?;
            }
            self.put(&name, topic);
        }
        Ok(())
    }

    /// Retention for all topics that were met, then their rows.
    fn finish(mut self, empty_before_ms: u64) -> Result<Node, Trouble> {
        let now_ms = self.now_ms;
        let mut forgotten = Vec::new();
        for (name, Opened { mut topic, was_empty }) in std::mem::take(&mut self.opened) {
            if topic.is_over(now_ms) {
                self.drop_oldest(&name, &mut topic, TRIM_MAX, |topic, _, head| {
                    topic.drops(head.at_ms, now_ms)
                })?;
            }
            let is_empty = topic.count == 0;
            match (was_empty, is_empty) {
                (false, true) => {
                    topic.empty_since_ms = now_ms;
                    self.node.empty += 1;
                }
                (true, false) => self.node.empty = self.node.empty.saturating_sub(1),
                (true, true) if topic.empty_since_ms < empty_before_ms => {
                    self.node.empty = self.node.empty.saturating_sub(1);
                    self.node.gone = self.node.gone.max(topic.last);
                    forgotten.push(name.clone());
                }
                _ => {}
            }
            self.topics.insert(name.as_str(), &*topic.encode(&name))?;
        }
        for name in forgotten {
            let row = self.topics.remove(name.as_str())?.map(|row| find::read(&name, row.value()));
            let before = row.transpose()?.map_or(0, |row| row.before);
            self.join(&name, before)?;
        }
        Ok(self.node)
    }
}

/// When a message that says its key is no more goes from a compact topic.
fn tombstone_ms(head: &Head<'_>) -> Option<u64> {
    head.is_tombstone().then(|| head.at_ms.saturating_add(TOMBSTONE_SECONDS * 1000))
}

/// When a message goes by its own time or as a tombstone, whichever comes first.
pub(crate) fn first_expiry(head: &Head<'_>, compact: bool) -> Option<u64> {
    head.expires_ms.into_iter().chain(tombstone_ms(head).filter(|_| compact)).min()
}

/// Where the table of expiries may have a row for a message. Both, as its topic's rule may have
/// changed since.
fn expiries(head: &Head<'_>) -> impl Iterator<Item = u64> {
    head.expires_ms.into_iter().chain(tombstone_ms(head))
}
