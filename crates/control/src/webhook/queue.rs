//! Where questions wait: first in the intake, into which shards put them, then in their lane.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use shard::{Ask, Full, Verdict};
use tokio::sync::Notify;

use super::body;
use super::failure::Failure;

/// No event joins a request that has so many bytes: servers refuse large bodies, often from 1 MiB.
const REQUEST_BYTES_MAX: usize = 512 << 10;

/// What is counted; any thread may write.
#[derive(Default)]
pub(super) struct Counts {
    pub asked: AtomicU64,
    pub ok: AtomicU64,
    pub error: AtomicU64,
    pub failed: [AtomicU64; Failure::ALL.len()],
    pub waiting: AtomicUsize,
}

/// A question that was taken and is owed an answer: dropped without one, it is told that the node
/// shuts down.
pub(super) struct Question {
    pub ask: Ask,
    asked: Instant,
    counts: Arc<Counts>,
    answered: bool,
}

impl Question {
    /// Passes on what the application said.
    pub fn answer(self, verdict: Verdict) {
        let count = if verdict.ok { &self.counts.ok } else { &self.counts.error };
        count.fetch_add(1, Ordering::Relaxed);
        self.tell(verdict);
    }

    /// Says why the application said nothing.
    pub fn fail(self, failure: Failure) {
        self.counts.failed[failure as usize].fetch_add(1, Ordering::Relaxed);
        self.tell(failure.verdict());
    }

    /// How long it has waited.
    pub fn age(&self) -> Duration {
        self.asked.elapsed()
    }

    fn tell(mut self, verdict: Verdict) {
        self.end(verdict);
    }

    fn end(&mut self, verdict: Verdict) {
        self.answered = true;
        self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
        let reply = std::mem::replace(&mut self.ask.reply, Box::new(|_| ()));
        reply(verdict);
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        if !self.answered {
            self.counts.failed[Failure::Stopped as usize].fetch_add(1, Ordering::Relaxed);
            self.end(Failure::Stopped.verdict());
        }
    }
}

/// The way from the shards to the control thread.
pub(super) struct Intake {
    events_max: usize,
    counts: Arc<Counts>,
    state: Mutex<State>,
    /// Told when there is something to take, and at the end.
    pub ready: Notify,
}

struct State {
    open: bool,
    questions: VecDeque<Question>,
}

impl Intake {
    /// At most so many questions may be without an answer at a time.
    pub fn new(events_max: usize, counts: Arc<Counts>) -> Self {
        let state = Mutex::new(State { open: true, questions: VecDeque::new() });
        Intake { events_max, counts, state, ready: Notify::new() }
    }

