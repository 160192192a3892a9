//! Writing a new file of what an old one has: one of the format before, or one that is damaged.

use std::path::Path;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use wire::Name;

use crate::batch::first_expiry;
use crate::check::{self, Report};
use crate::disk::Disk;
use crate::facts::Node;
use crate::fault::{Damage, OpenError, Trouble};
use crate::open::{self, Directory, FILE, OFFSETS_SKIPPED};
use crate::quiet::quietly;
use crate::record::{BadRow, Head, Input, Row};
use crate::rows;
use crate::sum;
use crate::tables::{EXPIRIES, FACTS, FORMAT, KEYS, MESSAGES, SUBSCRIPTIONS, TOPICS};
use crate::topic::{Keep, Topic};

/// Bytes of records in one transaction.
const CHUNK_BYTES: usize = 16 << 20;

/// Rows of the small tables in one transaction.
const CHUNK_ROWS: usize = 16_384;

/// A new file while it is filled. Topics come by name, and each one's messages by offset.
struct Build<'a> {
    db: &'a Database,
    node: Node,
    topic: Topic,
    name: Name,
    /// Messages that are not written yet: offset, the one before, record.
    rows: Vec<(u64, u64, Box<[u8]>)>,
    bytes: usize,
}

impl<'a> Build<'a> {
    fn new(db: &'a Database, node: Node) -> Self {
        let (topic, name) = (Topic::default(), Name::default());
        Build { db, node, topic, name, rows: Vec::new(), bytes: 0 }
    }

    /// Begins a topic with what is known of it beside its messages.
    fn topic(&mut self, name: &str, known: Topic) {
        let (count, bytes, base, newest) = (0, 0, 0, 0);
        self.topic = Topic { count, bytes, base, newest, before: self.node.tail, ..known };
        self.name = name.into();
    }

    fn message(&mut self, offset: u64, record: &[u8]) -> Result<(), Trouble> {
        let head = Head::read(record)?;
        let topic = &mut self.topic;
        topic.oldest_ms =
            if topic.count == 0 { head.at_ms } else { topic.oldest_ms.min(head.at_ms) };
        topic.count += 1;
        topic.bytes += head.payload.len() as u64;
        topic.last = topic.last.max(offset);
        self.rows.push((offset, topic.newest, record.into()));
        topic.newest = offset;
        self.bytes += record.len();
        if self.bytes > CHUNK_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), Trouble> {
        let txn = self.db.begin_write()?;
        {
            let mut messages = txn.open_table(MESSAGES)?;
            let mut keys = txn.open_table(KEYS)?;
            let mut expiries = txn.open_table(EXPIRIES)?;
            let number = self.topic.number;
            for (offset, before, record) in self.rows.drain(..) {
                let head = Head::read(&record)?;
                if let Some(key) = head.key.filter(|_| self.topic.keep.compact) {
                    keys.insert((number, key), offset)?;
                }
                if let Some(expires_ms) = first_expiry(&head, self.topic.keep.compact) {
                    expiries.insert((expires_ms, number, offset), self.name.as_str())?;
                }
                let front = Row { before, record: &record }.front(number, offset);
                let row = [front.bytes(), &record].concat();
                messages.insert((number, offset), &*row)?;
            }
        }
        self.bytes = 0;
        Ok(txn.commit()?)
    }

    fn end_topic(&mut self) -> Result<(), Trouble> {
        self.write()?;
        let (node, topic) = (&mut self.node, &self.topic);
        node.tail = sum::of_name(&self.name);
        node.next = node.next.max(topic.number);
        node.last = node.last.max(topic.last);
        node.empty += u64::from(topic.count == 0);
        let txn = self.db.begin_write()?;
        txn.open_table(TOPICS)?.insert(self.name.as_str(), &*topic.encode(&self.name))?;
        Ok(txn.commit()?)
    }

    fn chunks<T>(
        &mut self,
        rows: &[T],
        mut put: impl FnMut(&redb::WriteTransaction, &mut Node, &T) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        for chunk in rows.chunks(CHUNK_ROWS) {
            let txn = self.db.begin_write()?;
            chunk.iter().try_for_each(|row| put(&txn, &mut self.node, row))?;
            txn.commit()?;
        }
        Ok(())
    }

    fn cursors(&mut self, rows: &[(Name, Name, u64)]) -> Result<(), Trouble> {
        self.chunks(rows, |txn, node, (user, topic, offset)| {
            rows::put_cursor(txn, node, user, topic, *offset)
        })
    }

