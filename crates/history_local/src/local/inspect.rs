//! History for operators: the newest messages, and counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use broker::HistoryLog;

use broker::{Activity, Latest};
use model::Envelope;

use super::{Local, unix_ms};
use history::{DroppedBy, HistoryStats};

/// Messages that are counted under the lock at a time.
const COUNTED: usize = 256;

/// Topics whose windows one sweep scans.
const SWEPT: usize = 4_096;

impl Local {
    /// Returns the newest messages of all topics, newest first: at most `limit`, and at most 1,024.
    pub(super) fn newest(&self, limit: usize) -> Vec<Arc<Envelope>> {
        self.state().newest.before(u64::MAX, limit.min(1_024)).cloned().collect()
    }

    /// Returns the newest messages of one topic in memory, newest first.
    pub(super) fn newest_of(&self, hash: u64, topic: &str, limit: usize) -> Latest {
        let page = self.state().windows.page(hash, topic, None, true, limit, unix_ms());
        Latest { messages: page.messages, complete: true }
    }

    /// Counts the newest messages since a time, in microseconds of the node's clock. Returns the time after which all
    /// were counted. Publishers may publish meanwhile.
    pub(super) fn count_since(
        &self,
        from_us: u64,
        messages_max: usize,
        activity: &mut Activity,
    ) -> u64 {
        let (mut before, mut counted, mut oldest_us) = (u64::MAX, 0, u64::MAX);
        loop {
            let state = self.state();
            let part = state.newest.before(before, COUNTED);
            let (mut is_end, mut passed) = (true, false);
            for message in part {
                before = message.id.offset;
                is_end = false;
                passed = message.published_us < from_us;
                if passed {
                    break;
                }
                counted += 1;
                oldest_us = message.published_us;
                activity.count(message);
            }
            if counted >= messages_max {
                return oldest_us;
            }
            if is_end || passed {
                return state.newest.complete_after_us();
            }
        }
    }

    /// Drops what is too old.
    pub(super) fn sweep_windows(&self) {
        // An import leaves ages as they were in the other process until it is complete.
        if self.0.is_coming.load(Ordering::Relaxed) {
            return;
        }
        let now_ms = self.0.clock.now_ms();
        let mut state = self.state();
        state.idempotency.set_time(now_ms, unix_ms());
        state.windows.sweep(now_ms, &|topic| self.rule(topic), SWEPT);
    }

    /// Returns counts of the present messages and of past events.
    pub(super) fn figures(&self) -> HistoryStats {
        let counts = &self.0.counts;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let cursors = self.cursors().count() as u64;
        let state = self.state();
        HistoryStats {
            messages: state.windows.messages() as u64,
            bytes: state.windows.bytes() as u64,
            session_messages: state.windows.for_sessions().messages as u64,
            session_bytes: state.windows.for_sessions().bytes as u64,
            topics: state.windows.topics() as u64,
            cursors,
            idempotency_keys: state.idempotency.len() as u64,
            published: count(&counts.published),
            repeated: count(&counts.repeated),
            unwritten: count(&counts.unwritten),
            acknowledged: count(&counts.acknowledged),
            redelivered: count(&counts.redelivered),
            dead_lettered: count(&counts.dead_lettered),
            dropped: count(&counts.dropped),
            dropped_by: match &self.0.store {
                Some(store) => {
                    let store::Dropped { messages, bytes, seconds } = store.dropped();
                    DroppedBy { messages, bytes, seconds, memory: 0 }
                }
                None => state.windows.dropped_by(),
            },
            recovered: count(&counts.recovered),
            unrecovered: count(&counts.unrecovered),
            disk_reads: count(&counts.disk_reads),
        }
    }
}
