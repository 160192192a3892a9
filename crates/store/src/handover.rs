//! Passes the store's file from one process to the next, which already has a `Store` without it.
//!
//! The process that has the file marks it as in use, closes it and gives up the lock ([`Store::pass_on`]); the other
//! one opens it ([`Store::open_now`]), and writes nothing before its first operation. So the first one can take it
//! back ([`Store::take_back`]) until the other begins, and if both end, the next start finds a store that was not
//! closed.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use crate::error::{OpenError, StoreError};
use crate::open::{Directory, mark_passed};
use crate::panics::catch_redb_panics;
use crate::passed::Passed;
use crate::queue::State;
use crate::store::{OpenInfo, Options, Store, info};
use crate::tables::is_known;

/// Returns true if this program can take over a file of this format version. It writes [`crate::FORMAT`].
pub fn can_read(format: u64) -> bool {
    is_known(format) && format != crate::tables::FIRST_FORMAT
}

impl Store {
    /// Makes a store whose file another process still has: [`Store::open_now`] opens it. Until then it queues nothing
    /// ([`crate::QueueError::Away`]), has no threads, and does not read the disk.
    pub fn waiting(options: &Options) -> Store {
        let store = Store::around(options, Directory::new(&options.dir));
        store.set(State::Away);
        store
    }

    /// Returns true if no operation is queued, written or read: all callers have their results.
    pub fn is_idle(&self) -> bool {
        self.shared.queue.is_idle() && self.reads.is_idle()
    }

    /// Closes the file for another process, which opens it with [`Store::open_now`]. First it writes and reads
    /// everything that waits; then it queues nothing any more ([`crate::QueueError::Away`]), the threads end, and the
    /// lock is released. All clones stay, for [`Store::take_back`]; [`Store::close`] does nothing then.
    ///
    /// The caller must have the descriptors of the thread that opened the store, and not be one of the store's own
    /// threads. It takes two `fsync`, and the end of the current write.
    ///
    /// # Errors
    /// If the store is not open, or can't write: this process has it as before.
    pub fn pass_on(&self) -> Result<Passed, StoreError> {
        if self.shared.queue.state() != State::Open {
            return Err(StoreError::Closed);
        }
        if let Some(reason) = self.shared.write_error() {
            return Err(StoreError::Disk(reason));
        }
        self.end_threads(State::Away);
        let result = self.close_passed();
        match &result {
            Ok(passed) => {
                *self.passed() = Some(*passed);
                self.shared.directory.release();
            }
            Err(_) => {
                if let Err(error) = self.go_on(None) {
                    tracing::error!(
                        %error,
                        "the store could not be passed to another process, and can't be opened \
                         again"
                    );
                }
            }
        }
        result
    }

    /// Returns true if another process has the file: it was passed on, or has not come yet.
    pub fn is_away(&self) -> bool {
        self.shared.queue.state() == State::Away
    }

    /// Reopens a file that was passed on, after the other process has ended without using it: all clones work as
    /// before. Call it from the thread that called [`Store::pass_on`].
    ///
    /// # Errors
    /// If the other process still has the file, or has used it, or the disk rejects it: the store stays as it is, and
    /// the call can be repeated.
    pub fn take_back(&self) -> Result<OpenInfo, OpenError> {
        let passed = *self.passed();
        self.go_on(passed.as_ref())
    }

    /// Opens the file that another process has passed on, in a store that was [`Store::waiting`]. It reads little and
    /// verifies nothing. The store's threads share the caller's descriptors.
    ///
    /// It writes nothing before the first operation, except redb's marks of an open file. The owner of the tables
    /// that are read at a start gets them from the other process.
    ///
    /// # Errors
    /// As with [`Store::open`], and if the file has changed since the other process passed it on. The store continues
    /// to wait then, and the call can be repeated.
    pub fn open_now(&self, passed: &Passed) -> Result<OpenInfo, OpenError> {
        self.go_on(Some(passed))
    }

    /// Opens the file, which this process does not have open, and begins.
    fn go_on(&self, expected: Option<&Passed>) -> Result<OpenInfo, OpenError> {
        let shared = &self.shared;
        let file = || shared.directory.file();
        if shared.queue.state() != State::Away {
            return Err(OpenError::NotPassed { file: file() });
        }
        // An attempt that failed halfway may have left the directory locked.
        shared.directory.release();
        shared.directory.lock()?;
        let opened = shared.directory.open_passed(expected, shared.cache_bytes_max);
        let begun = opened.and_then(|(db, found)| {
            let info = info(&found);
            self.begin(db, found).map(|()| info)
        });
        match begun {
            Ok(info) => {
                *self.passed() = None;
                Ok(info)
            }
            Err(error) => {
                self.end_threads(State::Away);
                drop(shared.db.write().unwrap_or_else(PoisonError::into_inner).take());
                shared.directory.release();
                Err(error)
            }
        }
    }

    /// Marks the file as in use, and closes it.
    fn close_passed(&self) -> Result<Passed, StoreError> {
        let shared = &self.shared;
        let db = shared.db.write().unwrap_or_else(PoisonError::into_inner).take();
        // The last operations may have failed.
        if let Some(reason) = shared.write_error() {
            return Err(StoreError::Disk(reason));
        }
        let Some(db) = db else { return Err(StoreError::Closed) };
        let marked = catch_redb_panics(|| mark_passed(&db, shared.last.load(Relaxed)));
        let closed = marked.and_then(|metadata| {
            shared.directory.record_commit(&metadata);
            db.close().map(|()| Passed::of(&metadata))
        });
        closed.map_err(|error| shared.store_error(error))
    }

    fn passed(&self) -> std::sync::MutexGuard<'_, Option<Passed>> {
        self.shared.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
