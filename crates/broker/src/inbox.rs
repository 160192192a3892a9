//! The inbox of each shard, where messages go, and the receipt that counts members.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use model::{Envelope, FilterKey, NodeId};

use crate::Gap;

/// One shard's end of the broker.
pub trait Inbox: Send + Sync {
    /// False only when no connection behind this inbox is a member of the topic.
    fn wants(&self, topic_hash: u64) -> bool;

    /// True when there is capacity for one more message.
    fn has_capacity(&self) -> bool;

    /// Takes a message. Messages come in the order of their offsets.
    fn deliver(&self, delivery: Delivery);

    /// Messages of other nodes are lost, which came before those that are delivered from now on.
    fn notify_gap(&self, gap: Arc<Gap>);
}

/// A message on its way to one inbox.
#[derive(Debug)]
pub struct Delivery {
    /// The message.
    pub message: Arc<Envelope>,
    /// Groups that share it, of which a member behind this inbox gets it.
    pub groups: Vec<Arc<FilterKey>>,
    /// It comes from another member of these groups: nobody else behind this inbox gets it.
    pub passed: Option<Passed>,
    /// Gets the number of members that the message has behind this inbox.
    pub receipt: Option<Receipt>,
}

/// How a message comes from one member of a group to another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// The shards that were asked: each at first for a member that takes the message at once, then for one
    /// for which it can wait, at last for any.
    pub tried: Vec<u16>,
    /// The member that it was given to has gone with it: nobody has to go for it as well.
    pub is_left: bool,
    /// The number by which the sessions know it, where one of them has left it to the group.
    pub redispatch: Option<u64>,
    /// The nodes that it has passed.
    pub nodes: Vec<NodeId>,
}

/// Learns how a message gets to the members of each shard. No method may block.
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
    /// When the shard had written to the last member's socket, by the same clock. Bytes that the kernel did not take wait in
    /// outboxes.
    pub sent_us: u64,
}

/// Counts the members that a message had, over all inboxes. Its callback gets the sum when the last
/// clone is dropped, that is when every inbox has added its members.
#[derive(Clone)]
pub struct Receipt(Arc<ReceiptInner>);

struct ReceiptInner {
    members: AtomicU64,
    uncounted: AtomicBool,
    done: Option<Box<dyn FnOnce(u64) + Send + Sync>>,
    observer: Option<Arc<dyn DeliveryObserver>>,
}

impl Receipt {
    /// Calls `done` with the number of members, once, from the thread that drops the last clone. Drops
    /// `done` uncalled when nobody counts the members.
    pub fn new(done: impl FnOnce(u64) + Send + Sync + 'static) -> Self {
        Receipt::with_observer(done, None)
    }

    /// [`Receipt::new`] for a message whose delivery an observer follows, if there is one.
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

    /// What follows the delivery of the message.
    pub fn observer(&self) -> Option<&Arc<dyn DeliveryObserver>> {
        self.0.observer.as_ref()
    }

    /// Adds one inbox's members.
    pub fn add(&self, members: u64) {
        self.0.members.fetch_add(members, Ordering::Relaxed);
    }

    /// Marks that nobody counts the members: the publisher gets its answer before the message goes out.
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
