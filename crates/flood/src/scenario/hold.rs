//! `hold`: an idle crowd.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::Shape;
use crate::args::Common;

/// Idle connections that stay open.
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
