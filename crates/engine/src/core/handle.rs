//! The handle of an engine for other threads, and the state that all engines of a process share.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use broker::{Delivery, Gap, Inbox};
use mailbox::Filter;
use model::{Name, NodeId};
use presence::Presence;
use protocol::Protocols;
use quotas::Quotas;
use sessions::{Retained, Sessions};
use subscriptions::Subscriptions;

use crate::core::command::Command;
use crate::core::metrics::Metrics;
use crate::delivery::backpressure::ShardBacklog;
use crate::limits::user_counts::Users;

/// A handle to one shard: commands in, counters out.
#[derive(Clone)]
pub struct Handle {
    pub(crate) inbox: Arc<EngineInbox>,
    /// The counters of the shard.
    pub metrics: Arc<Metrics>,
}

impl Handle {
    /// A handle to an engine that takes its commands from this queue, and will have about so many topics.
    pub fn new(queue: Box<dyn Queue>, topics: usize) -> Self {
        let (filter, backlog) = (Filter::new(topics), ShardBacklog::default());
        let inbox = EngineInbox { queue, filter, backlog };
        Handle { inbox: Arc::new(inbox), metrics: Arc::default() }
    }

    /// A handle with the same queue and new counters, for an engine that replaces this one.
    pub fn successor(&self) -> Handle {
        Handle { inbox: self.inbox.clone(), metrics: Arc::default() }
    }

    /// Messages that wait for the members of this engine's topics.
    pub fn backlog(&self) -> &ShardBacklog {
        &self.inbox.backlog
    }

    /// The engine has ended. Nothing is published to it from now on, and no receipt waits for it.
    pub fn end(&self) {
        self.inbox.filter.rebuild(std::iter::empty());
        self.inbox.backlog.end();
    }

    /// Appends a command to the shard's queue. After the end of the shard it is never run.
    pub fn send(&self, command: Command) {
        self.inbox.queue.push(command);
    }

    /// A user has acknowledged a topic up to an offset: notifies the engine, if it has connections of the user. `hash` is
    /// the hash of the user's personal topic.
    pub fn notify_acknowledged(&self, hash: u64, user: &Name, topic: &Name, offset: u64) {
        if self.inbox.filter.holds(hash) {
            let (user, topic) = (user.clone(), topic.clone());
            self.send(Command::Acknowledged { user, topic, offset });
        }
    }

    /// The cursor of a user in a topic is at an earlier offset than this node knew, or certain now: notifies the engine, if
    /// it has connections of the user. `hash` is the hash of the user's personal topic, and `offset` the earlier one.
    pub fn notify_begin_again(&self, hash: u64, user: &Name, topic: &Name, offset: Option<u64>) {
        if self.inbox.filter.holds(hash) {
            self.send(Command::BeginAgain { user: user.clone(), topic: topic.clone(), offset });
        }
    }

    /// Commands that wait in the mailbox and in the engine.
    pub fn commands_pending(&self) -> u64 {
        self.inbox.queue.len() as u64 + self.metrics.commands_pending.get()
    }

    /// The shard's end of the broker.
    pub fn inbox(&self) -> Arc<dyn Inbox> {
        self.inbox.clone()
    }
}

/// The state that all threads of the process share: flags that change rarely, and sums over all shards.
pub struct Shared {
    /// The name of the node.
    pub node: NodeId,
    /// The protocols of the server.
    pub protocols: &'static Protocols,
    /// Set while the node drains, to end or by an operator's command: readiness is off.
    pub draining: AtomicBool,
    /// Set when the process ends. From then on it drains, and an operator can't cancel that.
    pub ending: AtomicBool,
    /// Set by the control thread when the time of an operator's drain is over: shards refuse new connections.
    pub drained: AtomicBool,
    /// Set by the control thread while resident memory is over `limits.memory_bytes_max`: shards
    /// refuse new connections.
    pub memory_full: AtomicBool,
    /// Shards that have ended.
    pub ended: AtomicU32,
    /// Open connections of the whole process.
    pub connections: AtomicU64,
    /// Phoenix long-poll sessions among them.
    pub sessions: AtomicU64,
    /// The sessions of each address.
    pub(crate) session_addresses: Addresses,
    /// The connections of each address, while they are limited.
    pub addresses: Addresses,
    /// The recent requests of users, addresses and keys.
    pub quotas: Quotas,
    /// The connections and topics of each user, while they are limited.
    pub(crate) users: Users,
    /// The presence registry, over all shards. No message passes through it. Shards call it when a connection joins
    /// such a topic, leaves it or requests the snapshot, and to publish changes.
    pub presence: Arc<dyn Presence>,
    /// The stored subscriptions of users. Read at each login, and locked for microseconds; no other lock is taken
    /// meanwhile.
    pub subscriptions: Arc<Subscriptions>,
    /// Which connection has which MQTT session.
    pub mqtt_sessions: Arc<dyn Sessions>,
    /// The retained message of each topic.
    pub retained: Arc<dyn Retained>,
    /// When the node's clock began, in microseconds since 1970.
    clock_began_us: AtomicU64,
    /// When the node's clock began, by the clock by which ages are counted, in microseconds since 1970.
    ages_began_us: AtomicU64,
}

