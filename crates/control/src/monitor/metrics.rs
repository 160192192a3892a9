//! The node's metrics, in the text format that Prometheus reads.

mod shards;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ::kernel::KernelStats;
use model::CloseReason;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use shard::{HandshakeResult, Histogram, Metrics, Refusal};

use super::histogram::merged;
use super::kernel;
use super::limited::limited;
use super::process;
use crate::certificates::OrderResult;
use crate::node::Node;
use crate::webhook::{ErrorKind, ForwardStats, UrlStats};

/// Returns all metrics as OpenMetrics text.
pub(crate) fn openmetrics(node: Arc<Node>) -> String {
    let mut registry = Registry::with_prefix("throng");
    registry.register_collector(Box::new(Reading(node)));
    let mut text = String::new();
    // Writing to a String can't fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

/// URLs of webhooks that have rows of their own: those with the longest queues.
const WEBHOOK_URLS_MAX: usize = 100;

struct Reading(Arc<Node>);

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reading")
    }
}

/// Values with one label each.
type Labelled = Vec<(&'static str, String, f64)>;

impl Collector for Reading {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        self.connections(&mut encoder)?;
        self.messages(&mut encoder)?;
        self.history(&mut encoder)?;
        self.mqtt(&mut encoder)?;
        if let Some(store) = &self.0.store {
            self::store(&mut encoder, &store.stats())?;
        }
        if let Some(link) = &self.0.cluster {
            cluster(&mut encoder, link)?;
        }
        if let Some(outbox) = &self.0.outbox {
            self::outbox(&mut encoder, outbox)?;
        }
        if let Some(postgres) = &self.0.history_database {
            history_database(&mut encoder, postgres)?;
        }
        if let Some(postgres) = &self.0.subscription_database {
            subscription_database(&mut encoder, postgres)?;
        }
        self.tokens(&mut encoder)?;
        self.tls(&mut encoder)?;
        self.webhook(&mut encoder)?;
        self.forward(&mut encoder)?;
        if let Some(tracer) = &self.0.tracer {
            let rows = tracer.counts().map(|(name, count)| ("result", name.into(), count as f64));
            let help = "Trace spans: sent to the collector, not accepted by it, or dropped \
                        because of a limit";
            counters(&mut encoder, "spans", help, None, rows.into())?;
        }
        self.admin(&mut encoder)?;
        self.upgrade(&mut encoder)?;
        shards::encode(&mut encoder, &self.0)?;
        self.process(&mut encoder)?;
        kernel::encode(&mut encoder, &KernelStats::read())
    }
}

/// Returns the connections of a shard by this transport, in all of its encodings.
pub(crate) fn of_transport(node: &Node, metrics: &Metrics, name: &str) -> u64 {
    let all = node.shared.protocols.all().filter(|protocol| protocol.name() == name);
    all.map(|protocol| metrics.connections[usize::from(protocol.encoding().0)].get()).sum()
}

impl Reading {
    fn sum(&self, read: impl Fn(&Metrics) -> u64) -> f64 {
        self.0.sum(read) as f64
    }

    /// Returns one value for each transport: a transport's encodings are added up.
    fn by_transport(&self, read: impl Fn(&Metrics, usize) -> u64) -> Labelled {
        let mut rows: Labelled = Vec::new();
        for protocol in self.0.shared.protocols.all() {
            let at = usize::from(protocol.encoding().0);
            let value = self.sum(|metrics| read(metrics, at));
            match rows.iter_mut().find(|(_, name, _)| name == protocol.name()) {
                Some((_, _, sum)) => *sum += value,
                None => rows.push(("transport", protocol.name().into(), value)),
            }
        }
        rows
    }

    fn connections(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let rows = self.by_transport(|metrics, at| metrics.connections[at].get());
        gauges(encoder, "connections", "Open client connections, by transport", None, rows)?;
        let rows = self.by_transport(|metrics, at| metrics.opened[at].get());
        counters(
            encoder,
            "connections_opened",
            "Client connections that have chosen a transport, by transport",
            None,
            rows,
        )?;
        let rows = CloseReason::ALL
            .map(|close| {
                let value = self.sum(|metrics| metrics.closed[close as usize].get());
                ("reason", close.name().to_string(), value)
            })
            .into();
        let help = "Client connections that ended, by reason";
        counters(encoder, "connections_closed", help, None, rows)?;
        let rows = Refusal::ALL
            .map(|refusal| {
                let value = self.sum(|metrics| metrics.refused[refusal as usize].get());
                ("reason", refusal.name().to_string(), value)
            })
            .into();
        let help = "New client connections that were refused with status 503, by reason";
        counters(encoder, "connections_refused", help, None, rows)?;
        let rows = limited(&self.0).into_iter();
        let rows = rows.map(|(name, times)| ("name", name.to_string(), times as f64)).collect();
        let help = "Times that a limit delayed, rejected or closed something, by the limit";
        counters(encoder, "limited", help, None, rows)?;
        let quotas = &self.0.shared.quotas;
        let help = "Users, addresses and API keys whose rates the server tracks";
        gauge(encoder, "accounts", help, None, quotas.accounts() as f64)?;
        let help = "Times that a rate could not be tracked, because the table of rates was full";
        counter(encoder, "accounts_refused", help, None, quotas.without_account() as f64)?;
        let value = self.sum(|metrics| metrics.accepted.get());
        counter(encoder, "connections_accepted", "Client connections accepted", None, value)?;
        let value = self.sum(|metrics| metrics.accept_errors.get());
        counter(encoder, "accept_errors", "Calls of accept(2) that failed", None, value)?;
        let slow = CloseReason::SlowConsumer as usize;
        let value = self.sum(|metrics| metrics.closed[slow].get());
        let help = "Connections that were closed because the client read too slowly";
        counter(encoder, "slow_consumers_closed", help, None, value)?;
        let rows = (1..=5)
            .map(|class| {
                let value = self.sum(|metrics| metrics.replies[class].get());
                ("class", format!("{class}xx"), value)
            })
            .collect();
        let help = "Short HTTP responses on the client port, by class of status";
        counters(encoder, "http_answers", help, None, rows)
    }

