//! Sends the requests of the request queue, and passes on the responses.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::{self, JoinError, JoinSet};
use tokio::time::Instant;
use tracing::{Instrument, field};

use super::body;
use super::client::LazyClient;
use super::error::{ErrorKind, Log, RequestError, shown};
use super::queue::{Queue, QueueKey};
use super::request_queue::PendingRequest;
use super::response::{self, Expects, Responses};
use super::signature::RequestId;
use super::{Dispatcher, Settings};

/// The pauses before each repetition of a request that failed temporarily. The time limit of the request may end the
/// repetitions earlier.
const RETRIES: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(300)];

/// The control thread's side: sends requests to the application.
pub struct Worker {
    dispatcher: Arc<Dispatcher>,
    client: LazyClient,
    queues_per_url: usize,
    /// The URLs whose last request failed in spite of retries. Requests to them are not sent again.
    down: HashSet<Arc<str>>,
    /// No request's time is over before this; `None` without requests.
    due: Option<Instant>,
    /// The timeout from which `due` was calculated.
    timeout: Duration,
    /// How long the gate had been closed, in all, at the last turn.
    closed_for: Duration,
    log: Log,
    /// How many rejected requests were logged.
    full_logged: u64,
}

/// Why the worker wakes up.
enum Woken {
    /// Requests have come.
    Ready,
    /// A batch has ended.
    Done(Result<(task::Id, Done), JoinError>),
    /// The time of a request is over.
    Due,
}

/// The result of a batch.
pub(super) struct Done {
    key: QueueKey,
    result: Result<Responses, RequestError>,
}

impl Worker {
    /// Makes a worker with this many queues for each URL, at least one.
    pub(super) fn new(
        dispatcher: Arc<Dispatcher>,
        queues_per_url: usize,
        client: LazyClient,
    ) -> Self {
        Worker {
            timeout: dispatcher.settings().timeout,
            dispatcher,
            client,
            queues_per_url,
            closed_for: Duration::ZERO,
            down: HashSet::new(),
            due: None,
            log: Log::default(),
            full_logged: 0,
        }
    }

    /// Runs until [`Dispatcher::stop`], or until it is dropped. In both cases, requests that wait get an error as
    /// response. Needs a tokio runtime with I/O and time.
    pub async fn run(mut self) {
        let mut batches = JoinSet::new();
        let dispatcher = self.dispatcher.clone();
        loop {
            let due = self.due;
            let woken = tokio::select! {
                () = dispatcher.request_queue.ready.notified() => Woken::Ready,
                Some(done) = batches.join_next_with_id() => Woken::Done(done),
                () = until(due) => Woken::Due,
            };
            let turn = dispatcher.counts.gate.turn().await;
            self.stood_still(turn.closed_for());
            let mut touched = match woken {
                Woken::Ready => {
                    let Some(requests) = dispatcher.request_queue.take() else { return };
                    self.sort(requests)
                }
                Woken::Done(done) => Vec::from_iter(self.finish(done)),
                Woken::Due => Vec::new(),
            };
            let settings = self.dispatcher.settings();
            let now = Instant::now();
            if settings.timeout != self.timeout || self.due.is_some_and(|due| due <= now) {
                self.timeout = settings.timeout;
                touched.extend(self.fail_late(now));
            }
            for key in touched {
                self.send(&key, &settings, &mut batches);
            }
            self.log_full();
        }
    }

    /// Excludes the time for which the gate was closed since the last turn from time limits. `closed_for` is the time
    /// in all.
    fn stood_still(&mut self, closed_for: Duration) {
        let by = closed_for - std::mem::replace(&mut self.closed_for, closed_for);
        if by > Duration::ZERO {
            let now = Instant::now();
            self.dispatcher.queues().values_mut().for_each(|queue| queue.later(by, now));
            self.dispatcher.request_queue.later(by, now);
            self.due = self.due.and_then(|due| due.checked_add(by));
        }
    }

