//! Checks the whole file and reports the damage by topic and offsets. A check writes nothing.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::Path;

use model::Name;
use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable};

use crate::checksum;
use crate::database::{file_format, open_database};
use crate::error::{Damage, InternalError, OpenError};
use crate::files::{FILE, LOCK};
use crate::last_commit;
use crate::metadata::{Metadata, OFFSETS_SKIPPED};
use crate::order::require_ascending;
use crate::panics::catch_redb_panics;
use crate::record::MessageRow;
use crate::source::Source;
use crate::staged_file::StagedFile;
use crate::tables::{EXPIRIES, FIRST_FORMAT, FORMAT, KEYS, MESSAGES, TOPICS, is_known};
use crate::topic::TopicRow;
use crate::topic_rows;

/// How much of the file redb may cache in memory during a check or a copy.
pub(crate) const CACHE_BYTES: usize = 64 << 20;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The file's format version: the current one, or an earlier one. In the first one, rows have no
    /// checksums.
    pub format: u64,
    /// True if the last process closed the store.
    pub clean: bool,
    /// Topics whose row is intact.
    pub topics: u64,
    /// Messages that are intact.
    pub messages: u64,
    /// Cursors, idempotency keys, subscribers, topic names and records that are intact.
    pub others: u64,
    /// Messages after the first offset and up to the second may be lost, because the file does not
    /// contain its last commit. Either the check found this now, which counts as damage, or an
    /// earlier start did.
    pub lost_range: Option<(u64, u64)>,
    /// The damage. Empty if the file contains everything that was written.
    pub damages: Vec<Damage>,
}

/// Checks the store in a directory that no process has open, and changes nothing. Returns an error
/// if the file is not a store of Throng or has a later format.
pub fn check(dir: &Path) -> Result<Report, OpenError> {
    let _lock = lock(dir)?;
    check_locked(dir)
}

/// Locks the directory against servers until the caller drops the returned file.
pub(crate) fn lock(dir: &Path) -> Result<Option<File>, OpenError> {
    let lock_error = |error| OpenError::Directory { dir: dir.into(), error };
    // A copy of a store may have no lock file. The check must not write one.
    match File::open(dir.join(LOCK)) {
        Ok(lock) => match lock.try_lock() {
            Ok(()) => Ok(Some(lock)),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse { dir: dir.into() }),
            Err(TryLockError::Error(error)) => Err(lock_error(error)),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(lock_error(error)),
    }
}

/// Checks the store in a directory that the caller has locked.
pub(crate) fn check_locked(dir: &Path) -> Result<Report, OpenError> {
    let file = dir.join(FILE);
    let report = match scan_file(&file, true) {
        Ok(report) => report,
        Err(InternalError::Io(error)) if error.kind() == ErrorKind::NotFound => {
            return Err(OpenError::Missing { dir: dir.into() });
        }
        Err(InternalError::Io(error)) if error.kind() != ErrorKind::InvalidData => {
            return Err(OpenError::Directory { dir: file, error });
        }
        Err(other) if other.is_rejected_by_system() => {
            return Err(OpenError::Disk { file, reason: other.advice(dir) });
        }
        Err(other) => return Err(OpenError::Unknown { file, reason: other.to_string() }),
    };
    match report.format {
        known if is_known(known) => Ok(report),
        0 => Err(OpenError::Unknown { file, reason: "it does not name its format".into() }),
        found => Err(OpenError::Format { file, found, known: FORMAT }),
    }
}

/// Does the same for a store whose rows are to be copied unchanged: the rows of its format have checksums.
pub(crate) fn check_before_copy(dir: &Path) -> Result<Report, OpenError> {
    let report = check_locked(dir)?;
    match report.format {
        FIRST_FORMAT => Err(OpenError::Earlier { file: dir.join(FILE), found: report.format }),
        _ => Ok(report),
    }
}