    fn tokens(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let node = &self.0;
        let (has_tokens, keys) = {
            let live = node.live();
            (live.has_tokens, live.jwks.state())
        };
        if !has_tokens {
            return Ok(());
        }
        let mut rows: Labelled =
            vec![("result", "accepted".into(), node.token_stats.accepted() as f64)];
        let rejected = node.token_stats.rejected();
        rows.extend(rejected.map(|(code, count)| ("result", code.to_string(), count as f64)));
        counters(encoder, "tokens", "Client tokens that were checked, by result", None, rows)?;
        let value = node.revocations.count() as f64;
        let help = "Token revocations that the server remembers";
        gauge(encoder, "token_revocations", help, None, value)?;
        if keys.is_empty() {
            return Ok(());
        }
        let row = |(url, keys): (String, Option<usize>)| ("url", url, keys.unwrap_or(0) as f64);
        let help = "Token keys that were fetched, by the URL where the issuer publishes them";
        gauges(encoder, "token_keys", help, None, keys.into_iter().map(row).collect())
    }

    fn messages(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let value = self.sum(|metrics| metrics.messages_in.get());
        let help = "Messages that shards took from their queues: a message to three shards \
                    counts three times";
        counter(encoder, "messages_in", help, None, value)?;
        let value = self.sum(|metrics| metrics.delivered.get());
        let help = "Messages handed to connections, counted once for each member";
        counter(encoder, "messages_delivered", help, None, value)?;
        let value = self.sum(|metrics| metrics.conflated.get());
        let help = "Messages that a newer message with the same key replaced while they were queued for \
             a slow client";
        counter(encoder, "messages_conflated", help, None, value)?;
        let value = self.sum(|metrics| metrics.bytes_out.get());
        counter(encoder, "sent", "Bytes written to clients", Some(Unit::Bytes), value)?;
        let value = self.sum(|metrics| metrics.bytes_in.get());
        counter(encoder, "received", "Bytes read from clients", Some(Unit::Bytes), value)?;
        let value = self.sum(|metrics| metrics.outboxes.get());
        gauge(
            encoder,
            "outboxes",
            "Connections with queued data, because the client reads slower than the server sends",
            None,
            value,
        )?;
        let value = self.sum(|metrics| metrics.outbox_bytes.get());
        gauge(encoder, "outbox", "Queued bytes of such connections", Some(Unit::Bytes), value)?;
        let value = self.sum(|metrics| metrics.outbox_memory.get());
        let help = "Memory of the queued bytes: data that is queued for several connections of a \
                    shard counts once";
        gauge(encoder, "outbox_memory", help, Some(Unit::Bytes), value)?;
        let value = self.sum(|metrics| metrics.input_bytes.get());
        let help = "Memory of requests and messages of which clients have sent only a part";
        gauge(encoder, "input_memory", help, Some(Unit::Bytes), value)?;
        let value = self.sum(|metrics| metrics.fanouts.get());
        gauge(encoder, "fanouts", "Fan-outs that are running or queued", None, value)?;
        let help = "Time from the first to the last member of a fan-out on one shard";
        self.histogram(encoder, "fanout", help, |metrics| &metrics.fanout_time)?;
        let help =
            "Time from the publish until the kernel has the message, for each delivered message";
        self.histogram(encoder, "delivery_latency", help, |metrics| &metrics.delivery_latency)
    }

    fn histogram(
        &self,
        encoder: &mut DescriptorEncoder,
        name: &str,
        help: &str,
        read: impl Fn(&Metrics) -> &Histogram,
    ) -> fmt::Result {
        let counts = merged(self.0.metrics().map(&read));
        let sum_us = self.0.sum(|metrics| read(metrics).sum_us.get());
        let bounded = bounded(&counts, Histogram::bound_seconds);
        self::histogram(encoder, name, help, &bounded, sum_us)
    }