    /// Puts requests into their queues, and returns the keys of these queues.
    pub(super) fn sort(&mut self, requests: VecDeque<PendingRequest>) -> Vec<QueueKey> {
        let mut touched = Vec::with_capacity(requests.len());
        let mut nowhere = Vec::new();
        let mut queues = self.dispatcher.queues();
        for request in requests {
            let Some(url) = request.url.clone() else {
                nowhere.push(request);
                continue;
            };
            let key = QueueKey::of(url, request.hook_request.connection, self.queues_per_url);
            if self.due.is_none() {
                self.due = request.accepted_at.checked_add(self.timeout);
            }
            queues.entry(key.clone()).or_default().put(request);
            touched.push(key);
        }
        drop(queues);
        let cause = "no URL is configured for these events, and there is no default URL";
        self.fail(nowhere, &RequestError::new(ErrorKind::Nowhere, cause), None);
        touched
    }

    /// Fails the requests whose time is over, and returns the keys of their queues.
    fn fail_late(&mut self, now: Instant) -> Vec<QueueKey> {
        let timeout = self.timeout;
        let mut all = Vec::new();
        let mut queues = self.dispatcher.queues();
        for (key, queue) in queues.iter_mut() {
            let late = queue.take_late(now, timeout);
            if !late.sent.is_empty() || !late.waiting.is_empty() {
                all.push((key.clone(), late));
            }
        }
        let oldest = queues.values().filter_map(Queue::oldest).min();
        drop(queues);
        self.due = oldest.and_then(|oldest| oldest.checked_add(timeout));
        let late_error =
            RequestError::new(ErrorKind::Timeout, format!("no response within {timeout:?}"));
        let cause =
            format!("not sent within {timeout:?}, because earlier requests had no response");
        let unsent = RequestError::new(ErrorKind::Timeout, cause);
        let touched = all.into_iter().map(|(key, late)| {
            self.fail(late.sent, &late_error, Some(&key.url));
            self.fail(late.waiting, &unsent, Some(&key.url));
            key
        });
        touched.collect()
    }

    /// Starts a batch if none is under way in the queue and requests wait. Removes an empty queue.
    pub(super) fn send(
        &mut self,
        key: &QueueKey,
        settings: &Settings,
        batches: &mut JoinSet<Done>,
    ) {
        loop {
            let mut queues = self.dispatcher.queues();
            let Some(queue) = queues.get_mut(key) else { return };
            if queue.is_empty() {
                queues.remove(key);
                return;
            }
            let Some(requests) = queue.take(settings.batch_events_max) else { return };
            drop(queues);
            self.begin(key, requests, settings, batches);
        }
    }

    fn begin(
        &mut self,
        key: &QueueKey,
        requests: VecDeque<PendingRequest>,
        settings: &Settings,
        batches: &mut JoinSet<Done>,
    ) {
        let client = match self.client.get() {
            Ok(client) => client,
            Err(error) => return self.fail(requests, &error, Some(&key.url)),
        };
        self.dispatcher.http_requests.fetch_add(1, Ordering::Relaxed);
        let body = body::write(requests.iter().map(|request| &request.hook_request));
        let expected: Vec<Expects> =
            requests.iter().map(|request| Expects::of(&request.hook_request)).collect();
        let (proof, events) = (settings.proof(), requests.len());
        let of = key.clone();
        let retries = if self.down.contains(&key.url) { &[][..] } else { &RETRIES };
        let newest = requests.iter().map(|request| request.accepted_at).max();
        let late = newest.and_then(|newest| newest.checked_add(settings.timeout));
        let span = tracing::debug_span!("webhook", url = shown(&key.url), events);
        let (id, dispatcher) = (id(&requests), self.dispatcher.clone());
        let sent_as = id.clone();
        let request = async move {
            // No request begins while the gate is closed.
            drop(dispatcher.counts.gate.turn().await);
            let began = Instant::now();
            let mut reply = client.post(&of.url, &id, &proof, events, body.clone()).await;
            for pause in retries {
                let failed = reply.as_ref().is_err_and(|error| error.is_passing);
                // Without time for another attempt, the error of the last attempt is the result.
                if !failed || late.is_some_and(|late| Instant::now() + *pause >= late) {
                    break;
                }
                tokio::time::sleep(*pause).await;
                drop(dispatcher.counts.gate.turn().await);
                reply = client.post(&of.url, &id, &proof, events, body.clone()).await;
            }
            let result = reply.and_then(|body| {
                response::read(&body, &expected)
                    .map_err(|error| RequestError::new(ErrorKind::Body, error.to_string()))
            });
            let duration_ms = began.elapsed().as_micros() as f64 / 1e3;
            let error = result.as_ref().err();
            tracing::debug!(
                kind = error.map(|error| error.kind.name()),
                error = error.map(field::display),
                duration_ms,
                "answered"
            );
            Done { key: of, result }
        };
        let task = batches.spawn(request.instrument(span));
        let mut queues = self.dispatcher.queues();
        queues.entry(key.clone()).or_default().begin(task, requests, sent_as);
    }

