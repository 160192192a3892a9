//! The store's counters.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::topic::Limit;

/// The upper bounds of the buckets of [`Stats::commit_us`], in microseconds. The last bucket counts longer commits.
pub const COMMIT_US: [u64; 11] =
    [500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000];

/// Messages that the limits of their topics have dropped, by the limit, without expired ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// By the number of messages.
    pub messages: u64,
    /// By their bytes.
    pub bytes: u64,
    /// By their age.
    pub seconds: u64,
}

impl Dropped {
    pub(crate) fn count(&mut self, by: Option<Limit>) {
        match by {
            Some(Limit::Messages) => self.messages += 1,
            Some(Limit::Bytes) => self.bytes += 1,
            Some(Limit::Seconds) => self.seconds += 1,
            None => {}
        }
    }
}

/// Counts of the store. Counters start at 0 when the store is opened.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Operations in the queue, without those that the writer is committing.
    pub queue_messages: usize,
    /// Their bytes.
    pub queue_bytes: usize,
    /// Reads in the queue.
    pub reads: usize,
    /// Committed transactions.
    pub commits: u64,
    /// Operations in them.
    pub ops: u64,
    /// Committed transactions by duration, in the buckets of [`COMMIT_US`].
    pub commit_us: [u64; COMMIT_US.len() + 1],
    /// The duration of the last commit, in microseconds.
    pub commit_us_last: u64,
    /// The duration of all commits together, in microseconds.
    pub commit_us_sum: u64,
    /// The duration of the slowest commit, in microseconds.
    pub commit_us_max: u64,
    /// Transactions that failed.
    pub failures: u64,
    /// Reads that panicked, which is a bug.
    pub read_panics: u64,
    /// Reads that met damage.
    pub damaged_reads: u64,
    /// Topics in which the writer has met damage. It stores nothing in them until their history is
    /// deleted.
    pub damaged_topics: u64,
    /// Why the store accepts nothing at the moment; `None` if it does.
    pub failed: Option<String>,
    /// The file's length in bytes.
    pub file_bytes: u64,
    /// Topics that have a row.
    pub topics: u64,
    /// Stored messages.
    pub messages: u64,
}

/// The atomic counters: the writer and the reader update them, and any thread may read them.
#[derive(Default)]
pub(crate) struct Counters {
    pub commits: AtomicU64,
    pub ops: AtomicU64,
    pub commit_us: [AtomicU64; COMMIT_US.len() + 1],
    pub last: AtomicU64,
    pub sum: AtomicU64,
    pub max: AtomicU64,
    pub failures: AtomicU64,
    pub read_panics: AtomicU64,
    pub damaged_reads: AtomicU64,
    pub damaged_topics: AtomicU64,
    pub topics: AtomicU64,
    pub messages: AtomicU64,
    pub dropped_messages: AtomicU64,
    pub dropped_bytes: AtomicU64,
    pub dropped_seconds: AtomicU64,
}

impl Counters {
    pub fn committed(&self, ops: usize, took: Duration) {
        let us = took.as_micros() as u64;
        self.commits.fetch_add(1, Relaxed);
        self.ops.fetch_add(ops as u64, Relaxed);
        self.commit_us[COMMIT_US.partition_point(|bound| *bound < us)].fetch_add(1, Relaxed);
        self.last.store(us, Relaxed);
        self.sum.fetch_add(us, Relaxed);
        self.max.fetch_max(us, Relaxed);
    }

    pub fn add_dropped(&self, Dropped { messages, bytes, seconds }: Dropped) {
        self.dropped_messages.fetch_add(messages, Relaxed);
        self.dropped_bytes.fetch_add(bytes, Relaxed);
        self.dropped_seconds.fetch_add(seconds, Relaxed);
    }

    pub fn dropped(&self) -> Dropped {
        Dropped {
            messages: self.dropped_messages.load(Relaxed),
            bytes: self.dropped_bytes.load(Relaxed),
            seconds: self.dropped_seconds.load(Relaxed),
        }
    }

    pub fn stats(&self) -> Stats {
        let mut commit_us = [0; COMMIT_US.len() + 1];
        for (to, from) in commit_us.iter_mut().zip(&self.commit_us) {
            *to = from.load(Relaxed);
        }
        Stats {
            commits: self.commits.load(Relaxed),
            ops: self.ops.load(Relaxed),
            commit_us,
            commit_us_last: self.last.load(Relaxed),
            commit_us_sum: self.sum.load(Relaxed),
            commit_us_max: self.max.load(Relaxed),
            failures: self.failures.load(Relaxed),
            read_panics: self.read_panics.load(Relaxed),
            damaged_reads: self.damaged_reads.load(Relaxed),
            damaged_topics: self.damaged_topics.load(Relaxed),
            topics: self.topics.load(Relaxed),
            messages: self.messages.load(Relaxed),
            ..Stats::default()
        }
    }
}