    /// Topics with history, cursors, idempotency keys and subscriptions.
    fn history(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let stats = self.0.history().stats();
        let help = "Messages in memory, of topics with history";
        gauge(encoder, "history_messages", help, None, stats.messages as f64)?;
        let help = "Bytes of these messages";
        gauge(encoder, "history", help, Some(Unit::Bytes), stats.bytes as f64)?;
        let help = "Topics with history that have something in memory";
        gauge(encoder, "history_topics", help, None, stats.topics as f64)?;
        let help =
            "Pairs of a user and a topic that have a cursor: how far the user has acknowledged";
        gauge(encoder, "cursors", help, None, stats.cursors as f64)?;
        let help = "Idempotency keys that the server remembers";
        gauge(encoder, "idempotency_keys", help, None, stats.idempotency_keys as f64)?;
        let help = "Users with stored subscriptions: topics that they enter on every connect";
        gauge(encoder, "subscribers", help, None, self.0.subscriptions.users() as f64)?;
        let help = "Stored subscriptions of all users";
        gauge(encoder, "subscriptions", help, None, self.0.subscriptions.edges() as f64)?;
        let help = "Memory of the stored subscriptions";
        let bytes = self.0.subscriptions.memory_bytes() as f64;
        gauge(encoder, "subscriptions", help, Some(Unit::Bytes), bytes)?;
        let help = "Messages published to topics with history";
        counter(encoder, "history_published", help, None, stats.published as f64)?;
        let help = "Publishes that repeated an earlier one with the same idempotency key";
        counter(encoder, "publishes_repeated", help, None, stats.repeated as f64)?;
        let help = "Messages that the store could not write, of topics that are not durable";
        counter(encoder, "history_lost", help, None, stats.unwritten as f64)?;
        let help = "Acknowledgements that moved a cursor";
        counter(encoder, "acknowledgements", help, None, stats.acknowledged as f64)?;
        let help = "Messages that were delivered again to a connection, because the user did not \
                    acknowledge them in time";
        counter(encoder, "messages_redelivered", help, None, stats.redelivered as f64)?;
        let rows = vec![
            ("outcome", "dead_lettered".into(), stats.dead_lettered as f64),
            ("outcome", "dropped".into(), stats.dropped as f64),
        ];
        let help = "Messages that the user did not acknowledge after all deliveries, by outcome";
        counters(encoder, "messages_given_up", help, None, rows)?;
        let by = stats.dropped_by;
        let rows = vec![
            ("by", "messages".into(), by.messages as f64),
            ("by", "bytes".into(), by.bytes as f64),
            ("by", "seconds".into(), by.seconds as f64),
            ("by", "memory".into(), by.memory as f64),
        ];
        let help = "Messages that a limit of the history dropped, by the limit";
        counters(encoder, "history_dropped", help, None, rows)?;
        let rows = vec![
            ("result", "recovered".into(), stats.recovered as f64),
            ("result", "lost".into(), stats.unrecovered as f64),
        ];
        let help = "Clients that came back, by whether they recovered all missed messages";
        counters(encoder, "recoveries", help, None, rows)?;
        let help = "History lookups that had to read the disk";
        counter(encoder, "history_disk_reads", help, None, stats.disk_reads as f64)
    }

    /// Connections with TLS, their handshakes, and the server's certificates.
    fn tls(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let value = self.sum(|metrics| metrics.tls_connections.get());
        let help = "Client connections that are encrypted by TLS";
        gauge(encoder, "tls_connections", help, None, value)?;
        let rows = HandshakeResult::ALL
            .map(|result| {
                let value = self.sum(|metrics| metrics.tls_handshakes[result as usize].get());
                ("result", result.name().to_string(), value)
            })
            .into();
        counters(encoder, "tls_handshakes", "TLS handshakes that ended, by result", None, rows)?;
        let value = self.sum(|metrics| metrics.tls_handshakes_pending.get());
        let help = "TLS handshakes in progress";
        gauge(encoder, "tls_handshakes_pending", help, None, value)?;
        let value = self.sum(|metrics| metrics.tls_handshake_us.get()) / 1e6;
        let (name, help) = ("tls_handshake", "Time that shards spent on TLS handshakes");
        counter(encoder, name, help, Some(Unit::Seconds), value)?;
        let value = self.sum(|metrics| metrics.tls_input_bytes.get());
        let help = "Memory of TLS records of which clients have sent only a part";
        gauge(encoder, "tls_input_memory", help, Some(Unit::Bytes), value)?;
        // Of several certificates with one name, the one that ends first.
        let mut ends = std::collections::BTreeMap::new();
        for certificate in self.0.certificates.get() {
            let end = ends.entry(certificate.name).or_insert(certificate.not_after);
            *end = certificate.not_after.min(*end);
        }
        let rows: Labelled =
            ends.into_iter().map(|(name, end)| ("name", name, end as f64)).collect();
        let orders = OrderResult::ALL.map(|(result, name)| {
            ("result", name.to_owned(), self.0.certificates.orders(result) as f64)
        });
        let help = "Certificates that the server ordered from an authority, by result";
        counters(encoder, "tls_certificate_orders", help, None, orders.into())?;
        let help = "Time at which the server's certificate expires, since 1970";
        gauges(encoder, "tls_certificate_expiry", help, Some(Unit::Seconds), rows)
    }

