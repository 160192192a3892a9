//! The node's figures once a second: how readings become rates, and a ring of the last 15 minutes.

use std::array;
use std::collections::VecDeque;
use std::time::Instant;

use kernel::KernelStats;
use model::CloseReason;
use model::Encoding;
use protocol::Protocols;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use shard::Histogram;
use utoipa::ToSchema;

use super::figure::Figure;
use super::histogram::percentile_ms;
use super::shard_samples::{ShardColumns, ShardReading};
use crate::upgrade::UpgradeState;

/// Samples in the ring: 15 minutes.
pub(crate) const SAMPLES_MAX: usize = 900;

/// The node's counters and gauges at one moment.
#[derive(Clone)]
pub(crate) struct Reading {
    pub taken: Instant,
    /// Milliseconds since 1970.
    pub at: u64,
    /// Since the start.
    pub counters: Counters,
    /// At this moment.
    pub gauges: Gauges,
    /// Each shard.
    pub shards: Vec<ShardReading>,
    /// What the kernel reports.
    pub kernel: KernelStats,
}

/// Figures that only grow.
#[derive(Clone, Default)]
pub(crate) struct Counters {
    pub opened: u64,
    pub closed: [u64; CloseReason::ALL.len()],
    pub refused: u64,
    pub messages_in: u64,
    pub delivered: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub answers: u64,
    pub latency: [u64; Histogram::BUCKETS],
    pub cpu_seconds: f64,
}

/// Figures that go up and down.
#[derive(Clone, Default, Serialize, ToSchema)]
pub(crate) struct Gauges {
    /// Connections that are open, short requests included.
    pub connections: u64,
    /// limits.connections_max; 0 if there is none.
    pub connections_max: u64,
    /// Connections by transport.
    #[schema(value_type = std::collections::BTreeMap<String, u64>)]
    pub transports: Transports,
    /// Resident memory (VmRSS).
    pub rss_bytes: u64,
    /// The part of it that the program itself has written (RssAnon).
    pub user_bytes: u64,
    /// Growth of the program's own memory since the start, divided by the connections; 0 without any.
    #[schema(value_type = f64)]
    pub user_bytes_per_connection: Figure,
    /// The kernel's memory for the connections, estimated: 4,170 bytes for each (measured on idle ones) and their
    /// share of the buffers of all the host's TCP sockets.
    pub kernel_bytes: u64,
    /// The same, divided by the connections; 0 without any.
    #[schema(value_type = f64)]
    pub kernel_bytes_per_connection: Figure,
    /// Connections with bytes in their outboxes.
    pub outboxes: u64,
    /// Bytes in these outboxes.
    pub outbox_bytes: u64,
    /// Topics with members, counted for each shard and added up; users' own included.
    pub topics: u64,
    /// Fan-outs that are under way or wait.
    pub fanouts: u64,
    /// Sessions of MQTT clients that are away.
    pub mqtt_away: u64,
    /// Topics with a retained message.
    pub mqtt_retained: u64,
    /// Bytes of these messages.
    pub mqtt_retained_bytes: u64,
}

