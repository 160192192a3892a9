//! A look at the whole file: what is damaged, by topic and offsets. Nothing is written.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::Path;

use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable};
use wire::Name;

use crate::disk::Disk;
use crate::facts::Node;
use crate::fault::{Damage, OpenError, Trouble};
use crate::find;
use crate::mark;
use crate::open::{self, FILE, LOCK};
use crate::quiet::quietly;
use crate::record::Row;
use crate::source::Source;
use crate::sum;
use crate::tables::{EXPIRIES, FORMAT, FORMAT_BEFORE, KEYS, MESSAGES, TOPICS};
use crate::topic::Topic;

/// What redb may keep in memory of a file that is looked at once.
pub(crate) const CACHE_BYTES: usize = 64 << 20;

/// What a look at the whole file found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Its format version: this one, or the one before, whose rows have no checksums.
    pub format: u64,
    /// The last process closed it.
    pub clean: bool,
    /// Topics that have a row that is whole.
    pub topics: u64,
    /// Messages that are whole.
    pub messages: u64,
    /// Cursors, idempotency keys, subscribers and names of topics that are whole.
    pub others: u64,
    /// Messages after the first offset and up to the second may have been lost, for the file did
    /// not keep its last commit: now, which is damage, or at a start before.
    pub lost: Option<(u64, u64)>,
    /// What is damaged. Empty where all that was written is there.
    pub damages: Vec<Damage>,
}

/// Looks at the whole store in a directory that no process has open. Nothing is changed. A file of
/// which nothing can be said is an error: one of a later version, or no store of Throng.
pub fn check(dir: &Path) -> Result<Report, OpenError> {
    let _lock = lock(dir)?;
    look_at_all(dir)
}

/// Keeps servers from the store in this directory, as long as the file is held.
pub(crate) fn lock(dir: &Path) -> Result<Option<File>, OpenError> {
    let refused = |error| OpenError::Directory { dir: dir.into(), error };
    // A copy may have no lock file, and gets none.
    match File::open(dir.join(LOCK)) {
        Ok(lock) => match lock.try_lock() {
            Ok(()) => Ok(Some(lock)),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse { dir: dir.into() }),
            Err(TryLockError::Error(error)) => Err(refused(error)),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(refused(error)),
    }
}

/// Looks at the whole store in a directory that is locked.
pub(crate) fn look_at_all(dir: &Path) -> Result<Report, OpenError> {
    let file = dir.join(FILE);
    let report = match look(&file, true) {
        Ok(report) => report,
        Err(Trouble::Io(error)) if error.kind() != ErrorKind::InvalidData => {
            return Err(OpenError::Directory { dir: file, error });
        }
        Err(other) if other.is_refusal() => {
            return Err(OpenError::Disk { file, reason: other.advice(dir) });
        }
        Err(other) => return Err(OpenError::Unknown { file, reason: other.to_string() }),
    };
    match report.format {
        FORMAT | FORMAT_BEFORE => Ok(report),
        0 => Err(OpenError::Unknown { file, reason: "it says nothing of its format".into() }),
        found => Err(OpenError::Format { file, found, known: FORMAT }),
    }
}

/// Looks at the whole file, with redb's own check where `verify`. The report has nothing but the
/// format where that is not known, and 0 for it where it can't be read.
pub(crate) fn look(file: &Path, verify: bool) -> Result<Report, Trouble> {
    let mut report = Report::default();
    let opened = match open::database(|| Disk::open_to_read(file), CACHE_BYTES, verify) {
        Err(trouble) if verify && trouble.is_damage() => {
            report.damages.push(Damage::table("the file", trouble.to_string()));
            open::database(|| Disk::open_to_read(file), CACHE_BYTES, false)?
        }
        other => other?,
    };
    report.format = open::format(&opened.db).ok().flatten().unwrap_or(0);
    if matches!(report.format, FORMAT | FORMAT_BEFORE) {
        let dir = file.parent().unwrap_or(Path::new("."));
        let is_proven = verify && report.damages.is_empty();
        let source = Source::new(&opened.db, report.format, is_proven);
        if verify && source.is_doubtful() {
            let what = "rows of this format have no checksums: those that can be read are taken \
                        for whole, and may be others than were written";
            report.damages.push(Damage::table("the file", what));
        }
        Look { source, report: &mut report }.all(dir, opened.is_lost);
    }
    Ok(report)
}

/// Goes over a table.
type Each<'a> = &'a dyn Fn(&ReadTransaction) -> Result<(), Trouble>;

/// Notes what went wrong with a table.
pub(crate) fn note(damages: &mut Vec<Damage>, result: Result<(), Trouble>, table: &'static str) {
    match result {
        Ok(()) => {}
        Err(Trouble::Damaged(damage)) => damages.push(*damage),
        Err(other) => damages.push(Damage::table(table, other.to_string())),
    }
}

