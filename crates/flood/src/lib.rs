//! The load generator. It opens and holds a crowd of connections to any server that speaks one of the transports,
//! publishes in the same run, and checks the messages that arrive. The client side of each transport is in the crate
//! `client`.

mod agents;
pub mod args;
mod backend;
pub mod clock;
pub mod crowd;
pub mod descriptors;
mod histogram;
pub mod host;
mod kernels;
mod mqtt_publisher;
mod payload;
mod preflight;
mod probe;
mod publisher;
pub mod record;
pub mod report;
mod run;
mod scenario;
mod sequence;
mod server;
mod setup;
pub mod show;
pub mod source;
pub mod target;
pub mod template;

/// The `User-Agent` of requests to a node's API.
const AGENT: &str = "throng-flood";

pub use agents::Agent;
pub use kernels::HostFindings;
pub use run::{Outcome, RunError, run};
pub use scenario::Scenario;

use admin::tls;
use clap::Subcommand;

/// What `throng flood` does.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Runs a scenario.
    #[command(flatten)]
    Scenario(Box<Scenario>),
    /// Wait for runs of other machines (--agents), and take a share of each.
    ///
    /// The agent takes part in one run at a time; the run ends when its coordinator disconnects.
    #[command(
        after_long_help = "Examples:\n  throng flood agent --listen 10.0.0.5:7070 --key-file flood.key\n  throng flood hold http://10.0.0.1:8000 --connections 1000000 --agents 10.0.0.5:7070,10.0.0.6:7070 --agents-key-file flood.key"
    )]
    Agent(Agent),
}