/// One second of the node. A figure without a unit is a count; rates are per second, over the time since the last
/// sample.
#[derive(Clone, Default, Serialize, ToSchema)]
pub(crate) struct Sample {
    /// When it was taken, in milliseconds since 1970.
    pub at: u64,
    #[serde(flatten)]
    pub gauges: Gauges,
    /// Connections of each shard.
    pub shards: Vec<u64>,
    /// How each shard spends its time, and what waits for it.
    #[schema(value_type = ShardColumns, nullable = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_shard: Option<Box<ShardColumns>>,
    /// Connections accepted, a second.
    #[schema(value_type = f64)]
    pub opened: Figure,
    /// Connections closed, a second.
    #[schema(value_type = f64)]
    pub closed: Figure,
    /// The same by reason; reasons without any are left out.
    #[schema(value_type = std::collections::BTreeMap<String, f64>)]
    pub closed_by: ClosedBy,
    /// New connections rejected with 503, a second.
    #[schema(value_type = f64)]
    pub refused: Figure,
    /// Messages that shards took in, a second: one that goes to three shards counts three times.
    #[schema(value_type = f64)]
    pub messages_in: Figure,
    /// Messages handed to connections, a second.
    #[schema(value_type = f64)]
    pub delivered: Figure,
    /// Bytes read from connections, a second.
    pub bytes_in: u64,
    /// Bytes written to them, a second.
    pub bytes_out: u64,
    /// Short HTTP responses, a second.
    #[schema(value_type = f64)]
    pub answers: Figure,
    /// Time from publish to the kernel; null if nothing was delivered.
    pub latency_ms: Option<Latency>,
    /// Processor seconds a second: 1 is one core.
    #[schema(value_type = f64)]
    pub cpu: Figure,
    /// Slow consumers closed, a second.
    #[schema(value_type = f64)]
    pub slow: Figure,
    /// The upgrade that is under way, or the last one of this process; left out if there was none.
    #[schema(value_type = UpgradeState, nullable = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upgrade: Option<Box<UpgradeState>>,
}

/// Upper bounds in milliseconds, from a histogram whose bounds double.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Latency {
    #[schema(value_type = f64)]
    pub p50: Figure,
    #[schema(value_type = f64)]
    pub p90: Figure,
    #[schema(value_type = f64)]
    pub p99: Figure,
}

/// Connections by [`Encoding`]; written by the transports' names.
#[derive(Clone, Copy)]
pub(crate) struct Transports {
    protocols: &'static Protocols,
    /// By encoding.
    pub counts: [u32; Encoding::MAX],
}

impl Default for Transports {
    fn default() -> Self {
        Transports::of(protocol::standard())
    }
}

impl Transports {
    /// No connections yet, of these protocols.
    pub fn of(protocols: &'static Protocols) -> Self {
        Transports { protocols, counts: [0; Encoding::MAX] }
    }

    /// Returns the connections of each name that has some.
    pub fn by_name(&self) -> Vec<(String, u32)> {
        let count = |name| u32::try_from(self.count(name)).unwrap_or(u32::MAX);
        let all = self.protocols.names().map(|protocol| (protocol.name(), count(protocol.name())));
        all.filter(|(_, count)| *count > 0).map(|(name, count)| (name.into(), count)).collect()
    }

    /// Sets the connections of a name. A name that is not known here is ignored.
    pub fn set(&mut self, name: &str, count: u32) {
        if let Some(protocol) = self.protocols.names().find(|protocol| protocol.name() == name) {
            self.counts[usize::from(protocol.encoding().0)] = count;
        }
    }

    /// Returns the connections of a name: a transport may have several encodings.
    fn count(&self, name: &str) -> u64 {
        let named = self.protocols.all().filter(|protocol| protocol.name() == name);
        named.map(|protocol| u64::from(self.counts[usize::from(protocol.encoding().0)])).sum()
    }
}

impl Serialize for Transports {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let names = self.protocols.names().map(|protocol| protocol.name());
        serializer.collect_map(names.map(|name| (name, self.count(name))))
    }
}

/// Rates by the reason of the close; written by the reasons' names, without those that are 0.
#[derive(Clone, Copy, Default)]
pub(crate) struct ClosedBy(pub [Figure; CloseReason::ALL.len()]);

impl Serialize for ClosedBy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rates = CloseReason::ALL.iter().map(|close| (close.name(), self.0[*close as usize]));
        serializer.collect_map(rates.filter(|(_, rate)| rate.0 > 0.0))
    }
}

