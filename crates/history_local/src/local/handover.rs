//! The history on its way to another process, which goes on in the same epoch with the next offset.
//!
//! With a store, the records are what memory holds: the file itself passes from process to process
//! ([`Store::pass_on`](store::Store::pass_on)), and nothing is read from it again.

mod cursors;
mod idempotency;
mod windows;

use std::sync::Arc;

use ::handover::{Part, encode_into};
use history::TopicHash;

use super::Local;

/// Records that are written in one hold of a lock: others have their turns in between.
const PIECE: usize = 512;

/// The parts of a history that go to another process, or come from one: the topics and their messages, the
/// cursors, the deliveries that are counted, and the idempotency keys. `hash` is that of this process.
///
/// They belong together: a process that takes one takes all. Nothing may be asked of the history before
/// all are complete.
pub fn parts(history: &Local, hash: &TopicHash) -> [Arc<dyn Part>; 4] {
    [
        Arc::new(windows::HistoryPart::new(history.clone(), hash.clone())),
        Arc::new(cursors::CursorsPart(history.clone())),
        Arc::new(cursors::DeliveryCountsPart(history.clone())),
        Arc::new(idempotency::IdempotencyPart::new(history.clone(), hash.clone())),
    ]
}

impl Local {
    /// Whether nothing is under way that a hand-over would lose: no message waits for the store, no publish
    /// for a condition, and nobody for a count. With a store, it must be idle as well
    /// ([`Store::is_idle`](store::Store::is_idle)).
    pub fn is_quiet(&self) -> bool {
        let state = self.state();
        let is_quiet =
            state.writing.is_empty() && state.repeats.is_empty() && state.conditions.is_empty();
        drop(state);
        is_quiet && self.counting().is_empty()
    }
}

/// Writes a value into a buffer that is used again.
fn encoded(value: impl minicbor::Encode<()>, buffer: &mut Vec<u8>) -> &[u8] {
    buffer.clear();
    encode_into(value, buffer);
    buffer
}