    /// Sessions of MQTT clients, and what waits for them.
    fn mqtt(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let sessions = self.0.shared.mqtt_sessions.stats();
        let help = "MQTT sessions whose clients are disconnected";
        gauge(encoder, "mqtt_sessions_away", help, None, sessions.away as f64)?;
        let help = "Memory of these sessions, including their wills";
        let bytes = sessions.away_bytes;
        gauge(encoder, "mqtt_sessions_away", help, Some(Unit::Bytes), bytes as f64)?;
        let help = "Different topic filters for which messages are retained for MQTT sessions";
        gauge(encoder, "mqtt_session_filters", help, None, sessions.interests as f64)?;
        let stats = self.0.history().stats();
        let help = "Messages in memory that are retained only for MQTT sessions, and not by a \
                    rule of [[topics]]";
        gauge(encoder, "mqtt_session_messages", help, None, stats.session_messages as f64)?;
        let (help, bytes) = ("Bytes of these messages", stats.session_bytes as f64);
        gauge(encoder, "mqtt_session_messages", help, Some(Unit::Bytes), bytes)?;
        let rows = vec![
            ("why", "expired".into(), sessions.expired as f64),
            ("why", "full".into(), sessions.refused as f64),
        ];
        let help = "MQTT sessions that ended because they expired after the client had \
                    disconnected, or because of a limit on their number or memory";
        counters(encoder, "mqtt_sessions_ended", help, None, rows)?;
        let help = "MQTT connections that a newer connection of the same client replaced";
        counter(encoder, "mqtt_taken_over", help, None, sessions.taken_over as f64)?;
        let value = self.sum(|metrics| metrics.mqtt_taken_over_by_nodes.get());
        let help = "MQTT connections that ended because the client connected to another node of \
                    the cluster";
        counter(encoder, "mqtt_taken_over_by_nodes", help, None, value)?;
        let value = self.sum(|metrics| metrics.mqtt_node_connects_outdated.get());
        let help = "Late notices that an MQTT client had connected to another node: the \
                    connection to this node is newer and stayed open";
        counter(encoder, "mqtt_node_connects_outdated", help, None, value)?;
        let value = self.sum(|metrics| metrics.mqtt_repeated.get());
        let help = "Messages that were sent again to MQTT clients on a new connection";
        counter(encoder, "mqtt_messages_repeated", help, None, value)?;
        let value = self.sum(|metrics| metrics.mqtt_gone.get());
        let help = "Messages for MQTT clients that expired, or that a limit of the history \
                    dropped, before they could be sent";
        counter(encoder, "mqtt_messages_gone", help, None, value)?;
        let retained = self.0.shared.retained.stats();
        let help = "Topics with a retained message";
        gauge(encoder, "mqtt_retained_messages", help, None, retained.messages as f64)?;
        let (help, bytes) = ("Bytes of these messages", retained.bytes as f64);
        gauge(encoder, "mqtt_retained", help, Some(Unit::Bytes), bytes)?;
        let help = "Messages that were not retained because of a limit";
        counter(encoder, "mqtt_retained_refused", help, None, retained.refused as f64)?;
        let help = "Topics whose retained message waits to be written to PostgreSQL";
        gauge(encoder, "mqtt_retained_pending", help, None, retained.pending as f64)
    }

    fn webhook(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let stats = self.0.webhook.stats();
        let mut rows: Labelled = vec![
            ("result", "ok".into(), stats.ok as f64),
            ("result", "error".into(), stats.error as f64),
        ];
        for kind in ErrorKind::ALL {
            rows.push(("result", kind.name().into(), stats.failures[kind as usize] as f64));
        }
        let help = "Requests to the application, by result";
        counters(encoder, "webhook_events", help, None, rows)?;
        let help = "Requests to the application that were queued";
        counter(encoder, "webhook_asked", help, None, stats.accepted as f64)?;
        let value = stats.http_requests as f64;
        counter(encoder, "webhook_requests", "HTTP requests to the application", None, value)?;
        let help = "Requests to the application that have no response yet";
        gauge(encoder, "webhook_waiting", help, None, stats.waiting as f64)?;
        let help = "Bytes of the payloads and names of these requests";
        let value = stats.waiting_bytes as f64;
        gauge(encoder, "webhook_waiting", help, Some(Unit::Bytes), value)?;
        let urls = self.0.webhook.urls(WEBHOOK_URLS_MAX);
        let rows = |read: fn(&UrlStats) -> u64| -> Labelled {
            urls.iter().map(|(url, stats)| ("url", url.clone(), read(stats) as f64)).collect()
        };
        let help = "Requests to the application that have no response yet, by URL";
        gauges(encoder, "webhook_url_waiting", help, None, rows(|stats| stats.waiting))?;
        let help =
            "Requests to the application that were rejected because the queue was full, by URL";
        counters(encoder, "webhook_url_refused", help, None, rows(|stats| stats.rejected))?;
        let latency = self.0.webhook.latency();
        let counts = latency.buckets.each_ref().map(shard::Counter::get);
        let help = "Time from a request to the application to its response";
        let bounded = bounded(&counts, Histogram::bound_seconds);
        histogram(encoder, "webhook_latency", help, &bounded, latency.sum_us.get())?;
        let events = self.0.webhook.event_stats();
        let help = "Events that are queued for the application";
        gauge(encoder, "webhook_told_waiting", help, None, events.waiting as f64)?;
        let help = "Bytes of these events";
        let value = events.waiting_bytes as f64;
        gauge(encoder, "webhook_told_waiting", help, Some(Unit::Bytes), value)?;
        let help = "Age of the oldest of these events";
        let value = events.oldest_seconds as f64;
        gauge(encoder, "webhook_told_oldest", help, Some(Unit::Seconds), value)?;
        let rows = vec![
            ("result", "taken".into(), events.taken as f64),
            ("result", "full".into(), events.full as f64),
            ("result", "expired".into(), events.expired as f64),
        ];
        let help = "Events that the application accepted, or that were dropped because the queue \
                    was full or they were too old";
        counters(encoder, "webhook_told", help, None, rows)?;
        let help = "HTTP requests with events that the application did not accept";
        counter(encoder, "webhook_told_failed", help, None, events.failed as f64)?;
        let help = "Events for the application that the store could not write";
        counter(encoder, "webhook_told_unwritten", help, None, events.unwritten as f64)?;
        // Locked for one statement only: shards wait for this lock.
        let stats = self.0.shared.presence.stats();
        let help = "Topics with presence that have members";
        gauge(encoder, "presence_topics", help, None, stats.topics as f64)?;
        let help =
            "Connections of users in topics with presence: a connection in two topics counts twice";
        gauge(encoder, "presence_connections", help, None, stats.connections as f64)?;
        let help = "Presence notices published";
        counter(encoder, "presence_notices", help, None, stats.notices as f64)?;
        let help = "Times that presence notices of a topic were delayed, because the server was \
                    overloaded";
        counter(encoder, "presence_notices_kept", help, None, stats.notices_delayed as f64)?;
        let sessions = self.0.shared.sessions.load(Ordering::Relaxed) as f64;
        gauge(encoder, "longpoll_sessions", "Phoenix long-poll sessions", None, sessions)
    }