impl Sample {
    /// Makes a sample of what happened between two readings. A counter that is lower than before counts as unchanged.
    pub fn between(before: &Reading, after: Reading) -> Self {
        let seconds = after.taken.saturating_duration_since(before.taken).as_secs_f64();
        let per_second = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        let (then, now) = (&before.counters, &after.counters);
        let grown = |now: u64, then: u64| per_second(now.saturating_sub(then) as f64);
        let rate = |now, then| Figure::new(grown(now, then));
        let latency = array::from_fn(|at| now.latency[at].saturating_sub(then.latency[at]));
        let closed: [u64; CloseReason::ALL.len()] =
            array::from_fn(|at| now.closed[at].saturating_sub(then.closed[at]));
        let closed_by = closed.map(|closed| rate(closed, 0));
        Sample {
            at: after.at,
            opened: rate(now.opened, then.opened),
            closed: rate(closed.iter().sum(), 0),
            closed_by: ClosedBy(closed_by),
            refused: rate(now.refused, then.refused),
            messages_in: rate(now.messages_in, then.messages_in),
            delivered: rate(now.delivered, then.delivered),
            bytes_in: grown(now.bytes_in, then.bytes_in).round() as u64,
            bytes_out: grown(now.bytes_out, then.bytes_out).round() as u64,
            answers: rate(now.answers, then.answers),
            latency_ms: Latency::of(&latency),
            cpu: Figure::new(per_second((now.cpu_seconds - then.cpu_seconds).max(0.0))),
            slow: closed_by[CloseReason::SlowConsumer as usize],
            gauges: after.gauges,
            shards: after.shards.iter().map(|shard| shard.connections).collect(),
            by_shard: Some(Box::new(ShardColumns::between(&before.shards, &after.shards, seconds))),
            upgrade: None,
        }
    }
}

impl Latency {
    fn of(buckets: &[u64; Histogram::BUCKETS]) -> Option<Self> {
        let at = |percent| Figure::new(percentile_ms(buckets, percent));
        let is_any = buckets.iter().any(|count| *count > 0);
        is_any.then(|| Latency { p50: at(50), p90: at(90), p99: at(99) })
    }
}

/// The last [`SAMPLES_MAX`] samples, without the figures of each shard. Written in columns, the oldest first.
pub(crate) struct SampleRing(VecDeque<Sample>);

impl SampleRing {
    /// An empty ring. It writes to its memory now, so that this does not count as memory of the connections that come
    /// later.
    pub fn new() -> Self {
        let mut ring = VecDeque::from(vec![Sample::default(); SAMPLES_MAX]);
        ring.clear();
        SampleRing(ring)
    }

    pub fn push(&mut self, sample: Sample) {
        if self.0.len() == SAMPLES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Sample { shards: Vec::new(), by_shard: None, upgrade: None, ..sample });
    }

    /// Returns all samples, the oldest first.
    pub fn all(&self) -> impl Iterator<Item = &Sample> {
        self.0.iter()
    }

    /// Inserts a sample of this time, or replaces the one that is there. `None` removes that.
    pub fn replace(&mut self, at: u64, sample: Option<Sample>) {
        let index = self.0.binary_search_by_key(&at, |sample| sample.at);
        match (index, sample) {
            (Ok(index), Some(sample)) => self.0[index] = sample,
            (Ok(index), None) => _ = self.0.remove(index),
            // It is older than all, and the ring is at capacity.
            (Err(0), Some(_)) if self.0.len() == SAMPLES_MAX => {}
            (Err(index), Some(sample)) => {
                let index = match self.0.len() == SAMPLES_MAX {
                    true => {
                        self.0.pop_front();
                        index - 1
                    }
                    false => index,
                };
                self.0.insert(index, sample);
            }
            (Err(_), None) => {}
        }
    }
}

