//! The queue into a shard from other threads, under a short lock and with one wake-up.

use std::mem;

use crate::sync::{Mutex, PoisonError};

/// Wakes the owner of a mailbox. Called after the first push since the owner's last take.
pub trait Wake {
    /// Makes the owner's next wait return at once. Must not block.
    fn wake(&self);
}

/// A queue with many senders and one owner.
///
/// The owner must clear its wake-up (read the event descriptor) *before* it takes: a push that finds the queue
/// empty wakes, so a push after the take wakes again. Senders call [`Mailbox::has_capacity`] first, so that the
/// queue stays below `items_max`.
pub struct Mailbox<T, W> {
    queue: Mutex<Vec<T>>,
    items_max: usize,
    wake: W,
}

impl<T, W: Wake> Mailbox<T, W> {
    /// Creates an empty mailbox.
    pub fn new(items_max: usize, wake: W) -> Self {
        Mailbox { queue: Mutex::new(Vec::new()), items_max, wake }
    }

    /// Appends an item. Wakes the owner if this is the first item since the last take.
    pub fn push(&self, item: T) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let first = queue.is_empty();
        queue.push(item);
        drop(queue);
        if first {
            self.wake.wake();
        }
    }

    /// False when the owner is `items_max` items behind.
    pub fn has_capacity(&self) -> bool {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).len() < self.items_max
    }

    /// True when the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// The number of items in the queue.
    pub fn len(&self) -> usize {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Exchanges the queue for `empty`, an empty vector whose memory is reused.
    pub fn take(&self, empty: Vec<T>) -> Vec<T> {
        debug_assert!(empty.is_empty());
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        mem::replace(&mut *queue, empty)
    }

    /// Returns the owner's waker.
    pub fn waker(&self) -> &W {
        &self.wake
    }
}
