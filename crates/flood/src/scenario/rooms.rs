//! `rooms`: many topics of the same size.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{Shape, stream};
use crate::args::Common;
use crate::publisher::Audience;

/// Topics with the same number of users each.
#[derive(Args, Clone, Debug, Deserialize, Serialize)]
pub struct Rooms {
    #[command(flatten)]
    pub(super) common: Common,
    /// Number of topics.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000_000), value_name = "N")]
    topics: u32,
    /// Users in each topic, the same as --users-per-topic [default: the connections divided by the
    /// topics; without --connections 1,000].
    #[arg(long, conflicts_with = "users_per_topic", value_parser = clap::value_parser!(u32).range(1..=10_000_000), value_name = "N")]
    users: Option<u32>,
    /// Messages per second, to random topics [default: a tenth of the topics].
    #[arg(long, value_parser = crate::args::positive, value_name = "RATE")]
    messages: Option<f64>,
}

impl Rooms {
    pub(super) fn shape(&self) -> Shape {
        let spread = self.common.connections.map(|all| all.div_ceil(self.topics));
        let users = self.users.or(self.common.users_per_topic).or(spread).unwrap_or(1_000);
        let messages = self.messages.unwrap_or(f64::from(self.topics) / 10.0);
        Shape {
            topic: "room-{room}",
            users_per_topic: Some(users),
            streams: vec![stream(Audience::Topics { count: self.topics }, messages)],
            ..Shape::new(self.topics.saturating_mul(users))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, FromArgMatches};

    #[test]
    fn connections_are_spread_over_the_topics() {
        for (flags, users, connections) in [
            ("", 1_000, 10_000),
            ("--connections 500", 50, 500),
            ("--connections 7 --topics 100", 1, 100),
            ("--topics 20 --users 5", 5, 100),
            ("--topics 20 --users-per-topic 5", 5, 100),
            ("--connections 500 --users 100", 100, 1_000),
        ] {
            let command = Rooms::augment_args(clap::Command::new("rooms"));
            let words = format!("rooms localhost:1 {flags}");
            let matches = command.try_get_matches_from(words.split_whitespace()).unwrap();
            let shape = Rooms::from_arg_matches(&matches).unwrap().shape();
            assert_eq!((shape.users_per_topic, shape.connections), (Some(users), connections));
        }
    }
}
