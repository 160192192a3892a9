//! Third-party clients that send tokens: phoenix.js in node, and pages in Chromium.

use std::path::Path;
use std::process::Command;
use std::thread;

use serde_json::json;

use crate::support::*;
use crate::tokens::support::*;

/// Serves an empty page at a port of `localhost`, which it returns.
fn serve_page() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut stream = Stream::new(socket);
                while stream.head_if_any().ends_with("\r\n\r\n") {
                    let page = "<!doctype html><title>t</title>";
                    stream.send(&format!(
                        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n{page}",
                        page.len()
                    ));
                }
            });
        }
    });
    port
}

/// Runs a scenario of `clients.cjs` against a server that requires tokens, warns of all tokens that expire within ten
/// minutes, and closes without a spread.
fn scenario(name: &str) {
    let port = serve_page();
    let origin = format!("http://localhost:{port}");
    let server = serve(&[
        REQUIRED,
        ("THRONG_CLIENT_CORS_ORIGINS", &origin),
        ("THRONG_AUTH_EXPIRY_WARNING_SECONDS", "600"),
        ("THRONG_AUTH_EXPIRY_SPREAD_SECONDS", "0"),
    ]);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokens");
    assert!(
        folder.join("../phoenix/node_modules/ws").exists(),
        "the packages are not installed: run `npm ci` in crates/throng/tests/phoenix, as scripts/test does"
    );
    let (client, admin) = (server.client.to_string(), server.admin.to_string());
    let given = json!({"client": client, "admin": admin, "key": KEY, "port": port});
    let output = Command::new("node")
        .args(["clients.cjs", name, &given.to_string()])
        .current_dir(folder)
        .output()
        .unwrap_or_else(|error| panic!("node: {error}; scripts/test installs it"));
    assert!(output.status.success(), "{name}:\n{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn phoenix_clients_join_what_their_tokens_grant() {
    scenario("phoenix");
}

#[test]
fn phoenix_clients_without_a_token_that_counts_are_refused() {
    scenario("phoenix_without_a_token");
}

#[test]
fn phoenix_clients_refresh_their_tokens() {
    scenario("phoenix_refresh");
}

#[test]
fn an_event_source_stops_when_its_token_has_expired() {
    scenario("event_source_with_a_token_in_its_url");
}

#[test]
fn an_event_source_brings_a_cookie_from_known_pages_only() {
    scenario("event_source_with_a_cookie");
}

#[test]
fn a_page_sees_why_its_websocket_was_closed() {
    scenario("websocket_of_a_page");
}
