//! Records of sessions that wait to be written.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sessions::{Done, Part, Storage};
use tokio::sync::Notify;

/// The most sessions whose records wait, and about the most bytes of these records.
const SESSIONS_MAX: usize = 65_536;
const BYTES_MAX: usize = 64 << 20;

/// Callbacks that wait for all earlier records, at most: further ones get false.
const SETTLING_MAX: usize = 65_536;

/// The memory of a waiting session besides its records, in bytes.
const OVERHEAD_BYTES: usize = 256;

/// A change of the records of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionWrite {
    /// The new record of the session, or `Some(None)` if it is deleted. `None` if it stays as it is.
    pub session: Option<Option<Vec<u8>>>,
    /// The same for its progress.
    pub progress: Option<Option<Vec<u8>>>,
    /// The number of the last progress. Later progress of the process has a higher one.
    pub number: u64,
}

impl SessionWrite {
    /// Returns about the bytes of the records.
    pub fn bytes(&self) -> usize {
        let records = [&self.session, &self.progress].into_iter().flatten().flatten();
        records.map(Vec::len).sum()
    }

    /// Adds the records of an earlier change that this one does not replace.
    fn merge_earlier(&mut self, earlier: SessionWrite) {
        self.session = self.session.take().or(earlier.session);
        if self.progress.is_none() {
            (self.progress, self.number) = (earlier.progress, earlier.number);
        }
    }
}

/// The records of this node's sessions that the database does not have yet. A later record replaces one that waits.
#[derive(Default)]
pub(crate) struct SessionQueue {
    state: Mutex<State>,
    /// Wakes the driver.
    pub changed: Notify,
}

#[derive(Default)]
struct State {
    /// By the key of the session.
    waiting: HashMap<Box<str>, Waiting>,
    /// The keys of `waiting`, by their numbers.
    order: BTreeMap<u64, Box<str>>,
    /// What the driver has taken and not confirmed.
    writing: Vec<(Box<str>, Waiting)>,
    /// About the bytes of `waiting`.
    bytes: usize,
    /// The last number.
    last: u64,
    /// Callbacks for when all records up to a number are written.
    settling: VecDeque<(u64, Done)>,
    /// True when the driver has ended: nothing will be written.
    is_closed: bool,
}

/// A session whose records wait.
struct Waiting {
    /// The number of its first record that waits.
    first: u64,
    write: SessionWrite,
    dones: Vec<Done>,
}

impl Waiting {
    fn bytes(&self, key: &str) -> usize {
        OVERHEAD_BYTES + key.len() + self.write.bytes()
    }
}

impl State {
    fn draw(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn has_capacity(&self, sessions_max: usize, bytes_max: usize) -> bool {
        !self.is_closed && self.waiting.len() < sessions_max && self.bytes < bytes_max
    }

    /// Returns the number of the first record that is not written.
    fn first_unwritten(&self) -> u64 {
        let waiting = self.order.keys().next().copied();
        let writing = self.writing.iter().map(|(_, waiting)| waiting.first).min();
        waiting.into_iter().chain(writing).min().unwrap_or(u64::MAX)
    }

    /// Removes and returns the callbacks whose records are all written.
    fn take_settled(&mut self) -> Vec<Done> {
        let first = self.first_unwritten();
        let count = self.settling.partition_point(|(number, _)| *number < first);
        self.settling.drain(..count).map(|(_, done)| done).collect()
    }

    /// Adds a waiting session, whose key has no other change that waits.
    fn insert(&mut self, key: Box<str>, waiting: Waiting) {
        self.bytes += waiting.bytes(&key);
        self.order.insert(waiting.first, key.clone());
        self.waiting.insert(key, waiting);
    }

    fn remove(&mut self, key: &str) -> Option<Waiting> {
        let waiting = self.waiting.remove(key)?;
        self.bytes -= waiting.bytes(key);
        self.order.remove(&waiting.first);
        Some(waiting)
    }
}

impl SessionQueue {
    fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned lock has consistent content: no code panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number for progress that is written otherwise. It is higher than those of earlier progress.
    pub fn draw_number(&self) -> u64 {
        self.state().draw()
    }

    /// Returns the last number.
    pub fn last_number(&self) -> u64 {
        self.state().last
    }

    /// Makes later numbers higher than this one.
    pub fn continue_after(&self, number: u64) {
        let mut state = self.state();
        state.last = state.last.max(number);
    }

