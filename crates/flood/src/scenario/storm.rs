//! `storm`: a network fails, or a server restarts, and everyone comes back in the same moment.

use clap::Args;

use super::Shape;
use crate::args::Common;
use crate::crowd::Life;

/// Everyone drops and comes back at once.
#[derive(Args, Clone, Debug)]
pub struct Storm {
    #[command(flatten)]
    pub(super) common: Common,
    /// How often.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    times: u32,
    /// Seconds between.
    #[arg(long, default_value_t = 10.0, value_parser = crate::args::positive)]
    every: f64,
}

impl Storm {
    pub(super) fn shape(&self) -> Shape {
        Shape {
            life: Life { stay_seconds: None, away_seconds: Some(1.0) },
            storms: Some((self.times, self.every)),
            ..Shape::new(1_000)
        }
    }
}
