//! The changes that a store under test has made on the disk, in their order, and its acknowledgements in between.

use std::io::{Error, Result as IoResult};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use random::Random;

use super::workload::Op;
use crate::disk::{Change, RECORDER};

/// The traces of all stores under test, by the directory above them.
static TRACES: Mutex<Vec<(PathBuf, Arc<Mutex<Trace>>)>> = Mutex::new(Vec::new());

#[derive(Default)]
pub struct Trace {
    pub events: Vec<Event>,
    /// One in so many syncs fails; 0 for none.
    pub failing_syncs: u64,
    random: Option<Random>,
}

/// An event on the disk, or for a caller.
#[derive(Clone, Debug)]
pub enum Event {
    CreateDir(PathBuf),
    Create(PathBuf),
    Write(PathBuf, u64, Box<[u8]>),
    SetLen(PathBuf, u64),
    Sync(PathBuf),
    /// The sync reported an error: some writes are lost, and no later sync brings them to the disk.
    SyncFailed(PathBuf),
    SyncDir(PathBuf),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
    /// An operation with this number was passed to the store.
    Issued(usize, Op),
    /// The operation with this number, and all before it, are acknowledged.
    Acknowledged(usize),
    /// After a failed commit the store writes again: with the unacknowledged operations, or without them.
    Resolved {
        stored: bool,
    },
    /// The store was opened: with the unacknowledged operations, or without them.
    Opened {
        epoch: u32,
        lost_through: u64,
        stored: bool,
    },
    /// The copy in this directory is complete, and its caller knows.
    Copied(PathBuf),
    /// The copy with this number begins to replace the store, under this epoch.
    Restoring {
        copy: usize,
        epoch: u32,
    },
    /// The copy has replaced it, and its caller knows.
    Restored,
}

/// Records a trace until it is dropped.
pub struct Recording {
    dir: PathBuf,
    trace: Arc<Mutex<Trace>>,
}

impl Recording {
    /// Records all changes below a directory.
    pub fn start(dir: &Path) -> Self {
        RECORDER.get_or_init(|| record);
        let trace = Arc::<Mutex<Trace>>::default();
        traces().push((dir.into(), trace.clone()));
        Recording { dir: dir.into(), trace }
    }

    pub fn trace(&self) -> MutexGuard<'_, Trace> {
        self.trace.lock().unwrap()
    }

    pub fn push(&self, event: Event) {
        self.trace().events.push(event);
    }

    pub fn handle(&self) -> Handle {
        Handle(self.trace.clone())
    }

    /// Makes one in `one_in` syncs fail from now on.
    pub fn fail_syncs(&self, one_in: u64, random: Random) {
        let mut trace = self.trace();
        (trace.failing_syncs, trace.random) = (one_in, Some(random));
    }

    pub fn finish(self) -> Vec<Event> {
        std::mem::take(&mut self.trace().events)
    }
}

/// Adds events to a trace.
pub struct Handle(Arc<Mutex<Trace>>);

impl Handle {
    pub fn push(&self, event: Event) {
        self.0.lock().unwrap().events.push(event);
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        traces().retain(|(dir, _)| *dir != self.dir);
    }
}

fn traces() -> MutexGuard<'static, Vec<(PathBuf, Arc<Mutex<Trace>>)>> {
    TRACES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records a change of the disk. A sync may fail.
fn record(change: Change<'_>) -> IoResult<()> {
    let (Change::CreateDir(path)
    | Change::Create(path)
    | Change::Write(path, ..)
    | Change::SetLen(path, _)
    | Change::Sync(path)
    | Change::SyncDir(path)
    | Change::Rename(path, _)
    | Change::Remove(path)) = change;
    let traces = traces();
    let Some((_, trace)) = traces.iter().find(|(dir, _)| path.starts_with(dir)) else {
        return Ok(());
    };
    let trace = trace.clone();
    drop(traces);
    let mut trace = trace.lock().unwrap();
    let fails = trace.failing_syncs;
    let event = match change {
        Change::CreateDir(path) => Event::CreateDir(path.into()),
        Change::Create(path) => Event::Create(path.into()),
        Change::Write(path, offset, bytes) => Event::Write(path.into(), offset, bytes.into()),
        Change::SetLen(path, len) => Event::SetLen(path.into(), len),
        Change::Sync(path) => {
            let has_failed =
                fails > 0 && trace.random.as_mut().is_some_and(|random| random.one_in(fails));
            if has_failed {
                trace.events.push(Event::SyncFailed(path.into()));
                return Err(Error::other("the disk failed, as it should in this test"));
            }
            Event::Sync(path.into())
        }
        Change::SyncDir(path) => Event::SyncDir(path.into()),
        Change::Rename(from, to) => Event::Rename(from.into(), to.into()),
        Change::Remove(path) => Event::Remove(path.into()),
    };
    trace.events.push(event);
    Ok(())
}
