//! What joins the parts of Throng: a published message gets its place in the order here and goes
//! to every inbox that has members for it.
//!
//! [`Local`] joins the shards of one process. The broker knows nothing about connections.

mod local;
mod recent;

use std::fmt;
use std::sync::Arc;

use wire::{Draft, Epoch, Id, Message};

pub use local::{Limits, Local};
pub use recent::{Activity, Latest, Recent, TopicActivity};

/// Puts messages in order and carries them to every inbox that wants them.
pub trait Broker: Send + Sync {
    /// Gives the draft its place, keeps it in the recent window and hands it to every interested
    /// inbox before it returns. `receipt` learns how many members the message had on this node.
    fn publish(&self, draft: Draft, receipt: Option<Receipt>) -> Result<Id, PublishError>;

    /// What was published to any of the topics after `since`, as far as the recent window
    /// reaches, together with the place that was the newest of all when the look began: every
    /// message up to it has been handed to the inboxes, and none after it is among those found.
    /// Publishers get their turns while it searches.
    fn recent(&self, topics: &[(u64, &str)], since: Option<Id>) -> Recent;

    /// The newest messages of a topic (hash and name), or of all of them, newest first: at most
    /// `limit`, as far as the recent window reaches and among its newest 100,000. For people who
    /// look: publishers get their turns while it searches.
    fn latest(&self, topic: Option<(u64, &str)>, limit: usize) -> Latest;

    /// How often each topic occurs in the last `seconds_max` seconds, as far as the recent window
    /// reaches back and among its newest 100,000 messages. Publishers get their turns meanwhile.
    fn activity(&self, seconds_max: u64) -> Activity;

    /// The hash of a topic's name that all indexes of this node share. It is keyed, so that a
    /// client that chooses names can't make them collide.
    fn hash(&self, topic: &str) -> u64;

    /// The life of this node's numbering.
    fn epoch(&self) -> Epoch;
}

/// One shard's end of the broker.
pub trait Inbox: Send + Sync {
    /// False only when no connection behind this inbox is a member of the topic.
    fn wants(&self, topic_hash: u64) -> bool;

    /// True when there is room for one more message.
    fn has_room(&self) -> bool;

    /// Takes a message. Messages come in the order of their offsets.
    fn deliver(&self, delivery: Delivery);
}

/// A message on its way to one inbox.
#[derive(Debug)]
pub struct Delivery {
    /// The message.
    pub message: Arc<Message>,
    /// Told how many members the message has behind this inbox.
    pub receipt: Option<Receipt>,
}

/// Counts the members that a message had, over all inboxes; whoever made it is told the sum when
/// the last clone is dropped, that is when every inbox has taken its share.
#[derive(Clone)]
pub struct Receipt(Arc<ReceiptInner>);

struct ReceiptInner {
    members: std::sync::atomic::AtomicU64,
    done: Option<Box<dyn FnOnce(u64) + Send + Sync>>,
}

impl Receipt {
    /// Calls `done` with the number of members, once, from the thread that settles it last.
    pub fn new(done: impl FnOnce(u64) + Send + Sync + 'static) -> Self {
        Receipt(Arc::new(ReceiptInner {
            members: std::sync::atomic::AtomicU64::new(0),
            done: Some(Box::new(done)),
        }))
    }

    /// Adds one inbox's members.
    pub fn add(&self, members: u64) {
        self.0.members.fetch_add(members, std::sync::atomic::Ordering::Relaxed);
    }
}

impl Drop for ReceiptInner {
    fn drop(&mut self) {
        // Dropping the last Arc orders this after every `add`.
        if let Some(done) = self.done.take() {
            done(*self.members.get_mut());
        }
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receipt")
    }
}

/// Why a message was not published. Nothing of it was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishError {
    /// A shard is behind by `mailbox_messages_max` messages: try again in a moment.
    Overloaded,
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PublishError::Overloaded => f.write_str(
                "the server is behind with its deliveries: nothing was published; try again after a second",
            ),
        }
    }
}

impl std::error::Error for PublishError {}
