//! Look at the node: topics, users, counts, health.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::request::Parts;
use broker::Kept;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use shard::{Command, ConnectionInfo, Histogram, Metrics, Refusal};
use utoipa::{IntoParams, ToSchema};
use wire::message::{check_name, personal};
use wire::{Close, Name, Variant};

use crate::error::{ErrorBody, Refused, bad};
use crate::top::{MembersQuery, limited, some_members};
use crate::{Node, process};

/// Topics in one page, if it doesn't say.
const TOPICS: usize = 100;

/// Topics in one page at most.
const TOPICS_MAX: usize = 1_000;

/// Whether the process lives.
#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    /// `ok`.
    status: &'static str,
}

/// The process lives.
#[utoipa::path(get, path = "/healthz", tag = "operate", responses((status = 200, body = Health)))]
pub(crate) async fn healthz() -> Json<Health> {
    Json(Health { status: "ok" })
}

/// The process takes new connections.
#[utoipa::path(get, path = "/readyz", tag = "operate", responses(
    (status = 200, body = Health),
    (status = 503, body = ErrorBody, description = "It drains, or is at its memory limit")))]
pub(crate) async fn readyz(State(node): State<Arc<Node>>) -> Result<Json<Health>, Refused> {
    if node.shared.draining.load(Ordering::Relaxed) {
        return Err(Refused::gone());
    }
    match node.shared.memory_full.load(Ordering::Relaxed) {
        true => Err(Refused::memory()),
        false => Ok(Json(Health { status: "ok" })),
    }
}

/// Which topics.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopicsQuery {
    /// Only names that begin so; `@` for users' personal topics.
    #[serde(default)]
    prefix: String,
    /// Only names after this one: the `next` of the page before.
    after: Option<String>,
    /// At most so many, up to 1,000; 100 if it isn't said.
    limit: Option<usize>,
}

/// A page of topics, sorted by name.
#[derive(Serialize, ToSchema)]
pub(crate) struct Topics {
    topics: Vec<Topic>,
    /// Ask for what is after it; null on the last page.
    next: Option<String>,
}

/// A topic.
#[derive(Serialize, ToSchema)]
pub(crate) struct Topic {
    topic: String,
    /// Connections in it, on this node.
    members: u64,
}

/// Topics that have members.
#[utoipa::path(get, path = "/api/topics", tag = "inspect", params(TopicsQuery), responses(
    (status = 200, body = Topics)))]
pub(crate) async fn topics(
    State(node): State<Arc<Node>>,
    Asked(query): Asked<TopicsQuery>,
) -> Result<Json<Topics>, Refused> {
    let limit = limited(query.limit, TOPICS, TOPICS_MAX)?;
    let answers = node.ask_all(|reply| Command::Topics {
        prefix: query.prefix.clone(),
        after: query.after.clone(),
        // One more than is shown tells whether there is a next page.
        limit: limit + 1,
        reply,
    });
    let mut all: BTreeMap<Name, u64> = BTreeMap::new();
    for info in answers.all().await?.into_iter().flatten() {
        *all.entry(info.topic).or_default() += u64::from(info.members);
    }
    let more = all.len() > limit;
    let topics: Vec<Topic> = all
        .into_iter()
        .take(limit)
        .map(|(topic, members)| Topic { topic: topic.into(), members })
        .collect();
    let next = topics.last().filter(|_| more).map(|last| last.topic.clone());
    Ok(Json(Topics { topics, next }))
}

/// The parameters in a query. Unlike [`Query`] it refuses what is not UTF-8: to show something
/// else than what was asked for helps nobody.
pub(crate) struct Asked<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        let query = parts.uri.query().unwrap_or_default();
        percent_decode_str(query)
            .decode_utf8()
            .map_err(|_| bad("bad_query", "the query is not percent-encoded UTF-8"))?;
        let asked = Query::try_from_uri(&parts.uri);
        let Query(asked) = asked.map_err(|error| bad("bad_query", error.body_text()))?;
        Ok(Asked(asked))
    }
}

pub(crate) fn path(path: Result<Path<String>, PathRejection>) -> Result<String, Refused> {
    let Path(name) = path.map_err(|error| bad("bad_path", error.body_text()))?;
    Ok(name)
}

/// How many members a topic has; 0 when there is no such topic.
#[utoipa::path(get, path = "/api/topics/{topic}", tag = "inspect",
    params(("topic" = String, Path, description = "The topic, percent-encoded")), responses(
    (status = 200, body = Topic)))]
