//! Packets that are larger than NATS accepts: what nodes do with them, and what they log.

use std::fs::File;
use std::process::{Command, Stdio};

use serde_json::json;

use super::support::*;
use super::{stream, until_end};
use crate::support::*;

/// A NATS server with a `max_payload`, which a restart may change.
struct Limited {
    nats: Nats,
    folder: Scratch,
}

/// A node that logs into a file.
struct Logged {
    node: Server,
    folder: Scratch,
}

fn write_limit(folder: &Scratch, bytes: usize) {
    folder.write("nats.conf", &format!("max_payload: {bytes}\n"));
}

impl Limited {
    fn new(bytes: usize) -> Self {
        let folder = Scratch::new("nats");
        let config = folder.path().join("nats.conf").display().to_string();
        write_limit(&folder, bytes);
        Limited { nats: Nats::with(&["-c", &config]), folder }
    }

    /// Restarts NATS with another limit, after this node has lost its connection.
    fn restart(&mut self, node: &Server, bytes: usize) {
        write_limit(&self.folder, bytes);
        self.nats.kill();
        until_disconnected(node);
        self.nats.run();
    }

    fn node(&self, name: &str, config: &str) -> Logged {
        let folder = Scratch::new("max_payload");
        folder.write("throng.toml", config);
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.args(["--shards", "1", "--cluster", &self.nats.url()]);
        let settings = [("THRONG_CLUSTER_NODE", name)];
        let log = Stdio::from(File::create(folder.path().join("log")).unwrap());
        Logged { node: Server::run_in(folder.path(), command, &settings, log), folder }
    }
}

impl Logged {
    /// Returns how often the log has a text.
    fn count(&self, text: &str) -> usize {
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap();
        log.matches(text).count()
    }

    fn until_log(&self, text: &str, count: usize) {
        let what = format!("the log has {text:?} {count} times");
        self.node.until(&what, |_| self.count(text) == count);
    }
}

/// The `max_payload` that the log recommends for NATS if messages may have this many bytes.
fn advice(message_bytes_max: usize) -> String {
    format!("\"max_payload: {}\"", message_bytes_max + (16 << 10))
}

#[test]
fn the_log_says_what_nats_must_take_at_each_connect_and_when_the_limit_changes() {
    let mut nats = Limited::new(100 << 10);
    let a = nats.node("a", "");
    until_nodes(&a.node, 0);
    let (before, after) = (advice(64 << 10), advice(128 << 10));
    assert_eq!(state(&a.node)["nats"]["max_payload_bytes"], 100 << 10);
    assert_eq!(a.count(&before), 0, "it takes those");
    a.folder.write("throng.toml", "[limits]\nmessage_bytes_max = \"128KiB\"\n");
    a.node.signal("-HUP");
    a.until_log(&after, 1);
    nats.restart(&a.node, 100 << 10);
    a.until_log(&after, 2);
    nats.restart(&a.node, 1 << 20);
    until_nodes(&a.node, 0);
    assert_eq!((a.count(&before), a.count(&after)), (0, 2));
    assert_eq!(state(&a.node)["nats"]["max_payload_bytes"], 1 << 20);
}

#[test]
fn a_message_that_nats_refuses_is_a_gap_and_the_log_says_what_to_do() {
    let nats = Limited::new(4_096);
    let [a, b] = ["a", "b"].map(|name| nats.node(name, ""));
    [&a, &b].into_iter().for_each(|it| until_nodes(&it.node, 1));
    assert_eq!(a.count(&advice(64 << 10)), 1);
    let mut there = stream(&b.node, "topic=t");
    a.node.publish("t", json!("x".repeat(8_000)));
    a.node.publish("t", json!("end"));
    assert!(until_end(&mut there).is_empty());
    b.node.until("the gap is counted", |b| b.metric("throng_cluster_gaps_total") == 1.0);
    a.until_log("a message is larger than NATS allows", 1);
    a.node.until("it is counted", |a| a.metric("throng_cluster_too_large_total") >= 1.0);
    assert_eq!(a.count("NATS did not accept a packet"), 0);
}

#[test]
fn a_user_of_whom_nats_refuses_what_it_shows_is_missing_alone_until_nats_takes_more() {
    let mut nats = Limited::new(8_192);
    let config = "[[topics]]\npattern = \"room:*\"\npresence = true\n\
                  [presence]\nmeta_bytes_max = \"16KiB\"\n";
    let a = nats.node("a", config);
    let mut socket = websocket(&a.node, "user=large");
    let meta = json!({"text": "x".repeat(10_000)});
    command(&mut socket, json!({"type": "subscribe", "id": 1, "topic": "room:1", "meta": meta}));
    // The presence entries of these topics are together larger than a packet of NATS.
    let topics: Vec<String> = (0..40).map(|n| format!("topic=room:{n}")).collect();
    let crowd = (0..10).map(|n| format!("{}&user=u{n}", topics.join("&")));
    let _crowd: Vec<WebSocket> = crowd.map(|query| websocket(&a.node, &query)).collect();
    // This node joins late, and so it requests all entries.
    let b = nats.node("b", config);
    let has_users = |b: &Server, topic: &str, users: usize| {
        b.api("GET", &format!("/api/presence/{topic}"), None).1["users"] == users
    };
    b.node
        .until("all others are there", |b| (0..40).all(|n| has_users(b, &format!("room:{n}"), 10)));
    b.node.until("nothing is missing that can come", |b| {
        state(b)["nodes"][0]["presence_complete"] == true
    });
    a.until_log("a user's presence data is larger than NATS allows", 1);
    nats.restart(&a.node, 1 << 20);
    b.node.until("the user is there", |b| has_users(b, "room:1", 11));
}
