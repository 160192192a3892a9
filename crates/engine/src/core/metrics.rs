//! The counters of a shard. Only the shard writes them, and any thread reads them.

use std::sync::atomic::{AtomicU64, Ordering};

use model::Encoding;
use model::{CloseReason, ErrorCode};
use quotas::Unit;

/// A number that one thread changes and others may read at any time.
///
/// A plain load and store: only the owner writes, so no locked instruction is needed.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds. Only for the owning thread.
    pub fn add(&self, amount: u64) {
        self.0.store(self.get().wrapping_add(amount), Ordering::Relaxed);
    }

    /// Subtracts. Only for the owning thread.
    pub fn sub(&self, amount: u64) {
        self.0.store(self.get().wrapping_sub(amount), Ordering::Relaxed);
    }

    /// Sets. Only for the owning thread.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// A histogram of durations. Bucket `n` counts durations of at most 2^n microseconds that are longer than the bound of
/// the bucket before. The last bucket counts those over 2^24 µs (16.8 s).
#[derive(Default)]
pub struct Histogram {
    /// Counts, not cumulated.
    pub buckets: [Counter; Histogram::BUCKETS],
    /// The sum of all durations in microseconds.
    pub sum_us: Counter,
}

impl Histogram {
    /// How many buckets there are.
    pub const BUCKETS: usize = 26;

    /// The upper bound of a bucket in seconds; infinite for the last.
    #[expect(clippy::cast_precision_loss, reason = "powers of two are exact")]
    pub fn bound_seconds(bucket: usize) -> f64 {
        if bucket + 1 == Self::BUCKETS { f64::INFINITY } else { (1u64 << bucket) as f64 / 1e6 }
    }

    /// Records `count` durations of `us` microseconds. Only for the owning thread.
    pub fn record(&self, us: u64, count: u64) {
        let bucket = (u64::BITS - us.saturating_sub(1).leading_zeros()) as usize;
        self.buckets[bucket.min(Self::BUCKETS - 1)].add(count);
        self.sum_us.add(us * count);
    }
}

/// Why a new connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// `limits.connections_max`, or no descriptor was left.
    Connections,
    /// `limits.connections_per_address_max`.
    Address,
    /// `limits.accept_per_second_max`.
    Rate,
    /// `limits.memory_bytes_max`.
    Memory,
    /// `limits.longpoll_sessions_max` and `limits.longpoll_sessions_per_address_max`.
    Sessions,
    /// An operator has drained the node: it takes no connections until the operator cancels that.
    Drained,
}

impl Refusal {
    /// All, in the order of their discriminants.
    pub const ALL: [Refusal; 6] = [
        Refusal::Connections,
        Refusal::Address,
        Refusal::Rate,
        Refusal::Memory,
        Refusal::Sessions,
        Refusal::Drained,
    ];

    /// The label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::Connections => "connections",
            Refusal::Address => "address",
            Refusal::Rate => "rate",
            Refusal::Memory => "memory",
            Refusal::Sessions => "sessions",
            Refusal::Drained => "drained",
        }
    }
}

/// How a TLS handshake ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HandshakeResult {
    /// With new keys.
    Full,
    /// The client resumed a session.
    Resumed,
    /// The server rejected the client, or the client gave up.
    Failed,
    /// `tls.handshakes_max`.
    Refused,
}

impl HandshakeResult {
    /// All, in the order of their discriminants.
    pub const ALL: [HandshakeResult; 4] = [
        HandshakeResult::Full,
        HandshakeResult::Resumed,
        HandshakeResult::Failed,
        HandshakeResult::Refused,
    ];

    /// The label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            HandshakeResult::Full => "full",
            HandshakeResult::Resumed => "resumed",
            HandshakeResult::Failed => "failed",
            HandshakeResult::Refused => "refused",
        }
    }
}

/// A limit that open connections have reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Limited {
    /// `limits.input_bytes_max`: connections whose incomplete input was dropped.
    Input,
    /// `limits.outboxes_bytes_max`: slow consumers that were closed.
    Outboxes,
    /// `limits.publishes_per_second_max`: how often a connection had to wait or got an error.
    Publishes,
    /// `limits.joins_per_second_max`: how often a connection had to wait or got an error.
    Joins,
    /// How often a publisher had to wait or got an error because members of the topic had to catch up.
    Behind,
    /// `limits.topics_per_connection_max`: requests that got an error.
    Topics,
    /// `limits.message_bytes_max`: messages that were rejected.
    MessageBytes,
    /// The client's Maximum Packet Size (MQTT 5.0, section 3.1.2.11.4): messages that were larger.
    PacketBytes,
    /// `limits.head_bytes_max`: requests that were rejected.
    HeadBytes,
    /// `limits.uri_bytes_max`: requests that were rejected.
    UriBytes,
    /// The fixed limit on the lines of a head: requests that were rejected.
    HeaderLines,
    /// `presence.meta_bytes_max`: payloads that were rejected.
    PresencePayloadBytes,
    /// `limits.mailbox_messages_max`: wills and publishes that were rejected, except publishes that wait for the disk.
    Mailbox,
    /// `limits.connections_per_user_max`.
    UserConnections,
    /// `limits.topics_per_user_max`.
    UserTopics,
    /// `limits.topics_max`.
    AllTopics,
    /// `presence.connections_max`.
    Presences,
    /// `limits.commands_per_second_per_user_max`. The variants below are for other units, and for addresses.
    UserCommands,
    /// Bytes.
    UserBytes,
    /// Publishes.
    UserPublishes,
    /// Joins.
    UserJoins,
    /// Commands of an address.
    AddressCommands,
    /// Bytes.
    AddressBytes,
    /// Publishes.
    AddressPublishes,
    /// Joins.
    AddressJoins,
}

