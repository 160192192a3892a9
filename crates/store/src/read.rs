//! Reads of a topic's messages, with proof that they are complete: each message names the one
//! before it, so that a read notices a missing message just like a changed one.

use std::cell::Cell;

use model::Name;
use redb::{Database, ReadOnlyTable, ReadTransaction, ReadableDatabase};

use crate::error::{Damage, InternalError};
use crate::metadata::Metadata;
use crate::panics::catch_redb_panics;
use crate::record::{MessageRow, Record, RecordRef};
use crate::tables::{MESSAGES, METADATA, TOPICS};
use crate::topic::TopicRow;
use crate::topic_rows;

/// Expired or outdated rows that one read skips, at most.
const SKIPPED_MAX: usize = 4_096;

type MessageTable = ReadOnlyTable<(u64, u64), &'static [u8]>;

/// A topic's oldest rows, at most, that one read scans for those beyond a limit. The file retains up to a tenth more,
/// so that large topics delete in bulk.
const EXCESS_MAX: usize = 4_096;

/// The limits of a read. The limit that is reached first ends the read, but it always returns one message.
#[derive(Clone, Copy, Debug)]
pub struct ReadLimits {
    /// The number of messages.
    pub messages_max: usize,
    /// The bytes of their payloads.
    pub bytes_max: usize,
}

/// Messages of a topic, as of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMessages {
    /// The messages.
    pub records: Vec<Record>,
    /// Messages at or below this offset may have been dropped. Above it, a missing offset was never
    /// used, or its message expired or was replaced under its key.
    pub floor: u64,
    /// The last message that the topic is known to have dropped; the floor is at least as high.
    pub dropped: u64,
    /// The last offset that the topic ever stored; 0 if the topic is unknown.
    pub last: u64,
    /// The offset that the read reached. The next read continues after (or before) it.
    pub through: u64,
    /// True if more rows follow.
    pub more: bool,
    /// Messages after the first offset and up to the second may be lost, because the file does not
    /// contain its last commit. The result has none of these messages, and the floor covers them.
    pub lost_range: Option<(u64, u64)>,
    /// True if the next message in this direction is damaged.
    pub damaged: bool,
}

/// Messages of a topic that were counted backwards, as of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedMessages {
    /// The number of messages.
    pub messages: usize,
    /// The number with expired messages and those that are too old.
    pub rows: usize,
    /// The bytes of these rows.
    pub bytes: usize,
    /// The offset that the count reached. The next count continues before it.
    pub through: u64,
    /// True if more rows may follow.
    pub more: bool,
}

/// Returns the metadata, and the topic's row or, if it has none, the floor of unknown topics.
fn load_topic(
    txn: &ReadTransaction,
    name: &str,
) -> Result<(Result<TopicRow, u64>, Metadata), InternalError> {
    let metadata = Metadata::from_table(&txn.open_table(METADATA)?)?;
    let topic = topic_rows::find(&txn.open_table(TOPICS)?, || Ok(metadata.last_name_hash), name)?;
    Ok((topic.ok_or(metadata.forgotten_floor), metadata))
}

/// Runs a read and attributes damage to the topic, in the range of offsets in `suspect`. redb may panic over a
/// damaged page.
fn attribute_damage<T>(
    name: &str,
    suspect: &Cell<(u64, u64)>,
    read: impl FnOnce() -> Result<T, InternalError>,
) -> Result<T, InternalError> {
    catch_redb_panics(read).map_err(|error| {
        let (after, through) = suspect.get();
        error.in_topic(name, after, through)
    })
}

/// Returns the topic's floor and its last offset.
pub(crate) fn floor_and_last(db: &Database, name: &str) -> Result<(u64, u64), InternalError> {
    attribute_damage(name, &Cell::new((0, u64::MAX)), || {
        let (topic, metadata) = load_topic(&db.begin_read()?, name)?;
        let (floor, last) = topic.map_or_else(|floor| (floor, 0), |row| (row.floor, row.last));
        Ok((floor.max(metadata.lost_through), last))
    })
}

