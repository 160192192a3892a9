//! The node in numbers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use model::CloseReason;
use serde::Serialize;
use shard::{Metrics, Refusal};
use utoipa::ToSchema;

use crate::monitor::histogram::{merged, percentile_ms};
use crate::monitor::limited::limited;
use crate::monitor::metrics::of_transport;
use crate::monitor::process;
use crate::node::{History, Node};

/// The node in numbers.
#[derive(Serialize, ToSchema)]
pub(crate) struct Stats {
    version: &'static str,
    /// All ids of messages without history begin with it.
    epoch: String,
    uptime_seconds: u64,
    /// Connections that are open, short requests included.
    connections: u64,
    connections_by_transport: BTreeMap<&'static str, u64>,
    connections_by_shard: Vec<u64>,
    /// Connections opened since the start. Those that are not closed are open.
    opened: u64,
    closed: u64,
    closed_by_reason: BTreeMap<&'static str, u64>,
    refused_by_reason: BTreeMap<&'static str, u64>,
    /// How often a limit rejected, delayed or closed something, by its key in the configuration.
    limited_by_name: BTreeMap<&'static str, u64>,
    /// Topics with members, counted for each shard and added up; users' own included.
    topics: u64,
    /// Messages that shards took in: one that goes to three shards counts three times.
    messages_in: u64,
    messages_delivered: u64,
    bytes_out: u64,
    bytes_in: u64,
    outboxes: u64,
    outbox_bytes: u64,
    /// Time from publish to the kernel, in milliseconds, from a histogram whose bounds double.
    delivery_ms: Percentiles,
    /// Resident memory (VmRSS).
    rss_bytes: u64,
    /// The part of it that the program itself has written (RssAnon).
    rss_anon_bytes: u64,
    /// Growth of the program's own memory since the start, divided by the connections.
    bytes_per_connection: f64,
    cpu_seconds: f64,
    history: HistoryStats,
    mqtt: MqttStats,
    /// Null if the node has no store.
    store: Option<StoreStats>,
    /// Null if the history is not in PostgreSQL.
    history_database: Option<HistoryDatabaseStats>,
    /// Null if stored subscriptions are not in PostgreSQL.
    subscription_database: Option<SubscriptionDatabaseStats>,
}

/// Topics with history and their cursors. Figures that are not about now count from the start.
#[derive(Serialize, ToSchema)]
pub(crate) struct HistoryStats {
    /// All ids of their messages begin with it.
    epoch: String,
    /// The offset of the last of them that was delivered.
    offset: u64,
    /// Messages in memory now.
    messages: u64,
    /// Bytes of these messages.
    bytes: u64,
    /// Topics that have something in memory.
    topics: u64,
    /// Pairs of a user and a topic that have a cursor: how far the user has acknowledged.
    cursors: u64,
    idempotency_keys: u64,
    /// Messages published to topics with history.
    published: u64,
    /// Publishes that repeated an earlier one with the same idempotency key.
    repeated: u64,
    /// Messages of topics that are not durable which the store could not write.
    lost: u64,
    /// Acknowledgements that moved a cursor.
    acknowledged: u64,
    /// Messages delivered again, to connections that had them, because they were not acknowledged in
    /// time.
    redelivered: u64,
    /// Messages that were not acknowledged after all their deliveries and went to a dead-letter topic.
    dead_lettered: u64,
    /// Messages that were not acknowledged after all their deliveries and were dropped.
    dropped: u64,
    /// Clients that came back and got all that they missed.
    recovered: u64,
    /// Clients that came back and did not get all that they missed.
    unrecovered: u64,
    /// Lookups that had to read the disk.
    disk_reads: u64,
}

/// MQTT clients, their sessions, and retained messages. Figures that are not about now count from the start.
#[derive(Serialize, ToSchema)]
pub(crate) struct MqttStats {
    /// Connected clients.
    clients: u64,
    /// Sessions of clients that are away.
    sessions_away: u64,
    /// These, and sessions of connected clients that will outlive their connections.
    #[serde(rename = "sessions_kept")]
    persistent_sessions: u64,
    /// Different topic filters for which messages are retained.
    filters: u64,
    /// Sessions that expired.
    sessions_expired: u64,
    /// Sessions that did not become persistent because of a limit.
    sessions_refused: u64,
    /// Connections that another one of the same client has replaced.
    taken_over: u64,
    /// Messages that clients were sent again on a new connection.
    repeated: u64,
    /// Messages that waited for clients until a limit of the history dropped them, or they expired.
    gone: u64,
    /// Topics with a retained message.
    retained: u64,
    /// Bytes of these messages.
    retained_bytes: u64,
    /// Messages that were not retained because of a limit.
    retained_refused: u64,
    /// Topics whose retained message waits to be written to PostgreSQL.
    retained_pending: u64,
}