    /// The rules that send messages to back ends.
    fn forward(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let rules = self.0.webhook.forward_stats();
        let of = |read: fn(&ForwardStats) -> u64| -> Labelled {
            let rows = rules.iter();
            rows.map(|(name, stats)| ("filter", name.to_string(), read(stats) as f64)).collect()
        };
        let help = "Client messages that the back end accepted, by filter";
        counters(encoder, "forward_taken", help, None, of(|stats| stats.taken))?;
        let help =
            "Client messages that the back end rejected, or did not accept in time, by filter";
        counters(encoder, "forward_failed", help, None, of(|stats| stats.failed))?;
        let help = "Client messages that were rejected because the queue was full, with an error \
                    to the publisher, by filter";
        counters(encoder, "forward_refused", help, None, of(|stats| stats.refused))?;
        let help = "Client messages that were dropped because the queue was full, without an \
                    error to the publisher (QoS 0), by filter";
        counters(encoder, "forward_dropped", help, None, of(|stats| stats.dropped))?;
        let help = "HTTP requests with client messages to the back end, by filter";
        counters(encoder, "forward_requests", help, None, of(|stats| stats.requests))?;
        let help = "HTTP requests to the back end that were retries, by filter";
        counters(encoder, "forward_retries", help, None, of(|stats| stats.retries))?;
        let help = "Bytes of the bodies of requests to the back end, by filter";
        let (unit, rows) = (Some(Unit::Bytes), of(|stats| stats.bytes));
        counters(encoder, "forward_sent", help, unit, rows)?;
        let help = "Messages in replies of the back end that were published, by filter";
        counters(encoder, "forward_answers", help, None, of(|stats| stats.replies_published))?;
        let help = "Messages in replies of the back end that could not be published, and replies \
                    that could not be read, by filter";
        counters(encoder, "forward_answers_refused", help, None, of(|stats| stats.rejected))?;
        let help = "Client messages that are queued for the back end, by filter";
        gauges(encoder, "forward_waiting", help, None, of(|stats| stats.waiting))?;
        let help = "Bytes of these messages, by filter";
        let (unit, rows) = (Some(Unit::Bytes), of(|stats| stats.waiting_bytes));
        gauges(encoder, "forward_waiting", help, unit, rows)
    }

    /// The admin port.
    fn admin(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let stats = self.0.connections.stats();
        let help = "Connections to the admin port";
        gauge(encoder, "admin_connections", help, None, stats.open as f64)?;
        let help = "Connections to the admin port that have not sent a complete request head yet";
        gauge(encoder, "admin_connections_silent", help, None, stats.silent as f64)?;
        let rows = stats.closed.map(|(reason, count)| ("reason", reason.into(), count as f64));
        let help = "Connections to the admin port that the server closed or refused, by reason";
        counters(encoder, "admin_connections_closed", help, None, rows.into())?;
        let help = "Bytes of request bodies at the admin port that have not arrived completely";
        gauge(encoder, "admin_bodies", help, Some(Unit::Bytes), stats.bodies_bytes as f64)?;
        let help = "Requests that were rejected because the memory for request bodies was full";
        counter(encoder, "admin_bodies_refused", help, None, stats.bodies_rejected as f64)?;
        let stats = self.0.access.stats();
        let rows = stats.calls.into_iter().map(|(name, calls)| ("key", name, calls as f64));
        let help =
            "Calls with an API key, or in a browser session that was signed in with it, by key";
        counters(encoder, "api_key_calls", help, None, rows.collect())?;
        let rows = stats.rejected.map(|(reason, count)| ("reason", reason.into(), count as f64));
        let help = "Calls of the admin API that were rejected because of the caller or its \
                    origin, by reason";
        counters(encoder, "admin_calls_refused", help, None, rows.into())?;
        let help = "Browser sessions that are signed in";
        gauge(encoder, "admin_sessions", help, None, stats.sessions as f64)
    }

