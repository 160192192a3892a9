//! Back ends of examples, as processes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::{Lines, Scratch};

/// A back end; killed at the end of the test.
pub struct Backend {
    child: Child,
    pub url: String,
}

impl Drop for Backend {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the folder of an example.
pub fn folder(of: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(of)
}

/// Starts a back end, which chooses its port and prints its URL.
fn start(mut process: Command, settings: &[(&str, &str)]) -> Backend {
    process.env("PORT", "0").envs(settings.iter().copied()).stdout(Stdio::piped());
    let mut child = process.spawn().unwrap_or_else(|error| {
        panic!(
            "{process:?}: {error}: scripts/test installs the Debian packages python3 and golang-go"
        )
    });
    let output = child.stdout.take().unwrap();
    let mut backend = Backend { child, url: String::new() };
    let line = Lines::of(output).next().unwrap_or_default();
    assert!(line.starts_with("http://"), "{process:?} says {line:?}");
    backend.url = line.trim().into();
    backend
}

/// Starts `backend.py` of an example.
pub fn python(example: &str, settings: &[(&str, &str)]) -> Backend {
    let mut process = Command::new("python3");
    process.arg(folder(example).join("backend.py"));
    start(process, settings)
}

/// Starts `backend.go` of an example: the program that this environment variable names, or one that this function
/// builds.
pub fn go(example: &str, variable: &str, settings: &[(&str, &str)]) -> Backend {
    if let Some(built) = std::env::var_os(variable) {
        return start(Command::new(built), settings);
    }
    let local = Path::new("/usr/local/go/bin/go");
    let go = if local.exists() { local.as_os_str() } else { "go".as_ref() };
    let scratch = Scratch::new(example);
    let built = scratch.path().join("backend");
    // `go run` starts the program as a child, which would outlive `go` itself. The build has no time limit.
    let mut build = Command::new(go);
    build.args(["build", "-o"]).arg(&built).arg(folder(example).join("backend.go"));
    let done = build.status().unwrap_or_else(|error| {
        panic!("{go:?}: {error}: scripts/test installs the Debian package golang-go")
    });
    assert!(done.success());
    // The process goes on when its file is removed.
    start(Command::new(&built), settings)
}
