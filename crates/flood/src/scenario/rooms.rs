//! `rooms`: many topics of the same size.

use clap::Args;

use super::{Shape, stream};
use crate::args::Common;
use crate::publisher::Audience;

/// Topics of so many users each.
#[derive(Args, Clone, Debug)]
pub struct Rooms {
    #[command(flatten)]
    pub(super) common: Common,
    /// Topics.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000_000), value_name = "N")]
    topics: u32,
    /// Users in each.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000), value_name = "N")]
    users: u32,
    /// Messages a second, over all topics by chance [default: a tenth of the topics].
    #[arg(long, value_parser = crate::args::positive, value_name = "RATE")]
    messages: Option<f64>,
}

impl Rooms {
    pub(super) fn shape(&self) -> Shape {
        let messages = self.messages.unwrap_or(f64::from(self.topics) / 10.0);
        Shape {
            topic: "room-{room}",
            users_per_topic: Some(self.users),
            streams: vec![stream(Audience::Topics { count: self.topics }, messages)],
            ..Shape::new(self.topics.saturating_mul(self.users))
        }
    }
}
