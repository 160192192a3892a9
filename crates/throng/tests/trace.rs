//! `throng trace` against a server: its output and its errors.

use std::process::{Child, Command, Stdio};

use crate::mqtt::client::{Connect, V5, filter, number};
use crate::support::*;
use protocol::mqtt::id;
use protocol::mqtt::write::ConfirmType;
use serde_json::{Value, json};

const KEY: &str = "a-key-of-some-length";

fn command_of(server: &Server, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["trace", &format!("http://{}", server.admin)]).args(arguments);
    command.env_remove("THRONG_ADMIN_API_KEY");
    command
}

/// A running trace, which ends with the test.
struct Trace {
    child: Child,
    lines: Lines,
}

impl Trace {
    fn start(server: &Server, arguments: &[&str]) -> Trace {
        let mut command = command_of(server, arguments);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = Lines::of(child.stdout.take().unwrap());
        Trace { child, lines }
    }

    /// Returns the next line without its time, with single spaces.
    fn next(&mut self) -> String {
        let line = self.lines.next().expect("a line");
        let (time, rest) = line.split_once("  ").expect("a time");
        assert!(time.len() == 12 && time.as_bytes()[8] == b'.', "{line}");
        rest.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Compares the next line, without the connection's id and a message's id and age. Returns the connection's id.
    #[track_caller]
    fn expect(&mut self, want: &str) -> String {
        let line = self.next();
        let (connection, rest) = line.split_once(' ').expect("a connection");
        let words = rest.split(' ').filter(|word| !word.contains(':') || word.ends_with(':'));
        let shown = words.collect::<Vec<_>>().join(" ");
        let shown = match shown.split_once(" B, ") {
            Some((before, after)) => {
                let after = after.split_once("old").expect("an age").1;
                format!("{before} B{after}")
            }
            None => shown,
        };
        assert_eq!(shown, want, "{line}");
        connection.to_owned()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_user_is_followed_over_all_connections() {
    let server = Server::with(&["--shards", "2"], &[]);
    let _bob = server.listen("/sse?user=bob&topic=news");
    let first = server.listen("/sse?user=alice&topic=news");
    server.until_members("news", 2);
    let mut trace = Trace::start(&server, &["--user", "alice"]);
    assert_eq!(trace.next(), "- trace alice: 1 connection open now");
    let line = trace.next();
    assert!(line.contains(" open sse, users alice, 1 topic, open for "), "{line}");
    let first_id = line.split(' ').next().unwrap().to_owned();
    server.publish("news", json!("hello"));
    assert_eq!(trace.expect("delivered news 5 B"), first_id);
    let mut socket = websocket(&server, "user=alice");
    let line = trace.next();
    assert!(line.contains(" connected ws, users alice, 0 topics, open for "), "{line}");
    let second_id = line.split(' ').next().unwrap().to_owned();
    assert_ne!(second_id, first_id);
    command(&mut socket, json!({"type": "subscribe", "id": 1, "topic": "room"}));
    assert_eq!(trace.expect("subscribed room"), second_id);
    command(&mut socket, json!({"type": "login", "id": 2, "user": "carol"}));
    assert_eq!(trace.expect("login carol"), second_id);
    command(&mut socket, json!({"type": "unsubscribe", "id": 3, "topic": "room"}));
    trace.expect("unsubscribed room");
    // Lines about other clients do not show: the next line is about alice's next event.
    server.publish("room", json!("x"));
    server.post("/api/send", json!({"user": "bob", "data": "x"}));
    server.post("/api/disconnect", json!({"connection": second_id}));
    let line = trace.next();
    assert!(line.starts_with(&format!("{second_id} disconnected application, after ")), "{line}");
    // The client has unread data, so the kernel may report a reset.
    drop(first);
    let line = trace.next();
    let rest = line.strip_prefix(&format!("{first_id} disconnected ")).unwrap_or_default();
    assert!(rest.starts_with("client, after ") || rest.starts_with("lost, after "), "{line}");
    // When the reader ends, so does the trace: the shards stop reporting, and another trace has room.
    drop(trace);
    for _ in 0..20 {
        let mut trace = Trace::start(&server, &["--user", "alice"]);
        let line = trace.lines.next();
        assert!(line.is_some_and(|line| line.contains("0 connections open now")));
    }
}

#[test]
fn a_connection_is_followed_until_it_ends() {
    let server = Server::with(&["--shards", "2"], &[]);
    let mut socket = websocket(&server, "topic=news&tag=red");
    server.until_members("news", 1);
    let members = server.api("GET", "/api/topics/news/members", None).1;
    let id = members["connections"][0]["id"].as_str().unwrap().to_owned();
    let mut trace = Trace::start(&server, &["--connection", &id, "--json"]);
    let mut next = || serde_json::from_str::<Value>(&trace.lines.next().unwrap()).unwrap();
    assert_eq!(next()["connections"], 1);
    let open = next();
    assert_eq!((&open["event"], &open["connection"]), (&json!("open"), &json!(id)));
    assert_eq!((&open["transport"], &open["users"]), (&json!("ws"), &json!([])));
    let tagged = |tag: &str| {
        let body = json!({"topic": "news", "data": {"a": 1}, "tags": [tag]});
        server.post("/api/publish", body)["id"].clone()
    };
    let blue = tagged("blue");
    let line = next();
    assert_eq!((&line["event"], &line["why"]), (&json!("not_delivered"), &json!("tags")));
    assert_eq!((&line["id"], &line["bytes"]), (&blue, &json!(7)));
    let red = tagged("red");
    let line = next();
    assert_eq!((&line["event"], &line["id"]), (&json!("delivered"), &red));
    assert_eq!((&line["topic"], &line["name"]), (&json!("news"), &json!("message")));
    assert!(line["age_ms"].as_f64().is_some_and(|age_ms| age_ms >= 0.0), "{line}");
    assert_eq!(receive(&mut socket)["id"], red);
    drop(socket);
    let line = next();
    assert_eq!(line["event"], "disconnected", "{line}");
    assert_eq!(wait_within(&mut trace.child).code(), Some(0));
}

#[test]
fn an_mqtt_client_is_followed() {
    let server = Server::with(&["--shards", "1", "--mqtt", "127.0.0.1:0"], &[]);
    let mut trace = Trace::start(&server, &["--user", "al"]);
    assert_eq!(trace.next(), "- trace al: 0 connections open now");
    // The client's receive maximum is one message, and it accepts no large packets.
    let mut client = Connect::new(V5, "phone")
        .user("al")
        .with(number(id::RECEIVE_MAXIMUM, 1))
        .with(number(id::MAXIMUM_PACKET_SIZE, 200))
        .open(server.client);
    let line = trace.next();
    assert!(line.contains(" connected mqtt, users al, 0 topics, open for "), "{line}");
    client.subscribe(&[filter("sensors/+", 1)]);
    let connection = trace.expect("subscribed sensors/+");
    let mqtt = |topic: &str, data: Value| {
        server.post("/api/publish", json!({"topic": topic, "data": data, "mqtt": {"qos": 1}}));
    };
    mqtt("sensors/1", json!("on"));
    assert_eq!(trace.expect("delivered sensors/1 2 B"), connection);
    mqtt("sensors/2", json!("off"));
    trace.expect("not_delivered sensors/2 3 B: queued");
    let first = client.unconfirmed();
    assert_eq!(first.topic, "sensors/1");
    client.confirm(ConfirmType::Puback, first.id);
    trace.expect("delivered sensors/2 3 B");
    assert_eq!(client.message().topic, "sensors/2");
    mqtt("sensors/3", json!("x".repeat(300)));
    trace.expect("not_delivered sensors/3 300 B: too_large");
    client.publish("elsewhere", "hello", 1);
    assert_eq!(trace.expect("publish elsewhere, 5 B"), connection);
    assert_eq!(client.unsubscribe(&["sensors/+"]), [0]);
    trace.expect("unsubscribed sensors/+");
    client.disconnect();
    let line = trace.next();
    assert!(line.starts_with(&format!("{connection} disconnected client, after ")), "{line}");
}

#[test]
fn a_slow_client_is_seen_to_be_slow() {
    let server = Server::with(&["--shards", "1"], &[]);
    let slow = server.listen("/sse?user=alice&topic=big");
    server.until_members("big", 1);
    let mut trace = Trace::start(&server, &["--user", "alice", "--json"]);
    assert!(trace.lines.next().is_some_and(|line| line.contains("\"trace\"")));
    let data = json!("x".repeat(60_000));
    server.until("the client is closed", |server| {
        server.publish("big", data.clone());
        server.metric("throng_slow_consumers_closed_total") > 0.0
    });
    let lines = std::iter::from_fn(|| trace.lines.next());
    let lines = lines.map(|line| serde_json::from_str::<Value>(&line).unwrap());
    let mut seen = Vec::new();
    for line in lines {
        let event = line["event"].as_str().unwrap().to_owned();
        if event == "blocked" {
            assert!(line["outbox_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{line}");
        }
        let is_last = event == "disconnected";
        if is_last {
            assert_eq!(line["reason"], "slow_consumer");
        }
        seen.push(event);
        if is_last {
            break;
        }
    }
    assert!(seen.contains(&"blocked".to_owned()), "{seen:?}");
    drop(slow);
}

#[test]
fn what_can_not_be_followed_is_an_error_that_says_why() {
    let server = Server::with(&[], &[("THRONG_ADMIN_API_KEY", KEY)]);
    let run = |mut command: Command| {
        let output = output_within(&mut command);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let with_key = |arguments: &[&str]| {
        let mut command = command_of(&server, arguments);
        command.env("THRONG_ADMIN_API_KEY", KEY);
        run(command)
    };
    let (code, out, error) = run(command_of(&server, &["--user", "alice"]));
    assert_eq!((code, out.as_str()), (1, ""), "{error}");
    assert!(error.contains("requires an API key"), "{error}");
    let (code, out, error) = with_key(&["--connection", "00000001-0-1-1"]);
    assert_eq!((code, out.as_str()), (1, ""), "{error}");
    assert!(error.starts_with("error: no_connection: "), "{error}");
    let (code, _, error) = with_key(&["--connection", "x"]);
    assert!(code == 1 && error.starts_with("error: bad_connection: "), "{code} {error}");
    for arguments in [&[][..], &["--user", "a", "--connection", "00000001-0-1-1"]] {
        assert_eq!(with_key(arguments).0, 2, "{arguments:?}");
    }
}

#[test]
fn a_trace_ends_when_the_server_does() {
    let mut server = Server::start();
    let mut trace = Trace::start(&server, &["--user", "alice"]);
    trace.next();
    let pid = server.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(trace.lines.next().is_none());
    assert_eq!(wait_within(&mut trace.child).code(), Some(1));
    assert!(wait_within(&mut server.child).success());
}