impl Serialize for SampleRing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut to = Columns { map: serializer.serialize_map(None)?, ring: &self.0 };
        to.add("at", |sample| sample.at)?;
        to.add("connections", |sample| sample.gauges.connections)?;
        to.add("opened", |sample| sample.opened)?;
        to.add("closed", |sample| sample.closed)?;
        to.add("refused", |sample| sample.refused)?;
        to.add("messages_in", |sample| sample.messages_in)?;
        to.add("delivered", |sample| sample.delivered)?;
        to.add("bytes_in", |sample| sample.bytes_in)?;
        to.add("bytes_out", |sample| sample.bytes_out)?;
        to.add("answers", |sample| sample.answers)?;
        to.add("p50", |sample| sample.latency_ms.map(|latency| latency.p50))?;
        to.add("p90", |sample| sample.latency_ms.map(|latency| latency.p90))?;
        to.add("p99", |sample| sample.latency_ms.map(|latency| latency.p99))?;
        to.add("user_bytes", |sample| sample.gauges.user_bytes)?;
        to.add("user_bytes_per_connection", |sample| sample.gauges.user_bytes_per_connection)?;
        to.add("kernel_bytes", |sample| sample.gauges.kernel_bytes)?;
        to.add("kernel_bytes_per_connection", |sample| sample.gauges.kernel_bytes_per_connection)?;
        to.add("rss_bytes", |sample| sample.gauges.rss_bytes)?;
        to.add("cpu", |sample| sample.cpu)?;
        to.add("slow", |sample| sample.slow)?;
        to.add("outboxes", |sample| sample.gauges.outboxes)?;
        to.add("outbox_bytes", |sample| sample.gauges.outbox_bytes)?;
        to.add("topics", |sample| sample.gauges.topics)?;
        to.add("fanouts", |sample| sample.gauges.fanouts)?;
        to.add("mqtt_away", |sample| sample.gauges.mqtt_away)?;
        to.add("mqtt_retained", |sample| sample.gauges.mqtt_retained)?;
        to.add("mqtt_retained_bytes", |sample| sample.gauges.mqtt_retained_bytes)?;
        let protocols =
            self.0.back().map_or(protocol::standard(), |sample| sample.gauges.transports.protocols);
        let transports = protocols.names().map(|protocol| {
            let name = protocol.name();
            (name, column(&self.0, move |sample| sample.gauges.transports.count(name)))
        });
        to.map.serialize_entry("transports", &Group(transports.collect()))?;
        // A reason that did not occur in all this time gets no column.
        let closed_by = CloseReason::ALL
            .iter()
            .filter(|close| {
                self.0.iter().any(|sample| sample.closed_by.0[**close as usize].0 > 0.0)
            })
            .map(|close| {
                (close.name(), column(&self.0, |sample| sample.closed_by.0[*close as usize]))
            });
        to.map.serialize_entry("closed_by", &Group(closed_by.collect()))?;
        to.map.end()
    }
}

/// Writes the ring's columns.
struct Columns<'a, M> {
    map: M,
    ring: &'a VecDeque<Sample>,
}

impl<M: SerializeMap> Columns<'_, M> {
    fn add<T: Serialize>(
        &mut self,
        name: &'static str,
        read: impl Fn(&Sample) -> T,
    ) -> Result<(), M::Error> {
        self.map.serialize_entry(name, &column(self.ring, read))
    }
}

/// One figure of all samples.
struct Column<'a, F> {
    ring: &'a VecDeque<Sample>,
    read: F,
}

fn column<T, F: Fn(&Sample) -> T>(ring: &VecDeque<Sample>, read: F) -> Column<'_, F> {
    Column { ring, read }
}

impl<T: Serialize, F: Fn(&Sample) -> T> Serialize for Column<'_, F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.ring.iter().map(&self.read))
    }
}

