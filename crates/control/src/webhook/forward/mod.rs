//! Sends clients' messages to back ends, and publishes the replies in their responses: rules of `[[forward]]`.
//!
//! Each rule has a queue of its own. Its messages are sent in batches, in the order of their arrival, with one HTTP
//! request at a time. A batch that is not taken is sent again until the time of its messages is over. Then they have
//! failed, and the clients that wait for them get an error. So a back end that does not respond holds up its own queue
//! only, and no message overtakes another.
//!
//! A status of 200 to 299 takes a batch. A status of 400 to 499 rejects it for good, but for 408 and 429. Any other
//! result is a failure that may pass. [`PublishReplies`] publishes the replies of a response.

mod body;
mod queue;
mod sender;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use model::Name;
use shard::{ForwardRequest, QueueFull};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::client::{Clients, LazyClient, Proof};
use super::gate::Gate;
use super::signature::RequestId;
use queue::ForwardQueue;
pub(super) use queue::Waits;
pub use queue::{ForwardStats, ReplyCounts};
use sender::ForwardSender;

/// How long the messages that wait are still sent at the end.
const END: Duration = Duration::from_secs(3);

/// The back end of a rule. All of it may change while the node runs; new limits hold for later messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// The filter of the rule, which is its name.
    pub filter: Arc<str>,
    /// `http://` or `https://`.
    pub url: Arc<str>,
    /// The time limit of one request.
    pub timeout: Duration,
    /// How long a message is sent again before it has failed.
    pub retry: Duration,
    /// The limit on messages in a request.
    pub batch_messages_max: usize,
    /// How long a message waits for others.
    pub batch_wait: Duration,
    /// The limit on messages that the back end has not taken.
    pub queue_messages_max: usize,
    /// The limit on their bytes. A message that is alone may be larger.
    pub queue_bytes_max: usize,
}

/// The destination of the reply to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// The topic that its client named; otherwise the personal topic of its user.
    pub topic: Name,
    /// The data by which the client recognises the reply.
    pub correlation_data: Option<Box<[u8]>>,
}

/// Publishes the replies of back ends.
pub trait PublishReplies: Send + Sync {
    /// Publishes the replies in a response's body and counts the results. `reply_to` returns the destination of the
    /// reply to a message, by the message's id; `None` if there is no destination or no such message.
    ///
    /// # Errors
    /// What is wrong with the body, or with the first reply that can't be published. Other replies are published.
    fn publish(
        &self,
        body: &[u8],
        reply_to: &dyn Fn(&str) -> Option<ReplyTo>,
        counts: &Arc<ReplyCounts>,
    ) -> Result<(), String>;
}

/// A message that another process had accepted.
pub(super) struct Restored {
    pub request: ForwardRequest,
    pub id: String,
    /// Its number. Later messages have higher ones.
    pub number: u64,
    /// The request in which it is under way, if it is.
    pub sent_in: Option<RequestId>,
}

/// The side of the shards: the queues, by their filters.
pub(super) struct Forwards {
    /// The beginning of ids. Another run has another one.
    node: String,
    gate: Arc<Gate>,
    queues: RwLock<HashMap<Arc<str>, Arc<ForwardQueue>>>,
    /// Queues without a sender yet.
    begun: Mutex<Vec<Arc<ForwardQueue>>>,
    /// Queues whose rules were removed, and which may still have messages.
    closed: Mutex<Vec<Weak<ForwardQueue>>>,
    changed: Notify,
    /// The number of the next message.
    pub next: AtomicU64,
    /// When messages are sent no longer; `None` before the end.
    end: watch::Sender<Option<Instant>>,
}

impl Forwards {
    /// Without rules. Ids of messages begin with the node's name.
    pub fn new(node: String, gate: Arc<Gate>) -> Self {
        Forwards {
            node,
            gate,
            queues: RwLock::default(),
            begun: Mutex::default(),
            closed: Mutex::default(),
            changed: Notify::new(),
            next: AtomicU64::new(1),
            end: watch::Sender::new(None),
        }
    }

