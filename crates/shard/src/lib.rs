//! The event loops that hold the connections: one thread each, nothing shared on the hot path.

pub mod command;
mod filter;
mod handle;
pub mod mailbox;
pub mod metrics;
mod sync;

pub use command::{Command, ConnectionInfo, Reply, Target, TopicInfo};
pub use handle::{Handle, Shared};
pub use metrics::{Counter, Histogram, Metrics, Refusal};
