//! Why a shard is slow: how it spends its time, and what waits for it.

use std::array;

use serde::Serialize;
use shard::{Histogram, Metrics};
use utoipa::ToSchema;

use super::figure::Figure;
use super::histogram::percentile_ms;
use super::thread_time::ThreadTime;

/// The counters and gauges of one shard at one moment.
#[derive(Clone, Default)]
pub(crate) struct ShardReading {
    pub connections: u64,
    pub delivered: u64,
    pub turns: [u64; Histogram::BUCKETS],
    pub asleep_us: u64,
    pub bulk_us: u64,
    /// `None` if the kernel does not report it.
    pub thread: Option<ThreadTime>,
    pub mailbox: u64,
    pub listen_queue: u64,
    pub outboxes: u64,
    pub outbox_bytes: u64,
}

impl ShardReading {
    /// Reads a shard with this many commands in its mailbox.
    pub fn of(metrics: &Metrics, mailbox: u64) -> Self {
        ShardReading {
            connections: metrics.open_connections.get(),
            delivered: metrics.delivered.get(),
            turns: array::from_fn(|at| metrics.turn_time.buckets[at].get()),
            asleep_us: metrics.asleep_us.get(),
            bulk_us: metrics.bulk_us.get(),
            thread: ThreadTime::read(metrics.thread.get()),
            mailbox,
            listen_queue: metrics.listen_queue.get(),
            outboxes: metrics.outboxes.get(),
            outbox_bytes: metrics.outbox_bytes.get(),
        }
    }
}

/// Figures of the shards in columns, with an element for each shard, by number. Shares are of the time since the last
/// sample: 0.25 is a quarter of it.
#[derive(Clone, Default, Serialize, ToSchema)]
pub(crate) struct ShardColumns {
    /// Messages handed to connections, a second.
    #[schema(value_type = Vec<f64>)]
    pub delivered: Vec<Figure>,
    /// Turns of the loop, a second.
    #[schema(value_type = Vec<f64>)]
    pub turns: Vec<Figure>,
    /// Half of the turns took no longer, in milliseconds; null if there was none.
    #[schema(value_type = Vec<Option<f64>>)]
    pub turn_p50_ms: Vec<Option<Figure>>,
    /// 99 % of the turns took no longer, in milliseconds; null if there was none.
    #[schema(value_type = Vec<Option<f64>>)]
    pub turn_p99_ms: Vec<Option<Figure>>,
    /// The share in which the shard slept, as it had nothing to do.
    #[schema(value_type = Vec<f64>)]
    pub asleep: Vec<Figure>,
    /// The share in fan-outs over long lists.
    #[schema(value_type = Vec<f64>)]
    pub bulk: Vec<Figure>,
    /// The share on a processor; null if the kernel does not report it, as are the next two.
    #[schema(value_type = Vec<Option<f64>>)]
    pub cpu: Vec<Option<Figure>>,
    /// The share in system calls, a part of `cpu`; the kernel counts it in steps of 10 ms.
    #[schema(value_type = Vec<Option<f64>>)]
    pub system: Vec<Option<Figure>>,
    /// The share in which the shard was ready to run and no processor was free.
    #[schema(value_type = Vec<Option<f64>>)]
    pub cpu_wait: Vec<Option<Figure>>,
    /// Commands that wait: messages, and calls of the API.
    pub mailbox: Vec<u64>,
    /// Connections that the kernel has let in and the shard has not accepted, as counted once a second.
    pub listen_queue: Vec<u64>,
    /// Connections with bytes in their outboxes.
    pub outboxes: Vec<u64>,
    /// Bytes in these outboxes.
    pub outbox_bytes: Vec<u64>,
}

impl ShardColumns {
    /// Returns the figures between two readings of all shards, this many seconds apart. A shard without an earlier
    /// reading has done nothing.
    pub fn between(before: &[ShardReading], after: &[ShardReading], seconds: f64) -> Self {
        let mut columns = ShardColumns::default();
        for (at, now) in after.iter().enumerate() {
            columns.push(before.get(at).unwrap_or(now), now, seconds);
        }
        columns
    }

