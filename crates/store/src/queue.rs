//! The queue in front of each of the store's threads, bounded by number and bytes.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A bounded queue with many producers and one consumer.
pub(crate) struct Queue<T> {
    inner: Mutex<Inner<T>>,
    wake: Condvar,
    count_max: usize,
    bytes_max: usize,
}

struct Inner<T> {
    items: VecDeque<(T, usize)>,
    bytes: usize,
    consumer_waits: bool,
    /// True while the consumer works on the items that it took last.
    is_working: bool,
    state: State,
}

/// The state of a queue, which decides whether it accepts items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Open,
    /// The queue accepts nothing any more: the consumer ends when it is empty.
    Closed,
    /// The queue accepts nothing for now: the consumer ends when it is empty, and another one comes.
    Away,
}

/// Why the queue rejected an item.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PushError {
    Full,
    Closed,
    Away,
}

/// The items that the consumer took.
pub(crate) struct Taken<T> {
    pub items: Vec<T>,
    /// True if the queue is empty, and not open.
    pub is_finished: bool,
}

impl<T> Queue<T> {
    pub fn new(count_max: usize, bytes_max: usize) -> Self {
        let inner = Inner {
            items: VecDeque::new(),
            bytes: 0,
            consumer_waits: false,
            is_working: false,
            state: State::Open,
        };
        Queue { inner: Mutex::new(inner), wake: Condvar::new(), count_max, bytes_max }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        // No code in here panics between two changes that belong together, so a poisoned lock is
        // safe to use.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an item. An item that is larger than `bytes_max` fits only into an empty queue.
    pub fn push(&self, item: T, bytes: usize) -> Result<(), PushError> {
        let mut inner = self.lock();
        match inner.state {
            State::Open => {}
            State::Closed => return Err(PushError::Closed),
            State::Away => return Err(PushError::Away),
        }
        let exceeds_bytes_max = inner.bytes.saturating_add(bytes) > self.bytes_max;
        if inner.items.len() >= self.count_max || (exceeds_bytes_max && !inner.items.is_empty()) {
            return Err(PushError::Full);
        }
        inner.items.push_back((item, bytes));
        inner.bytes += bytes;
        let consumer_waits = std::mem::take(&mut inner.consumer_waits);
        drop(inner);
        if consumer_waits {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Takes at least one item, and more up to both limits. Waits for the first one until
    /// `deadline`.
    pub fn take(&self, count_max: usize, bytes_max: usize, deadline: Option<Instant>) -> Taken<T> {
        let mut inner = self.lock();
        inner.is_working = false;
        while inner.items.is_empty() && inner.state == State::Open {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break;
            }
            inner.consumer_waits = true;
            inner = match left {
                Some(left) => {
                    let waited = self.wake.wait_timeout(inner, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.wake.wait(inner).unwrap_or_else(PoisonError::into_inner),
            };
            inner.consumer_waits = false;
        }
        let (mut items, mut bytes) = (Vec::new(), 0);
        while let Some((_, size)) = inner.items.front() {
            if !items.is_empty() && (items.len() >= count_max || bytes + size > bytes_max) {
                break;
            }
            let Some((item, size)) = inner.items.pop_front() else { break };
            bytes += size;
            items.push(item);
        }
        inner.bytes -= bytes;
        inner.is_working = !items.is_empty();
        Taken { is_finished: inner.state != State::Open && items.is_empty(), items }
    }

    /// Opens or closes the queue. Pushes fail in all states but [`State::Open`].
    pub fn set(&self, state: State) {
        self.lock().state = state;
        self.wake.notify_all();
    }

    /// Returns the state of the queue.
    pub fn state(&self) -> State {
        self.lock().state
    }

    /// Returns true if no item waits, and the consumer has finished all that it took.
    pub fn is_idle(&self) -> bool {
        let inner = self.lock();
        inner.items.is_empty() && !inner.is_working
    }

    /// Returns true if half of both bounds is free.
    pub fn is_half_empty(&self) -> bool {
        let inner = self.lock();
        inner.items.len() <= self.count_max / 2 && inner.bytes <= self.bytes_max / 2
    }

    /// Returns the number of waiting items, and their bytes.
    pub fn waiting(&self) -> (usize, usize) {
        let inner = self.lock();
        (inner.items.len(), inner.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_enforces_both_bounds_and_preserves_order() {
        let queue = Queue::new(3, 10);
        assert_eq!(queue.push('x', 99), Ok(()), "a large one alone");
        assert_eq!(queue.push('a', 1), Err(PushError::Full));
        assert_eq!(queue.take(9, 9, None).items, ['x']);
        for item in ['a', 'b', 'c'] {
            assert_eq!(queue.push(item, 3), Ok(()));
        }
        assert_eq!(queue.push('d', 0), Err(PushError::Full));
        assert_eq!(queue.waiting(), (3, 9));
        assert!(!queue.is_half_empty());
        assert_eq!(queue.take(9, 6, None).items, ['a', 'b']);
        assert!(queue.is_half_empty());
        assert_eq!(queue.push('e', 7), Ok(()));
        assert!(!queue.is_half_empty(), "by bytes");
        assert_eq!(queue.push('f', 1), Err(PushError::Full));
        queue.set(State::Closed);
        assert_eq!(queue.push('g', 0), Err(PushError::Closed));
        assert_eq!(queue.take(1, 9, None).items, ['c']);
        let taken = queue.take(9, 9, None);
        assert!(!taken.is_finished && taken.items == ['e']);
        assert!(queue.take(9, 9, None).is_finished);
    }

    #[test]
    fn a_queue_is_idle_when_the_consumer_comes_back_from_the_last_item() {
        let queue = Queue::new(3, 10);
        assert!(queue.is_idle());
        queue.push('a', 1).unwrap();
        assert!(!queue.is_idle());
        assert_eq!(queue.take(9, 9, None).items, ['a']);
        assert!(!queue.is_idle(), "it is worked on");
        assert!(queue.take(9, 9, Some(Instant::now())).items.is_empty());
        assert!(queue.is_idle());
        queue.set(State::Away);
        assert_eq!(queue.push('b', 1), Err(PushError::Away));
        assert!(queue.take(1, 9, None).is_finished);
        queue.set(State::Open);
        assert_eq!(queue.push('c', 1), Ok(()));
        assert_eq!(queue.take(1, 9, None).items, ['c']);
    }

    #[test]
    fn take_returns_at_its_deadline_or_after_a_push() {
        let queue = Queue::<u8>::new(3, 10);
        let taken = queue.take(1, 1, Some(Instant::now() + Duration::from_millis(5)));
        assert!(taken.items.is_empty() && !taken.is_finished);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| queue.take(1, 1, None).items);
            std::thread::sleep(Duration::from_millis(10));
            queue.push(7, 1).unwrap();
            assert_eq!(waiting.join().unwrap(), [7]);
        });
    }
}