/// Passes the content of a file to `read`, and changes nothing in it.
pub(crate) fn read_snapshot<T>(
    file: &Path,
    read: impl FnOnce(&ReadTransaction) -> Result<T, OpenError>,
) -> Result<T, OpenError> {
    let to_error = |error: InternalError| OpenError::NotCopied {
        file: file.into(),
        reason: error.to_string(),
    };
    let opened = open_database(|| StagedFile::open_to_read(file), CACHE_BYTES, false);
    let opened = opened.map_err(to_error)?;
    let snapshot = opened.db.begin_read().map_err(|error| to_error(error.into()))?;
    read(&snapshot)
}

/// Checks the file, with redb's own integrity check if `verify` is set. If the format is unknown,
/// the report contains only the format, or 0 if that can't be read.
pub(crate) fn scan_file(file: &Path, verify: bool) -> Result<Report, InternalError> {
    let mut report = Report::default();
    let opened = match open_database(|| StagedFile::open_to_read(file), CACHE_BYTES, verify) {
        Err(error) if verify && error.is_damage() => {
            report.damages.push(Damage::in_table("the file", error.to_string()));
            open_database(|| StagedFile::open_to_read(file), CACHE_BYTES, false)?
        }
        other => other?,
    };
    report.format = file_format(&opened.db).ok().flatten().unwrap_or(0);
    if is_known(report.format) {
        let dir = file.parent().unwrap_or(Path::new("."));
        let is_verified = verify && report.damages.is_empty();
        let source = Source::new(&opened.db, report.format, is_verified);
        if verify && source.is_unverifiable() {
            let what = "rows of this format have no checksums: readable rows are assumed to be \
                        intact, and may differ from what was written";
            report.damages.push(Damage::in_table("the file", what));
        }
        FileCheck { source, report: &mut report }.run(dir, opened.may_lack_commit);
    }
    Ok(report)
}

/// Reads all rows of a table.
type Each<'a> = &'a dyn Fn(&ReadTransaction) -> Result<(), InternalError>;

/// Adds the damage of a table to the list.
pub(crate) fn push_damage(
    damages: &mut Vec<Damage>,
    result: Result<(), InternalError>,
    table: &'static str,
) {
    match result {
        Ok(()) => {}
        Err(InternalError::Damaged(damage)) => damages.push(*damage),
        Err(other) => damages.push(Damage::in_table(table, other.to_string())),
    }
}

struct FileCheck<'a> {
    source: Source<'a>,
    report: &'a mut Report,
}

impl FileCheck<'_> {
    fn record(&mut self, result: Result<(), InternalError>, table: &'static str) {
        push_damage(&mut self.report.damages, result, table);
    }

    fn run(&mut self, dir: &Path, may_lack_commit: bool) {
        let source = self.source;
        let metadata = match catch_redb_panics(|| source.metadata()) {
            Ok(metadata) => metadata,
            Err(error) => {
                self.record(Err(error), "facts");
                Metadata::default()
            }
        };
        self.report.clean = metadata.clean;
        let may_lack_commit = last_commit::is_missing(dir, &metadata, may_lack_commit);
        if may_lack_commit {
            let what = format!(
                "its last commit is missing: messages after offset {} may be lost",
                metadata.last_offset
            );
            self.report.damages.push(Damage::in_table("the file", what));
        }
        self.report.lost_range = match may_lack_commit {
            true => {
                Some((metadata.last_offset, metadata.last_offset.saturating_add(OFFSETS_SKIPPED)))
            }
            false => {
                (metadata.lost_through > 0).then_some((metadata.lost_after, metadata.lost_through))
            }
        };
        let topics = scan_topics(&source, &mut self.report.damages);
        for (name, topic) in &topics {
            self.report.topics += 1;
            let messages = &mut self.report.messages;
            let mut count = |_: u64, _: MessageRow<'_>| {
                *messages += 1;
                Ok(())
            };
            let damages = scan_messages(&source, name, topic, &mut count);
            self.report.damages.extend(damages.unwrap_or_default());
        }
        let others = std::cell::Cell::new(0);
        let count = || others.set(others.get() + 1);
        let tables: [(&'static str, Each<'_>); 8] = [
            ("events", &|txn| source.each_event(txn, |_, _| count())),
            ("cursors", &|txn| source.each_cursor(txn, |_, _, _| count())),
            ("idempotency", &|txn| source.each_idempotency_key(txn, |_, _, _, _| count())),
            ("subscriptions", &|txn| source.each_subscriber(txn, |_, _| count())),
            ("names", &|txn| source.each_name(txn, |_, _| count())),
            ("records", &|txn| source.each_record(txn, |_, _, _| count())),
            ("keys", &|txn| {
                let mut at = None;
                txn.open_table(KEYS)?.iter()?.try_for_each(|row| {
                    let key = row?.0;
                    let (number, name) = key.value();
                    require_ascending(&mut at, (number, Name::from(name)))
                })
            }),
            ("expiries", &|txn| {
                let mut at = None;
                txn.open_table(EXPIRIES)?
                    .iter()?
                    .try_for_each(|row| require_ascending(&mut at, row?.0.value()))
            }),
        ];
        for (table, each) in tables {
            let result = catch_redb_panics(|| each(&source.db.begin_read()?));
            self.record(result, table);
        }
        self.report.others = others.get();
    }
}

