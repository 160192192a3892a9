//! The responses of the admin API: one second of a node, its last 15 minutes, its topics, and the
//! members of a topic. Fields that a node of another version leaves out are 0.

use std::collections::{BTreeMap, VecDeque};

use kernel::KernelStats;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::shards::ShardColumns;

/// The limit on stored samples: 15 minutes of them.
pub const SAMPLES_MAX: usize = 900;

/// With fewer connections, memory per connection mostly shows the node's own memory.
const CONNECTIONS_MIN: f64 = 100.0;

/// One second of a node. Rates are per second.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Sample {
    /// The time of the sample, in milliseconds since 1970.
    pub at: u64,
    /// Connections that are open.
    pub connections: f64,
    /// The limit on open connections; `None` in samples of the history, and when the node leaves it
    /// out.
    #[serde(default)]
    pub connections_max: Option<f64>,
    /// Open connections by transport.
    #[serde(default)]
    pub transports: BTreeMap<String, f64>,
    /// Open connections by shard; empty in samples of the history.
    #[serde(default)]
    pub shards: Vec<f64>,
    /// The other figures of each shard; `None` in samples of the history, and from older nodes.
    #[serde(default)]
    pub by_shard: Option<Box<ShardColumns>>,
    /// Connections closed, by reason, a second. Contains only reasons that occurred.
    #[serde(default)]
    pub closed_by: BTreeMap<String, f64>,
    /// The upgrade that is under way, or the last one.
    #[serde(default)]
    pub upgrade: Option<Upgrade>,
    /// The latency of this second's deliveries; `None` without deliveries.
    #[serde(default)]
    pub latency_ms: Option<Latency>,
    /// The figures that are single numbers.
    #[serde(flatten)]
    pub figures: Figures,
}

impl Sample {
    /// Returns the program's own memory per connection, in bytes. Returns `None` while the
    /// connections are too few for a meaningful value.
    pub fn user_bytes_each(&self) -> Option<f64> {
        let are_enough = self.connections >= CONNECTIONS_MIN;
        are_enough.then_some(self.figures.user_bytes_per_connection)
    }
}

/// An upgrade of the node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Upgrade {
    /// Its result; `None` while it is under way.
    #[serde(default)]
    pub result: Option<String>,
    /// Its progress or its result, in a sentence.
    #[serde(default)]
    pub text: String,
}

/// The time from the publish to the write to the kernel, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct Latency {
    /// Half of the deliveries took no longer.
    pub p50: f64,
    /// 90 % took no longer.
    pub p90: f64,
    /// 99 % took no longer.
    pub p99: f64,
}

