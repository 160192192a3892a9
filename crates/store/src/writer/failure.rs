//! Handles a disk that rejects a write, until it accepts one again.

use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::{MAINTENANCE_EVERY, Writer};
use crate::batch::{Op, SweepPlan};
use crate::disk;
use crate::error::{InternalError, StoreError};
use crate::files::owner_only;
use crate::metadata::Metadata;
use crate::panics::catch_redb_panics;

/// Bytes that the disk must accept, in addition to those that it rejected, before the writer reopens the store.
const PROBE_BYTES: usize = 1 << 20;

impl Writer {
    /// Stops accepting operations until a probe succeeds.
    pub(super) fn stop_accepting(&mut self, error: &InternalError, ops: &[Op]) -> StoreError {
        let reason: Arc<str> = error.advice(self.shared.directory.dir()).into();
        tracing::error!(operations = ops.len(), error = &*reason, "the store can't write");
        self.shared.counters.failures.fetch_add(1, Relaxed);
        self.set_write_error(Some(reason.clone()));
        let bytes = ops.iter().map(Op::bytes).sum::<usize>();
        self.rejected_bytes = Some(bytes);
        self.has_backlog = false;
        self.next_maintenance = Instant::now() + MAINTENANCE_EVERY;
        // redb rejects all further work on a file after an error. Reads continue once the file is open again, which
        // needs no space.
        if let Err(error) = self.reopen() {
            tracing::error!(%error, "the store can't be opened again");
        }
        StoreError::Disk(reason)
    }

    pub(super) fn set_write_error(&self, reason: Option<Arc<str>>) {
        *self.shared.write_error.write().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    pub(super) fn reopen(&mut self) -> Result<(), InternalError> {
        let mut db = self.shared.db.write().unwrap_or_else(PoisonError::into_inner);
        // The old handle has the file's lock, so it must be dropped first.
        *db = None;
        // If this fails, reads continue all the same: redb's writes then stay in memory, and a probe tries it again
        // before the next commit.
        let is_synced = self.shared.directory.write_again().is_ok();
        let opened = self.shared.directory.try_open(self.shared.cache_bytes_max, false)?;
        // A transaction may be on disk although its commit failed. The next one must build on it,
        // or two topics would get the same number.
        let metadata = catch_redb_panics(|| Metadata::load(&opened.db))?;
        if is_synced {
            opened.disk.write_through()?;
        }
        self.metadata = metadata;
        *db = Some(opened.db);
        Ok(())
    }

    /// Checks whether the disk accepts writes again. It writes a file of the rejected size first, so that the store
    /// is not reopened in vain.
    pub(super) fn probe(&mut self, rejected_bytes: usize) {
        let probed = self.probe_disk(rejected_bytes).and_then(|()| {
            let is_open = self.shared.db().is_some();
            if self.shared.directory.has_failed_sync() {
                self.shared.directory.write_again()?;
            } else if is_open {
                return Ok(());
            }
            self.reopen()
        });
        if let Err(error) = probed {
            let reason = error.advice(self.shared.directory.dir());
            tracing::debug!(error = reason, "the store still can't write");
            self.set_write_error(Some(reason.into()));
            return;
        }
        match self.commit(&[], &SweepPlan::default(), true) {
            Ok(()) => {
                self.rejected_bytes = None;
                self.set_write_error(None);
                tracing::info!("the store writes again");
            }
            Err(error) => drop(self.stop_accepting(&error, &[])),
        }
    }

    fn probe_disk(&self, rejected_bytes: usize) -> Result<(), InternalError> {
        let file = self.shared.directory.dir().join("throng.probe");
        let probe = || {
            let mut probe = disk::open(owner_only().truncate(true), &file)?;
            let zeros = vec![0; 64 << 10];
            for _ in 0..(PROBE_BYTES + rejected_bytes).div_ceil(zeros.len()) {
                probe.write_all(&zeros)?;
            }
            probe.sync_data()
        };
        let probed = probe();
        let _ = disk::remove(&file);
        Ok(probed?)
    }
}

impl Op {
    fn bytes(&self) -> usize {
        match self {
            Op::Append(append) => append.record.len(),
            Op::Subscriptions { puts, .. } => puts.iter().map(|(_, packed)| packed.len()).sum(),
            Op::Records { puts, .. } => {
                puts.iter().flat_map(|(_, value)| value).map(|value| value.len()).sum()
            }
            Op::Events { puts, .. } => puts.iter().map(|(_, event)| event.len()).sum(),
            Op::Delete { .. } | Op::Cursor { .. } => 0,
        }
    }
}
