//! `throng trace`: follows one user, or one connection, in the terminal.

use std::fmt::Write as _;
use std::io::{Write, stdout};
use std::ops::ControlFlow;
use std::time::Duration;

use admin::text::{grouped, plain};
use admin::{Admin, encoded, refusal};
use clap::Args;
use serde_json::Value;

use crate::error::CommandError;

/// The `User-Agent` of the request.
const AGENT: &str = "throng-trace";

/// The longest silence of the node: it sends an empty line every 5 seconds.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// The columns of a connection's name and of an event.
const CONNECTION: usize = 22;
const EVENT: usize = 13;

#[derive(Args)]
pub struct Trace {
    /// The node's admin port: a URL, or a host and port.
    #[arg(default_value = "http://127.0.0.1:8001", value_name = "URL")]
    url: String,
    /// The key needs the scope read.
    #[command(flatten)]
    access: crate::node::Access,
    /// Follow all connections of this user, including those that open later.
    #[arg(long, value_name = "USER", required_unless_present = "connection")]
    user: Option<String>,
    /// Follow the connection with this id, which /api/users and this command show, until it ends.
    #[arg(long, value_name = "ID", conflicts_with = "user")]
    connection: Option<String>,
    /// Print each event as a JSON object on a line of its own.
    #[arg(long)]
    json: bool,
}

