//! What the admin API says of a node: one second of it, the last 15 minutes, its topics, and who
//! is in one. Fields that a node of another version leaves out are 0.

use std::collections::{BTreeMap, VecDeque};

use serde::Deserialize;
use serde_json::value::RawValue;

/// Samples that are kept: 15 minutes of them.
pub const SAMPLES_MAX: usize = 900;

/// With fewer connections, memory over them tells more of the node than of a connection.
const CONNECTIONS_TELLING: f64 = 100.0;

/// One second of a node. Rates are per second.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Sample {
    /// When it was taken, in milliseconds since 1970.
    pub at: u64,
    /// Connections that are open.
    pub connections: f64,
    /// So many may be open; none in samples of the past, and when the node doesn't say.
    #[serde(default)]
    pub connections_max: Option<f64>,
    /// The same by transport.
    #[serde(default)]
    pub transports: BTreeMap<String, f64>,
    /// The same by shard; empty in samples of the past.
    #[serde(default)]
    pub shards: Vec<f64>,
    /// Connections by reason of their end, a second; only reasons that there were.
    #[serde(default)]
    pub closed_by: BTreeMap<String, f64>,
    /// Of this second's deliveries; none when there were none.
    #[serde(default)]
    pub latency_ms: Option<Latency>,
    /// What is one number.
    #[serde(flatten)]
    pub figures: Figures,
}

impl Sample {
    /// The program's own memory over the connections, in bytes; none while there are so few that
    /// it says nothing of them.
    pub fn user_bytes_each(&self) -> Option<f64> {
        let is_telling = self.connections >= CONNECTIONS_TELLING;
        is_telling.then_some(self.figures.user_bytes_per_connection)
    }
}

/// From publish to the kernel, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct Latency {
    /// Half of the deliveries took no longer.
    pub p50: f64,
    /// 90 % took no longer.
    pub p90: f64,
    /// 99 % took no longer.
    pub p99: f64,
}

/// Makes [`Figures`] and their columns from one list of names.
macro_rules! figures {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// The figures of a sample that are one number each, named as in the API.
        #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
        #[serde(default)]
        pub struct Figures { $($(#[$doc])* pub $name: f64),+ }

        /// The same in columns.
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
    /// Connections refused, a second.
    refused,
    /// Messages that shards took in, a second.
    messages_in,
    /// Messages handed to connections, a second.
    delivered,
    /// Bytes read, a second.
    bytes_in,
    /// Bytes written, a second.
    bytes_out,
    /// Short HTTP answers, a second.
    answers,
    /// Resident memory.
    rss_bytes,
    /// The part of it that the program itself has written.
    user_bytes,
    /// What that grew since the start, over the connections.
    user_bytes_per_connection,
    /// What the kernel keeps for the connections, estimated.
    kernel_bytes,
    /// The same over the connections.
    kernel_bytes_per_connection,
    /// Processor seconds a second: 1 is one core.
    cpu,
    /// Slow consumers closed, a second.
    slow,
    /// Connections for which bytes wait.
    outboxes,
    /// These bytes.
    outbox_bytes,
    /// Topics with members.
    topics,
    /// Fan-outs under way or waiting.
    fanouts,
}

fn value(column: &[f64], index: usize) -> f64 {
    column.get(index).copied().unwrap_or_default()
}

/// A node, apart from its figures.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Node {
    /// Throng's version.
    pub version: String,
    /// The life of the numbering of messages: another one after a restart.
    pub epoch: String,
    /// When it was started, in seconds since 1970.
    pub started_at: u64,
    /// Processors that it may use.
    #[serde(default)]
    pub cores: f64,
    /// Connections that it takes at most; 0 when it doesn't say.
    #[serde(default)]
    pub connections_max: f64,
}

/// A node and its last 15 minutes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Past {
    /// The node.
    pub node: Node,
    /// The oldest first, at most [`SAMPLES_MAX`].
    pub samples: Vec<Sample>,
}

#[derive(Deserialize)]
struct Answer {
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

impl Past {
    /// Reads an answer of /api/history.
    ///
    /// # Errors
    /// If it is something else.
    pub fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        let Answer { node, samples } = serde_json::from_slice(json)?;
        let oldest = samples.at.len().saturating_sub(SAMPLES_MAX);
        let samples = (oldest..samples.at.len()).map(|index| samples.sample(index)).collect();
        Ok(Past { node, samples })
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
            at: self.at.get(index).copied().unwrap_or_default(),
            connections: value(&self.connections, index),
            connections_max: None,
            transports: group(&self.transports),
            shards: Vec::new(),
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
    /// Takes the newest one. One of the same moment replaces what was there; an older one means
    /// that the node's clock was set back, and what seems to come after it goes.
    pub fn push(&mut self, sample: Sample) {
        while self.0.back().is_some_and(|last| last.at >= sample.at) {
            self.0.pop_back();
        }
        self.0.push_back(sample);
        while self.0.len() > SAMPLES_MAX {
            self.0.pop_front();
        }
    }

    /// Takes what a node says of its past. What is known of the time before that stays: after a
    /// restart the node doesn't know it any more.
    pub fn extend(&mut self, past: Vec<Sample>) {
        let Some(first) = past.first() else { return };
        while self.0.back().is_some_and(|last| last.at >= first.at) {
            self.0.pop_back();
        }
        past.into_iter().for_each(|sample| self.push(sample));
    }

    /// The newest one.
    pub fn newest(&self) -> Option<&Sample> {
        self.0.back()
    }

    /// All, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Sample> {
        self.0.iter()
    }

    /// The last `seconds` in `width` columns, each the highest value of its share of the time; none
    /// where there is no sample, or no value in any. Columns begin at whole multiples of their
    /// length, so that a value stays in its column while time passes.
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
    /// Over the last minute.
    #[serde(default)]
    pub messages_per_minute: f64,
}

/// An answer of /api/top.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Top {
    /// The first is on top.
    pub topics: Vec<TopTopic>,
}