/// The store on disk and its writer.
#[derive(Serialize, ToSchema)]
pub(crate) struct StoreStats {
    /// Why it can't write; null while it can.
    failed: Option<String>,
    /// Operations that wait to be written.
    queue_messages: u64,
    /// Bytes of these operations.
    queue_bytes: u64,
    /// Reads that wait.
    reads: u64,
    /// Transactions that were committed.
    commits: u64,
    /// Operations in them.
    operations: u64,
    /// Time of the last transaction, in milliseconds.
    commit_ms_last: f64,
    /// Mean time of a transaction.
    commit_ms_mean: f64,
    /// Longest time of a transaction.
    commit_ms_max: f64,
    /// Transactions that failed.
    failures: u64,
    /// Reads that found damage.
    damaged_reads: u64,
    /// Topics in which the writer has found damage: nothing is stored in them until their history is deleted.
    damaged_topics: u64,
    /// The file's length.
    file_bytes: u64,
    topics: u64,
    messages: u64,
}

/// The history in PostgreSQL. Figures that are not about now count from the start.
#[derive(Serialize, ToSchema)]
pub(crate) struct HistoryDatabaseStats {
    /// Nodes that can use the database: 1 or 0 for one node.
    nodes_connected: u64,
    /// Why a node can't use the database; null if none says so.
    error: Option<String>,
    /// How often the connection was lost.
    connections_lost: u64,
    /// Batches of messages that were committed.
    commits: u64,
    /// Messages that wait to be written.
    queue_messages: u64,
    /// Bytes of these messages.
    queue_bytes: u64,
    /// Messages that are written and wait to be delivered.
    backlog_messages: u64,
    /// Bytes of these messages.
    backlog_bytes: u64,
    /// Users' cursors that moved at the node and wait to be written.
    pending_cursors: u64,
    /// MQTT sessions of the node whose changes wait to be written.
    pending_sessions: u64,
    /// Messages that the node delivered and can't read again, because it has no rule for their topics.
    passed: u64,
    /// Times that members got notice of a gap, because messages were deleted before the node had read them, or can't be
    /// read.
    gaps: u64,
    /// Failed deletions of messages that no rule retains.
    trims_failed: u64,
}

/// The stored subscriptions in PostgreSQL. Figures that are not about now count from the start.
#[derive(Serialize, ToSchema)]
pub(crate) struct SubscriptionDatabaseStats {
    /// Nodes that can use the database: 1 or 0 for one node.
    nodes_connected: u64,
    /// Why a node can't use the database; null if none says so.
    error: Option<String>,
    /// How often the connection was lost.
    connections_lost: u64,
    /// Changes of stored subscriptions, by any node, that the node applied.
    applied: u64,
    /// Times that the node read all stored subscriptions again.
    reloads: u64,
}

impl From<history_postgres::HistoryStatus> for HistoryDatabaseStats {
    fn from(status: history_postgres::HistoryStatus) -> Self {
        HistoryDatabaseStats {
            nodes_connected: status.is_connected.into(),
            error: status.error,
            connections_lost: status.connections_lost,
            commits: status.batches,
            queue_messages: status.queue_messages,
            queue_bytes: status.queue_bytes,
            backlog_messages: status.backlog_messages,
            backlog_bytes: status.backlog_bytes,
            pending_cursors: status.pending_cursors,
            pending_sessions: status.pending_sessions,
            passed: status.passed,
            gaps: status.gaps,
            trims_failed: status.trims_failed,
        }
    }
}

impl From<subscriptions_postgres::SubscriptionsStatus> for SubscriptionDatabaseStats {
    fn from(status: subscriptions_postgres::SubscriptionsStatus) -> Self {
        SubscriptionDatabaseStats {
            nodes_connected: status.is_connected.into(),
            error: status.error,
            connections_lost: status.connections_lost,
            applied: status.applied,
            reloads: status.reloads,
        }
    }
}

impl HistoryStats {
    fn of(history: &dyn History) -> Self {
        let (stats, top) = (history.stats(), history.top());
        HistoryStats {
            epoch: top.epoch.to_string(),
            offset: top.offset,
            messages: stats.messages,
            bytes: stats.bytes,
            topics: stats.topics,
            cursors: stats.cursors,
            idempotency_keys: stats.idempotency_keys,
            published: stats.published,
            repeated: stats.repeated,
            lost: stats.unwritten,
            acknowledged: stats.acknowledged,
            redelivered: stats.redelivered,
            dead_lettered: stats.dead_lettered,
            dropped: stats.dropped,
            recovered: stats.recovered,
            unrecovered: stats.unrecovered,
            disk_reads: stats.disk_reads,
        }
    }
}