    /// Raises the numbers of progress that waits, and of later progress. The database has progress with numbers up to `by`.
    pub fn raise_numbers(&self, by: u64) {
        let mut state = self.state();
        state.last += by;
        let State { waiting, writing, .. } = &mut *state;
        let all = waiting.values_mut().chain(writing.iter_mut().map(|(_, waiting)| waiting));
        // The first number of an entry only orders the queue.
        all.filter(|it| it.write.progress.is_some()).for_each(|it| it.write.number += by);
    }

    /// Returns true if all records up to this number are written.
    pub fn has_written(&self, number: u64) -> bool {
        self.state().first_unwritten() > number
    }

    /// Returns changes to write, the oldest first: at most `sessions_max` of them, and about `bytes_max` bytes. They count
    /// as unwritten until [`SessionQueue::on_written`].
    pub fn take(&self, sessions_max: usize, bytes_max: usize) -> Vec<(Box<str>, SessionWrite)> {
        let mut state = self.state();
        let mut bytes = 0;
        while state.writing.len() < sessions_max && bytes < bytes_max {
            let Some(key) = state.order.values().next().cloned() else { break };
            let Some(waiting) = state.remove(&key) else { break };
            bytes += waiting.write.bytes();
            state.writing.push((key, waiting));
        }
        state.writing.iter().map(|(key, waiting)| (key.clone(), waiting.write.clone())).collect()
    }

    /// Called when the changes that were taken are written.
    pub fn on_written(&self) {
        let mut state = self.state();
        let written = std::mem::take(&mut state.writing);
        let settled = state.take_settled();
        drop(state);
        let dones = written.into_iter().flat_map(|(_, waiting)| waiting.dones);
        dones.chain(settled).for_each(|done| done(true));
    }

    /// Lets the changes that were taken wait again, because they may not be written.
    pub fn put_back(&self) {
        let mut state = self.state();
        for (key, mut earlier) in std::mem::take(&mut state.writing) {
            if let Some(later) = state.remove(&key) {
                let before = std::mem::replace(&mut earlier.write, later.write);
                earlier.write.merge_earlier(before);
                earlier.dones.extend(later.dones);
            }
            state.insert(key, earlier);
        }
    }

    /// Returns the number of sessions whose records wait.
    pub fn pending(&self) -> usize {
        let state = self.state();
        state.waiting.len() + state.writing.len()
    }

    /// Returns true if the database has all records.
    pub fn is_idle(&self) -> bool {
        self.pending() == 0
    }

    /// Rejects all records that wait, and all later ones: the driver has ended.
    pub fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        let waiting = std::mem::take(&mut state.waiting).into_values();
        let writing = std::mem::take(&mut state.writing).into_iter().map(|(_, waiting)| waiting);
        let dones: Vec<Done> = waiting.chain(writing).flat_map(|waiting| waiting.dones).collect();
        state.order.clear();
        state.bytes = 0;
        let settling = std::mem::take(&mut state.settling).into_iter().map(|(_, done)| done);
        drop(state);
        dones.into_iter().chain(settling).for_each(|done| done(false));
    }
}

impl Storage for SessionQueue {
    fn put(&self, part: Part, key: &str, value: Option<Vec<u8>>, done: Option<Done>) -> bool {
        let mut state = self.state();
        let is_waiting = state.waiting.contains_key(key);
        if state.is_closed || !is_waiting && !state.has_capacity(SESSIONS_MAX, BYTES_MAX) {
            drop(state);
            done.into_iter().for_each(|done| done(false));
            return false;
        }
        let number = state.draw();
        let mut waiting = state.remove(key).unwrap_or_else(|| Waiting {
            first: number,
            write: SessionWrite::default(),
            dones: Vec::new(),
        });
        match part {
            Part::Session => waiting.write.session = Some(value),
            Part::Progress => {
                (waiting.write.progress, waiting.write.number) = (Some(value), number);
            }
        }
        waiting.dones.extend(done);
        state.insert(key.into(), waiting);
        drop(state);
        self.changed.notify_one();
        true
    }

    fn has_capacity(&self) -> bool {
        self.state().has_capacity(SESSIONS_MAX / 2, BYTES_MAX / 2)
    }

