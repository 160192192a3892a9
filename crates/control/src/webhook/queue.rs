//! A queue of a URL. Its requests wait for the batch before theirs, and then for the response.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use model::ConnectionId;
use tokio::task::{self, AbortHandle};
use tokio::time::Instant;

use super::body;
use super::gate::later;
use super::request_queue::PendingRequest;
use super::signature::RequestId;

/// No request is added to a batch that has this many bytes: servers reject large bodies, often from 1 MiB.
pub(super) const BATCH_BYTES_MAX: usize = 512 << 10;

/// The id of the batch in which this process or the previous one has sent a request, and how many requests that batch
/// had. `None` if the request was not sent, or if it is under way and others of its batch have failed.
pub(super) type SentIn<'a> = Option<(&'a RequestId, usize)>;

/// The key of a queue. All requests of a connection to a URL are in one queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct QueueKey {
    pub url: Arc<str>,
    number: usize,
}

impl QueueKey {
    /// Returns the key of a connection's queue, if the URL has this many queues.
    pub fn of(url: Arc<str>, connection: ConnectionId, queues: usize) -> QueueKey {
        let mut hasher = DefaultHasher::new();
        (&url, connection).hash(&mut hasher);
        let number = (hasher.finish() % queues.max(1) as u64) as usize;
        QueueKey { url, number }
    }
}

/// Requests in the order of their arrival: those of the batch under way, if there is one, and those that wait for its
/// end.
#[derive(Default)]
pub(super) struct Queue {
    batch: Option<Batch>,
    waiting: VecDeque<PendingRequest>,
}

struct Batch {
    task: AbortHandle,
    requests: VecDeque<PendingRequest>,
    late: usize,
    id: RequestId,
}

/// Requests whose time is over.
#[derive(Default)]
pub(super) struct Late {
    /// Requests that were sent.
    pub sent: Vec<PendingRequest>,
    /// Requests that were not sent.
    pub waiting: Vec<PendingRequest>,
}

impl Queue {
    /// Appends a request.
    pub fn put(&mut self, request: PendingRequest) {
        self.waiting.push_back(request);
    }

    /// Takes the requests of the next batch, `events_max` at most. Returns `None` while a batch is under way, and if no
    /// request waits.
    pub fn take(&mut self, events_max: usize) -> Option<VecDeque<PendingRequest>> {
        if self.batch.is_some() || self.waiting.is_empty() {
            return None;
        }
        if let Some(count) = sent_together(&self.waiting) {
            return Some(self.waiting.drain(..count).collect());
        }
        let mut bytes = 0;
        let fitting = self.waiting.iter().take(events_max.max(1)).take_while(|request| {
            let fits = bytes < BATCH_BYTES_MAX;
            bytes += body::event_bytes(&request.hook_request);
            fits
        });
        let fitting = fitting.count();
        Some(self.waiting.drain(..fitting).collect())
    }

    /// Sets the batch that is now under way, with its requests and its id.
    pub fn begin(&mut self, task: AbortHandle, requests: VecDeque<PendingRequest>, id: RequestId) {
        self.batch = Some(Batch { task, requests, late: 0, id });
    }

    /// Visits all requests.
    pub fn each(&self, visit: &mut dyn FnMut(&PendingRequest, SentIn<'_>)) {
        if let Some(batch) = &self.batch {
            let whole = (batch.late == 0).then_some((&batch.id, batch.requests.len()));
            batch.requests.iter().for_each(|request| visit(request, whole));
        }
        for request in &self.waiting {
            let sent_in = request.sent_in.as_ref();
            visit(request, sent_in.map(|(id, count)| (id, *count)));
        }
    }

    /// Moves the arrival of each request by the time that the gate was closed, so that this time does not count.
    pub fn later(&mut self, by: Duration, now: Instant) {
        let sent = self.batch.iter_mut().flat_map(|batch| &mut batch.requests);
        let all = sent.chain(&mut self.waiting);
        all.for_each(|request| request.accepted_at = later(request.accepted_at, by, now));
    }

    /// Ends this batch. Returns its requests, and how many requests before them have failed because their time was
    /// over. `None` if this batch is not under way.
    pub fn end(&mut self, id: task::Id) -> Option<(VecDeque<PendingRequest>, usize)> {
        let batch = self.batch.take_if(|batch| batch.task.id() == id)?;
        Some((batch.requests, batch.late))
    }

    /// Removes and returns requests that have waited for `timeout`. Aborts the batch if all of its requests have.
    pub fn take_late(&mut self, now: Instant, timeout: Duration) -> Late {
        let mut late = Late::default();
        if let Some(batch) = &mut self.batch {
            late.sent = drain_late(&mut batch.requests, now, timeout);
            batch.late += late.sent.len();
            if batch.requests.is_empty() {
                batch.task.abort();
                self.batch = None;
            }
        }
        late.waiting = drain_late(&mut self.waiting, now, timeout);
        late
    }

    /// Returns the arrival of the oldest request.
    pub fn oldest(&self) -> Option<Instant> {
        let sent = self.batch.iter().flat_map(|batch| &batch.requests);
        sent.chain(&self.waiting).next().map(|request| request.accepted_at)
    }

    /// Returns true if no request is under way or waits.
    pub fn is_empty(&self) -> bool {
        self.batch.is_none() && self.waiting.is_empty()
    }
}

/// Returns how many of the first requests another process has sent together, as one batch that must be sent again
/// unchanged. `None` if the first one was not sent, or if some requests of its batch are missing.
fn sent_together(waiting: &VecDeque<PendingRequest>) -> Option<usize> {
    let (id, count) = waiting.front()?.sent_in.as_ref()?;
    let is_in = |it: &&PendingRequest| it.sent_in.as_ref().is_some_and(|(other, _)| other == id);
    (waiting.iter().take_while(is_in).count() == *count).then_some(*count)
}

/// Removes the requests whose time is over. The oldest come first, so it stops at the first one that has time.
fn drain_late(
    requests: &mut VecDeque<PendingRequest>,
    now: Instant,
    timeout: Duration,
) -> Vec<PendingRequest> {
    let late =
        |request: &&PendingRequest| now.saturating_duration_since(request.accepted_at) >= timeout;
    let count = requests.iter().take_while(late).count();
    requests.drain(..count).collect()
}

#[cfg(test)]
mod tests {
    use model::Data;
    use shard::{RequestDetails, WebhookKind, WebhookRequest};

