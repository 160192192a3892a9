//! `storm`: a network fails or a server restarts, and all users come back in the same moment.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::Shape;
use crate::args::Common;
use crate::crowd::Lifetime;

/// All connections drop and come back at once. With --recover, messages are published while they
/// are away, they resume from their last positions, and the run measures how soon all have the
/// missed messages.
#[derive(Args, Clone, Debug, Deserialize, Serialize)]
pub struct Storm {
    #[command(flatten)]
    pub(super) common: Common,
    /// Number of storms.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000_000), value_name = "N")]
    times: u32,
    /// Seconds between two storms.
    #[arg(long, default_value_t = 10.0, value_parser = crate::args::positive, value_name = "SECONDS")]
    every: f64,
    /// Messages that are published to each topic while everyone is away, with --recover.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "N")]
    missed: u32,
}

impl Storm {
    pub(super) fn shape(&self) -> Shape {
        Shape {
            lifetime: Lifetime { stay_seconds: None, away_seconds: Some(1.0), orderly: false },
            storms: Some((self.times, self.every)),
            missed: if self.common.recover { self.missed } else { 0 },
            ..Shape::new(if self.common.recover { 10_000 } else { 1_000 })
        }
    }
}
