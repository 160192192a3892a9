//! Sends a lane's messages, and takes the answers.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::super::client::{Client, Taken};
use super::super::error::{ErrorKind, Log, RequestError};
use super::super::signature::RequestId;
use super::super::worker::until;
use super::lane::{Lane, Look, Pending};
use super::{Answers, body};

/// The pause after the first failure; each further one makes it twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What serves one lane.
pub(super) struct Carrier {
    lane: Arc<Lane>,
    answers: Arc<dyn Answers>,
    /// When what waits is sent no longer.
    end: watch::Receiver<Option<Instant>>,
    /// Made for the first request: a rule that nothing matches needs no certificates in memory.
    client: Option<Client>,
    log: Log,
}

impl Carrier {
    pub fn new(
        lane: Arc<Lane>,
        answers: Arc<dyn Answers>,
        end: watch::Receiver<Option<Instant>>,
    ) -> Self {
        Carrier { lane, answers, end, client: None, log: Log::default() }
    }

    /// Runs until nothing can come any more and all was taken or has failed.
    pub async fn run(mut self) {
        loop {
            match self.lane.look(Instant::now()) {
                Look::Send(batch) => self.carry(batch).await,
                Look::Until(due) => tokio::select! {
                    () = self.lane.ready.notified() => {}
                    () = until(due) => {}
                },
                Look::Ended => return,
            }
        }
    }

    /// Sends a batch until it is taken, or the time of its messages is over.
    async fn carry(&mut self, mut batch: VecDeque<Pending>) {
        let mut pause = PAUSE_MIN;
        let (mut id, mut is_again) = (RequestId::random(), false);
        while !batch.is_empty() {
            let messages = batch.iter().map(|pending| (&*pending.id, &pending.request));
            let body = body::write(messages);
            let error = match self.send(batch.len(), body, &id, is_again).await {
                Ok(taken) => return self.took(batch, taken),
                Err(error) => error,
            };
            is_again = true;
            let (rule, _) = self.lane.rule();
            self.log.warn(&error, Some(&rule.url), batch.len() as u64);
            let next = Instant::now() + pause;
            let is_over = error.is_final || self.end.borrow().is_some_and(|end| next >= end);
            let late = match is_over {
                true => batch.len(),
                false => batch.iter().take_while(|it| it.accepted_at + rule.retry < next).count(),
            };
            if late > 0 {
                // What is left is another request.
                id = RequestId::random();
            }
            batch.drain(..late).for_each(|pending| pending.fail(error.kind));
            // Those behind it have waited for it: they are not sent when their time is over.
            let patience = rule.retry.max(rule.timeout);
            let waited = self.lane.take_late(Instant::now(), patience);
            waited.into_iter().for_each(|pending| pending.fail(ErrorKind::Timeout));
            if !batch.is_empty() {
                tokio::select! {
                    () = tokio::time::sleep_until(next) => {}
                    _ = self.end.changed() => {}
                }
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }

    async fn send(
        &mut self,
        messages: usize,
        body: Vec<u8>,
        id: &RequestId,
        is_again: bool,
    ) -> Result<Taken, RequestError> {
        let client = match &self.client {
            Some(client) => client.clone(),
            None => {
                let client = Client::new(1).map_err(|error| {
                    let cause = format!("TLS can't be set up: {error}");
                    RequestError::new(ErrorKind::Unreachable, cause)
                })?;
                self.client.insert(client).clone()
            }
        };
        let (rule, proof) = self.lane.rule();
        self.lane.requests.fetch_add(1, Ordering::Relaxed);
        self.lane.retries.fetch_add(u64::from(is_again), Ordering::Relaxed);
        self.lane.bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
        let deadline = Instant::now() + rule.timeout;
        let deadline = self.end.borrow().map_or(deadline, |end| end.min(deadline));
        let request = client.forward(&rule.url, id, &proof, messages, body);
        match tokio::time::timeout_at(deadline, request).await {
            Ok(result) => result,
            Err(_) => {
                let cause = format!("no answer within {:?}", rule.timeout);
                Err(RequestError::new(ErrorKind::Timeout, cause))
            }
        }
    }

    /// The back end has taken a batch: what it answers is published, and who waits is told.
    fn took(&mut self, batch: VecDeque<Pending>, taken: Taken) {
        let by_id: HashMap<&str, &Pending> =
            batch.iter().map(|pending| (&*pending.id, pending)).collect();
        let reply_to = |id: &str| by_id.get(id).and_then(|pending| pending.reply_to());
        let published = match taken {
            Ok(body) => self.answers.publish(&body, &reply_to, &self.lane.answers),
            Err(error) => {
                self.lane.answers.rejected.fetch_add(1, Ordering::Relaxed);
                Err(error.to_string())
            }
        };
        if let Err(cause) = published {
            let (rule, _) = self.lane.rule();
            self.log.warn(&RequestError::new(ErrorKind::Body, cause), Some(&rule.url), 1);
        }
        batch.into_iter().for_each(Pending::taken);
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.lane.abandon();
    }
}
