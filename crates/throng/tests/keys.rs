//! Keys of the API with a real server: `throng key` makes them, a reload changes them, and the log names them.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use crate::support::*;
use serde_json::{Value, json};

fn throng(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    output_within(command.current_dir(folder).args(args))
}

/// Makes a key, adds its table to the configuration, and returns the key.
fn make(folder: &Path, name: &str, args: &[&str]) -> String {
    let file = format!("{name}.key");
    let made = throng(folder, &[&["key", "new", "--name", name, "--output", &file], args].concat());
    assert!(made.status.success(), "{made:?}");
    let table = String::from_utf8(made.stdout).unwrap();
    let key = std::fs::read_to_string(folder.join(&file)).unwrap().trim().to_owned();
    assert!(table.starts_with("[[keys]]\n") && !table.contains(&key), "{table}");
    let config = folder.join("throng.toml");
    let before = std::fs::read_to_string(&config).unwrap_or_default();
    std::fs::write(config, before + &table).unwrap();
    key
}

fn serve(folder: &Path, log: Stdio) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--shards", "1"]);
    Server::run_in(folder, command, &[("THRONG_LOG_LEVEL", "debug")], log)
}

fn call(
    server: &Server,
    method: &str,
    target: &str,
    key: &str,
    body: Option<Value>,
) -> (u16, Value) {
    json(server.admin, method, target, body, &format!("Authorization: Bearer {key}\r\n"))
}

#[test]
fn keys_are_made_used_and_taken_away() {
    let scratch = Scratch::new("keys-life");
    let folder = scratch.path();
    let chat_key = make(folder, "rooms", &["--scope", "publish:room:*", "--scope", "publish:@*"]);
    let ops = make(folder, "ops", &["--scope", "read", "--expires", "2090-01-01"]);
    let log = std::fs::File::create(folder.join("log")).unwrap();
    let server = serve(folder, log.into());
    assert_eq!(server.api("GET", "/api/stats", None).0, 401);
    assert_eq!(call(&server, "GET", "/api/stats", &ops, None).0, 200);
    let mut stream = server.listen("/stream?topic=room:1&user=al");
    let to = |topic: &str| Some(json!({"topic": topic, "data": format!("to {topic}")}));
    assert_eq!(call(&server, "POST", "/api/publish", &chat_key, to("room:1")).0, 200);
    let (status, error) = call(&server, "POST", "/api/publish", &chat_key, to("news"));
    assert_eq!((status, &error["error"]["code"]), (403, &json!("insufficient_scope")));
    assert_eq!(call(&server, "POST", "/api/publish", &ops, to("room:1")).0, 403);
    let all = Some(json!({"data": "no"}));
    assert_eq!(call(&server, "POST", "/api/broadcast", &chat_key, all).0, 403);
    let al = Some(json!({"user": "al", "data": "to al"}));
    assert_eq!(call(&server, "POST", "/api/send", &chat_key, al).0, 200);
    for want in ["to room:1", "to al"] {
        while stream.next_object()["data"] != want {}
    }
    // Messages that a key may not publish have reached no client. The configuration of the API shows no hash.
    let (_, config) = call(&server, "GET", "/api/config", &ops, None);
    let config = config["toml"].as_str().unwrap();
    assert!(config.contains("name = \"rooms\"") && !config.contains("sha256:"), "{config}");

    // Removes the first key from the file.
    let text = std::fs::read_to_string(folder.join("throng.toml")).unwrap();
    let (_, second) = text.rsplit_once("[[keys]]").unwrap();
    std::fs::write(folder.join("throng.toml"), format!("[[keys]]{second}")).unwrap();
    server.signal("-HUP");
    server.until("the key is gone", |server| {
        call(server, "POST", "/api/publish", &chat_key, to("room:1")).0 == 401
    });
    assert_eq!(call(&server, "GET", "/api/stats", &ops, None).0, 200);
    let read_log = || std::fs::read_to_string(folder.join("log")).unwrap();
    server.until("the log names both", |_| {
        let log = read_log();
        log.contains("key=\"rooms\"") && log.contains("key=\"ops\"")
    });
    drop(server);
    let log = read_log();
    assert!(!log.contains(&chat_key) && !log.contains(&ops), "{log}");
}

