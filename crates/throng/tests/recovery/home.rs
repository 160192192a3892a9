//! A server whose topics have history, with or without a store, that can be started again in its
//! place.

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use crate::support::*;

/// The rules of all tests here.
const TOPICS: &str = include_str!("topics.toml");

/// With a store there are topics whose publishers are answered after the commit.
const DURABLE: &str =
    "[[topics]]\npattern = \"d:*\"\nhistory_messages_max = 1000\ndurable = true\n";

/// Where what is kept is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Keeps {
    Memory,
    Disk,
}

pub const BOTH: [Keeps; 2] = [Keeps::Memory, Keeps::Disk];

pub struct Home {
    folder: PathBuf,
    keeps: Keeps,
    settings: Vec<(String, String)>,
    server: Option<Server>,
}

impl Home {
    pub fn new(keeps: Keeps) -> Self {
        Home::with(keeps, &[])
    }

    /// With further settings, as environment variables.
    pub fn with(keeps: Keeps, settings: &[(&str, &str)]) -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let name = format!("throng-recovery-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let durable = if keeps == Keeps::Disk { DURABLE } else { "" };
        std::fs::write(folder.join("topics.toml"), format!("{TOPICS}\n{durable}")).unwrap();
        let settings = settings.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        let mut home = Home { folder, keeps, settings: settings.collect(), server: None };
        let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
        home.start(anywhere, anywhere);
        home
    }

    fn start(&mut self, client: SocketAddr, admin: SocketAddr) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(["serve", "--shards", "3", "--listen", &client.to_string()]);
        command.args(["--admin", &admin.to_string(), "--config"]);
        command.arg(self.folder.join("topics.toml"));
        if self.keeps == Keeps::Disk {
            command.arg("--data").arg(self.folder.join("data"));
        }
        let settings: Vec<_> =
            self.settings.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        self.server = Some(Server::run(command, &settings));
    }

    /// Ends the server in order, and starts it at the same addresses.
    pub fn restart(&mut self) {
        self.signal("-TERM");
        let mut server = self.server.take().unwrap();
        assert!(server.child.wait().unwrap().success());
        self.start(server.client, server.admin);
    }

    /// The same with kill -9: what was answered before is there all the same.
    pub fn crash(&mut self) {
        let mut server = self.server.take().unwrap();
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        self.start(server.client, server.admin);
    }

    /// Publishes with further fields; the id.
    pub fn tell(&self, topic: &str, data: Value, more: Value) -> String {
        let mut body = json!({"topic": topic, "data": data});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = self.post("/api/publish", body);
        self.settle();
        id(&answer)
    }

    pub fn send(&self, user: &str, data: Value) -> String {
        let answer = self.post("/api/send", json!({"user": user, "data": data}));
        self.settle();
        id(&answer)
    }

    /// Waits until what was published before is on disk, and there for who looks: a publisher is
    /// answered sooner where the topic is not durable.
    pub fn settle(&self) {
        if self.keeps == Keeps::Disk {
            self.publish("d:settle", json!(null));
        }
    }

    /// Publishes a number after the other; their ids.
    pub fn count(&self, topic: &str, numbers: std::ops::Range<u64>) -> Vec<String> {
        let publish = |number| id(&self.publish(topic, json!(number)));
        let ids = numbers.map(publish).collect();
        self.settle();
        ids
    }

    /// The data of what is kept of a topic, and the whole answer.
    pub fn history(&self, topic: &str, query: &str) -> (Vec<Value>, Value) {
        let (status, page) = self.api("GET", &format!("/api/history/{topic}?{query}"), None);
        assert_eq!(status, 200, "{topic}: {page}");
        (datas(&page), page)
    }

    /// An acknowledgement by `POST /ack`: status and answer.
    pub fn ack(&self, body: Value) -> (u16, Value) {
        json(self.client, "POST", "/ack", Some(body), "")
    }
}

impl Deref for Home {
    type Target = Server;

    fn deref(&self) -> &Server {
        self.server.as_ref().unwrap()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.server = None;
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub fn id(answer: &Value) -> String {
    answer["id"].as_str().unwrap_or_else(|| panic!("no id: {answer}")).into()
}

/// The data of a page's or an answer's messages.
pub fn datas(answer: &Value) -> Vec<Value> {
    let messages = answer["messages"].as_array().unwrap_or_else(|| panic!("{answer}"));
    messages.iter().map(|message| message["data"].clone()).collect()
}

/// Numbers as messages carry them.
pub fn numbers(range: std::ops::Range<u64>) -> Vec<Value> {
    range.map(Value::from).collect()
}

/// Something that comes after all that was published before, and is not taken for another.
pub fn mark() -> Value {
    static LAST: AtomicU32 = AtomicU32::new(0);
    format!("mark {}", LAST.fetch_add(1, Ordering::Relaxed)).into()
}

pub fn is_mark(data: &Value) -> bool {
    data.as_str().is_some_and(|text| text.starts_with("mark "))
}

/// The id of another numbering than any server's here, as far as chance allows.
pub const ELSEWHERE: &str = "00000001:3";
