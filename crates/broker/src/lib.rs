//! What joins the parts of Throng: a published message gets its place in the order here and goes
//! to every inbox that has members for it.
//!
//! [`Local`] joins the shards of one process. The broker knows nothing about connections.

mod kept;
mod local;
mod recent;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use wire::{Draft, Epoch, Id, Message, Name};

pub use kept::{
    AcknowledgeError, Begin, Cursor, GivenUp, Kept, KeptStats, Limits as KeptLimits, Page, Paged,
    Piece, Pull, Start, Wanted,
};
pub use local::{Limits, Local};
pub use recent::{Activity, Latest, Recent, TopicActivity};

/// Puts messages in order and carries them to every inbox that wants them.
pub trait Broker: Send + Sync {
    /// Gives the draft its place, keeps it and hands it to every interested inbox before it returns;
    /// with a store, a message of a topic with history is handed on when it is on disk. `receipt` learns how many members the message had on this node.
    fn publish(&self, draft: Draft, receipt: Option<Receipt>) -> Result<Id, PublishError>;

    /// Publishes as the options say. `done` is called once, from any thread, and must not block: at
    /// once, but where the topic is durable not before the message is on disk.
    fn submit(&self, publish: Publish, receipt: Option<Receipt>, done: Done);

    /// The topics with history, and all that goes with it.
    fn kept(&self) -> &Kept;

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

/// What to publish, and how.
#[derive(Clone, Debug)]
pub struct Publish {
    /// The message.
    pub draft: Draft,
    /// How.
    pub options: Options,
}

/// How to publish.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// A second message of the topic with this key, within a time, is answered with the first one's
    /// id and not published.
    pub idempotency_key: Option<Name>,
    /// Publish only if the topic has no message after this offset.
    pub if_offset: Option<u64>,
    /// Give it to those who are there and keep nothing.
    pub no_history: bool,
}

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Its place.
    pub id: Id,
    /// It had been published before, with the same idempotency key.
    pub repeated: bool,
}

/// Told what became of a message.
pub type Done = Box<dyn FnOnce(Result<Published, PublishError>) + Send>;

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
    members: AtomicU64,
    uncounted: AtomicBool,
    done: Option<Box<dyn FnOnce(u64) + Send + Sync>>,
}

impl Receipt {
    /// Calls `done` with the number of members, once, from the thread that settles it last; or drops
    /// it uncalled when they are not counted.
    pub fn new(done: impl FnOnce(u64) + Send + Sync + 'static) -> Self {
        Receipt(Arc::new(ReceiptInner {
            members: AtomicU64::new(0),
            uncounted: AtomicBool::new(false),
            done: Some(Box::new(done)),
        }))
    }

    /// Adds one inbox's members.
    pub fn add(&self, members: u64) {
        self.0.members.fetch_add(members, Ordering::Relaxed);
    }

    /// Nobody will count: the answer goes out before the message does.
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

/// Why a message was not published. Nothing of it was delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishError {
    /// A shard is behind by `mailbox_messages_max` messages: try again in a moment.
    Overloaded,
    /// The store's queue is full: try again in a moment.
    StoreBusy,
    /// The store can't write; this says why, and what the operator must do.
    StoreFailed(Arc<str>),
    /// What the store has of the topic is damaged; this says what, and what the operator must do.
    StoreDamaged(Arc<str>),
    /// The topic has this message already, which came after the offset that was given.
    Newer(Id),
    /// The topic has no history, so that it has no newest message.
    NoHistory,
}

impl PublishError {
    /// Its name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            PublishError::Overloaded => "overloaded",
            PublishError::StoreBusy => "store_busy",
            PublishError::StoreFailed(_) => "store_failed",
            PublishError::StoreDamaged(_) => "store_damaged",
            PublishError::Newer(_) => "newer_message",
            PublishError::NoHistory => "no_history",
        }
    }
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PublishError::Overloaded => f.write_str(
                "the server is behind with its deliveries: nothing was published; try again after a second",
            ),
            PublishError::StoreBusy => f.write_str(
                "the store is behind with its writing: nothing was published; try again after a second",
            ),
            PublishError::StoreFailed(why) => {
                write!(f, "the store can't write, and nothing was published: {why}")
            }
            PublishError::StoreDamaged(why) => f.write_str(why),
            PublishError::Newer(id) => {
                write!(f, "the topic has a newer message, {id}: read it and decide again")
            }
            PublishError::NoHistory => f.write_str(
                "if_offset needs a topic with history: give its [[topics]] table history_messages_max",
            ),
        }
    }
}

impl std::error::Error for PublishError {}

impl From<store::Fault> for PublishError {
    fn from(fault: store::Fault) -> Self {
        let why = fault.to_string().into();
        match fault {
            store::Fault::Damaged(_) => PublishError::StoreDamaged(why),
            store::Fault::Disk(_) | store::Fault::Closed => PublishError::StoreFailed(why),
        }
    }
}
