//! `churn`: a chat whose users come and go.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{Shape, stream};
use crate::args::Common;
use crate::crowd::Lifetime;
use crate::publisher::Audience;

/// Users who connect, talk and leave at random. Half of them close their connections, half leave
/// as if their network had failed.
#[derive(Args, Clone, Debug, Deserialize, Serialize)]
pub struct Churn {
    #[command(flatten)]
    pub(super) common: Common,
    /// Users in each room.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000_000), value_name = "N")]
    users: u32,
    /// Seconds that a user stays, on average.
    #[arg(long, default_value_t = 60.0, value_parser = crate::args::positive, value_name = "SECONDS")]
    stay: f64,
    /// Seconds until a user returns, on average.
    #[arg(long, default_value_t = 5.0, value_parser = crate::args::positive, value_name = "SECONDS")]
    away: f64,
    /// Seconds between two messages of a user, on average.
    #[arg(long, default_value_t = 30.0, value_parser = crate::args::positive, value_name = "SECONDS")]
    talk: f64,
}

impl Churn {
    pub(super) fn shape(&self) -> Shape {
        let connections = self.common.connections.unwrap_or(1_000);
        let rooms = connections.div_ceil(self.users);
        let share_open = self.stay / (self.stay + self.away);
        let per_second = f64::from(connections) * share_open / self.talk;
        Shape {
            topic: "room-{room}",
            users_per_topic: Some(self.users),
            // With less than a tenth of a second, users would do nothing but connect.
            lifetime: Lifetime {
                stay_seconds: Some(self.stay.max(0.1)),
                away_seconds: Some(self.away.max(0.1)),
                orderly: false,
            },
            streams: vec![stream(Audience::Topics { count: rooms }, per_second)],
            publish_at_once: true,
            ..Shape::new(1_000)
        }
    }
}
