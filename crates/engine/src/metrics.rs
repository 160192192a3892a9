//! A shard's counters: written by the shard alone, read by anyone.

use std::sync::atomic::{AtomicU64, Ordering};

use model::CloseReason;
use model::Encoding;

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

    /// Adds; the owning thread only.
    pub fn add(&self, amount: u64) {
        self.0.store(self.get().wrapping_add(amount), Ordering::Relaxed);
    }

    /// Subtracts; the owning thread only.
    pub fn sub(&self, amount: u64) {
        self.0.store(self.get().wrapping_sub(amount), Ordering::Relaxed);
    }

    /// Sets; the owning thread only.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// A histogram of durations: bucket `n` counts those of at most 2^n microseconds (and more than
/// the bucket before), the last one everything over 2^24 µs (16.8 s).
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

    /// Records `count` durations of `us` microseconds; the owning thread only.
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
}

impl Refusal {
    /// All, in the order of their discriminants.
    pub const ALL: [Refusal; 5] =
        [Refusal::Connections, Refusal::Address, Refusal::Rate, Refusal::Memory, Refusal::Sessions];

    /// The label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::Connections => "connections",
            Refusal::Address => "address",
            Refusal::Rate => "rate",
            Refusal::Memory => "memory",
            Refusal::Sessions => "sessions",
        }
    }
}

/// A limit that connections which are open have met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Limited {
    /// `limits.input_bytes_max`: connections whose unfinished input was let go.
    Input,
    /// `limits.outboxes_bytes_max`: slow consumers that were closed for it.
    Outboxes,
    /// `limits.publishes_per_second_max`: how often a connection had to wait, or was refused.
    Publishes,
    /// `limits.joins_per_second_max`: the same.
    Joins,
    /// The same, because the members of a topic had to catch up with what was published.
    Behind,
}

impl Limited {
    /// All, in the order of their discriminants.
    pub const ALL: [Limited; 5] =
        [Limited::Input, Limited::Outboxes, Limited::Publishes, Limited::Joins, Limited::Behind];

    /// The label in metrics: the limit's key where it is a setting.
    pub fn name(self) -> &'static str {
        match self {
            Limited::Input => "limits.input_bytes_max",
            Limited::Outboxes => "limits.outboxes_bytes_max",
            Limited::Publishes => "limits.publishes_per_second_max",
            Limited::Joins => "limits.joins_per_second_max",
            Limited::Behind => "topic_behind",
        }
    }
}

/// Everything that a shard counts. Gauges go up and down, the rest only grow.
#[derive(Default)]
#[repr(align(128))]
pub struct Metrics {
    /// Gauge: connections held, by [`Encoding`].
    pub connections: [Counter; Encoding::MAX],
    /// Connections that took up an encoding, ever.
    pub opened: [Counter; Encoding::MAX],
    /// Connections closed, by [`CloseReason`].
    pub closed: [Counter; CloseReason::ALL.len()],
    /// New connections refused, by [`Refusal`].
    pub refused: [Counter; Refusal::ALL.len()],
    /// What connections were held up or closed for, by [`Limited`].
    pub limited: [Counter; Limited::ALL.len()],
    /// Gauge: descriptors of connections in use, those included that are being closed.
    pub held: Counter,
    /// Connections accepted, those included that were refused then.
    pub accepted: Counter,
    /// Connections taken in, long-poll sessions included: those that are open, and those that were
    /// closed.
    pub admitted: Counter,
    /// Failed calls of accept.
    pub accept_errors: Counter,
    /// Short HTTP answers by class of status: index 2 is 2xx, 4 is 4xx, 5 is 5xx.
    pub answers: [Counter; 6],
    /// The time that those took, from the turn that read the request, in microseconds.
    pub answer_us: Counter,
    /// Messages taken from the mailbox.
    pub messages_in: Counter,
    /// Messages handed to a connection's socket or outbox, one for each member.
    pub delivered: Counter,
    /// Bytes written to sockets.
    pub bytes_out: Counter,
    /// Bytes read from sockets.
    pub bytes_in: Counter,
    /// Gauge: connections with an outbox.
    pub outboxes: Counter,
    /// Gauge: bytes that wait in outboxes, those in several as often.
    pub outbox_bytes: Counter,
    /// Gauge: the memory that these take up, in bytes; in several outboxes of a shard they take it up
    /// once.
    pub outbox_held: Counter,
    /// Gauge: the memory that input takes up which is not whole, in bytes.
    pub input_bytes: Counter,
    /// Gauge: topics that have members, personal ones included.
    pub topics: Counter,
    /// Gauge: fan-outs that are under way or wait.
    pub fanouts: Counter,
    /// From the first to the last member of a fan-out.
    pub fanout_time: Histogram,
    /// From publish to the hand-over to the kernel, for each delivered message.
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
