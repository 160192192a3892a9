//! Programs and libraries that people use: curl, OpenSSL, GnuTLS, Python, node, Go, Chromium, Mosquitto's clients.
//! `scripts/install` installs them.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::tls::Authority;
use crate::support::*;

/// Starts a server with all transports at its port with TLS.
fn server(authority: &Authority) -> Server {
    authority.server(
        &["--shards", "2", "--mqtt", "127.0.0.1:0"],
        &[("THRONG_MQTT_LISTEN_TLS", "127.0.0.1:0"), ("THRONG_CLIENT_PUBLISH_PREFIXES", "*")],
    )
}

/// Runs a program, and fails unless it succeeds. Returns its output.
fn run(command: &mut Command) -> String {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let output = printed_within(child);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{command:?}: {stdout}\n{stderr}");
    stdout
}

/// Runs a program that subscribes to the topic `news` and ends with the first message. Publishes that message.
fn run_subscriber(server: &Server, command: &mut Command) {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    server.until_members("news", 1);
    server.publish("news", "hello by TLS".into());
    let output = printed_within(child);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("hello by TLS"), "{command:?}: {text}\n{errors}");
    server.until_members("news", 0);
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls"))
}

#[test]
fn curl() {
    let authority = Authority::new();
    let server = server(&authority);
    let address = server.client_tls.unwrap();
    for version in [&["--tls-max", "1.2"][..], &["--tlsv1.3"]] {
        let with = |more: &[&str]| {
            let mut command = Command::new("curl");
            command.args(["-sS", "--fail-with-body", "--cacert"]).arg(authority.path("ca.pem"));
            command.args(version).args(more);
            command
        };
        let text = run(&mut with(&["-i", &format!("https://{address}/healthz")]));
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
        // The poll ends when the first message has arrived.
        let url = format!("https://{address}/poll?topic=news");
        run_subscriber(&server, &mut with(&[&url]));
    }
    // A client that does not know the authority does not connect.
    let mut command = Command::new("curl");
    command.args(["-sS", &format!("https://{address}/healthz")]);
    let output = printed_within(command.stderr(Stdio::piped()).spawn().unwrap());
    assert_eq!(output.status.code(), Some(60), "{output:?}");
}

/// An `openssl s_client` that a test types into.
struct Openssl {
    child: std::process::Child,
    lines: Lines,
}

impl Openssl {
    fn start(authority: &Authority, server: &Server, more: &[&str]) -> Self {
        let mut command = Command::new("sh");
        // Merges both outputs.
        command.args(["-c", "exec openssl s_client \"$@\" 2>&1", "s_client"]);
        command.args(["-crlf", "-verify_return_error", "-connect"]);
        command.arg(server.client_tls.unwrap().to_string());
        command.arg("-CAfile").arg(authority.path("ca.pem")).args(more);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("sh");
        let lines = Lines::of(child.stdout.take().unwrap());
        Openssl { child, lines }
    }

