//! The progress of a drain or a rebalance, for operators.

use std::sync::atomic::Ordering;
use std::time::Instant;

use serde::Serialize;
use utoipa::ToSchema;

use crate::eviction::{Job, Kind};
use crate::node::Node;

/// The stage of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DrainStage {
    /// No drain is under way.
    Serving,
    /// The node is not ready, and closes nothing yet.
    Waiting,
    /// The node closes connections.
    Closing,
    /// No connection is left, and new ones are rejected.
    Drained,
}

/// The progress of a drain.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DrainState {
    /// Its stage.
    pub stage: DrainStage,
    /// The same in a sentence.
    #[schema(example = "the node drains: 1,200 of 5,000 connections are left")]
    pub text: String,
    /// Connections that are open.
    pub connections: u64,
    /// Connections that were open when the first was closed.
    pub connections_at_start: u64,
    /// Connections that the drain has closed. Clients that came back to this node are counted again.
    pub closed: u64,
    /// Seconds since it began.
    pub seconds: f64,
    /// Seconds until all should be closed; null before the first is closed, and when none is left.
    pub seconds_left: Option<f64>,
}

impl DrainState {
    /// The drain of this node.
    pub fn of(node: &Node) -> Self {
        let connections = node.shared.connections.load(Ordering::Relaxed);
        match &*node.evictions.job() {
            Some(job @ Job { kind: Kind::Drain, .. }) => DrainState::of_job(job, connections),
            _ => DrainState {
                stage: DrainStage::Serving,
                text: "the node serves: no drain is under way".into(),
                connections,
                connections_at_start: 0,
                closed: 0,
                seconds: 0.0,
                seconds_left: None,
            },
        }
    }

    fn of_job(job: &Job, connections: u64) -> Self {
        let closing = job.closing.filter(|_| job.ended.is_none());
        let connections_at_start = job.closing.map_or(connections, |(_, pace)| pace.connections);
        let stage = match (job.ended, job.closing) {
            (Some(_), _) => DrainStage::Drained,
            (None, Some(_)) => DrainStage::Closing,
            (None, None) => DrainStage::Waiting,
        };
        let text = match stage {
            DrainStage::Drained => {
                format!("the node is drained: it closed {} connections", job.closed)
            }
            DrainStage::Closing => format!(
                "the node drains: {connections} of {connections_at_start} connections are left"
            ),
            DrainStage::Waiting | DrainStage::Serving => {
                format!("the node is not ready, and will close {connections} connections soon")
            }
        };
        DrainState {
            stage,
            text,
            connections,
            connections_at_start,
            closed: job.closed,
            seconds: seconds_of(job),
            seconds_left: closing.map(|(from, pace)| left(from, pace.duration_us)),
        }
    }
}

/// The stage of a rebalance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RebalanceStage {
    /// No rebalance has begun.
    None,
    /// The node closes connections.
    Closing,
    /// All are closed.
    Done,
    /// The rebalance was cancelled before.
    Cancelled,
}

/// The progress of the node's part of a rebalance, or the result of the last one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RebalanceState {
    /// Its stage.
    pub stage: RebalanceStage,
    /// Connections that are open.
    pub connections: u64,
    /// Connections to close.
    pub to_close: u64,
    /// Connections that it has closed.
    pub closed: u64,
    /// Seconds since it began.
    pub seconds: f64,
    /// Seconds until all should be closed; null if none is to be closed.
    pub seconds_left: Option<f64>,
}

impl RebalanceState {
    /// The rebalance of this node.
    pub fn of(node: &Node) -> Self {
        let connections = node.shared.connections.load(Ordering::Relaxed);
        let job = node.evictions.job();
        let (stage, closing) = match &*job {
            Some(Job { kind: Kind::Rebalance, ended, is_cancelled, closing, .. }) => {
                let stage = match (ended, is_cancelled) {
                    (None, _) => RebalanceStage::Closing,
                    (Some(_), false) => RebalanceStage::Done,
                    (Some(_), true) => RebalanceStage::Cancelled,
                };
                (stage, *closing)
            }
            _ => (RebalanceStage::None, None),
        };
        let job = job.as_ref().filter(|_| stage != RebalanceStage::None);
        let under_way = closing.filter(|_| stage == RebalanceStage::Closing);
        RebalanceState {
            stage,
            connections,
            to_close: closing.map_or(0, |(_, pace)| pace.connections),
            closed: job.map_or(0, |job| job.closed),
            seconds: job.map_or(0.0, seconds_of),
            seconds_left: under_way.map(|(from, pace)| left(from, pace.duration_us)),
        }
    }
}

fn seconds_of(job: &Job) -> f64 {
    let end = job.ended.unwrap_or_else(Instant::now);
    end.duration_since(job.began).as_secs_f64()
}

fn left(from: Instant, duration_us: u64) -> f64 {
    (duration_us as f64 / 1e6 - from.elapsed().as_secs_f64()).max(0.0)
}
