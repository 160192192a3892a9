//! `throng upgrade`: replaces the binary of a running node, and prints the progress.

use std::io::{IsTerminal, Write, stderr, stdout};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use admin::text::{cut, grouped, plain};
use admin::{Admin, AdminError, refusal};
use serde_json::{Value, json};

use crate::cli::Upgrade;
use crate::error::CommandError;

/// The `User-Agent` of the requests.
const AGENT: &str = "throng-upgrade";
const PATH: &str = "/api/upgrade";
/// The longest silence of the node: it sends a line every 5 seconds.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long the command polls a node that sends no reply any more, for the result.
const AWAY_MAX: Duration = Duration::from_secs(30);
/// Time between two reads of the progress.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The limit on the characters of a text that the node sends.
const TEXT_MAX: usize = 500;

/// Runs the command. Its error decides the exit status.
pub fn run(args: &Upgrade) -> Result<(), CommandError> {
    let target = args.access.target(&args.admin)?;
    let mut admin = Admin::new(&target, AGENT);
    let mut show = Show::new(args.json);
    let mut last = None;
    let mut each = |line: &[u8]| {
        if let Ok(state) = serde_json::from_slice(line) {
            show.step(&state);
            last = Some(state);
        }
        ControlFlow::Continue(())
    };
    let body = request(args)?.to_string();
    let reply = admin.lines(("POST", PATH), &body, SILENCE_MAX, &mut each);
    let end = match (reply, last) {
        (Ok((200, _)), Some(state)) if has_result(&state) => state,
        // The old process may be gone before its last line arrives. The new one reports the same result.
        (Ok((200, _)) | Err(_), Some(state)) => poll_state(&mut admin, &state, &mut show)?,
        (Ok((200, body)), None) => {
            return Err(CommandError::Runtime(admin.error_of(PATH, 200, &body).to_string()));
        }
        (Ok((status, body)), _) => return Err(refused(&admin, status, &body)),
        (Err(error), None) => return Err(CommandError::Runtime(error.to_string())),
    };
    show.end(&end);
    match end["result"].as_str() {
        Some("done" | "possible") => Ok(()),
        Some("partly_lost") => Err(CommandError::PartlyLost),
        _ => Err(CommandError::NothingMoved(String::new())),
    }
}

fn request(args: &Upgrade) -> Result<Value, CommandError> {
    let mut request = json!({ "check": args.check });
    for (name, path) in [("binary", &args.binary), ("to", &args.to)] {
        if let Some(path) = path {
            request[name] = absolute(path)?.into();
        }
    }
    Ok(request)
}

/// Makes a path absolute: the node has another working directory.
fn absolute(path: &Path) -> Result<String, CommandError> {
    let absolute: Option<PathBuf> = std::path::absolute(path).ok();
    let text = absolute.as_deref().and_then(Path::to_str);
    text.map(str::to_owned).ok_or_else(|| {
        CommandError::Usage(format!("{}: this path can't be sent as JSON", path.display()))
    })
}

fn has_result(state: &Value) -> bool {
    state["result"].is_string()
}

fn refused(admin: &Admin, status: u16, body: &[u8]) -> CommandError {
    match status {
        400 | 409 | 501 | 503 => CommandError::NothingMoved(format!(
            "the upgrade did not happen, the node continues to serve: {}",
            refusal(status, body)
        )),
        _ => CommandError::Runtime(admin.error_of(PATH, status, body).to_string()),
    }
}

/// Polls the node, whichever process serves there now, until it reports the result of the upgrade.
fn poll_state(admin: &mut Admin, last: &Value, show: &mut Show) -> Result<Value, CommandError> {
    let mut replied_at = Instant::now();
    loop {
        match admin.get::<Value>(PATH) {
            // A node that was started anew does not know of the upgrade.
            Ok(state) if state["stage"] == "idle" => {
                let text = "the connection broke, and the node that replies now knows of no \
                            upgrade: it was restarted";
                return Err(CommandError::Runtime(text.into()));
            }
            Ok(state) if has_result(&state) => return Ok(state),
            Ok(state) => {
                replied_at = Instant::now();
                show.step(&state);
            }
            Err(error @ AdminError::Forbidden(_)) => {
                return Err(CommandError::Runtime(error.to_string()));
            }
            Err(error) if replied_at.elapsed() > AWAY_MAX => {
                let text = text(last);
                return Err(CommandError::Runtime(format!(
                    "{error}; the last reported state of the upgrade: {text}"
                )));
            }
            Err(_) => {}
        }
        sleep(POLL_INTERVAL);
    }
}

/// Returns the node's text, made safe for a terminal.
fn text(state: &Value) -> String {
    cut(&plain(state["text"].as_str().unwrap_or("nothing")), TEXT_MAX)
}

/// Prints the progress and the result.
struct Show {
    is_json: bool,
    in_terminal: bool,
    shown: String,
}

