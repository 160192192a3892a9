//! The admin port with TLS, and a server whose clients have only a port with TLS.

use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::tls::{Authority, connect_with, exchange};
use crate::support::*;

/// Starts a server with its certificate and these settings, at ports of its choice.
fn server(authority: &Authority, settings: &[(&str, &str)]) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["serve", "--admin", "127.0.0.1:0", "--shards", "1"]);
    let tls = authority.settings();
    let tls = tls.iter().map(|(name, value)| (*name, value.as_str()));
    let settings: Vec<_> = tls.chain(settings.iter().copied()).collect();
    Server::run(command, &settings)
}

fn with_admin_tls(authority: &Authority, settings: &[(&str, &str)]) -> (Server, SocketAddr) {
    let ports =
        [("THRONG_CLIENT_LISTEN", "127.0.0.1:0"), ("THRONG_ADMIN_LISTEN_TLS", "127.0.0.1:0")];
    let settings: Vec<_> = ports.into_iter().chain(settings.iter().copied()).collect();
    let server = server(authority, &settings);
    let admin = server.admin_tls.expect("the port with TLS");
    (server, admin)
}

fn request(authority: &Authority, admin: SocketAddr, head: &str, body: &str) -> String {
    let request = format!(
        "{head} HTTP/1.1\r\nHost: localhost:{}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        admin.port(),
        body.len()
    );
    exchange(&mut authority.connect(admin), &request)
}

/// Runs a command of the binary, which trusts the authority.
fn throng(authority: &Authority, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(arguments).arg("--ca").arg(authority.path("ca.pem"));
    command.current_dir(std::env::temp_dir()).stdout(Stdio::piped()).stderr(Stdio::piped());
    printed_within(command.spawn().unwrap())
}

#[test]
fn applications_call_by_tls_and_without() {
    let authority = Authority::new();
    let (server, admin) = with_admin_tls(&authority, &[]);
    let mut listener = server.listen("/sse?topic=news");
    let body = "{\"topic\":\"news\",\"data\":\"by TLS\"}";
    let reply = request(&authority, admin, "POST /api/publish", body);
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    assert_eq!(listener.data(), "by TLS");
    server.publish("news", "without".into());
    assert_eq!(listener.data(), "without");
    let reply = request(&authority, admin, "GET /api/certificates", "");
    let (_, body) = reply.split_once("\r\n\r\n").unwrap();
    let body: Value = serde_json::from_str(body).unwrap();
    let [certificate] = &body["certificates"].as_array().unwrap()[..] else { panic!("{body}") };
    assert_eq!(certificate["name"], "localhost");
    assert!(certificate["days_left"].as_u64().unwrap() > 20_000, "{body}");
    assert!(certificate["not_after"].as_u64().unwrap() > 4_000_000_000, "{body}");
}

#[test]
fn a_browser_stays_signed_in_by_tls_alone() {
    let authority = Authority::new();
    let key = "0123456789abcdef";
    let (_server, admin) = with_admin_tls(&authority, &[("THRONG_ADMIN_API_KEY", key)]);
    let reply = request(&authority, admin, "GET /api/stats", "");
    assert!(reply.starts_with("HTTP/1.1 401 "), "{reply}");
    let body = format!("{{\"key\":\"{key}\"}}");
    let origin = format!("https://localhost:{}", admin.port());
    let head =
        format!("POST /api/session HTTP/1.1\r\nOrigin: {origin}\r\nSec-Fetch-Site: same-origin");
    let request = format!(
        "{head}\r\nHost: localhost:{}\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        admin.port(),
        body.len()
    );
    let reply = exchange(&mut authority.connect(admin), &request);
    let cookie = reply.lines().find(|line| line.to_ascii_lowercase().starts_with("set-cookie:"));
    let cookie = cookie.unwrap_or_else(|| panic!("{reply}"));
    assert!(cookie.contains("__Host-throng_session") && cookie.ends_with("; Secure"), "{cookie}");
}