    /// Puts a question to the others; refuses it at the limit, and after the end.
    pub fn put(&self, ask: Ask) -> Result<(), Full> {
        let mut state = self.lock();
        // Only here, under the lock, does the number grow.
        if !state.open || self.counts.waiting.load(Ordering::Relaxed) >= self.events_max {
            self.counts.failed[Failure::Full as usize].fetch_add(1, Ordering::Relaxed);
            return Err(Full);
        }
        self.counts.waiting.fetch_add(1, Ordering::Relaxed);
        self.counts.asked.fetch_add(1, Ordering::Relaxed);
        let (asked, counts) = (Instant::now(), self.counts.clone());
        state.questions.push_back(Question { ask, asked, counts, answered: false });
        // Whoever takes takes all, so the first alone must wake them: a wake-up is a system call.
        let first = state.questions.len() == 1;
        drop(state);
        if first {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// All that came since the last time; `None` after the end.
    pub fn take(&self) -> Option<VecDeque<Question>> {
        let mut state = self.lock();
        state.open.then(|| std::mem::take(&mut state.questions))
    }

    /// Refuses whatever comes from now on, and fails what is here.
    pub fn close(&self) {
        let mut state = self.lock();
        state.open = false;
        let questions = std::mem::take(&mut state.questions);
        drop(state);
        // Their replies are called here, without the lock.
        drop(questions);
        self.ready.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a question is to be asked: `None` is the place for all, whatever it is by then.
pub(super) type Place = Option<Arc<str>>;

/// Which of so many lanes a question goes to: the same for all of a connection at a place.
pub(super) fn lane_of(ask: &Ask, lanes: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    (&ask.url, ask.connection).hash(&mut hasher);
    (hasher.finish() % lanes.max(1) as u64) as usize
}

/// Questions that wait for the request before them, by place; the places have their turns.
#[derive(Default)]
pub(super) struct Lane {
    places: VecDeque<(Place, VecDeque<Question>)>,
}

impl Lane {
    /// Puts a question behind the others for its place.
    pub fn put(&mut self, question: Question) {
        let place = &question.ask.url;
        match self.places.iter_mut().find(|(known, _)| known == place) {
            Some((_, questions)) => questions.push_back(question),
            None => self.places.push_back((place.clone(), [question].into())),
        }
    }

    /// The questions of the next request, at most so many, and their place.
    pub fn take(&mut self, events_max: usize) -> Option<(Place, Vec<Question>)> {
        let (place, mut questions) = self.places.pop_front()?;
        let mut bytes = 0;
        let fitting = questions.iter().take(events_max.max(1)).take_while(|question| {
            let room = bytes < REQUEST_BYTES_MAX;
            bytes += body::event_bytes(&question.ask);
            room
        });
        let fitting = fitting.count();
        let batch = questions.drain(..fitting).collect();
        if !questions.is_empty() {
            // A place with much to ask, or one that hangs, doesn't keep the others from a turn.
            self.places.push_back((place.clone(), questions));
        }
        Some((place, batch))
    }
}

#[cfg(test)]
mod tests {
    use wire::Data;

    use super::super::tests::ask;
    use super::*;

    /// A question that is no one's.
    fn question(slot: u32, url: Option<&str>) -> Question {
        let mut ask = ask(slot);
        ask.url = url.map(Into::into);
        let counts = Arc::new(Counts::default());
        counts.waiting.store(1, Ordering::Relaxed);
        Question { ask, asked: Instant::now(), counts, answered: false }
    }

    fn slots(batch: Option<(Place, Vec<Question>)>) -> Vec<u32> {
        batch.unwrap().1.iter().map(|question| question.ask.connection.slot).collect()
    }

    #[test]
    fn what_waits_for_a_place_goes_together_in_order() {
        let mut lane = Lane::default();
        for (slot, url) in
            [(1, None), (2, Some("b")), (3, None), (4, Some("b")), (5, None), (6, None)]
        {
            lane.put(question(slot, url));
        }
        assert_eq!(slots(lane.take(3)), [1, 3, 5]);
        assert_eq!(slots(lane.take(3)), [2, 4]);
        assert_eq!(slots(lane.take(3)), [6]);
        assert!(lane.take(3).is_none());
    }

    #[test]
    fn a_request_ends_before_it_is_large_but_has_one_event_at_least() {
        let mut lane = Lane::default();
        for slot in 0..4 {
            let mut question = question(slot, None);
            question.ask.payload = Data::Text("x".repeat(REQUEST_BYTES_MAX / 2).into());
            lane.put(question);
        }
        assert_eq!(slots(lane.take(100)), [0, 1]);
        assert_eq!(slots(lane.take(0)), [2]);
        assert_eq!(slots(lane.take(100)), [3]);
    }

    #[test]
    fn a_connection_keeps_its_lane() {
        let used: std::collections::BTreeSet<_> = (0..64).map(|n| lane_of(&ask(n), 4)).collect();
        assert_eq!(used.len(), 4);
        assert!((0..64).all(|n| lane_of(&ask(n), 4) == lane_of(&ask(n), 4)));
    }

    #[test]
    fn a_question_is_answered_once_whatever_happens_to_it() {
        let (sender, told) = std::sync::mpsc::channel();
        let mut questions = [question(1, None), question(2, None), question(3, None)];
        for question in &mut questions {
            let sender = sender.clone();
            question.ask.reply = Box::new(move |verdict| sender.send(verdict).unwrap());
        }
        let [first, second, third] = questions;
        let said = Verdict { ok: true, response: "1".into() };
        first.answer(said.clone());
        second.fail(Failure::Timeout);
        drop(third);
        drop(sender);
        let want = [said, Failure::Timeout.verdict(), Failure::Stopped.verdict()];
        assert_eq!(told.into_iter().collect::<Vec<_>>(), want);
    }
}
