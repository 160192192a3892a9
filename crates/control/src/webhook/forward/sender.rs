//! Sends the messages of a queue, and processes the responses.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use throttle::Backoff;
use tokio::sync::watch;
use tokio::time::Instant;

use super::super::client::{LazyClient, Taken};
use super::super::error::{ErrorKind, Log, RequestError};
use super::super::gate::Gate;
use super::super::signature::RequestId;
use super::super::time_limit::within;
use super::super::worker::until;
use super::queue::{ForwardQueue, NextStep, Pending, UnderWay};
use super::{PublishReplies, body};

/// The pause after a failure, in milliseconds: the first one, and the longest.
const RETRY_MS: (u64, u64) = (100, 5_000);

/// The sender of one queue.
pub(super) struct ForwardSender {
    queue: Arc<ForwardQueue>,
    replies: Arc<dyn PublishReplies>,
    /// When messages are sent no longer; `None` before the node ends.
    end: watch::Receiver<Option<Instant>>,
    gate: Arc<Gate>,
    client: LazyClient,
    log: Log,
    /// How long the gate had been closed, in all, at the last turn.
    closed_for: Duration,
}

/// A request to the back end.
struct Sending {
    messages: usize,
    body: Vec<u8>,
    id: RequestId,
    /// True if its messages were sent before, in this request or another one.
    is_again: bool,
}

impl ForwardSender {
    pub fn new(
        queue: Arc<ForwardQueue>,
        replies: Arc<dyn PublishReplies>,
        end: watch::Receiver<Option<Instant>>,
        gate: Arc<Gate>,
        client: LazyClient,
    ) -> Self {
        let (log, closed_for) = (Log::default(), Duration::ZERO);
        ForwardSender { queue, replies, end, gate, client, log, closed_for }
    }

    /// Runs until the queue is closed, and all of its messages were taken or have failed.
    pub async fn run(mut self) {
        let (gate, queue) = (self.gate.clone(), self.queue.clone());
        loop {
            let due = {
                let turn = gate.turn().await;
                self.stood_still(turn.closed_for());
                match queue.is_under_way() {
                    true => None,
                    false => match queue.poll(Instant::now()) {
                        NextStep::Send(batch) => {
                            queue.begin(batch);
                            None
                        }
                        NextStep::Until(due) => Some(due),
                        NextStep::Ended => return,
                    },
                }
            };
            match due {
                None => self.send_until_taken().await,
                Some(due) => tokio::select! {
                    () = queue.ready.notified() => {}
                    () = until(due) => {}
                },
            }
        }
    }

    /// Excludes the time for which the gate was closed since the last turn from time limits. `closed_for` is the time
    /// in all.
    fn stood_still(&mut self, closed_for: Duration) {
        let by = closed_for - std::mem::replace(&mut self.closed_for, closed_for);
        if by > Duration::ZERO {
            self.queue.later(by, Instant::now());
        }
    }

    /// Sends the batch under way until the back end takes it, or the time of its messages is over.
    async fn send_until_taken(&mut self) {
        let gate = self.gate.clone();
        let mut backoff = Backoff::new(RETRY_MS.0, RETRY_MS.1);
        loop {
            let request = {
                let _turn = gate.turn().await;
                self.queue.under_way(|UnderWay { id, is_again, messages }| {
                    let all = messages.iter().map(|pending| (&*pending.id, &pending.request));
                    let body = body::write(all);
                    let is_again = std::mem::replace(is_again, true);
                    Sending { messages: messages.len(), body, id: id.clone(), is_again }
                })
            };
            let Some(request) = request else { return };
            let sent = self.send(request).await;
            let retry_at = {
                let turn = gate.turn().await;
                self.stood_still(turn.closed_for());
                match sent {
                    Ok(taken) => return self.took(taken),
                    Err(error) => {
                        let retry_at = Instant::now() + Duration::from_millis(backoff.delay_ms());
                        self.failed(&error, retry_at);
                        retry_at
                    }
                }
            };
            if self.queue.is_under_way() {
                tokio::select! {
                    () = tokio::time::sleep_until(retry_at) => {}
                    _ = self.end.changed() => {}
                }
            }
        }
    }

    /// Handles a failed request, which is sent again at `retry_at`. Messages whose time is over by then fail.
    fn failed(&self, error: &RequestError, retry_at: Instant) {
        let (rule, _) = self.queue.rule();
        let is_final = error.is_final || self.end.borrow().is_some_and(|end| retry_at >= end);
        let late = self.queue.under_way(|UnderWay { id, is_again, messages }| {
            self.log.warn(error, Some(&rule.url), messages.len() as u64);
            let has_no_time = |it: &&Pending| it.accepted_at + rule.retry < retry_at;
            let late = match is_final {
                true => messages.len(),
                false => messages.iter().take_while(has_no_time).count(),
            };
            if late > 0 {
                // The rest of the batch is another request, and gets another id.
                (*id, *is_again) = (RequestId::random(), true);
            }
            messages.drain(..late).collect::<Vec<_>>()
        });
        late.into_iter().flatten().for_each(|pending| pending.fail(error.kind));
        // Messages behind this batch had to wait for it. Those whose time is over fail, and are not sent.
        let patience = rule.retry.max(rule.timeout);
        let waited = self.queue.take_late(Instant::now(), patience);
        waited.into_iter().for_each(|pending| pending.fail(ErrorKind::Timeout));
    }

    async fn send(&mut self, request: Sending) -> Result<Taken, RequestError> {
        let Sending { messages, body, id, is_again } = request;
        let client = self.client.get()?;
        let (rule, proof) = self.queue.rule();
        self.queue.requests.fetch_add(1, Ordering::Relaxed);
        self.queue.retries.fetch_add(u64::from(is_again), Ordering::Relaxed);
        self.queue.bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
        let end = *self.end.borrow();
        let request = client.forward(&rule.url, &id, &proof, messages, body);
        within(rule.timeout, end, request).await
    }

    /// Handles a batch that the back end has taken: publishes the replies, and reports the result to the clients.
    fn took(&mut self, taken: Taken) {
        let batch = self.queue.take_under_way();
        let by_id: HashMap<&str, &Pending> =
            batch.iter().map(|pending| (&*pending.id, pending)).collect();
        let reply_to = |id: &str| by_id.get(id).and_then(|pending| pending.reply_to());
        let published = match taken {
            Ok(body) => self.replies.publish(&body, &reply_to, &self.queue.reply_counts),
            Err(error) => {
                self.queue.reply_counts.rejected.fetch_add(1, Ordering::Relaxed);
                Err(error.to_string())
            }
        };
        if let Err(cause) = published {
            let (rule, _) = self.queue.rule();
            self.log.warn(&RequestError::new(ErrorKind::Body, cause), Some(&rule.url), 1);
        }
        batch.into_iter().for_each(Pending::taken);
    }
}

impl Drop for ForwardSender {
    fn drop(&mut self) {
        self.queue.abandon();
    }
}
