//! The state that the store's handles, its writer and its reader share.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use crate::backups::Backups;
use crate::batch::Op;
use crate::database::GuardedDatabase;
use crate::error::{InternalError, StoreError};
use crate::open::Directory;
use crate::passed::Passed;
use crate::queue::Queue;
use crate::stats::Counters;

/// A callback on the writer's thread, once an operation is on disk or has failed. It must be quick,
/// must not block, and must not read the store.
///
/// After `Ok`, the operation survives the end of the process and a power loss. After an error its
/// fate is unknown: it may be stored all the same, if the disk wrote the data and then reported an
/// error.
pub type Done = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// An operation and its callback.
pub(crate) struct Item {
    pub op: Op,
    pub done: Option<Done>,
}

/// The state that the store's handles and its threads share.
pub(crate) struct Shared {
    pub directory: Directory,
    pub cache_bytes_max: usize,
    pub idempotency_seconds_max: AtomicU64,
    pub queue: Queue<Item>,
    /// `None` while the writer reopens the file after an error, while another process has it, and after
    /// the close.
    pub db: RwLock<Option<GuardedDatabase>>,
    /// Why the store accepts nothing at the moment; `None` if it does.
    pub write_error: RwLock<Option<Arc<str>>>,
    pub counters: Counters,
    /// True if the next maintenance must create the reserve file.
    pub reserve_requested: AtomicBool,
    /// The highest offset that a caller has passed in.
    pub last: AtomicU64,
    /// Copies of the store that are made while it is in use.
    pub backups: Backups,
    /// The state in which the file was passed to another process, while that one has it.
    pub passed: Mutex<Option<Passed>>,
}

impl Shared {
    pub fn db(&self) -> RwLockReadGuard<'_, Option<GuardedDatabase>> {
        self.db.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write_error(&self) -> Option<Arc<str>> {
        self.write_error.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn store_error(&self, error: InternalError) -> StoreError {
        error.into_store_error(self.directory.dir())
    }
}
