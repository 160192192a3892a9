//! A look at the whole file: what is damaged, by topic and offsets. Nothing is written.

use std::cmp::Reverse;
use std::fs::File;
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
use crate::rows;
use crate::sum;
use crate::tables::{EXPIRIES, FACTS, FORMAT, KEYS, MESSAGES, TOPICS};
use crate::topic::Topic;

/// What redb may keep in memory of a file that is looked at once.
pub(crate) const CACHE_BYTES: usize = 64 << 20;

/// What a look at the whole file found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Its format version; 0 where even that can't be read.
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

/// Looks at the whole store in a directory that no process has open. Nothing is changed.
pub fn check(dir: &Path) -> Result<Report, OpenError> {
    let refused = |error| OpenError::Directory { dir: dir.into(), error };
    // A copy may have no lock file, and gets none.
    let _lock = match File::open(dir.join(LOCK)) {
        Ok(lock) => {
            match lock.try_lock() {
                Ok(()) => {}
                Err(std::fs::TryLockError::WouldBlock) => {
                    return Err(OpenError::InUse { dir: dir.into() });
                }
                Err(std::fs::TryLockError::Error(error)) => return Err(refused(error)),
            }
            Some(lock)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(refused(error)),
    };
    let file = dir.join(FILE);
    look(&file, true).map_err(|trouble| match trouble {
        Trouble::Io(error) => OpenError::Directory { dir: file, error },
        other => OpenError::Damaged { file, reason: other.to_string() },
    })
}

/// Looks at the whole file, with redb's own check where `verify`.
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
    if report.format == FORMAT {
        let dir = file.parent().unwrap_or(Path::new("."));
        Look { db: &opened.db, report: &mut report }.all(dir, opened.is_lost);
    }
    Ok(report)
}

/// Goes over a table.
type Each<'a> = &'a dyn Fn(&ReadTransaction) -> Result<(), Trouble>;

struct Look<'a> {
    db: &'a Database,
    report: &'a mut Report,
}

impl Look<'_> {
    fn damaged(&mut self, result: Result<(), Trouble>, table: &'static str) {
        match result {
            Ok(()) => {}
            Err(Trouble::Damaged(damage)) => self.report.damages.push(*damage),
            Err(other) => self.report.damages.push(Damage::table(table, other.to_string())),
        }
    }

    fn all(&mut self, dir: &Path, is_lost: bool) {
        let node = match quietly(|| Node::of(self.db)) {
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
        let topics = topics(self.db, &mut self.report.damages);
        for (name, topic) in &topics {
            self.report.topics += 1;
            let messages = &mut self.report.messages;
            let mut count = |_: u64, _: Row<'_>| {
                *messages += 1;
                Ok(())
            };
            let bad = messages_of(self.db, name, topic, &mut count);
            self.report.damages.extend(bad.unwrap_or_default());
        }
        let others = std::cell::Cell::new(0);
        let count = || others.set(others.get() + 1);
        let tables: [(&'static str, Each<'_>); 6] = [
            ("cursors", &|txn| rows::each_cursor(txn, |_, _, _| count())),
            ("idempotency", &|txn| rows::each_idempotency_key(txn, |_, _, _, _| count())),
            ("subscriptions", &|txn| rows::each_subscriber(txn, |_, _| count())),
            ("names", &|txn| rows::each_name(txn, |_, _| count())),
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
            let result = quietly(|| each(&self.db.begin_read()?));
            self.damaged(result, table);
        }
        self.report.others = others.get();
    }
}

/// All topics whose rows are whole.
pub(crate) fn topics(db: &Database, damages: &mut Vec<Damage>) -> Vec<(Name, Topic)> {
    let (mut found, mut last, mut bad) = (Vec::new(), (String::new(), 0), None);
    let mut visit = |name: &str, row: &[u8]| match find::read(name, row) {
        Ok(topic) => {
            if topic.before != last.1 && bad.is_none() {
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
    let tail = quietly(|| Node::get(&db.begin_read()?.open_table(FACTS)?));
    let (last, is_end) = (last.0.clone(), tail.is_ok_and(|node| node.tail == last.1));
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
                    find::read(name.value(), row.value()).map(|row| (name.value().into(), row)),
                );
            }
            Ok(())
        });
        let what = format!("rows of topics after {last:?} are missing");
        damages.push(Damage::table("topics", what));
        found.extend(behind.into_iter().rev());
    }
    found
}

/// Shows the messages of a topic that are whole, the oldest first, and gives what is damaged.
pub(crate) fn messages_of(
    db: &Database,
    name: &str,
    topic: &Topic,
    each: &mut dyn FnMut(u64, Row<'_>) -> Result<(), Trouble>,
) -> Result<Vec<Damage>, Trouble> {
    let mut seen = Seen { name, damages: Vec::new(), known: topic.base };
    let number = topic.number;
    let mut failed = None;
    let mut at = topic.base;
    let walked = walk(db, number, topic.base, false, &mut |offset, bytes| {
        at = offset;
        match Row::read(number, offset, bytes) {
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
            if Row::read(number, offset, bytes).is_ok() {
                behind.push((offset, bytes.to_vec()));
            }
            ControlFlow::Continue(())
        });
        for (offset, bytes) in behind.into_iter().rev() {
            let row = Row::read(number, offset, &bytes)?;
            seen.whole(offset, row.before);
            each(offset, row)?;
        }
    }
    if seen.known < topic.newest {
        seen.add(topic.newest);
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

    fn whole(&mut self, offset: u64, before: u64) {
        if before > self.known {
            self.add(before);
        }
        self.known = offset;
    }
}

/// A damaged page may lead back, and so on for ever: keys must grow.
fn goes_on<K: Ord>(last: &mut Option<K>, key: K) -> Result<(), Trouble> {
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
