//! Carries the questions of shards to the application, by HTTP.
//!
//! A question waits in the intake until the control thread puts it into one of the `requests_max`
//! lanes of its URL, which exist while something is in them. In a lane one request is under way at
//! a time; what waits there goes out together in the next. A connection's questions for a URL are
//! all in one lane, and so keep their order, while a slow answer holds up one lane only, and a URL
//! that nobody answers at none of the others.
//!
//! All URLs share one queue. Of three quarters of it, a URL may have as many questions as there is
//! room for yet. So however many wait for one that does not answer, as many can wait for the others.
//! The last quarter is for those that have little: 64 questions of 256 KiB each.
//!
//! The timeout is from the question to its answer, waiting included: a question whose time is over
//! fails, whether it was sent or not, and a request is broken off when all of its questions did.
//! Those that came later go on with it.
//!
//! Bounds, besides those of the configuration: no event joins a request that has 512 KiB; an
//! answer may have 1 MiB, and 16 KiB more for each event it answers; unused connections are closed
//! after a second. A status of 200 or 204 is an answer, any other a failure.

mod body;
mod client;
mod failure;
mod lane;
mod queue;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use shard::{Ask, Full, Histogram, Verdict, Webhook};
use tokio::task::{self, JoinError, JoinSet};
use tokio::time::Instant;

use client::Client;
use failure::{Failed, Log};
use lane::{Key, Lane};
use queue::{Counts, Intake, Question};

pub use failure::Failure;
pub use queue::UrlStats;

/// What stays as it is while the node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// How many questions may be without an answer at a time, those included that are asked just
    /// now; more are refused. Of one URL no more than there is room for yet in three quarters of
    /// this, so that one which does not answer leaves as much to the others; the rest is for URLs
    /// with fewer than 64.
    pub queue_events_max: usize,
    /// How many of them may be of one URL.
    pub queue_events_per_url_max: usize,
    /// How many bytes their payloads and names may have together, of one URL no more than there is
    /// room for yet in three quarters of this; the rest is for URLs with less than 256 KiB. More
    /// are refused, but for a question that is alone.
    pub queue_bytes_max: usize,
    /// How many requests are under way at a time to each URL; at least one.
    pub requests_max: usize,
}

/// What may change while the node runs: the URL for the questions that come after, the timeout for
/// all, and the others for the requests that begin after.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where to ask about topics whose rule doesn't say it: `http://` or `https://`.
    pub url: Option<Arc<str>>,
    /// What proves to the application who asks; goes as bearer token.
    pub secret: Option<String>,
    /// How long a question may take, from the shard that asks to the last byte of the answer.
    pub timeout: Duration,
    /// How many events a request may carry.
    pub batch_events_max: usize,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("url", &self.url.as_deref().map(failure::shown))
            .field("secret", &self.secret.as_ref().map(|_| "(secret)"))
            .field("timeout", &self.timeout)
            .field("batch_events_max", &self.batch_events_max)
            .finish()
    }
}

/// What was counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Questions that were taken.
    pub asked: u64,
    /// Those the application answered with ok.
    pub ok: u64,
    /// Those the application answered with error.
    pub error: u64,
    /// Those it didn't answer, by [`Failure`]. ([`Failure::Full`] ones were not taken.)
    pub failed: [u64; Failure::ALL.len()],
    /// Requests that were sent, or could not be.
    pub requests: u64,
    /// Gauge: questions without an answer so far.
    pub waiting: u64,
    /// Gauge: bytes of their payloads and names.
    pub waiting_bytes: u64,
}

/// The shards' side: takes questions.
pub struct Dispatcher {
    counts: Arc<Counts>,
    intake: Intake,
    requests: AtomicU64,
    latency: Histogram,
    settings: RwLock<Arc<Settings>>,
}

impl Dispatcher {
    /// Questions are taken at once; they are asked while the worker runs.
    pub fn new(fixed: Fixed, settings: Settings) -> (Arc<Dispatcher>, Worker) {
        let counts = Arc::new(Counts::default());
        let dispatcher = Arc::new(Dispatcher {
            intake: Intake::new(&fixed, counts.clone()),
            counts,
            requests: AtomicU64::new(0),
            latency: Histogram::default(),
            settings: RwLock::new(Arc::new(settings)),
        });
        let worker = Worker {
            timeout: dispatcher.settings().timeout,
            dispatcher: dispatcher.clone(),
            client: None,
            lanes_per_url: fixed.requests_max.max(1),
            lanes: HashMap::new(),
            due: None,
            log: Log::default(),
            full_logged: 0,
        };
        (dispatcher, worker)
    }

