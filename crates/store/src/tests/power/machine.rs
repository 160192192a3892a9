//! A machine whose power goes: runs a store on a disk with a volatile cache, cuts the power, and restarts the machine
//! with the content of the disk.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};

use random::Random;

use super::super::options;
use super::disk_model::{Disk, write_image};
use super::trace::{Event, Recording};
use super::workload::{Op, State, View, Workload, issue, stored};
use crate::error::OpenError;
use crate::files::FILE;
use crate::metadata::Metadata;
use crate::open::Directory;
use crate::queue::State as QueueState;
use crate::writer::Writer;
use crate::{Options, Reader, Store, back_up, compact, restore};

/// The bursts of operations between an open and a close.
const BURSTS_MAX: u64 = 16;

/// The operations of a burst.
const BURST_OPS_MAX: u64 = 10;

/// How often the writer probes a failed disk.
const PROBES_MAX: usize = 200;

/// The content of a disk and its cache, and what callers know of it.
#[derive(Clone, Default)]
pub struct Moment {
    pub disk: Disk,
    pub known: Known,
}

/// What callers know of a store.
#[derive(Clone, Default)]
pub struct Known {
    /// The acknowledged content.
    state: State,
    /// Operations that were passed to the store and are not acknowledged: those of one commit.
    pending: Vec<(usize, Op)>,
    epoch: Option<u32>,
    /// The store's report of the offset up to which messages may be missing.
    lost_through: u64,
    /// The highest offset that was passed to the store.
    offset: u64,
    events: u64,
    /// The copies that are complete, and their content.
    copies: Vec<(PathBuf, State)>,
    /// The state that is replacing the store, and the epoch that it gets.
    restoring: Option<(State, u32)>,
}

/// The counts of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub cuts: u64,
    /// Cuts while a store recovered from another.
    pub cuts_in_recovery: u64,
    /// Kills of the process, after which the next one finds unsynced writes in the cache.
    pub kills: u64,
    /// Operations that were acknowledged before a cut, each counted once.
    pub acknowledged: u64,
    /// How often a sync failed, until the store wrote again.
    pub failures: u64,
    /// Starts that report possible losses although no message is missing.
    pub false_alarms: u64,
    /// Copies of a store that were checked after a cut.
    pub copies: u64,
}

impl Counts {
    pub fn add(&mut self, other: Counts) {
        self.cuts += other.cuts;
        self.cuts_in_recovery += other.cuts_in_recovery;
        self.kills += other.kills;
        self.acknowledged += other.acknowledged;
        self.failures += other.failures;
        self.false_alarms += other.false_alarms;
        self.copies += other.copies;
    }
}

/// A store without threads: the test takes the writer's part.
struct Session {
    store: Store,
    writer: Writer,
    metadata: Metadata,
}

fn data(root: &Path) -> PathBuf {
    root.join("var/data")
}

fn store_options(dir: &Path, epoch: u32) -> Options {
    Options { new_epoch: epoch, ..options(dir) }
}

impl Session {
    fn open(dir: &Path, epoch: u32) -> Result<Session, OpenError> {
        let options = store_options(dir, epoch);
        let directory = Directory::claim(dir)?;
        let opened = directory.open(epoch, options.cache_bytes_max, options.verify_bytes_max);
        let (db, start) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                directory.release();
                return Err(error);
            }
        };
        let store = Store::around(&options, directory);
        store.shared.last.store(start.metadata.last_offset, Relaxed);
        *store.shared.db.write().unwrap_or_else(PoisonError::into_inner) = Some(db);
        store.set(QueueState::Open);
        let metadata = start.metadata;
        let writer = Writer::new(store.shared.clone(), start);
        Ok(Session { store, writer, metadata })
    }

    fn view(&self) -> View {
        stored(&Reader { shared: self.store.shared.clone() })
    }
}

impl Known {
    /// Returns whether a store has the unacknowledged operations, which are of one commit. `None` if its content is
    /// neither the acknowledged one nor that with all of these.
    fn has_pending(&self, view: &View) -> Option<bool> {
        let mut state = self.state.clone();
        if state.view() == *view {
            return Some(false);
        }
        self.pending.iter().for_each(|(_, op)| state.apply(op));
        (state.view() == *view).then_some(true)
    }

    fn resolve(&mut self, stored: bool) {
        for (_, op) in std::mem::take(&mut self.pending) {
            if stored {
                self.state.apply(&op);
            }
        }
    }