    /// The upgrade that is under way, or the last one.
    fn upgrade(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let progress = self.0.upgrades.progress();
        let help = "Stage of the upgrade: 0 none yet, 1 starting, 2 copying, 3 switching, 4 done, \
                    5 failed, 6 only checked";
        gauge(encoder, "upgrade_stage", help, None, progress.stage as u8 as f64)?;
        let help = "Connections that the current or the last upgrade has copied";
        let value = progress.connections_copied as f64;
        gauge(encoder, "upgrade_connections_copied", help, None, value)?;
        let help = "Connections that the last upgrade closed";
        gauge(encoder, "upgrade_connections_lost", help, None, progress.lost as f64)?;
        let help = "Time during which the node served no client in the last upgrade";
        let value = progress.pause_us.unwrap_or_default() as f64 / 1e6;
        gauge(encoder, "upgrade_pause", help, Some(Unit::Seconds), value)?;
        let help = "Upgrades that this process began, including checks";
        counter(encoder, "upgrades", help, None, progress.begun as f64)?;
        let help = "Upgrades that failed";
        counter(encoder, "upgrades_failed", help, None, progress.failed as f64)
    }

    fn process(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let node = &self.0;
        let memory = process::memory();
        let unit = || Some(Unit::Bytes);
        let help = "Resident memory of the process";
        gauge(encoder, "process_resident_memory", help, unit(), memory.resident as f64)?;
        let help = "Resident memory that the program itself has written";
        gauge(encoder, "process_anonymous_memory", help, unit(), memory.anonymous as f64)?;
        let value = node.bytes_per_connection(memory.anonymous);
        let help = "Growth of anonymous memory since the start, divided by the open connections";
        gauge(encoder, "memory_per_connection", help, unit(), value)?;
        let value = process::cpu_seconds();
        let help = "Processor time of the process";
        counter(encoder, "process_cpu", help, Some(Unit::Seconds), value)?;
        let value = process::start_seconds();
        let help = "Time at which the process started, since 1970";
        gauge(encoder, "process_start_time", help, Some(Unit::Seconds), value)?;
        let uptime = node.started.elapsed().as_secs_f64();
        gauge(encoder, "uptime", "Time since the start", Some(Unit::Seconds), uptime)?;
        let value = f64::from(u8::from(node.shared.memory_full.load(Ordering::Relaxed)));
        gauge(
            encoder,
            "memory_full",
            "1 while the server refuses new connections because of its memory limit",
            None,
            value,
        )?;
        let value = f64::from(u8::from(node.not_ready().is_none()));
        gauge(
            encoder,
            "ready",
            "1 while the node accepts new connections, 0 while it drains, is at its memory limit, \
             or its store can't write",
            None,
            value,
        )?;
        let value = f64::from(u8::from(node.evictions.is_drain()));
        let help = "1 while an operator drains the node, and after the drain is done";
        gauge(encoder, "draining", help, None, value)?;
        let value = f64::from(u8::from(node.evictions.is_rebalance()));
        let help = "1 while the node closes connections to move them to other nodes";
        gauge(encoder, "rebalancing", help, None, value)?;
        let live = node.live();
        let rows = live.limits.iter().map(|(name, max)| ("name", name.to_string(), *max as f64));
        gauges(
            encoder,
            "limit",
            "Limits, by configuration key, in the unit of the key",
            None,
            rows.collect(),
        )
    }
}

/// The store on disk, and its writer.
fn store(encoder: &mut DescriptorEncoder, stats: &store::Stats) -> fmt::Result {
    let help = "Operations that are queued for the store";
    gauge(encoder, "store_queue_messages", help, None, stats.queue_messages as f64)?;
    let (help, unit) = ("Bytes of these operations", Some(Unit::Bytes));
    gauge(encoder, "store_queue", help, unit, stats.queue_bytes as f64)?;
    let help = "Reads that are queued for the store's reader";
    gauge(encoder, "store_reads", help, None, stats.reads as f64)?;
    let help = "Transactions that were committed to disk";
    counter(encoder, "store_commits", help, None, stats.commits as f64)?;
    let help = "Operations in committed transactions";
    counter(encoder, "store_operations", help, None, stats.ops as f64)?;
    let help = "Time from the start of a transaction until it is on disk";
    let bound = |at| store::COMMIT_US.get(at).map_or(f64::INFINITY, |us| *us as f64 / 1e6);
    let buckets = bounded(&stats.commit_us, bound);
    histogram(encoder, "store_commit", help, &buckets, stats.commit_us_sum)?;
    let help = "Store transactions that failed";
    counter(encoder, "store_failures", help, None, stats.failures as f64)?;
    let help = "Reads of the store that found damage";
    counter(encoder, "store_damaged_reads", help, None, stats.damaged_reads as f64)?;
    let help =
        "Topics that the store accepts no messages for, because their stored data is damaged";
    gauge(encoder, "store_damaged_topics", help, None, stats.damaged_topics as f64)?;
    let failed = f64::from(u8::from(stats.failed.is_some()));
    gauge(encoder, "store_failed", "1 while the store can't write", None, failed)?;
    let help = "Length of the store's file";
    gauge(encoder, "store_file", help, Some(Unit::Bytes), stats.file_bytes as f64)?;
    gauge(encoder, "store_topics", "Topics in the store", None, stats.topics as f64)?;
    gauge(encoder, "store_messages", "Messages in the store", None, stats.messages as f64)
}