/// Returns the topic's messages after an offset, oldest first.
pub(crate) fn after(
    db: &Database,
    name: &str,
    after: u64,
    limits: ReadLimits,
    now_ms: u64,
) -> Result<StoredMessages, InternalError> {
    let suspect = Cell::new((after, u64::MAX));
    let mut reading =
        attribute_damage(name, &suspect, || TopicRead::new(db, name, limits, now_ms, &suspect))?;
    let read = attribute_damage(name, &suspect, || reading.read_after(after));
    reading.finish(read)
}

/// Returns the topic's messages before an offset, newest first.
pub(crate) fn before(
    db: &Database,
    name: &str,
    before: u64,
    limits: ReadLimits,
    now_ms: u64,
) -> Result<StoredMessages, InternalError> {
    let suspect = Cell::new((0, before));
    let mut reading =
        attribute_damage(name, &suspect, || TopicRead::new(db, name, limits, now_ms, &suspect))?;
    let read = attribute_damage(name, &suspect, || reading.read_before(before));
    reading.finish(read)
}

/// Counts the topic's messages before an offset, the newest first, and copies nothing. Unlike a read it ends behind
/// the row that reaches a limit, and uncounted rows add bytes, too: redb reads a row's page for its key alone, and
/// only the payload's checksum proves that it is intact.
pub(crate) fn count_before(
    db: &Database,
    name: &str,
    before: u64,
    limits: ReadLimits,
    now_ms: u64,
) -> Result<CountedMessages, InternalError> {
    let suspect = Cell::new((0, before));
    let mut counted =
        CountedMessages { messages: 0, rows: 0, bytes: 0, through: before, more: false };
    let mut count = |topic: &TopicRow, offset: u64, row: &MessageRow<'_>| {
        let head = row.head()?;
        let is_too_old = topic.retention.is_too_old(head.at_ms, now_ms);
        counted.through = offset;
        counted.bytes += row.record.len();
        counted.rows += 1;
        counted.messages += usize::from(!is_too_old && !head.is_expired(now_ms));
        counted.more = !is_too_old
            && (counted.messages >= limits.messages_max.max(1)
                || counted.bytes >= limits.bytes_max
                || counted.rows - counted.messages >= SKIPPED_MAX);
        Ok(if is_too_old || counted.more { Outcome::Full } else { Outcome::Continue })
    };
    let read = attribute_damage(name, &suspect, || {
        let txn = db.begin_read()?;
        match load_topic(&txn, name)?.0 {
            Ok(topic) => {
                let messages = txn.open_table(MESSAGES)?;
                let excess = last_excess_offset(&messages, &topic)?;
                let count =
                    |topic: &TopicRow, offset: u64, row: &MessageRow<'_>| match offset <= excess {
                        true => Ok(Outcome::Full),
                        false => count(topic, offset, row),
                    };
                scan_before(&messages, name, topic, before, &suspect, count)
            }
            Err(_) => Ok(()),
        }
    });
    match read {
        // The next count starts with the damage and fails.
        Err(error) if counted.messages > 0 && error.is_damage() => counted.more = true,
        other => other?,
    }
    Ok(counted)
}

/// A read in progress.
struct TopicRead<'a> {
    txn: ReadTransaction,
    /// `None` if the topic is unknown.
    topic: Option<TopicRow>,
    name: Name,
    limits: ReadLimits,
    now_ms: u64,
    /// The range that an error would cover: after the first offset, up to the second.
    suspect: &'a Cell<(u64, u64)>,
    stored: StoredMessages,
    bytes: usize,
    skipped: usize,
}

/// The outcome of a message in a read.
enum Outcome {
    Continue,
    /// The read has reached its limit.
    Full,
    /// The message is too old, and so are all before it.
    TooOld,
}

fn missing(name: &str, after: u64, through: u64) -> InternalError {
    Damage::in_messages(name, after, through, "a message is missing").into()
}

