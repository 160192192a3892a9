//! `throng key`: makes keys of the API, and prints the scopes of a key.

use std::fs::OpenOptions;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use auth::Scope;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use clap::{Args, Subcommand};
use config::{KeyHash, Loaded, Sources};

use crate::error::CommandError;
use crate::flags::Flags;
use crate::sources;

/// Random bytes of a key: too many to guess, however fast the hash is.
const KEY_BYTES: usize = 32;

/// The prefix of a key, by which people recognise a leaked key.
const PREFIX: &str = "throng_";

/// What to do with keys of the API.
#[derive(Subcommand)]
pub enum What {
    /// Make a key: print it, only this once, and the table for the configuration that admits it.
    New(New),
    /// Show which key of the configuration this is, and what it permits. The exit status is 3 if
    /// the configuration does not have it.
    Check(Check),
}

#[derive(Args)]
pub struct New {
    /// Name of the key in logs and metrics: letters, digits, '-', '_' and '.'.
    #[arg(long, value_name = "NAME")]
    name: String,
    /// What the key permits: admin, read, or publish:PATTERN like publish:room:* or publish:@*;
    /// repeat the flag for several scopes.
    #[arg(long, value_name = "SCOPE", required = true)]
    scope: Vec<Scope>,
    /// When the key becomes invalid: a date like 2031-01-01, or a time with its offset.
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
    /// Write the key into this file, which only its owner can read, and print only the table. The
    /// file must not exist.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Args)]
pub struct Check {
    /// The file that contains only the key [default: standard input].
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    settings: Box<Flags>,
}

/// Runs the command.
pub fn run(what: &What) -> Result<(), CommandError> {
    match what {
        What::New(args) => new(args),
        What::Check(args) => check(args),
    }
}

fn new(args: &New) -> Result<(), CommandError> {
    let mut bytes = [0; KEY_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| {
        CommandError::Runtime(format!("the system provides no random bytes: {error}"))
    })?;
    let key = format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(bytes));
    let table = table(args, &key);
    checked(&table)?;
    match &args.output {
        Some(path) => {
            write_private(path, &key)?;
            print(&table);
        }
        None => print(&format!(
            "The key, which is shown only this once; callers send it as Authorization: Bearer\n\n  \
             {key}\n\nAdd this to the configuration, which needs only the hash of the key, and \
             send SIGHUP\n\n{table}"
        )),
    }
    Ok(())
}

/// Returns the table of the configuration that admits the key.
fn table(args: &New, key: &str) -> String {
    let quoted = |text: &str| config::quoted(text);
    let scopes: Vec<String> = args.scope.iter().map(|scope| quoted(&scope.to_string())).collect();
    let mut table = format!(
        "[[keys]]\nname = {}\nhash = {}\nscopes = [{}]\n",
        quoted(&args.name),
        quoted(&KeyHash(control::ApiKey::of_text(&args.name, key).hash).to_string()),
        scopes.join(", ")
    );
    if let Some(expires) = &args.expires {
        table += &format!("expires = {}\n", quoted(expires));
    }
    table
}

/// Checks that the server will accept the table.
fn checked(table: &str) -> Result<(), CommandError> {
    let sources = Sources { file: Some(("", table)), ..Sources::default() };
    let Err(errors) = Loaded::load(&sources) else { return Ok(()) };
    let line = |error: &config::SettingError| {
        let flag = error.key.rsplit('.').next().unwrap_or_default();
        format!("--{flag}: {}", error.message)
    };
    Err(CommandError::Usage(errors.0.iter().map(line).collect::<Vec<_>>().join("\n")))
}

/// Writes a new file that only its owner can read.
fn write_private(path: &Path, key: &str) -> Result<(), CommandError> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| writeln!(file, "{key}")).map_err(|error| {
        let shown = path.display();
        CommandError::Runtime(match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                format!("{shown} exists already, and may contain a key: name another file")
            }
            _ => format!("{shown}: the key can't be written: {error}"),
        })
    })
}

fn check(args: &Check) -> Result<(), CommandError> {
    let config = sources::load(&args.settings)?.config;
    let key = match &args.file {
        Some(path) => files::read_secret(path).map_err(|error| error.to_string()),
        None => read_line(),
    };
    let key = key.map_err(CommandError::Usage)?;
    let hash = control::ApiKey::of_text("", &key).hash;
    if !config.admin.api_key.is_empty()
        && hash == control::ApiKey::of_text("", &config.admin.api_key).hash
    {
        print("admin.api_key: admin; it does not expire\n");
        return Ok(());
    }
    let Some(key) = config.keys.iter().find(|key| key.hash.0 == hash) else {
        eprintln!("the configuration does not have this key");
        return Err(CommandError::Findings);
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (scopes, name) = (key.scopes.join(", "), &key.name);
    match key.expires {
        Some(expires) if expires <= now => {
            eprintln!("{name}: {scopes}; it expired {} ago", days(now - expires));
            Err(CommandError::Findings)
        }
        Some(expires) => {
            print(&format!("{name}: {scopes}; it expires in {}\n", days(expires - now)));
            Ok(())
        }
        None => {
            print(&format!("{name}: {scopes}; it does not expire\n"));
            Ok(())
        }
    }
}

fn days(seconds: u64) -> String {
    match seconds / 86_400 {
        0 => "less than a day".into(),
        1 => "1 day".into(),
        days => format!("{days} days"),
    }
}

/// Reads the key from the first line of standard input.
fn read_line() -> Result<String, String> {
    if std::io::stdin().is_terminal() {
        eprintln!("Type or paste the key:");
    }
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(|error| format!("standard input: {error}"))?;
    match line.trim() {
        "" => Err("standard input has no key".into()),
        key => Ok(key.to_owned()),
    }
}

/// Prints a text. A closed pipe is not an error.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_printed_in_days() {
        assert_eq!(days(86_399), "less than a day");
        assert_eq!(days(86_400), "1 day");
        assert_eq!(days(10 * 86_400), "10 days");
    }
}
