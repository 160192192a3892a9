//! `throng drain`: empties a running node of its connections, and prints the progress.

use std::io::{IsTerminal, Write, stderr, stdout};
use std::thread::sleep;
use std::time::{Duration, Instant};

use admin::text::{cut, plain};
use admin::{Admin, AdminError, refusal};
use clap::Args;
use serde_json::{Value, json};

use crate::error::CommandError;

/// The `User-Agent` of the requests.
const AGENT: &str = "throng-drain";
const PATH: &str = "/api/drain";
/// Time between two reads of the progress.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long a node may give no reply before the command gives up.
const AWAY_MAX: Duration = Duration::from_secs(30);
/// Time between two lines of progress when standard error is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// The limit on the characters of a text that the node sends.
const TEXT_MAX: usize = 500;

#[derive(Args, Default)]
pub struct Drain {
    /// The node's admin port: a URL, or a host and port.
    #[arg(long, default_value = "http://127.0.0.1:8001", value_name = "URL")]
    pub admin: String,
    #[command(flatten)]
    pub access: crate::node::Access,
    /// Close the connections evenly over this time: 30s, 5m, 1h.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = seconds)]
    pub over: u64,
    /// Close this many connections per second instead: 500, or 500/s.
    #[arg(long, value_name = "N", conflicts_with = "over", value_parser = per_second)]
    pub rate: Option<u64>,
    /// Wait this long before the first close: load balancers take the node out meanwhile, since it
    /// is not ready.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = seconds)]
    pub wait: u64,
    /// End the server when no connection is left.
    #[arg(long)]
    pub exit: bool,
    /// Cancel the drain that is under way: the node serves as before.
    #[arg(long, conflicts_with_all = ["over", "rate", "wait", "exit"])]
    pub cancel: bool,
    /// Print the progress as a JSON object on a line of its own, twice a second.
    #[arg(long)]
    pub json: bool,
}

/// Parses a time, in seconds or with a unit.
fn seconds(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.as_bytes().last() {
        Some(b's') => (&text[..text.len() - 1], 1),
        Some(b'm') => (&text[..text.len() - 1], 60),
        Some(b'h') => (&text[..text.len() - 1], 3_600),
        _ => (text, 1),
    };
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    seconds
        .filter(|seconds| *seconds <= 86_400)
        .ok_or_else(|| "a time up to 24h, like 30s, 5m or 1h".into())
}

/// Parses a rate of connections.
pub(super) fn per_second(text: &str) -> Result<u64, String> {
    let rate = text.strip_suffix("/s").unwrap_or(text).parse::<u64>().ok();
    rate.filter(|rate| (1..=1_000_000).contains(rate))
        .ok_or_else(|| "connections in a second, from 1 to 1000000, like 500 or 500/s".into())
}

/// Runs the command. Its error decides the exit status.
pub fn run(args: &Drain) -> Result<(), CommandError> {
    let mut admin = Admin::new(&args.access.target(&args.admin)?, AGENT);
    let mut show = Show::new(args.json);
    if args.cancel {
        let state = call(&mut admin, "DELETE", "")?;
        show.end(&state);
        return match state["stage"] == "serving" {
            true => Ok(()),
            false => Err(CommandError::Runtime(
                "the process is ending: the drain can no longer be cancelled".into(),
            )),
        };
    }
    // Another process may serve at this port after the drained one has ended.
    let epoch = args.exit.then(|| epoch(&mut admin)).transpose()?;
    let mut last = call(&mut admin, "POST", &request(args).to_string())?;
    let mut replied_at = Instant::now();
    while last["stage"] != "drained" {
        show.step(&last);
        sleep(POLL_INTERVAL);
        match admin.get::<Value>(PATH) {
            Ok(state) if state["stage"] == "serving" => {
                return ended(&mut admin, epoch.as_deref(), &mut show);
            }
            Ok(state) => (last, replied_at) = (state, Instant::now()),
            Err(error @ AdminError::Forbidden(_)) => {
                return Err(CommandError::Runtime(error.to_string()));
            }
            Err(AdminError::Unreachable(_))
                if args.exit && may_have_ended(&last, args.wait, replied_at.elapsed()) =>
            {
                show.line("the drained process has ended");
                return Ok(());
            }
            Err(error) if replied_at.elapsed() > AWAY_MAX => {
                return Err(CommandError::Runtime(format!(
                    "{error}; the last reported state of the drain: {}",
                    text(&last)
                )));
            }
            Err(_) => {}
        }
    }
    show.end(&last);
    Ok(())
}

