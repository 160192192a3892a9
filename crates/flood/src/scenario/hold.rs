//! `hold`: an idle crowd.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::Shape;
use crate::args::Common;

/// Connections that come and stay.
#[derive(Args, Clone, Debug, Deserialize, Serialize)]
pub struct Hold {
    #[command(flatten)]
    pub(super) common: Common,
}

impl Hold {
    pub(super) fn shape(&self) -> Shape {
        Shape::new(1_000)
    }
}
