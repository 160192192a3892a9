//! The load generator. It opens and holds a crowd of connections to any server that speaks one of
//! the transports, publishes in the same run, and checks the messages that arrive. The client side of
//! each transport is in `wire`.

pub mod args;
mod backend;
pub mod clock;
pub mod crowd;
pub mod descriptors;
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

pub use kernels::HostFindings;
pub use run::{Outcome, RunError, run};
pub use scenario::Scenario;
