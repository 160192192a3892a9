//! The state and the pace of a drain or a rebalance. `api/drain` carries them out.

pub(crate) mod pace;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pace::{Pace, Tick};

/// The drain or rebalance of this node. Only one is under way at a time.
#[derive(Default)]
pub struct Evictions {
    job: Mutex<Option<Job>>,
    /// Begins to end the process, after a drain with `exit`.
    pub(crate) end: Option<fn()>,
}

/// How to empty the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DrainPlan {
    /// The time before the first connection is closed, in which load balancers take the node out.
    pub wait: Duration,
    /// How fast connections are closed after that.
    pub speed: Speed,
    /// Whether the process ends when no connection is left.
    pub exit: bool,
}

/// How fast connections are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speed {
    /// All of them, evenly over this time.
    Within(Duration),
    /// This many a second.
    PerSecond(u64),
}

/// Why a drain or a rebalance can't begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EvictionError {
    /// The node drains, or is drained.
    #[error(
        "the node is already draining or drained: GET /api/drain shows the progress, DELETE \
         cancels it"
    )]
    Draining,
    /// The node is being rebalanced.
    #[error(
        "the node is being rebalanced: GET /api/rebalance shows the progress, DELETE cancels it"
    )]
    Rebalancing,
    /// An upgrade is under way.
    #[error("an upgrade is in progress: drain the node when it is done")]
    Upgrading,
    /// The process is ending.
    #[error("the process is ending")]
    Ending,
}

/// A drain or a rebalance, from its beginning until another one begins or it is cancelled.
pub(crate) struct Job {
    pub kind: Kind,
    /// When it began, which distinguishes it from a later one.
    pub began: Instant,
    /// When it began to close connections, and the pace since then.
    pub closing: Option<(Instant, Pace)>,
    ticked: Instant,
    /// Connections that it has closed.
    pub closed: u64,
    /// When it was done or cancelled.
    pub ended: Option<Instant>,
    /// Whether it was cancelled before it was done.
    pub is_cancelled: bool,
}

/// Whether a job is a drain or a rebalance.
pub(crate) enum Kind {
    /// Closes all connections.
    Drain,
    /// Closes some connections.
    Rebalance,
}

impl Job {
    pub fn new(kind: Kind) -> Self {
        let now = Instant::now();
        Job {
            kind,
            began: now,
            closing: None,
            ticked: now,
            closed: 0,
            ended: None,
            is_cancelled: false,
        }
    }

    /// The times of this tick, counted from the moment when connections began to be closed, and from the last tick.
    pub fn tick(&mut self, began: Instant, now: Instant) -> Tick {
        let since = now.duration_since(std::mem::replace(&mut self.ticked, now).max(began));
        Tick { elapsed_us: us(now.duration_since(began)), since_us: us(since) }
    }
}

/// A duration in microseconds.
pub(crate) fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl Evictions {
    /// Nothing is under way at first. `end` begins to end the process.
    pub fn new(end: fn()) -> Self {
        Evictions { job: Mutex::default(), end: Some(end) }
    }

    /// The job that is under way, or the last one.
    pub(crate) fn job(&self) -> MutexGuard<'_, Option<Job>> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a drain is under way or done, and was not cancelled.
    pub(crate) fn is_drain(&self) -> bool {
        matches!(*self.job(), Some(Job { kind: Kind::Drain, .. }))
    }

    /// Whether connections are being closed for a rebalance.
    pub(crate) fn is_rebalance(&self) -> bool {
        matches!(*self.job(), Some(Job { kind: Kind::Rebalance, ended: None, .. }))
    }

    /// Returns an error while a drain or a rebalance is under way.
    pub(crate) fn check_idle(&self) -> Result<(), EvictionError> {
        match &*self.job() {
            Some(Job { kind: Kind::Drain, .. }) => Err(EvictionError::Draining),
            Some(Job { kind: Kind::Rebalance, ended: None, .. }) => Err(EvictionError::Rebalancing),
            _ => Ok(()),
        }
    }
}

impl Speed {
    /// The pace for this many connections.
    pub fn pace(self, connections: u64) -> Pace {
        match self {
            Speed::Within(time) => Pace::with_duration(connections, us(time)),
            Speed::PerSecond(per_second) => Pace::at_rate(connections, per_second),
        }
    }
}
