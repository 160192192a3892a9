//! The process: its start, its configuration, its signals, its end.

mod support;

use std::process::{Command, Output};
use std::time::Instant;

use serde_json::json;
use support::*;

fn throng(args: &[&str], settings: &[(&str, &str)]) -> Output {
    let folder = std::env::temp_dir().join("throng-tests");
    std::fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(args).envs(settings.iter().copied()).current_dir(folder);
    command.output().unwrap()
}

#[test]
fn the_default_file_is_the_effective_configuration() {
    let default = throng(&["config", "--default"], &[]);
    assert!(default.status.success());
    let file = std::env::temp_dir().join(format!("throng-default-{}.toml", std::process::id()));
    std::fs::write(&file, &default.stdout).unwrap();
    let checked = throng(&["config", "--check", "--config", file.to_str().unwrap()], &[]);
    assert_eq!(String::from_utf8(checked.stdout).unwrap(), "ok\n");
    let shown = throng(&["config", "--max-connections", "7"], &[("THRONG_LOG_LEVEL", "debug")]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.lines().any(|line| line.starts_with("connections_max = 7 ")
            && line.ends_with("# flag --max-connections")),
        "{shown}"
    );
    assert!(
        shown.lines().any(|line| line.starts_with("level = \"debug\"")
            && line.ends_with("# variable THRONG_LOG_LEVEL")),
        "{shown}"
    );
    let _ = std::fs::remove_file(file);
}

#[test]
fn a_bad_configuration_is_refused_whole_with_the_way_out() {
    let output = throng(
        &["serve", "--listen", "0.0.0.0:0"],
        &[("THRONG_LIMITS_CONNECTION_MAX", "1"), ("THRONG_ADMIN_API_KEY", "short")],
    );
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    for want in [
        "error: flag --listen: client.listen:",
        "--insecure",
        "did you mean THRONG_LIMITS_CONNECTIONS_MAX?",
        "at least 16 characters",
    ] {
        assert!(text.contains(want), "{want} in\n{text}");
    }
    assert!(!text.contains("\"short\""), "{text}");
}

#[test]
fn a_port_in_use_is_said_plainly() {
    let server = Server::start();
    for (flag, address) in [("--listen", server.client), ("--admin", server.admin)] {
        let other = if flag == "--listen" { "--admin" } else { "--listen" };
        let output = throng(&["serve", flag, &address.to_string(), other, "127.0.0.1:0"], &[]);
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(
            text.contains(&format!("can't listen on {address}")) && text.contains(flag),
            "{text}"
        );
    }
}

#[test]
fn it_drains_at_the_first_signal() {
    let mut server = Server::start();
    let mut sse = server.listen("/sse?topic=a");
    let mut stream = server.listen("/stream?topic=a");
    let mut socket = websocket(&server, "topic=a");
    server.publish("a", json!("last"));
    let begun = Instant::now();
    server.signal("-INT");
    assert!(sse.rest().ends_with(": closing, drain\n\n"));
    let text = stream.rest();
    assert!(text.contains("\"reason\":\"drain\"") && text.ends_with("0\r\n\r\n"), "{text}");
    assert_eq!(receive(&mut socket)["data"], "last");
    let closed = socket.read().unwrap();
    let tungstenite::Message::Close(Some(frame)) = closed else { panic!("{closed:?}") };
    assert_eq!(u16::from(frame.code), 1012);
    drop((sse, stream, socket));
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    assert!(begun.elapsed() < PATIENCE);
}

#[test]
fn a_reload_takes_what_can_change_and_keeps_everyone() {
    let file = std::env::temp_dir().join(format!("throng-reload-{}.toml", std::process::id()));
    std::fs::write(&file, "").unwrap();
    let server = Server::with(&["--config", file.to_str().unwrap()], &[]);
    let mut held = server.listen("/sse?topic=a");
    let many = "/sse?topic=1&topic=2&topic=3";
    drop(server.listen(many));
    std::fs::write(&file, "[limits]\ntopics_per_connection_max = 2\n").unwrap();
    server.signal("-HUP");
    server.until("the new limit holds", |server| {
        server.metric("throng_limit{name=\"limits.topics_per_connection_max\"}") == 2.0
    });
    assert_eq!(server.get(many).0, 400);
    std::fs::write(&file, "[limits]\ntopics_per_connection_max = no\n").unwrap();
    server.signal("-HUP");
    server.publish("a", json!("kept"));
    assert_eq!(held.data(), "kept");
    assert_eq!(server.get(many).0, 400);
    let _ = std::fs::remove_file(file);
}
