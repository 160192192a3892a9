//! Names and messages of users are only text to the pages that show them. Tested in Chromium.

use std::path::Path;
use std::process::Command;

use super::*;

fn scenario(name: &str) {
    let server = Server::with(&["--demo"], &[]);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile");
    let given = json!({"client": server.client.to_string(), "admin": server.admin.to_string()});
    let output = Command::new("node")
        .args(["xss.cjs", name, &given.to_string()])
        .current_dir(folder)
        .output()
        .unwrap_or_else(|error| panic!("node: {error}; scripts/test installs it"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}:\n{errors}");
}

#[test]
fn the_dashboard_runs_no_script_from_names_or_messages() {
    scenario("dashboard");
}

#[test]
fn the_chat_runs_no_script_from_names_or_messages() {
    scenario("chat");
}
