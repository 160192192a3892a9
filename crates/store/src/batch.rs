//! Changes the tables in one write transaction. The caller passes the time in, so that tests need neither a clock nor
//! a thread.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

use model::Name;
use redb::{ReadableTable, Table, WriteTransaction};

use crate::checksum;
use crate::error::{Damage, InternalError};
use crate::events;
use crate::metadata::Metadata;
use crate::record::{MessageRow, RecordRef};
use crate::small_tables;
use crate::stats::Dropped;
use crate::tables::{EXPIRIES, IDEMPOTENCY, KEYS, MESSAGES, TOPICS};
use crate::topic::{Retention, TopicRow};
use crate::topic_rows;

mod sweep;

use sweep::expiries;
pub(crate) use sweep::first_expiry;

/// How many messages of one topic retention drops in one transaction. The next transaction drops
/// the rest.
const TRIM_MAX: usize = 16_384;

/// How long the removal of a key (a message whose data is JSON `null`) stays in a compacted topic, in seconds.
pub const REMOVAL_SECONDS: u64 = 86_400;

/// How many rows one sweep takes from the table of expiries, and from that of idempotency keys.
pub(crate) const SWEEP_ROWS_MAX: usize = 8_192;

/// An operation of the queue.
pub(crate) enum Op {
    Append(Append),
    /// Deletes at most `rows_max` messages, the oldest first. [`Applied::more`] says whether some
    /// remain.
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
    Records {
        part: &'static str,
        puts: Vec<RecordPut>,
    },
    /// Adds events for the application, and deletes those up to a number.
    Events {
        puts: Vec<(u64, Box<[u8]>)>,
        through: Option<u64>,
    },
}

/// A record of a part of the server by its key; without a value it is removed.
pub type RecordPut = (Box<str>, Option<Box<[u8]>>);

/// The part of the server, and a record of it.
pub type PartRecord = (&'static str, RecordPut);

/// A message to write.
pub(crate) struct Append {
    pub topic: Name,
    pub offset: u64,
    pub at_ms: u64,
    pub record: Box<[u8]>,
    pub retention: Retention,
    pub idempotency_key: Option<Name>,
    /// A record that is written in the same commit.
    pub with: Option<Box<PartRecord>>,
}

/// What the maintenance scan found to delete.
#[derive(Debug, Default)]
pub(crate) struct SweepPlan {
    /// Topics that exceed their limits, or that have had no messages for long.
    pub topics: Vec<Name>,
    /// True if messages have expired.
    pub expired: bool,
    /// Idempotency keys older than this are deleted, in milliseconds since 1970.
    pub keys_before_ms: Option<u64>,
    /// The limit on expired messages that the sweep deletes, and on idempotency keys.
    pub rows_max: usize,
    /// Topics that have been empty since before this time are forgotten, in milliseconds since
    /// 1970.
    pub empty_before_ms: u64,
}

impl SweepPlan {
    pub fn is_empty(&self) -> bool {
        self.topics.is_empty() && !self.expired && self.keys_before_ms.is_none()
    }
}

impl Op {
    /// Returns the topic whose rows the operation changes.
    pub fn topic(&self) -> Option<&Name> {
        match self {
            Op::Append(append) => Some(&append.topic),
            Op::Delete { topic, .. } => Some(topic),
            Op::Cursor { .. }
            | Op::Subscriptions { .. }
            | Op::Records { .. }
            | Op::Events { .. } => None,
        }
    }
}

/// The result of a transaction, valid once it is committed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Applied {
    pub metadata: Metadata,
    /// True if the sweep reached its limit of rows, so that more may remain to delete.
    pub more: bool,
    /// The messages that retention has dropped.
    pub dropped: Dropped,
}

/// The tables of messages while a transaction changes them.
pub(crate) struct Batch<'t> {
    metadata: Metadata,
    more: bool,
    dropped: Dropped,
    now_ms: u64,
    loaded: HashMap<Name, LoadedTopic>,
    topics: Table<'t, &'static str, &'static [u8]>,
    messages: Table<'t, (u64, u64), &'static [u8]>,
    keys: Table<'t, (u64, &'static str), u64>,
    expiries: Table<'t, (u64, u64, u64), &'static str>,
    idempotency: Table<'t, (u64, u64), (&'static str, &'static str, u64)>,
}

/// A topic row that the transaction has loaded.
struct LoadedTopic {
    topic: TopicRow,
    was_empty: bool,
}