    /// Records what callers learn by an event.
    fn learn(&mut self, event: &Event) {
        match event {
            Event::Issued(number, op) => {
                if let Op::Append { offset, .. } = op {
                    self.offset = self.offset.max(*offset);
                }
                if let Op::Event { number, .. } = op {
                    self.events = self.events.max(*number);
                }
                self.pending.push((*number, op.clone()));
            }
            Event::Acknowledged(through) => {
                let count = self.pending.iter().take_while(|(number, _)| number <= through).count();
                for (_, op) in self.pending.drain(..count) {
                    self.state.apply(&op);
                }
            }
            Event::Opened { epoch, lost_through, stored } => {
                (self.epoch, self.lost_through) = (Some(*epoch), *lost_through);
                self.resolve(*stored);
            }
            Event::Resolved { stored } => self.resolve(*stored),
            Event::Copied(dir) => self.copies.push((dir.clone(), self.state.clone())),
            Event::Restoring { copy, epoch } => {
                self.restoring = Some((self.copies[*copy].1.clone(), *epoch));
            }
            Event::Restored => {
                if let Some((state, epoch)) = self.restoring.take() {
                    (self.state, self.epoch) = (state, Some(epoch));
                    // Offsets of another epoch do not count in this one.
                    self.offset = 0;
                    self.pending.clear();
                }
            }
            _ => {}
        }
    }
}

/// Runs a store on a disk, between two cuts of the power.
pub struct Lifetime<'a> {
    pub root: &'a Path,
    pub random: &'a mut Random,
    pub known: Known,
    /// One in so many syncs fails; 0 for none.
    pub failing_syncs: u64,
    pub counts: Counts,
    issued: usize,
}

impl<'a> Lifetime<'a> {
    pub fn new(root: &'a Path, random: &'a mut Random, known: Known, failing_syncs: u64) -> Self {
        Lifetime { root, random, known, failing_syncs, counts: Counts::default(), issued: 0 }
    }

    /// Opens and closes the store `sessions` times, 0 for once without any operation. Returns all events.
    ///
    /// # Errors
    /// The fault of the store.
    pub fn run(&mut self, disk: &Disk, sessions: u64) -> Result<Vec<Event>, String> {
        let _ = std::fs::remove_dir_all(self.root);
        std::fs::create_dir_all(self.root).unwrap();
        write_image(&disk.cached(), self.root);
        let recording = Recording::start(self.root);
        if sessions == 0 {
            let session = self.open(&recording)?;
            session.store.close().map_err(|error| format!("it can't be closed: {error}"))?;
        }
        for _ in 0..sessions {
            self.session(&recording)?;
        }
        Ok(recording.finish())
    }

    /// Learns from an event, and records it.
    fn record(&mut self, recording: &Recording, event: Event) {
        self.known.learn(&event);
        recording.push(event);
    }

    /// Opens the store and compares it with what callers know.
    fn open(&mut self, recording: &Recording) -> Result<Session, String> {
        let new_epoch = 1 + self.random.below(1_000_000_u32);
        let session = Session::open(&data(self.root), new_epoch)
            .map_err(|error| format!("the store does not open: {error}"))?;
        let Metadata { epoch, last_offset, lost_through, .. } = session.metadata;
        if self.known.restoring.as_ref().is_some_and(|(_, restored)| *restored == epoch) {
            self.record(recording, Event::Restored);
        }
        self.known.restoring = None;
        if self.known.epoch.is_some_and(|known| known != epoch) {
            return Err(format!("another store is there, with the epoch {epoch}"));
        }
        if self.known.epoch.is_some() && last_offset < self.known.offset {
            let before = self.known.offset;
            return Err(format!(
                "offsets after {last_offset} are assigned again, and {before} was"
            ));
        }
        let view = session.view();
        let Some(stored) = self.known.has_pending(&view) else {
            return Err(self.known.difference(&view));
        };
        self.counts.false_alarms += u64::from(lost_through > self.known.lost_through);
        self.record(recording, Event::Opened { epoch, lost_through, stored });
        Ok(session)
    }

    fn session(&mut self, recording: &Recording) -> Result<(), String> {
        let mut session = self.open(recording)?;
        if self.failing_syncs > 0 {
            let seed = self.random.bits();
            recording.fail_syncs(self.failing_syncs, Random::new(seed));
        }
        for _ in 0..=self.random.below(BURSTS_MAX) {
            self.burst(recording, &mut session)?;
        }
        recording.fail_syncs(0, Random::new(0));
        if self.random.one_in(3) {
            // The power goes while the store is in use.
            drop(session.store.shared.db.write().unwrap().take());
            session.store.shared.directory.release();
            return Ok(());
        }
        session.store.close().map_err(|error| format!("it can't be closed: {error}"))?;
        self.copy(recording)
    }

    /// Issues operations and makes the writer write them.
    fn burst(&mut self, recording: &Recording, session: &mut Session) -> Result<(), String> {
        let failed = Arc::new(AtomicBool::new(false));
        for _ in 0..=self.random.below(BURST_OPS_MAX) {
            let (offset, events) = (self.known.offset, self.known.events);
            let from = offset.max(session.metadata.last_offset);
            let mut workload = Workload { random: &mut *self.random, offset: from, events };
            let op = workload.draw(&self.known.state);
            let number = self.issued;
            self.issued += 1;
            self.record(recording, Event::Issued(number, op.clone()));
            let (acknowledgements, failed) = (recording.handle(), failed.clone());
            let done = move |result: Result<(), crate::StoreError>| match result {
                Ok(()) => acknowledgements.push(Event::Acknowledged(number)),
                Err(_) => failed.store(true, Relaxed),
            };
            issue(&session.store, &op, Box::new(done));
        }
        session.writer.step(self.random.one_in(3));
        let has_failed = failed.load(Relaxed);
        if !has_failed {
            // Operations without a callback are stored, too.
            let last = self.issued;
            self.counts.acknowledged += self.known.pending.len() as u64;
            self.record(recording, Event::Acknowledged(last));
        }
        if has_failed || session.store.write_error().is_some() {
            self.recover_from_failure(recording, session)?;
        }
        Ok(())
    }

