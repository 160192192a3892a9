//! `throng store restore`: puts a backup into the place of a store.

use std::path::{Path, PathBuf};

use clap::Args;
use store::OpenError;

use crate::error::CommandError;
use crate::flags::Flags;

#[derive(Args)]
pub struct Restore {
    /// The directory of the backup, which stays as it is.
    #[arg(value_name = "BACKUP")]
    backup: PathBuf,
    /// The store's directory [default: the configuration's store.data].
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Replace the store that is in the directory, and delete its content.
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    settings: Box<Flags>,
}

pub fn run(args: &Restore) -> Result<(), CommandError> {
    let dir = super::directory(args.dir.as_deref(), &args.settings, "restore BACKUP")?;
    if is_same(&args.backup, &dir) {
        let message = format!(
            "{} is the store itself: the first argument must be a backup of it",
            dir.display()
        );
        return Err(CommandError::Usage(message));
    }
    let report = store::restore(&args.backup, &dir, args.replace, super::new_epoch()?);
    let report = report.map_err(|error| match error {
        OpenError::Exists { dir } => CommandError::Runtime(format!(
            "{} has a store already: --replace deletes it and puts the backup in its place; throng \
             store backup NAME --from {} copies it first",
            dir.display(),
            dir.display()
        )),
        other => super::runtime(other),
    })?;
    super::print_report(&args.backup, &report)?;
    super::print(&format!(
        "the backup is restored into {dir}: serve it with --data {dir}\n",
        dir = dir.display()
    ));
    Ok(())
}

/// Returns true if both paths lead to one directory.
fn is_same(one: &Path, other: &Path) -> bool {
    let paths = [one, other].map(|path| path.canonicalize().ok());
    paths[0].is_some() && paths[0] == paths[1]
}
