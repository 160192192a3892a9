//! The process: its start, configuration, signals and end.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use crate::support::*;
use serde_json::json;

fn throng(args: &[&str], settings: &[(&str, &str)]) -> Output {
    let folder = std::env::temp_dir().join("throng-tests");
    std::fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(args).envs(settings.iter().copied()).current_dir(folder);
    output_within(&mut command)
}

#[test]
fn the_default_file_is_the_effective_configuration() {
    let default = throng(&["config", "--default"], &[]);
    assert!(default.status.success());
    let scratch = Scratch::new("default");
    let file = scratch.write("throng.toml", &String::from_utf8(default.stdout).unwrap());
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
}

#[test]
fn old_names_of_settings_are_read_with_a_warning() {
    let scratch = Scratch::new("old-names");
    let rule = "[[topics]]\npattern = \"chat\"\nclient_events = \"broadcast\"\n";
    let file = scratch.write("throng.toml", &format!("{rule}[offline]\nenabled = true\n"));
    let name = file.to_str().unwrap();
    let old = ("THRONG_OFFLINE_MESSAGES_MAX", "9");
    let output = throng(&["config", "--config", name], &[old]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("offline]") && !text.contains("client_events"), "{text}");
    let warnings = String::from_utf8(output.stderr).unwrap();
    let want = [
        format!("{name}:3: write publish = \"allow\" instead of client_events = \"broadcast\""),
        format!("{name}:4: write [inbox] instead of [offline]"),
        "variable THRONG_OFFLINE_MESSAGES_MAX: write THRONG_INBOX_MESSAGES_MAX in".into(),
    ];
    assert_eq!(warnings.lines().count(), want.len(), "{warnings}");
    for want in &want {
        assert!(warnings.contains(&format!("warning: {want}")), "{want}\nin\n{warnings}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config", name]);
    let log = scratch.path().join("log");
    let server = Server::run_with_log(command, &[old], std::fs::File::create(&log).unwrap().into());
    let logged = || std::fs::read_to_string(&log).unwrap();
    let mut member = server.listen("/sse?topic=chat");
    assert_eq!(server.metric("throng_limit{name=\"inbox.messages_max\"}"), 9.0);
    assert_eq!(
        crate::support::text(server.client, "POST", "/publish?topic=chat", Some(json!("x")), "").0,
        200
    );
    assert_eq!(member.data(), "x");
    server.signal("-HUP");
    server.until("the server has read it again", |_| {
        logged().contains("configuration was read again")
    });
    let text = logged();
    for want in &want {
        assert_eq!(text.matches(want).count(), 2, "{want}\nin\n{text}");
    }
}

#[test]
fn an_invalid_configuration_is_rejected_with_all_its_errors() {
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
fn an_open_port_needs_no_insecure_where_clients_are_known() {
    // Only checks the configuration: no test listens for other machines.
    let check = |settings: &[(&str, &str)]| {
        throng(&["config", "--check", "--listen", "0.0.0.0:8000"], settings)
    };
    let key = ("THRONG_AUTH_HMAC_KEY", "0123456789abcdef0123456789abcdef");
    let url = ("THRONG_WEBHOOK_URL", "http://127.0.0.1:1/");
    for guard in
        [[key, ("THRONG_AUTH_REQUIRED", "true")], [url, ("THRONG_WEBHOOK_CONNECT", "true")]]
    {
        let known = check(&guard);
        assert!(known.status.success(), "{known:?}");
        let unknown = check(&guard[..1]);
        let text = String::from_utf8(unknown.stderr).unwrap();
        assert_eq!(unknown.status.code(), Some(2), "{text}");
        assert!(text.contains("--insecure") && text.contains("auth.required = true"), "{text}");
    }
}

#[test]
fn a_name_is_an_address_to_listen_on() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["serve", "--listen", "localhost:0"]);
    let server = Server::run(command, &[("THRONG_ADMIN_LISTEN", "localhost:0")]);
    assert!(server.client.ip().is_loopback() && server.admin.ip().is_loopback());
    assert_eq!(server.publish("a", json!(1))["members"], 0);
    for (address, want) in [
        (
            ":18000",
            "write 127.0.0.1:18000 to accept connections from this machine only, or 0.0.0.0:18000 \
             from other machines, too",
        ),
        ("localhost", "a port is missing, as in localhost:8000"),
        ("no-such-host.invalid:1", "this name can't be resolved: "),
    ] {
        let output = throng(&["serve", "--listen", address], &[]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        let want = format!("found \"{address}\": {want}");
        assert!(text.starts_with("error: flag --listen: client.listen: expected an address"));
        assert!(text.contains(&want) && text.lines().count() == 1, "{want}\nin\n{text}");
    }
}

