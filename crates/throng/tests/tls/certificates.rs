//! Certificates: the choice by host, files that change, and files that are wrong.

use std::process::{Command, Stdio};

use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use crate::support::tls::{Authority, exchange};
use crate::support::*;

/// Returns the certificate that a client of this host gets.
fn certificate_of(authority: &Authority, server: &Server, host: &'static str) -> Vec<u8> {
    let config = authority.client_config();
    let name = ServerName::try_from(host).unwrap();
    let mut connection = ClientConnection::new(config, name).unwrap();
    let mut socket = connect(server.client_tls.unwrap());
    while connection.is_handshaking() {
        connection.complete_io(&mut socket).unwrap();
    }
    connection.peer_certificates().unwrap()[0].to_vec()
}

#[test]
fn a_client_gets_the_certificate_of_the_requested_host() {
    let authority = Authority::new();
    authority.sign("chat", &["chat.example"], 2099);
    let path = |name: &str| authority.path(name).display().to_string();
    let folder = Scratch::new("certificates");
    folder.write(
        "throng.toml",
        &format!(
            "[client]\nlisten = \"127.0.0.1:0\"\nlisten_tls = \"127.0.0.1:0\"\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n\
             [tls]\ncertificate_file = {:?}\nkey_file = {:?}\n\
             [[tls.certificates]]\ncertificate_file = {:?}\nkey_file = {:?}\n",
            path("server.pem"),
            path("server.key"),
            path("chat.pem"),
            path("chat.key"),
        ),
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.arg("serve");
    let server = Server::run_in(folder.path(), command, &[], Stdio::inherit());
    let of = |host| certificate_of(&authority, &server, host);
    assert_ne!(of("localhost"), of("chat.example"));
    let seconds = server.metric("throng_tls_certificate_expiry_seconds{name=\"chat.example\"}");
    assert!(seconds > 4e9, "{seconds}");
}

#[test]
fn a_new_certificate_is_taken_up_and_connections_stay() {
    let authority = Authority::new();
    let folder = Scratch::new("certificates-log");
    let log = folder.path().join("log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--shards", "1"]);
    let settings = authority.settings();
    let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let server =
        Server::run_with_log(command, &settings, std::fs::File::create(&log).unwrap().into());
    let logged = |text: &str| {
        server.until(text, |_| std::fs::read_to_string(&log).unwrap().contains(text));
    };
    let mut before = authority.connect(server.client_tls.unwrap());
    let first = certificate_of(&authority, &server, "localhost");
    // The server loads the changed files by itself.
    authority.sign("server", &["localhost"], 2098);
    let of = |server: &Server| certificate_of(&authority, server, "localhost");
    server.until("the new one is there", |server| of(server) != first);
    // A wrong file changes nothing, even after a signal.
    let second = of(&server);
    std::fs::write(authority.path("server.pem"), "nonsense").unwrap();
    server.signal("-HUP");
    logged("there is no certificate in it");
    std::fs::remove_file(authority.path("server.key")).unwrap();
    server.signal("-HUP");
    logged("server.key: can't be read");
    assert_eq!(of(&server), second);
    let reply = exchange(&mut before, super::HEALTHY);
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
}

/// Returns the error of a server that does not start.
pub fn start_error(settings: &[(&str, String)]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.envs(settings.iter().map(|(name, value)| (*name, value.as_str())));
    command.current_dir(std::env::temp_dir()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = printed_within(command.spawn().unwrap());
    assert_eq!(output.status.code(), Some(2));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_certificate_that_is_wrong_is_named_at_the_start() {
    let authority = Authority::new();
    authority.sign("other", &["localhost"], 2099);
    authority.sign("old", &["localhost"], 2001);
    let with = |certificate: &str, key: &str| {
        let mut settings = authority.settings();
        settings[1].1 = authority.path(certificate).display().to_string();
        settings[2].1 = authority.path(key).display().to_string();
        start_error(&settings)
    };
    let text = with("missing.pem", "server.key");
    assert!(text.contains("tls.certificate_file: ") && text.contains("missing.pem"), "{text}");
    let text = with("server.pem", "other.key");
    assert!(text.contains("the key does not belong to the certificate"), "{text}");
    assert!(text.contains("server.pem") && text.contains("other.key"), "{text}");
    let text = with("server.key", "server.key");
    assert!(text.contains("tls: ") && text.contains("the certificate: "), "{text}");
    let text = with("old.pem", "old.key");
    assert!(text.contains("old.pem: the certificate has expired, "), "{text}");
}