pub(crate) async fn topic(
    State(node): State<Arc<Node>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Topic>, Refused> {
    let topic = path(name)?;
    let answers = node.ask_all(|reply| Command::Topic { topic: topic.as_str().into(), reply });
    let members = answers.all().await?.into_iter().map(u64::from).sum();
    Ok(Json(Topic { topic, members }))
}

/// A user and some of their connections.
#[derive(Serialize, ToSchema)]
pub(crate) struct User {
    user: String,
    /// All connections of the user, on this node.
    count: u64,
    /// Some of them, in no order.
    connections: Vec<Connection>,
}

/// A connection.
#[derive(Serialize, ToSchema)]
pub(crate) struct Connection {
    /// Its name, for /api/disconnect.
    #[schema(example = "0-12-345")]
    id: String,
    /// sse, stream, poll or ws.
    transport: &'static str,
    /// Since when, in seconds since 1970.
    opened_at: u64,
    /// For how long, in seconds.
    age_seconds: u32,
    /// The peer's address and port.
    address: Option<String>,
    /// All users that it carries.
    users: Vec<String>,
    /// Its topics, without the users' own.
    topics: Vec<String>,
    /// Bytes that the peer has acknowledged.
    bytes_sent: u64,
    /// Bytes that came from it.
    bytes_received: u64,
    /// Bytes that wait for it.
    outbox_bytes: usize,
}

impl From<ConnectionInfo> for Connection {
    fn from(info: ConnectionInfo) -> Self {
        let texts = |names: Vec<Name>| names.into_iter().map(String::from).collect();
        Connection {
            id: info.id.to_string(),
            transport: info.transport,
            opened_at: process::unix_seconds().saturating_sub(u64::from(info.age_seconds)),
            age_seconds: info.age_seconds,
            address: info.address.map(|address| address.to_string()),
            users: texts(info.users),
            topics: texts(info.topics),
            bytes_sent: info.bytes_sent,
            bytes_received: info.bytes_received,
            outbox_bytes: info.outbox_bytes,
        }
    }
}

/// A user's connections; none when the user is not here.
#[utoipa::path(get, path = "/api/users/{user}", tag = "inspect",
    params(("user" = String, Path, description = "The user, percent-encoded"), MembersQuery),
    responses((status = 200, body = User)))]
pub(crate) async fn user(
    State(node): State<Arc<Node>>,
    name: Result<Path<String>, PathRejection>,
    Asked(query): Asked<MembersQuery>,
) -> Result<Json<User>, Refused> {
    let user = path(name)?;
    check_name(&user).map_err(|wrong| bad("bad_user", wrong))?;
    let (count, connections) = some_members(&node, personal(&user), &query).await?;
    Ok(Json(User { user, count, connections }))
}

/// The configuration in force.
#[derive(Serialize, ToSchema)]
pub(crate) struct Effective {
    /// TOML, each line with where its value came from; secrets are left out.
    toml: String,
}

/// The configuration in force, without secrets.
#[utoipa::path(get, path = "/api/config", tag = "operate", responses(
    (status = 200, body = Effective)))]
pub(crate) async fn config(State(node): State<Arc<Node>>) -> Json<Effective> {
    let toml = node.live.read().unwrap_or_else(PoisonError::into_inner).config.clone();
    Json(Effective { toml })
}

/// The node in numbers.
#[derive(Serialize, ToSchema)]
pub(crate) struct Stats {
    version: &'static str,
    /// The life of the numbering of messages.
    epoch: String,
    uptime_seconds: u64,
    /// Connections that are open, short requests included.
    connections: u64,
    connections_by_transport: BTreeMap<&'static str, u64>,
    connections_by_shard: Vec<u64>,
    /// Since the start: those that are not closed are open.
    opened: u64,
    closed: u64,
    closed_by_reason: BTreeMap<&'static str, u64>,
    refused_by_reason: BTreeMap<&'static str, u64>,
    /// Topics with members, counted for each shard and added up; users' own included.
    topics: u64,
    /// Messages that shards took in: one that goes to three shards counts three times.
    messages_in: u64,
    messages_delivered: u64,
    bytes_out: u64,
    bytes_in: u64,
    outboxes: u64,
    outbox_bytes: u64,
    /// From publish to the kernel, in milliseconds, from a histogram whose bounds double.
    delivery_ms: Percentiles,
    /// Resident memory (VmRSS).
    rss_bytes: u64,
    /// The part of it that the program itself has written (RssAnon).
    rss_anon_bytes: u64,
    /// What the program's own memory grew since the start, over the connections.
    bytes_per_connection: f64,
    cpu_seconds: f64,
    history: HistoryStats,
    /// Null where everything is in memory only.
    store: Option<StoreStats>,
}

