//! Drains and rebalances, as far as they need no node: what is under way, and how fast. `api/drain` does them.

pub(crate) mod pace;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pace::{Pace, Tick};

/// What the node has for drains and rebalances: one at a time.
#[derive(Default)]
pub struct Evictions {
    job: Mutex<Option<Job>>,
    /// Ends the process in order, for a drain that is to end with that.
    pub(crate) end: Option<fn()>,
}

/// How to empty the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DrainPlan {
    /// How long nothing is closed, so that balancers take the node out before.
    pub wait: Duration,
    /// How fast.
    pub speed: Speed,
    /// The process ends when it is empty.
    pub exit: bool,
}

/// How fast connections are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speed {
    /// All over this time.
    Over(Duration),
    /// So many in a second.
    PerSecond(u64),
}

/// Why nothing can be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EvictionError {
    /// The node drains, or is drained.
    #[error(
        "the node drains already, or is drained: GET /api/drain says how far it is, DELETE ends it"
    )]
    Draining,
    /// The node is rebalanced.
    #[error("the node is being rebalanced: GET /api/rebalance says how far it is, DELETE ends it")]
    Rebalancing,
    /// Another process is about to take its place.
    #[error("an upgrade is under way: drain the node when it is done")]
    Upgrading,
    /// The process ends.
    #[error("the process is ending")]
    Ending,
}

/// A drain or a rebalance, from its beginning until another one begins or it is cancelled.
pub(crate) struct Job {
    pub kind: Kind,
    /// When; no other one has begun then.
    pub began: Instant,
    /// When the first connection could be closed, and how fast since.
    pub closing: Option<(Instant, Pace)>,
    ticked: Instant,
    /// How many it has closed.
    pub closed: u64,
    /// Nothing more is to be done.
    pub ended: Option<Instant>,
    /// It ended before all were closed.
    pub is_cancelled: bool,
}

/// Which of the two.
pub(crate) enum Kind {
    /// Empties the node.
    Drain,
    /// Closes some.
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

    /// Now, for the pace of connections that are closed since `began`.
    pub fn tick(&mut self, began: Instant, now: Instant) -> Tick {
        let since = now.duration_since(std::mem::replace(&mut self.ticked, now).max(began));
        Tick { elapsed_us: us(now.duration_since(began)), since_us: us(since) }
    }
}

/// In microseconds.
pub(crate) fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl Evictions {
    /// Nothing is under way. `end` begins to end the process in order.
    pub fn new(end: fn()) -> Self {
        Evictions { job: Mutex::default(), end: Some(end) }
    }

    /// What is under way, or was last.
    pub(crate) fn job(&self) -> MutexGuard<'_, Option<Job>> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a drain has begun that nobody has cancelled.
    pub(crate) fn is_drain(&self) -> bool {
        matches!(*self.job(), Some(Job { kind: Kind::Drain, .. }))
    }

    /// Whether connections are being closed for a rebalance.
    pub(crate) fn is_rebalance(&self) -> bool {
        matches!(*self.job(), Some(Job { kind: Kind::Rebalance, ended: None, .. }))
    }

    /// Fails while one is under way.
    pub(crate) fn check_idle(&self) -> Result<(), EvictionError> {
        match &*self.job() {
            Some(Job { kind: Kind::Drain, .. }) => Err(EvictionError::Draining),
            Some(Job { kind: Kind::Rebalance, ended: None, .. }) => Err(EvictionError::Rebalancing),
            _ => Ok(()),
        }
    }
}

impl Speed {
    /// How fast so many connections are closed.
    pub fn pace(self, connections: u64) -> Pace {
        match self {
            Speed::Over(time) => Pace::over(connections, us(time)),
            Speed::PerSecond(per_second) => Pace::at_rate(connections, per_second),
        }
    }
}
