//! `throng store`: checks a store for damage, or copies everything intact into a new one.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use store::Report;

use crate::error::CommandError;
use crate::flags::Flags;
use crate::sources;

/// What to do with a store that no server has open.
#[derive(Subcommand)]
pub enum What {
    /// List what is damaged: topic, offsets, what is gone. Nothing is changed. The exit status is 0
    /// when all is whole, 3 when not, and 1 when the store can't be looked at.
    Check(Check),
    /// Write a new store of all that is whole in a damaged one, which stays as it is; it may be
    /// one of an earlier version. Clients that
    /// come back to what is gone are told so.
    Salvage(Salvage),
}

#[derive(Args)]
pub struct Check {
    /// The store's directory [default: the configuration's store.data].
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    settings: Box<Flags>,
}

#[derive(Args)]
pub struct Salvage {
    /// The damaged store's directory.
    #[arg(value_name = "FROM")]
    from: PathBuf,
    /// The new store's directory: one that has none yet.
    #[arg(value_name = "TO")]
    to: PathBuf,
}

/// Runs the command.
pub fn run(what: &What) -> Result<(), CommandError> {
    match what {
        What::Check(args) => check(args),
        What::Salvage(args) => salvage(args),
    }
}

fn check(args: &Check) -> Result<(), CommandError> {
    let dir = match &args.dir {
        Some(dir) => dir.clone(),
        None => PathBuf::from(&sources::load(&args.settings)?.config.store.data),
    };
    if dir.as_os_str().is_empty() {
        let message = "which store? Name its directory: throng store check DIR";
        return Err(CommandError::Usage(message.into()));
    }
    let report = store::check(&dir).map_err(|error| CommandError::Runtime(error.to_string()))?;
    print(&text(&dir, &report));
    if report.damages.is_empty() { Ok(()) } else { Err(CommandError::Findings) }
}

fn salvage(args: &Salvage) -> Result<(), CommandError> {
    let mut epoch = [0; 4];
    getrandom::fill(&mut epoch).map_err(|error| CommandError::Runtime(error.to_string()))?;
    let report = store::salvage(&args.from, &args.to, u32::from_ne_bytes(epoch));
    let report = report.map_err(|error| CommandError::Runtime(error.to_string()))?;
    let to = args.to.display();
    print(&text(&args.from, &report));
    print(&format!("all that is whole is in {to}: serve it with --data {to}\n"));
    Ok(())
}

/// Prints a text. A closed pipe is not an error.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn text(dir: &Path, report: &Report) -> String {
    let Report { format, clean, topics, messages, others, lost_range, damages } = report;
    let mut text = format!(
        "{}: format version {format}, {}; {topics} topics with {messages} messages, and {others} \
         cursors, subscriptions, names and idempotency keys are whole\n",
        dir.display(),
        if *clean { "closed" } else { "not closed" },
    );
    for damage in damages {
        text += &format!("damaged: {damage}\n");
    }
    if let Some((after, through)) = lost_range {
        text += &format!(
            "messages after offset {after} up to {through} may have been lost with a commit that the \
             file did not keep; clients are told\n"
        );
    }
    text += &match damages.is_empty() {
        true if *format < store::FORMAT => {
            "nothing is damaged; the next start brings it to the format of this version\n".into()
        }
        true => "nothing is damaged\n".into(),
        false => format!(
            "restore the store from a backup, or have a new one written of all that is whole: \
             throng store salvage {} NEW\n",
            dir.display()
        ),
    };
    text
}