/// Prints what happens until the connection ends, the output is closed, or the node ends the trace.
pub fn run(args: &Trace) -> Result<(), CommandError> {
    let target = args.access.target(&args.url)?;
    let mut admin = Admin::new(&target, AGENT);
    let (query, whom) = match (&args.user, &args.connection) {
        (_, Some(id)) => (format!("connection={}", encoded(id)), id),
        (user, None) => {
            let user = user.as_ref().ok_or_else(|| usage("--user or --connection is missing"))?;
            (format!("user={}", encoded(user)), user)
        }
    };
    let path = format!("/api/trace?{query}");
    let mut has_ended = false;
    let mut each = |line: &[u8]| {
        // A line that is not an event shows that the trace continues.
        let Ok(event) = serde_json::from_slice::<Value>(line) else {
            return ControlFlow::Continue(());
        };
        let text = match args.json {
            true => event.to_string(),
            false => text(&event, whom),
        };
        let is_written = writeln!(stdout(), "{text}").and_then(|()| stdout().flush()).is_ok();
        let is_last = args.connection.is_some() && event["event"] == "disconnected";
        has_ended = is_last || !is_written;
        if has_ended { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let reply = admin.lines(("GET", &path), "", SILENCE_MAX, &mut each);
    match reply {
        Ok((200, _)) if has_ended => Ok(()),
        Ok((200, _)) => Err(CommandError::Runtime(format!(
            "{} has ended the trace: it is shutting down, another process has taken over from it, \
             or the key is no longer valid",
            target.name()
        ))),
        Ok((status @ (400 | 404), body)) if body.starts_with(b"{\"error\"") => {
            Err(CommandError::Runtime(refusal(status, &body)))
        }
        Ok((status, body)) => {
            Err(CommandError::Runtime(admin.error_of("/api/trace", status, &body).to_string()))
        }
        Err(error) => Err(CommandError::Runtime(error.to_string())),
    }
}

fn usage(text: &str) -> CommandError {
    CommandError::Usage(text.into())
}

/// Formats an event as a line for people: time, connection, event, and the rest in words.
fn text(event: &Value, whom: &str) -> String {
    let name = event["event"].as_str().unwrap_or_default();
    let connection = event["connection"].as_str().unwrap_or("-");
    let time = clock_utc(event["at"].as_u64().unwrap_or_default());
    let (connection, shown) = (plain(connection), plain(name));
    let details = plain(&details(event, name, whom));
    format!("{time}  {connection:<CONNECTION$}  {shown:<EVENT$}  {details}").trim_end().to_owned()
}

fn details(event: &Value, name: &str, whom: &str) -> String {
    let word = |key: &str| event[key].as_str().unwrap_or_default();
    let number = |key: &str| grouped(event[key].as_u64().unwrap_or_default());
    let mut text = match name {
        "trace" => format!("{whom}: {} open now", count(event, "connections", "connection")),
        "open" | "connected" => {
            let users: Vec<_> = event["users"].as_array().into_iter().flatten().collect();
            let users: Vec<_> = users.iter().filter_map(|user| user.as_str()).collect();
            let topics = count(event, "topics", "topic");
            let open = format!("open for {} s", number("age_seconds"));
            format!("{}, users {}, {topics}, {open}", word("transport"), users.join(", "))
        }
        "disconnected" => format!("{}, after {} s", word("reason"), number("age_seconds")),
        "login" | "logout" => word("user").to_owned(),
        "subscribed" | "unsubscribed" => word("topic").to_owned(),
        "publish" => format!("{}, {} B", word("topic"), number("bytes")),
        "delivered" | "not_delivered" => message(event),
        "acknowledged" => format!("{} up to {}", word("topic"), word("id")),
        "blocked" => "the client reads more slowly than messages arrive".to_owned(),
        "drained" => "all pending messages are sent".to_owned(),
        "left_out" => format!("{}: there were too many", count(event, "events", "event")),
        // A newer server sent this event.
        _ => return event.to_string(),
    };
    if event["outbox_bytes"].as_u64().is_some_and(|bytes| bytes > 0) {
        // Writing to a String can't fail.
        let _ = write!(text, ", {} B pending", number("outbox_bytes"));
    }
    text
}

/// Formats a message: its topic and id, its event unless that is the default, its size, its age, and why it is not
/// delivered.
fn message(event: &Value) -> String {
    let word = |key: &str| event[key].as_str().unwrap_or_default();
    let name = match word("name") {
        "message" => String::new(),
        name => format!(" {name}"),
    };
    let bytes = grouped(event["bytes"].as_u64().unwrap_or_default());
    let age_ms = event["age_ms"].as_f64().unwrap_or_default();
    let age = match age_ms {
        age_ms if age_ms < 10_000.0 => format!("{age_ms} ms"),
        age_ms => format!("{:.0} s", age_ms / 1e3),
    };
    let why = event["why"].as_str().map_or(String::new(), |why| format!(": {why}"));
    format!("{} {}{name}, {bytes} B, {age} old{why}", word("topic"), word("id"))
}

/// Formats a number of things: `1 topic`, `2 topics`.
fn count(event: &Value, key: &str, thing: &str) -> String {
    let number = event[key].as_u64().unwrap_or_default();
    format!("{} {thing}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// Formats the time of day in UTC, from milliseconds since 1970.
fn clock_utc(unix_ms: u64) -> String {
    let (seconds, ms) = (unix_ms / 1_000 % 86_400, unix_ms % 1_000);
    format!("{:02}:{:02}:{:02}.{ms:03}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_are_lines_in_words() {
        let id = "5f3a91c2-0-12-345";
        for (event, want) in [
            (
                json!({"event": "trace", "connections": 1}),
                "-                       trace          alice: 1 connection open now",
            ),
            (
                json!({"event": "connected", "connection": id, "transport": "ws", "users": ["alice", "b"],
                    "topics": 0, "age_seconds": 0, "outbox_bytes": 0}),
                "5f3a91c2-0-12-345       connected      ws, users alice, b, 0 topics, open for 0 s",
            ),
            (
                json!({"event": "delivered", "connection": id, "topic": "news", "id": "7be0c415:4",
                    "name": "message", "bytes": 1204, "age_ms": 0.25, "outbox_bytes": 70_000}),
                "5f3a91c2-0-12-345       delivered      news 7be0c415:4, 1,204 B, 0.25 ms old, 70,000 B pending",
            ),
            (
                json!({"event": "not_delivered", "connection": id, "topic": "news", "id": "7be0c415:4",
                    "name": "chat", "bytes": 1, "age_ms": 61_000, "why": "tags"}),
                "5f3a91c2-0-12-345       not_delivered  news 7be0c415:4 chat, 1 B, 61 s old: tags",
            ),
            (
                json!({"event": "disconnected", "connection": id, "reason": "slow_consumer", "age_seconds": 1234}),
                "5f3a91c2-0-12-345       disconnected   slow_consumer, after 1,234 s",
            ),
            (
                json!({"event": "left_out", "events": 31}),
                "-                       left_out       31 events: there were too many",
            ),
            (
                json!({"event": "new", "x": 1}),
                "-                       new            {\"event\":\"new\",\"x\":1}",
            ),
        ] {
            assert_eq!(text(&event, "alice"), format!("00:00:00.000  {want}"));
        }
    }

    #[test]
    fn what_controls_a_terminal_is_not_shown() {
        let event = json!({"at": 86_399_999, "event": "subscribed", "topic": "a\u{1b}[2J"});
        assert_eq!(
            text(&event, "x"),
            "23:59:59.999  -                       subscribed     a\u{fffd}[2J"
        );
    }
}