    fn keys(&mut self, rows: &[(Name, Name, u64, u64)]) -> Result<(), Trouble> {
        self.chunks(rows, |txn, node, (topic, key, offset, at_ms)| {
            rows::put_idempotency_key(
                &mut txn.open_table(crate::tables::IDEMPOTENCY)?,
                node,
                (*at_ms, *offset),
                (topic, key),
            )
        })
    }

    fn subscriptions(
        &mut self,
        users: &[(Name, Box<[u8]>)],
        names: &[(u32, Name)],
    ) -> Result<(), Trouble> {
        self.chunks(users, |txn, node, row| {
            rows::put_subscriptions(txn, node, std::slice::from_ref(row), &[])
        })?;
        self.chunks(names, |txn, node, row| {
            rows::put_subscriptions(txn, node, &[], std::slice::from_ref(row))
        })
    }

    fn end(&mut self) -> Result<(), Trouble> {
        let txn = self.db.begin_write()?;
        self.node.put(&txn)?;
        Ok(txn.commit()?)
    }
}

/// The tables of the format before that are different now.
mod before {
    use super::TableDefinition;

    pub const NODE: TableDefinition<'static, &str, u64> = crate::tables::NODE;
    pub const IDEMPOTENCY: TableDefinition<'static, (u64, u64), (&str, &str)> =
        TableDefinition::new("idempotency");
    pub const CURSORS: TableDefinition<'static, (&str, &str), u64> =
        TableDefinition::new("cursors");
    pub const NAMES: TableDefinition<'static, u32, &str> = TableDefinition::new("names");
}

/// A topic's row in the format before.
fn topic_before(row: &[u8]) -> Result<Topic, BadRow> {
    let mut input = Input(row);
    let compact = input.byte()? == 1;
    let mut number = || input.number();
    Ok(Topic {
        number: number()?,
        floor: number()?,
        last: number()?,
        count: number()?,
        bytes: number()?,
        oldest_ms: number()?,
        empty_since_ms: number()?,
        keep: Keep {
            messages_max: number()?,
            bytes_max: number()?,
            seconds_max: number()?,
            compact,
        },
        ..Topic::default()
    })
}

/// Copies a file of the format before, which was looked at whole.
pub(crate) fn from_format_before(
    old: &Database,
    new: &Database,
    is_lost: bool,
) -> Result<(), Trouble> {
    let txn = old.begin_read()?;
    let facts = txn.open_table(before::NODE)?;
    let fact =
        |name: &str| -> Result<u64, Trouble> { Ok(facts.get(name)?.map_or(0, |row| row.value())) };
    let node = Node {
        epoch: fact("epoch")? as u32,
        clean: fact("clean")? == 1 && !is_lost,
        last: fact("last")?,
        gone: fact("gone")?,
        next: fact("next")?,
        ..Node::default()
    };
    let mut build = Build::new(new, node);
    let messages = txn.open_table(MESSAGES)?;
    for row in txn.open_table(TOPICS)?.iter()? {
        let (name, row) = row?;
        let topic = topic_before(row.value())?;
        build.topic(name.value(), topic);
        for row in messages.range((topic.number, 0)..=(topic.number, u64::MAX))? {
            let (key, record) = row?;
            build.message(key.value().1, record.value())?;
        }
        build.end_topic()?;
    }
    let table = txn.open_table(before::CURSORS)?;
    let rows = table.iter()?.map(|row| {
        let (key, offset) = row?;
        let (user, topic) = key.value();
        Ok((user.into(), topic.into(), offset.value()))
    });
    build.cursors(&rows.collect::<Result<Vec<_>, redb::StorageError>>()?)?;
    let table = txn.open_table(before::IDEMPOTENCY)?;
    let rows = table.iter()?.map(|row| {
        let (place, names) = row?;
        let ((at_ms, offset), (topic, key)) = (place.value(), names.value());
        Ok((topic.into(), key.into(), offset, at_ms))
    });
    build.keys(&rows.collect::<Result<Vec<_>, redb::StorageError>>()?)?;
    let table = txn.open_table(SUBSCRIPTIONS)?;
    let rows = table.iter()?.map(|row| {
        let (user, packed) = row?;
        Ok((user.value().into(), packed.value().into()))
    });
    let users = rows.collect::<Result<Vec<_>, redb::StorageError>>()?;
    let table = txn.open_table(before::NAMES)?;
    let rows = table.iter()?.map(|row| {
        let (number, name) = row?;
        Ok((number.value(), name.value().into()))
    });
    build.subscriptions(&users, &rows.collect::<Result<Vec<_>, redb::StorageError>>()?)?;
    if is_lost {
        build.node.lost_after = build.node.last;
        build.node.lost_through = build.node.last.saturating_add(OFFSETS_SKIPPED);
        build.node.last = build.node.lost_through;
    }
    build.end()
}

