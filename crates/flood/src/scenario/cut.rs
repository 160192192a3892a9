//! `cut`: connections that fail all the time, as on mobile networks.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{Shape, stream};
use crate::args::Common;
use crate::crowd::{Cuts, Lifetime, Memberships};
use crate::publisher::Audience;

/// Connections, each in some of many topics, are cut at random while messages are published, and
/// come back for what they missed. In the end each must have received every message of its topics
/// once, in order.
#[derive(Args, Clone, Debug, Deserialize, Serialize)]
pub struct Cut {
    #[command(flatten)]
    pub(super) common: Common,
    /// Number of topics.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000), value_name = "N")]
    topics: u32,
    /// Each connection is in one to N of them, besides its user's own.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100), value_name = "N")]
    topics_each: u32,
    /// Messages per second, to random topics.
    #[arg(long, default_value_t = 50.0, value_parser = crate::args::positive, value_name = "RATE")]
    messages: f64,
    /// Connections that are cut per second: half of them are reset, the others closed, some of
    /// each in the middle of incoming data.
    #[arg(long, default_value_t = 100.0, value_parser = crate::args::positive, value_name = "RATE")]
    cuts_per_second: f64,
    /// Seconds until a cut connection comes back, on average.
    #[arg(long, default_value_t = 1.0, value_parser = crate::args::positive, value_name = "SECONDS")]
    away: f64,
    /// Connections per second that stop reading for 0.2 to 3 seconds [default: a tenth of the
    /// cuts].
    #[arg(long, value_parser = crate::args::positive, value_name = "RATE")]
    pauses_per_second: Option<f64>,
}

impl Cut {
    pub(super) fn shape(&self) -> Shape {
        let per_second = self.cuts_per_second;
        let pauses_per_second = self.pauses_per_second.unwrap_or(per_second / 10.0);
        Shape {
            topic: "room-{room}",
            lifetime: Lifetime {
                stay_seconds: None,
                away_seconds: Some(self.away.max(0.01)),
                orderly: false,
            },
            streams: vec![stream(Audience::Topics { count: self.topics }, self.messages)],
            publish_at_once: true,
            recover: true,
            memberships: Some(Memberships { topics: self.topics, each_max: self.topics_each }),
            cuts: Some(Cuts { per_second, pauses_per_second }),
            ..Shape::new(1_000)
        }
    }
}