fn cluster(encoder: &mut DescriptorEncoder, link: &link::Link) -> fmt::Result {
    let status = link.status();
    let (connection, counts) = (&status.connection, &status.counts);
    let connected = f64::from(u8::from(connection.is_connected));
    gauge(encoder, "cluster_connected", "1 while the node is connected to NATS", None, connected)?;
    let help = "Times that the connection to NATS was lost";
    counter(encoder, "cluster_connections_lost", help, None, connection.losses as f64)?;
    let up = status.peers.iter().filter(|peer| peer.is_up).count();
    gauge(encoder, "cluster_nodes", "Other nodes of the cluster that are up", None, up as f64)?;
    let help = "Subscriptions of this node in NATS; each covers a part of all topics";
    gauge(encoder, "cluster_subscriptions", help, None, status.streams as f64)?;
    let (help, unit) = ("Bytes that are queued for NATS", Some(Unit::Bytes));
    gauge(encoder, "cluster_queue", help, unit, link.queued_bytes() as f64)?;
    let help = "Bytes of messages that are retained for nodes that missed some";
    let unit = Some(Unit::Bytes);
    gauge(encoder, "cluster_replay", help, unit, status.replay_bytes as f64)?;
    let help = "Connections of users at other nodes in topics with presence";
    let presence = &status.presence;
    gauge(encoder, "cluster_presence_connections", help, None, presence.other_nodes as f64)?;
    let help = "Memory of the presence entries of other nodes";
    let bytes = presence.other_nodes_bytes;
    gauge(encoder, "cluster_presence", help, Some(Unit::Bytes), bytes as f64)?;
    let help = "Other nodes whose presence entries have not arrived completely";
    let nodes = status.incomplete.len();
    gauge(encoder, "cluster_presence_incomplete", help, None, nodes as f64)?;
    for (name, help, value) in [
        ("published", "Messages that this node published to other nodes", counts.published),
        (
            "delivered",
            "Messages from other nodes that were delivered at this node",
            counts.delivered,
        ),
        ("duplicates", "Messages that arrived a second time and were dropped", counts.duplicates),
        (
            "unwanted",
            "Messages from other nodes whose topics have no members at this node",
            counts.without_interest,
        ),
        (
            "replayed",
            "Messages that this node sent again because another node requested them",
            counts.replayed,
        ),
        ("requests", "Requests of this node for messages that it missed", counts.requests),
        ("gaps", "Times that messages from other nodes were lost for good", counts.gaps),
        ("damaged", "Packets from other nodes that could not be read", counts.damaged),
        (
            "too_large",
            "Packets that were not sent, because they are larger than NATS allows",
            counts.too_large,
        ),
        ("presence_sent", "Presence changes that this node sent", counts.presence_sent),
        ("presence_received", "Presence changes from other nodes", counts.presence_received),
        (
            "presence_reads",
            "Times that this node read all presence entries of another node",
            counts.presence_reads,
        ),
        (
            "groups_passed",
            "Messages for MQTT groups without a member at this node any more, which were passed \
             to another node",
            counts.groups_passed,
        ),
        (
            "groups_received",
            "Messages for members of MQTT groups that another node passed to this one",
            counts.groups_received,
        ),
    ] {
        counter(encoder, &format!("cluster_{name}"), help, None, value as f64)?;
    }
    Ok(())
}

/// The outbox in PostgreSQL.
fn outbox(encoder: &mut DescriptorEncoder, outbox: &outbox::Outbox) -> fmt::Result {
    let status = outbox.status();
    let number = |is_so| f64::from(u8::from(is_so));
    let help = "PostgreSQL: 1 while the database of the outbox can be used";
    gauge(encoder, "outbox_connected", help, None, number(status.is_connected))?;
    let help = "PostgreSQL: 1 if this node publishes the rows of the outbox";
    gauge(encoder, "outbox_draining", help, None, number(status.is_draining))?;
    let help =
        "PostgreSQL: age of the oldest row in the outbox, on the node that publishes the rows";
    gauge(encoder, "outbox_lag", help, Some(Unit::Seconds), status.lag_seconds)?;
    for (name, help, value) in [
        ("published", "PostgreSQL: rows of the outbox that this node published", status.published),
        ("refused", "PostgreSQL: rows of the outbox that could not be published", status.refused),
        (
            "connections_lost",
            "PostgreSQL: times that the connection of the outbox was lost",
            status.connections_lost,
        ),
    ] {
        counter(encoder, &format!("outbox_{name}"), help, None, value as f64)?;
    }
    Ok(())
}

