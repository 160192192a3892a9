//! Writing a new file of what an old one has: one of the format before, or one that is damaged.

use std::path::Path;

use redb::{Database, ReadableDatabase};
use wire::Name;

use crate::batch::first_expiry;
use crate::check::{self, Report};
use crate::disk::Disk;
use crate::facts::Node;
use crate::fault::{Damage, OpenError, Trouble};
use crate::open::{self, Directory, FILE, OFFSETS_SKIPPED};
use crate::quiet::quietly;
use crate::record::{Head, Row};
use crate::rows;
use crate::source::Source;
use crate::sum;
use crate::tables::{EXPIRIES, FORMAT_BEFORE, KEYS, MESSAGES, TOPICS};
use crate::topic::Topic;

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

/// Copies a file of the format before, of which redb has found all to be whole.
pub(crate) fn from_format_before(
    old: &Database,
    new: &Database,
    is_lost: bool,
) -> Result<(), Trouble> {
    let source = Source::new(old, FORMAT_BEFORE, true);
    let last = quietly(|| source.node())?.last;
    let lost = is_lost.then_some((last, last.saturating_add(OFFSETS_SKIPPED)));
    let known = Report { lost, ..Report::default() };
    let damages = copy(&source, new, &known, 0)?;
    damages.into_iter().next().map_or(Ok(()), |damage| Err(damage.into()))
}

/// Writes a new store into another directory, of all that is whole in the store of the first,
/// which may be of the format before. Who comes back to a topic that has lost messages is told so.
/// `new_epoch` names the numbering where the old one's can't be read. Gives what was found in the
/// old one, which is not changed; no server can open it meanwhile.
pub fn salvage(from: &Path, to: &Path, new_epoch: u32) -> Result<Report, OpenError> {
    refuse_if_there(to)?;
    let _lock = check::lock(from)?;
    let mut report = check::look_at_all(from)?;
    let directory = Directory::claim(to)?;
    let file = from.join(FILE);
    let written = || -> Result<Vec<Damage>, Trouble> {
        let opened = open::database(|| Disk::open_to_read(&file), check::CACHE_BYTES, false)?;
        let is_proven = report.damages.iter().all(|damage| damage.table != "the file");
        let source = Source::new(&opened.db, report.format, is_proven);
        directory.replace(|new| copy(&source, new, &report, new_epoch))
    };
    // Somebody may have made one until it was claimed.
    let written = refuse_if_there(to).map(|()| written());
    directory.release();
    let met = written?.map_err(|trouble| match trouble.full() {
        Some(error) => {
            let (file, dir) = (directory.file(), to.display());
            let reason = format!(
                "the disk is full ({error}): free space in {dir}, or name a directory on another \
                 disk. The half copy was removed"
            );
            OpenError::Disk { file, reason }
        }
        None => OpenError::Damaged { file: file.clone(), reason: trouble.to_string() },
    })?;
    for damage in met {
        if !report.damages.contains(&damage) {
            report.damages.push(damage);
        }
    }
    Ok(report)
}

fn refuse_if_there(to: &Path) -> Result<(), OpenError> {
    if !to.join(FILE).exists() {
        return Ok(());
    }
    let what = "there is a store already, and salvage writes a new one";
    let error = std::io::Error::new(std::io::ErrorKind::AlreadyExists, what);
    Err(OpenError::Directory { dir: to.into(), error })
}

/// Copies all that can be read, and gives what can't. Of a look before, `known` has what was
/// damaged then and which messages may have been lost.
pub(crate) fn copy(
    source: &Source<'_>,
    new: &Database,
    known: &Report,
    new_epoch: u32,
) -> Result<Vec<Damage>, Trouble> {
    let mut damages = Vec::new();
    let facts = quietly(|| source.node()).unwrap_or_else(|trouble| {
        check::note(&mut damages, Err(trouble), "facts");
        Node { epoch: new_epoch, ..Node::default() }
    });
    let Node { epoch, clean, last, gone, next, .. } = facts;
    let clean = clean && !(source.is_before && known.lost.is_some());
    let mut build = Build::new(new, Node { epoch, clean, last, gone, next, ..Node::default() });
    let mut topics = check::topics(source, &mut damages);
    topics.sort_by(|(a, _), (b, _)| a.cmp(b));
    topics.dedup_by(|(a, _), (b, _)| a == b);
    for (name, topic) in topics {
        build.topic(&name, topic);
        let mut put = |offset, row: Row<'_>| build.message(offset, row.record);
        let met = check::messages_of(source, &name, &topic, &mut put)?;
        let of_it = known.damages.iter().filter(|damage| damage.topic.as_ref() == Some(&name));
        // What is gone lies below the floor: who comes back to it is told.
        let gone = of_it.chain(&met).map(|damage| damage.through);
        build.topic.floor = gone.fold(topic.floor, u64::max);
        build.end_topic()?;
        damages.extend(met);
    }
    copy_small(source, &mut build, &mut damages)?;
    let node = &mut build.node;
    let is_unknown = |damage: &Damage| matches!(damage.table, "topics" | "facts");
    let lost = match source.is_doubtful() || known.damages.iter().chain(&damages).any(is_unknown) {
        // Which messages there were besides is not known.
        true => Some((0, node.last.saturating_add(OFFSETS_SKIPPED))),
        false => known.lost,
    };
    if let Some((after, through)) = lost {
        (node.lost_after, node.lost_through) = (after, through);
        node.last = node.last.max(through);
    }
    build.end()?;
    Ok(damages)
}

/// Copies all but topics and their messages.
fn copy_small(
    source: &Source<'_>,
    build: &mut Build<'_>,
    damages: &mut Vec<Damage>,
) -> Result<(), Trouble> {
    let (mut cursors, mut keys) = (Vec::new(), Vec::new());
    let (mut users, mut names) = (Vec::new(), Vec::new());
    let read = || source.db.begin_read().map_err(Trouble::from);
    let result = quietly(|| {
        source.each_cursor(&read()?, |user, topic, offset| {
            cursors.push((user.into(), topic.into(), offset));
        })
    });
    check::note(damages, result, "cursors");
    let result = quietly(|| {
        source.each_idempotency_key(&read()?, |topic, key, offset, at_ms| {
            keys.push((topic.into(), key.into(), offset, at_ms));
        })
    });
    check::note(damages, result, "idempotency");
    let result = quietly(|| {
        source.each_subscriber(&read()?, |user, packed| users.push((user.into(), packed.into())))
    });
    check::note(damages, result, "subscriptions");
    let result =
        quietly(|| source.each_name(&read()?, |number, name| names.push((number, name.into()))));
    check::note(damages, result, "names");
    build.cursors(&cursors)?;
    build.keys(&keys)?;
    build.subscriptions(&users, &names)
}
