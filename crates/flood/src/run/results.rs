//! The measurements of a run, or of one part of it; the sum of all parts becomes the summary.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::crowd::{Times, histogram};
use crate::host;
use crate::kernels::{HostFindings, distinct};
use crate::record::{
    Agent, Counts, Named, Percentiles, Sample, Server, Storm, Summary, TargetCounts,
};

/// The limit on descriptions of anomalies, for all parts together.
const FAULTS_MAX: usize = 20;

/// The results of a part of a run.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Results {
    /// The start, in seconds since 1970.
    pub started_unix_seconds: u64,
    /// It opened no more connections for lack of memory.
    pub full: bool,
    /// It was stopped before its end.
    pub interrupted: bool,
    /// The sample at the moment when all connections had arrived.
    pub arrived: Sample,
    /// The last sample.
    pub last: Sample,
    /// Memory of the load generator before the first connection, in bytes.
    pub memory_bytes_before: u64,
    /// Memory in bytes, and connections, when most were open.
    pub fullest: (u64, u64),
    /// The counts of each server, if the run has several.
    pub targets: Vec<TargetCounts>,
    /// Reasons of failed attempts.
    pub failures: Vec<Named>,
    /// Reasons for which the server closed open connections.
    pub closes: Vec<Named>,
    /// The first anomalies.
    pub faults: Vec<String>,
    /// Problems in the kernels of the hosts.
    pub kernels: Vec<HostFindings>,
    /// Storms with missed messages, with the time of each connection.
    pub storms: Vec<StormTimes>,
    /// Times of all deliveries, of those to one user, and of all connects.
    pub times: Times,
    /// Microseconds until the response to a probe.
    #[serde(with = "crate::histogram")]
    pub probe: Histogram<u64>,
    /// Microseconds until the reply to a publish.
    #[serde(with = "crate::histogram")]
    pub publish: Histogram<u64>,
    /// The longest silence of each connection, in microseconds.
    #[serde(with = "crate::histogram")]
    pub silence: Histogram<u64>,
}

/// A storm, and the times until each connection had all missed messages, in microseconds.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct StormTimes {
    /// Its figures, without the percentiles.
    pub storm: Storm,
    /// The times of all connections.
    #[serde(with = "crate::histogram")]
    pub recovery: Histogram<u64>,
}

impl Default for Results {
    fn default() -> Self {
        Self {
            started_unix_seconds: 0,
            full: false,
            interrupted: false,
            arrived: Sample::default(),
            last: Sample::default(),
            memory_bytes_before: 0,
            fullest: (0, 0),
            targets: Vec::new(),
            failures: Vec::new(),
            closes: Vec::new(),
            faults: Vec::new(),
            kernels: Vec::new(),
            storms: Vec::new(),
            times: Times::new(),
            probe: histogram(),
            publish: histogram(),
            silence: histogram(),
        }
    }
}

impl Results {
    /// Adds the results of another part of the same run.
    pub fn add(&mut self, more: Results) {
        self.full |= more.full;
        self.interrupted |= more.interrupted;
        add_sample(&mut self.arrived, &more.arrived);
        add_sample(&mut self.last, &more.last);
        self.memory_bytes_before += more.memory_bytes_before;
        self.fullest.0 += more.fullest.0;
        self.fullest.1 += more.fullest.1;
        add_targets(&mut self.targets, more.targets);
        add_named(&mut self.failures, more.failures);
        add_named(&mut self.closes, more.closes);
        self.faults.extend(more.faults);
        self.faults.truncate(FAULTS_MAX);
        self.kernels.extend(more.kernels);
        for (at, more) in more.storms.into_iter().enumerate() {
            match self.storms.get_mut(at) {
                Some(storm) => storm.add(&more),
                None => self.storms.push(more),
            }
        }
        self.times.add(&more.times);
        for (to, from) in [
            (&mut self.probe, &more.probe),
            (&mut self.publish, &more.publish),
            (&mut self.silence, &more.silence),
        ] {
            // All histograms have the same bounds, so adding can't fail.
            let _ = to.add(from);
        }
    }

    /// Returns the summary of all parts together.
    pub fn summary(self, scenario: &str, command: String, connections: u32) -> Summary {
        let (arrived, last) = (self.arrived, self.last);
        let per = |seconds: f64, messages: u64| {
            if messages == 0 { 0.0 } else { seconds * 1e6 / messages as f64 }
        };
        let since_arrival =
            |count: fn(&Counts) -> u64| count(&last.counts).saturating_sub(count(&arrived.counts));
        // A heartbeat costs as much as a message, so it counts as one.
        let heartbeats = since_arrival(|counts| counts.heartbeats);
        let received = since_arrival(|counts| counts.messages) + heartbeats;
        let server_cpu = last.server.zip(arrived.server).map(|(last, first)| {
            let delivered = last.delivered.saturating_sub(first.delivered) + heartbeats;
            per(last.cpu_seconds - first.cpu_seconds, delivered)
        });
        let (memory_bytes, open) = self.fullest;
        let grown = memory_bytes.saturating_sub(self.memory_bytes_before);
        let storm = |it: &StormTimes| Storm { recovery: percentiles(&it.recovery), ..it.storm };
        Summary {
            command,
            scenario: scenario.to_string(),
            started_unix_seconds: self.started_unix_seconds,
            seconds: last.at_seconds,
            interrupted: self.interrupted,
            full: self.full,
            tls: None,
            connections: u64::from(connections),
            counts: last.counts,
            targets: self.targets,
            agents: Vec::<Agent>::new(),
            failures: self.failures,
            closes: self.closes,
            delivery: percentiles(&self.times.delivery),
            delivery_user: percentiles(&self.times.delivery_user),
            connect: percentiles(&self.times.connect),
            probe: percentiles(&self.probe),
            publish: percentiles(&self.publish),
            silence: percentiles(&self.silence),
            recover: false,
            storms: self.storms.iter().map(storm).collect(),
            faults: self.faults,
            memory_per_connection_bytes: grown as f64 / open.max(1) as f64,
            cpu_per_message_us: per(last.cpu_seconds - arrived.cpu_seconds, received),
            server_cpu_per_message_us: server_cpu,
            host: host::facts(),
            kernels: distinct(self.kernels),
            settings: host::settings(),
        }
    }
}

