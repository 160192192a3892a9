//! The intake, into which shards put their questions, and what each question is owed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shard::{Ask, Full, Verdict};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::failure::Failure;
use super::{Fixed, body};

/// What is counted; any thread may write.
#[derive(Default)]
pub(super) struct Counts {
    pub asked: AtomicU64,
    pub ok: AtomicU64,
    pub error: AtomicU64,
    pub failed: [AtomicU64; Failure::ALL.len()],
    pub waiting: AtomicUsize,
    /// What those hold in memory that wait; see [`body::held_bytes`].
    pub waiting_bytes: AtomicUsize,
}

/// A question that was taken and is owed an answer: dropped without one, it is told that the node
/// shuts down.
pub(super) struct Question {
    pub ask: Ask,
    /// When a shard put it into the intake.
    pub asked: Instant,
    bytes: usize,
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
        self.counts.waiting_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
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
    bytes_max: usize,
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
    /// Keeps to the queue's bounds.
    pub fn new(fixed: &Fixed, counts: Arc<Counts>) -> Self {
        let state = Mutex::new(State { open: true, questions: VecDeque::new() });
        Intake {
            events_max: fixed.queue_events_max,
            bytes_max: fixed.queue_bytes_max,
            counts,
            state,
            ready: Notify::new(),
        }
    }

    /// Puts a question to the others; refuses it at the limits, and after the end.
    pub fn put(&self, ask: Ask) -> Result<(), Full> {
        let bytes = body::held_bytes(&ask);
        let mut state = self.lock();
        if !state.open || !self.has_room(bytes) {
            self.counts.failed[Failure::Full as usize].fetch_add(1, Ordering::Relaxed);
            return Err(Full);
        }
        self.counts.waiting.fetch_add(1, Ordering::Relaxed);
        self.counts.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.counts.asked.fetch_add(1, Ordering::Relaxed);
        // Under the lock, so that the oldest come first.
        let (asked, counts) = (Instant::now(), self.counts.clone());
        state.questions.push_back(Question { ask, asked, bytes, counts, answered: false });
        // Whoever takes takes all, so the first alone must wake them: a wake-up is a system call.
        let first = state.questions.len() == 1;
        drop(state);
        if first {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// To be called under the lock, since the numbers grow only there.
    fn has_room(&self, bytes: usize) -> bool {
        let waiting = self.counts.waiting.load(Ordering::Relaxed);
        let held = self.counts.waiting_bytes.load(Ordering::Relaxed);
        // Alone it is taken however large it is: else it could never be asked.
        waiting < self.events_max && (waiting == 0 || held.saturating_add(bytes) <= self.bytes_max)
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

#[cfg(test)]
pub(super) mod tests {
    use wire::Data;

    use super::super::tests::ask;
    use super::*;

    /// A question that was asked just now.
    pub fn question(ask: Ask) -> Question {
        let (bytes, counts) = (body::held_bytes(&ask), Arc::new(Counts::default()));
        counts.waiting.store(1, Ordering::Relaxed);
        counts.waiting_bytes.store(bytes, Ordering::Relaxed);
        Question { ask, asked: Instant::now(), bytes, counts, answered: false }
    }

    #[test]
    fn the_intake_is_bounded_in_bytes_too() {
        let counts = Arc::new(Counts::default());
        let sized = |bytes: usize| Ask { payload: Data::Text("x".repeat(bytes).into()), ..ask(1) };
        let names = body::held_bytes(&sized(0));
        let fixed = Fixed { queue_events_max: 9, queue_bytes_max: 1000, requests_max: 1 };
        let intake = Intake::new(&fixed, counts.clone());
        let held = || counts.waiting_bytes.load(Ordering::Relaxed);
        let took = |bytes: usize| intake.put(sized(bytes)).is_ok();
        assert!(took(600 - names) && took(400 - names));
        assert_eq!(held(), 1000);
        assert!(!took(0), "it has a topic and an event at least");
        let mut taken = intake.take().unwrap();
        assert!(!took(0), "those that are being asked hold memory, too");
        taken.pop_front().unwrap().fail(Failure::Timeout);
        assert_eq!(held(), 400);
        assert!(took(500 - names) && !took(200 - names));
        drop((taken, intake.take()));
        assert_eq!((held(), counts.waiting.load(Ordering::Relaxed)), (0, 0));
        assert!(took(5000) && !took(0), "a large one is taken alone");
        assert_eq!(counts.asked.load(Ordering::Relaxed), 4);
        assert_eq!(counts.failed[Failure::Full as usize].load(Ordering::Relaxed), 4);
    }

    #[test]
    fn a_question_is_answered_once_whatever_happens_to_it() {
        let (sender, told) = std::sync::mpsc::channel();
        let mut questions = [1, 2, 3].map(|slot| question(ask(slot)));
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