fn request(args: &Drain) -> Value {
    let mut request = json!({ "wait_seconds": args.wait, "exit": args.exit });
    match args.rate {
        Some(rate) => request["per_second"] = rate.into(),
        None => request["seconds"] = args.over.max(1).into(),
    }
    request
}

fn call(admin: &mut Admin, method: &str, body: &str) -> Result<Value, CommandError> {
    let error = |error: AdminError| CommandError::Runtime(error.to_string());
    let (status, body) = admin.exchange(method, PATH, "application/json", body).map_err(error)?;
    match status {
        200 => serde_json::from_slice(&body)
            .map_err(|_| CommandError::Runtime(admin.error_of(PATH, status, &body).to_string())),
        409 | 503 => Err(CommandError::Runtime(refusal(status, &body))),
        _ => Err(error(admin.error_of(PATH, status, &body))),
    }
}

fn epoch(admin: &mut Admin) -> Result<String, CommandError> {
    let stats = admin.get::<Value>("/api/stats");
    let stats = stats.map_err(|error| CommandError::Runtime(error.to_string()))?;
    Ok(stats["epoch"].as_str().unwrap_or_default().into())
}

/// Ends the command when the node serves and doesn't drain.
fn ended(admin: &mut Admin, before: Option<&str>, show: &mut Show) -> Result<(), CommandError> {
    if let Some(before) = before
        && epoch(admin)? != before
    {
        show.line("the drained process has ended, and another one serves");
        return Ok(());
    }
    let message = "the drain was cancelled, or the server was restarted: it serves clients";
    Err(CommandError::Runtime(message.into()))
}

/// After this silence a process that was about to end counts as ended, and not as slow.
const ENDED_AFTER: Duration = Duration::from_secs(3);

/// Returns true if a process that has been silent for this long since this reply can have ended by its drain: it ends
/// as soon as it is empty. The drain waits for `wait` seconds before it closes any connection.
fn may_have_ended(state: &Value, wait: u64, silent: Duration) -> bool {
    let silent_seconds = silent.as_secs_f64();
    if silent < ENDED_AFTER {
        return false;
    }
    let is_closed = match state["stage"].as_str() {
        Some("closing") => {
            state["seconds_left"].as_f64().is_some_and(|left| left <= silent_seconds + 1.0)
        }
        Some("waiting") => {
            state["seconds"].as_f64().is_some_and(|seconds| seconds + silent_seconds >= wait as f64)
        }
        _ => false,
    };
    state["connections"] == 0 || is_closed
}

/// Returns the node's text, made safe for a terminal.
fn text(state: &Value) -> String {
    let text = cut(&plain(state["text"].as_str().unwrap_or("nothing")), TEXT_MAX);
    match state["seconds_left"].as_f64() {
        Some(seconds) if seconds >= 1.0 => format!("{text}, {seconds:.0} s"),
        _ => text,
    }
}

/// Prints the progress and the result.
struct Show {
    is_json: bool,
    in_terminal: bool,
    shown: Option<Instant>,
}

impl Show {
    fn new(is_json: bool) -> Self {
        Show { is_json, in_terminal: stderr().is_terminal(), shown: None }
    }

    /// Shows the progress: in a terminal one line that changes. A closed pipe is not an error.
    fn step(&mut self, state: &Value) {
        if self.is_json {
            let _ = writeln!(stdout(), "{state}");
        } else if self.in_terminal {
            let _ = write!(stderr(), "\r\x1b[K{}", text(state));
        } else if self.shown.is_none_or(|shown| shown.elapsed() >= LINE_EVERY) {
            let _ = writeln!(stderr(), "{}", text(state));
            self.shown = Some(Instant::now());
        }
    }

    /// Shows the result.
    fn end(&self, state: &Value) {
        match self.is_json {
            true => drop(writeln!(stdout(), "{state}")),
            false => self.line(&text(state)),
        }
    }

