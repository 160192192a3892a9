//! Client certificates, which prove a client's user.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::tls::Authority;
use crate::support::*;

/// Starts a server that takes users from certificates of its authority.
fn server(authority: &Authority, more: &[(&str, &str)]) -> Server {
    let ca = authority.path("ca.pem").display().to_string();
    let settings = [
        ("THRONG_TLS_CLIENT_CA_FILE", ca.as_str()),
        ("THRONG_TLS_CLIENT_USER", "common-name"),
        ("THRONG_CLIENT_LOGIN", "refuse"),
        ("THRONG_MQTT_LISTEN_TLS", "127.0.0.1:0"),
        ("THRONG_CLIENT_PUBLISH_PREFIXES", "*"),
    ];
    authority.server(&["--shards", "2"], &[&settings[..], more].concat())
}

/// Runs curl with these arguments. Returns its exit status and output.
fn curl(authority: &Authority, certificate: Option<&str>, more: &[&str]) -> (i32, String) {
    let mut command = Command::new("curl");
    command.args(["-sS", "--cacert"]).arg(authority.path("ca.pem")).args(more);
    if let Some(name) = certificate {
        command.arg("--cert").arg(authority.path(&format!("{name}.pem")));
        command.arg("--key").arg(authority.path(&format!("{name}.key")));
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = printed_within(command.spawn().expect("curl"));
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn a_certificate_is_the_user_of_its_connection() {
    let authority = Authority::new();
    authority.sign_user("alice", "alice");
    authority.sign_user("nameless", "");
    let server = server(&authority, &[]);
    let base = format!("https://{}", server.client_tls.unwrap());
    let poll = |user: &str| format!("{base}/poll?topic=t{user}&timeout=0");

    let (status, text) = curl(&authority, Some("alice"), &[&poll("")]);
    assert_eq!(status, 0, "{text}");
    // The request may name the same user, and no other.
    assert_eq!(curl(&authority, Some("alice"), &[&poll("&user=alice")]).0, 0);
    let (_, text) = curl(&authority, Some("alice"), &[&poll("&user=bob")]);
    assert!(text.contains("not_your_user"), "{text}");
    // A client without a certificate has no user, with or without TLS.
    let (status, text) = curl(&authority, None, &[&poll("")]);
    assert_eq!(status, 0, "{text}");
    let (_, text) = curl(&authority, None, &[&poll("&user=alice")]);
    assert!(text.contains("certificate_required"), "{text}");
    assert_eq!(server.get("/poll?topic=t&user=alice&timeout=0").0, 401);
    // A certificate without a user, and one of another authority.
    let (status, text) = curl(&authority, Some("nameless"), &[&poll("")]);
    assert!(status != 0, "{text}");
    let other = Authority::new();
    other.sign_user("alice", "alice");
    let cert = other.path("alice.pem").display().to_string();
    let key = other.path("alice.key").display().to_string();
    let (status, text) =
        curl(&authority, None, &[&poll(""), "--cert", cert.as_str(), "--key", key.as_str()]);
    assert!(status != 0, "{text}");
}

/// A device that connects by MQTT is the user of its certificate, and gets the user's messages.
#[test]
fn a_device_is_the_user_of_its_certificate() {
    let authority = Authority::new();
    authority.sign_user("alice", "alice");
    let server = server(&authority, &[]);
    let port = server.mqtt_tls.unwrap().port().to_string();
    let with = |more: &[&str]| {
        let mut command = Command::new("mosquitto_sub");
        command.args(["-h", "localhost", "-p", &port, "--cafile"]).arg(authority.path("ca.pem"));
        command.arg("--cert").arg(authority.path("alice.pem"));
        command.arg("--key").arg(authority.path("alice.key"));
        command.args(["-q", "1", "-C", "1", "-W", "60"]).args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("mosquitto_sub")
    };
    let subscriber = with(&["-t", "@alice"]);
    server.until("alice is there", |server| {
        let user = server.api("GET", "/api/users/alice", None).1;
        user["connections"].as_array().map(Vec::len) == Some(1)
    });
    server.post("/api/send", serde_json::json!({"user": "alice", "data": "for her device"}));
    let output = printed_within(subscriber);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "for her device\n");
    let refused = printed_within(with(&["-t", "t", "-u", "bob"]));
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && text.contains("Connection error"), "{text}");
}

