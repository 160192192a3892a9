//! Takes a sample of the node every second, for all readers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use kernel::{KernelStats, StatsWindow};
use model::CloseReason;
use shard::TRACES_MAX;
use tokio::sync::{Semaphore, watch};
use tokio::time::MissedTickBehavior;

use super::figure::Figure;
use super::histogram::merged;
use super::process;
use super::samples::{Counters, Gauges, Reading, Sample, Transports};
use super::samples_part::Samples;
use super::shard_samples::ShardReading;
use super::top::Tops;
use crate::node::Node;
use crate::upgrade::UpgradeStage;

/// Readers of the live figures at the same time.
pub(crate) const READERS_MAX: usize = 64;

/// Seconds between two samples.
pub(crate) const INTERVAL_SECONDS: u64 = 1;

/// What all readers of the node's figures share, so that many of them cost as much as one.
pub(crate) struct Monitor {
    pub node: Arc<Node>,
    /// The biggest and the busiest topics, as they were a moment ago.
    pub tops: Tops,
    /// The samples of the last 15 minutes.
    pub samples: Samples,
    /// The newest sample as an event's bytes; empty before the first.
    pub newest: watch::Receiver<Bytes>,
    /// A permit for each reader of the live figures.
    pub readers: Arc<Semaphore>,
    /// A permit for each trace.
    pub traces: Arc<Semaphore>,
    /// How many traces have begun: the number of the next.
    pub traces_begun: AtomicU64,
    /// What the kernel reported in the last 15 minutes.
    kernel: Mutex<StatsWindow>,
}

/// Takes the samples. Streams of them end when it is dropped.
pub(crate) struct Sampler {
    monitor: Arc<Monitor>,
    before: Reading,
    sender: watch::Sender<Bytes>,
}

impl Monitor {
    pub fn new(node: Arc<Node>, samples: Samples) -> (Arc<Self>, Sampler) {
        let (sender, newest) = watch::channel(Bytes::new());
        let before = read(&node);
        let readers = Arc::new(Semaphore::new(READERS_MAX));
        let tops = Tops::default();
        let kernel = Mutex::default();
        let (traces, traces_begun) = (Arc::new(Semaphore::new(TRACES_MAX)), AtomicU64::new(0));
        let monitor =
            Monitor { node, tops, samples, newest, readers, traces, traces_begun, kernel };
        let monitor = Arc::new(monitor);
        drop(monitor.push_kernel(before.kernel));
        (monitor.clone(), Sampler { monitor, before, sender })
    }

    /// Returns the kernel's stats of the last 15 minutes, including those of this moment.
    pub fn kernel(&self) -> MutexGuard<'_, StatsWindow> {
        self.push_kernel(KernelStats::read())
    }

    fn push_kernel(&self, stats: KernelStats) -> MutexGuard<'_, StatsWindow> {
        let mut window = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        window.push(self.node.started.elapsed().as_millis() as u64, stats);
        window
    }
}

impl Sampler {
    /// Takes a sample every second, with readers or without.
    pub async fn run(mut self) {
        let mut clock = tokio::time::interval(Duration::from_secs(INTERVAL_SECONDS));
        // A whole second follows a late tick: rates over an instant mean little.
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        clock.tick().await;
        loop {
            clock.tick().await;
            self.sample();
        }
    }

    /// Takes a sample over the time since the last one.
    pub fn sample(&mut self) {
        let node = &self.monitor.node;
        // The clock of the shards began at the same moment, or a little earlier.
        node.shared.quotas.tick(node.started.elapsed().as_micros() as u64);
        let after = read(node);
        let mut sample = Sample::between(&self.before, after.clone());
        let upgrade = node.upgrades.progress();
        if upgrade.stage != UpgradeStage::Idle {
            sample.upgrade = Some(Box::new(upgrade.into()));
        }
        drop(self.monitor.push_kernel(after.kernel));
        self.before = after;
        let mut event = b"event: sample\ndata: ".to_vec();
        // Numbers and names always serialize.
        let _ = serde_json::to_writer(&mut event, &sample);
        event.extend_from_slice(b"\n\n");
        self.monitor.samples.lock().push(sample);
        self.sender.send_replace(event.into());
    }
}

/// Returns limits.connections_max, which a reload may change.
pub(crate) fn connections_max(node: &Node) -> u64 {
    let live = node.live();
    let limit = live.limits.iter().find(|(name, _)| *name == "limits.connections_max");
    limit.map_or(0, |(_, max)| *max)
}

/// Reads the node's counters and gauges.
fn read(node: &Node) -> Reading {
    let (mut counters, mut transports) =
        (Counters::default(), Transports::of(node.shared.protocols));
    let (memory, kernel) = (process::memory(), KernelStats::read());
    let connections = node.shared.connections.load(Ordering::Relaxed);
    // A session of Phoenix's long poll is a connection without a socket of its own.
    let sessions = node.shared.sessions.load(Ordering::Relaxed);
    let kernel_bytes = process::kernel_bytes(&kernel, connections.saturating_sub(sessions));
    let mut gauges = Gauges {
        connections,
        connections_max: connections_max(node),
        rss_bytes: memory.resident,
        user_bytes: memory.anonymous,
        user_bytes_per_connection: Figure::new(node.bytes_per_connection(memory.anonymous)),
        kernel_bytes,
        kernel_bytes_per_connection: Figure::new(kernel_bytes as f64 / connections.max(1) as f64),
        mqtt_away: node.shared.mqtt_sessions.stats().away as u64,
        ..Gauges::default()
    };
    let retained = node.shared.retained.stats();
    gauges.mqtt_retained = retained.messages as u64;
    gauges.mqtt_retained_bytes = retained.bytes as u64;
    for metrics in node.metrics() {
        counters.opened += metrics.admitted.get();
        counters.messages_in += metrics.messages_in.get();
        counters.delivered += metrics.delivered.get();
        counters.bytes_in += metrics.bytes_in.get();
        counters.bytes_out += metrics.bytes_out.get();
        counters.refused += metrics.refused.iter().map(shard::Counter::get).sum::<u64>();
        counters.answers += metrics.replies.iter().map(shard::Counter::get).sum::<u64>();
        for close in CloseReason::ALL {
            counters.closed[close as usize] += metrics.closed[close as usize].get();
        }
        for (sum, count) in transports.counts.iter_mut().zip(&metrics.connections) {
            *sum += count.get() as u32;
        }
        gauges.outboxes += metrics.outboxes.get();
        gauges.outbox_bytes += metrics.outbox_bytes.get();
        gauges.topics += metrics.topics.get();
        gauges.fanouts += metrics.fanouts.get();
    }
    counters.latency = merged(node.metrics().map(|metrics| &metrics.delivery_latency));
    counters.cpu_seconds = process::cpu_seconds();
    gauges.transports = transports;
    let shards = node.metrics().enumerate();
    let shards = shards.map(|(at, metrics)| ShardReading::of(metrics, node.shards.mailbox(at)));
    let shards = shards.collect();
    Reading { taken: Instant::now(), at: process::unix_ms(), counters, gauges, shards, kernel }
}
