//! What a transaction of the writer does to the tables. No clock, no thread: times are given.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use redb::{ReadableTable, Table, WriteTransaction};
use wire::Name;

use crate::fault::Trouble;
use crate::record::Head;
use crate::tables::{
    CURSORS, EXPIRIES, IDEMPOTENCY, KEYS, MESSAGES, NAMES, NODE, NODE_EMPTY, NODE_GONE, NODE_LAST,
    NODE_NEXT, SUBSCRIPTIONS, TOPICS,
};
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
    Delete { topic: Name, through: u64 },
    Cursor { user: Name, topic: Name, offset: u64 },
    Subscriptions { puts: Vec<(Name, Box<[u8]>)>, names: Vec<(u32, Name)> },
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

/// Facts about the whole store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Node {
    /// The last offset.
    pub last: u64,
    /// The highest offset of topics whose rows are gone.
    pub gone: u64,
    /// The number for the next new topic.
    pub next: u64,
    /// Topics without messages.
    pub empty: u64,
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
    idempotency: Table<'t, (u64, u64), (&'static str, &'static str)>,
}

/// A topic that the transaction has to do with.
struct Opened {
    topic: Topic,
    was_empty: bool,
}

/// Applies operations in their order and then what retention asks for.
pub(crate) fn apply<'a>(
    txn: &WriteTransaction,
    node: Node,
    now_ms: u64,
    ops: impl Iterator<Item = &'a Op>,
    due: &Due,
) -> Result<Applied, Trouble> {
    let mut batch = Batch::new(txn, node, now_ms)?;
    for op in ops {
        match op {
            Op::Append(append) => batch.append(append)?,
            Op::Delete { topic, through } => batch.delete(topic, *through)?,
            Op::Cursor { user, topic, offset } => put_cursor(txn, user, topic, *offset)?,
            Op::Subscriptions { puts, names } => put_subscriptions(txn, puts, names)?,
        }
    }
    batch.sweep(due)?;
    let more = batch.more;
    let node = batch.finish(due.empty_before_ms)?;
    let mut table = txn.open_table(NODE)?;
    for (name, number) in [
        (NODE_LAST, node.last),
        (NODE_GONE, node.gone),
        (NODE_NEXT, node.next),
        (NODE_EMPTY, node.empty),
    ] {
        table.insert(name, number)?;
    }
    Ok(Applied { node, more })
}

fn put_cursor(txn: &WriteTransaction, user: &str, topic: &str, offset: u64) -> Result<(), Trouble> {
    let mut cursors = txn.open_table(CURSORS)?;
    // Acknowledgements of a user's several connections may come in any order.
    let before = cursors.get((user, topic))?.map(|row| row.value());
    if before.is_none_or(|before| before < offset) {
        cursors.insert((user, topic), offset)?;
    }
    Ok(())
}