    /// Responds to the requests of an ended batch, and returns the key of its queue, which is free now.
    pub(super) fn finish(&mut self, done: Result<(task::Id, Done), JoinError>) -> Option<QueueKey> {
        let (id, Done { key, result }) = match done {
            Ok(done) => done,
            // The batch was aborted, because the time of all its requests was over.
            Err(error) if error.is_cancelled() => return None,
            Err(error) => {
                tracing::error!(%error, "a webhook request ended without a result: this is a bug");
                // The drop of the batch's requests responds to them.
                let ended = self
                    .dispatcher
                    .queues()
                    .iter_mut()
                    .find_map(|(key, queue)| Some((key.clone(), queue.end(error.id())?)));
                return ended.map(|(key, _)| key);
            }
        };
        match &result {
            Err(error) if error.is_passing => self.down.insert(key.url.clone()),
            Ok(_) | Err(_) => self.down.remove(&key.url),
        };
        let (requests, late) = self.dispatcher.queues().get_mut(&key)?.end(id)?;
        match result {
            Ok(responses) => {
                for (request, response) in
                    requests.into_iter().zip(responses.into_iter().skip(late))
                {
                    match response {
                        Ok(response) => {
                            self.record(&request);
                            request.respond(response);
                        }
                        Err(error) => {
                            let error = RequestError::new(ErrorKind::Body, error.to_string());
                            self.fail([request], &error, Some(&key.url));
                        }
                    }
                }
            }
            Err(error) => self.fail(requests, &error, Some(&key.url)),
        }
        Some(key)
    }

    /// Responds to requests in the application's place.
    fn fail<I>(&mut self, requests: I, error: &RequestError, url: Option<&str>)
    where
        I: IntoIterator<Item = PendingRequest, IntoIter: ExactSizeIterator>,
    {
        let requests = requests.into_iter();
        if requests.len() > 0 {
            self.log.warn(error, url, requests.len() as u64);
        }
        for request in requests {
            self.record(&request);
            request.fail(error.kind);
        }
    }

    fn record(&self, request: &PendingRequest) {
        let us = u64::try_from(request.age().as_micros()).unwrap_or(u64::MAX);
        self.dispatcher.latency.record(us, 1);
    }

    /// Logs the requests that were rejected. The shards don't do it, because their threads have no time for it.
    fn log_full(&mut self) {
        let full =
            self.dispatcher.counts.failures[ErrorKind::Full as usize].load(Ordering::Relaxed);
        let new = full - self.full_logged;
        if new > 0 {
            self.full_logged = full;
            let waiting = self.dispatcher.counts.waiting.load(Ordering::Relaxed);
            let bytes = self.dispatcher.counts.waiting_bytes.load(Ordering::Relaxed);
            let most = self.dispatcher.urls(1).pop();
            let most = most.map_or_else(String::new, |(url, stats)| {
                format!(", {} of them for {url}", stats.waiting)
            });
            let cause = format!(
                "{waiting} events are queued for the application ({bytes} bytes){most}, and fill \
                 the queue or their URL's share of it"
            );
            let url = self.dispatcher.request_queue.last_rejected();
            self.log.warn(&RequestError::new(ErrorKind::Full, cause), url.as_deref(), new);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Without the worker, no other code takes requests from the request queue.
        self.dispatcher.stop();
        let queues = std::mem::take(&mut *self.dispatcher.queues());
        // The drop calls the replies, which must not run under the lock.
        drop(queues);
    }
}

/// Returns the id of a batch: if another process has sent exactly these requests together, the id with which it did.
fn id(requests: &VecDeque<PendingRequest>) -> RequestId {
    let sent = requests.front().and_then(|first| first.sent_in.clone());
    match sent {
        Some((id, count)) if count == requests.len() => id,
        _ => RequestId::random(),
    }
}

/// Sleeps until this time, or for ever.
pub(super) async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