impl StormTimes {
    fn add(&mut self, more: &StormTimes) {
        let (sum, storm) = (&mut self.storm, &more.storm);
        sum.connections += storm.connections;
        sum.recovered += storm.recovered;
        sum.seconds = sum.seconds.max(storm.seconds);
        sum.server_cpu_seconds = sum.server_cpu_seconds.or(storm.server_cpu_seconds);
        let _ = self.recovery.add(&more.recovery);
    }
}

/// Adds the counts and the memory of another part at about the same time; of the figures of hosts, the largest
/// counts. Percentiles can't be added: they stay unchanged, and the caller takes them from the histograms.
pub fn add_sample(sum: &mut Sample, more: &Sample) {
    sum.at_seconds = sum.at_seconds.max(more.at_seconds);
    sum.counts.add(&more.counts);
    sum.memory_bytes += more.memory_bytes;
    sum.cpu_seconds += more.cpu_seconds;
    // Agents may share a host.
    sum.slab_bytes = sum.slab_bytes.max(more.slab_bytes);
    sum.tcp_bytes = sum.tcp_bytes.max(more.tcp_bytes);
    sum.available_bytes = match (sum.available_bytes, more.available_bytes) {
        (0, one) | (one, 0) => one,
        (one, other) => one.min(other),
    };
    sum.server = sum.server.or(more.server);
}

fn add_targets(sum: &mut Vec<TargetCounts>, more: Vec<TargetCounts>) {
    for counts in more {
        // Two targets may have one name, but each part has all in the same order.
        let known = sum.iter_mut().find(|known| known.target == counts.target);
        match known {
            Some(known) => {
                known.open += counts.open;
                known.opened += counts.opened;
                known.failed += counts.failed;
                known.closed += counts.closed;
                known.cuts += counts.cuts;
                known.lost += counts.lost;
            }
            None => sum.push(counts),
        }
    }
}

fn add_named(sum: &mut Vec<Named>, more: Vec<Named>) {
    for (name, count) in more {
        match sum.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known += count,
            None => sum.push((name, count)),
        }
    }
    sum.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
}

/// Returns the percentiles of a histogram in microseconds.
pub fn percentiles(times: &Histogram<u64>) -> Percentiles {
    if times.is_empty() {
        return Percentiles::default();
    }
    let at = |quantile: f64| times.value_at_quantile(quantile);
    Percentiles {
        count: times.len(),
        p50_us: at(0.5),
        p90_us: at(0.9),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: times.max(),
    }
}

/// Returns a sample with the percentiles of these times, and the server's figures.
pub fn with_times(sample: Sample, times: &Times, server: Option<Server>) -> Sample {
    Sample {
        delivery: percentiles(&times.delivery),
        delivery_user: percentiles(&times.delivery_user),
        connect: percentiles(&times.connect),
        server,
        ..sample
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results of a part whose deliveries took these times.
    fn part(times: &[u64]) -> Results {
        let mut results = Results::default();
        for us in times {
            results.times.delivery.record(*us).unwrap();
            results.last.counts.messages += 1;
        }
        results.failures = vec![("refused".into(), times.len() as u64)];
        results.targets =
            vec![TargetCounts { target: "a:1".into(), open: 3, ..Default::default() }];
        results
    }

    #[test]
    fn percentiles_are_of_the_merged_histogram_and_not_averages() {
        // One of a hundred is slow at one agent, and all are at the other.
        let mut sum = part(&[100; 99]);
        sum.add(part(&[50_000; 901]));
        let summary = sum.summary("hold", String::new(), 7);
        assert_eq!((summary.delivery.count, summary.counts.messages), (1_000, 1_000));
        assert!((49_900..50_100).contains(&summary.delivery.p50_us), "{:?}", summary.delivery);
        assert_eq!(summary.failures, [("refused".to_string(), 1_000)]);
        assert_eq!((summary.targets.len(), summary.targets[0].open), (1, 6));
    }

    proptest::proptest! {
        #[test]
        fn results_survive_the_way_to_the_coordinator(
            times in proptest::collection::vec(1u64..400_000_000, 0..200),
        ) {
            let mut results = Results::default();
            times.iter().for_each(|us| results.times.delivery.saturating_record(*us));
            let text = serde_json::to_string(&results).unwrap();
            let back: Results = serde_json::from_str(&text).unwrap();
            proptest::prop_assert_eq!(&back.times.delivery, &results.times.delivery);
            let before = percentiles(&results.times.delivery);
            proptest::prop_assert_eq!(percentiles(&back.times.delivery), before);
        }
    }
}