fn put_subscriptions(
    txn: &WriteTransaction,
    puts: &[(Name, Box<[u8]>)],
    names: &[(u32, Name)],
) -> Result<(), Trouble> {
    let mut table = txn.open_table(SUBSCRIPTIONS)?;
    for (user, packed) in puts {
        match packed.is_empty() {
            true => drop(table.remove(user.as_str())?),
            false => drop(table.insert(user.as_str(), &**packed)?),
        }
    }
    let mut table = txn.open_table(NAMES)?;
    for (number, name) in names {
        table.insert(number, name.as_str())?;
    }
    Ok(())
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
        let Some(row) = self.topics.get(name.as_str())? else {
            return Ok(None);
        };
        let topic = Topic::read(row.value())?;
        let opened = Opened { topic, was_empty: topic.count == 0 };
        self.opened.insert(name.clone(), opened);
        Ok(Some(topic))
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
            None => {
                self.node.next += 1;
                // The name may have had a row before.
                let floor = self.node.gone;
                Topic { number: self.node.next, floor, ..Topic::default() }
            }
        };
        topic.keep = *keep;
        topic.oldest_ms = if topic.count == 0 { at_ms } else { topic.oldest_ms.min(at_ms) };
        if let Some(key) = head.key.filter(|_| keep.compact) {
            let before = self.keys.insert((topic.number, key), offset)?.map(|row| row.value());
            if let Some(before) = before.filter(|before| *before != offset) {
                self.remove_message(&mut topic, before)?;
            }
        }
        if offset <= topic.last {
            // It may be there, though a caller that goes by the rules never hands it in twice.
            self.remove_message(&mut topic, offset)?;
        }
        self.messages.insert((topic.number, offset), &**record)?;
        topic.count += 1;
        topic.bytes += head.payload.len() as u64;
        topic.last = topic.last.max(offset);
        self.node.last = self.node.last.max(offset);
        let tombstone_ms = tombstone_ms(&head).filter(|_| keep.compact);
        let expires_ms = head.expires_ms.into_iter().chain(tombstone_ms).min();
        if let Some(expires_ms) = expires_ms {
            self.expiries.insert((expires_ms, topic.number, offset), append.topic.as_str())?;
        }
        if let Some(key) = &append.idempotency_key {
            self.idempotency.insert((at_ms, offset), (append.topic.as_str(), key.as_str()))?;
        }
        self.put(&append.topic, topic);
        Ok(())
    }

    /// Removes a message if it is there, without a trace in the floor.
    fn remove_message(&mut self, topic: &mut Topic, offset: u64) -> Result<(), Trouble> {
        let Some(row) = self.messages.remove((topic.number, offset))? else {
            return Ok(());
        };
        let head = Head::read(row.value())?;
        topic.count = topic.count.saturating_sub(1);
        topic.bytes = topic.bytes.saturating_sub(head.payload.len() as u64);
        for expires_ms in expiries(&head) {
            self.expiries.remove((expires_ms, topic.number, offset))?;
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

    fn delete(&mut self, name: &Name, through: u64) -> Result<(), Trouble> {
        let Some(mut topic) = self.find(name)? else {
            return Ok(());
        };
        self.drop_oldest(&mut topic, usize::MAX, |_, offset, _| offset <= through)?;
        self.put(name, topic);
        Ok(())
    }

    /// Drops the topic's oldest messages while they are to go, at most so many.
    fn drop_oldest(
        &mut self,
        topic: &mut Topic,
        rows_max: usize,
        mut goes: impl FnMut(&Topic, u64, &Head<'_>) -> bool,
    ) -> Result<(), Trouble> {
        let (mut through, mut rows) = (None, 0);
        let mut keys: Vec<(Name, u64)> = Vec::new();
        let mut expire: Vec<(u64, u64)> = Vec::new();
        for row in self.messages.range(all_of(topic.number))? {
            let (key, value) = row?;
            let (offset, head) = (key.value().1, Head::read(value.value())?);
            if rows == rows_max || !goes(topic, offset, &head) {
                topic.oldest_ms = head.at_ms;
                break;
            }
            rows += 1;
            through = Some(offset);
            topic.count = topic.count.saturating_sub(1);
            topic.bytes = topic.bytes.saturating_sub(head.payload.len() as u64);
            keys.extend(head.key.map(|key| (key.into(), offset)));
            expire.extend(expiries(&head).map(|expires_ms| (expires_ms, offset)));
        }
        if let Some(through) = through {
            topic.floor = topic.floor.max(through);
            let range = (topic.number, 0)..=(topic.number, through);
            self.messages.retain_in(range, |_, _| false)?;
        }
        for (expires_ms, offset) in expire {
            self.expiries.remove((expires_ms, topic.number, offset))?;
        }
        keys.iter().try_for_each(|(key, offset)| self.remove_key(topic.number, key, *offset))
    }

    fn sweep(&mut self, due: &Due) -> Result<(), Trouble> {
        due.topics.iter().try_for_each(|name| self.find(name).map(|_| ()))?;
        if due.expired {
            self.expire(due.rows_max)?;
        }
        if let Some(before_ms) = due.keys_before_ms {
            let rows = self.idempotency.extract_from_if(..(before_ms, 0), |_, _| true)?;
            let mut swept = 0;
            for row in rows.take(due.rows_max) {
                row?;
                swept += 1;
            }
            self.more |= swept == due.rows_max;
        }
        Ok(())
    }

    fn expire(&mut self, rows_max: usize) -> Result<(), Trouble> {
        let mut gone = Vec::new();
        let rows =
            self.expiries.extract_from_if(..=(self.now_ms, u64::MAX, u64::MAX), |_, _| true)?;
        for row in rows.take(rows_max) {
            let (key, name) = row?;
            let (_, number, offset) = key.value();
            gone.push((Name::from(name.value()), number, offset));
        }
        self.more |= gone.len() == rows_max;
        for (name, number, offset) in gone {
            let Some(mut topic) = self.find(&name)?.filter(|topic| topic.number == number) else {
                continue;
            };
            let Some(row) = self.messages.get((number, offset))?.map(|row| row.value().to_vec())
            else {
                continue;
            };
            let head = Head::read(&row)?;
            // What expires is worth nothing, so nobody misses it. But who has not seen that a key
            // is no more, or has another value, must be told that something is missing: the value
            // that they know went with this message.
            if !head.is_expired(self.now_ms) || topic.is_missed(&head) {
                topic.floor = topic.floor.max(offset);
            }
            self.remove_message(&mut topic, offset)?;
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
        for (name, Opened { mut topic, was_empty }) in std::mem::take(&mut self.opened) {
            if topic.is_over(now_ms) {
                self.drop_oldest(&mut topic, TRIM_MAX, |topic, _, head| {
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
                    self.topics.remove(name.as_str())?;
                    continue;
                }
                _ => {}
            }
            self.topics.insert(name.as_str(), &*topic.encode())?;
        }
        Ok(self.node)
    }
}

/// When a message that says its key is no more goes from a compact topic.
fn tombstone_ms(head: &Head<'_>) -> Option<u64> {
    head.is_tombstone().then(|| head.at_ms.saturating_add(TOMBSTONE_SECONDS * 1000))
}

/// Where the table of expiries may have a row for a message. Both, as its topic's rule may have
/// changed since.
fn expiries(head: &Head<'_>) -> impl Iterator<Item = u64> {
    head.expires_ms.into_iter().chain(tombstone_ms(head))
}