    fn line(&self, line: &str) {
        if self.is_json {
            return;
        }
        if self.in_terminal {
            let _ = write!(stderr(), "\r\x1b[K");
        }
        let _ = writeln!(stdout(), "{line}");
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn times_and_rates_have_units() {
        for (text, want) in [("30", 30), ("30s", 30), ("5m", 300), ("24h", 86_400), ("0s", 0)] {
            assert_eq!(seconds(text), Ok(want));
        }
        for text in ["", "s", "25h", "-1s", "1.5m", "5 m", "99999999999999999999h"] {
            assert!(seconds(text).is_err(), "{text}");
        }
        assert_eq!((per_second("500"), per_second("1/s")), (Ok(500), Ok(1)));
        for text in ["", "0", "/s", "1000001/s", "-5", "5/m"] {
            assert!(per_second(text).is_err(), "{text}");
        }
    }

    /// Runs the command against a node that sends these replies, each on a connection of its own.
    fn outcome(exit: bool, replies: &[&str]) -> (Vec<String>, Result<(), CommandError>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = listener.local_addr().unwrap().to_string();
        let replies: Vec<String> = replies.iter().map(|it| it.to_string()).collect();
        let node = std::thread::spawn(move || {
            let mut requests = Vec::new();
            for reply in replies {
                let mut stream = listener.accept().unwrap().0;
                let mut request = [0; 4096];
                let length = stream.read(&mut request).unwrap();
                let request = String::from_utf8_lossy(&request[..length]).into_owned();
                requests.push(request.split(" HTTP").next().unwrap().to_owned());
                let (status, body) = reply.split_once('|').unwrap();
                // The client must not send the next request on a connection that ends.
                let head = format!(
                    "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                stream.write_all((head + body).as_bytes()).unwrap();
            }
            requests
        });
        let result = run(&Drain { admin, exit, over: 300, wait: 10, ..Drain::default() });
        (node.join().unwrap(), result)
    }

    #[test]
    fn the_command_ends_with_the_drain() {
        let closing = r#"200 OK|{"stage":"closing","connections":5,"text":"so"}"#;
        let drained = r#"200 OK|{"stage":"drained","connections":0,"text":"so"}"#;
        let serving = r#"200 OK|{"stage":"serving","connections":5,"text":"so"}"#;
        let (requests, result) = outcome(false, &[closing, closing, drained]);
        assert_eq!(requests, ["POST /api/drain", "GET /api/drain", "GET /api/drain"]);
        assert!(result.is_ok());
        let (_, result) = outcome(false, &[closing, serving]);
        assert!(result.unwrap_err().text().contains("cancelled"));
        let refused = r#"409 Conflict|{"error":{"code":"drain_under_way","message":"one"}}"#;
        let (_, result) = outcome(false, &[refused]);
        assert_eq!(result.unwrap_err().text(), "drain_under_way: one");
    }

    #[test]
    fn a_process_that_ended_by_the_drain_is_gone_or_replaced() {
        let stats = |epoch: &str| format!(r#"200 OK|{{"epoch":"{epoch}"}}"#);
        let closing =
            r#"200 OK|{"stage":"closing","connections":5,"seconds_left":0.5,"text":"so"}"#;
        let serving = r#"200 OK|{"stage":"serving","connections":5,"text":"so"}"#;
        let (_, result) = outcome(true, &[&stats("a"), closing, closing]);
        assert!(result.is_ok());
        let (_, result) = outcome(true, &[&stats("a"), closing, serving, &stats("b")]);
        assert!(result.is_ok());
        let (_, result) = outcome(true, &[&stats("a"), closing, serving, &stats("a")]);
        assert!(result.is_err());
    }

    #[test]
    fn a_silent_process_has_ended_where_its_drain_can_be_finished() {
        let may = |state: Value, silent| may_have_ended(&state, 10, Duration::from_secs(silent));
        let closing = |left| json!({ "stage": "closing", "connections": 5, "seconds_left": left });
        assert!(may(closing(2.0), 4) && !may(closing(200.0), 4), "it has far more to close");
        assert!(!may(closing(0.0), 1), "it may be slow");
        let waiting = |seconds| json!({ "stage": "waiting", "connections": 1, "seconds": seconds });
        assert!(may(waiting(8.0), 4) && !may(waiting(1.0), 4));
        assert!(may(json!({ "stage": "waiting", "connections": 0, "seconds": 1 }), 4));
    }
}