#[test]
fn a_key_is_checked_against_the_configuration() {
    let scratch = Scratch::new("keys-check");
    let folder = scratch.path();
    make(folder, "old", &["--scope", "admin", "--expires", "2001-01-01"]);
    make(folder, "ops", &["--scope", "read", "--scope", "publish:*"]);
    let check = |file: &str| {
        let output = throng(folder, &["key", "check", file]);
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), text + &String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(check("ops.key"), (Some(0), "ops: read, publish:*; it does not expire\n".into()));
    let (code, text) = check("old.key");
    assert!(code == Some(3) && text.starts_with("old: admin; it expired "), "{text}");
    std::fs::rename(folder.join("throng.toml"), folder.join("other.toml")).unwrap();
    assert_eq!(check("ops.key"), (Some(3), "the configuration does not have this key\n".into()));
}

#[test]
fn mistakes_are_found_before_a_key_is_made() {
    let scratch = Scratch::new("keys-mistakes");
    let folder = scratch.path();
    let error = |args: &[&str]| {
        let output = throng(folder, &[&["key", "new"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(error(&["--name", "a"]).contains("--scope"));
    assert!(error(&["--name", "a", "--scope", "write"]).contains("a scope is \"admin\""));
    let name = error(&["--name", "a b", "--scope", "read"]);
    assert!(name.starts_with("error: --name: a name may have only letters, digits"), "{name}");
    let time = error(&["--name", "a", "--scope", "read", "--expires", "soon", "--output", "k"]);
    assert!(time.starts_with("error: --expires: expected a date or a time"), "{time}");
    assert!(!folder.join("k").exists());
    // `throng key` does not overwrite a file, since it may hold a key.
    make(folder, "k", &["--scope", "read"]);
    let again =
        throng(folder, &["key", "new", "--name", "b", "--scope", "read", "--output", "k.key"]);
    assert_eq!(again.status.code(), Some(1));
    let mode = std::fs::metadata(folder.join("k.key")).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777, 0o600);
}

#[test]
fn a_key_has_rates_of_its_own_or_those_of_all() {
    let scratch = Scratch::new("keys-rates");
    let folder = scratch.path();
    let config = folder.join("throng.toml");
    std::fs::write(&config, "[limits]\ncommands_per_second_per_key_max = 1\n").unwrap();
    let make = |name: &str, more: &str| {
        let key = make(folder, name, &["--scope", "admin"]);
        let before = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, format!("{before}\n{more}\n")).unwrap();
        key
    };
    let usual = make("usual", "");
    let busy = make("busy", "commands_per_second_max = 0\npublishes_per_second_max = 20");
    let large = make("large", "commands_per_second_max = 0\nbytes_per_second_max = \"4KiB\"");
    let ops = make("ops", "commands_per_second_max = 0");
    let server = serve(folder, Stdio::null());

    // Even on a slow machine 60 calls take less than 50 seconds.
    let begun = Instant::now();
    let replies: Vec<_> =
        (0..60).map(|_| call(&server, "GET", "/api/stats", &usual, None)).collect();
    let done = replies.iter().filter(|(status, _)| *status == 200).count();
    assert_eq!(done + replies.iter().filter(|(status, _)| *status == 429).count(), 60);
    // One second's budget, two seconds of credit, and the budget of the time that has passed.
    let most = 1 + 2 + begun.elapsed().as_secs() as usize + 1;
    assert!((1..=most).contains(&done), "{done} of {most}");
    let (_, rejected) = replies.iter().find(|(status, _)| *status == 429).unwrap();
    assert_eq!(rejected["error"]["code"], "rate_limited");
    let text = rejected.to_string();
    assert!(text.contains("usual") && text.contains("commands_per_second_per_key_max"), "{text}");
    let head = format!(
        "GET /api/stats HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {usual}\r\n\r\n"
    );
    server.until("it is told how long to wait", |server| {
        let mut stream = Stream::new(connect(server.admin));
        stream.send(&head);
        let head = stream.head();
        head.starts_with("HTTP/1.1 429") && header(&head, "retry-after") == Some("1")
    });

    // Each command of a batch has its own result.
    let publish = json!({"publish": {"topic": "a", "data": 1}});
    let batch = json!({"commands": vec![publish; 100]});
    let begun = Instant::now();
    let (status, reply) = call(&server, "POST", "/api/batch", &busy, Some(batch));
    let seconds = begun.elapsed().as_secs_f64();
    assert_eq!(status, 200, "{reply}");
    let done =
        reply["results"].as_array().unwrap().iter().filter(|it| it["ok"].is_object()).count();
    // One second's budget, one command more, the credit, and the budget of the time that has passed.
    assert!((20..=23 + (20.0 * seconds) as usize).contains(&done), "{done} in {seconds} s");
    assert_eq!(reply.to_string().matches("rate_limited").count(), 100 - done);

    // Each message costs ten seconds' budget.
    let publish = json!({"topic": "a", "data": "x".repeat(40_000)});
    let replies: Vec<_> = (0..20)
        .map(|_| call(&server, "POST", "/api/publish", &large, Some(publish.clone())))
        .collect();
    let (done, rejected): (Vec<_>, Vec<_>) = replies.iter().partition(|(status, _)| *status == 200);
    assert!((1..=15).contains(&done.len()), "{}", done.len());
    assert!(
        rejected.iter().all(|(_, it)| it.to_string().contains("bytes per second")),
        "{rejected:?}"
    );

    // The server never limits the key without a limit.
    for unit in ["commands", "publishes", "bytes"] {
        let bearer = format!("Authorization: Bearer {ops}\r\n");
        let (_, metrics) = crate::support::text(server.admin, "GET", "/metrics", None, &bearer);
        let row = format!("throng_limited_total{{name=\"limits.{unit}_per_second_per_key_max\"}} ");
        let count = metrics.split(&*row).nth(1).unwrap().lines().next().unwrap();
        assert!(count.parse::<f64>().unwrap() >= 5.0, "{unit}: {count}");
    }
    server.until("the noisy keys are named", |server| {
        let (_, found) = call(server, "GET", "/api/noisiest?by=refusals", &ops, None);
        let names = |name: &str| {
            let rows = found["noisiest"].as_array().unwrap().iter();
            rows.filter(|row| row["kind"] == "key").any(|row| row["name"] == name)
        };
        names("usual") && names("busy") && names("large") && !names("ops")
    });
}

#[test]
fn a_client_without_a_key_takes_no_capacity_from_those_who_have_one() {
    let scratch = Scratch::new("keys-bodies");
    let folder = scratch.path();
    let config = folder.join("throng.toml");
    std::fs::write(&config, "[admin]\nbody_bytes_max = \"64KiB\"\nbodies_bytes_max = \"64KiB\"\n")
        .unwrap();
    let key = make(folder, "app", &["--scope", "publish:*"]);
    let server = serve(folder, std::process::Stdio::inherit());
    let begin = |length: usize, sent: usize| {
        let mut stream = Stream::new(connect(server.admin));
        let host = server.admin;
        stream.send(&format!(
            "POST /api/session HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{{\"key\":\"{}",
            "x".repeat(sent)
        ));
        stream
    };
    let _open: Vec<Stream> = (0..30).map(|_| begin(4_096, 4_000)).collect();
    for _ in 0..20 {
        let message = json!({"topic": "a", "data": "x".repeat(50_000)});
        assert_eq!(call(&server, "POST", "/api/publish", &key, Some(message)).0, 200);
    }
    assert_eq!(begin(4_097, 0).read_reply().0, 413);
}

#[test]
fn a_client_that_guesses_keys_is_known_behind_a_trusted_proxy() {
    let scratch = Scratch::new("keys-guesses");
    let folder = scratch.path();
    let config = folder.join("throng.toml");
    std::fs::write(&config, "[admin]\ntrusted_proxies = [\"127.0.0.1\"]\n").unwrap();
    let ops = make(folder, "ops", &["--scope", "read"]);
    let log = std::fs::File::create(folder.join("log")).unwrap();
    let server = serve(folder, log.into());
    let sign_in = |client: &str, key: &str| {
        let headers = format!("X-Forwarded-For: 203.0.113.1, {client}\r\n");
        let body = Some(json!({ "key": key }));
        json(server.admin, "POST", "/api/session", body, &headers).0
    };
    let failed: Vec<_> = (0..12).map(|_| sign_in("192.0.2.1", "guess")).collect();
    assert_eq!(failed, [vec![401; 10], vec![429; 2]].concat());
    // Other clients behind the proxy do not have to wait.
    assert_eq!(sign_in("192.0.2.1", &ops), 429);
    assert_eq!((sign_in("192.0.2.2", "guess"), sign_in("192.0.2.2", &ops)), (401, 200));
    let named = |server: &Server, client: &str| {
        let headers =
            format!("Authorization: Bearer {}\r\nX-Forwarded-For: {client}\r\n", "x".repeat(43));
        assert_eq!(json(server.admin, "GET", "/api/stats", None, &headers).0, 401);
        let (_, found) = call(server, "GET", "/api/noisiest?by=refusals", &ops, None);
        found["noisiest"].as_array().unwrap().iter().any(|row| row["name"] == client)
    };
    server.until("who guesses is named", |server| named(server, "192.0.2.3"));
    server.until("the log names who guesses", |_| {
        let text = std::fs::read_to_string(folder.join("log")).unwrap();
        text.contains("address=192.0.2.3")
    });
}
