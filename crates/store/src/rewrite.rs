//! Copies a store into a new file: one of the first format, or a damaged one.

use model::Name;
use redb::{Database, ReadableDatabase};

use crate::batch::first_expiry;
use crate::check::{self, Report};
use crate::checksum;
use crate::error::{Damage, InternalError};
use crate::metadata::{Metadata, OFFSETS_SKIPPED};
use crate::panics::catch_redb_panics;
use crate::record::{MessageRow, RecordRef};
use crate::small_tables;
use crate::source::Source;
use crate::tables::{EXPIRIES, FIRST_FORMAT, KEYS, MESSAGES, TOPICS};
use crate::topic::TopicRow;

/// Bytes of records in one transaction.
const CHUNK_BYTES: usize = 16 << 20;

/// Rows of the small tables in one transaction.
const CHUNK_ROWS: usize = 16_384;

/// Fills a new file. Topics come in the order of their names, and the messages of each in the order
/// of their offsets.
struct StoreBuilder<'a> {
    db: &'a Database,
    metadata: Metadata,
    topic: TopicRow,
    name: Name,
    /// Messages that are not written yet: offset, previous offset, record.
    rows: Vec<(u64, u64, Box<[u8]>)>,
    bytes: usize,
}

impl<'a> StoreBuilder<'a> {
    fn new(db: &'a Database, metadata: Metadata) -> Self {
        let (topic, name) = (TopicRow::default(), Name::default());
        StoreBuilder { db, metadata, topic, name, rows: Vec::new(), bytes: 0 }
    }

    /// Starts a topic. `old` is its old row; the messages that follow set the counters anew.
    fn topic(&mut self, name: &str, old: TopicRow) {
        let (count, bytes, base, newest) = (0, 0, 0, 0);
        self.topic = TopicRow {
            count,
            bytes,
            base,
            newest,
            previous_name_hash: self.metadata.last_name_hash,
            ..old
        };
        self.name = name.into();
    }

    fn message(&mut self, offset: u64, record: &[u8]) -> Result<(), InternalError> {
        let head = RecordRef::decode(record)?;
        let topic = &mut self.topic;
        topic.oldest_ms =
            if topic.count == 0 { head.at_ms } else { topic.oldest_ms.min(head.at_ms) };
        topic.count += 1;
        topic.bytes += head.counted_bytes();
        topic.last = topic.last.max(offset);
        self.rows.push((offset, topic.newest, record.into()));
        topic.newest = offset;
        self.bytes += record.len();
        if self.bytes > CHUNK_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), InternalError> {
        let txn = self.db.begin_write()?;
        {
            let mut messages = txn.open_table(MESSAGES)?;
            let mut keys = txn.open_table(KEYS)?;
            let mut expiries = txn.open_table(EXPIRIES)?;
            let number = self.topic.number;
            for (offset, before, record) in self.rows.drain(..) {
                let head = RecordRef::decode(&record)?;
                if let Some(key) = head.key.filter(|_| self.topic.retention.compact) {
                    keys.insert((number, key), offset)?;
                }
                if let Some(expires_ms) = first_expiry(&head, self.topic.retention.compact) {
                    expiries.insert((expires_ms, number, offset), self.name.as_str())?;
                }
                let prefix =
                    MessageRow { previous: before, record: &record }.prefix(number, offset);
                let row = [prefix.bytes(), &record].concat();
                messages.insert((number, offset), &*row)?;
            }
        }
        self.bytes = 0;
        Ok(txn.commit()?)
    }

    fn end_topic(&mut self) -> Result<(), InternalError> {
        self.write()?;
        let (metadata, topic) = (&mut self.metadata, &self.topic);
        metadata.last_name_hash = checksum::of_name(&self.name);
        metadata.last_number = metadata.last_number.max(topic.number);
        metadata.last_offset = metadata.last_offset.max(topic.last);
        metadata.empty_topics += u64::from(topic.count == 0);
        let txn = self.db.begin_write()?;
        txn.open_table(TOPICS)?.insert(self.name.as_str(), &*topic.encode(&self.name))?;
        Ok(txn.commit()?)
    }

    fn chunks<T>(
        &mut self,
        rows: &[T],
        mut put: impl FnMut(&redb::WriteTransaction, &mut Metadata, &T) -> Result<(), InternalError>,
    ) -> Result<(), InternalError> {
        for chunk in rows.chunks(CHUNK_ROWS) {
            let txn = self.db.begin_write()?;
            chunk.iter().try_for_each(|row| put(&txn, &mut self.metadata, row))?;
            txn.commit()?;
        }
        Ok(())
    }

    fn cursors(&mut self, rows: &[(Name, Name, u64)]) -> Result<(), InternalError> {
        self.chunks(rows, |txn, metadata, (user, topic, offset)| {
            small_tables::put_cursor(txn, metadata, user, topic, *offset)
        })
    }

    fn keys(&mut self, rows: &[(Name, Name, u64, u64)]) -> Result<(), InternalError> {
        self.chunks(rows, |txn, metadata, (topic, key, offset, at_ms)| {
            small_tables::put_idempotency_key(
                &mut txn.open_table(crate::tables::IDEMPOTENCY)?,
                metadata,
                (*at_ms, *offset),
                (topic, key),
            )
        })
    }

    fn subscriptions(
        &mut self,
        users: &[(Name, Box<[u8]>)],
        names: &[(u32, Name)],
    ) -> Result<(), InternalError> {
        self.chunks(users, |txn, metadata, row| {
            small_tables::put_subscriptions(txn, metadata, std::slice::from_ref(row), &[])
        })?;
        self.chunks(names, |txn, metadata, row| {
            small_tables::put_subscriptions(txn, metadata, &[], std::slice::from_ref(row))
        })
    }

