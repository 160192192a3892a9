//! `throng drain`.

use std::process::{Command, Output, Stdio};

use super::{is_ready, state};
use crate::support::*;

fn command(server: &Server, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["drain", "--admin", &server.admin.to_string()]).args(flags);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(server: &Server, flags: &[&str]) -> Output {
    output_within(&mut command(server, flags))
}

#[test]
fn the_command_ends_when_none_is_left_and_the_server_at_once_with_exit() {
    let mut server = Server::with(&["--shards", "2"], &[("THRONG_TIMEOUTS_DRAIN_SECONDS", "3600")]);
    let clients: Vec<Stream> = (0..20).map(|_| server.listen("/sse?topic=a")).collect();
    let output = run(&server, &["--over", "1s", "--wait", "0s"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, "the node is drained: it closed 20 connections\n");
    assert_eq!(state(&server)["connections"], 0);
    for mut client in clients {
        assert!(client.rest().ends_with(": closing, use_another_server\n\n"));
    }
    // The node drains already.
    let output = run(&server, &["--over", "1s"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("drain_under_way"), "{text}");
    server.signal("-TERM");
    assert_eq!(wait_within(&mut server.child).code(), Some(0));
}

#[test]
fn with_exit_the_server_ends_with_the_last_connection() {
    let mut server = Server::start();
    let mut client = server.listen("/sse?topic=a");
    let output = run(&server, &["--rate", "100/s", "--wait", "0s", "--exit"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(wait_within(&mut server.child).code(), Some(0));
    assert!(client.rest().ends_with(": closing, use_another_server\n\n"));
}

#[test]
fn a_cancelled_drain_ends_the_command_that_waits_for_it() {
    let server = Server::start();
    let mut client = server.listen("/sse?topic=a");
    let waits = command(&server, &["--over", "1h", "--wait", "1h", "--json"]).spawn().unwrap();
    server.until("it drains", |server| state(server)["stage"] == "waiting");
    let output = run(&server, &["--cancel"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, "the node serves: no drain is under way\n");
    let output = printed_within(waits);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("was cancelled"), "{error}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let first: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!((&first["stage"], &first["connections"]), (&"waiting".into(), &1.into()));
    assert!(is_ready(&server));
    server.publish("a", serde_json::json!("on"));
    assert_eq!(client.data(), "on");
}
