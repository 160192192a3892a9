//! Metrics of each shard, with its number as a label.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use shard::{Histogram, Metrics};

use super::{Labelled, bounded, counters, gauges};
use crate::monitor::thread_time::ThreadTime;
use crate::node::Node;

/// Writes the metrics of all shards.
pub(super) fn encode(encoder: &mut DescriptorEncoder, node: &Node) -> fmt::Result {
    let each = |read: &dyn Fn(&Metrics) -> u64| -> Labelled {
        node.metrics().enumerate().map(|(at, metrics)| row(at, read(metrics) as f64)).collect()
    };
    let rows = each(&|metrics| metrics.open_connections.get());
    let help = "Open file descriptors of client connections, by shard";
    gauges(encoder, "shard_connections", help, None, rows)?;
    let rows = each(&|metrics| metrics.topics.get());
    let help = "Topics with members, by shard, including users' own topics";
    gauges(encoder, "shard_topics", help, None, rows)?;
    let rows = each(&|metrics| metrics.delivered.get());
    let help = "Messages handed to connections, by shard";
    counters(encoder, "shard_messages_delivered", help, None, rows)?;
    let mailboxes = (0..node.shards.count()).map(|at| row(at, node.shards.mailbox(at) as f64));
    let help = "Commands that are queued for a shard: messages, and calls of the API";
    gauges(encoder, "shard_mailbox", help, None, mailboxes.collect())?;
    let rows = each(&|metrics| metrics.listen_queue.get());
    let help = "Connections that the kernel has established and the shard has not accepted yet, \
                measured once a second";
    gauges(encoder, "shard_listen_queue", help, None, rows)?;
    let rows = each(&|metrics| metrics.outboxes.get());
    let help = "Connections with queued data, because the client reads slower than the server \
                sends, by shard";
    gauges(encoder, "shard_outboxes", help, None, rows)?;
    let rows = each(&|metrics| metrics.outbox_bytes.get());
    let help = "Queued bytes of such connections, by shard";
    gauges(encoder, "shard_outbox", help, Some(Unit::Bytes), rows)?;
    turns(encoder, node)?;
    times(encoder, node)
}

fn row(shard: usize, value: f64) -> (&'static str, String, f64) {
    ("shard", shard.to_string(), value)
}

/// Writes how each shard spends its time.
fn times(encoder: &mut DescriptorEncoder, node: &Node) -> fmt::Result {
    let seconds = |us: u64| us as f64 / 1e6;
    let threads: Vec<Option<ThreadTime>> =
        node.metrics().map(|metrics| ThreadTime::read(metrics.thread.get())).collect();
    let of_threads = |read: fn(&ThreadTime) -> u64| -> Labelled {
        let times = threads.iter().enumerate();
        times.filter_map(|(at, time)| Some(row(at, seconds(read(time.as_ref()?))))).collect()
    };
    let of_metrics = |read: fn(&Metrics) -> u64| -> Labelled {
        node.metrics().enumerate().map(|(at, metrics)| row(at, seconds(read(metrics)))).collect()
    };
    for (name, help, rows) in [
        (
            "shard_asleep",
            "Time that a shard slept because it had nothing to do",
            of_metrics(|metrics| metrics.asleep_us.get()),
        ),
        (
            "shard_bulk",
            "Time that a shard spent on fan-outs to more than 1,024 members",
            of_metrics(|metrics| metrics.bulk_us.get()),
        ),
        ("shard_cpu", "Time that a shard ran on a processor", of_threads(|time| time.cpu_us)),
        (
            "shard_system",
            "Time that a shard spent in system calls; it is part of throng_shard_cpu_seconds_total",
            of_threads(|time| time.system_us),
        ),
        (
            "shard_cpu_wait",
            "Time that a shard was ready to run while no processor was free",
            of_threads(|time| time.cpu_wait_us),
        ),
    ] {
        counters(encoder, name, help, Some(Unit::Seconds), rows)?;
    }
    Ok(())
}

/// Writes the time of each shard's turns. It has only every second bound of the shards' own histograms, for there may
/// be a hundred shards.
fn turns(encoder: &mut DescriptorEncoder, node: &Node) -> fmt::Result {
    let help = "Time from waking up to the end of one turn of the shard's loop";
    let (name, kind) = ("shard_turn", MetricType::Histogram);
    let mut metric = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), kind)?;
    for (at, metrics) in node.metrics().enumerate() {
        let time = &metrics.turn_time;
        let buckets = bounded(&every_second(time), |bucket| {
            Histogram::bound_seconds((2 * bucket).min(Histogram::BUCKETS - 1))
        });
        let count = buckets.iter().map(|(_, count)| count).sum();
        let label = [("shard", at.to_string())];
        let mut of_shard = metric.encode_family(&label)?;
        let sum = time.sum_us.get() as f64 / 1e6;
        of_shard.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
    }
    Ok(())
}

/// Returns the counts by every second bound, and those above all.
fn every_second(histogram: &Histogram) -> [u64; Histogram::BUCKETS / 2 + 1] {
    let mut counts = [0; Histogram::BUCKETS / 2 + 1];
    for (at, bucket) in histogram.buckets.iter().enumerate() {
        counts[at.div_ceil(2)] += bucket.get();
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_count_by_the_next_bound_of_those_that_stay() {
        let histogram = Histogram::default();
        // 1 us; 4 us, of which one is at its own bound; 16.8 s; more than that.
        for us in [1, 3, 4, 1 << 24, (1 << 24) + 1] {
            histogram.record(us, 1);
        }
        let counts = every_second(&histogram);
        assert_eq!((counts[0], counts[1], counts[12], counts[13]), (1, 2, 1, 1));
        assert_eq!(counts.iter().sum::<u64>(), 5);
        assert_eq!(Histogram::bound_seconds(24), 16.777216);
    }
}
