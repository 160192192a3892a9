//! `throng store salvage`: copies everything intact in a damaged store into a new one.

use std::path::PathBuf;

use clap::Args;

use crate::error::CommandError;

#[derive(Args)]
pub struct Salvage {
    /// The damaged store's directory.
    #[arg(value_name = "FROM")]
    from: PathBuf,
    /// The directory of the new store, which must not have a store.
    #[arg(value_name = "TO")]
    to: PathBuf,
}

pub fn run(args: &Salvage) -> Result<(), CommandError> {
    let report = store::salvage(&args.from, &args.to, super::new_epoch()?);
    let report = report.map_err(super::runtime)?;
    let to = args.to.display();
    super::print(&super::text(&args.from, &report));
    super::print(&format!("all that is undamaged is in {to}: serve it with --data {to}\n"));
    Ok(())
}