/// Returns all topics whose rows are intact.
pub(crate) fn scan_topics(source: &Source<'_>, damages: &mut Vec<Damage>) -> Vec<(Name, TopicRow)> {
    let db = source.db;
    let (mut found, mut last, mut missing_rows) = (Vec::new(), (String::new(), 0), None);
    let mut visit = |name: &str, row: &[u8]| match source.topic(name, row) {
        Ok(topic) => {
            if !source.is_first_format
                && topic.previous_name_hash != last.1
                && missing_rows.is_none()
            {
                let what = format!("rows of topics before it and after {:?} are missing", last.0);
                missing_rows =
                    Some(Damage { table: "topics", ..Damage::in_messages(name, 0, 0, what) });
            }
            last = (name.into(), checksum::of_name(name));
            found.push((Name::from(name), topic));
        }
        Err(error) => {
            last = (name.into(), checksum::of_name(name));
            if let InternalError::Damaged(damage) = error {
                damages.push(*damage);
            }
        }
    };
    let mut at = None;
    let scanned = catch_redb_panics(|| {
        for row in db.begin_read()?.open_table(TOPICS)?.iter()? {
            let (name, row) = row?;
            require_ascending(&mut at, Name::from(name.value()))?;
            visit(name.value(), row.value());
        }
        Ok(())
    });
    let tail = catch_redb_panics(|| source.metadata());
    let is_end =
        source.is_first_format || tail.is_ok_and(|metadata| metadata.last_name_hash == last.1);
    let last = last.0;
    damages.extend(missing_rows);
    if scanned.is_err() || !is_end {
        // The scan can't pass the damage, so it continues backwards from the end of the table.
        let (mut behind, mut at) = (Vec::new(), None);
        let _ = catch_redb_panics(|| {
            for row in db.begin_read()?.open_table(TOPICS)?.iter()?.rev() {
                let (name, row) = row?;
                require_ascending(&mut at, Reverse(Name::from(name.value())))?;
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
        damages.push(Damage::in_table("topics", what));
        found.extend(behind.into_iter().rev());
    }
    if source.is_first_format {
        // Two topics with the same number would claim the same messages.
        let mut numbers = HashSet::new();
        found.retain(|(name, topic)| {
            let is_first = numbers.insert(topic.number);
            if !is_first && let InternalError::Damaged(damage) = topic_rows::damaged_row(name) {
                damages.push(*damage);
            }
            is_first
        });
    }
    found
}

/// Passes the intact messages of a topic to `each`, the oldest first, and returns the damage.
pub(crate) fn scan_messages(
    source: &Source<'_>,
    name: &str,
    topic: &TopicRow,
    each: &mut dyn FnMut(u64, MessageRow<'_>) -> Result<(), InternalError>,
) -> Result<Vec<Damage>, InternalError> {
    let mut scan = MessageScan { name, damages: Vec::new(), proven_through: topic.base };
    let (db, number) = (source.db, topic.number);
    let mut failed = None;
    let mut at = topic.base;
    let (mut count, mut payload_bytes) = (0, 0);
    let mut each = |offset, row: MessageRow<'_>| {
        count += 1;
        payload_bytes += row.head().map_or(0, |head| head.counted_bytes());
        each(offset, row)
    };
    let scanned = for_each_row(db, number, topic.base, false, &mut |offset, bytes| {
        at = offset;
        match source.row((number, offset), scan.proven_through, bytes) {
            Ok(row) => {
                scan.intact(offset, row.previous);
                if let Err(error) = each(offset, row) {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
            Err(_) => scan.damaged(offset),
        }
        ControlFlow::Continue(())
    });
    if let Some(error) = failed {
        return Err(error);
    }
    if scanned.is_err() {
        // The scan can't pass the damage, so it finds the rows behind it from the end, and then
        // reads them in ascending order.
        let mut behind = Vec::new();
        let _ = for_each_row(db, number, at, true, &mut |offset, bytes| {
            if source.row((number, offset), 0, bytes).is_ok() {
                behind.push((offset, bytes.to_vec()));
            }
            ControlFlow::Continue(())
        });
        if source.is_first_format {
            let last = behind.last().map_or(topic.last, |(offset, _)| offset - 1);
            scan.through(last);
        }
        for (offset, bytes) in behind.into_iter().rev() {
            let row = source.row((number, offset), scan.proven_through, &bytes)?;
            scan.intact(offset, row.previous);
            each(offset, row)?;
        }
    }
    scan.through(topic.newest);
    if source.is_unverifiable()
        && scan.damages.is_empty()
        && (count, payload_bytes) != (topic.count, topic.bytes)
    {
        let what = format!("{} messages were written, but the file has {count}", topic.count);
        let through = topic.last.max(scan.proven_through);
        scan.damages.push(Damage::in_messages(name, topic.floor.min(through), through, what));
    }
    Ok(scan.damages)
}

/// The state of a scan over a topic's messages.
struct MessageScan<'a> {
    name: &'a str,
    damages: Vec<Damage>,
    /// The scan has accounted for every offset up to this one.
    proven_through: u64,
}

impl MessageScan<'_> {
    fn add(&mut self, through: u64) {
        match self.damages.last_mut() {
            Some(last) if last.through == self.proven_through => last.through = through,
            _ => self.damages.push(Damage::in_messages(
                self.name,
                self.proven_through,
                through,
                "missing or damaged",
            )),
        }
        self.proven_through = through;
    }

    fn damaged(&mut self, offset: u64) {
        self.add(offset);
    }

    /// Records that the topic has no further message up to this offset.
    fn through(&mut self, offset: u64) {
        if offset > self.proven_through {
            self.add(offset);
        }
    }

    fn intact(&mut self, offset: u64, before: u64) {
        self.through(before);
        self.proven_through = offset;
    }
}

/// Passes the rows of a topic's messages after an offset to `each`.
fn for_each_row(
    db: &Database,
    number: u64,
    after: u64,
    backwards: bool,
    each: &mut dyn FnMut(u64, &[u8]) -> ControlFlow<()>,
) -> Result<(), InternalError> {
    catch_redb_panics(|| {
        let table = db.begin_read()?.open_table(MESSAGES)?;
        let mut rows = table.range((number, after.saturating_add(1))..=(number, u64::MAX))?;
        let (mut up, mut down) = (None, None);
        while let Some(row) = if backwards { rows.next_back() } else { rows.next() } {
            let (key, value) = row?;
            match backwards {
                true => require_ascending(&mut down, Reverse(key.value()))?,
                false => require_ascending(&mut up, key.value())?,
            }
            if key.value().0 == number && each(key.value().1, value.value()).is_break() {
                break;
            }
        }
        Ok(())
    })
}
