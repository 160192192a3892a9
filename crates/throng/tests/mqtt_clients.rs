//! MQTT with the clients that people use: Mosquitto's, Eclipse's in Python and Go, mqtt.js in node and in a browser,
//! and rumqttc. `scripts/install` installs them.

mod mosquitto;
mod rumqtt;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::support::*;
use rumqttc::{Event, MqttOptions, Packet, QoS};
use serde_json::json;

/// The environment variable for a program with Eclipse's clients in Go that was built before.
const GO_CLIENTS: &str = "TEST_GO_MQTT";

fn server(settings: &[(&str, &str)]) -> Server {
    Server::with(&["--mqtt", "127.0.0.1:0", "--shards", "2"], settings)
}

/// The key that signs the tokens.
const KEY: &str = "0123456789abcdef0123456789abcdef";

/// Starts a server with MQTT that requires tokens.
fn guarded() -> Server {
    // The clients' topics begin with the name of the client.
    let topics = "mqtt,version_";
    server(&[
        ("THRONG_AUTH_HMAC_KEY", KEY),
        ("THRONG_AUTH_REQUIRED", "true"),
        ("THRONG_CLIENT_PUBLISH_PREFIXES", topics),
    ])
}

/// Returns a token that grants alice everything.
fn token() -> String {
    let all = ["*"];
    let claims = json!({"sub": "alice", "throng": {"subscribe": all, "publish": all}});
    let signer = token::Signer::new(KEY, "HS256".parse().unwrap(), None).unwrap();
    signer.sign(&claims).unwrap()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mqtt_clients")
}

/// Starts a client whose output goes to pipes.
fn spawn(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap_or_else(|error| {
        panic!("{command:?}: {error}; scripts/install installs what it needs")
    })
}

