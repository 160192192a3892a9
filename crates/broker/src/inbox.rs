//! The inbox of each shard, where messages go, and the receipt that counts members.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use model::{Envelope, FilterKey, NodeId};

use crate::Gap;

/// One shard's end of the broker.
pub trait Inbox: Send + Sync {
    /// Returns false only if no connection behind this inbox is a member of the topic.
    fn wants(&self, topic_hash: u64) -> bool;

    /// Returns true if the inbox has capacity for one more message.
    fn has_capacity(&self) -> bool;

    /// Takes a message. Messages come in the order of their offsets.
    fn deliver(&self, delivery: Delivery);

    /// Takes a notice of lost messages of other nodes, which came before those that are delivered from now on.
    fn notify_gap(&self, gap: Arc<Gap>);
}

/// A message on its way to one inbox.
#[derive(Debug)]
pub struct Delivery {
    /// The message.
    pub message: Arc<Envelope>,
    /// Groups that share it: one member of each behind this inbox gets it.
    pub groups: Vec<Arc<FilterKey>>,
    /// Set if another member of these groups passed it on: no other connection behind this inbox gets it.
    pub passed: Option<Passed>,
    /// Gets the number of members that the message has behind this inbox.
    pub receipt: Option<Receipt>,
}

/// The route of a message from one member of a group to another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// The shards that were tried: each at first for a member that takes the message at once, then for one that lets
    /// it wait, at last for any.
    pub tried: Vec<u16>,
    /// True if a member has left the message: then no other member must be closed for it.
    pub is_left: bool,
    /// The number of the message for the sessions, if one of them has left it to the group.
    pub redispatch: Option<u64>,
    /// The nodes that it has passed.
    pub nodes: Vec<NodeId>,
}

/// Observes how a message gets to the members of each shard. No method may block.
pub trait DeliveryObserver: Send + Sync {
    /// A shard has sent the message to all of its members.
    fn on_delivered(&self, delivery: ShardDelivery);

    /// A shard delivers the message without observing it: too many are observed, or its members did not get it in time.
    fn on_unobserved(&self);
}

/// A message's delivery to the members of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardDelivery {
    /// The shard.
    pub shard: u16,
    /// The members of the message on this shard.
    pub members: u64,
    /// When the shard received the message from its mailbox, in microseconds of the node's clock.
    pub received_us: u64,
    /// When the shard had written to the last member's socket, by the same clock. Bytes that the kernel did not take
    /// wait in outboxes.
    pub sent_us: u64,
}

/// Counts the members that a message had, over all inboxes. Its callback gets the sum when the last clone is dropped,
/// after every inbox has added its members.
#[derive(Clone)]
pub struct Receipt(Arc<ReceiptInner>);

struct ReceiptInner {
    members: AtomicU64,
    uncounted: AtomicBool,
    done: Option<Box<dyn FnOnce(u64) + Send + Sync>>,
    observer: Option<Arc<dyn DeliveryObserver>>,
}

impl Receipt {
    /// Calls `done` with the number of members, once, from the thread that drops the last clone. Drops `done`
    /// uncalled if the members are not counted.
    pub fn new(done: impl FnOnce(u64) + Send + Sync + 'static) -> Self {
        Receipt::with_observer(done, None)
    }

    /// Does the same as [`Receipt::new`] for a message whose delivery an observer follows, if there is one.
    pub fn with_observer(
        done: impl FnOnce(u64) + Send + Sync + 'static,
        observer: Option<Arc<dyn DeliveryObserver>>,
    ) -> Self {
        Receipt(Arc::new(ReceiptInner {
            members: AtomicU64::new(0),
            uncounted: AtomicBool::new(false),
            done: Some(Box::new(done)),
            observer,
        }))
    }

    /// Returns the observer of the message's delivery.
    pub fn observer(&self) -> Option<&Arc<dyn DeliveryObserver>> {
        self.0.observer.as_ref()
    }

    /// Adds one inbox's members.
    pub fn add(&self, members: u64) {
        self.0.members.fetch_add(members, Ordering::Relaxed);
    }

    /// Marks the members as uncounted: the publisher gets its reply before the message goes out.
    pub fn uncounted(self) {
        self.0.uncounted.store(true, Ordering::Relaxed);
    }
}

impl Drop for ReceiptInner {
    fn drop(&mut self) {
        // Dropping the last Arc orders this after every `add`.
        if let Some(done) = self.done.take().filter(|_| !*self.uncounted.get_mut()) {
            done(*self.members.get_mut());
        }
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receipt")
    }
}