/// If the application does not reply, the server admits clients, but gives them no user.
#[test]
fn a_client_is_no_user_by_its_word_while_the_application_is_silent() {
    let authority = Authority::new();
    let silent = [
        ("THRONG_WEBHOOK_URL", "http://127.0.0.1:9/"),
        ("THRONG_WEBHOOK_CONNECT", "true"),
        ("THRONG_WEBHOOK_SILENCE", "allow"),
    ];
    let server = server(&authority, &silent);
    let port = server.client.port().to_string();
    let publish = |more: &[&str]| {
        let mut command = Command::new("mosquitto_pub");
        command.args(["-h", "localhost", "-p", &port, "-t", "t", "-m", "x", "-q", "1"]).args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        printed_within(command.spawn().expect("mosquitto_pub"))
    };
    assert!(publish(&[]).status.success());
    let refused = publish(&["-u", "alice"]);
    assert!(!refused.status.success(), "{refused:?}");
    assert_eq!(server.get("/poll?topic=t&user=alice&timeout=0").0, 401);
}

#[test]
fn a_certificate_can_be_required() {
    let authority = Authority::new();
    authority.sign_user("alice", "alice");
    let server = server(&authority, &[("THRONG_TLS_CLIENT_CERTIFICATES", "required")]);
    let url = format!("https://{}/healthz", server.client_tls.unwrap());
    for version in ["1.2", "1.3"] {
        let more = ["--tls-max", version, &url];
        let (status, text) = curl(&authority, Some("alice"), &more);
        assert_eq!(status, 0, "{text}");
        let (status, text) = curl(&authority, None, &more);
        assert!(status != 0, "{text}");
    }
}

/// The user stays when another process takes over the connection.
#[test]
fn the_user_goes_along_with_an_upgrade() {
    let authority = Authority::new();
    authority.sign_user("alice", "alice");
    let server = server(&authority, &[]);
    let base = format!("https://{}", server.client_tls.unwrap());
    let folder = Scratch::new("upgrade-user");
    // The connection makes two requests, with an upgrade between them.
    let script = folder.write(
        "client.py",
        &format!(
            "import http.client, ssl, sys\n\
             context = ssl.create_default_context(cafile={:?})\n\
             context.load_cert_chain({:?}, {:?})\n\
             address = {:?}\n\
             connection = http.client.HTTPSConnection(address, context=context)\n\
             for _ in range(2):\n    \
                 connection.request('GET', '/poll?topic=t&user=alice&timeout=0')\n    \
                 response = connection.getresponse()\n    \
                 print(response.status, response.read().decode(), flush=True)\n    \
                 sys.stdin.readline()\n",
            authority.path("ca.pem"),
            authority.path("alice.pem"),
            authority.path("alice.key"),
            base.trim_start_matches("https://").replace("127.0.0.1", "localhost"),
        ),
    );
    let mut client = Command::new("python3");
    client.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = client.spawn().expect("python3");
    let mut lines = Lines::of(client.stdout.take().unwrap());
    assert!(lines.next().unwrap().starts_with("200 "));
    let mut upgrade = Command::new(env!("CARGO_BIN_EXE_throng"));
    upgrade.args(["upgrade", "--json", "--admin", &format!("http://{}", server.admin)]);
    let output = printed_within(upgrade.stdout(Stdio::piped()).spawn().unwrap());
    assert!(output.status.success(), "{output:?}");
    client.stdin.as_mut().unwrap().write_all(b"\n\n").unwrap();
    assert!(lines.next().unwrap().starts_with("200 "));
    assert!(wait_within(&mut client).success());
}