/// Generates [`Figures`] and their columns from one list of names.
macro_rules! figures {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// The figures of a sample that are one number each, named as in the API.
        #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
        #[serde(default)]
        pub struct Figures { $($(#[$doc])* pub $name: f64),+ }

        /// The figures of samples, in columns.
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct FigureColumns { $($name: Vec<f64>),+ }

        impl FigureColumns {
            fn at(&self, index: usize) -> Figures {
                Figures { $($name: value(&self.$name, index)),+ }
            }
        }
    };
}

figures! {
    /// Connections accepted, a second.
    opened,
    /// Connections closed, a second.
    closed,
    /// Connections rejected, a second.
    refused,
    /// Messages that shards received, a second.
    messages_in,
    /// Messages passed to connections, a second.
    delivered,
    /// Bytes read, a second.
    bytes_in,
    /// Bytes written, a second.
    bytes_out,
    /// Short HTTP responses, a second.
    answers,
    /// Resident memory, in bytes.
    rss_bytes,
    /// The part of it that the program itself has written, in bytes.
    user_bytes,
    /// The growth of that part since the start, per connection, in bytes.
    user_bytes_per_connection,
    /// The kernel's memory for the connections, estimated, in bytes.
    kernel_bytes,
    /// The kernel's memory per connection, estimated, in bytes.
    kernel_bytes_per_connection,
    /// Processor seconds a second: 1 is one core.
    cpu,
    /// Slow consumers closed, a second.
    slow,
    /// Connections with bytes in their outbox.
    outboxes,
    /// The bytes in all outboxes.
    outbox_bytes,
    /// Topics with members.
    topics,
    /// Fan-outs under way or waiting.
    fanouts,
    /// Sessions of MQTT clients that are away.
    mqtt_away,
    /// Topics with a retained message.
    mqtt_retained,
    /// The bytes of these messages.
    mqtt_retained_bytes,
}

fn value(column: &[f64], index: usize) -> f64 {
    column.get(index).copied().unwrap_or_default()
}

/// A node, apart from its figures.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Node {
    /// Throng's version.
    pub version: String,
    /// The epoch of the messages' offsets. It changes with a restart.
    pub epoch: String,
    /// The time of its start, in seconds since 1970.
    pub started_at: u64,
    /// Processors that it may use.
    #[serde(default)]
    pub cores: f64,
    /// The limit on connections; 0 when the node leaves it out.
    #[serde(default)]
    pub connections_max: f64,
}

/// A node and its last 15 minutes: the response of `/api/samples`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "SamplesResponse")]
pub struct History {
    /// The node.
    pub node: Node,
    /// Its samples, the oldest first, at most [`SAMPLES_MAX`].
    pub samples: Vec<Sample>,
}

#[derive(Deserialize)]
struct SamplesResponse {
    #[serde(flatten)]
    node: Node,
    samples: Columns,
}

#[derive(Deserialize)]
struct Columns {
    at: Vec<u64>,
    connections: Vec<f64>,
    #[serde(default)]
    p50: Vec<Option<f64>>,
    #[serde(default)]
    p90: Vec<Option<f64>>,
    #[serde(default)]
    p99: Vec<Option<f64>>,
    #[serde(default)]
    transports: BTreeMap<String, Vec<f64>>,
    #[serde(default)]
    closed_by: BTreeMap<String, Vec<f64>>,
    #[serde(flatten)]
    figures: FigureColumns,
}

impl From<SamplesResponse> for History {
    fn from(response: SamplesResponse) -> Self {
        let SamplesResponse { node, samples } = response;
        let oldest = samples.at.len().saturating_sub(SAMPLES_MAX);
        let samples = (oldest..samples.at.len()).map(|index| samples.sample(index)).collect();
        History { node, samples }
    }
}

impl Columns {
    fn sample(&self, index: usize) -> Sample {
        let group = |columns: &BTreeMap<String, Vec<f64>>| {
            columns.iter().map(|(name, column)| (name.clone(), value(column, index))).collect()
        };
        let percentile = |column: &[Option<f64>]| column.get(index).copied().flatten();
        let latency_ms = percentile(&self.p99).map(|p99| Latency {
            p50: percentile(&self.p50).unwrap_or_default(),
            p90: percentile(&self.p90).unwrap_or_default(),
            p99,
        });
        let mut closed_by: BTreeMap<String, f64> = group(&self.closed_by);
        closed_by.retain(|_, rate| *rate > 0.0);
        Sample {
            upgrade: None,
            at: self.at.get(index).copied().unwrap_or_default(),
            connections: value(&self.connections, index),
            connections_max: None,
            transports: group(&self.transports),
            shards: Vec::new(),
            by_shard: None,
            closed_by,
            latency_ms,
            figures: self.figures.at(index),
        }
    }
}

/// The newest samples, the oldest first.
#[derive(Clone, Debug, Default)]
pub struct Ring(VecDeque<Sample>);

impl Ring {
    /// Adds the newest sample. It replaces a sample of the same time. If it is older than others, the
    /// node's clock was set back, and the samples that seem later are removed.
    pub fn push(&mut self, sample: Sample) {
        while self.0.back().is_some_and(|last| last.at >= sample.at) {
            self.0.pop_back();
        }
        self.0.push_back(sample);
        while self.0.len() > SAMPLES_MAX {
            self.0.pop_front();
        }
    }

    /// Adds the samples of a node's history. Earlier samples stay, since a node forgets them when it
    /// restarts.
    pub fn extend(&mut self, past: Vec<Sample>) {
        let Some(first) = past.first() else { return };
        while self.0.back().is_some_and(|last| last.at >= first.at) {
            self.0.pop_back();
        }
        past.into_iter().for_each(|sample| self.push(sample));
    }

    /// Returns the newest sample.
    pub fn newest(&self) -> Option<&Sample> {
        self.0.back()
    }

    /// Returns all samples, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Sample> {
        self.0.iter()
    }

    /// Returns the last `seconds` in `width` columns. Each column has the highest value of its share
    /// of the time, or `None` if it has no value. Columns begin at whole multiples of their length, so
    /// that a value stays in its column while time passes.
    pub fn columns(
        &self,
        seconds: u64,
        width: u16,
        read: impl Fn(&Sample) -> Option<f64>,
    ) -> Vec<Option<f64>> {
        let width = u64::from(width);
        let mut columns = vec![None; width as usize];
        let (Some(newest), true) = (self.newest(), width > 0) else { return columns };
        let each_ms = seconds.div_ceil(width).max(1) * 1_000;
        let last = newest.at / each_ms;
        for sample in self.0.iter().rev() {
            let back = last - (sample.at / each_ms).min(last);
            if back >= width {
                break;
            }
            if let Some(value) = read(sample) {
                let column = &mut columns[(width - 1 - back) as usize];
                *column = Some(column.map_or(value, |highest: f64| highest.max(value)));
            }
        }
        columns
    }
}