#[test]
fn a_port_in_use_is_reported() {
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
fn the_first_signal_starts_the_drain() {
    let mut server = Server::start();
    let mut sse = server.listen("/sse?topic=a");
    let mut stream = server.listen("/stream?topic=a");
    let mut socket = websocket(&server, "topic=a");
    server.publish("a", json!("last"));
    server.signal("-INT");
    assert!(sse.rest().ends_with(": closing, drain\n\n"));
    let text = stream.rest();
    assert!(text.contains("\"reason\":\"drain\"") && text.ends_with("0\r\n\r\n"), "{text}");
    assert_eq!(receive(&mut socket)["data"], "last");
    let frame = loop {
        match socket.read().unwrap() {
            // The server pings all clients every 25 s of its clock, so a new client may get a ping.
            tungstenite::Message::Ping(_) => {}
            tungstenite::Message::Close(Some(frame)) => break frame,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(u16::from(frame.code), 1012);
    drop((sse, stream, socket));
    assert_eq!(wait_within(&mut server.child).code(), Some(0));
}

#[test]
fn a_reload_applies_changes_and_closes_no_connection() {
    let scratch = Scratch::new("reload");
    let (server, log) = serve_logged(&scratch, "");
    let write = |text: &str| std::fs::write(scratch.path().join("throng.toml"), text).unwrap();
    let mut listener = server.listen("/sse?topic=a");
    let many = "/sse?topic=1&topic=2&topic=3";
    drop(server.listen(many));
    write("[limits]\ntopics_per_connection_max = 2\n");
    server.signal("-HUP");
    server.until("the new limit holds", |server| {
        server.metric("throng_limit{name=\"limits.topics_per_connection_max\"}") == 2.0
    });
    assert_eq!(server.get(many).0, 400);
    write("[limits]\ntopics_per_connection_max = no\n");
    server.signal("-HUP");
    until_rejected(&server, &log);
    server.publish("a", json!("still open"));
    assert_eq!(listener.data(), "still open");
    assert_eq!(server.get(many).0, 400);
}

/// Starts a server with this text as its configuration, which a test may change. Returns the server and a reader of
/// its log.
fn serve_logged(scratch: &Scratch, text: &str) -> (Server, impl Fn() -> String + use<>) {
    let file = scratch.write("throng.toml", text);
    let log = scratch.path().join("log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"]);
    let written = std::fs::File::create(&log).unwrap();
    command.arg(file);
    let server = Server::run_with_log(command, &[], written.into());
    (server, move || std::fs::read_to_string(&log).unwrap())
}

/// Waits until the server has read its configuration again, and rejected it.
fn until_rejected(server: &Server, log: &impl Fn() -> String) {
    let says = "the configuration is unchanged";
    server.until("the configuration is rejected", |_| log().contains(says));
}

#[test]
fn a_pipe_as_configuration_does_not_block_the_shutdown() {
    let scratch = Scratch::new("pipe");
    let (mut server, log) = serve_logged(&scratch, "");
    let file = scratch.path().join("throng.toml");
    std::fs::remove_file(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    server.signal("-HUP");
    // A server that opens the pipe would wait for ever, since no process writes to it.
    until_rejected(&server, &log);
    server.publish("a", json!("it serves"));
    server.signal("-TERM");
    assert_eq!(wait_within(&mut server.child).code(), Some(0));
    let output = throng(&["config", "--check", "--config", file.to_str().unwrap()], &[]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("it is a pipe") && text.contains("write the text to a file"), "{text}");
}

#[test]
fn an_endless_file_is_rejected_at_once() {
    for flag in ["--config", "--api-key-file"] {
        for path in ["/dev/zero", "/tmp"] {
            // A server that reads the file after all must not use up the host's memory.
            let bounded = "ulimit -v 4000000; exec \"$0\" \"$@\"";
            let mut command = Command::new("sh");
            command.args(["-c", bounded, env!("CARGO_BIN_EXE_throng"), "serve", flag, path]);
            let output = output_within(&mut command);
            let text = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{text}");
            assert!(text.contains(path) && text.contains("must be a regular file"), "{text}");
        }
    }
    let scratch = Scratch::new("huge");
    let huge = scratch.path().join("throng.toml");
    std::fs::File::create(&huge).unwrap().set_len(1 << 40).unwrap();
    let output = throng(&["config", "--check", "--config", huge.to_str().unwrap()], &[]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("more than 16777216 bytes"), "{text}");
}

#[test]
fn an_exposed_key_file_is_rejected_with_the_remedy() {
    let scratch = Scratch::new("open-key");
    let file = scratch.path().join("key");
    write_secret(&file, "a-key-of-sixteen-chars\n");
    let path = file.to_str().unwrap();
    let mode = |mode| {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        throng(&["config", "--check", "--api-key-file", path], &[])
    };
    for good in [0o600, 0o400, 0o440, 0o640] {
        assert!(mode(good).status.success(), "{good:o}");
    }
    let output = mode(0o644);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("flag --api-key-file: admin.api_key_file:"), "{text}");
    assert!(text.contains(&format!("chmod 600 {path}")) && !text.contains("sixteen"), "{text}");
    // The server accepts an exposed configuration with a key, but prints a warning.
    let key = "[admin]\napi_key = \"a-key-of-sixteen-chars\"\n";
    let config = scratch.write("throng.toml", key);
    std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o644)).unwrap();
    let listen = ["--listen", "127.0.0.1:0", "--admin", "192.0.2.1:1"];
    let args = [&["serve", "--config", config.to_str().unwrap()], &listen[..]].concat();
    let output = throng(&args, &[]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("admin.api_key: ") && text.contains("chmod 600"), "{text}");
    let fix = Command::new("sh").args(["-c", &format!("chmod 600 {path}")]).status();
    assert!(fix.unwrap().success());
    assert!(throng(&["config", "--check", "--api-key-file", path], &[]).status.success());
}

#[test]
fn an_invalid_log_level_is_rejected_and_changes_nothing() {
    for level in ["loud", "shard=loud", "info,loud"] {
        for output in [
            throng(&["config", "--check", "--log", level], &[]),
            throng(&["config", "--check"], &[("THRONG_LOG_LEVEL", level)]),
        ] {
            let text = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{level}: {text}");
            assert!(text.contains("error, warn, info, debug, trace"), "{text}");
        }
    }
    let scratch = Scratch::new("loud");
    let (server, log) = serve_logged(&scratch, "[log]\nlevel = \"info\"\n");
    let write = |text: &str| std::fs::write(scratch.path().join("throng.toml"), text).unwrap();
    // A reload with an invalid level changes no other setting either.
    write("[log]\nlevel = \"loud\"\n[limits]\noutbox_messages_max = 9\n");
    server.signal("-HUP");
    until_rejected(&server, &log);
    let limit = "throng_limit{name=\"limits.outbox_messages_max\"}";
    assert_eq!(server.metric(limit), 256.0);
    write("[log]\nlevel = \"warn\"\n[limits]\noutbox_messages_max = 9\n");
    server.signal("-HUP");
    server.until("the good one holds", |server| server.metric(limit) == 9.0);
}
