//! Writes to a table of retained messages that several nodes share.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use model::Name;

use crate::contract::Done;

/// Callbacks that wait, at most: further ones get false.
const SETTLING_MAX: usize = 65_536;

/// The most topics whose rows must be read.
const UNVERIFIED_MAX: usize = 65_536;

/// Wakes the thread that writes. It must not block.
pub type Wake = Box<dyn Fn() + Send + Sync>;

/// A write of a topic's row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetainedWrite {
    /// The record of the message; `None` if the topic has none any more.
    pub record: Option<Vec<u8>>,
    /// When the message expires, in milliseconds since 1970.
    pub expires_ms: Option<u64>,
    /// The offset of the message if all nodes get it from one log, and so each of them writes it. It changes no row
    /// that has a later offset.
    pub log_offset: Option<u64>,
    /// True if it changes no row that is there. With `log_offset` it changes earlier rows, and the message of that offset
    /// replaces it.
    pub yields: bool,
}

/// The writes of this node that the table does not have yet. A later write of a topic replaces one that waits.
pub struct RetainedQueue {
    state: Mutex<State>,
    wake: Wake,
}

#[derive(Default)]
struct State {
    /// By topic, with the number of the topic's first write that waits.
    waiting: HashMap<Name, (u64, RetainedWrite)>,
    /// The topics of `waiting`, by their numbers.
    order: BTreeMap<u64, Name>,
    /// Writes that the thread has taken and not confirmed.
    writing: HashMap<Name, (u64, RetainedWrite)>,
    /// The last number.
    last: u64,
    /// Callbacks for when all writes up to a number are in the table.
    settling: VecDeque<(u64, Done)>,
    /// Topics whose rows must be read, since [`RetainedQueue::on_verified`] was called.
    unverified: HashSet<Name>,
    /// Topics of before that call.
    verifying: HashSet<Name>,
}

impl State {
    /// Removes and returns the callbacks whose writes are all in the table.
    fn take_settled(&mut self) -> Vec<Done> {
        let waiting = self.order.keys().next().copied();
        let writing = self.writing.values().map(|(number, _)| *number).min();
        let first = waiting.into_iter().chain(writing).min().unwrap_or(u64::MAX);
        let count = self.settling.partition_point(|(number, _)| *number < first);
        self.settling.drain(..count).map(|(_, done)| done).collect()
    }
}

