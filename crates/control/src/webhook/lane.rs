//! Where the questions for a URL wait for the request before theirs, and for its answer.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{self, AbortHandle};
use tokio::time::Instant;
use wire::ConnectionId;

use super::body;
use super::queue::Question;

/// No event joins a request that has so many bytes: servers refuse large bodies, often from 1 MiB.
const REQUEST_BYTES_MAX: usize = 512 << 10;

/// Which lane: a connection's questions for a URL are all in one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub url: Arc<str>,
    number: usize,
}

impl Key {
    /// The lane for a connection, of so many that the URL has.
    pub fn of(url: Arc<str>, connection: ConnectionId, lanes: usize) -> Key {
        let mut hasher = DefaultHasher::new();
        (&url, connection).hash(&mut hasher);
        let number = (hasher.finish() % lanes.max(1) as u64) as usize;
        Key { url, number }
    }
}

/// Questions in the order in which they were asked: those of the request that is under way, if
/// one is, and those that wait for it to end.
#[derive(Default)]
pub(super) struct Lane {
    request: Option<Request>,
    waiting: VecDeque<Question>,
}

struct Request {
    task: AbortHandle,
    questions: VecDeque<Question>,
    late: usize,
}

/// Questions whose time is over.
#[derive(Default)]
pub(super) struct Late {
    /// Those that were sent.
    pub sent: Vec<Question>,
    /// Those that were not.
    pub waiting: Vec<Question>,
}

impl Lane {
    /// Puts a question behind the others.
    pub fn put(&mut self, question: Question) {
        self.waiting.push_back(question);
    }

    /// The questions of the next request, at most so many; `None` while one is under way or there
    /// is nothing to ask.
    pub fn take(&mut self, events_max: usize) -> Option<VecDeque<Question>> {
        if self.request.is_some() || self.waiting.is_empty() {
            return None;
        }
        let mut bytes = 0;
        let fitting = self.waiting.iter().take(events_max.max(1)).take_while(|question| {
            let room = bytes < REQUEST_BYTES_MAX;
            bytes += body::event_bytes(&question.ask);
            room
        });
        let fitting = fitting.count();
        Some(self.waiting.drain(..fitting).collect())
    }

    /// Keeps the questions of the request that is now under way.
    pub fn begin(&mut self, task: AbortHandle, questions: VecDeque<Question>) {
        self.request = Some(Request { task, questions, late: 0 });
    }

    /// Frees the lane of this request: its questions, and how many that stood before them were too
    /// late. `None` if another is under way, or none.
    pub fn end(&mut self, id: task::Id) -> Option<(VecDeque<Question>, usize)> {
        let request = self.request.take_if(|request| request.task.id() == id)?;
        Some((request.questions, request.late))
    }

    /// Takes out what has waited so long. A request is broken off when nobody waits for it.
    pub fn take_late(&mut self, now: Instant, timeout: Duration) -> Late {
        let mut late = Late::default();
        if let Some(request) = &mut self.request {
            late.sent = drain_late(&mut request.questions, now, timeout);
            request.late += late.sent.len();
            if request.questions.is_empty() {
                request.task.abort();
                self.request = None;
            }
        }
        late.waiting = drain_late(&mut self.waiting, now, timeout);
        late
    }

    /// When the oldest of its questions was asked.
    pub fn oldest(&self) -> Option<Instant> {
        let sent = self.request.iter().flat_map(|request| &request.questions);
        sent.chain(&self.waiting).next().map(|question| question.asked)
    }

    /// Whether it has nothing to do.
    pub fn is_empty(&self) -> bool {
        self.request.is_none() && self.waiting.is_empty()
    }
}

/// The oldest come first, so the rest is younger than the first that has time.
fn drain_late(
    questions: &mut VecDeque<Question>,
    now: Instant,
    timeout: Duration,
) -> Vec<Question> {
    let late = |question: &&Question| now.saturating_duration_since(question.asked) >= timeout;
    let count = questions.iter().take_while(late).count();
    questions.drain(..count).collect()
}

#[cfg(test)]
mod tests {
    use shard::{Ask, AskKind};
    use wire::Data;

