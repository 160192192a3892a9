//! `throng store check`: lists the damage of a store.

use std::path::PathBuf;

use clap::Args;

use crate::error::CommandError;
use crate::flags::Flags;

#[derive(Args)]
pub struct Check {
    /// The store's directory [default: the configuration's store.data].
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    settings: Box<Flags>,
}

pub fn run(args: &Check) -> Result<(), CommandError> {
    let dir = super::directory(args.dir.as_deref(), &args.settings, "check")?;
    let report = store::check(&dir).map_err(super::runtime)?;
    super::print_report(&dir, &report)
}