/// Returns the last message that exceeds a limit of the topic and is still in the file: it counts as dropped. 0 if
/// there is none.
fn last_excess_offset(messages: &MessageTable, topic: &TopicRow) -> Result<u64, InternalError> {
    let (mut left, mut through) = (*topic, 0);
    if left.exceeded_size_limit().is_none() {
        return Ok(0);
    }
    let number = topic.number;
    for row in messages.range((number, 0)..=(number, topic.newest))?.take(EXCESS_MAX) {
        if left.exceeded_size_limit().is_none() {
            break;
        }
        let (key, value) = row?;
        let offset = key.value().1;
        // The read of a damaged message reports the damage.
        let row = MessageRow::decode(number, offset, value.value());
        let Ok(head) = row.and_then(|row| row.head()) else { break };
        left.count = left.count.saturating_sub(1);
        left.bytes = left.bytes.saturating_sub(head.counted_bytes());
        through = offset;
    }
    Ok(through)
}

/// Passes the topic's rows before an offset to `each`, the newest first, as long as `each` requests more.
fn scan_before(
    messages: &MessageTable,
    name: &str,
    topic: TopicRow,
    before: u64,
    suspect: &Cell<(u64, u64)>,
    mut each: impl FnMut(&TopicRow, u64, &MessageRow<'_>) -> Result<Outcome, InternalError>,
) -> Result<(), InternalError> {
    if before == 0 {
        return Ok(());
    }
    suspect.set((topic.base, before.min(topic.newest)));
    let number = topic.number;
    // The offset that the row after it names as its predecessor.
    let mut next = topic.newest;
    if before <= topic.newest {
        let row = messages.range((number, before)..=(number, u64::MAX))?.next();
        let Some(row) = row else { return Err(missing(name, before, topic.newest)) };
        let (key, value) = row?;
        next = MessageRow::decode(number, key.value().1, value.value())?.previous;
        if key.value().0 != number
            || key.value().1 < before
            || (next >= before && next != topic.base)
        {
            return Err(missing(name, topic.base, topic.newest));
        }
    }
    for row in messages.range((number, 0)..=(number, before - 1))?.rev() {
        let (key, value) = row?;
        let offset = key.value().1;
        if key.value().0 != number || offset != next || offset >= before {
            return Err(missing(name, offset.min(next), next.max(offset)));
        }
        let row = MessageRow::decode(number, offset, value.value())?;
        next = row.previous;
        match each(&topic, offset, &row)? {
            Outcome::Continue => {}
            Outcome::Full | Outcome::TooOld => return Ok(()),
        }
        suspect.set((topic.base, next));
    }
    if next != topic.base {
        return Err(missing(name, topic.base, next));
    }
    Ok(())
}

impl<'a> TopicRead<'a> {
    fn new(
        db: &Database,
        name: &str,
        limits: ReadLimits,
        now_ms: u64,
        suspect: &'a Cell<(u64, u64)>,
    ) -> Result<Self, InternalError> {
        let txn = db.begin_read()?;
        let (topic, metadata) = load_topic(&txn, name)?;
        let (floor, last) = match &topic {
            Ok(topic) => (topic.floor, topic.last),
            Err(floor) => (*floor, 0),
        };
        let lost_range =
            (metadata.lost_through > 0).then_some((metadata.lost_after, metadata.lost_through));
        let floor = floor.max(metadata.lost_through);
        let stored = StoredMessages {
            records: Vec::new(),
            floor,
            dropped: topic.as_ref().map_or(0, |topic| topic.base),
            last,
            through: 0,
            more: false,
            lost_range,
            damaged: false,
        };
        let (topic, name) = (topic.ok(), Name::from(name));
        Ok(TopicRead { txn, topic, name, limits, now_ms, suspect, stored, bytes: 0, skipped: 0 })
    }

    /// Skips messages beyond a limit. Returns the offset from which the topic's messages are read.
    fn skip_excess(&mut self, topic: &TopicRow) -> Result<u64, InternalError> {
        let excess = last_excess_offset(&self.txn.open_table(MESSAGES)?, topic)?;
        self.stored.floor = self.stored.floor.max(excess);
        self.stored.dropped = self.stored.dropped.max(excess);
        Ok(excess)
    }

    /// Adds a message to the result, unless the limit is reached.
    fn take(
        &mut self,
        topic: &TopicRow,
        offset: u64,
        head: &RecordRef<'_>,
    ) -> Result<Outcome, InternalError> {
        let (stored, now_ms) = (&mut self.stored, self.now_ms);
        let is_too_old = topic.retention.is_too_old(head.at_ms, now_ms);
        let is_expired = head.is_expired(now_ms);
        if is_too_old || (is_expired && topic.leaves_gap(head)) {
            // The removal of this message will raise the floor in the same way.
            stored.floor = stored.floor.max(offset);
            stored.dropped = stored.dropped.max(offset);
        }
        let is_visible = !is_too_old && !is_expired;
        let is_full = match is_visible {
            true => {
                stored.records.len() >= self.limits.messages_max.max(1)
                    || (self.bytes + head.payload.len() > self.limits.bytes_max
                        && !stored.records.is_empty())
            }
            false => self.skipped >= SKIPPED_MAX,
        };
        if is_full {
            stored.more = true;
            return Ok(Outcome::Full);
        }
        stored.through = offset;
        match is_visible {
            true => {
                self.bytes += head.payload.len();
                stored.records.push(head.record(&self.name, offset)?);
            }
            false => self.skipped += 1,
        }
        Ok(if is_too_old { Outcome::TooOld } else { Outcome::Continue })
    }

    /// Returns the messages that were read before the damage. The next read then starts with the damage and fails.
    fn finish(mut self, read: Result<(), InternalError>) -> Result<StoredMessages, InternalError> {
        match read {
            Err(error) if self.stored.records.is_empty() || !error.is_damage() => Err(error),
            Err(_) => {
                self.stored.more = true;
                self.stored.damaged = true;
                Ok(self.stored)
            }
            Ok(()) => Ok(self.stored),
        }
    }

    fn read_after(&mut self, after: u64) -> Result<(), InternalError> {
        self.stored.through = after;
        let (Some(topic), false) = (self.topic, after == u64::MAX) else { return Ok(()) };
        self.suspect.set((after, topic.newest));
        let after = after.max(self.skip_excess(&topic)?);
        self.stored.through = after;
        self.suspect.set((after, topic.newest));
        let messages = self.txn.open_table(MESSAGES)?;
        let number = topic.number;
        // The last proven offset: its message exists, or it precedes the first message that does.
        let mut proven = after.max(topic.base);
        for row in messages.range((number, after + 1)..=(number, u64::MAX))? {
            let (key, value) = row?;
            let offset = key.value().1;
            if proven < offset && offset <= topic.newest {
                // If this row can't be read, only this message is damaged.
                self.suspect.set((proven, offset));
            }
            let row = MessageRow::decode(number, offset, value.value())?;
            // The predecessor of the first row may be a message that the caller did not request.
            let is_next = match proven > after {
                true => row.previous == proven,
                false => row.previous <= proven,
            };
            // A damaged page may lead anywhere, also backwards.
            let is_there = key.value().0 == number && proven < offset && offset <= topic.newest;
            if !is_there || !is_next {
                return Err(missing(&self.name, proven, offset.max(proven)));
            }
            proven = offset;
            if let Outcome::Full = self.take(&topic, offset, &row.head()?)? {
                return Ok(());
            }
            self.suspect.set((proven, topic.newest));
        }
        if proven < topic.newest {
            return Err(missing(&self.name, proven, topic.newest));
        }
        self.stored.through = self.stored.last.max(after);
        Ok(())
    }

    fn read_before(&mut self, before: u64) -> Result<(), InternalError> {
        self.stored.through = before;
        let Some(topic) = self.topic else { return Ok(()) };
        let excess = self.skip_excess(&topic)?;
        let (messages, name) = (self.txn.open_table(MESSAGES)?, self.name.clone());
        scan_before(
            &messages,
            &name,
            topic,
            before,
            self.suspect,
            |topic, offset, row| match offset <= excess {
                true => Ok(Outcome::Full),
                false => self.take(topic, offset, &row.head()?),
            },
        )
    }
}