    use super::super::queue::tests::question;
    use super::super::tests::ask;
    use super::*;

    fn slots<'a>(batch: impl IntoIterator<Item = &'a Question>) -> Vec<u32> {
        batch.into_iter().map(|question| question.ask.connection.slot).collect()
    }

    fn lane(slots: std::ops::Range<u32>) -> Lane {
        let mut lane = Lane::default();
        slots.for_each(|slot| lane.put(question(ask(slot))));
        lane
    }

    fn task() -> AbortHandle {
        tokio::spawn(std::future::pending::<()>()).abort_handle()
    }

    #[test]
    fn what_waits_goes_together_in_order() {
        let mut lane = lane(0..5);
        assert_eq!(slots(&lane.take(3).unwrap()), [0, 1, 2]);
        assert_eq!(slots(&lane.take(3).unwrap()), [3, 4]);
        assert!(lane.take(3).is_none() && lane.is_empty());
    }

    #[test]
    fn a_request_ends_before_it_is_large_but_has_one_event_at_least() {
        let mut lane = Lane::default();
        for slot in 0..4 {
            let payload = Data::Text("x".repeat(REQUEST_BYTES_MAX / 2).into());
            lane.put(question(Ask { payload, ..ask(slot) }));
        }
        assert_eq!(slots(&lane.take(100).unwrap()), [0, 1]);
        assert_eq!(slots(&lane.take(0).unwrap()), [2]);
        assert_eq!(slots(&lane.take(100).unwrap()), [3]);
    }

    #[tokio::test]
    async fn one_request_at_a_time() {
        let mut lane = lane(0..3);
        let (first, other) = (task(), task());
        let questions = lane.take(2).unwrap();
        lane.begin(first.clone(), questions);
        assert!(lane.take(2).is_none() && !lane.is_empty());
        assert!(lane.end(other.id()).is_none(), "that is another request");
        let (questions, late) = lane.end(first.id()).unwrap();
        assert_eq!((slots(&questions), late), (vec![0, 1], 0));
        assert_eq!(slots(&lane.take(2).unwrap()), [2]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_late_leaves_whether_it_was_sent_or_not() {
        let mut lane = Lane::default();
        let second = Duration::from_secs(1);
        let start = Instant::now();
        for slot in 0..4 {
            lane.put(question(ask(slot)));
            tokio::time::advance(second).await;
        }
        let request = task();
        let questions = lane.take(2).unwrap();
        lane.begin(request.clone(), questions);
        assert_eq!(lane.oldest(), Some(start));
        let mut at = |seconds| {
            let late = lane.take_late(start + second * seconds, second * 10);
            (slots(&late.sent), slots(&late.waiting), lane.oldest())
        };
        assert_eq!(at(9), (vec![], vec![], Some(start)));
        assert_eq!(at(10), (vec![0], vec![], Some(start + second)));
        tokio::task::yield_now().await;
        assert!(!request.is_finished(), "the second question may be answered yet");
        assert_eq!(at(12), (vec![1], vec![2], Some(start + second * 3)));
        tokio::task::yield_now().await;
        assert!(request.is_finished());
        assert!(lane.end(request.id()).is_none());
        assert_eq!(slots(&lane.take(9).unwrap()), [3]);
    }

    #[test]
    fn a_connection_keeps_its_lane_of_a_url() {
        let lane = |url: &str, ask: Ask| Key::of(url.into(), ask.connection, 4).number;
        let used: std::collections::BTreeSet<_> = (0..64).map(|n| lane("a", ask(n))).collect();
        assert_eq!(used.len(), 4);
        for n in 0..64 {
            let other = Ask {
                kind: AskKind::Join,
                topic: "other".into(),
                event: "phx_join".into(),
                payload: Data::Text("other".into()),
                users: Vec::new(),
                ..ask(n)
            };
            assert_eq!(lane("a", other), lane("a", ask(n)));
        }
        assert!((0..64).any(|n| lane("a", ask(n)) != lane("b", ask(n))));
        assert_ne!(
            Key::of("a".into(), ask(1).connection, 1),
            Key::of("b".into(), ask(1).connection, 1)
        );
    }
}