/// Writes a new store into another directory, of all that is whole in the store of the first. Who
/// comes back to a topic that has lost messages is told so. `new_epoch` names the numbering where
/// the old one's can't be read. Gives what was found in the old one, which is not changed.
pub fn salvage(from: &Path, to: &Path, new_epoch: u32) -> Result<Report, OpenError> {
    let report = check::check(from)?;
    let file = from.join(FILE);
    let damaged =
        |trouble: Trouble| OpenError::Damaged { file: file.clone(), reason: trouble.to_string() };
    if report.format != FORMAT {
        let what = "its format can't be read, or is not the one of this version";
        return Err(damaged(Damage::table("node", what).into()));
    }
    let directory = Directory::claim(to)?;
    if directory.file().exists() {
        return Err(OpenError::Directory {
            dir: to.into(),
            error: std::io::Error::new(
                std::io::ErrorKind::AlreadyExists,
                "there is a store already, and salvage writes a new one",
            ),
        });
    }
    let written = || -> Result<(), Trouble> {
        let opened = open::database(|| Disk::open_to_read(&file), check::CACHE_BYTES, false)?;
        let new = directory.begin_new()?;
        copy(&opened.db, &new, &report, new_epoch)?;
        directory.end_new(new)
    };
    let result = written();
    directory.release();
    result.map_err(damaged)?;
    Ok(report)
}

fn copy(old: &Database, new: &Database, report: &Report, new_epoch: u32) -> Result<(), Trouble> {
    let facts = quietly(|| Node::get(&old.begin_read()?.open_table(FACTS)?));
    let known = facts.unwrap_or(Node { epoch: new_epoch, ..Node::default() });
    let Node { epoch, clean, last, gone, next, .. } = known;
    let node = Node { epoch, clean, last, gone, next, ..Node::default() };
    let mut build = Build::new(new, node);
    let mut topics = check::topics(old, &mut Vec::new());
    topics.sort_by(|(a, _), (b, _)| a.cmp(b));
    topics.dedup_by(|(a, _), (b, _)| a == b);
    for (name, mut topic) in topics {
        let of_it = report.damages.iter().filter(|damage| damage.topic.as_ref() == Some(&name));
        // What is gone lies below the floor: who comes back to it is told.
        topic.floor = of_it.map(|damage| damage.through).fold(topic.floor, u64::max);
        build.topic(&name, topic);
        let mut put = |offset, row: Row<'_>| build.message(offset, row.record);
        check::messages_of(old, &name, &topic, &mut put)?;
        build.end_topic()?;
    }
    let mut cursors = Vec::new();
    let mut keys = Vec::new();
    let (mut users, mut names) = (Vec::new(), Vec::new());
    // What is damaged is in the report.
    let read = || old.begin_read().map_err(Trouble::from);
    let _ = quietly(|| {
        rows::each_cursor(&read()?, |user, topic, offset| {
            cursors.push((user.into(), topic.into(), offset));
        })
    });
    let _ = quietly(|| {
        rows::each_idempotency_key(&read()?, |topic, key, offset, at_ms| {
            keys.push((topic.into(), key.into(), offset, at_ms));
        })
    });
    let _ = quietly(|| {
        rows::each_subscriber(&read()?, |user, packed| {
            users.push((user.into(), packed.into()));
        })
    });
    let _ = quietly(|| rows::each_name(&read()?, |number, name| names.push((number, name.into()))));
    build.cursors(&cursors)?;
    build.keys(&keys)?;
    build.subscriptions(&users, &names)?;
    let node = &mut build.node;
    let is_unknown = |damage: &Damage| matches!(damage.table, "topics" | "facts");
    let lost = match report.damages.iter().any(is_unknown) {
        // Which messages there were besides is not known.
        true => Some((0, node.last.saturating_add(OFFSETS_SKIPPED))),
        false => report.lost,
    };
    if let Some((after, through)) = lost {
        (node.lost_after, node.lost_through) = (after, through);
        node.last = node.last.max(through);
    }
    build.end()
}
