//! What the rest of the process holds of a shard.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use broker::{Delivery, Inbox};
use hub::presence::Presence;
use rustix::fd::OwnedFd;
use subscriptions::Subscriptions;

use crate::command::Command;
use crate::filter::Filter;
use crate::flow::Waiting;
use crate::mailbox::{Mailbox, Wake};
use crate::metrics::Metrics;
use crate::shard::Addresses;

/// A handle to one shard: commands in, counters out.
#[derive(Clone)]
pub struct Handle {
    pub(crate) inbox: Arc<ShardInbox>,
    /// What the shard counts.
    pub metrics: Arc<Metrics>,
}

impl Handle {
    /// Leaves a command in the shard's mailbox. Once the shard has ended nothing takes it.
    pub fn send(&self, command: Command) {
        self.inbox.mailbox.push(command);
    }

    /// The shard's end of the broker.
    pub fn inbox(&self) -> Arc<dyn Inbox> {
        self.inbox.clone()
    }
}

/// The facts that all threads of the process share: flags that change rarely, and what no shard
/// can know alone.
pub struct Shared {
    /// Set when the process is draining: readiness is off, nothing new is accepted.
    pub draining: AtomicBool,
    /// Set by the control thread while resident memory is over `limits.memory_bytes_max`: shards
    /// refuse new connections.
    pub memory_full: AtomicBool,
    /// Shards that have ended.
    pub ended: AtomicU32,
    /// Connections held in the whole process.
    pub connections: AtomicU64,
    /// Phoenix long-poll sessions among them.
    pub sessions: AtomicU64,
    /// How many of those each address has.
    pub(crate) session_addresses: Addresses,
    /// Who is in the topics with presence, over all shards. Never on the way of a message: locked
    /// when somebody enters one of those, leaves it or asks who is there, and to tell what has
    /// changed. Nothing else is locked while it is held.
    pub presence: Mutex<Presence>,
    /// The topics that users enter when they connect. Asked at each login, and locked for
    /// microseconds; nothing else is locked while it is.
    pub subscriptions: Arc<Subscriptions>,
}

impl Shared {
    /// Nobody is here yet.
    pub fn new(presence: Presence, subscriptions: Arc<Subscriptions>) -> Self {
        Shared {
            draining: AtomicBool::new(false),
            memory_full: AtomicBool::new(false),
            ended: AtomicU32::new(0),
            connections: AtomicU64::new(0),
            sessions: AtomicU64::new(0),
            session_addresses: Addresses::default(),
            presence: Mutex::new(presence),
            subscriptions,
        }
    }

    /// True while new connections are welcome: it neither drains nor is at its memory limit.
    pub fn ready(&self) -> bool {
        !self.draining.load(Ordering::Relaxed) && !self.memory_full.load(Ordering::Relaxed)
    }
}

/// An event descriptor that makes a shard's poll return.
///
/// It is made before the shards take private descriptor tables, so that its number means the same
/// in all of them.
pub(crate) struct EventWake(pub OwnedFd);

impl Wake for EventWake {
    fn wake(&self) {
        // The only failure is a full counter (2^64 - 2 wake-ups unread), and then it is awake.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

pub(crate) struct ShardInbox {
    pub mailbox: Mailbox<Command, EventWake>,
    pub filter: Filter,
    pub waiting: Waiting,
}

impl Inbox for ShardInbox {
    fn wants(&self, topic_hash: u64) -> bool {
        self.filter.holds(topic_hash)
    }

    fn has_room(&self) -> bool {
        self.mailbox.has_room()
    }

    fn deliver(&self, delivery: Delivery) {
        self.waiting.enter(&delivery.message);
        self.mailbox.push(Command::Deliver(delivery));
    }
}
