//! `throng config`: the configuration in force and the sources of its values, or the default file.

use std::cmp::Reverse;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use config::{Finding, Loaded, Severity};

use crate::cli::Config;
use crate::error::CommandError;
use crate::sources;

/// The column where the text of a point begins.
const TEXT_COLUMN: usize = 24;

/// The longest line, in characters.
const LINE_CHARS: usize = 100;

/// Prints the result of each point of the checklist, and fails if the configuration is not for the public.
fn judge(loaded: &Loaded) -> Result<(), CommandError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut findings = loaded.judge(now);
    // The worst first.
    findings.sort_by_key(|finding| Reverse(finding.severity));
    let mut text = String::new();
    for Finding { point, severity, text: what } in &findings {
        text += &format!("{:<9}{:<15}{}\n", severity.name(), point.name, wrapped(what));
    }
    let open = sources::open_secrets(loaded);
    for line in &open {
        text += &format!("{:<9}{:<15}{}\n", Severity::Error.name(), "files", wrapped(line));
    }
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error) + open.len(), count(Severity::Warning));
    text += &match (errors, warnings) {
        (0, 0) => "\nfit for the public\n".to_owned(),
        (0, 1) => "\nfit for the public, if you intend what the warning is about\n".to_owned(),
        (0, _) => "\nfit for the public, if you intend what the warnings are about\n".to_owned(),
        (1, _) => "\nnot fit for the public: 1 error\n".to_owned(),
        _ => format!("\nnot fit for the public: {errors} errors\n"),
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    match errors {
        0 => Ok(()),
        _ => Err(CommandError::Findings),
    }
}

/// Wraps a text at `LINE_CHARS`, with each further line indented to `TEXT_COLUMN`.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.len() - 1;
        let chars = lines[line].chars().count() + 1 + word.chars().count();
        match TEXT_COLUMN + chars > LINE_CHARS && !lines[line].is_empty() {
            true => lines.push(word.into()),
            false if lines[line].is_empty() => lines[line] = word.into(),
            false => lines[line] += &format!(" {word}"),
        }
    }
    lines.join(&format!("\n{}", " ".repeat(TEXT_COLUMN)))
}

/// Prints to standard output. A closed pipe is not an error.
pub fn run(args: &Config) -> Result<(), CommandError> {
    let text = if args.default {
        config::default_file()
    } else {
        let loaded = sources::load(&args.settings)?;
        for warning in loaded.warnings() {
            eprintln!("warning: {warning}");
        }
        if args.public {
            return judge(&loaded);
        }
        if args.check { "ok\n".to_string() } else { config::effective(&loaded) }
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}
