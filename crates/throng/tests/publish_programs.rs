//! The programs of `examples/publish`. README.md shows their essential part.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::*;

const KEY: &str = "a-key-of-sixteen-chars";

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/publish").join(name)
}

/// Publishes with a program, and then with an invalid key.
fn publishes(program: impl Fn() -> Command) {
    let folder = Scratch::new("publish");
    let key = folder.path().join("key");
    write_secret(&key, KEY);
    let server = Server::with(&["--api-key-file", key.to_str().unwrap()], &[]);
    let mut stream = server.listen("/sse?topic=news");
    let header = format!("Authorization: Bearer {KEY}\r\n");
    server.until("the listener is a member", |server| {
        json(server.admin, "GET", "/api/topics/news", None, &header).1["members"] == 1
    });
    let run = |key: &str| call(program(), server.admin, key);
    let id = run(KEY).expect("it publishes");
    assert_eq!(stream.data(), "hello");
    assert!(id.contains(':'), "{id}");
    assert!(run("another-key-of-sixteen").is_err());
}

fn call(mut program: Command, admin: SocketAddr, key: &str) -> Result<String, String> {
    program.args(["news", "hello"]);
    program.env("THRONG_API", format!("http://{admin}")).env("THRONG_API_KEY", key);
    let output = output_within(&mut program);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}

/// Returns a command that runs a program of the examples with this interpreter.
fn interpreter(name: &'static str, file: &'static str) -> impl Fn() -> Command {
    move || {
        let mut command = Command::new(name);
        command.arg(example(file));
        command
    }
}

#[test]
fn python() {
    publishes(interpreter("python3", "publish.py"));
}

#[test]
fn node() {
    publishes(interpreter("node", "publish.mjs"));
}

#[test]
fn php() {
    publishes(interpreter("php", "publish.php"));
}

/// `scripts/install` builds the program.
#[test]
fn go() {
    let built = std::env::var_os("TEST_GO_PUBLISH");
    publishes(|| match &built {
        Some(program) => Command::new(program),
        None => {
            let local = Path::new("/usr/local/go/bin/go");
            let mut command = Command::new(if local.exists() { local } else { Path::new("go") });
            command.arg("run").arg(example("publish.go"));
            command
        }
    });
}
