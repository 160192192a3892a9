//! Passes the history to another process, which goes on in the same epoch with the next offset.
//!
//! With a store, the records contain the state of memory: the file itself passes from process to process
//! ([`Store::pass_on`](store::Store::pass_on)), and is not read again.

mod cursors;
mod idempotency;
mod windows;

use std::sync::Arc;

use ::handover::{Part, encode_into};
use history::TopicHash;

use super::Local;

/// Records that are exported under a lock at a time: other threads get their turns in between.
const PIECE: usize = 512;

/// Returns the parts of a history for a handover: the topics and their messages, the cursors, the counts of
/// deliveries, and the idempotency keys. `hash` is that of this process.
///
/// They belong together: a process that imports one imports all. No call may read the history before all are
/// complete.
pub fn parts(history: &Local, hash: &TopicHash) -> [Arc<dyn Part>; 4] {
    [
        Arc::new(windows::HistoryPart::new(history.clone(), hash.clone())),
        Arc::new(cursors::CursorsPart(history.clone())),
        Arc::new(cursors::DeliveryCountsPart(history.clone())),
        Arc::new(idempotency::IdempotencyPart::new(history.clone(), hash.clone())),
    ]
}

impl Local {
    /// Returns true if nothing is pending that a handover would lose: no message waits for the store, no publish for
    /// a condition, and no request for a count. With a store, it must be idle as well
    /// ([`Store::is_idle`](store::Store::is_idle)).
    pub fn is_quiet(&self) -> bool {
        let state = self.state();
        let is_quiet =
            state.writing.is_empty() && state.repeats.is_empty() && state.conditions.is_empty();
        drop(state);
        is_quiet && self.counting().is_empty()
    }
}

/// Encodes a value into a reusable buffer.
fn encoded(value: impl minicbor::Encode<()>, buffer: &mut Vec<u8>) -> &[u8] {
    buffer.clear();
    encode_into(value, buffer);
    buffer
}