/// Applies the operations in order and then sweeps for retention. The sweep skips topics that are known to be
/// damaged.
pub(crate) fn apply<'a>(
    txn: &WriteTransaction,
    metadata: Metadata,
    now_ms: u64,
    ops: impl Iterator<Item = &'a Op>,
    plan: &SweepPlan,
    damaged: &HashSet<Name>,
) -> Result<Applied, InternalError> {
    let mut batch = Batch::new(txn, metadata, now_ms)?;
    for op in ops {
        let metadata = &mut batch.metadata;
        match op {
            Op::Append(append) => {
                batch.append(append)?;
                if let Some((part, (key, value))) = append.with.as_deref() {
                    let (metadata, record_key) = (&mut batch.metadata, (*part, &**key));
                    small_tables::put_record(txn, metadata, record_key, value.as_deref())?;
                }
            }
            Op::Delete { topic, through, rows_max } => batch.delete(topic, *through, *rows_max)?,
            Op::Cursor { user, topic, offset } => {
                small_tables::put_cursor(txn, metadata, user, topic, *offset)?
            }
            Op::Subscriptions { puts, names } => {
                small_tables::put_subscriptions(txn, metadata, puts, names)?
            }
            Op::Records { part, puts } => puts.iter().try_for_each(|(key, value)| {
                small_tables::put_record(txn, metadata, (part, key), value.as_deref())
            })?,
            Op::Events { puts, through } => events::change(txn, puts, *through)?,
        }
    }
    batch.sweep(plan, damaged)?;
    let more = batch.more;
    let (metadata, dropped) = batch.finish(plan.empty_before_ms)?;
    let metadata = Metadata { commits: metadata.commits + 1, ..metadata };
    metadata.save(txn)?;
    Ok(Applied { metadata, more, dropped })
}

fn all_messages(number: u64) -> RangeInclusive<(u64, u64)> {
    (number, 0)..=(number, u64::MAX)
}

impl<'t> Batch<'t> {
    fn new(
        txn: &'t WriteTransaction,
        metadata: Metadata,
        now_ms: u64,
    ) -> Result<Self, InternalError> {
        Ok(Batch {
            metadata,
            more: false,
            dropped: Dropped::default(),
            now_ms,
            loaded: HashMap::new(),
            topics: txn.open_table(TOPICS)?,
            messages: txn.open_table(MESSAGES)?,
            keys: txn.open_table(KEYS)?,
            expiries: txn.open_table(EXPIRIES)?,
            idempotency: txn.open_table(IDEMPOTENCY)?,
        })
    }

    /// Returns the topic's row in this transaction. `None` if the topic has none.
    fn load_topic(&mut self, name: &Name) -> Result<Option<TopicRow>, InternalError> {
        if let Some(loaded) = self.loaded.get(name) {
            return Ok(Some(loaded.topic));
        }
        let tail = self.metadata.last_name_hash;
        let Some(topic) = topic_rows::find(&self.topics, || Ok(tail), name)? else {
            return Ok(None);
        };
        let loaded = LoadedTopic { topic, was_empty: topic.count == 0 };
        self.loaded.insert(name.clone(), loaded);
        Ok(Some(topic))
    }

    /// Inserts a row for a new topic and links it with its neighbours.
    fn insert_topic(&mut self, name: &Name) -> Result<TopicRow, InternalError> {
        self.metadata.last_number += 1;
        // The name may have had a row before, so the floor covers every forgotten topic.
        let floor = self.metadata.forgotten_floor;
        let before = topic_rows::previous_name_hash(&self.topics, name)?;
        let topic = TopicRow {
            number: self.metadata.last_number,
            floor,
            previous_name_hash: before,
            ..TopicRow::default()
        };
        self.link_topic(name, checksum::of_name(name))?;
        self.topics.insert(name.as_str(), &*topic.encode(name))?;
        Ok(topic)
    }

    /// Links the row after this name to a new predecessor.
    fn link_topic(&mut self, name: &str, before: u64) -> Result<(), InternalError> {
        let Some((next, mut topic)) = topic_rows::next(&self.topics, name)? else {
            self.metadata.last_name_hash = before;
            return Ok(());
        };
        topic.previous_name_hash = before;
        self.topics.insert(&*next, &*topic.encode(&next))?;
        if let Some(loaded) = self.loaded.get_mut(&*next) {
            loaded.topic.previous_name_hash = before;
        }
        Ok(())
    }