    fn settle(&self, done: Done) {
        let mut state = self.state();
        let is_idle = state.waiting.is_empty() && state.writing.is_empty();
        if !is_idle && !state.is_closed && state.settling.len() < SETTLING_MAX {
            let last = state.last;
            return state.settling.push_back((last, done));
        }
        let is_settled = is_idle && !state.is_closed;
        drop(state);
        done(is_settled);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    type Results = Receiver<(&'static str, bool)>;

    /// Returns callbacks that send their names and results.
    fn callbacks() -> (impl Fn(&'static str) -> Option<Done>, Results) {
        let (sender, results) = channel();
        let callback = move |name| -> Option<Done> {
            let sender = sender.clone();
            Some(Box::new(move |is_written| sender.send((name, is_written)).unwrap()))
        };
        (callback, results)
    }

    fn write(session: Option<Option<&[u8]>>, progress: Option<&[u8]>, number: u64) -> SessionWrite {
        let session = session.map(|record| record.map(<[u8]>::to_vec));
        SessionWrite { session, progress: progress.map(|it| Some(it.to_vec())), number }
    }

    #[test]
    fn later_records_replace_earlier_ones_and_the_database_confirms_all() {
        let (queue, (done, results)) = (SessionQueue::default(), callbacks());
        let put = |part, key, value: &[u8], done| {
            assert!(queue.put(part, key, Some(value.to_vec()), done));
        };
        put(Part::Session, "a", b"s", done("a"));
        put(Part::Progress, "b", b"p", done("b"));
        put(Part::Progress, "a", b"1", None);
        put(Part::Progress, "a", b"2", None);
        queue.settle(done("settled").unwrap());
        assert_eq!(queue.take(1, 1_000), [("a".into(), write(Some(Some(b"s")), Some(b"2"), 4))]);
        put(Part::Progress, "a", b"3", done("a again"));
        queue.on_written();
        assert_eq!(results.try_iter().collect::<Vec<_>>(), [("a", true)]);
        let rest =
            [("b".into(), write(None, Some(b"p"), 2)), ("a".into(), write(None, Some(b"3"), 5))];
        assert_eq!(queue.take(9, 1_000), rest);
        // The connection broke meanwhile.
        assert!(queue.put(Part::Session, "a", None, None));
        queue.put_back();
        assert!(!queue.is_idle() && queue.draw_number() > 5);
        let rest = [
            ("b".into(), write(None, Some(b"p"), 2)),
            ("a".into(), write(Some(None), Some(b"3"), 5)),
        ];
        assert_eq!(queue.take(9, 1_000), rest);
        assert_eq!(results.try_iter().count(), 0);
        queue.on_written();
        assert_eq!(
            results.try_iter().collect::<Vec<_>>(),
            [("b", true), ("a again", true), ("settled", true)]
        );
        assert!(queue.is_idle() && queue.has_written(queue.last_number()));
        put(Part::Progress, "c", b"4", None);
        assert!(!queue.has_written(queue.last_number()));
        queue.raise_numbers(100);
        assert_eq!(queue.take(9, 1_000)[0].1.number, queue.last_number());
        queue.on_written();
        queue.settle(done("idle").unwrap());
        assert_eq!(results.try_recv(), Ok(("idle", true)));
    }

    #[test]
    fn the_queue_enforces_its_bounds_and_takes_nothing_when_it_is_closed() {
        let (queue, (done, results)) = (Arc::new(SessionQueue::default()), callbacks());
        let put = |key: usize, bytes, done| {
            queue.put(Part::Progress, &key.to_string(), Some(vec![0; bytes]), done)
        };
        assert!(put(0, BYTES_MAX / 2, None) && !queue.has_capacity());
        assert!(put(0, 10, None) && queue.has_capacity(), "it replaces the large one");
        assert!(put(1, BYTES_MAX, None) && !put(2, 1, done("by bytes")));
        assert!(put(1, 1, None), "one that waits may change");
        assert!((2..SESSIONS_MAX).all(|key| put(key, 1, None)));
        assert!(!put(SESSIONS_MAX, 1, done("by number")) && put(9, 1, done("waits")));
        queue.take(4, 1_000);
        queue.settle(done("settles").unwrap());
        queue.close();
        assert!(!put(1, 1, done("closed")) && !queue.has_capacity() && queue.is_idle());
        let mut refused: Vec<_> = results.try_iter().collect();
        refused.sort_unstable();
        let expected = ["by bytes", "by number", "closed", "settles", "waits"];
        assert_eq!(refused, expected.map(|name| (name, false)));
    }
}