    fn records(&mut self, rows: &[(Name, Name, Box<[u8]>)]) -> Result<(), InternalError> {
        self.chunks(rows, |txn, metadata, (part, key, value)| {
            small_tables::put_record(txn, metadata, (part, key), Some(value))
        })
    }

    fn events(&mut self, rows: &[(u64, Box<[u8]>)]) -> Result<(), InternalError> {
        self.chunks(rows, |txn, _, row| crate::events::change(txn, std::slice::from_ref(row), None))
    }

    fn end(&mut self) -> Result<(), InternalError> {
        let txn = self.db.begin_write()?;
        self.metadata.save(&txn)?;
        Ok(txn.commit()?)
    }
}

/// Copies a file of the first format that redb has verified.
pub(crate) fn upgrade(
    old: &Database,
    new: &Database,
    may_lack_commit: bool,
) -> Result<(), InternalError> {
    let source = Source::new(old, FIRST_FORMAT, true);
    let last = catch_redb_panics(|| source.metadata())?.last_offset;
    let lost = may_lack_commit.then_some((last, last.saturating_add(OFFSETS_SKIPPED)));
    let earlier_report = Report { lost_range: lost, ..Report::default() };
    let damages = copy(&source, new, &earlier_report, 0)?;
    damages.into_iter().next().map_or(Ok(()), |damage| Err(damage.into()))
}

/// Copies all readable rows, and returns the damage. `earlier_report` has the damage that a check found, and which
/// messages may be lost.
pub(crate) fn copy(
    source: &Source<'_>,
    new: &Database,
    earlier_report: &Report,
    new_epoch: u32,
) -> Result<Vec<Damage>, InternalError> {
    let mut damages = Vec::new();
    let old = catch_redb_panics(|| source.metadata()).unwrap_or_else(|error| {
        check::push_damage(&mut damages, Err(error), "facts");
        Metadata { epoch: new_epoch, ..Metadata::default() }
    });
    let Metadata { epoch, clean, last_offset, forgotten_floor, last_number, .. } = old;
    let clean = clean && !(source.is_first_format && earlier_report.lost_range.is_some());
    let mut build = StoreBuilder::new(
        new,
        Metadata { epoch, clean, last_offset, forgotten_floor, last_number, ..Metadata::default() },
    );
    let mut topics = check::scan_topics(source, &mut damages);
    topics.sort_by(|(a, _), (b, _)| a.cmp(b));
    topics.dedup_by(|(a, _), (b, _)| a == b);
    for (name, topic) in topics {
        build.topic(&name, topic);
        let mut put = |offset, row: MessageRow<'_>| build.message(offset, row.record);
        let damaged = check::scan_messages(source, &name, &topic, &mut put)?;
        let earlier =
            earlier_report.damages.iter().filter(|damage| damage.topic.as_ref() == Some(&name));
        // The floor covers the lost messages, so that clients which come back learn about the gap.
        let lost = earlier.chain(&damaged).map(|damage| damage.through);
        build.topic.floor = lost.fold(topic.floor, u64::max);
        build.end_topic()?;
        damages.extend(damaged);
    }
    copy_small_tables(source, &mut build, &mut damages)?;
    let metadata = &mut build.metadata;
    let is_unknown = |damage: &Damage| matches!(damage.table, "topics" | "facts");
    let lost = match source.is_unverifiable()
        || earlier_report.damages.iter().chain(&damages).any(is_unknown)
    {
        // The other messages that existed are unknown.
        true => Some((0, metadata.last_offset.saturating_add(OFFSETS_SKIPPED))),
        false => earlier_report.lost_range,
    };
    if let Some((after, through)) = lost {
        (metadata.lost_after, metadata.lost_through) = (after, through);
        metadata.last_offset = metadata.last_offset.max(through);
    }
    build.end()?;
    Ok(damages)
}

/// Copies everything except topics and their messages.
fn copy_small_tables(
    source: &Source<'_>,
    build: &mut StoreBuilder<'_>,
    damages: &mut Vec<Damage>,
) -> Result<(), InternalError> {
    let (mut cursors, mut keys) = (Vec::new(), Vec::new());
    let (mut users, mut names) = (Vec::new(), Vec::new());
    let read = || source.db.begin_read().map_err(InternalError::from);
    let result = catch_redb_panics(|| {
        source.each_cursor(&read()?, |user, topic, offset| {
            cursors.push((user.into(), topic.into(), offset));
        })
    });
    check::push_damage(damages, result, "cursors");
    let result = catch_redb_panics(|| {
        source.each_idempotency_key(&read()?, |topic, key, offset, at_ms| {
            keys.push((topic.into(), key.into(), offset, at_ms));
        })
    });
    check::push_damage(damages, result, "idempotency");
    let result = catch_redb_panics(|| {
        source.each_subscriber(&read()?, |user, packed| users.push((user.into(), packed.into())))
    });
    check::push_damage(damages, result, "subscriptions");
    let result = catch_redb_panics(|| {
        source.each_name(&read()?, |number, name| names.push((number, name.into())))
    });
    check::push_damage(damages, result, "names");
    let mut records = Vec::new();
    let result = catch_redb_panics(|| {
        source.each_record(&read()?, |part, key, value| {
            records.push((part.into(), key.into(), value.into()));
        })
    });
    check::push_damage(damages, result, "records");
    build.records(&records)?;
    let mut events: Vec<(u64, Box<[u8]>)> = Vec::new();
    let result = catch_redb_panics(|| {
        source.each_event(&read()?, |number, event| events.push((number, event.into())))
    });
    check::push_damage(damages, result, "events");
    build.events(&events)?;
    build.cursors(&cursors)?;
    build.keys(&keys)?;
    build.subscriptions(&users, &names)
}