    /// Handles a failed sync: unacknowledged operations are stored or not, which callers may not know, and later ones
    /// build on that.
    fn recover_from_failure(
        &mut self,
        recording: &Recording,
        session: &mut Session,
    ) -> Result<(), String> {
        self.counts.failures += 1;
        for _ in 0..PROBES_MAX {
            if session.store.write_error().is_none() {
                break;
            }
            session.writer.step(true);
        }
        if let Some(reason) = session.store.write_error() {
            return Err(format!("the store does not write again: {reason}"));
        }
        let view = session.view();
        let Some(stored) = self.known.has_pending(&view) else {
            return Err(self.known.difference(&view));
        };
        // A commit on top of this content was synced.
        self.record(recording, Event::Resolved { stored });
        Ok(())
    }

    /// Copies, rewrites or restores a store that is closed.
    fn copy(&mut self, recording: &Recording) -> Result<(), String> {
        let dir = data(self.root);
        // A copy may be complete though its caller does not know, because the power went first.
        let mut paths = (0..).map(|number| self.root.join(format!("var/copies/{number}")));
        let to = paths.find(|path| !path.join(FILE).exists()).unwrap();
        match self.random.below(6) {
            0 => {
                compact(&dir).map_err(|error| format!("it can't be rewritten: {error}"))?;
            }
            1 if self.known.copies.len() < 3 => {
                back_up(&dir, &to, 7).map_err(|error| format!("it can't be copied: {error}"))?;
                let inside = to.strip_prefix(self.root).unwrap().to_path_buf();
                self.record(recording, Event::Copied(inside));
            }
            2 if !self.known.copies.is_empty() => {
                let copy = self.random.below(self.known.copies.len());
                let epoch = 1_000_000 + self.random.below(1_000_000_000_u32);
                let from = self.root.join(&self.known.copies[copy].0);
                self.record(recording, Event::Restoring { copy, epoch });
                restore(&from, &dir, true, epoch)
                    .map_err(|error| format!("it can't be restored: {error}"))?;
                self.record(recording, Event::Restored);
            }
            _ => {}
        }
        Ok(())
    }
}

impl Known {
    fn difference(&self, view: &View) -> String {
        let count = self.pending.len();
        let mut text = format!("it has neither what is acknowledged nor that with {count} more:");
        let expected = self.state.view();
        for (table, rows) in &expected {
            let found = &view[table];
            let cut = |rows: &[String], others: &[String]| {
                let rows = rows.iter().filter(|row| !others.contains(row));
                rows.map(|row| row.chars().take(40).collect::<String>()).take(5).collect::<Vec<_>>()
            };
            if found != rows {
                let (missing, more) = (cut(rows, found), cut(found, rows));
                text += &format!("\n{table}: missing {missing:?}, more {more:?}");
            }
        }
        text
    }

    /// Compares the complete copies with their sources. Returns their number.
    ///
    /// # Errors
    /// The fault of a copy.
    pub fn check_copies(&self, root: &Path) -> Result<u64, String> {
        for (dir, state) in &self.copies {
            let name = dir.display();
            let session = Session::open(&root.join(dir), 1)
                .map_err(|error| format!("the copy {name} does not open: {error}"))?;
            let view = session.view();
            if view != state.view() {
                let known = Known { state: state.clone(), ..Known::default() };
                return Err(format!("the copy {name}: {}", known.difference(&view)));
            }
            session.store.close().map_err(|error| format!("the copy {name}: {error}"))?;
        }
        Ok(self.copies.len() as u64)
    }
}

/// Cuts the power at moments of a lifetime.
pub struct Cutter<'a> {
    root: &'a Path,
    disk: Disk,
    known: Known,
    at: usize,
}

impl<'a> Cutter<'a> {
    /// Makes a cutter; `start` is the disk and the knowledge before the lifetime.
    pub fn new(root: &'a Path, start: &Moment) -> Self {
        Cutter { root, disk: start.disk.clone(), known: start.known.clone(), at: 0 }
    }

    /// Kills the process after `at` events: its writes stay in the cache.
    pub fn kill(&mut self, events: &[Event], at: usize, random: &mut Random) -> Moment {
        for event in &events[self.at..at] {
            self.disk.apply(self.root, event, random);
            self.known.learn(event);
        }
        self.at = at;
        Moment { disk: self.disk.clone(), known: self.known.clone() }
    }

    /// Cuts the power after `at` events.
    pub fn cut(&mut self, events: &[Event], at: usize, random: &mut Random) -> Moment {
        let Moment { disk, known } = self.kill(events, at, random);
        Moment { disk: Disk::new(&disk.cut(random)), known }
    }
}