impl Limited {
    /// All, in the order of their discriminants.
    pub const ALL: [Limited; 25] = [
        Limited::Input,
        Limited::Outboxes,
        Limited::Publishes,
        Limited::Joins,
        Limited::Behind,
        Limited::Topics,
        Limited::MessageBytes,
        Limited::PacketBytes,
        Limited::HeadBytes,
        Limited::UriBytes,
        Limited::HeaderLines,
        Limited::PresencePayloadBytes,
        Limited::Mailbox,
        Limited::UserConnections,
        Limited::UserTopics,
        Limited::AllTopics,
        Limited::Presences,
        Limited::UserCommands,
        Limited::UserBytes,
        Limited::UserPublishes,
        Limited::UserJoins,
        Limited::AddressCommands,
        Limited::AddressBytes,
        Limited::AddressPublishes,
        Limited::AddressJoins,
    ];

    /// The label in metrics: the name of the setting, if there is one.
    pub fn name(self) -> &'static str {
        match self {
            Limited::Input => "limits.input_bytes_max",
            Limited::Outboxes => "limits.outboxes_bytes_max",
            Limited::Publishes => "limits.publishes_per_second_max",
            Limited::Joins => "limits.joins_per_second_max",
            Limited::Behind => "topic_behind",
            Limited::Topics => "limits.topics_per_connection_max",
            Limited::MessageBytes => "limits.message_bytes_max",
            Limited::PacketBytes => "client_packet_bytes_max",
            Limited::HeadBytes => "limits.head_bytes_max",
            Limited::UriBytes => "limits.uri_bytes_max",
            Limited::HeaderLines => "header_lines",
            Limited::PresencePayloadBytes => "presence.meta_bytes_max",
            Limited::Mailbox => "limits.mailbox_messages_max",
            Limited::UserConnections => "limits.connections_per_user_max",
            Limited::UserTopics => "limits.topics_per_user_max",
            Limited::AllTopics => "limits.topics_max",
            Limited::Presences => "presence.connections_max",
            Limited::UserCommands => "limits.commands_per_second_per_user_max",
            Limited::UserBytes => "limits.bytes_per_second_per_user_max",
            Limited::UserPublishes => "limits.publishes_per_second_per_user_max",
            Limited::UserJoins => "limits.joins_per_second_per_user_max",
            Limited::AddressCommands => "limits.commands_per_second_per_address_max",
            Limited::AddressBytes => "limits.bytes_per_second_per_address_max",
            Limited::AddressPublishes => "limits.publishes_per_second_per_address_max",
            Limited::AddressJoins => "limits.joins_per_second_per_address_max",
        }
    }

    /// The error code of a rejection by this limit.
    pub(crate) fn code(self) -> ErrorCode {
        let codes = [
            (Limited::UserConnections, ErrorCode::TooManyConnections),
            (Limited::UserTopics, ErrorCode::TooManyTopics),
            (Limited::AllTopics, ErrorCode::TopicsFull),
            (Limited::Presences, ErrorCode::PresenceFull),
        ];
        let found = codes.iter().find(|(limited, _)| *limited == self);
        found.map_or(ErrorCode::RateLimited, |(_, code)| *code)
    }

    /// The rate limit of a user, or of an address.
    pub(crate) fn rate(is_user: bool, unit: Unit) -> Limited {
        match (is_user, unit) {
            (true, Unit::Commands) => Limited::UserCommands,
            (true, Unit::Bytes) => Limited::UserBytes,
            (true, Unit::Publishes) => Limited::UserPublishes,
            (true, Unit::Joins) => Limited::UserJoins,
            (false, Unit::Commands) => Limited::AddressCommands,
            (false, Unit::Bytes) => Limited::AddressBytes,
            (false, Unit::Publishes) => Limited::AddressPublishes,
            (false, Unit::Joins) => Limited::AddressJoins,
        }
    }

    /// The limit that an error code stands for, if the code alone determines it.
    pub(crate) fn of_code(code: ErrorCode) -> Option<Limited> {
        let limits = [
            (ErrorCode::TooManyTopics, Limited::Topics),
            (ErrorCode::MessageTooLarge, Limited::MessageBytes),
            (ErrorCode::BodyTooLarge, Limited::MessageBytes),
            (ErrorCode::HeadTooLarge, Limited::HeadBytes),
            (ErrorCode::UriTooLong, Limited::UriBytes),
            (ErrorCode::TooManyHeaders, Limited::HeaderLines),
        ];
        limits.iter().find(|(known, _)| *known == code).map(|(_, limited)| *limited)
    }
}