/// The topics on top.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tops {
    /// Those with the most members.
    pub biggest: Vec<TopTopic>,
    /// Those with the most messages in the recent window.
    pub busiest: Vec<TopTopic>,
}

/// A connection of a topic or a user.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Connection {
    /// Its name.
    pub id: String,
    /// How it is connected.
    pub transport: String,
    /// How long, in seconds.
    pub age_seconds: f64,
    /// The peer's address and port.
    pub address: Option<String>,
    /// The users that it carries.
    pub users: Vec<String>,
    /// Its topics, without the users' own.
    pub topics: Vec<String>,
    /// Bytes that the peer has acknowledged.
    pub bytes_sent: f64,
    /// Bytes that wait for it.
    pub outbox_bytes: f64,
}

/// Answers of /api/topics/{topic}/members and /api/users/{user}: who is there.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Members {
    /// How many connections there are; none from nodes that list all of a user's.
    #[serde(default, alias = "count")]
    pub members: Option<f64>,
    /// Some of them, or all.
    pub connections: Vec<Connection>,
}

/// A message of the recent window.
#[derive(Clone, Debug, Deserialize)]
pub struct Published {
    /// Its event's name.
    #[serde(default)]
    pub event: String,
    /// What it carries, as JSON.
    pub data: Box<RawValue>,
    /// When it was published, in milliseconds since 1970.
    #[serde(default)]
    pub published_at: u64,
}

/// An answer of /api/messages.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Messages {
    /// The newest first.
    pub messages: Vec<Published>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64, connections: f64) -> Sample {
        Sample { at: seconds * 1_000, connections, ..Sample::default() }
    }

    #[test]
    fn columns_of_the_past_become_samples() {
        let json = br#"{"version":"1","epoch":"e","started_at":5,"cores":2,"connections_max":9,
            "interval_seconds":1,"samples":{"at":[1000,2000],"connections":[3,4],"opened":[1,0.5],
            "p50":[null,1.5],"p90":[null,2],"p99":[null,3],"transports":{"sse":[3,4]},
            "closed_by":{"client":[0,2]},"of_another_version":["x"]}}"#;
        let past = Past::parse(json).unwrap();
        assert_eq!((past.node.epoch.as_str(), past.node.cores), ("e", 2.0));
        let [first, second] = past.samples.as_slice() else { panic!("two samples") };
        assert_eq!((first.at, first.connections, first.latency_ms), (1_000, 3.0, None));
        assert!(first.closed_by.is_empty());
        assert_eq!((second.figures.opened, second.figures.closed), (0.5, 0.0));
        assert_eq!(second.latency_ms, Some(Latency { p50: 1.5, p90: 2.0, p99: 3.0 }));
        assert_eq!((second.transports["sse"], second.closed_by["client"]), (4.0, 2.0));
        assert!(Past::parse(br#"{"hello":"world"}"#).is_err());
    }

    #[test]
    fn memory_over_few_connections_says_nothing() {
        let mut sample = at(1, 99.0);
        sample.figures.user_bytes_per_connection = 5.0;
        assert_eq!(sample.user_bytes_each(), None);
        sample.connections = 100.0;
        assert_eq!(sample.user_bytes_each(), Some(5.0));
    }

    #[test]
    fn members_of_topics_and_connections_of_users_are_counted() {
        let all = |json: &str| serde_json::from_str::<Members>(json).unwrap().members;
        assert_eq!(all(r#"{"topic":"a","members":7,"connections":[]}"#), Some(7.0));
        assert_eq!(all(r#"{"user":"a","count":8,"connections":[]}"#), Some(8.0));
        assert_eq!(all(r#"{"user":"a","connections":[]}"#), None);
    }

    #[test]
    fn the_ring_keeps_time_in_order() {
        let mut ring = Ring::default();
        ring.extend(vec![at(1, 1.0), at(2, 2.0)]);
        ring.push(at(2, 3.0));
        assert_eq!(ring.iter().map(|s| s.connections).collect::<Vec<_>>(), [1.0, 3.0]);
        // A node that was started anew knows only what came since.
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
    fn columns_hold_the_highest_and_leave_gaps() {
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
