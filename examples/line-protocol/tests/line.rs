//! Clients of the line protocol, beside clients of other protocols, over real sockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A test fails when it waits longer than this.
const TIMEOUT: Duration = Duration::from_secs(60);

struct Server {
    child: Child,
    client: SocketAddr,
    admin: SocketAddr,
}

impl Server {
    fn start() -> Self {
        let topics = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/topics.toml");
        let mut child = Command::new(env!("CARGO_BIN_EXE_line-protocol"))
            .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--shards", "2"])
            .args(["--config", topics])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut address = |label: &str| -> SocketAddr {
            let line = lines.find(|line| line.trim_start().starts_with(label)).unwrap();
            let (_, rest) = line.split_once("http://").unwrap();
            rest.split(['/', ' ']).next().unwrap().parse().unwrap()
        };
        let (client, admin) = (address("clients"), address("applications"));
        std::thread::spawn(move || lines.for_each(drop));
        Server { child, client, admin }
    }

    fn client(&self) -> Client {
        Client(BufReader::new(connect(self.client)))
    }

    /// Makes an HTTP request on its own connection. Returns all that comes back.
    fn request(&self, to: SocketAddr, head: &str, body: &str) -> String {
        let mut socket = connect(to);
        let length = body.len();
        let head = format!("{head} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        write!(
            socket,
            "{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut response = String::new();
        socket.read_to_string(&mut response).unwrap();
        response
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect(to: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(to).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn say(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    /// Returns the next line that is no heartbeat; an empty one at the end.
    fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            let end = self.0.read_line(&mut line).unwrap() == 0;
            if end || line != "\n" {
                return line.trim_end().into();
            }
        }
    }

    fn request(&mut self, text: &str) -> String {
        self.say(&format!("{text}\n"));
        self.line()
    }

    /// Returns the data and the id of the next message.
    fn message(&mut self) -> (String, String) {
        let line = self.line();
        let message: Value =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let text = |key: &str| message[key].as_str().unwrap_or_default().to_string();
        (text("data"), text("id"))
    }
}

#[test]
fn lines_are_spoken_beside_http() {
    let server = Server::start();
    let (mut alice, mut bob) = (server.client(), server.client());
    // The first word in pieces.
    alice.say("HEL");
    assert!(server.request(server.client, "GET /healthz", "").starts_with("HTTP/1.1 200 "));
    assert!(server.request(server.client, "HEAD /healthz", "").starts_with("HTTP/1.1 200 "));
    alice.say("LO alice\n");
    assert!(alice.line().starts_with("OK HELLO "));
    assert!(bob.request("HELLO").starts_with("OK HELLO "));
    assert!(alice.request("SUB news").starts_with("OK SUB {\"topic\":\"news\""));
    assert!(bob.request("PUB news one two").starts_with("OK PUB {\"id\":"));
    let (data, first) = alice.message();
    assert_eq!(data, "one two");
    let response =
        server.request(server.admin, "POST /api/send", r#"{"user":"alice","data":"you"}"#);
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    assert_eq!(alice.message().0, "you");
    let metrics = server.request(server.admin, "GET /metrics", "");
    assert!(metrics.contains("throng_connections{transport=\"line\"} 2"), "{metrics}");
    let stats = server.request(server.admin, "GET /api/stats", "");
    assert!(stats.contains("\"line\":2"), "{stats}");

    // The client gets the messages that it missed.
    assert_eq!(alice.request("QUIT"), "");
    assert!(bob.request("PUB news three").starts_with("OK PUB "));
    let mut alice = server.client();
    assert!(alice.request("HELLO alice").starts_with("OK HELLO "));
    assert!(alice.request(&format!("SUB news {first}")).contains("\"recovered\":true"));
    assert_eq!(alice.message().0, "three");
    assert!(alice.request("UNSUB news").starts_with("OK UNSUB "));
    assert!(alice.request("UNSUB news").starts_with("ERR UNSUB not_subscribed "));
}

#[test]
fn an_invalid_command_gets_an_error_and_a_line_without_an_end_closes() {
    let server = Server::start();
    let mut client = server.client();
    // Before HELLO the client may do nothing.
    assert!(client.request("HELLO \u{7}").starts_with("ERR HELLO bad_user "));
    assert!(client.request("SUB news").starts_with("ERR SUB bad_command "));
    assert!(client.request("HELLO").starts_with("OK HELLO "));
    assert!(client.request("HELLO").starts_with("ERR HELLO bad_command "));
    assert!(client.request("SUB ").starts_with("ERR SUB bad_topic "));
    assert!(client.request("PUB private x").starts_with("ERR PUB "));
    assert!(client.request("ACK news x").starts_with("ERR ACK bad_id "));
    client.say(&"x".repeat(2 << 20));
    assert_eq!(client.line(), "ERR too_long a line must end");
    let mut rest = Vec::new();
    // The server closes with unread input, which may reset the connection.
    let _ = client.0.read_to_end(&mut rest);
    assert!(rest.is_empty());
}

#[test]
fn last_words_say_why() {
    let mut server = Server::start();
    let mut client = server.client();
    assert!(client.request("HELLO alice").starts_with("OK HELLO "));
    let pid = server.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(client.line().starts_with("BYE drain "));
    let end = Instant::now() + TIMEOUT;
    let status = loop {
        if let Some(status) = server.child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < end, "the server does not end");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success());
}