impl Show {
    fn new(is_json: bool) -> Self {
        Show { is_json, in_terminal: stderr().is_terminal(), shown: String::new() }
    }

    /// Shows the progress: in a terminal one line that changes. A closed pipe is not an error.
    fn step(&mut self, state: &Value) {
        if self.is_json {
            let _ = writeln!(stdout(), "{state}");
            return;
        }
        let line = text(state);
        if has_result(state) || line == self.shown {
            return;
        }
        let _ = match self.in_terminal {
            true => write!(stderr(), "\r\x1b[K{line}"),
            false => writeln!(stderr(), "{line}"),
        };
        self.shown = line;
    }

    /// Shows the result.
    fn end(&self, state: &Value) {
        if self.is_json {
            return;
        }
        if self.in_terminal {
            let _ = write!(stderr(), "\r\x1b[K");
        }
        let _ = stdout().write_all(summary(state).as_bytes());
    }
}

/// Formats the result, with the node's notes.
fn summary(state: &Value) -> String {
    let mut lines = vec![text(state)];
    if let Some(pid) = state["pid"].as_u64().filter(|_| state["stage"] == "done") {
        let connections = grouped(state["connections"].as_u64().unwrap_or_default());
        lines.push(format!("process {pid} serves {connections} connections"));
    }
    let notes = state["notes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    lines.extend(notes.map(|note| format!("note: {}", cut(&plain(note), TEXT_MAX))));
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    use super::*;

    /// Starts a node that sends these replies, one on each connection; `None` closes the connection.
    fn node(replies: Vec<Option<String>>) -> (String, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = format!("http://{}", listener.local_addr().unwrap());
        let thread = std::thread::spawn(move || {
            for reply in replies {
                let mut stream = listener.accept().unwrap().0;
                let _ = stream.read(&mut [0; 4096]).unwrap();
                if let Some(reply) = reply {
                    stream.write_all(reply.as_bytes()).unwrap();
                }
            }
        });
        (admin, thread)
    }

    fn whole(status: &str, body: &str) -> Option<String> {
        let length = body.len();
        Some(format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}"))
    }

    fn exit(replies: Vec<Option<String>>) -> String {
        let (admin, thread) = node(replies);
        let (binary, to, access) = (None, None, Default::default());
        let args = Upgrade { admin, access, binary, to, check: false, json: false };
        let result = run(&args);
        thread.join().unwrap();
        match result {
            Ok(()) => "0".into(),
            Err(CommandError::PartlyLost) => "4".into(),
            Err(CommandError::NothingMoved(text)) => format!("3 {text}"),
            Err(error) => format!("1 {error}"),
        }
    }

    #[test]
    fn the_result_is_the_exit_status() {
        let line = |result: &str| whole("200 OK", &format!("{{\"result\":\"{result}\"}}\n"));
        assert_eq!(exit(vec![line("done")]), "0");
        assert_eq!(exit(vec![line("possible")]), "0");
        assert_eq!(exit(vec![line("partly_lost")]), "4");
        assert_eq!(exit(vec![line("nothing_moved")]), "3 ");
        let body = r#"{"error":{"code":"no_upgrade","message":"restart it"}}"#;
        let text = exit(vec![whole("501 Not Implemented", body)]);
        let want =
            "3 the upgrade did not happen, the node continues to serve: no_upgrade: restart it";
        assert_eq!(text, want);
        let text = exit(vec![whole("401 Unauthorized", body)]);
        assert!(text.starts_with("1 ") && text.contains("rejected the API key"), "{text}");
        let text = exit(vec![whole("404 Not Found", "")]);
        assert!(text.starts_with("1 ") && text.contains("the right port"), "{text}");
    }

    #[test]
    fn a_stream_that_breaks_off_is_requested_at_the_same_address() {
        let begun = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                     19\r\n{\"stage\":\"switching\",\"a\":\n";
        let begun = begun
            .replace("19\r\n{\"stage\":\"switching\",\"a\":", "16\r\n{\"stage\":\"switching\"}");
        let done = whole("200 OK", r#"{"stage":"done","result":"done","text":"so"}"#);
        let under_way = whole("200 OK", r#"{"stage":"switching"}"#);
        assert_eq!(exit(vec![Some(begun.clone()), None, under_way, done]), "0");
        let idle = whole("200 OK", r#"{"stage":"idle","result":"nothing_moved"}"#);
        assert!(exit(vec![Some(begun), idle]).contains("restarted"));
        assert!(exit(vec![None]).starts_with("1 "));
    }

    #[test]
    fn the_summary_is_for_people() {
        let state = json!({
            "stage": "done", "text": "upgraded\u{1b}[2J", "pid": 7, "connections": 1_000_000,
            "notes": ["limits.connections_max is 5"],
        });
        let want = "upgraded\u{fffd}[2J\nprocess 7 serves 1,000,000 connections\n\
                    note: limits.connections_max is 5\n";
        assert_eq!(summary(&state), want);
    }
}