struct Look<'a> {
    source: Source<'a>,
    report: &'a mut Report,
}

impl Look<'_> {
    fn damaged(&mut self, result: Result<(), Trouble>, table: &'static str) {
        note(&mut self.report.damages, result, table);
    }

    fn all(&mut self, dir: &Path, is_lost: bool) {
        let source = self.source;
        let node = match quietly(|| source.node()) {
            Ok(node) => node,
            Err(trouble) => {
                self.damaged(Err(trouble), "facts");
                Node::default()
            }
        };
        self.report.clean = node.clean;
        let is_lost = mark::is_lost(dir, &node, is_lost);
        if is_lost {
            let what = format!(
                "its last commit is not in it: messages after offset {} may be lost",
                node.last
            );
            self.report.damages.push(Damage::table("the file", what));
        }
        self.report.lost = match is_lost {
            true => Some((node.last, node.last.saturating_add(open::OFFSETS_SKIPPED))),
            false => (node.lost_through > 0).then_some((node.lost_after, node.lost_through)),
        };
        let topics = topics(&source, &mut self.report.damages);
        for (name, topic) in &topics {
            self.report.topics += 1;
            let messages = &mut self.report.messages;
            let mut count = |_: u64, _: Row<'_>| {
                *messages += 1;
                Ok(())
            };
            let bad = messages_of(&source, name, topic, &mut count);
            self.report.damages.extend(bad.unwrap_or_default());
        }
        let others = std::cell::Cell::new(0);
        let count = || others.set(others.get() + 1);
        let tables: [(&'static str, Each<'_>); 6] = [
            ("cursors", &|txn| source.each_cursor(txn, |_, _, _| count())),
            ("idempotency", &|txn| source.each_idempotency_key(txn, |_, _, _, _| count())),
            ("subscriptions", &|txn| source.each_subscriber(txn, |_, _| count())),
            ("names", &|txn| source.each_name(txn, |_, _| count())),
            ("keys", &|txn| {
                let mut at = None;
                txn.open_table(KEYS)?.iter()?.try_for_each(|row| {
                    let key = row?.0;
                    let (number, name) = key.value();
                    goes_on(&mut at, (number, Name::from(name)))
                })
            }),
            ("expiries", &|txn| {
                let mut at = None;
                txn.open_table(EXPIRIES)?
                    .iter()?
                    .try_for_each(|row| goes_on(&mut at, row?.0.value()))
            }),
        ];
        for (table, each) in tables {
            let result = quietly(|| each(&source.db.begin_read()?));
            self.damaged(result, table);
        }
        self.report.others = others.get();
    }
}

/// All topics whose rows are whole.
pub(crate) fn topics(source: &Source<'_>, damages: &mut Vec<Damage>) -> Vec<(Name, Topic)> {
    let db = source.db;
    let (mut found, mut last, mut bad) = (Vec::new(), (String::new(), 0), None);
    let mut visit = |name: &str, row: &[u8]| match source.topic(name, row) {
        Ok(topic) => {
            if !source.is_before && topic.before != last.1 && bad.is_none() {
                let what = format!("rows of topics before it and after {:?} are missing", last.0);
                bad = Some(Damage { table: "topics", ..Damage::of(name, 0, 0, what) });
            }
            last = (name.into(), sum::of_name(name));
            found.push((Name::from(name), topic));
        }
        Err(trouble) => {
            last = (name.into(), sum::of_name(name));
            if let Trouble::Damaged(damage) = trouble {
                damages.push(*damage);
            }
        }
    };
    let mut at = None;
    let walked = quietly(|| {
        for row in db.begin_read()?.open_table(TOPICS)?.iter()? {
            let (name, row) = row?;
            goes_on(&mut at, Name::from(name.value()))?;
            visit(name.value(), row.value());
        }
        Ok(())
    });
    let tail = quietly(|| source.node());
    let is_end = source.is_before || tail.is_ok_and(|node| node.tail == last.1);
    let last = last.0;
    damages.extend(bad);
    if walked.is_err() || !is_end {
        // What is behind is found from the end.
        let (mut behind, mut at) = (Vec::new(), None);
        let _ = quietly(|| {
            for row in db.begin_read()?.open_table(TOPICS)?.iter()?.rev() {
                let (name, row) = row?;
                goes_on(&mut at, Reverse(Name::from(name.value())))?;
                if name.value() <= &*last {
                    break;
                }
                behind.extend(
                    source.topic(name.value(), row.value()).map(|row| (name.value().into(), row)),
                );
            }
            Ok(())
        });
        let what = format!("rows of topics after {last:?} are missing");
        damages.push(Damage::table("topics", what));
        found.extend(behind.into_iter().rev());
    }
    if source.is_before {
        // Two with one number would have the same messages.
        let mut numbers = HashSet::new();
        found.retain(|(name, topic)| {
            let is_first = numbers.insert(topic.number);
            if !is_first && let Trouble::Damaged(damage) = find::bad_row(name) {
                damages.push(*damage);
            }
            is_first
        });
    }
    found
}