/// The metrics of a shard. Gauges go up and down, counters only grow.
#[derive(Default)]
#[repr(align(128))]
pub struct Metrics {
    /// Gauge: open connections, by [`Encoding`].
    pub connections: [Counter; Encoding::MAX],
    /// Connections that have switched to an encoding.
    pub opened: [Counter; Encoding::MAX],
    /// Connections closed, by [`CloseReason`].
    pub closed: [Counter; CloseReason::ALL.len()],
    /// New connections refused, by [`Refusal`].
    pub refused: [Counter; Refusal::ALL.len()],
    /// How often a limit rejected a request, delayed a connection or closed one, by [`Limited`].
    pub limited: [Counter; Limited::ALL.len()],
    /// Gauge: descriptors of connections in use, including those of closing connections.
    pub open_connections: Counter,
    /// Gauge: closing connections.
    pub closing_connections: Counter,
    /// Accepted connections, including those that were refused afterwards.
    pub accepted: Counter,
    /// Connections and long-poll sessions that were opened, including those that have ended.
    pub admitted: Counter,
    /// Failed calls of accept.
    pub accept_errors: Counter,
    /// TLS handshakes that ended, by [`HandshakeResult`].
    pub tls_handshakes: [Counter; HandshakeResult::ALL.len()],
    /// The time spent on TLS handshakes, in microseconds.
    pub tls_handshake_us: Counter,
    /// Gauge: TLS handshakes in progress.
    pub tls_handshakes_pending: Counter,
    /// Gauge: connections that are encrypted by TLS.
    pub tls_connections: Counter,
    /// Gauge: the memory of incomplete TLS records, and of decrypted data that the engine can't process yet, in bytes.
    pub tls_input_bytes: Counter,
    /// Short HTTP replies by status class: index 2 is 2xx, 4 is 4xx, 5 is 5xx.
    pub replies: [Counter; 6],
    /// The time from the turn that read a request to its short reply, summed up in microseconds.
    pub reply_us: Counter,
    /// Messages taken from the mailbox.
    pub messages_in: Counter,
    /// Messages passed to sockets or outboxes, counted once for each member.
    pub delivered: Counter,
    /// Bytes written to sockets.
    pub bytes_out: Counter,
    /// Bytes read from sockets.
    pub bytes_in: Counter,
    /// Gauge: connections with an outbox.
    pub outboxes: Counter,
    /// Gauge: bytes in outboxes. Bytes in several outboxes count once for each.
    pub outbox_bytes: Counter,
    /// Gauge: the memory of these bytes. Bytes in several outboxes of a shard count once.
    pub outbox_memory: Counter,
    /// Messages of topics with `conflate` that a newer one replaced before a slow connection had taken them.
    pub conflated: Counter,
    /// Messages for MQTT clients that were dropped while they waited: by limits of the history, because they expired,
    /// or because no member of a shared group had capacity.
    pub mqtt_gone: Counter,
    /// MQTT connections that ended because their client connected to another node.
    pub mqtt_taken_over_by_nodes: Counter,
    /// Connects of MQTT clients to other nodes that were older than their connection here.
    pub mqtt_node_connects_outdated: Counter,
    /// Messages that were sent to MQTT clients again on a new connection.
    pub mqtt_repeated: Counter,
    /// Gauge: the memory of incomplete input, in bytes.
    pub input_bytes: Counter,
    /// Gauge: topics with members, including personal ones.
    pub topics: Counter,
    /// Gauge: fan-outs in progress or waiting.
    pub fanouts: Counter,
    /// The kernel's id of the shard's thread; 0 before it runs.
    pub thread: Counter,
    /// The time from waking up to the end of the turn, for each turn of the shard's loop.
    pub turn_time: Histogram,
    /// The time that the shard waited for events with nothing to do, in microseconds.
    pub asleep_us: Counter,
    /// The time spent on fan-outs over long lists, in microseconds.
    pub bulk_us: Counter,
    /// Gauge: commands that the engine has taken from the mailbox and not run yet.
    pub commands_pending: Counter,
    /// Gauge: connections that the kernel has established and the shard has not accepted yet.
    pub listen_queue: Counter,
    /// The time from the first to the last member of a fan-out.
    pub fanout_time: Histogram,
    /// The time from publish to the write to the kernel, for each delivered message.
    pub delivery_latency: Histogram,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn durations_fall_into_the_bucket_whose_bound_holds_them() {
        let histogram = Histogram::default();
        for (us, bucket) in [
            (0, 0),
            (1, 0),
            (2, 1),
            (3, 2),
            (4, 2),
            (5, 3),
            (1 << 24, 24),
            ((1 << 24) + 1, 25),
            (u64::MAX / 4, 25),
        ] {
            let before = histogram.buckets[bucket].get();
            histogram.record(us, 1);
            assert_eq!(histogram.buckets[bucket].get(), before + 1, "{us}");
            assert!(Duration::from_micros(us).as_secs_f64() <= Histogram::bound_seconds(bucket));
        }
    }
}
