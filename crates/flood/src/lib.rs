//! The load generator: opens and holds a crowd against any server that speaks a transport, on the
//! client side of `wire`, publishes in the same run, and checks what arrives.

pub mod args;
pub mod clock;
pub mod crowd;
pub mod descriptors;
pub mod host;
pub mod http;
mod payload;
mod probe;
mod publisher;
mod random;
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

pub use run::{Error, Outcome, run};
pub use scenario::Scenario;