    /// Takes new settings.
    pub fn set(&self, settings: Settings) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        // The timeout may have become shorter.
        self.intake.ready.notify_one();
    }

    /// Ends the worker: what waits is answered with an error, and nothing is taken any more.
    pub fn stop(&self) {
        self.intake.close();
    }

    /// The counters now; each is right, but they may be of different moments.
    pub fn stats(&self) -> Stats {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Stats {
            asked: get(&self.counts.asked),
            ok: get(&self.counts.ok),
            error: get(&self.counts.error),
            failed: std::array::from_fn(|failure| get(&self.counts.failed[failure])),
            requests: get(&self.requests),
            waiting: self.counts.waiting.load(Ordering::Relaxed) as u64,
            waiting_bytes: self.counts.waiting_bytes.load(Ordering::Relaxed) as u64,
        }
    }

    /// What waits for each URL, at most so many of them, those first for which most wait. Names are
    /// without what may be secret.
    pub fn urls(&self, max: usize) -> Vec<(String, UrlStats)> {
        self.intake.urls(max)
    }

    /// From question to answer or failure, of all that were taken.
    pub fn latency(&self) -> &Histogram {
        &self.latency
    }

    fn settings(&self) -> Arc<Settings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Webhook for Dispatcher {
    fn ask(&self, ask: Ask) -> Result<(), Full> {
        let url = ask.url.clone().or_else(|| self.settings().url.clone());
        self.intake.put(ask, url)
    }
}

/// The control thread's side: asks the application.
pub struct Worker {
    dispatcher: Arc<Dispatcher>,
    /// Made for the first request: a node that asks nothing needs no certificates in memory.
    client: Option<Client>,
    lanes_per_url: usize,
    /// Those with something in them.
    lanes: HashMap<Key, Lane>,
    /// No question's time is over before; `None` if there is none.
    due: Option<Instant>,
    /// The one that `due` was reckoned with.
    timeout: Duration,
    log: Log,
    /// How many refused questions the log knows of.
    full_logged: u64,
}

/// What came of a lane's request.
struct Done {
    key: Key,
    result: Result<Vec<Result<Verdict, String>>, Failed>,
}

impl Worker {
    /// Runs until [`Dispatcher::stop`], or until it is dropped; either way whatever waits is
    /// answered with an error. Needs a tokio runtime with I/O and time.
    pub async fn run(mut self) {
        let mut requests = JoinSet::new();
        loop {
            let due = self.due;
            let mut touched = tokio::select! {
                () = self.dispatcher.intake.ready.notified() => {
                    let Some(questions) = self.dispatcher.intake.take() else { return };
                    self.sort(questions)
                }
                Some(done) = requests.join_next_with_id() => Vec::from_iter(self.finish(done)),
                () = until(due) => Vec::new(),
            };
            let settings = self.dispatcher.settings();
            let now = Instant::now();
            if settings.timeout != self.timeout || self.due.is_some_and(|due| due <= now) {
                self.timeout = settings.timeout;
                touched.extend(self.fail_late(now));
            }
            for key in touched {
                self.send(&key, &settings, &mut requests);
            }
            self.tell_of_full();
        }
    }

    /// Puts questions into their lanes, and gives these.
    fn sort(&mut self, questions: VecDeque<Question>) -> Vec<Key> {
        let mut touched = Vec::with_capacity(questions.len());
        let mut nowhere = Vec::new();
        for question in questions {
            let Some(url) = question.url.clone() else {
                nowhere.push(question);
                continue;
            };
            let key = Key::of(url, question.ask.connection, self.lanes_per_url);
            if self.due.is_none() {
                self.due = question.asked.checked_add(self.timeout);
            }
            self.lanes.entry(key.clone()).or_default().put(question);
            touched.push(key);
        }
        let cause = "no URL is configured for these events, nor one for all";
        self.fail(nowhere, &Failed::new(Failure::Nowhere, cause), None);
        touched
    }

    /// Fails the questions whose time is over, and gives the lanes in which such were.
    fn fail_late(&mut self, now: Instant) -> Vec<Key> {
        let timeout = self.timeout;
        let mut all = Vec::new();
        for (key, lane) in &mut self.lanes {
            let late = lane.take_late(now, timeout);
            if !late.sent.is_empty() || !late.waiting.is_empty() {
                all.push((key.clone(), late));
            }
        }
        let oldest = self.lanes.values().filter_map(Lane::oldest).min();
        self.due = oldest.and_then(|oldest| oldest.checked_add(timeout));
        let unanswered = Failed::new(Failure::Timeout, format!("no answer within {timeout:?}"));
        let cause = format!("not sent within {timeout:?}, as those before them had no answer");
        let unsent = Failed::new(Failure::Timeout, cause);
        let told = all.into_iter().map(|(key, late)| {
            self.fail(late.sent, &unanswered, Some(&key.url));
            self.fail(late.waiting, &unsent, Some(&key.url));
            key
        });
        told.collect()
    }

