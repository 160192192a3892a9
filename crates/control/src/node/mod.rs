//! The node as the control thread sees it: what it serves, and how it reaches the shards.

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

/// What the control thread serves.
pub struct Node<S: ?Sized = dyn Shards> {
    /// Where messages are published.
    pub broker: Arc<dyn Broker>,
    /// The topics with history.
    pub history: Arc<dyn History>,
    /// Where messages outlive the process, for its figures.
    pub store: Option<store::Store>,
    /// The link to other nodes; `None` where the node is alone.
    pub cluster: Option<Arc<link::Link>>,
    /// What applications publish in their own transactions; `None` without a database.
    pub outbox: Option<Arc<outbox::Outbox>>,
    /// The history, where a database has it.
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
    /// Who is connected to the admin port.
    pub connections: Arc<Connections>,
    /// Who may call.
    pub access: Arc<Access>,
    /// [`crate::anonymous_bytes`] before the first connection: what grows beyond it belongs to the
    /// connections.
    pub anonymous_at_start: u64,
    /// Has the allocator return freed memory to the system, if it can. It may take a while, and runs
    /// on a thread of its own.
    pub give_back: Option<fn()>,
    /// What may change while it runs.
    pub live: Arc<RwLock<Live>>,
    /// The tokens that count no longer.
    pub revocations: Arc<token::Revocations>,
    /// How tokens were judged.
    pub token_stats: Arc<token::Stats>,
    /// Has keys of tokens fetched.
    pub keys: crate::key_fetcher::KeyFetcher,
    /// The server's TLS certificates, for the metrics.
    pub certificates: Arc<crate::certificates::Certificates>,
    /// Sends clients' events to the application, for the metrics.
    pub webhook: Arc<webhook::Dispatcher>,
    /// The topics that users enter when they connect.
    pub subscriptions: Arc<::subscriptions::Subscriptions>,
    /// Where changes of those are stored, if they outlive the process.
    pub keep_subscriptions: Option<Arc<dyn ::subscriptions::SubscriptionStore>>,
    /// Begins spans of traces, where a collector is configured.
    pub tracer: Option<Arc<Tracer>>,
    /// Passes all of this to another process.
    pub upgrades: Upgrades,
    /// Drains and rebalances.
    pub evictions: Evictions,
    /// Whose subscriptions are being changed.
    pub subscription_locks: UserLocks,
    /// The shards, by number. (The last field, so that the type behind it can be forgotten.)
    pub shards: S,
}

/// Why a node should get no new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotReady {
    /// The process ends.
    Draining,
    /// It is at its memory limit.
    MemoryFull,
    /// Its store can't write: clients that need it are refused.
    StoreFailed,
}

/// What may change while the control thread runs.
#[derive(Clone, Default)]
pub struct Live {
    /// The payload of a message, in bytes.
    pub message_bytes_max: usize,
    /// Topics that a user may be subscribed to for good.
    pub subscriptions_per_user_max: usize,
    /// Those of all users; 0 is no limit.
    pub subscriptions_max: u64,
    /// Resident memory at which the node takes no new connections, in bytes; 0 is 90 % of the
    /// cgroup's limit where there is one.
    pub memory_bytes_max: u64,
    /// What clients may do with which topics, and to which ones keys may publish.
    pub policy: Policy,
    /// The keys that issuers of tokens publish.
    pub jwks: Arc<token::Jwks>,
    /// Tokens say who clients are.
    pub has_tokens: bool,
    /// Revocations that are remembered.
    pub revocations_max: usize,
    /// How long a revocation is remembered that doesn't say, in seconds.
    pub revocation_seconds: u64,
    /// How often MQTT clients are told of the node (`$SYS`), in seconds; 0 is not at all.
    pub sys_seconds: u64,
    /// The directory in which backups of the store are made.
    pub backups: PathBuf,
    /// Every limit by name, for the metrics.
    pub limits: Vec<(&'static str, u64)>,
    /// The configuration in force as TOML, without secrets.
    pub config: String,
}

impl<S: Shards + ?Sized> Node<S> {
    /// What may change, as it is now. Hold it for a statement only: a reload waits for it.
    pub(crate) fn live(&self) -> RwLockReadGuard<'_, Live> {
        self.live.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the node should get no new connections, if so.
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

    /// What the program's own memory grew since the start, over the open connections, in bytes;
    /// 0 while there is no connection.
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
