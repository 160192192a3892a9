//! The recipes of `examples/`, run as their READMEs say: a real server, the application in node, and pages in
//! Chromium. Each goes through a reload of the page and a restart of the server, an upgrade, or the death of a node.

use std::path::Path;
use std::process::Command;

fn recipe(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recipes");
    assert!(
        folder.join("../phoenix/node_modules/playwright-core").exists(),
        "the packages are not installed: run `npm ci` in crates/throng/tests/phoenix, as scripts/test does"
    );
    let output = Command::new("node")
        .arg(folder.join(format!("{name}.cjs")))
        .env("THRONG_BIN", env!("CARGO_BIN_EXE_throng"))
        .output()
        .unwrap_or_else(|error| panic!("node: {error}; scripts/test installs it"));
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_reply_survives_reload_and_restart() {
    recipe("tokens");
}

#[test]
fn the_board_is_whole_after_reload_and_restart() {
    recipe("prices");
}

#[test]
fn the_plain_chat_loses_and_doubles_nothing() {
    recipe("ws-chat");
}

#[test]
fn the_bell_rings_until_the_user_has_read() {
    recipe("notifications");
}

#[test]
fn the_chat_shows_what_was_said_after_reload_and_restart() {
    recipe("chat");
}

#[test]
fn the_chat_goes_on_while_the_server_is_replaced() {
    recipe("upgrade");
}

#[test]
fn the_chat_goes_on_when_one_of_three_nodes_is_killed() {
    assert!(std::env::var_os("TEST_NATS").is_some(), "TEST_NATS, which scripts/test sets");
    recipe("cluster");
}
