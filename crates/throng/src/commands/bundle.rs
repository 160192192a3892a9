//! `throng bundle`: gathers what a fault report needs into one text, which has no secrets.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use admin::text::plain;
use admin::{Admin, AdminError, Target};
use clap::Args;
use serde_json::Value;

use crate::error::CommandError;

/// The `User-Agent` of the requests.
const AGENT: &str = "throng-bundle";

/// The paths that the command requests of the server. None of these replies has a secret, or the name of a user.
const PATHS: [&str; 8] = [
    "/readyz",
    "/api/stats",
    "/api/config",
    "/api/kernel",
    "/api/upgrade",
    "/api/backup",
    "/api/samples",
    "/metrics",
];

/// The largest part of the report, in bytes. A longer one is cut.
const PART_BYTES_MAX: usize = 4 << 20;

/// Bytes of a log that the report has, from its end.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// The connections for which `throng tune` judges the host; this is its default.
#[cfg(feature = "tune")]
const CONNECTIONS: u64 = 1_000_000;

#[derive(Args)]
pub struct Bundle {
    /// The node's admin port: a URL, or a host and port.
    #[arg(long, default_value = "http://127.0.0.1:8001", value_name = "URL")]
    admin: String,
    /// The key needs the scope read.
    #[command(flatten)]
    access: crate::node::Access,
    /// Add the last MiB of this log. It has names of users and topics, and no secrets.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Write the report to this file, which must not exist.
    #[arg(long, default_value = "throng-bundle.txt", value_name = "FILE")]
    output: PathBuf,
}

pub fn run(args: &Bundle) -> Result<(), CommandError> {
    let target = args.access.target(&args.admin)?;
    let mut file = create(&args.output)?;
    let mut report = Report::new(target.key().map(str::to_owned));
    report.add("This command", &this_command());
    let reached = add_server(&mut report, &target);
    add_host(&mut report);
    if let Some(log) = &args.log {
        report.add_result("The end of the log", end_of(log));
    }
    file.write_all(report.text.as_bytes()).map_err(|error| cannot_write(&args.output, &error))?;
    let path = args.output.display();
    match reached {
        Ok(()) => {
            println!("wrote {path}: read it before you share it");
            Ok(())
        }
        Err(error) => Err(CommandError::Runtime(format!(
            "{error}\n{path} has only what the command knows without the server"
        ))),
    }
}

/// The text of a report, which grows part by part.
struct Report {
    text: String,
    /// The API key, which the text hides, whatever a server replies.
    key: Option<String>,
}

impl Report {
    fn new(key: Option<String>) -> Self {
        Report { text: String::new(), key: key.filter(|key| !key.is_empty()) }
    }

    fn add(&mut self, title: &str, body: &str) {
        let mut end = body.len().min(PART_BYTES_MAX);
        while !body.is_char_boundary(end) {
            end -= 1;
        }
        let lines = body[..end].lines().map(|line| plain(&line.replace('\t', " ")));
        let mut part = lines.collect::<Vec<_>>().join("\n");
        if let Some(key) = &self.key {
            part = part.replace(key, "(hidden)");
        }
        self.text += &format!("## {title}\n\n{}\n", part.trim_end());
        if end < body.len() {
            self.text += &format!("(cut off: {} of {} bytes)\n", end, body.len());
        }
        self.text += "\n";
    }

    fn add_result(&mut self, title: &str, body: Result<String, String>) {
        self.add(title, &body.unwrap_or_else(|error| format!("not available: {error}")));
    }
}

fn create(path: &Path) -> Result<File, CommandError> {
    let mut options = File::options();
    let created = options.write(true).create_new(true).mode(0o600).open(path);
    created.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            let path = path.display();
            CommandError::Usage(format!("{path} exists already: name another file with --output"))
        }
        _ => cannot_write(path, &error),
    })
}

fn cannot_write(path: &Path, error: &std::io::Error) -> CommandError {
    CommandError::Runtime(format!("{}: {error}", path.display()))
}

fn this_command() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seconds = now.map_or(0, |now| now.as_secs());
    format!("throng {}, at {seconds} seconds since 1970\n", env!("CARGO_PKG_VERSION"))
}