/// Columns by name.
struct Group<C>(Vec<(&'static str, C)>);

impl<C: Serialize> Serialize for Group<C> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, column)| (name, column)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json, to_value};

    use super::*;

    fn reading(taken: Instant, counters: Counters) -> Reading {
        let (gauges, kernel) = (Gauges::default(), KernelStats::default());
        let shards =
            [2, 1].map(|connections| ShardReading { connections, ..ShardReading::default() });
        Reading { taken, at: 1_000, counters, gauges, shards: shards.into(), kernel }
    }

    fn counters(scale: u64) -> Counters {
        let mut counters = Counters {
            opened: 10 * scale,
            delivered: 100 * scale,
            bytes_out: 3_000_000_001 * scale,
            cpu_seconds: 0.5 * scale as f64,
            ..Counters::default()
        };
        counters.closed[CloseReason::ByClient as usize] = 4 * scale;
        counters.closed[CloseReason::SlowConsumer as usize] = 3 * scale;
        counters.latency[10] = 98 * scale;
        counters.latency[20] = 2 * scale;
        counters
    }

    #[test]
    fn counters_become_rates_over_the_time_that_really_passed() {
        let began = Instant::now();
        let before = reading(began, counters(1));
        let after = reading(began + Duration::from_secs(2), counters(3));
        let sample = to_value(Sample::between(&before, after)).unwrap();
        assert_eq!(sample["opened"], 10);
        assert_eq!(sample["closed"], 7);
        assert_eq!(sample["closed_by"], json!({"client": 4, "slow_consumer": 3}));
        assert_eq!(sample["slow"], 3);
        assert_eq!(sample["delivered"], 100);
        assert_eq!(sample["bytes_out"], 3_000_000_001_u64);
        assert_eq!(sample["cpu"], 0.5);
        assert_eq!(sample["shards"], json!([2, 1]));
        assert_eq!(sample["by_shard"]["turns"], json!([0, 0]));
        assert_eq!(sample["latency_ms"]["p50"].as_f64().unwrap() as f32, 1.024);
        assert_eq!(sample["latency_ms"]["p99"].as_f64().unwrap() as f32, 1048.576);
    }

    #[test]
    fn counters_that_fall_and_no_time_at_all_give_no_rate() {
        let began = Instant::now();
        for (before, after, seconds) in [(3, 0, 1), (1, 3, 0)] {
            let after = reading(began + Duration::from_secs(seconds), counters(after));
            let sample = Sample::between(&reading(began, counters(before)), after);
            let sample = to_value(sample).unwrap();
            for rate in ["opened", "closed", "delivered", "bytes_out", "cpu", "slow"] {
                assert_eq!(sample[rate], 0, "{rate} in {sample}");
            }
            assert_eq!(sample["closed_by"], json!({}));
        }
        let quiet = reading(began + Duration::from_secs(1), counters(1));
        let sample = Sample::between(&reading(began, counters(1)), quiet);
        assert_eq!(to_value(sample).unwrap()["latency_ms"], Value::Null);
    }

    #[test]
    fn a_transport_has_one_name_however_many_encodings() {
        let mut transports = Transports::default();
        transports.counts[1] = 2;
        transports.counts[2] = 3;
        let value = to_value(transports).unwrap();
        assert_eq!(
            (&value["sse"], &value["ws"], &value["http"]),
            (&json!(5), &json!(0), &json!(0))
        );
    }

    #[test]
    fn the_ring_is_columns_of_the_last_samples() {
        let mut ring = SampleRing::new();
        assert_eq!(to_value(&ring).unwrap()["at"], json!([]));
        for n in 0..SAMPLES_MAX as u64 + 5 {
            let mut sample = Sample { at: n, opened: Figure::new(0.5), ..Sample::default() };
            sample.gauges.connections = n;
            sample.shards = vec![1];
            // The reason of the first samples is forgotten with them.
            let close = if n < 5 { CloseReason::Drain } else { CloseReason::ByClient };
            sample.closed_by.0[close as usize] = Figure::new(1.0);
            ring.push(sample);
        }
        let value = to_value(&ring).unwrap();
        let at = value["at"].as_array().unwrap();
        assert_eq!((at.len(), &at[0], &at[SAMPLES_MAX - 1]), (900, &json!(5), &json!(904)));
        assert_eq!(value["connections"], value["at"]);
        assert_eq!(value["opened"][7], 0.5);
        assert_eq!(value["p99"][0], Value::Null);
        assert_eq!(value["transports"]["sse"].as_array().unwrap().len(), SAMPLES_MAX);
        let closed_by: Vec<&String> = value["closed_by"].as_object().unwrap().keys().collect();
        assert_eq!(closed_by, ["client"]);
        assert_eq!(value["closed_by"]["client"].as_array().unwrap().len(), SAMPLES_MAX);
    }
}