    fn push(&mut self, then: &ShardReading, now: &ShardReading, seconds: f64) {
        let per_second = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        let rate = |now: u64, then: u64| Figure::new(per_second(now.saturating_sub(then) as f64));
        // A sleep counts when it is over: one that began before the sample may be longer than the time since.
        let share = |now: u64, then: u64| {
            Figure::new((per_second(now.saturating_sub(then) as f64) / 1e6).min(1.0))
        };
        let turns = array::from_fn(|at| now.turns[at].saturating_sub(then.turns[at]));
        let count: u64 = turns.iter().sum();
        let turn_ms = |percent| (count > 0).then(|| Figure::new(percentile_ms(&turns, percent)));
        let of_thread = |read: fn(&ThreadTime) -> u64| {
            let (now, then) = (now.thread.as_ref()?, then.thread.as_ref()?);
            Some(share(read(now), read(then)))
        };
        self.delivered.push(rate(now.delivered, then.delivered));
        self.turns.push(rate(count, 0));
        self.turn_p50_ms.push(turn_ms(50));
        self.turn_p99_ms.push(turn_ms(99));
        self.asleep.push(share(now.asleep_us, then.asleep_us));
        self.bulk.push(share(now.bulk_us, then.bulk_us));
        self.cpu.push(of_thread(|it| it.cpu_us));
        self.system.push(of_thread(|it| it.system_us));
        self.cpu_wait.push(of_thread(|it| it.cpu_wait_us));
        self.mailbox.push(now.mailbox);
        self.listen_queue.push(now.listen_queue);
        self.outboxes.push(now.outboxes);
        self.outbox_bytes.push(now.outbox_bytes);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;

    fn reading(scale: u64) -> ShardReading {
        let mut turns = [0; Histogram::BUCKETS];
        turns[0] = 98 * scale;
        turns[10] = 2 * scale;
        let thread =
            ThreadTime { cpu_us: 500_000 * scale, system_us: 250_000 * scale, cpu_wait_us: 0 };
        ShardReading {
            connections: 7,
            delivered: 100 * scale,
            turns,
            asleep_us: 1_000_000 * scale,
            bulk_us: 125_000 * scale,
            thread: Some(thread),
            mailbox: 3 + scale,
            listen_queue: 4,
            outboxes: 1,
            outbox_bytes: 900,
        }
    }

    #[test]
    fn counters_of_each_shard_become_rates_and_shares() {
        let hidden = ShardReading { thread: None, ..reading(3) };
        let columns = ShardColumns::between(
            &[reading(1), reading(1)],
            &[reading(3), hidden, reading(9)],
            2.0,
        );
        let columns = to_value(columns).unwrap();
        assert_eq!(columns["delivered"], json!([100, 100, 0]));
        assert_eq!(columns["turns"], json!([100, 100, 0]));
        let milliseconds = |name: &str, at: usize| columns[name][at].as_f64().unwrap() as f32;
        assert_eq!(
            (milliseconds("turn_p50_ms", 0), milliseconds("turn_p99_ms", 0)),
            (0.001, 1.024)
        );
        assert_eq!(columns["turn_p99_ms"][2], json!(null));
        assert_eq!(
            (&columns["asleep"], &columns["bulk"]),
            (&json!([1, 1, 0]), &json!([0.125, 0.125, 0]))
        );
        assert_eq!(columns["cpu"], json!([0.5, null, 0]));
        assert_eq!(columns["system"], json!([0.25, null, 0]));
        assert_eq!(columns["cpu_wait"], json!([0, null, 0]));
        assert_eq!(
            (&columns["mailbox"], &columns["listen_queue"]),
            (&json!([6, 6, 12]), &json!([4, 4, 4]))
        );
        assert_eq!(
            (&columns["outboxes"], &columns["outbox_bytes"]),
            (&json!([1, 1, 1]), &json!([900, 900, 900]))
        );
    }

    #[test]
    fn no_share_is_above_the_whole_and_none_is_of_no_time() {
        let long = ShardColumns::between(&[reading(1)], &[reading(9)], 1.0);
        assert_eq!(to_value(&long).unwrap()["asleep"], json!([1]));
        let none = ShardColumns::between(&[reading(9)], &[reading(1)], 0.0);
        assert_eq!(to_value(&none).unwrap()["asleep"], json!([0]));
    }
}