/// Adds the server's replies. Returns an error if the server can't be reached or rejects the key.
fn add_server(report: &mut Report, target: &Target) -> Result<(), AdminError> {
    let mut admin = Admin::new(target, AGENT);
    let mut reached = Ok(());
    for path in PATHS {
        let title = format!("GET {path}");
        match call(&mut admin, path) {
            Ok(body) => report.add(&title, &body),
            Err(error) => {
                report.add(&title, &format!("not available: {error}"));
                if matches!(error, AdminError::Unreachable(_) | AdminError::Forbidden(_)) {
                    reached = Err(error);
                    break;
                }
            }
        }
    }
    reached
}

fn call(admin: &mut Admin, path: &str) -> Result<String, AdminError> {
    let (status, body) = admin.exchange("GET", path, "text/plain", "")?;
    // The report may be about a server that is not ready.
    if status != 200 && path != "/readyz" {
        return Err(admin.error_of(path, status, &body));
    }
    Ok(readable(path, &body))
}

/// Formats a reply for people.
fn readable(path: &str, body: &[u8]) -> String {
    let Ok(value) = serde_json::from_slice::<Value>(body) else {
        return String::from_utf8_lossy(body).into_owned();
    };
    match (path, value["toml"].as_str()) {
        ("/api/config", Some(toml)) => toml.to_owned(),
        // Each sample is a line.
        ("/api/samples", _) => value.to_string().replace("},{", "},\n{"),
        _ => format!("{value:#}"),
    }
}

/// Adds what is known of the host that this command runs on.
fn add_host(report: &mut Report) {
    for path in ["/proc/version", "/proc/loadavg", "/proc/meminfo", "/proc/self/cgroup"] {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
        report.add_result(&format!("This host: {path}"), text);
    }
    #[cfg(feature = "tune")]
    {
        let host = tune::Host::read();
        let advice = tune::advise(&host, &tune::Want::new(CONNECTIONS));
        report.add("This host: throng tune", &tune::text(&advice, false));
        let json = serde_json::to_string_pretty(&host).map_err(|error| error.to_string());
        report.add_result("This host: throng tune --host", json);
    }
}

/// Reads the end of a log, from the beginning of a line.
fn end_of(path: &Path) -> Result<String, String> {
    let read = || {
        let mut file = File::open(path)?;
        let from = file.metadata()?.len().saturating_sub(LOG_BYTES_MAX);
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let is_cut = from > 0;
        Ok(text.split_once('\n').filter(|_| is_cut).map_or(text.clone(), |(_, rest)| rest.into()))
    };
    read().map_err(|error: std::io::Error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_hides_the_key_and_what_controls_a_terminal() {
        let mut report = Report::new(Some("key-of-mine".into()));
        report.add("a", "one key-of-mine\n\u{1b}[31mtwo\n\n\n");
        report.add_result("b", Err("no such file".into()));
        let want =
            "## a\n\none (hidden)\n\u{fffd}[31mtwo\n\n## b\n\nnot available: no such file\n\n";
        assert_eq!(report.text, want);
    }

    #[test]
    fn a_long_part_is_cut_between_characters() {
        let mut report = Report::new(None);
        report.add("a", &"ä".repeat(PART_BYTES_MAX));
        let end = format!("(cut off: {PART_BYTES_MAX} of {} bytes)\n\n", 2 * PART_BYTES_MAX);
        assert!(report.text.ends_with(&end) && report.text.len() < PART_BYTES_MAX + 100);
    }

    #[test]
    fn replies_are_readable() {
        assert_eq!(readable("/api/config", br#"{"toml":"a = 1\nb = 2\n"}"#), "a = 1\nb = 2\n");
        assert_eq!(readable("/metrics", b"# HELP a b"), "# HELP a b");
        assert_eq!(readable("/api/stats", br#"{"a":1}"#), "{\n  \"a\": 1\n}");
        assert_eq!(readable("/api/samples", br#"[{"a":1},{"a":2}]"#), "[{\"a\":1},\n{\"a\":2}]");
    }

    #[test]
    fn the_end_of_a_log_begins_with_a_line() {
        let path = std::env::temp_dir().join(format!("throng-bundle-log-{}", std::process::id()));
        std::fs::write(&path, "first\nlast\n").unwrap();
        assert_eq!(end_of(&path).unwrap(), "first\nlast\n");
        let line = "x".repeat(LOG_BYTES_MAX as usize / 4);
        std::fs::write(&path, [&*line; 6].join("\n")).unwrap();
        assert_eq!(end_of(&path).unwrap(), [&*line; 3].join("\n"));
        std::fs::remove_file(&path).unwrap();
        assert!(end_of(&path).unwrap_err().contains("throng-bundle-log"));
    }
}
