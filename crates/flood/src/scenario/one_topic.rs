//! `one-topic`: all users receive all messages.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{Shape, stream};
use crate::args::Common;
use crate::publisher::Audience;

/// Users of one topic.
#[derive(Args, Clone, Debug, Deserialize, Serialize)]
pub struct OneTopic {
    #[command(flatten)]
    pub(super) common: Common,
    /// Messages per second to the topic.
    #[arg(long, default_value_t = 10.0, value_parser = crate::args::positive, value_name = "RATE")]
    messages: f64,
}

impl OneTopic {
    pub(super) fn shape(&self) -> Shape {
        let topic = stream(Audience::Topics { count: 1 }, self.messages);
        Shape { streams: vec![topic], ..Shape::new(1_000) }
    }
}
