//! Closes connections for an operator: a drain empties the node over a time, a rebalance gives some connections to
//! other nodes. Shards choose the connections at random.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use shard::{Command, Metrics};
use tokio::time::{MissedTickBehavior, interval};

use crate::eviction::pace::{Pace, shares};
use crate::eviction::{DrainPlan, EvictionError, Job, Kind, us};
use crate::node::Node;

/// Time between two rounds of closing.
const TICK: Duration = Duration::from_millis(100);

/// Connections that a shard closes at a time at most, so that it serves the others meanwhile.
const AT_ONCE_MAX: u64 = 1_024;

/// Time between two log lines about the progress of a drain.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Begins to empty the node: it is not ready from now on.
pub(crate) fn begin_drain(node: &Arc<Node>, plan: DrainPlan) -> Result<(), EvictionError> {
    let evictions = &node.evictions;
    evictions.check_idle()?;
    let draining = &node.shared.draining;
    if draining.swap(true, Ordering::SeqCst) {
        return Err(EvictionError::Ending);
    }
    // An upgrade checks these in the other order, so that not both begin.
    if !node.upgrades.progress().stage.is_rest() {
        draining.store(false, Ordering::SeqCst);
        return Err(EvictionError::Upgrading);
    }
    *evictions.job() = Some(Job::new(Kind::Drain));
    let connections = open(node);
    tracing::info!(
        connections,
        "the node drains: it is not ready, and closes its connections gradually"
    );
    tokio::spawn(run_drain(node.clone(), plan));
    Ok(())
}

/// Ends a drain, if there is one: the node serves as before, unless the process ends.
pub(crate) fn cancel_drain(node: &Node) {
    let mut job = node.evictions.job();
    let Some(Job { kind: Kind::Drain, closed, .. }) = &*job else { return };
    if node.shared.ending.load(Ordering::SeqCst) {
        return;
    }
    tracing::info!(closed, "the drain was cancelled: the node serves as before");
    *job = None;
    node.shared.drained.store(false, Ordering::SeqCst);
    node.shared.draining.store(false, Ordering::SeqCst);
}

/// Begins to close this many connections, at random.
pub(crate) fn begin_rebalance(
    node: &Arc<Node>,
    connections: u64,
    per_second: u64,
) -> Result<(), EvictionError> {
    let evictions = &node.evictions;
    evictions.check_idle()?;
    if node.shared.draining.load(Ordering::SeqCst) {
        return Err(EvictionError::Ending);
    }
    let open = open(node);
    let connections = connections.min(open);
    let mut job = Job::new(Kind::Rebalance);
    let pace = Pace::of_share(connections, open, per_second);
    job.closing = Some((job.began, pace));
    job.ended = (connections == 0).then_some(job.began);
    let began = job.began;
    *evictions.job() = Some(job);
    tracing::info!(
        connections,
        open,
        seconds = pace.duration_us / 1_000_000,
        "the node is being rebalanced: it closes connections to move them to other nodes"
    );
    tokio::spawn(run_rebalance(node.clone(), began));
    Ok(())
}

/// Ends a rebalance, if there is one.
pub(crate) fn cancel_rebalance(node: &Node) {
    if let Some(job @ Job { kind: Kind::Rebalance, ended: None, .. }) = &mut *node.evictions.job() {
        tracing::info!(closed = job.closed, "the rebalance was cancelled");
        (job.ended, job.is_cancelled) = (Some(Instant::now()), true);
    }
}

/// Returns how many connections are open and not about to close.
fn open(node: &Node) -> u64 {
    node.metrics().map(open_at).sum()
}

fn open_at(metrics: &Metrics) -> u64 {
    metrics.open_connections.get().saturating_sub(metrics.closing_connections.get())
}

/// Runs until the drain is cancelled.
async fn run_drain(node: Arc<Node>, plan: DrainPlan) {
    let Some(began) = node.evictions.job().as_ref().map(|job| job.began) else { return };
    let mut clock = interval(TICK);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut logged = Instant::now();
    loop {
        clock.tick().await;
        // No connection may close while an upgrade passes it to another process.
        let Some(_working) = node.upgrades.gate.work() else { continue };
        let now = Instant::now();
        let open = open(&node);
        let due = {
            let mut job = node.evictions.job();
            let Some(job) = job.as_mut().filter(|job| job.began == began) else { return };
            if now.duration_since(began) < plan.wait {
                continue;
            }
            let (from, pace) = *job.closing.get_or_insert_with(|| (now, plan.speed.pace(open)));
            let tick = job.tick(from, now);
            if tick.elapsed_us >= pace.duration_us || open == 0 {
                // New connections are rejected from now on.
                node.shared.drained.store(true, Ordering::SeqCst);
            }
            // Connections that are about to close count: their clients have not read the last bytes.
            let is_empty = node.shared.connections.load(Ordering::Relaxed) == 0;
            if is_empty && job.ended.is_none() {
                job.ended = Some(now);
                tracing::info!(closed = job.closed, "the node is drained: no connection is left");
                if let Some(end) = node.evictions.end.filter(|_| plan.exit) {
                    end();
                }
            }
            pace.to_empty(tick, open, job.closed)
        };
        let closed = evict(&node, due).await;
        let mut job = node.evictions.job();
        let Some(job) = job.as_mut().filter(|job| job.began == began) else { return };
        job.closed += closed;
        if job.ended.is_none() && logged.elapsed() > LOG_EVERY {
            logged = Instant::now();
            tracing::info!(closed = job.closed, connections = open, "the node drains");
        }
    }
}

/// Runs until this many are closed, or the rebalance is cancelled.
async fn run_rebalance(node: Arc<Node>, began: Instant) {
    let mut clock = interval(TICK);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        let Some(_working) = node.upgrades.gate.work() else { continue };
        let due = {
            let mut job = node.evictions.job();
            let is_it = |job: &&mut Job| job.began == began && job.ended.is_none();
            let Some(job) = job.as_mut().filter(is_it) else { return };
            let Some((from, pace)) = job.closing else { return };
            // If no connection is open, clients have closed the rest themselves.
            if job.closed >= pace.connections || open(&node) == 0 {
                job.ended = Some(Instant::now());
                tracing::info!(closed = job.closed, "the rebalance of this node is done");
                return;
            }
            let tick = job.tick(from, Instant::now());
            pace.to_close(tick, job.closed)
        };
        let closed = evict(&node, due).await;
        if let Some(job) = node.evictions.job().as_mut().filter(|job| job.began == began) {
            job.closed += closed;
        }
    }
}

/// Makes shards close this many connections, and returns how many they have closed.
async fn evict(node: &Node, due: u64) -> u64 {
    if due == 0 {
        return 0;
    }
    let open: Vec<u64> = node.metrics().map(open_at).collect();
    // If the system has no randomness, the time chooses the connections.
    let seed = getrandom::u64().unwrap_or(us(node.started.elapsed()));
    let request = |(shard, connections): (usize, u64)| {
        let connections = u32::try_from(connections.min(AT_ONCE_MAX)).unwrap_or(u32::MAX);
        node.request(shard, |reply| Command::Evict { connections, seed, reply })
    };
    let shares = shares(due, &open).into_iter().enumerate();
    let requests: Vec<_> = shares.filter(|(_, share)| *share > 0).map(request).collect();
    let mut closed = 0;
    for replies in requests {
        // A shard that ends closes all its connections.
        closed += replies.all().await.map_or(0, |all| all.into_iter().map(u64::from).sum());
    }
    closed
}