/// A topic among the biggest or the busiest.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct TopTopic {
    /// Its name.
    pub topic: String,
    /// Connections in it.
    pub members: f64,
    /// Messages over the last minute.
    #[serde(default)]
    pub messages_per_minute: f64,
    /// Messages times the members that they went to, over the last minute; only of the costliest topics.
    #[serde(default)]
    pub deliveries_per_minute: f64,
    /// Bytes that went to members, over the last minute; only of the costliest topics.
    #[serde(default)]
    pub bytes_per_minute: f64,
}

/// A response of /api/top.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Top {
    /// The topics, the highest first.
    pub topics: Vec<TopTopic>,
}

/// The load of a user, an address or a key, in a second.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Noisy {
    /// `user`, `address` or `key`.
    pub kind: String,
    /// The user, address or key.
    pub name: String,
    /// Requests and commands.
    pub commands_per_second: f64,
    /// Requests and commands rejected at a limit.
    pub refusals_per_second: f64,
}

/// A response of /api/noisiest.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Noisiest {
    /// The noisiest first.
    pub noisiest: Vec<Noisy>,
}

/// A finding about the kernel of the node's host.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Finding {
    /// What happened.
    pub what: String,
    /// What to do.
    pub advice: String,
    /// Seconds since it happened last; `None` for a condition of this moment.
    pub seconds_ago: Option<u64>,
}

/// A response of /api/kernel.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct KernelReport {
    /// The seconds that the findings cover.
    pub seconds: u64,
    /// Problems in the kernel, the gravest first.
    pub findings: Vec<Finding>,
    /// The kernel's counters and tables.
    pub stats: KernelStats,
}

/// The top topics, the noisiest users, addresses and keys, and the kernel's report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tops {
    /// Topics with the most members.
    pub biggest: Vec<TopTopic>,
    /// Topics with the most messages in the recent window.
    pub busiest: Vec<TopTopic>,
    /// Topics with the most deliveries in the last minute; empty from an older node.
    pub by_deliveries: Vec<TopTopic>,
    /// Topics with the most bytes in the last minute; empty from an older node.
    pub by_bytes: Vec<TopTopic>,
    /// The connections with the most bytes in their outbox; `None` from an older node.
    pub slowest: Option<Slowest>,
    /// The noisiest users, addresses and keys; empty from an older node.
    pub noisiest: Vec<Noisy>,
    /// The kernel's report; `None` from an older node.
    pub kernel: Option<Box<KernelReport>>,
}

/// A connection of a topic or a user.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Connection {
    /// Its id.
    pub id: String,
    /// Its transport.
    pub transport: String,
    /// Seconds since it was opened.
    pub age_seconds: f64,
    /// The peer's address and port.
    pub address: Option<String>,
    /// Its users.
    pub users: Vec<String>,
    /// Its topics, without the users' own.
    pub topics: Vec<String>,
    /// Bytes that the peer has acknowledged.
    pub bytes_sent: f64,
    /// Bytes in its outbox.
    pub outbox_bytes: f64,
    /// Milliseconds for which its outbox has not been empty.
    pub outbox_age_ms: f64,
}

/// A response of /api/slowest.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Slowest {
    /// The number of connections with bytes in their outbox.
    pub count: f64,
    /// The connections with the most bytes in their outbox.
    pub connections: Vec<Connection>,
}

/// A response of /api/topics/{topic}/members or /api/users/{user}.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Members {
    /// The number of connections; `None` from nodes that list all connections of a user.
    #[serde(default, alias = "count")]
    pub members: Option<f64>,
    /// Some of them, or all.
    pub connections: Vec<Connection>,
}

