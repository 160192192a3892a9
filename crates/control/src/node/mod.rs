//! The node as the control thread sees it: its state, and its requests to the shards.

mod shards;
mod user_locks;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Instant;

pub(crate) use ::history::History;
use auth::Policy;
use broker::Broker;
use quotas::Quotas;
use shard::{Command, Metrics, Reply};

use crate::eviction::Evictions;
use crate::http::Served;
use crate::http::access::Access;
use crate::http::admission::Connections;
use crate::spans::Tracer;
use crate::upgrade::Upgrades;
use crate::webhook;

pub use shards::Shards;
pub(crate) use shards::{SHARD_TIMEOUT, ShardReplies, ShardRequestError};
pub(crate) use user_locks::UserLock;
pub use user_locks::UserLocks;

/// The node that the control thread serves.
pub struct Node<S: ?Sized = dyn Shards> {
    /// Publishes messages.
    pub broker: Arc<dyn Broker>,
    /// The topics with history.
    pub history: Arc<dyn History>,
    /// The store on disk, if there is one.
    pub store: Option<store::Store>,
    /// The link to other nodes; `None` if the node is alone.
    pub cluster: Option<Arc<link::Link>>,
    /// The outbox in PostgreSQL; `None` without a database.
    pub outbox: Option<Arc<outbox::Outbox>>,
    /// The history in PostgreSQL, if a database has it.
    pub history_database: Option<history_postgres::Postgres>,
    /// The flags that all threads share.
    pub shared: Arc<shard::Shared>,
    /// When the node's clock began.
    pub started: Instant,
    /// Where clients connect without TLS, for the page: `http://127.0.0.1:8000`.
    pub client_url: Option<String>,
    /// Where they connect by TLS.
    pub client_url_tls: Option<String>,
    /// The largest body of a request, in bytes.
    pub body_bytes_max: usize,
    /// The connections to the admin port.
    pub connections: Arc<Connections>,
    /// The keys and sessions that may call.
    pub access: Arc<Access>,
    /// [`crate::anonymous_bytes`] before the first connection: growth beyond it belongs to the connections.
    pub anonymous_at_start: u64,
    /// Makes the allocator return freed memory to the system, if it can. It may take a while, and runs on a thread of
    /// its own.
    pub give_back: Option<fn()>,
    /// The settings that may change while it runs.
    pub live: Arc<RwLock<Live>>,
    /// The tokens that are revoked.
    pub revocations: Arc<token::Revocations>,
    /// Counts of how tokens were verified.
    pub token_stats: Arc<token::Stats>,
    /// Requests keys of tokens.
    pub keys: crate::key_fetcher::KeyFetcher,
    /// The server's TLS certificates, for the metrics.
    pub certificates: Arc<crate::certificates::Certificates>,
    /// Sends clients' events to the application, for the metrics.
    pub webhook: Arc<webhook::Dispatcher>,
    /// The topics that users enter when they connect.
    pub subscriptions: Arc<::subscriptions::Subscriptions>,
    /// Stores changes of subscriptions, if these outlive the process.
    pub keep_subscriptions: Option<Arc<dyn ::subscriptions::SubscriptionStore>>,
    /// The stored subscriptions in PostgreSQL, if the configuration names a database.
    pub subscription_database: Option<subscriptions_postgres::Postgres>,
    /// Begins spans of traces, if a collector is configured.
    pub tracer: Option<Arc<Tracer>>,
    /// Upgrades, which pass this state to another process.
    pub upgrades: Upgrades,
    /// True if the process did not take over from another one, so that it lacks the retained messages of its cluster.
    pub is_new: bool,
    /// Drains and rebalances.
    pub evictions: Evictions,
    /// Locks of the users whose subscriptions are being changed.
    pub subscription_locks: UserLocks,
    /// The shards, by number. (The last field, so that the node coerces to one of `dyn Shards`.)
    pub shards: S,
}

/// Why a node should get no new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotReady {
    /// It drains.
    Draining,
    /// It is at its memory limit.
    MemoryFull,
    /// Its store can't write: clients that need it are rejected.
    StoreFailed,
}