/// Topics with history, and what goes with them. What is not about now counts from the start.
#[derive(Serialize, ToSchema)]
pub(crate) struct HistoryStats {
    /// The life of the numbering of their messages.
    epoch: String,
    /// Their last message that was handed on.
    offset: u64,
    /// Messages in memory now.
    messages: u64,
    /// What these hold.
    bytes: u64,
    /// Topics that something is known of in memory.
    topics: u64,
    /// Users and topics of which is known how far the user has acknowledged.
    cursors: u64,
    idempotency_keys: u64,
    /// Messages published to topics with history.
    published: u64,
    /// Publishes that had been done before with the same idempotency key.
    repeated: u64,
    /// Messages of topics that are not durable which the store could not write.
    lost: u64,
    /// Acknowledgements that moved a cursor.
    acknowledged: u64,
    /// Messages delivered again, to connections that had them, because they were not acknowledged in
    /// time.
    redelivered: u64,
    /// Messages that were not acknowledged in all their tries and went to a dead-letter topic.
    dead_lettered: u64,
    /// Messages that were not acknowledged in all their tries and were dropped.
    dropped: u64,
    /// Clients that came back and were given all that they missed.
    recovered: u64,
    /// Clients that came back and were told that something is lost to them.
    unrecovered: u64,
    /// Looks that memory could not answer.
    disk_reads: u64,
}

/// What is on disk, and how it gets there.
#[derive(Serialize, ToSchema)]
pub(crate) struct StoreStats {
    /// Why it can't write; null while it can.
    failed: Option<String>,
    /// Operations that wait to be written.
    queue_messages: u64,
    /// What these hold.
    queue_bytes: u64,
    /// Reads that wait.
    reads: u64,
    /// Transactions that were committed.
    commits: u64,
    /// Operations in them.
    operations: u64,
    /// What the last transaction took, in milliseconds.
    commit_ms_last: f64,
    /// What they took on average.
    commit_ms_mean: f64,
    /// What the slowest took.
    commit_ms_max: f64,
    /// Transactions that failed.
    failures: u64,
    /// Reads that met damage.
    damaged_reads: u64,
    /// Topics in which the writer has met damage: nothing is stored in them until their history is
    /// deleted.
    damaged_topics: u64,
    /// The file's length.
    file_bytes: u64,
    topics: u64,
    messages: u64,
}

impl HistoryStats {
    fn of(kept: &Kept) -> Self {
        let (stats, top) = (kept.stats(), kept.top());
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
            lost: stats.lost,
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

/// Upper bounds: at least this share was no slower.
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
    for variant in Variant::ALL {
        *by_transport.entry(variant.name()).or_default() +=
            sum(&|metrics| metrics.connections[variant as usize].get());
    }
    let closed_by_reason: BTreeMap<_, _> = Close::ALL
        .iter()
        .map(|close| (close.name(), sum(&|metrics| metrics.closed[*close as usize].get())))
        .collect();
    let refused_by_reason = Refusal::ALL
        .iter()
        .map(|refusal| (refusal.name(), sum(&|metrics| metrics.refused[*refusal as usize].get())))
        .collect();
    let kept = node.broker.kept();
    let memory = process::memory();
    let connections = node.shared.connections.load(Ordering::Relaxed);
    let latency = merged(node.metrics().map(|metrics| &metrics.delivery_latency));
    Json(Stats {
        version: env!("CARGO_PKG_VERSION"),
        epoch: node.broker.epoch().to_string(),
        uptime_seconds: node.started.elapsed().as_secs(),
        connections,
        connections_by_transport: by_transport,
        connections_by_shard: node.metrics().map(|metrics| metrics.held.get()).collect(),
        opened: sum(&|metrics| metrics.admitted.get()),
        closed: closed_by_reason.values().sum(),
        closed_by_reason,
        refused_by_reason,
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
        history: HistoryStats::of(kept),
        store: kept.store().map(|store| StoreStats::new(store.stats())),
    })
}

/// The buckets of all shards' histograms, added up.
pub(crate) fn merged<'a>(
    histograms: impl Iterator<Item = &'a Histogram>,
) -> [u64; Histogram::BUCKETS] {
    let mut all = [0; Histogram::BUCKETS];
    for histogram in histograms {
        for (sum, bucket) in all.iter_mut().zip(&histogram.buckets) {
            *sum += bucket.get();
        }
    }
    all
}

/// The bound of the bucket in which the percentile lies, in milliseconds; 0 where nothing was
/// measured.
pub(crate) fn percentile_ms(buckets: &[u64; Histogram::BUCKETS], percent: u64) -> f64 {
    let total: u64 = buckets.iter().sum();
    let wanted = (total * percent).div_ceil(100);
    let mut seen = 0;
    for (at, count) in buckets.iter().enumerate() {
        seen += count;
        if seen >= wanted && total > 0 {
            // The last bucket has no bound: the one before it is a lower one.
            return Histogram::bound_seconds(at.min(Histogram::BUCKETS - 2)) * 1e3;
        }
    }
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_bounds_of_buckets() {
        let mut buckets = [0; Histogram::BUCKETS];
        assert_eq!(percentile_ms(&buckets, 50), 0.0);
        buckets[10] = 98;
        buckets[20] = 2;
        assert_eq!(percentile_ms(&buckets, 50), 1.024);
        assert_eq!(percentile_ms(&buckets, 99), 1048.576);
    }
}