    use super::super::request_queue::tests::request;
    use super::super::tests::{hook_request, hook_request_with};
    use super::*;

    fn slots<'a>(batch: impl IntoIterator<Item = &'a PendingRequest>) -> Vec<u32> {
        batch.into_iter().map(|request| request.hook_request.connection.slot).collect()
    }

    fn queue(slots: std::ops::Range<u32>) -> Queue {
        let mut queue = Queue::default();
        slots.for_each(|slot| queue.put(request(hook_request(slot))));
        queue
    }

    fn task() -> AbortHandle {
        tokio::spawn(std::future::pending::<()>()).abort_handle()
    }

    #[test]
    fn what_waits_goes_together_in_order() {
        let mut queue = queue(0..5);
        assert_eq!(slots(&queue.take(3).unwrap()), [0, 1, 2]);
        assert_eq!(slots(&queue.take(3).unwrap()), [3, 4]);
        assert!(queue.take(3).is_none() && queue.is_empty());
    }

    #[test]
    fn a_batch_ends_before_it_is_large_but_has_one_event_at_least() {
        let mut queue = Queue::default();
        for slot in 0..4 {
            let payload = Data::Text("x".repeat(BATCH_BYTES_MAX / 2).into());
            queue.put(request(hook_request_with(slot, payload)));
        }
        assert_eq!(slots(&queue.take(100).unwrap()), [0, 1]);
        assert_eq!(slots(&queue.take(0).unwrap()), [2]);
        assert_eq!(slots(&queue.take(100).unwrap()), [3]);
    }

    #[test]
    fn what_another_process_has_sent_goes_again_as_it_was() {
        let sent = |slot, id: &str, count| {
            let mut request = request(hook_request(slot));
            request.sent_in = Some((RequestId::of_text(id.into()), count));
            request
        };
        let mut queue = Queue::default();
        for slot in 0..3 {
            queue.put(sent(slot, "a", 3));
        }
        queue.put(sent(3, "b", 2));
        queue.put(request(hook_request(4)));
        assert_eq!(slots(&queue.take(1).unwrap()), [0, 1, 2]);
        assert_eq!(slots(&queue.take(9).unwrap()), [3, 4], "not all of the second is here");
    }

    #[tokio::test]
    async fn one_batch_at_a_time() {
        let mut queue = queue(0..3);
        let (first, other) = (task(), task());
        let requests = queue.take(2).unwrap();
        queue.begin(first.clone(), requests, RequestId::random());
        assert!(queue.take(2).is_none() && !queue.is_empty());
        assert!(queue.end(other.id()).is_none(), "that is another batch");
        let (requests, late) = queue.end(first.id()).unwrap();
        assert_eq!((slots(&requests), late), (vec![0, 1], 0));
        assert_eq!(slots(&queue.take(2).unwrap()), [2]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_late_leaves_whether_it_was_sent_or_not() {
        let mut queue = Queue::default();
        let second = Duration::from_secs(1);
        let start = Instant::now();
        for slot in 0..4 {
            queue.put(request(hook_request(slot)));
            tokio::time::advance(second).await;
        }
        let batch = task();
        let requests = queue.take(2).unwrap();
        queue.begin(batch.clone(), requests, RequestId::random());
        assert_eq!(queue.oldest(), Some(start));
        let mut at = |seconds| {
            let late = queue.take_late(start + second * seconds, second * 10);
            (slots(&late.sent), slots(&late.waiting), queue.oldest())
        };
        assert_eq!(at(9), (vec![], vec![], Some(start)));
        assert_eq!(at(10), (vec![0], vec![], Some(start + second)));
        tokio::task::yield_now().await;
        assert!(!batch.is_finished(), "the second request may be answered yet");
        assert_eq!(at(12), (vec![1], vec![2], Some(start + second * 3)));
        tokio::task::yield_now().await;
        assert!(batch.is_finished());
        assert!(queue.end(batch.id()).is_none());
        assert_eq!(slots(&queue.take(9).unwrap()), [3]);
    }

    #[test]
    fn a_connection_stays_in_its_queue_of_a_url() {
        let queue = |url: &str, hook_request: WebhookRequest| {
            QueueKey::of(url.into(), hook_request.connection, 4).number
        };
        let used: std::collections::BTreeSet<_> =
            (0..64).map(|n| queue("a", hook_request(n))).collect();
        assert_eq!(used.len(), 4);
        for n in 0..64 {
            let topic = Some("other".into());
            let details = RequestDetails::new(WebhookKind::Subscribe, topic, Vec::new(), "sse");
            let other = WebhookRequest { details, ..hook_request(n) };
            assert_eq!(queue("a", other), queue("a", hook_request(n)));
        }
        assert!((0..64).any(|n| queue("a", hook_request(n)) != queue("b", hook_request(n))));
        assert_ne!(
            QueueKey::of("a".into(), hook_request(1).connection, 1),
            QueueKey::of("b".into(), hook_request(1).connection, 1)
        );
    }
}
