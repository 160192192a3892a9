//! `random-users`: generates messages to random users, as load generators of the first comet servers did.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::Shape;
use crate::args::Common;
use crate::publisher::{Audience, Stream};

/// Senders that send messages to random users.
#[derive(Args, Clone, Debug, Deserialize, Serialize)]
pub struct RandomUsers {
    #[command(flatten)]
    pub(super) common: Common,
    /// Number of senders.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000), value_name = "N")]
    senders: u32,
    /// Messages of each sender; the run ends when all are sent.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000), value_name = "N")]
    messages: u64,
    /// Seconds between two messages of a sender.
    #[arg(long, default_value_t = 1.0, value_parser = crate::args::positive, value_name = "SECONDS")]
    interval: f64,
    /// Number of users that get messages, from the first on [default: the number of connections].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000_000), value_name = "N")]
    max_id: Option<u32>,
    /// Send most of the messages to a few users, and few to the others.
    #[arg(long)]
    long_tail: bool,
}

impl RandomUsers {
    pub(super) fn shape(&self) -> Shape {
        let connections = self.common.connections.unwrap_or(1_000);
        let to = Audience::Users {
            count: self.max_id.unwrap_or(connections).max(1),
            long_tail: self.long_tail,
        };
        let all = Stream {
            to,
            per_second: f64::from(self.senders) / self.interval,
            messages_max: Some(u64::from(self.senders).saturating_mul(self.messages)),
        };
        Shape { streams: vec![all], ends_when_published: true, ..Shape::new(1_000) }
    }
}