    fn save_topic(&mut self, name: &Name, topic: TopicRow) {
        let loaded = self.loaded.entry(name.clone());
        loaded.or_insert(LoadedTopic { topic, was_empty: false }).topic = topic;
    }

    fn append(&mut self, append: &Append) -> Result<(), InternalError> {
        let Append { offset, at_ms, record, retention, .. } = append;
        let (offset, at_ms) = (*offset, *at_ms);
        let head = RecordRef::decode(record)?;
        let mut topic = match self.load_topic(&append.topic)? {
            Some(topic) => topic,
            None => self.insert_topic(&append.topic)?,
        };
        let was_compact = std::mem::replace(&mut topic.retention, *retention).compact;
        if retention.compact && !was_compact && topic.count > 0 {
            self.index_keys(&append.topic, &mut topic)?;
        }
        topic.oldest_ms = if topic.count == 0 { at_ms } else { topic.oldest_ms.min(at_ms) };
        if let Some(key) = head.key.filter(|_| retention.compact) {
            let before = self.keys.insert((topic.number, key), offset)?.map(|row| row.value());
            if let Some(before) = before.filter(|before| *before != offset) {
                let has_key = |head: &RecordRef<'_>| head.key == Some(key);
                self.remove_message(&append.topic, &mut topic, before, has_key)?;
            }
        }
        if offset <= topic.newest {
            // Callers pass growing offsets. If one repeats an offset all the same, the new message
            // replaces the old one.
            self.remove_message(&append.topic, &mut topic, offset, |_| true)?;
        }
        self.insert_message(&append.topic, &mut topic, offset, record)?;
        topic.count += 1;
        topic.bytes += head.counted_bytes();
        topic.last = topic.last.max(offset);
        self.metadata.last_offset = self.metadata.last_offset.max(offset);
        if let Some(expires_ms) = first_expiry(&head, retention.compact) {
            self.expiries.insert((expires_ms, topic.number, offset), append.topic.as_str())?;
        }
        if let Some(key) = &append.idempotency_key {
            let (table, metadata) = (&mut self.idempotency, &mut self.metadata);
            small_tables::put_idempotency_key(
                table,
                metadata,
                (at_ms, offset),
                (&append.topic, key),
            )?;
        }
        self.save_topic(&append.topic, topic);
        Ok(())
    }

    /// Called when a topic with messages becomes a compacted one. Indexes the keys of its messages, and removes all
    /// messages of a key but the last.
    fn index_keys(&mut self, name: &Name, topic: &mut TopicRow) -> Result<(), InternalError> {
        let number = topic.number;
        let mut newest_first = Vec::new();
        for row in self.messages.range((number, 0)..=(number, u64::MAX))?.rev() {
            let (key, value) = row?;
            let offset = key.value().1;
            let head = MessageRow::decode(number, offset, value.value());
            let head = head.and_then(|row| row.head()).map_err(|error| {
                InternalError::from(error).in_topic(name, offset.saturating_sub(1), offset)
            })?;
            if let Some(key) = head.key {
                newest_first.push((Name::from(key), offset, first_expiry(&head, true)));
            }
        }
        let mut known = HashSet::new();
        for (key, offset, expires_ms) in newest_first {
            if !known.insert(key.clone()) {
                self.remove_message(name, topic, offset, |_| true)?;
                continue;
            }
            self.keys.insert((number, &*key), offset)?;
            if let Some(expires_ms) = expires_ms {
                self.expiries.insert((expires_ms, number, offset), name.as_str())?;
            }
        }
        Ok(())
    }

    /// Writes a message row. The caller links the message after it, if there is one.
    fn write_message(
        &mut self,
        number: u64,
        offset: u64,
        row: MessageRow<'_>,
    ) -> Result<(), InternalError> {
        let prefix = row.prefix(number, offset);
        let length = prefix.bytes().len() + row.record.len();
        let mut value = self.messages.insert_reserve((number, offset), length)?;
        let (first, rest) = value.as_mut().split_at_mut(prefix.bytes().len());
        first.copy_from_slice(prefix.bytes());
        rest.copy_from_slice(row.record);
        Ok(())
    }

    fn insert_message(
        &mut self,
        name: &str,
        topic: &mut TopicRow,
        offset: u64,
        record: &[u8],
    ) -> Result<(), InternalError> {
        let mut before = topic.newest;
        if offset <= topic.base {
            // The message comes before everything that the topic has ever stored.
            let base = offset.saturating_sub(1);
            self.link_message(name, topic, topic.base, base)?;
            topic.base = base;
            before = base;
        }
        if offset <= topic.newest {
            before = self.message_after(name, topic, offset)?.1;
            self.link_message(name, topic, before, offset)?;
        }
        topic.newest = topic.newest.max(offset);
        self.write_message(topic.number, offset, MessageRow { previous: before, record })
    }

