//! Retained messages of MQTT: each node has all of them in memory, and the database has them for all nodes.
//!
//! A message is retained in memory first, and its row waits to be written. The driver of retained messages has a session of
//! its own: it writes rows, and follows those of other nodes. A row that is not written when the node ends is lost. An MQTT
//! client with QoS 1 or 2 then has no confirmation; a caller of the API may have its reply.

mod driver;
mod session;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use history::TopicHash;
use sessions::{LocalRetained, RetainedQueue};
use tokio::sync::Notify;

pub(crate) use driver::run;
pub(crate) use session::{RETAIN, retain_rows};

/// The retained messages in the memory of this node.
#[derive(Clone)]
pub struct RetainedMemory {
    /// The messages.
    pub messages: Arc<LocalRetained>,
    /// The hash of topics' names that all indexes of the node share.
    pub hash: TopicHash,
}

/// What the driver shares with the rest of the history.
pub(crate) struct SharedRetained {
    /// Rows that wait to be written.
    pub queue: Arc<RetainedQueue>,
    /// Wakes the driver: a row waits, or another node has written one.
    changed: Arc<Notify>,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Default)]
struct State {
    /// The last change in the database that memory has.
    change: u64,
    /// True if memory may have other messages than the table up to this change: all rows must be read.
    is_doubtful: bool,
    /// True once a session was begun.
    had_session: bool,
    /// True if messages in memory may lack a row, because a process of a version without rows has passed them on.
    may_lack_rows: bool,
}

impl SharedRetained {
    pub fn new() -> Self {
        let changed = Arc::new(Notify::new());
        let wakes = changed.clone();
        let queue = Arc::new(RetainedQueue::new(Box::new(move || wakes.notify_one())));
        SharedRetained { queue, changed, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic under the lock leaves a good value.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the driver.
    pub fn wake(&self) {
        self.changed.notify_one();
    }

    /// Returns the last change in the database that memory has; `None` if all rows must be read.
    fn change(&self) -> Option<u64> {
        let state = self.state();
        (!state.is_doubtful).then_some(state.change)
    }

    fn set_change(&self, change: u64) {
        let mut state = self.state();
        (state.change, state.is_doubtful) = (change, false);
    }

    /// Called at the begin of a session. The database may have lost changes since the one before.
    fn begin_session(&self) {
        let mut state = self.state();
        state.is_doubtful |= state.had_session;
        state.had_session = true;
    }

    /// Called when another process passes on its messages. `has_rows` says whether the table has them.
    pub fn on_handover(&self, has_rows: bool) {
        let mut state = self.state();
        (state.is_doubtful, state.may_lack_rows) = (true, !has_rows);
    }

    /// Returns true if messages in memory may lack a row.
    pub fn may_lack_rows(&self) -> bool {
        self.state().may_lack_rows
    }

    /// Returns whether messages in memory may lack a row, once.
    fn take_may_lack_rows(&self) -> bool {
        std::mem::take(&mut self.state().may_lack_rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rows_are_read_after_a_handover_and_after_a_lost_session() {
        let retained = SharedRetained::new();
        retained.set_change(7);
        assert_eq!(retained.change(), Some(7));
        retained.on_handover(true);
        assert!(retained.change().is_none() && !retained.take_may_lack_rows());
        retained.set_change(9);
        retained.begin_session();
        assert_eq!(retained.change(), Some(9), "all rows were read before the first session");
        retained.begin_session();
        assert_eq!(retained.change(), None);
        retained.on_handover(false);
        assert!(retained.take_may_lack_rows() && !retained.take_may_lack_rows());
    }
}