/// A message of the recent window.
#[derive(Clone, Debug, Deserialize)]
pub struct Published {
    /// The name of its event.
    #[serde(default)]
    pub event: String,
    /// Its data as JSON.
    pub data: Box<RawValue>,
    /// The time of its publish, in milliseconds since 1970.
    #[serde(default)]
    pub published_at: u64,
}

/// A response of /api/messages.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Messages {
    /// The messages, the newest first.
    pub messages: Vec<Published>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64, connections: f64) -> Sample {
        Sample { at: seconds * 1_000, connections, ..Sample::default() }
    }

    #[test]
    fn columns_of_the_history_become_samples() {
        let json = br#"{"version":"1","epoch":"e","started_at":5,"cores":2,"connections_max":9,
            "interval_seconds":1,"samples":{"at":[1000,2000],"connections":[3,4],"opened":[1,0.5],
            "p50":[null,1.5],"p90":[null,2],"p99":[null,3],"transports":{"sse":[3,4]},
            "closed_by":{"client":[0,2]},"of_another_version":["x"]}}"#;
        let history: History = serde_json::from_slice(json).unwrap();
        assert_eq!((history.node.epoch.as_str(), history.node.cores), ("e", 2.0));
        let [first, second] = history.samples.as_slice() else { panic!("two samples") };
        assert_eq!((first.at, first.connections, first.latency_ms), (1_000, 3.0, None));
        assert!(first.closed_by.is_empty());
        assert_eq!((second.figures.opened, second.figures.closed), (0.5, 0.0));
        assert_eq!(second.latency_ms, Some(Latency { p50: 1.5, p90: 2.0, p99: 3.0 }));
        assert_eq!((second.transports["sse"], second.closed_by["client"]), (4.0, 2.0));
        assert!(serde_json::from_str::<History>(r#"{"hello":"world"}"#).is_err());
    }

    #[test]
    fn memory_per_connection_needs_100_connections() {
        let mut sample = at(1, 99.0);
        sample.figures.user_bytes_per_connection = 5.0;
        assert_eq!(sample.user_bytes_each(), None);
        sample.connections = 100.0;
        assert_eq!(sample.user_bytes_each(), Some(5.0));
    }

    #[test]
    fn members_of_topics_and_connections_of_users_have_a_count() {
        let all = |json: &str| serde_json::from_str::<Members>(json).unwrap().members;
        assert_eq!(all(r#"{"topic":"a","members":7,"connections":[]}"#), Some(7.0));
        assert_eq!(all(r#"{"user":"a","count":8,"connections":[]}"#), Some(8.0));
        assert_eq!(all(r#"{"user":"a","connections":[]}"#), None);
    }

    #[test]
    fn the_ring_is_ordered_by_time() {
        let mut ring = Ring::default();
        ring.extend(vec![at(1, 1.0), at(2, 2.0)]);
        ring.push(at(2, 3.0));
        assert_eq!(ring.iter().map(|s| s.connections).collect::<Vec<_>>(), [1.0, 3.0]);
        // A restarted node has only samples since its start.
        ring.extend(vec![at(9, 4.0)]);
        assert_eq!(ring.iter().map(|s| s.at / 1_000).collect::<Vec<_>>(), [1, 2, 9]);
        ring.extend(Vec::new());
        assert_eq!(ring.iter().count(), 3);
        (10..2_000).for_each(|second| ring.push(at(second, 0.0)));
        assert_eq!(ring.iter().count(), SAMPLES_MAX);
        ring.push(at(1_500, 7.0));
        assert_eq!(ring.newest().unwrap().connections, 7.0);
    }

    #[test]
    fn columns_have_the_highest_value_or_a_gap() {
        let mut ring = Ring::default();
        let read = |sample: &Sample| Some(sample.connections);
        assert_eq!(ring.columns(10, 2, read), [None, None]);
        ring.extend(
            [(1, 5.0), (2, 1.0), (3, 2.0), (8, 9.0), (9, 4.0)].map(|(s, c)| at(s, c)).into(),
        );
        assert_eq!(ring.columns(10, 5, read), [Some(5.0), Some(2.0), None, None, Some(9.0)]);
        assert_eq!(ring.columns(2, 2, read), [Some(9.0), Some(4.0)]);
        assert_eq!(ring.columns(2, 0, read), []);
        assert_eq!(ring.columns(2, 2, |_| None), [None, None]);
    }
}