impl MqttStats {
    fn of(node: &Node) -> Self {
        let sessions = node.shared.mqtt_sessions.stats();
        let retained = node.shared.retained.stats();
        MqttStats {
            clients: node.sum(|metrics| of_transport(node, metrics, "mqtt")),
            sessions_away: sessions.away as u64,
            persistent_sessions: sessions.persistent as u64,
            filters: sessions.interests as u64,
            sessions_expired: sessions.expired,
            sessions_refused: sessions.refused,
            taken_over: sessions.taken_over,
            repeated: node.sum(|metrics| metrics.mqtt_repeated.get()),
            gone: node.sum(|metrics| metrics.mqtt_gone.get()),
            retained: retained.messages as u64,
            retained_bytes: retained.bytes as u64,
            retained_refused: retained.refused,
            retained_pending: retained.pending as u64,
        }
    }
}

impl StoreStats {
    fn new(stats: store::Stats) -> Self {
        let ms = |us: u64| us as f64 / 1e3;
        StoreStats {
            failed: stats.failed,
            queue_messages: stats.queue_messages as u64,
            queue_bytes: stats.queue_bytes as u64,
            reads: stats.reads as u64,
            commits: stats.commits,
            operations: stats.ops,
            commit_ms_last: ms(stats.commit_us_last),
            commit_ms_mean: ms(stats.commit_us_sum) / stats.commits.max(1) as f64,
            commit_ms_max: ms(stats.commit_us_max),
            failures: stats.failures,
            damaged_reads: stats.damaged_reads,
            damaged_topics: stats.damaged_topics,
            file_bytes: stats.file_bytes,
            topics: stats.topics,
            messages: stats.messages,
        }
    }
}

/// Upper bounds: at least this share of deliveries was no slower.
#[derive(Serialize, ToSchema)]
pub(crate) struct Percentiles {
    p50: f64,
    p90: f64,
    p99: f64,
}

/// The node in numbers.
#[utoipa::path(get, path = "/api/stats", tag = "operate", responses(
    (status = 200, body = Stats)))]
pub(crate) async fn stats(State(node): State<Arc<Node>>) -> Json<Stats> {
    let sum = |read: &dyn Fn(&Metrics) -> u64| node.sum(read);
    let mut by_transport = BTreeMap::new();
    for protocol in node.shared.protocols.all() {
        let at = usize::from(protocol.encoding().0);
        *by_transport.entry(protocol.name()).or_default() +=
            sum(&|metrics| metrics.connections[at].get());
    }
    let closed_by_reason: BTreeMap<_, _> = CloseReason::ALL
        .iter()
        .map(|close| (close.name(), sum(&|metrics| metrics.closed[*close as usize].get())))
        .collect();
    let refused_by_reason = Refusal::ALL
        .iter()
        .map(|refusal| (refusal.name(), sum(&|metrics| metrics.refused[*refusal as usize].get())))
        .collect();
    let history = node.history();
    let memory = process::memory();
    let connections = node.shared.connections.load(Ordering::Relaxed);
    let latency = merged(node.metrics().map(|metrics| &metrics.delivery_latency));
    Json(Stats {
        version: env!("CARGO_PKG_VERSION"),
        epoch: node.broker.epoch().to_string(),
        uptime_seconds: node.started.elapsed().as_secs(),
        connections,
        connections_by_transport: by_transport,
        connections_by_shard: node
            .metrics()
            .map(|metrics| metrics.open_connections.get())
            .collect(),
        opened: sum(&|metrics| metrics.admitted.get()),
        closed: closed_by_reason.values().sum(),
        closed_by_reason,
        refused_by_reason,
        limited_by_name: limited(&node),
        topics: sum(&|metrics| metrics.topics.get()),
        messages_in: sum(&|metrics| metrics.messages_in.get()),
        messages_delivered: sum(&|metrics| metrics.delivered.get()),
        bytes_out: sum(&|metrics| metrics.bytes_out.get()),
        bytes_in: sum(&|metrics| metrics.bytes_in.get()),
        outboxes: sum(&|metrics| metrics.outboxes.get()),
        outbox_bytes: sum(&|metrics| metrics.outbox_bytes.get()),
        delivery_ms: Percentiles {
            p50: percentile_ms(&latency, 50),
            p90: percentile_ms(&latency, 90),
            p99: percentile_ms(&latency, 99),
        },
        rss_bytes: memory.resident,
        rss_anon_bytes: memory.anonymous,
        bytes_per_connection: node.bytes_per_connection(memory.anonymous),
        cpu_seconds: process::cpu_seconds(),
        history: HistoryStats::of(history),
        mqtt: MqttStats::of(&node),
        store: node.store.as_ref().map(|store| StoreStats::new(store.stats())),
        history_database: node.history_database.as_ref().map(|it| it.status().into()),
        subscription_database: node.subscription_database.as_ref().map(|it| it.status().into()),
    })
}