    fn type_in(&mut self, text: &str) {
        self.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn until(&mut self, text: &str) {
        while !self.lines.next().expect("openssl has ended").contains(text) {}
    }
}

impl Drop for Openssl {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const REQUEST: &str = "GET /healthz HTTP/1.1\nHost: t\nConnection: close\n\n";

#[test]
fn openssl_updates_its_keys_in_small_records() {
    let authority = Authority::new();
    let server = server(&authority);
    let mut client =
        Openssl::start(&authority, &server, &["-tls1_3", "-max_send_frag", "512", "-msg"]);
    client.until("Verify return code: 0 (ok)");
    for _ in 0..3 {
        // The client changes its own key, and requests a new key of the server.
        client.type_in("K\n");
        client.until("KEYUPDATE");
        client.until("<<< TLS 1.3, Handshake [length 0005], KeyUpdate");
    }
    client.type_in(REQUEST);
    client.until("HTTP/1.1 200 ");
}

#[test]
fn openssl_is_refused_a_renegotiation() {
    let authority = Authority::new();
    let server = server(&authority);
    let mut client = Openssl::start(&authority, &server, &["-tls1_2", "-msg"]);
    client.until("Verify return code: 0 (ok)");
    client.type_in("R\n");
    client.until("RENEGOTIATING");
    client.until("<<< TLS 1.2, Alert [length 0002], warning no_renegotiation");
    drop(client);
    // The server supports no older versions or ciphers.
    for old in
        [&["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"][..], &["-tls1_2", "-cipher", "AES128-SHA"]]
    {
        let mut client = Openssl::start(&authority, &server, old);
        client.until("alert");
    }
}

#[test]
fn gnutls() {
    let authority = Authority::new();
    let server = server(&authority);
    let address = server.client_tls.unwrap();
    for priority in ["NORMAL:-VERS-ALL:+VERS-TLS1.2", "NORMAL:-VERS-ALL:+VERS-TLS1.3"] {
        let mut command = Command::new("gnutls-cli");
        command.arg("--x509cafile").arg(authority.path("ca.pem"));
        command.args(["--priority", priority, "--port", &address.port().to_string()]);
        command.arg("localhost");
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("gnutls-cli");
        // gnutls-cli reads its standard input after the handshake.
        child.stdin.take().unwrap().write_all(super::HEALTHY.as_bytes()).unwrap();
        let output = printed_within(child);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("HTTP/1.1 200 "), "{priority}: {text}");
    }
}

#[test]
fn python() {
    let authority = Authority::new();
    let server = server(&authority);
    for version in ["TLSv1_2", "TLSv1_3"] {
        let mut command = Command::new("python3");
        command.arg(folder().join("client.py")).arg(server.client_tls.unwrap().to_string());
        command.arg(authority.path("ca.pem")).arg(version);
        run_subscriber(&server, &mut command);
    }
}

#[test]
fn node() {
    let authority = Authority::new();
    let server = server(&authority);
    let mut command = Command::new("node");
    command.arg(folder().join("client.cjs")).arg(server.client_tls.unwrap().to_string());
    command.arg(authority.path("ca.pem"));
    run_subscriber(&server, &mut command);
}

#[test]
fn go() {
    let authority = Authority::new();
    let server = server(&authority);
    let program = std::env::var("TEST_GO_TLS");
    let mut command = Command::new(program.expect("TEST_GO_TLS, which scripts/test sets"));
    command.arg(server.client_tls.unwrap().to_string()).arg(authority.path("ca.pem"));
    run_subscriber(&server, &mut command);
}

/// Server-Sent Events and a WebSocket in a page that the browser loaded by TLS.
#[test]
fn chromium() {
    let authority = Authority::new();
    let server = server(&authority);
    let mut command = Command::new("node");
    command.arg(folder().join("browser.cjs")).arg(server.client_tls.unwrap().to_string());
    command.current_dir(folder().join("../phoenix"));
    let mut child = command.stdout(Stdio::piped()).spawn().expect("node");
    server.until_members("news", 2);
    server.publish("news", "hello by TLS".into());
    let mut lines = Lines::of(child.stdout.take().unwrap());
    let texts = [lines.next().unwrap(), lines.next().unwrap()];
    assert_eq!(texts, ["EventSource hello by TLS", "WebSocket hello by TLS"]);
    assert!(wait_within(&mut child).success());
}

#[test]
fn mosquitto() {
    let authority = Authority::new();
    let server = server(&authority);
    // At the MQTT port, and at the port of all clients.
    for port in [server.mqtt_tls.unwrap().port(), server.client_tls.unwrap().port()] {
        let with = |name: &str, more: &[&str]| {
            let mut command = Command::new(name);
            command.args(["-h", "localhost", "-p", &port.to_string(), "--cafile"]);
            command.arg(authority.path("ca.pem")).args(["-q", "1", "-t", "news"]).args(more);
            command
        };
        let mut subscriber = with("mosquitto_sub", &["-C", "2"]);
        let child = subscriber.stdout(Stdio::piped()).spawn().expect("mosquitto_sub");
        server.until_members("news", 1);
        run(&mut with("mosquitto_pub", &["-m", "hello by TLS"]));
        server.publish("news", "and without".into());
        let output = printed_within(child);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "hello by TLS\nand without\n");
        assert!(output.status.success());
        server.until_members("news", 0);
    }
}