    /// Replaces the rules. Messages of a removed rule are still sent.
    pub fn set(&self, rules: &[Forward], proof: &Proof) {
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *queues);
        for rule in rules {
            let queue = match before.remove(&rule.filter) {
                Some(queue) => {
                    queue.set(rule.clone(), proof.clone());
                    queue
                }
                None => {
                    let queue =
                        Arc::new(ForwardQueue::new(rule.clone(), proof.clone(), self.gate.clone()));
                    let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
                    begun.push(queue.clone());
                    queue
                }
            };
            queues.insert(rule.filter.clone(), queue);
        }
        drop(queues);
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        closed.retain(|queue| queue.strong_count() > 0);
        for queue in before.into_values() {
            queue.close();
            closed.push(Arc::downgrade(&queue));
        }
        drop(closed);
        self.changed.notify_one();
    }

    /// Puts a message into its queue. A message whose rule was removed is rejected like one without capacity: its shard
    /// does not have the new rules yet, and the client may publish it again under these.
    pub fn put(&self, request: ForwardRequest) -> Result<(), QueueFull> {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        let queue = queues.get(&request.filter).cloned();
        drop(queues);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}-{number}", self.node);
        queue.ok_or(QueueFull)?.put(request, id, number)
    }

    /// Returns all queues, with those of removed rules.
    pub fn all_queues(&self) -> Vec<Arc<ForwardQueue>> {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        queues.values().cloned().chain(closed.iter().filter_map(Weak::upgrade)).collect()
    }

    /// Imports the messages of another process, in their order and without limits. Their time begins anew. Returns
    /// those whose rules are not there.
    pub fn restore(&self, messages: Vec<Restored>) -> Vec<Restored> {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        let mut without_rule = Vec::new();
        for message in messages {
            match queues.get(&message.request.filter).cloned() {
                Some(queue) => queue.restore(message),
                None => without_rule.push(message),
            }
        }
        without_rule
    }

    /// Accepts no more messages. Those that wait are still sent for `END` at most.
    pub fn close(&self) {
        self.end.send_if_modified(|end| {
            let is_first = end.is_none();
            end.get_or_insert_with(|| Instant::now() + END);
            is_first
        });
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        queues.values().for_each(|queue| queue.close());
        self.changed.notify_one();
    }

    /// Returns the counters, by filter.
    pub fn stats(&self) -> Vec<(Arc<str>, ForwardStats)> {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> =
            queues.iter().map(|(filter, queue)| (filter.clone(), queue.stats())).collect();
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        all
    }

    fn begun(&self) -> Vec<Arc<ForwardQueue>> {
        std::mem::take(&mut *self.begun.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The side of the control thread: sends the messages of the queues.
pub struct Forwarder {
    forwards: Arc<Forwards>,
    /// Which certificates of servers are trusted.
    clients: Clients,
    /// Completes when this has ended.
    _done: oneshot::Sender<()>,
}

impl Forwarder {
    pub(super) fn new(
        forwards: Arc<Forwards>,
        clients: Clients,
        done: oneshot::Sender<()>,
    ) -> Self {
        Forwarder { forwards, clients, _done: done }
    }

    /// Runs until the dispatcher is stopped, and a little longer to send the messages that wait. Needs a tokio runtime
    /// with I/O and time.
    pub async fn run(self, replies: Arc<dyn PublishReplies>) {
        let mut queues = JoinSet::new();
        let mut end = self.forwards.end.subscribe();
        loop {
            for queue in self.forwards.begun() {
                let gate = self.forwards.gate.clone();
                let client = LazyClient::new(1, self.clients.clone());
                let sender = ForwardSender::new(queue, replies.clone(), end.clone(), gate, client);
                queues.spawn(sender.run());
            }
            if end.borrow_and_update().is_some() && queues.is_empty() {
                return;
            }
            tokio::select! {
                () = self.forwards.changed.notified() => {}
                Some(_) = queues.join_next() => {}
            }
        }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        // Without the forwarder, no sender serves the queues.
        self.forwards.close();
        self.forwards.begun().into_iter().for_each(|queue| queue.abandon());
    }
}
