//! `throng store`: copies stores, looks for damage and free space in them, and moves their history into PostgreSQL
//! and back.

mod backup;
mod check;
mod compact;
mod database;
mod export;
mod import;
mod restore;
mod salvage;
mod subscriptions;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use store::{OpenError, Report};

use crate::error::CommandError;
use crate::flags::Flags;
use crate::sources;

/// What to do with a store.
#[derive(Subcommand)]
pub enum What {
    /// Copy the store of a running server, as of its last commit, while it serves. Ctrl-C ends the
    /// command, and the server completes the copy. With --from, copy a store that no process has
    /// open.
    Backup(backup::Backup),
    /// List all damage, with its topic, its offsets and what is lost. The command changes nothing.
    /// The exit status is 0 if nothing is damaged, 3 if something is, and 1 if the store can't be
    /// read.
    Check(check::Check),
    /// Rewrite the file of a store without its free space. No server may have it open, and the
    /// disk needs room for both files. The old file stays until the new one is complete, and also
    /// stays if it is damaged.
    Compact(compact::Compact),
    /// Write the history of a store, with its ids, and users' cursors and stored subscriptions
    /// into an empty PostgreSQL database, once all of the store is verified. No server may have
    /// the store open. It is one transaction: after an error or a kill the database is still
    /// empty. Sessions of MQTT and the like are not written; the command counts them.
    Export(export::Export),
    /// Write a new store with the history, cursors and stored subscriptions of a PostgreSQL
    /// database, as of one moment, while servers use the database. Clients that come back learn
    /// that messages may be missing.
    Import(import::Import),
    /// Restore a store from a backup, once all of the backup is verified and on the disk. No
    /// server may have the store open. Clients that come back learn that messages may be missing.
    Restore(restore::Restore),
    /// Write the undamaged content of a damaged store into a new store. The damaged store stays as
    /// it is, and may be one of an earlier version. Clients that come back to lost messages are
    /// notified.
    Salvage(salvage::Salvage),
}

/// Runs the command.
pub fn run(what: &What) -> Result<(), CommandError> {
    match what {
        What::Backup(args) => backup::run(args),
        What::Check(args) => check::run(args),
        What::Compact(args) => compact::run(args),
        What::Export(args) => export::run(args),
        What::Import(args) => import::run(args),
        What::Restore(args) => restore::run(args),
        What::Salvage(args) => salvage::run(args),
    }
}

/// Returns the store's directory: the one of the command line, or the configuration's.
fn directory(
    named: Option<&Path>,
    settings: &Flags,
    command: &str,
) -> Result<PathBuf, CommandError> {
    match named {
        Some(dir) => require_named(dir, command),
        None => require_named(Path::new(&sources::load(settings)?.config.store.data), command),
    }
}

/// Requires that a path names a directory.
fn require_named(dir: &Path, command: &str) -> Result<PathBuf, CommandError> {
    if dir.as_os_str().is_empty() {
        let message = format!("name the directory of the store: throng store {command} DIR");
        return Err(CommandError::Usage(message));
    }
    Ok(dir.into())
}

fn runtime(error: OpenError) -> CommandError {
    CommandError::Runtime(match error {
        OpenError::InUse { dir } => format!(
            "{} is in use by another process: stop the server that has it open; only throng store backup NAME works \
             while it runs",
            dir.display()
        ),
        other => other.to_string(),
    })
}

/// Makes the error of a history in PostgreSQL.
fn database_error(error: &dyn std::fmt::Display) -> CommandError {
    CommandError::Runtime(format!("the history in PostgreSQL: {error}"))
}

/// A random epoch for a copy.
fn new_epoch() -> Result<u32, CommandError> {
    getrandom::u32().map_err(|error| CommandError::Runtime(error.to_string()))
}

/// Prints a text. A closed pipe is not an error.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Prints the report of a check, and fails if something is damaged.
fn print_report(dir: &Path, report: &Report) -> Result<(), CommandError> {
    print(&text(dir, report));
    if report.damages.is_empty() { Ok(()) } else { Err(CommandError::Findings) }
}

/// Formats the count of moved retained messages; nothing if there are none.
fn retained_text(count: u64) -> String {
    match count {
        0 => String::new(),
        _ => {
            format!("{} retained messages of MQTT were moved\n", admin::text::grouped(count))
        }
    }
}

/// Formats the report of a check.
fn text(dir: &Path, report: &Report) -> String {
    let Report { format, clean, topics, messages, others, lost_range, damages } = report;
    let mut text = format!(
        "{}: format version {format}, {}; {topics} topics with {messages} messages, and {others} \
         cursors, subscriptions, names and idempotency keys are undamaged\n",
        dir.display(),
        if *clean { "closed" } else { "not closed" },
    );
    for damage in damages {
        text += &format!("damaged: {damage}\n");
    }
    if let Some((after, through)) = lost_range {
        text += &format!(
            "messages after offset {after} up to {through} may be missing: they came after a \
             backup, or were in a commit that is not in the file; clients are notified\n"
        );
    }
    text += &match damages.is_empty() {
        true if *format < store::FORMAT => {
            "nothing is damaged; the next start converts the store to the format of this version\n"
                .into()
        }
        true => "nothing is damaged\n".into(),
        false => format!(
            "restore the store from a backup, or write all that is undamaged into a new store: \
             throng store salvage {} NEW\n",
            dir.display()
        ),
    };
    text
}
