//! A server whose topics have history, with or without a store. A test can restart it.

use std::ops::Deref;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use crate::outbox::support::Postgres;
use crate::support::*;

/// The topic rules of all tests here.
const TOPICS: &str = include_str!("topics.toml");

/// The rule for durable topics, which need a store. A publisher to them gets its response after the commit.
const DURABLE: &str =
    "[[topics]]\npattern = \"d:*\"\nhistory_messages_max = 1000\ndurable = true\n";

/// The place of the history.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Storage {
    Memory,
    Disk,
    Postgres,
}

pub const BOTH: [Storage; 2] = [Storage::Memory, Storage::Disk];

pub const EVERYWHERE: [Storage; 3] = [Storage::Memory, Storage::Disk, Storage::Postgres];

impl Storage {
    /// Returns true if messages and cursors outlive the server.
    pub fn outlives_server(self) -> bool {
        self != Storage::Memory
    }

    fn topics(self) -> String {
        match self {
            Storage::Memory => TOPICS.into(),
            Storage::Disk => format!("{TOPICS}\n{DURABLE}"),
            // Each topic with history must be durable.
            Storage::Postgres => {
                let durable = |line: &str| match line {
                    "enabled = true" => format!("{line}\ndurable = true\n"),
                    _ if line.starts_with("history_messages_max") => {
                        format!("{line}\ndurable = true\n")
                    }
                    _ => format!("{line}\n"),
                };
                TOPICS.lines().map(durable).collect()
            }
        }
    }
}

pub struct Node {
    folder: Scratch,
    storage: Storage,
    settings: Vec<(String, String)>,
    server: Option<Server>,
    /// The database of [`Storage::Postgres`].
    postgres: Option<Postgres>,
}

impl Node {
    pub fn new(storage: Storage) -> Self {
        Node::with(storage, &[])
    }

    /// Starts a server with further settings, as environment variables.
    pub fn with(storage: Storage, settings: &[(&str, &str)]) -> Self {
        let folder = Scratch::new("recovery");
        folder.write("topics.toml", &storage.topics());
        let settings = settings.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        let settings = settings.collect();
        let postgres = (storage == Storage::Postgres).then(Postgres::start);
        let mut node = Node { folder, storage, settings, server: None, postgres };
        node.start();
        node
    }

    fn start(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(["serve", "--shards", "3", "--listen", "127.0.0.1:0"]);
        command.args(["--admin", "127.0.0.1:0", "--config"]);
        command.arg(self.folder.path().join("topics.toml"));
        if self.storage == Storage::Disk {
            command.arg("--data").arg(self.folder.path().join("data"));
        }
        let url = self.postgres.as_ref().map(|postgres| postgres.url("postgres"));
        let url = url.iter().map(|url| ("THRONG_HISTORY_URL", url.as_str()));
        let settings = self.settings.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let settings: Vec<_> = settings.chain(url).collect();
        let server = Server::run(command, &settings);
        if self.storage == Storage::Postgres {
            server.until("it is connected", |it| it.metric("throng_history_connected") == 1.0);
        }
        self.server = Some(server);
    }

    /// Stops the server properly, and starts it again at other addresses.
    pub fn restart(&mut self) {
        self.signal("-TERM");
        let mut server = self.server.take().unwrap();
        assert!(wait_within(&mut server.child).success());
        self.start();
    }

    /// Kills the server with kill -9, and starts it again. Everything that it acknowledged must still exist.
    pub fn crash(&mut self) {
        let mut server = self.server.take().unwrap();
        server.child.kill().unwrap();
        wait_within(&mut server.child);
        self.start();
    }

    /// Publishes with further fields. Returns the id.
    pub fn publish_with(&self, topic: &str, data: Value, more: Value) -> String {
        let mut body = json!({"topic": topic, "data": data});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = self.post("/api/publish", body);
        self.flush();
        id(&reply)
    }

    pub fn send(&self, user: &str, data: Value) -> String {
        let reply = self.post("/api/send", json!({"user": user, "data": data}));
        self.flush();
        id(&reply)
    }

    /// Waits until all earlier messages and cursors are on disk and readable. A publisher to a topic that is not durable gets its
    /// response before that.
    pub fn flush(&self) {
        match self.storage {
            Storage::Memory => {}
            Storage::Disk => _ = self.publish("d:flush", json!(null)),
            // Their publishers have waited for the commit.
            Storage::Postgres => self.until("all cursors are written", |node| {
                node.metric("throng_history_pending_cursors") == 0.0
            }),
        }
    }

    /// Publishes these numbers one after the other. Returns their ids.
    pub fn count(&self, topic: &str, numbers: std::ops::Range<u64>) -> Vec<String> {
        let publish = |number| id(&self.publish(topic, json!(number)));
        let ids = numbers.map(publish).collect();
        self.flush();
        ids
    }

    /// Returns the data of a topic's history, and the whole response.
    pub fn history(&self, topic: &str, query: &str) -> (Vec<Value>, Value) {
        let (status, page) = self.api("GET", &format!("/api/history/{topic}?{query}"), None);
        assert_eq!(status, 200, "{topic}: {page}");
        (datas(&page), page)
    }

    /// Acknowledges by `POST /ack`. Returns the status and the response.
    pub fn ack(&self, body: Value) -> (u16, Value) {
        json(self.client, "POST", "/ack", Some(body), "")
    }
}

impl Deref for Node {
    type Target = Server;

    fn deref(&self) -> &Server {
        self.server.as_ref().unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // The server ends before its folder is removed.
        self.server = None;
    }
}

pub fn id(reply: &Value) -> String {
    reply["id"].as_str().unwrap_or_else(|| panic!("no id: {reply}")).into()
}

/// Returns the data of the messages of a page or a response.
pub fn datas(reply: &Value) -> Vec<Value> {
    let messages = reply["messages"].as_array().unwrap_or_else(|| panic!("{reply}"));
    messages.iter().map(|message| message["data"].clone()).collect()
}

/// Returns numbers as the data of messages.
pub fn numbers(range: std::ops::Range<u64>) -> Vec<Value> {
    range.map(Value::from).collect()
}

/// Returns unique data, for a message that marks the end of all messages before it.
pub fn sentinel() -> Value {
    static LAST: AtomicU32 = AtomicU32::new(0);
    format!("sentinel {}", LAST.fetch_add(1, Ordering::Relaxed)).into()
}

pub fn is_sentinel(data: &Value) -> bool {
    data.as_str().is_some_and(|text| text.starts_with("sentinel "))
}

/// Returns unique data for a broadcast that marks the end of everything that the server has sent before.
pub fn mark() -> Value {
    static LAST: AtomicU32 = AtomicU32::new(0);
    format!("mark {}", LAST.fetch_add(1, Ordering::Relaxed)).into()
}

pub fn is_mark(data: &Value) -> bool {
    data.as_str().is_some_and(|text| text.starts_with("mark "))
}

/// An id of an epoch that none of these servers has, except by a rare chance.
pub const ELSEWHERE: &str = "00000001:3";