    /// Returns the first message after an offset: its offset, the offset of the message before it, and its record. A
    /// missing message is damage.
    fn message_after(
        &self,
        name: &str,
        topic: &TopicRow,
        offset: u64,
    ) -> Result<(u64, u64, Vec<u8>), InternalError> {
        let number = topic.number;
        let missing = || Damage::in_messages(name, offset, topic.newest, "the message is missing");
        let found = self.messages.range((number, offset + 1)..=(number, u64::MAX))?.next();
        let (key, value) = found.ok_or_else(missing)??;
        let next = key.value().1;
        let row = MessageRow::decode(number, next, value.value());
        let row = row.map_err(|error| InternalError::from(error).in_topic(name, offset, next))?;
        Ok((next, row.previous, row.record.to_vec()))
    }

    /// Links the message whose predecessor is `before` to the new predecessor `now`.
    fn link_message(
        &mut self,
        name: &str,
        topic: &mut TopicRow,
        before: u64,
        now: u64,
    ) -> Result<(), InternalError> {
        if before == topic.newest {
            topic.newest = now;
            return Ok(());
        }
        let (next, previous, record) = self.message_after(name, topic, before)?;
        if previous != before {
            return Err(Damage::in_messages(
                name,
                previous.min(before),
                next,
                "a message before it is missing",
            )
            .into());
        }
        self.write_message(topic.number, next, MessageRow { previous: now, record: &record })
    }

