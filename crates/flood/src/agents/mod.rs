//! Agents: one run divided among processes on several machines.
//!
//! The coordinator is the `throng flood` that the user typed. It gives each agent a share of the connections and of
//! the publishers, makes all begin at one time, and sums up what they measured. Each agent publishes to its own users
//! and topics. A topic's members may be at any agent: all agents check the messages that they receive, and learn at
//! the end how many there were.
//!
//! Both sides send frames of JSON over TCP ([`frame`]), after each has proved that it knows the key ([`hello`]).
//! Nothing is encrypted: run agents in a trusted network.

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

/// How long one side may be silent until the other counts it as lost. The coordinator pings twice a second, and gets
/// pongs.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// A message of the coordinator to an agent.
#[derive(Debug, Deserialize, Serialize)]
enum ToAgent {
    /// The share to run. The first message, sent once.
    Job(Box<Job>),
    /// The start of the run, on the coordinator's clock in nanoseconds.
    Start { at_ns: u64 },
    /// Requests the agent's time.
    Ping { number: u64 },
    /// How far the agent's clock is ahead of the coordinator's, in nanoseconds.
    Clock { ahead_ns: i64 },
    /// All agents have reached this point, and have published this much.
    Pass { point: Point, published: Vec<(Part, PublishedHere)> },
    /// The user has stopped the run: the agent sends what it measured so far.
    Stop,
    /// The coordinator has the results.
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

/// A message of an agent to its coordinator.
#[derive(Debug, Deserialize, Serialize)]
enum ToCoordinator {
    /// The agent can't run the job; `is_usage` if the command line is the cause.
    Refused { why: String, is_usage: bool },
    /// The agent waits for the start.
    Ready,
    /// The agent's time in nanoseconds.
    Pong { number: u64, at_ns: u64 },
    /// The agent has reached this point, and has published this much.
    Reached { point: Point, published: PublishedHere },
    /// A sample, and the times since the one before.
    Sample { phase: Phase, sample: Box<Sample>, times: Box<Times> },
    /// All measurements of the agent.
    Done(Box<Results>),
    /// The run broke off here.
    Failed { why: String },
}