/// Clients that send nothing, or something other than TLS, do not block others.
#[test]
fn handshakes_that_fail_or_wait_end_alone() {
    let authority = Authority::new();
    let (server, admin) = with_admin_tls(&authority, &[("THRONG_ADMIN_HEAD_SECONDS", "3")]);
    let silent: Vec<_> = (0..20).map(|_| connect(admin)).collect();
    let mut plain = connect(admin);
    plain.write_all(b"GET /api/stats HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    let mut ended = Vec::new();
    let _ = std::io::Read::read_to_end(&mut plain, &mut ended);
    // The client gets an alert, and nothing of the API.
    assert_eq!(ended.first(), Some(&21), "{ended:?}");
    let reply = request(&authority, admin, "GET /api/stats", "");
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    // admin.head_seconds ends those that send nothing.
    for mut socket in silent {
        let mut bytes = Vec::new();
        let _ = std::io::Read::read_to_end(&mut socket, &mut bytes);
    }
    assert_eq!(server.get("/healthz").0, 200);
}

#[test]
fn an_authority_of_clients_is_none_of_applications() {
    let authority = Authority::new();
    let ca = authority.path("ca.pem").display().to_string();
    let (_server, admin) = with_admin_tls(
        &authority,
        &[("THRONG_TLS_CLIENT_CA_FILE", &ca), ("THRONG_TLS_CLIENT_CERTIFICATES", "required")],
    );
    let reply = request(&authority, admin, "GET /api/stats", "");
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
}

#[test]
fn commands_call_by_tls_and_a_new_version_has_the_port() {
    let authority = Authority::new();
    let (server, admin) = with_admin_tls(&authority, &[]);
    let url = format!("https://localhost:{}", admin.port());
    let top = throng(&authority, &["top", &url, "--once"]);
    assert!(top.status.success(), "{top:?}");
    let sample = throng(&authority, &["top", &url, "--once", "--json"]);
    let sample: Value =
        serde_json::from_slice(&sample.stdout).unwrap_or_else(|_| panic!("{sample:?}"));
    assert!(sample["connections"].is_number(), "{sample}");
    // An upgrade through the port that the upgrade itself passes on.
    let mut before = authority.connect(admin);
    let stats = "GET /api/stats HTTP/1.1\r\nHost: localhost\r\n";
    for round in 0..2 {
        let upgrade = throng(&authority, &["upgrade", "--admin", &url]);
        assert!(upgrade.status.success(), "{round}: {upgrade:?}");
        let reply = request(&authority, admin, "GET /api/stats", "");
        assert!(reply.starts_with("HTTP/1.1 200 "), "{round}: {reply}");
    }
    // The new process serves a connection from before.
    let reply = exchange(&mut before, &format!("{stats}Connection: close\r\n\r\n"));
    assert!(reply.starts_with("HTTP/1.1 200 ") || reply.is_empty(), "{reply}");
    assert_eq!(server.get("/healthz").0, 200);
    // Without --ca the command rejects the certificate, since no authority of this machine has signed it.
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["top", &url, "--once"]).current_dir(std::env::temp_dir());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let output = printed_within(command.spawn().unwrap());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("the server's certificate is not signed by a trusted authority"),
        "{text}"
    );
    assert_eq!(output.status.code(), Some(1), "{text}");
}

#[test]
fn clients_may_have_a_port_with_tls_alone() {
    let authority = Authority::new();
    let server = server(&authority, &[("THRONG_CLIENT_LISTEN", "")]);
    let address = server.client_tls.unwrap();
    assert_eq!(server.client, address, "there is no other");
    let mut stream = connect_with(&authority.client_config(), address);
    let reply = exchange(&mut stream, super::HEALTHY);
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    // The dashboard's page may connect to that port.
    let (_, page) = text(server.admin, "GET", "/", None, "");
    assert!(page.contains(&format!("https://{address}")), "{page}");
}

#[test]
fn the_page_that_came_by_tls_connects_by_tls() {
    let authority = Authority::new();
    let (server, admin) = with_admin_tls(&authority, &[]);
    let by_tls = format!("https://{}", server.client_tls.unwrap());
    let page = request(&authority, admin, "GET /", "");
    assert!(page.contains(&by_tls), "{page}");
    let (_, page) = text(server.admin, "GET", "/", None, "");
    assert!(
        !page.contains(&by_tls) && page.contains(&format!("http://{}", server.client)),
        "{page}"
    );
}
