//! `throng store backup`: copies a store: a running server's through its admin port, or one in a directory.

use std::io::{IsTerminal, Write, stderr};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use admin::text::{grouped, plain};
use admin::{Admin, AdminError};
use clap::Args;
use serde_json::{Value, json};
use store::OpenError;

use crate::error::CommandError;

/// The `User-Agent` of the requests.
const AGENT: &str = "throng-store";
const PATH: &str = "/api/backup";

/// Time between two requests for the progress.
const POLL_EVERY: Duration = Duration::from_millis(250);

#[derive(Args)]
pub struct Backup {
    /// The name of the copy: the server creates a directory of this name in its directory of
    /// backups (store.backups). With --from, the directory of the copy, which must not have a
    /// store.
    #[arg(value_name = "NAME")]
    name: PathBuf,
    /// Copy the store in this directory, which no process may have open, instead of a running server's.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["api_key_file", "ca"])]
    from: Option<PathBuf>,
    /// The server's admin port: a URL, or a host and port.
    #[arg(
        long,
        default_value = "http://127.0.0.1:8001",
        value_name = "URL",
        conflicts_with = "from"
    )]
    admin: String,
    #[command(flatten)]
    access: crate::node::Access,
}

pub fn run(args: &Backup) -> Result<(), CommandError> {
    match &args.from {
        Some(from) => back_up_directory(from, &args.name),
        None => back_up_server(args),
    }
}

fn back_up_directory(from: &Path, to: &Path) -> Result<(), CommandError> {
    let report = store::back_up(from, to, super::new_epoch()?).map_err(|error| match error {
        OpenError::InUse { dir } if dir == from => CommandError::Runtime(format!(
            "{} is in use by another process: to copy the store of a running server, leave out \
             --from",
            dir.display()
        )),
        other => super::runtime(other),
    })?;
    super::print_report(from, &report)?;
    super::print(&format!("the store is copied into {}\n", to.display()));
    Ok(())
}

fn back_up_server(args: &Backup) -> Result<(), CommandError> {
    let Some(name) = args.name.to_str() else {
        let name = args.name.display();
        let message = format!("{name} is not a valid name of a backup: it is not UTF-8");
        return Err(CommandError::Usage(message));
    };
    let target = args.access.target(&args.admin)?;
    let mut admin = Admin::new(&target, AGENT);
    let begun =
        begin(&mut admin, name).map_err(|error| CommandError::Runtime(error.to_string()))?;
    let (mut state, dir) = (begun.clone(), begun["dir"].clone());
    let in_terminal = stderr().is_terminal();
    let clear = if in_terminal { "\r\x1b[K" } else { "" };
    while state["state"] == "running" && state["dir"] == dir {
        if in_terminal {
            let (rows, total) = (number(&state["rows"]), number(&state["rows_total"]));
            let _ = write!(stderr(), "{clear}{rows} of {total} rows");
        }
        sleep(POLL_EVERY);
        state = admin.get(PATH).map_err(|error| {
            let text = format!(
                "{clear}{error}\nthe result of the backup is unknown: once the server runs, check \
                 the copy with throng store check {}",
                text_of(&dir)
            );
            CommandError::Runtime(text)
        })?;
    }
    let _ = write!(stderr(), "{clear}");
    report(&state, &text_of(&dir))
}

/// Makes the server start the backup. Returns its state.
fn begin(admin: &mut Admin, name: &str) -> Result<Value, AdminError> {
    let body = json!({ "name": name }).to_string();
    let (status, bytes) = admin.exchange("POST", PATH, "application/json", &body)?;
    let state = serde_json::from_slice(&bytes).ok().filter(|_| status == 200);
    state.ok_or_else(|| admin.error_of(PATH, status, &bytes))
}

fn number(value: &Value) -> String {
    grouped(value.as_u64().unwrap_or_default())
}

/// Returns a text of the server, safe to print.
fn text_of(value: &Value) -> String {
    plain(value.as_str().unwrap_or_default())
}

/// Prints the result of the backup into `dir`.
fn report(state: &Value, dir: &str) -> Result<(), CommandError> {
    if text_of(&state["dir"]) != dir {
        let message = format!(
            "the server restarted, or began another backup, before this one was done: check the \
             copy with throng store check {dir}"
        );
        return Err(CommandError::Runtime(message));
    }
    if state["state"] != "done" {
        return Err(CommandError::Runtime(text_of(&state["error"])));
    }
    let (rows, bytes) = (number(&state["rows"]), number(&state["bytes"]));
    super::print(&format!("{rows} rows with {bytes} bytes are copied into {dir}\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_result_of_this_backup_counts() {
        let done = json!({"state": "done", "dir": "/a", "rows": 2, "bytes": 9});
        assert!(report(&done, "/a").is_ok());
        let failed = json!({"state": "failed", "dir": "/a", "error": "no \u{1b}room"});
        let texts =
            [report(&done, "/b"), report(&json!({"state": "none"}), "/a"), report(&failed, "/a")];
        let texts = texts.map(|result| result.unwrap_err().to_string());
        assert!(texts[0].contains("throng store check /b"), "{texts:?}");
        assert!(texts[1].contains("throng store check /a"), "{texts:?}");
        assert_eq!(texts[2], "no \u{fffd}room");
    }
}