/// Shows the messages of a topic that are whole, the oldest first, and gives what is damaged.
pub(crate) fn messages_of(
    source: &Source<'_>,
    name: &str,
    topic: &Topic,
    each: &mut dyn FnMut(u64, Row<'_>) -> Result<(), Trouble>,
) -> Result<Vec<Damage>, Trouble> {
    let mut seen = Seen { name, damages: Vec::new(), known: topic.base };
    let (db, number) = (source.db, topic.number);
    let mut failed = None;
    let mut at = topic.base;
    let (mut count, mut payload_bytes) = (0, 0);
    let mut each = |offset, row: Row<'_>| {
        count += 1;
        payload_bytes += row.head().map_or(0, |head| head.payload.len() as u64);
        each(offset, row)
    };
    let walked = walk(db, number, topic.base, false, &mut |offset, bytes| {
        at = offset;
        match source.row((number, offset), seen.known, bytes) {
            Ok(row) => {
                seen.whole(offset, row.before);
                if let Err(trouble) = each(offset, row) {
                    failed = Some(trouble);
                    return ControlFlow::Break(());
                }
            }
            Err(_) => seen.bad(offset),
        }
        ControlFlow::Continue(())
    });
    if let Some(trouble) = failed {
        return Err(trouble);
    }
    if walked.is_err() {
        // What is behind is found from the end; it is read again one by one, in its order.
        let mut behind = Vec::new();
        let _ = walk(db, number, at, true, &mut |offset, bytes| {
            if source.row((number, offset), 0, bytes).is_ok() {
                behind.push((offset, bytes.to_vec()));
            }
            ControlFlow::Continue(())
        });
        if source.is_before {
            let last = behind.last().map_or(topic.last, |(offset, _)| offset - 1);
            seen.through(last);
        }
        for (offset, bytes) in behind.into_iter().rev() {
            let row = source.row((number, offset), seen.known, &bytes)?;
            seen.whole(offset, row.before);
            each(offset, row)?;
        }
    }
    seen.through(topic.newest);
    if source.is_doubtful()
        && seen.damages.is_empty()
        && (count, payload_bytes) != (topic.count, topic.bytes)
    {
        let what = format!("{} messages were written, and {count} are there", topic.count);
        let through = topic.last.max(seen.known);
        seen.damages.push(Damage::of(name, topic.floor.min(through), through, what));
    }
    Ok(seen.damages)
}

/// What was seen of a topic's messages.
struct Seen<'a> {
    name: &'a str,
    damages: Vec<Damage>,
    /// All is known up to here.
    known: u64,
}

impl Seen<'_> {
    fn add(&mut self, through: u64) {
        match self.damages.last_mut() {
            Some(last) if last.through == self.known => last.through = through,
            _ => self.damages.push(Damage::of(self.name, self.known, through, "gone or damaged")),
        }
        self.known = through;
    }

    fn bad(&mut self, offset: u64) {
        self.add(offset);
    }

    /// Nothing more is there up to this offset.
    fn through(&mut self, offset: u64) {
        if offset > self.known {
            self.add(offset);
        }
    }

    fn whole(&mut self, offset: u64, before: u64) {
        self.through(before);
        self.known = offset;
    }
}

/// A damaged page may lead back, and so on for ever: keys must grow.
pub(crate) fn goes_on<K: Ord>(last: &mut Option<K>, key: K) -> Result<(), Trouble> {
    if last.as_ref().is_some_and(|last| *last >= key) {
        return Err(Damage::table("the file", "rows are not in their order").into());
    }
    *last = Some(key);
    Ok(())
}

/// Goes over the rows of a topic's messages after an offset.
fn walk(
    db: &Database,
    number: u64,
    after: u64,
    backwards: bool,
    each: &mut dyn FnMut(u64, &[u8]) -> ControlFlow<()>,
) -> Result<(), Trouble> {
    quietly(|| {
        let table = db.begin_read()?.open_table(MESSAGES)?;
        let mut rows = table.range((number, after.saturating_add(1))..=(number, u64::MAX))?;
        let (mut up, mut down) = (None, None);
        while let Some(row) = if backwards { rows.next_back() } else { rows.next() } {
            let (key, value) = row?;
            match backwards {
                true => goes_on(&mut down, Reverse(key.value()))?,
                false => goes_on(&mut up, key.value())?,
            }
            if key.value().0 == number && each(key.value().1, value.value()).is_break() {
                break;
            }
        }
        Ok(())
    })
}
