//! `throng bundle`: a report about a running server, without secrets.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Scratch, Server, output_within};

/// Secrets that the server and the command get.
const KEY: &str = "hmac-0123456789abcdef0123456789abcdef";
const WEBHOOK: &str = "webhook-secret-0123456789abcdef";
const SIGNING: &str = "signing-0123456789abcdef0123456789";
const API: &str = "api-key-of-the-operator-0123456789";

/// Runs the command. Returns its exit status and its output.
fn bundle(dir: &Path, admin: &str, key: &str, more: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["bundle", "--admin", admin]).args(more).current_dir(dir).stdin(Stdio::null());
    command.env("THRONG_ADMIN_API_KEY", key);
    let output = output_within(&mut command);
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn a_report_has_what_is_known_of_a_server_and_no_secret() {
    let scratch = Scratch::new("bundle");
    let settings = [
        ("THRONG_AUTH_HMAC_KEY", KEY),
        ("THRONG_WEBHOOK_URL", "http://127.0.0.1:9/"),
        ("THRONG_WEBHOOK_SECRET", WEBHOOK),
        ("THRONG_WEBHOOK_SIGNING_KEY", SIGNING),
        ("THRONG_ADMIN_API_KEY", API),
    ];
    let server = Server::with(&["--shards", "1"], &settings);
    let admin = server.admin.to_string();
    let log = scratch.path().join("throng.log");
    std::fs::write(&log, "a line of the log\n").unwrap();
    let (code, said) = bundle(scratch.path(), &admin, API, &["--log", log.to_str().unwrap()]);
    assert!(code == Some(0) && said.contains("wrote throng-bundle.txt"), "{said}");
    let path = scratch.path().join("throng-bundle.txt");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&path).unwrap();
    for want in [
        concat!("throng ", env!("CARGO_PKG_VERSION")),
        "## GET /readyz",
        "\"uptime_seconds\"",
        "[shards]\ncount = 1",
        "# hmac_key is set",
        "throng_connections_accepted_total",
        "a line of the log",
        "MemTotal",
    ] {
        assert!(text.contains(want), "{want:?} in\n{text}");
    }
    for secret in [KEY, WEBHOOK, SIGNING, API] {
        assert!(!text.contains(secret) && !said.contains(secret), "{secret} is in it");
    }
    // The command does not replace a file.
    let (code, said) = bundle(scratch.path(), &admin, API, &[]);
    assert!(code == Some(2) && said.contains("exists already"), "{said}");
    let (code, said) = bundle(scratch.path(), &admin, "another", &["--output", "refused.txt"]);
    assert_eq!(code, Some(1), "{said}");
    let refused = std::fs::read_to_string(scratch.path().join("refused.txt")).unwrap();
    assert!(refused.contains("not available: ") && refused.contains("MemTotal"), "{refused}");
    drop(server);
    let (code, said) = bundle(scratch.path(), &admin, API, &["--output", "gone.txt"]);
    let want = "only what the command knows without the server";
    assert!(code == Some(1) && said.contains(want), "{said}");
}
