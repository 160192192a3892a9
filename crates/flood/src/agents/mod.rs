//! Agents: one run divided among processes on several machines.
//!
//! The coordinator is the `throng flood` that the user typed. It gives each agent a share of the connections and of
//! the publishers, has all begin at one time, and adds up what they measured. Each agent publishes to its own users
//! and topics. A topic's members may be at any agent: all check what they hear, and learn at the end how much there was
//! to hear.
//!
//! Both speak frames of JSON over TCP ([`frame`]), after each has proved that it knows the key ([`hello`]). Nothing is
//! encrypted: agents belong into a network that one trusts.

mod clocks;
mod coordinator;
mod frame;
mod hello;
mod link;
mod server;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::crowd::{Part, PublishedHere, Times};
use crate::record::Sample;
use crate::run::{Point, Results};
use crate::scenario::Scenario;
use crate::show::Phase;

pub use coordinator::coordinate;
pub use server::Agent;

/// How long one side may say nothing until the other takes it for lost. The coordinator asks for the time twice a
/// second, and is answered.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// What a coordinator tells an agent.
#[derive(Debug, Deserialize, Serialize)]
enum ToAgent {
    /// What to run. Once, first.
    Job(Box<Job>),
    /// When to begin, on the coordinator's clock in nanoseconds.
    Start { at_ns: u64 },
    /// Asks for the time.
    Ping { number: u64 },
    /// How far the agent's clock is ahead of the coordinator's, in nanoseconds.
    Clock { ahead_ns: i64 },
    /// All agents have come to this point, and have published so much.
    Pass { point: Point, published: Vec<(Part, PublishedHere)> },
    /// The user has stopped the run: what was measured so far is wanted.
    Stop,
    /// The results are here.
    End,
}

/// A share of a run.
#[derive(Debug, Deserialize, Serialize)]
struct Job {
    scenario: Scenario,
    part: Part,
    /// The number of the run, which its messages carry.
    run: u32,
    /// The key of the admin port.
    key: Option<String>,
    /// The certificates of `--ca`, in PEM.
    ca: Option<String>,
}

/// What an agent tells its coordinator.
#[derive(Debug, Deserialize, Serialize)]
enum ToCoordinator {
    /// It can't run the job, and whether that is for the command line.
    Refused { why: String, is_usage: bool },
    /// It waits for the start.
    Ready,
    /// The agent's time in nanoseconds.
    Pong { number: u64, at_ns: u64 },
    /// It has come to this point, and has published so much.
    Reached { point: Point, published: PublishedHere },
    /// A sample, and the times since the one before.
    Sample { phase: Phase, sample: Box<Sample>, times: Box<Times> },
    /// All that it has measured.
    Done(Box<Results>),
    /// The run broke off here.
    Failed { why: String },
}
