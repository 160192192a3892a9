//! The queue of messages that wait to be appended, bounded by number and bytes.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::batch::{self, PendingMessage};

/// The queue in front of the writer.
pub(crate) struct Queue {
    pending: Mutex<PendingMessages>,
    /// Wakes the writer.
    pub added: Notify,
    messages_max: usize,
    bytes_max: usize,
}

#[derive(Default)]
struct PendingMessages {
    items: VecDeque<PendingMessage>,
    bytes: usize,
    /// True while the writer has a batch that it has not finished.
    is_writing: bool,
    /// True while there is no connection: the queue rejects all messages.
    is_closed: bool,
}

/// Why the queue rejected a message.
pub(crate) enum NotQueued {
    Full(PendingMessage),
    Closed(PendingMessage),
}

impl Queue {
    /// Creates a queue that rejects all messages until it is opened.
    pub fn new(messages_max: usize, bytes_max: usize) -> Self {
        let pending = Mutex::new(PendingMessages { is_closed: true, ..PendingMessages::default() });
        Queue { pending, added: Notify::new(), messages_max, bytes_max }
    }

    fn lock(&self) -> MutexGuard<'_, PendingMessages> {
        // A poisoned lock has consistent content: no code panics between two changes that belong together.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message. An empty queue takes a message that is larger than the bound.
    pub fn push(&self, item: PendingMessage) -> Result<(), Box<NotQueued>> {
        let bytes = item.bytes();
        let mut pending = self.lock();
        if pending.is_closed {
            return Err(Box::new(NotQueued::Closed(item)));
        }
        let exceeds_bytes_max = pending.bytes.saturating_add(bytes) > self.bytes_max;
        if pending.items.len() >= self.messages_max
            || (exceeds_bytes_max && !pending.items.is_empty())
        {
            return Err(Box::new(NotQueued::Full(item)));
        }
        pending.items.push_back(item);
        pending.bytes += bytes;
        drop(pending);
        self.added.notify_one();
        Ok(())
    }

    /// Takes the next batch, which is empty if no message waits. The writer [finishes](Self::finish) it.
    pub fn take(&self) -> Vec<PendingMessage> {
        let mut pending = self.lock();
        let items = batch::next_batch(&mut pending.items);
        pending.bytes -= items.iter().map(PendingMessage::bytes).sum::<usize>();
        pending.is_writing = !items.is_empty();
        items
    }

    /// Called when the batch that was taken last is committed, or its publishers have an error.
    pub fn finish(&self) {
        self.lock().is_writing = false;
    }

    /// Returns true if no message waits and the writer has no batch.
    pub fn is_idle(&self) -> bool {
        let pending = self.lock();
        pending.items.is_empty() && !pending.is_writing
    }

    pub fn open(&self) {
        self.lock().is_closed = false;
    }

    /// Rejects all messages from now on, and returns those that wait.
    pub fn close(&self) -> VecDeque<PendingMessage> {
        let mut pending = self.lock();
        (pending.is_closed, pending.bytes) = (true, 0);
        std::mem::take(&mut pending.items)
    }

    /// Returns the number of waiting messages, and their bytes.
    pub fn pending(&self) -> (usize, usize) {
        let pending = self.lock();
        (pending.items.len(), pending.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::tests::item;

    #[test]
    fn the_queue_enforces_both_bounds_and_takes_nothing_while_it_is_closed() {
        let queue = Queue::new(3, 2_000);
        let push = |bytes| queue.push(item("a", None, None, bytes)).is_ok();
        assert!(!push(1));
        queue.open();
        assert!(push(5_000) && !push(1), "a large one alone");
        assert!(!queue.is_idle());
        assert_eq!((queue.take().len(), queue.pending()), (1, (0, 0)));
        assert!(!queue.is_idle(), "the writer has it");
        queue.finish();
        assert!(queue.is_idle());
        assert!(push(300) && push(300) && !push(300), "by bytes");
        assert_eq!(queue.take().len(), 2);
        assert!(push(1) && push(1) && push(1) && !push(1), "by number");
        assert_eq!((queue.close().len(), queue.pending()), (3, (0, 0)));
        assert!(!push(1));
        assert!(queue.take().is_empty());
    }
}