impl Shared {
    /// The state without connections.
    pub fn new(
        node: NodeId,
        protocols: &'static Protocols,
        presence: Arc<dyn Presence>,
        subscriptions: Arc<Subscriptions>,
        (mqtt_sessions, retained): (Arc<dyn Sessions>, Arc<dyn Retained>),
    ) -> Self {
        Shared {
            node,
            protocols,
            draining: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            drained: AtomicBool::new(false),
            memory_full: AtomicBool::new(false),
            ended: AtomicU32::new(0),
            connections: AtomicU64::new(0),
            sessions: AtomicU64::new(0),
            session_addresses: Addresses::default(),
            addresses: Addresses::default(),
            quotas: Quotas::default(),
            users: Users::default(),
            presence,
            subscriptions,
            mqtt_sessions,
            retained,
            clock_began_us: AtomicU64::new(0),
            ages_began_us: AtomicU64::new(0),
        }
    }

    /// Sets the time, in microseconds: by the node's clock, the time of day since 1970, and the time since 1970 by
    /// which ages are counted before something is deleted. The control thread calls it now and then, since the time of
    /// day may be corrected.
    pub fn set_time(&self, now_us: u64, unix_us: u64, age_us: u64) {
        self.clock_began_us.store(unix_us.saturating_sub(now_us), Ordering::Relaxed);
        self.ages_began_us.store(age_us.saturating_sub(now_us), Ordering::Relaxed);
    }

    /// When the node's clock began, by the time of day, in microseconds since 1970.
    pub fn clock_began_us(&self) -> u64 {
        self.clock_began_us.load(Ordering::Relaxed)
    }

    /// The time by which ages are counted before something is deleted, at a time of the node's clock in microseconds,
    /// in milliseconds since 1970. It does not jump forwards, as the time of day may.
    pub fn age_ms(&self, now_us: u64) -> u64 {
        (self.ages_began_us.load(Ordering::Relaxed) + now_us) / 1_000
    }

    /// The time of day at a time of the node's clock in microseconds, in seconds since 1970.
    pub fn unix_s(&self, now_us: u64) -> u64 {
        (self.clock_began_us.load(Ordering::Relaxed) + now_us) / 1_000_000
    }

    /// The time of day at a time of the node's clock in microseconds, in microseconds since 1970.
    pub fn unix_us(&self, now_us: u64) -> u64 {
        self.clock_began_us.load(Ordering::Relaxed) + now_us
    }

    /// The time of day at a time of the node's clock in microseconds, in milliseconds since 1970.
    pub fn unix_ms(&self, now_us: u64) -> u64 {
        (self.clock_began_us.load(Ordering::Relaxed) + now_us) / 1_000
    }
}

/// The connections of each address, over all shards; used while they are limited.
#[derive(Default)]
pub struct Addresses(Mutex<HashMap<IpAddr, u32>>);

impl Addresses {
    /// Adds one, unless there are `max`.
    pub fn enter(&self, address: IpAddr, max: u32) -> bool {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        let fits = *count < max;
        *count += u32::from(fits);
        fits
    }

    /// Subtracts one.
    pub fn leave(&self, address: IpAddr) {
        let counts = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&address);
                // Does nothing unless nearly all addresses have left.
                counts.shrink_to(counts.len() * 4);
            }
        }
    }
}

/// The command queue of an engine. Other threads append commands, and the engine takes them in the driver's next turn.
pub trait Queue: Send + Sync {
    /// Appends a command, and wakes the driver. Must not block.
    fn push(&self, command: Command);

    /// Returns false if the queue is full.
    fn has_capacity(&self) -> bool;

    /// Returns true if no command waits.
    fn is_empty(&self) -> bool;

    /// Returns the number of commands that wait.
    fn len(&self) -> usize;

    /// Swaps the commands that wait with `empty`, an empty vector whose memory is used again.
    fn take(&self, empty: Vec<Command>) -> Vec<Command>;
}

pub(crate) struct EngineInbox {
    pub queue: Box<dyn Queue>,
    pub filter: Filter,
    pub backlog: ShardBacklog,
}

impl Inbox for EngineInbox {
    fn wants(&self, topic_hash: u64) -> bool {
        self.filter.holds(topic_hash)
    }

    fn has_capacity(&self) -> bool {
        self.queue.has_capacity()
    }

    fn deliver(&self, delivery: Delivery) {
        self.backlog.enter(&delivery.message);
        self.queue.push(Command::Deliver(delivery));
    }

    fn notify_gap(&self, gap: Arc<Gap>) {
        self.queue.push(Command::Gap(gap));
    }
}