impl RetainedQueue {
    /// Makes an empty queue.
    pub fn new(wake: Wake) -> Self {
        RetainedQueue { state: Mutex::default(), wake }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic under the lock leaves a good value.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a write.
    pub(super) fn push(&self, topic: &Name, write: RetainedWrite) {
        let mut state = self.state();
        if write.yields
            && write.log_offset.is_none()
            && (state.waiting.contains_key(topic) || state.writing.contains_key(topic))
        {
            return;
        }
        match state.waiting.get_mut(topic) {
            // The log may be delivered again.
            Some((_, waiting))
                if write.log_offset.is_some() && waiting.log_offset > write.log_offset => {}
            Some((_, waiting)) => *waiting = write,
            None => {
                state.last += 1;
                let number = state.last;
                state.waiting.insert(topic.clone(), (number, write));
                state.order.insert(number, topic.clone());
            }
        }
        drop(state);
        (self.wake)();
    }

    /// Calls `done` with true once all writes of before are in the table. Until then it waits, however long the table is
    /// away. If too many wait, it gets false.
    pub(super) fn settle(&self, done: Done) {
        let mut state = self.state();
        if state.settling.len() >= SETTLING_MAX {
            drop(state);
            return done(false);
        }
        let number = state.last;
        state.settling.push_back((number, done));
        let settled = state.take_settled();
        drop(state);
        settled.into_iter().for_each(|done| done(true));
    }

    /// Notes that memory has a message of a topic that the table may not have. Returns false if there are too many such
    /// topics.
    pub(super) fn note_unverified(&self, topic: &Name) -> bool {
        let mut state = self.state();
        if state.unverified.len() + state.verifying.len() >= UNVERIFIED_MAX {
            return false;
        }
        state.unverified.insert(topic.clone());
        true
    }

    /// Returns true if memory has a message of the topic that the table may not have.
    pub(super) fn is_unverified(&self, topic: &str) -> bool {
        let state = self.state();
        state.unverified.contains(topic) || state.verifying.contains(topic)
    }

    /// Returns the topics whose rows must be read: they were noted before the last call of [`on_verified`](Self::on_verified).
    pub fn topics_to_verify(&self) -> Vec<Name> {
        self.state().verifying.iter().cloned().collect()
    }

    /// Called some seconds after the last time, when the rows of [`topics_to_verify`](Self::topics_to_verify) were applied.
    pub fn on_verified(&self) {
        let mut state = self.state();
        state.verifying = std::mem::take(&mut state.unverified);
    }

    /// Returns true if a write of the topic is not confirmed yet.
    pub(super) fn is_pending(&self, topic: &str) -> bool {
        let state = self.state();
        state.waiting.contains_key(topic) || state.writing.contains_key(topic)
    }

    /// Returns how many topics have a write that is not in the table yet.
    pub fn pending(&self) -> usize {
        let state = self.state();
        let only_writing = |topic: &&Name| !state.waiting.contains_key(*topic);
        state.waiting.len() + state.writing.keys().filter(only_writing).count()
    }

    /// Returns true if all writes are in the table.
    pub fn is_idle(&self) -> bool {
        let state = self.state();
        state.waiting.is_empty() && state.writing.is_empty()
    }

    /// Takes the first writes, each of another topic: at most so many, and no more once their records have so many
    /// bytes. [`written`](Self::written) or [`put_back`](Self::put_back) comes next.
    pub fn take(&self, writes_max: usize, bytes_max: usize) -> Vec<(Name, RetainedWrite)> {
        let mut state = self.state();
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while taken.len() < writes_max && bytes < bytes_max {
            let Some((_, topic)) = state.order.pop_first() else { break };
            let Some((number, write)) = state.waiting.remove(&topic) else { continue };
            bytes += write.record.as_ref().map_or(0, Vec::len);
            state.writing.insert(topic.clone(), (number, write.clone()));
            taken.push((topic, write));
        }
        taken
    }

    /// Called when the table has all writes that were taken.
    pub fn written(&self) {
        let mut state = self.state();
        state.writing.clear();
        let settled = state.take_settled();
        drop(state);
        settled.into_iter().for_each(|done| done(true));
    }

    /// Called when the table may not have the writes that were taken: they wait again, before all others.
    pub fn put_back(&self) {
        let mut state = self.state();
        for (topic, (number, write)) in std::mem::take(&mut state.writing) {
            let write = match state.waiting.remove(&topic) {
                Some((later, waiting)) => {
                    state.order.remove(&later);
                    waiting
                }
                None => write,
            };
            state.waiting.insert(topic.clone(), (number, write));
            state.order.insert(number, topic);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    fn write(text: &str) -> RetainedWrite {
        RetainedWrite { record: Some(text.into()), ..RetainedWrite::default() }
    }

    fn queue() -> RetainedQueue {
        RetainedQueue::new(Box::new(|| ()))
    }

    fn taken(queue: &RetainedQueue, max: usize) -> Vec<(String, String)> {
        let text = |write: RetainedWrite| String::from_utf8(write.record.unwrap()).unwrap();
        let taken = queue.take(max, usize::MAX).into_iter();
        taken.map(|(topic, write)| (topic.to_string(), text(write))).collect()
    }

    fn pair(topic: &str, text: &str) -> (String, String) {
        (topic.into(), text.into())
    }

    #[test]
    fn a_later_write_of_a_topic_replaces_one_that_waits_and_keeps_its_turn() {
        let queue = queue();
        [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1")]
            .iter()
            .for_each(|(topic, text)| queue.push(&Name::from(*topic), write(text)));
        queue.push(&"a".into(), RetainedWrite { yields: true, ..write("old") });
        assert_eq!(queue.pending(), 3);
        assert_eq!(taken(&queue, 2), [pair("a", "2"), pair("b", "1")]);
        assert!(queue.is_pending("a") && queue.is_pending("c") && !queue.is_pending("d"));
        queue.push(&"a".into(), write("3"));
        assert_eq!(queue.pending(), 3);
        // The table may not have them: they come again, but for the one that a later one replaces.
        queue.put_back();
        assert_eq!(taken(&queue, 9), [pair("a", "3"), pair("b", "1"), pair("c", "1")]);
        queue.written();
        assert!(queue.is_idle() && !queue.is_pending("a"));
    }

    #[test]
    fn a_batch_ends_once_it_has_enough_bytes() {
        let queue = queue();
        ["a", "b", "c"].iter().for_each(|topic| queue.push(&Name::from(*topic), write("1234")));
        assert_eq!(queue.take(9, 5).len(), 2);
        queue.written();
        assert_eq!(queue.take(9, 1).len(), 1, "one in any case");
    }

    #[test]
    fn what_must_be_in_the_table_is_settled_when_it_is_there() {
        let queue = queue();
        let settled = Arc::new(AtomicUsize::new(0));
        let settle = || {
            let settled = settled.clone();
            queue.settle(Box::new(move |is_stored| {
                assert!(is_stored);
                settled.fetch_add(1, Relaxed);
            }));
        };
        settle();
        assert_eq!(settled.load(Relaxed), 1, "nothing waits");
        queue.push(&"a".into(), write("1"));
        settle();
        queue.push(&"b".into(), write("1"));
        settle();
        assert_eq!(taken(&queue, 1), [pair("a", "1")]);
        // The next write of the topic waits behind the second callback.
        queue.push(&"a".into(), write("2"));
        assert_eq!(settled.load(Relaxed), 1);
        queue.put_back();
        assert_eq!(settled.load(Relaxed), 1);
        assert_eq!(taken(&queue, 1), [pair("a", "2")]);
        queue.written();
        assert_eq!(settled.load(Relaxed), 2);
        assert_eq!(taken(&queue, 1), [pair("b", "1")]);
        queue.written();
        assert_eq!(settled.load(Relaxed), 3);
    }

    #[test]
    fn topics_are_verified_one_turn_later() {
        let queue = queue();
        assert!(queue.note_unverified(&"a".into()));
        assert!(queue.topics_to_verify().is_empty());
        queue.on_verified();
        queue.note_unverified(&"b".into());
        assert_eq!(queue.topics_to_verify(), ["a"]);
        queue.on_verified();
        assert_eq!(queue.topics_to_verify(), ["b"]);
        let taken = (0..UNVERIFIED_MAX)
            .filter(|n| queue.note_unverified(&Name::from(n.to_string().as_str())));
        assert_eq!(taken.count(), UNVERIFIED_MAX - 1);
    }

    #[test]
    fn callbacks_have_a_limit() {
        let queue = queue();
        queue.push(&"a".into(), write("1"));
        (0..SETTLING_MAX).for_each(|_| queue.settle(Box::new(|is_stored| assert!(is_stored))));
        queue.settle(Box::new(|is_stored| assert!(!is_stored)));
        queue.take(1, 1);
        queue.written();
        queue.settle(Box::new(|is_stored| assert!(is_stored)));
    }

    #[test]
    fn a_write_wakes_the_thread() {
        let woken = Arc::new(AtomicUsize::new(0));
        let count = woken.clone();
        let queue = RetainedQueue::new(Box::new(move || _ = count.fetch_add(1, Relaxed)));
        queue.push(&"a".into(), write("1"));
        assert_eq!(woken.load(Relaxed), 1);
    }
}
