//! The event loops that hold the connections: one thread each, nothing shared on the hot path.
//!
//! [`prepare`] binds the port and gives a [`Handle`] to each shard, from which the broker is made;
//! [`Prepared::start`] runs them.

mod accept;
mod batch;
mod bulk;
pub mod command;
mod commands;
mod connection;
mod deliver;
pub mod filter;
mod flow;
mod follow;
mod handle;
mod input;
mod joins;
mod listen;
mod longpoll;
pub mod mailbox;
pub mod metrics;
mod outbox;
mod phoenix;
mod poll;
mod poller;
mod presence;
mod publish;
mod receive;
mod sender;
mod settings;
mod shard;
mod start;
mod sweep;
pub mod sync;
mod tidy;
mod webhook;

pub use command::{Answer, Command, ConnectionInfo, Reply, Target, TopicInfo};
pub use handle::{Handle, Shared};
pub use hub::presence::{Limits as PresenceLimits, Presence};
pub use metrics::{Counter, Histogram, Limited, Metrics, Refusal};
pub use settings::{Options, SILENCE_SECONDS_MAX, SenderKind, Settings};
pub use start::{Prepared, Running, prepare};
pub use webhook::{Ask, Full, Kind as AskKind, Verdict, Webhook};
