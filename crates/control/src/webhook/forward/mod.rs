//! Carries what clients publish to back ends, and what these answer back: rules of `[[forward]]`.
//!
//! Each rule has a queue: a queue of its own, whose messages leave in batches in the order in which they came,
//! one HTTP request at a time. A batch that is not taken is sent again, until the time of its messages is
//! over; then they have failed, and whoever waits for them is told. So a back end that does not answer holds
//! up its own queue alone, and no message overtakes another.
//!
//! A status of 200 to 299 takes a batch, one of 400 to 499 refuses it for good but for 408 and 429, and all
//! else is a failure that may pass. What an answer says is published by [`PublishReplies`], which knows the node.

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

/// At the end, what waits is sent for so long.
const END: Duration = Duration::from_secs(3);

/// Where the messages of a rule go, and how. All of it may change while the node runs; the limits hold for
/// what comes after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// The rule's filter, which is its name.
    pub filter: Arc<str>,
    /// `http://` or `https://`.
    pub url: Arc<str>,
    /// How long one request may take.
    pub timeout: Duration,
    /// How long a message is offered.
    pub retry: Duration,
    /// How many messages a request may carry.
    pub batch_messages_max: usize,
    /// How long a message waits for others.
    pub batch_wait: Duration,
    /// How many messages may be there that the back end has not taken.
    pub queue_messages_max: usize,
    /// What these may hold, in bytes; one that is alone may be larger.
    pub queue_bytes_max: usize,
}

/// Where the reply to a message goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// The topic that its client named, else its user's own.
    pub topic: Name,
    /// By which the client knows the reply.
    pub correlation_data: Option<Box<[u8]>>,
}

/// Publishes the replies of back ends.
pub trait PublishReplies: Send + Sync {
    /// Publishes the messages of a response's body and counts what becomes of each. `reply_to` says where the
    /// answer to a message goes by its id; nothing where it can go nowhere, or was not asked.
    ///
    /// # Errors
    /// What is wrong with the body, or with the first message that can't be published; others are.
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
    /// Its number: those that come later have higher ones.
    pub number: u64,
    /// The request in which it is under way, if it is.
    pub sent_in: Option<RequestId>,
}

/// The shards' side: the queues, by their filters.
pub(super) struct Forwards {
    /// With what ids begin: that of another run is another.
    node: String,
    gate: Arc<Gate>,
    queues: RwLock<HashMap<Arc<str>, Arc<ForwardQueue>>>,
    /// Those that nobody serves yet.
    begun: Mutex<Vec<Arc<ForwardQueue>>>,
    /// Those whose rules are gone, and which may have something to send yet.
    closed: Mutex<Vec<Weak<ForwardQueue>>>,
    changed: Notify,
    /// The number of the next message.
    pub next: AtomicU64,
    /// When what waits is sent no longer; nothing before the end.
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

    /// Takes rules in place of those before. What waits for one that is gone is sent yet.
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

    /// Puts a message into its queue. For one whose rule is gone there is no capacity, as in a queue that closes: its
    /// shard has not heard of that yet, and what is published again goes by the rules that are there then.
    pub fn put(&self, request: ForwardRequest) -> Result<(), QueueFull> {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        let queue = queues.get(&request.filter).cloned();
        drop(queues);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}-{number}", self.node);
        queue.ok_or(QueueFull)?.put(request, id, number)
    }

    /// All queues, those included whose rules are gone.
    pub fn all_queues(&self) -> Vec<Arc<ForwardQueue>> {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        queues.values().cloned().chain(closed.iter().filter_map(Weak::upgrade)).collect()
    }

    /// Takes in the messages of another process, in their order and without regard to limits. They count as if
    /// they came now. Gives those whose rules are not there.
    pub fn restore(&self, messages: Vec<Restored>) -> Vec<Restored> {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        let mut homeless = Vec::new();
        for message in messages {
            match queues.get(&message.request.filter).cloned() {
                Some(queue) => queue.restore(message),
                None => homeless.push(message),
            }
        }
        homeless
    }

    /// Takes nothing any more, and ends when all was sent, or soon.
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

    /// What was counted, by filter.
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

/// The control thread's side: sends what is in the queues.
pub struct Forwarder {
    forwards: Arc<Forwards>,
    /// Whose servers it trusts.
    clients: Clients,
    /// Tells that this has ended.
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

    /// Runs until the dispatcher is told to stop, and a little longer to send what waits. Needs a tokio
    /// runtime with I/O and time.
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
        // Nobody would take from the queues again.
        self.forwards.close();
        self.forwards.begun().into_iter().for_each(|queue| queue.abandon());
    }
}
