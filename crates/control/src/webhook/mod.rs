//! Carries the questions of shards to the application, by HTTP.
//!
//! A question waits in the intake until the control thread puts it into one of `requests_max`
//! lanes. In a lane one request is under way at a time; what waits there for the same URL goes out
//! together in the next. A connection's questions for a URL are all in one lane, and so keep their
//! order, while a slow answer holds up one lane only.
//!
//! Bounds, besides those of the configuration: no event joins a request that has 512 KiB; an
//! answer may have 1 MiB, and 16 KiB more for each event it answers; unused connections are closed
//! after a second.

mod body;
mod client;
mod failure;
mod queue;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use shard::{Ask, Full, Histogram, Verdict, Webhook};
use tokio::task::{self, JoinError, JoinSet};

use client::Client;
use failure::{Failed, Log};
use queue::{Counts, Intake, Lane, Place, Question};

pub use failure::Failure;

/// What stays as it is while the node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// How many questions may be without an answer at a time, those included that are asked just
    /// now; more are refused.
    pub queue_events_max: usize,
    /// How many requests are under way at a time; at least one.
    pub requests_max: usize,
}

/// What may change while the node runs: it holds for the requests that begin after.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where to ask about topics whose rule doesn't say it: `http://` or `https://`.
    pub url: Option<Arc<str>>,
    /// What proves to the application who asks; goes as bearer token.
    pub secret: Option<String>,
    /// How long a request may take, from connecting to the last byte of the answer.
    pub timeout: Duration,
    /// How many events a request may carry.
    pub batch_events_max: usize,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("url", &self.url)
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
            intake: Intake::new(fixed.queue_events_max, counts.clone()),
            counts,
            requests: AtomicU64::new(0),
            latency: Histogram::default(),
            settings: RwLock::new(Arc::new(settings)),
        });
        let lanes = (0..fixed.requests_max.max(1)).map(|_| Busy::default()).collect();
        let worker = Worker {
            dispatcher: dispatcher.clone(),
            client: None,
            lanes,
            log: Log::default(),
            full_logged: 0,
        };
        (dispatcher, worker)
    }

    /// Takes new settings, for the requests that begin from now on.
    pub fn set(&self, settings: Settings) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
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
        }
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
        self.intake.put(ask)
    }
}

/// The control thread's side: asks the application.
pub struct Worker {
    dispatcher: Arc<Dispatcher>,
    /// Made for the first request: a node that asks nothing needs no certificates in memory.
    client: Option<Client>,
    lanes: Vec<Busy>,
    log: Log,
    /// How many refused questions the log knows of.
    full_logged: u64,
}

/// A lane, and the request that is under way in it.
#[derive(Default)]
struct Busy {
    lane: Lane,
    request: Option<task::Id>,
}

/// Questions that were asked, and what came of it.
struct Done {
    url: Arc<str>,
    questions: Vec<Question>,
    result: Result<Vec<Result<Verdict, String>>, Failed>,
}

impl Worker {
    /// Runs until [`Dispatcher::stop`], or until it is dropped; either way whatever waits is
    /// answered with an error. Needs a tokio runtime with I/O and time.
    pub async fn run(mut self) {
        let mut requests = JoinSet::new();
        loop {
            tokio::select! {
                () = self.dispatcher.intake.ready.notified() => {
                    let Some(questions) = self.dispatcher.intake.take() else { return };
                    for question in questions {
                        let lane = queue::lane_of(&question.ask, self.lanes.len());
                        self.lanes[lane].lane.put(question);
                    }
                }
                Some(done) = requests.join_next_with_id() => self.finish(done),
            }
            self.send(&mut requests);
            self.tell_of_full();
        }
    }

    /// Starts a request in each lane that is free.
    fn send(&mut self, requests: &mut JoinSet<Done>) {
        let settings = self.dispatcher.settings();
        for lane in 0..self.lanes.len() {
            while self.lanes[lane].request.is_none() {
                let batch = self.lanes[lane].lane.take(settings.batch_events_max);
                let Some((place, questions)) = batch else { break };
                self.lanes[lane].request = self.begin(place, questions, &settings, requests);
            }
        }
    }

    fn begin(
        &mut self,
        place: Place,
        questions: Vec<Question>,
        settings: &Arc<Settings>,
        requests: &mut JoinSet<Done>,
    ) -> Option<task::Id> {
        let Some(url) = place.or_else(|| settings.url.clone()) else {
            let cause = "no URL is configured for these events, nor one for all";
            self.fail(questions, &Failed::new(Failure::Nowhere, cause), None);
            return None;
        };
        let client = match self.client() {
            Ok(client) => client,
            Err(error) => {
                let cause = format!("TLS can't be set up: {error}");
                self.fail(questions, &Failed::new(Failure::Unreachable, cause), Some(&url));
                return None;
            }
        };
        self.dispatcher.requests.fetch_add(1, Ordering::Relaxed);
        let settings = settings.clone();
        let request = requests.spawn(async move {
            let body = body::write(questions.iter().map(|question| &question.ask));
            let (secret, events) = (settings.secret.as_deref(), questions.len());
            let answer = client.post(&url, secret, settings.timeout, events, body).await;
            let result = answer.and_then(|body| {
                body::read(&body, events).map_err(|cause| Failed::new(Failure::Body, cause))
            });
            Done { url, questions, result }
        });
        Some(request.id())
    }

    fn client(&mut self) -> std::io::Result<Client> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let client = Client::new(self.lanes.len())?;
        Ok(self.client.insert(client).clone())
    }

    /// Answers the questions of a request that is over, and frees its lane.
    fn finish(&mut self, done: Result<(task::Id, Done), JoinError>) {
        let (id, done) = match done {
            Ok((id, done)) => (id, Some(done)),
            // Its questions were dropped, and so answered.
            Err(error) => {
                tracing::error!("a webhook request ended without a result: {error}");
                (error.id(), None)
            }
        };
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.request == Some(id)) {
            lane.request = None;
        }
        let Some(Done { url, questions, result }) = done else { return };
        match result {
            Ok(verdicts) => {
                for (question, verdict) in questions.into_iter().zip(verdicts) {
                    match verdict {
                        Ok(verdict) => {
                            self.record(&question);
                            question.answer(verdict);
                        }
                        Err(cause) => {
                            let failed = Failed::new(Failure::Body, cause);
                            self.fail(vec![question], &failed, Some(&url));
                        }
                    }
                }
            }
            Err(failed) => self.fail(questions, &failed, Some(&url)),
        }
    }

    fn fail(&mut self, questions: Vec<Question>, failed: &Failed, url: Option<&str>) {
        self.log.warn(failed, url, questions.len() as u64);
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
            let cause = format!("{waiting} events wait for the application, no more are taken");
            self.log.warn(&Failed::new(Failure::Full, cause), None, new);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Nobody would take from the intake again.
        self.dispatcher.stop();
    }
}