    /// Starts a request in a lane if it is free and has questions; forgets it if it has none.
    fn send(&mut self, key: &Key, settings: &Settings, requests: &mut JoinSet<Done>) {
        while let Some(lane) = self.lanes.get_mut(key) {
            if lane.is_empty() {
                self.lanes.remove(key);
                return;
            }
            let Some(questions) = lane.take(settings.batch_events_max) else { return };
            self.begin(key, questions, settings, requests);
        }
    }

    fn begin(
        &mut self,
        key: &Key,
        questions: VecDeque<Question>,
        settings: &Settings,
        requests: &mut JoinSet<Done>,
    ) {
        let client = match self.client() {
            Ok(client) => client,
            Err(error) => {
                let failed =
                    Failed::new(Failure::Unreachable, format!("TLS can't be set up: {error}"));
                return self.fail(questions, &failed, Some(&key.url));
            }
        };
        self.dispatcher.requests.fetch_add(1, Ordering::Relaxed);
        let body = body::write(questions.iter().map(|question| &question.ask));
        let (secret, events) = (settings.secret.clone(), questions.len());
        let of = key.clone();
        let task = requests.spawn(async move {
            let answer = client.post(&of.url, secret.as_deref(), events, body).await;
            let result = answer.and_then(|body| {
                body::read(&body, events).map_err(|cause| Failed::new(Failure::Body, cause))
            });
            Done { key: of, result }
        });
        self.lanes.entry(key.clone()).or_default().begin(task, questions);
    }

    fn client(&mut self) -> std::io::Result<Client> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let client = Client::new(self.lanes_per_url)?;
        Ok(self.client.insert(client).clone())
    }

    /// Answers the questions of a request that is over, and gives the lane that is free now.
    fn finish(&mut self, done: Result<(task::Id, Done), JoinError>) -> Option<Key> {
        let (id, Done { key, result }) = match done {
            Ok(done) => done,
            // Broken off: it was too late for all.
            Err(error) if error.is_cancelled() => return None,
            Err(error) => {
                tracing::error!("a webhook request ended without a result: {error}");
                // Its questions are dropped, and so answered.
                return self.lanes.iter_mut().find_map(|(key, lane)| {
                    lane.end(error.id())?;
                    Some(key.clone())
                });
            }
        };
        let (questions, late) = self.lanes.get_mut(&key)?.end(id)?;
        match result {
            Ok(verdicts) => {
                for (question, verdict) in
                    questions.into_iter().zip(verdicts.into_iter().skip(late))
                {
                    match verdict {
                        Ok(verdict) => {
                            self.record(&question);
                            question.answer(verdict);
                        }
                        Err(cause) => {
                            let failed = Failed::new(Failure::Body, cause);
                            self.fail([question], &failed, Some(&key.url));
                        }
                    }
                }
            }
            Err(failed) => self.fail(questions, &failed, Some(&key.url)),
        }
        Some(key)
    }

    fn fail<I>(&mut self, questions: I, failed: &Failed, url: Option<&str>)
    where
        I: IntoIterator<Item = Question, IntoIter: ExactSizeIterator>,
    {
        let questions = questions.into_iter();
        if questions.len() > 0 {
            self.log.warn(failed, url, questions.len() as u64);
        }
        for question in questions {
            self.record(&question);
            question.fail(failed.failure);
        }
    }

    fn record(&self, question: &Question) {
        let us = u64::try_from(question.age().as_micros()).unwrap_or(u64::MAX);
        self.dispatcher.latency.record(us, 1);
    }

    /// Logs the questions that were refused: not by the shards, whose threads have no time for it.
    fn tell_of_full(&mut self) {
        let full = self.dispatcher.counts.failed[Failure::Full as usize].load(Ordering::Relaxed);
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
                "{waiting} events wait for the application ({bytes} bytes){most}, and fill the \
                 queue or their URL's share of it"
            );
            let url = self.dispatcher.intake.refused();
            self.log.warn(&Failed::new(Failure::Full, cause), url.as_deref(), new);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Nobody would take from the intake again.
        self.dispatcher.stop();
    }
}

/// Sleeps until then, or for ever.
async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