/// Runs a client, and fails unless it succeeds.
fn run(command: &mut Command) -> Output {
    let output = printed_within(spawn(command));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}\n{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

/// Returns the command of a Mosquitto client, with the server's address.
fn mosquitto(server: &Server, program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    let (host, port) = (server.client.ip().to_string(), server.client.port().to_string());
    command.args(["-h", &host, "-p", &port]).args(args);
    command
}

/// A subscriber; killed at the end of the test.
struct Subscriber {
    child: Child,
    lines: Lines,
}

impl Subscriber {
    fn new(mut command: Command) -> Self {
        let mut child = spawn(command.stderr(Stdio::inherit()));
        let lines = Lines::of(child.stdout.take().unwrap());
        Subscriber { child, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("the subscriber has ended")
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn mosquittos_request_is_served() {
    let server = server(&[]);
    let args = ["-V", "mqttv5", "-t", "questions", "-F", "%R %p", "-C", "1", "-u", "answerer"];
    let mut subscriber = Subscriber::new(mosquitto(&server, "mosquitto_sub", &args));
    server.until_members("questions", 1);
    let args = ["-V", "mqttv5", "-t", "questions", "-e", "answers/1", "-m", "how much?"];
    let mut asking = mosquitto(&server, "mosquitto_rr", &args);
    let asking = std::thread::spawn(move || run(&mut asking));
    assert_eq!(subscriber.line(), "answers/1 how much?");
    run(&mut mosquitto(&server, "mosquitto_pub", &["-V", "mqttv5", "-t", "answers/1", "-m", "42"]));
    assert_eq!(String::from_utf8_lossy(&asking.join().unwrap().stdout).trim(), "42");
}

#[test]
fn a_token_is_the_password() {
    const KEY: &str = "a key of 32 bytes or more, for tests";
    let settings = [
        ("THRONG_AUTH_HMAC_KEY", KEY),
        ("THRONG_AUTH_REQUIRED", "true"),
        ("THRONG_CLIENT_PUBLISH_PREFIXES", "news"),
    ];
    let server = server(&settings);
    let mut token = Command::new(env!("CARGO_BIN_EXE_throng"));
    token.args(["token", "make", "--user", "alice", "--subscribe", "news", "--publish", "news"]);
    let token = run(token.env("THRONG_AUTH_HMAC_KEY", KEY));
    let token = String::from_utf8(token.stdout).unwrap().trim().to_string();
    let args = ["-t", "news", "-t", "@alice", "-C", "2", "-u", "alice", "-P", &token];
    let mut subscriber = Subscriber::new(mosquitto(&server, "mosquitto_sub", &args));
    server.until_members("news", 1);
    let publish = ["-t", "news", "-m", "hello", "-q", "1", "-u", "alice", "-P", &token];
    run(&mut mosquitto(&server, "mosquitto_pub", &publish));
    server.post("/api/send", json!({"user": "alice", "data": "to alice"}));
    assert_eq!([subscriber.line(), subscriber.line()], ["hello", "to alice"]);
}

#[test]
fn eclipses_client_in_python() {
    let server = server(&[]);
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", installed("paho-mqtt"));
    let (host, port) = (server.client.ip().to_string(), server.client.port().to_string());
    run(python.arg(folder().join("eclipse.py")).args([&host, &port, "/mqtt"]));
}

/// Returns the program with Eclipse's clients in Go: one that was built before, or one that this function builds. The
/// first build takes minutes and has no deadline.
fn go_clients(scratch: &Scratch) -> PathBuf {
    if let Some(built) = std::env::var_os(GO_CLIENTS) {
        return built.into();
    }
    let built = scratch.path().join("go-mqtt");
    let toolchain = Path::new("/usr/local/go/bin/go");
    let go = if toolchain.exists() { toolchain } else { Path::new("go") };
    let mut go = Command::new(go);
    go.current_dir(folder().join("go")).args(["build", "-o"]).arg(&built).arg(".");
    let output = spawn(&mut go).wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{go:?}: {}", String::from_utf8_lossy(&text));
    built
}

#[test]
fn eclipses_clients_in_go() {
    let scratch = Scratch::new("go-mqtt");
    let mut clients = Command::new(go_clients(&scratch));
    let server = server(&[]);
    run(clients.args([&server.client.to_string(), &format!("ws://{}/mqtt", server.client)]));
}

#[test]
fn mqtt_js_in_node() {
    let server = server(&[]);
    let mut node = Command::new("node");
    let urls = [format!("mqtt://{}", server.client), format!("ws://{}/mqtt", server.client)];
    run(node.arg(folder().join("js/client.cjs")).args(urls));
}

#[test]
fn mqtt_js_in_a_browser() {
    let server = server(&[]);
    let mut node = Command::new("node");
    let url = format!("ws://{}/mqtt", server.client);
    run(node.arg(folder().join("js/browser.cjs")).arg(url));
}

#[test]
fn rumqttc_and_a_phone_in_one_topic() {
    let server = server(&[]);
    let mut chat = server.listen("/sse?topic=room/1&format=json");
    let mut options =
        MqttOptions::new("rust", server.client.ip().to_string(), server.client.port());
    options.set_keep_alive(Duration::from_secs(30));
    let (client, mut connection) = rumqttc::Client::new(options, 10);
    connection.eventloop.network_options.set_connection_timeout(TIMEOUT.as_secs());
    client.subscribe("room/#", QoS::ExactlyOnce).unwrap();
    client.publish("room/1", QoS::ExactlyOnce, false, "from Rust").unwrap();
    let (mut message, mut complete) = (None, false);
    while message.is_none() || !complete {
        match connection.recv_timeout(TIMEOUT).unwrap().unwrap() {
            Event::Incoming(Packet::Publish(publish)) => message = Some(publish),
            Event::Incoming(Packet::PubComp(_)) => complete = true,
            _ => {}
        }
    }
    let message = message.unwrap();
    assert_eq!((message.topic.as_str(), &message.payload[..]), ("room/1", &b"from Rust"[..]));
    assert_eq!(message.qos, QoS::ExactlyOnce);
    let event: serde_json::Value = serde_json::from_str(&chat.data()).unwrap();
    assert_eq!(event["data"], "from Rust");
}