    /// Removes a message if it exists and `is_expected` accepts it. The floor stays as it is.
    fn remove_message(
        &mut self,
        name: &str,
        topic: &mut TopicRow,
        offset: u64,
        is_expected: impl FnOnce(&RecordRef<'_>) -> bool,
    ) -> Result<(), InternalError> {
        let number = topic.number;
        let in_topic =
            |error| InternalError::from(error).in_topic(name, offset.saturating_sub(1), offset);
        let row = self.messages.get((number, offset))?.map(|row| row.value().to_vec());
        let Some(row) = row else { return Ok(()) };
        let row = MessageRow::decode(number, offset, &row).map_err(in_topic)?;
        let head = row.head().map_err(in_topic)?;
        if !is_expected(&head) {
            return Ok(());
        }
        self.messages.remove((number, offset))?;
        self.link_message(name, topic, offset, row.previous)?;
        topic.count = topic.count.saturating_sub(1);
        topic.bytes = topic.bytes.saturating_sub(head.counted_bytes());
        for expires_ms in expiries(&head) {
            self.expiries.remove((expires_ms, number, offset))?;
        }
        Ok(())
    }

    /// Removes the key's row if it points to this message.
    fn remove_key(&mut self, number: u64, key: &str, offset: u64) -> Result<(), InternalError> {
        let is_last = self.keys.get((number, key))?.is_some_and(|row| row.value() == offset);
        if is_last {
            self.keys.remove((number, key))?;
        }
        Ok(())
    }

    fn delete(&mut self, name: &Name, through: u64, rows_max: usize) -> Result<(), InternalError> {
        let found = match self.load_topic(name) {
            // A damaged row no longer says which messages belong to the topic, so the topic starts
            // over under a new number.
            Err(InternalError::Damaged(_)) if self.topics.get(name.as_str())?.is_some() => {
                self.metadata.last_number += 1;
                let (number, before) = (
                    self.metadata.last_number,
                    topic_rows::previous_name_hash(&self.topics, name)?,
                );
                let (floor, last, base, newest) = (through, through, through, through);
                let row = TopicRow {
                    number,
                    previous_name_hash: before,
                    floor,
                    last,
                    base,
                    newest,
                    ..TopicRow::default()
                };
                self.loaded.insert(name.clone(), LoadedTopic { topic: row, was_empty: false });
                return Ok(());
            }
            other => other?,
        };
        let Some(mut topic) = found else { return Ok(()) };
        let all = self.drop_oldest(name, &mut topic, rows_max, |_, offset, _| offset <= through);
        match all {
            // The deletion covers all messages, so the damage goes with them.
            Err(InternalError::Damaged(_) | InternalError::Row(_)) if through >= topic.newest => {
                let before = self.load_topic(name)?.unwrap_or(topic);
                topic = self.restart_topic(before)?;
            }
            other => other?,
        }
        self.save_topic(name, topic);
        Ok(())
    }

    /// Drops all messages of a topic without reading them, and continues the topic under a new
    /// number. Rows of other tables that point to the old number can't match later messages then.
    fn restart_topic(&mut self, topic: TopicRow) -> Result<TopicRow, InternalError> {
        self.messages.retain_in(all_messages(topic.number), |_, _| false)?;
        self.metadata.last_number += 1;
        let floor = topic.floor.max(topic.newest);
        let (number, base) = (self.metadata.last_number, topic.newest);
        Ok(TopicRow { number, floor, base, count: 0, bytes: 0, ..topic })
    }

    /// Drops the topic's oldest messages while `goes` accepts them, at most `rows_max`.
    fn drop_oldest(
        &mut self,
        name: &str,
        topic: &mut TopicRow,
        rows_max: usize,
        mut may_drop: impl FnMut(&TopicRow, u64, &RecordRef<'_>) -> bool,
    ) -> Result<(), InternalError> {
        let (mut through, mut rows, mut is_end) = (None, 0, true);
        let mut keys: Vec<(Name, u64)> = Vec::new();
        let mut expire: Vec<(u64, u64)> = Vec::new();
        for row in self.messages.range(all_messages(topic.number))? {
            let (key, value) = row?;
            let offset = key.value().1;
            let row = MessageRow::decode(topic.number, offset, value.value());
            let head = row.and_then(|row| Ok((row.previous, row.head()?)));
            let expected = through.unwrap_or(topic.base);
            let is_next = |(before, _): &(u64, _)| *before == expected && expected < offset;
            let Some((_, head)) = head.ok().filter(is_next) else {
                let what = "a message is not what was written";
                return Err(Damage::in_messages(name, expected, offset, what).into());
            };
            if rows == rows_max || !may_drop(topic, offset, &head) {
                topic.oldest_ms = head.at_ms;
                self.more |= rows == rows_max;
                is_end = false;
                break;
            }
            rows += 1;
            through = Some(offset);
            topic.count = topic.count.saturating_sub(1);
            topic.bytes = topic.bytes.saturating_sub(head.counted_bytes());
            keys.extend(head.key.map(|key| (key.into(), offset)));
            expire.extend(expiries(&head).map(|expires_ms| (expires_ms, offset)));
        }
        let last = through.unwrap_or(topic.base);
        if is_end && last != topic.newest {
            let what = "messages are missing";
            return Err(Damage::in_messages(name, last, topic.newest, what).into());
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

    /// Applies retention to every loaded topic and writes the topics' rows.
    fn finish(mut self, empty_before_ms: u64) -> Result<(Metadata, Dropped), InternalError> {
        let now_ms = self.now_ms;
        let mut forgotten = Vec::new();
        for (name, LoadedTopic { mut topic, was_empty }) in std::mem::take(&mut self.loaded) {
            if topic.exceeds_limits(now_ms) {
                let mut dropped = self.dropped;
                self.drop_oldest(&name, &mut topic, TRIM_MAX, |topic, _, head| {
                    let exceeded = topic.exceeded_limit(head.at_ms, now_ms);
                    // No client misses an expired message.
                    dropped.count(exceeded.filter(|_| !head.is_expired(now_ms)));
                    exceeded.is_some()
                })?;
                self.dropped = dropped;
            }
            let is_empty = topic.count == 0;
            match (was_empty, is_empty) {
                (false, true) => {
                    topic.empty_since_ms = now_ms;
                    self.metadata.empty_topics += 1;
                }
                (true, false) => {
                    self.metadata.empty_topics = self.metadata.empty_topics.saturating_sub(1)
                }
                (true, true) if topic.empty_since_ms < empty_before_ms => {
                    self.metadata.empty_topics = self.metadata.empty_topics.saturating_sub(1);
                    self.metadata.forgotten_floor = self.metadata.forgotten_floor.max(topic.last);
                    forgotten.push(name.clone());
                }
                _ => {}
            }
            self.topics.insert(name.as_str(), &*topic.encode(&name))?;
        }
        for name in forgotten {
            let row = self
                .topics
                .remove(name.as_str())?
                .map(|row| topic_rows::decode(&name, row.value()));
            let before = row.transpose()?.map_or(0, |row| row.previous_name_hash);
            self.link_topic(&name, before)?;
        }
        Ok((self.metadata, self.dropped))
    }
}
