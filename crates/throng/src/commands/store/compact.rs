//! `throng store compact`: rewrites a store's file without its free pages.

use std::path::PathBuf;

use admin::text::grouped;
use clap::Args;

use crate::error::CommandError;
use crate::flags::Flags;

#[derive(Args)]
pub struct Compact {
    /// The store's directory [default: the configuration's store.data].
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    settings: Box<Flags>,
}

pub fn run(args: &Compact) -> Result<(), CommandError> {
    let dir = super::directory(args.dir.as_deref(), &args.settings, "compact")?;
    let compacted = store::compact(&dir).map_err(super::runtime)?;
    super::print_report(&dir, &compacted.report)?;
    let (before, bytes) = (grouped(compacted.bytes_before), grouped(compacted.bytes));
    super::print(&format!("the file had {before} bytes and has {bytes} now\n"));
    Ok(())
}