/// The history in PostgreSQL.
fn history_database(
    encoder: &mut DescriptorEncoder,
    postgres: &history_postgres::Postgres,
) -> fmt::Result {
    let status = postgres.status();
    let help = "PostgreSQL: 1 while the database of the history can be used";
    let connected = f64::from(u8::from(status.is_connected));
    gauge(encoder, "history_connected", help, None, connected)?;
    let help = "PostgreSQL: messages that are queued for the history";
    gauge(encoder, "history_queue_messages", help, None, status.queue_messages as f64)?;
    let help = "PostgreSQL: bytes of these messages";
    gauge(encoder, "history_queue", help, Some(Unit::Bytes), status.queue_bytes as f64)?;
    let help = "PostgreSQL: messages of this node that are committed and queued for members";
    gauge(encoder, "history_backlog_messages", help, None, status.backlog_messages as f64)?;
    let help = "PostgreSQL: bytes of these messages";
    gauge(encoder, "history_backlog", help, Some(Unit::Bytes), status.backlog_bytes as f64)?;
    let help = "PostgreSQL: users' cursors that moved here and are queued for the database";
    gauge(encoder, "history_pending_cursors", help, None, status.pending_cursors as f64)?;
    let help = "PostgreSQL: MQTT sessions of this node whose changes are queued for the database";
    gauge(encoder, "history_pending_sessions", help, None, status.pending_sessions as f64)?;
    let help = "PostgreSQL: messages that this node delivered and can't read again, because it \
                has no rule for their topics";
    counter(encoder, "history_passed", help, None, status.passed as f64)?;
    let help = "PostgreSQL: times that members got a gap notice, because messages were deleted \
                before this node could read them, or are unreadable";
    counter(encoder, "history_gaps", help, None, status.gaps as f64)?;
    let help = "PostgreSQL: times that the deletion of messages that no rule retains failed";
    counter(encoder, "history_trims_failed", help, None, status.trims_failed as f64)?;
    let help = "PostgreSQL: commits of messages by this node";
    counter(encoder, "history_commits", help, None, status.batches as f64)?;
    let help = "PostgreSQL: times that the connection of the history was lost";
    counter(encoder, "history_connections_lost", help, None, status.connections_lost as f64)
}

/// The stored subscriptions in PostgreSQL.
fn subscription_database(
    encoder: &mut DescriptorEncoder,
    postgres: &subscriptions_postgres::Postgres,
) -> fmt::Result {
    let status = postgres.status();
    let help = "PostgreSQL: 1 while the database of the subscriptions can be used";
    let connected = f64::from(u8::from(status.is_connected));
    gauge(encoder, "subscriptions_connected", help, None, connected)?;
    let help = "PostgreSQL: changes of stored subscriptions, by any node, that this node applied";
    counter(encoder, "subscriptions_applied", help, None, status.applied as f64)?;
    let help =
        "PostgreSQL: times that this node read all stored subscriptions again since its start";
    counter(encoder, "subscriptions_reloads", help, None, status.reloads as f64)?;
    let help = "PostgreSQL: times that the connection of the subscriptions was lost";
    counter(encoder, "subscriptions_connections_lost", help, None, status.connections_lost as f64)
}

/// Counts with their upper bounds in seconds, the last of which may be infinite.
fn bounded(counts: &[u64], bound_seconds: impl Fn(usize) -> f64) -> Vec<(f64, u64)> {
    // prometheus-client writes f64::MAX as +Inf.
    let bound = |at| Some(bound_seconds(at)).filter(|bound| bound.is_finite()).unwrap_or(f64::MAX);
    counts.iter().enumerate().map(|(at, count)| (bound(at), *count)).collect()
}

fn counter(
    e: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    value: f64,
) -> fmt::Result {
    let metric = e.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
    ConstCounter::new(value).encode(metric)
}

fn gauge(
    e: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    value: f64,
) -> fmt::Result {
    let metric = e.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
    ConstGauge::new(value).encode(metric)
}

fn histogram(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    buckets: &[(f64, u64)],
    sum_us: u64,
) -> fmt::Result {
    let kind = MetricType::Histogram;
    let mut metric = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), kind)?;
    let total = buckets.iter().map(|(_, count)| count).sum();
    metric.encode_histogram::<NoLabelSet>(sum_us as f64 / 1e6, total, buckets, None)
}

fn counters(
    e: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    rows: Labelled,
) -> fmt::Result {
    let mut metric = e.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
    for (label, of, value) in rows {
        ConstCounter::new(value).encode(metric.encode_family(&[(label, of)])?)?;
    }
    Ok(())
}

fn gauges(
    e: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    rows: Labelled,
) -> fmt::Result {
    let mut metric = e.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
    for (label, of, value) in rows {
        ConstGauge::new(value).encode(metric.encode_family(&[(label, of)])?)?;
    }
    Ok(())
}