/// The settings that may change while the control thread runs.
#[derive(Clone, Default)]
pub struct Live {
    /// The largest payload of a message, in bytes.
    pub message_bytes_max: usize,
    /// Durable subscriptions of a user, at most.
    pub subscriptions_per_user_max: usize,
    /// Durable subscriptions of all users, at most; 0 is no limit.
    pub subscriptions_max: u64,
    /// Resident memory at which the node takes no new connections, in bytes; 0 is 90 % of the cgroup's limit if there
    /// is one.
    pub memory_bytes_max: u64,
    /// What clients may do with which topics, and to which ones keys may publish.
    pub policy: Policy,
    /// The keys that issuers of tokens publish.
    pub jwks: Arc<token::Jwks>,
    /// Whether tokens name the users of clients.
    pub has_tokens: bool,
    /// Revocations that are remembered, at most.
    pub revocations_max: usize,
    /// How long a revocation is remembered by default, in seconds.
    pub revocation_seconds: u64,
    /// Seconds between two publishes of the `$SYS` topics for MQTT clients; 0 is never.
    pub sys_seconds: u64,
    /// The directory in which backups of the store are made.
    pub backups: PathBuf,
    /// Every limit by name, for the metrics.
    pub limits: Vec<(&'static str, u64)>,
    /// The configuration in force as TOML, without secrets.
    pub config: String,
}

impl<S: Shards + ?Sized> Node<S> {
    /// Returns the current settings. Hold the guard for one statement only: a reload waits for it.
    pub(crate) fn live(&self) -> RwLockReadGuard<'_, Live> {
        self.live.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns why the node should get no new connections, if so.
    pub(crate) fn not_ready(&self) -> Option<NotReady> {
        if self.shared.draining.load(Ordering::Relaxed) {
            Some(NotReady::Draining)
        } else if self.shared.memory_full.load(Ordering::Relaxed) {
            Some(NotReady::MemoryFull)
        } else if self.store.as_ref().is_some_and(|store| store.write_error().is_some()) {
            Some(NotReady::StoreFailed)
        } else {
            None
        }
    }

    /// Topics' history, in memory and on disk.
    pub(crate) fn history(&self) -> &dyn History {
        &*self.history
    }

    /// Sends a request to one shard.
    pub(crate) fn request<T: Send + 'static>(
        &self,
        shard: usize,
        command: impl Fn(Reply<T>) -> Command,
    ) -> ShardReplies<T> {
        ShardReplies::of(&self.shards, shard..shard + 1, command)
    }

    /// Sends a request to every shard.
    pub(crate) fn request_all<T: Send + 'static>(
        &self,
        command: impl Fn(Reply<T>) -> Command,
    ) -> ShardReplies<T> {
        ShardReplies::of(&self.shards, 0..self.shards.count(), command)
    }

    /// The counters of all shards.
    pub(crate) fn metrics(&self) -> impl Iterator<Item = &Metrics> {
        (0..self.shards.count()).map(|shard| self.shards.metrics(shard))
    }

    /// A counter, added up over all shards.
    pub(crate) fn sum(&self, read: impl Fn(&Metrics) -> u64) -> u64 {
        self.metrics().map(read).sum()
    }

    /// Returns the growth of the program's own memory since the start, divided by the open connections, in bytes; 0
    /// while there is no connection.
    pub(crate) fn bytes_per_connection(&self, anonymous: u64) -> f64 {
        let open = self.shared.connections.load(Ordering::Relaxed);
        if open == 0 {
            return 0.0;
        }
        anonymous.saturating_sub(self.anonymous_at_start) as f64 / open as f64
    }
}

impl Served for Node {
    fn access(&self) -> &Access {
        &self.access
    }

    fn body_bytes_max(&self) -> usize {
        self.body_bytes_max
    }

    fn connections(&self) -> &Connections {
        &self.connections
    }

    fn quotas(&self) -> &Quotas {
        &self.shared.quotas
    }

    fn now_us(&self) -> u64 {
        let us = self.started.elapsed().as_micros();
        u64::try_from(us).unwrap_or(u64::MAX)
    }
}
