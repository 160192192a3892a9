//! Clients of every transport that receive numbered messages on one connection each, and their publisher.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::mqtt::client::{Client, Connect, V3, V5, filter};
use crate::support::{Stream, TIMEOUT, WebSocket};
use crate::upgrade::api::Api;
use crate::upgrade::node::{Node, SetOnDrop};

/// The transport of a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Sse,
    Stream,
    Poll,
    Ws,
    Phoenix,
    Longpoll,
    /// MQTT 3.1.1 with this QoS.
    Mqtt3(u8),
    /// MQTT 5 with this QoS.
    Mqtt5(u8),
}

pub const ALL: [Kind; 12] = [
    Kind::Sse,
    Kind::Stream,
    Kind::Poll,
    Kind::Ws,
    Kind::Phoenix,
    Kind::Longpoll,
    Kind::Mqtt3(0),
    Kind::Mqtt3(1),
    Kind::Mqtt3(2),
    Kind::Mqtt5(0),
    Kind::Mqtt5(1),
    Kind::Mqtt5(2),
];

enum Io {
    Lines(Stream),
    /// A connection for polls, and the position for the next poll.
    Poll(Stream, String),
    /// A connection for polls of a session.
    Longpoll(Stream),
    Ws(Box<WebSocket>),
    Mqtt(Box<Client>),
}

pub struct Member {
    pub kind: Kind,
    pub topic: String,
    pub user: String,
    io: Io,
    /// The target of its polls.
    target: String,
    waiting: VecDeque<Value>,
    /// The ids of its messages, if its transport has them.
    pub ids: Vec<String>,
}

/// Opens a WebSocket with this path.
pub fn websocket_at(node: &Node, path: &str) -> WebSocket {
    let url = format!("ws://{}{path}", node.client);
    tungstenite::client(url, node.connect()).unwrap().0
}

/// Reads the next text of a WebSocket.
pub fn text_of(socket: &mut WebSocket) -> Value {
    crate::support::receive(socket)
}

fn post(stream: &mut Stream, target: &str, body: &str) -> Value {
    let length = body.len();
    stream.send(&format!(
        "POST {target} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    ));
    let (status, response) = stream.read_reply();
    assert_eq!(status, 200, "{target}: {response}");
    serde_json::from_str(&response).unwrap()
}

fn get(stream: &mut Stream, target: &str) -> Value {
    stream.send(&format!("GET {target} HTTP/1.1\r\nHost: t\r\n\r\n"));
    let (status, response) = stream.read_reply();
    assert_eq!(status, 200, "{target}: {response}");
    serde_json::from_str(&response).unwrap_or_else(|error| panic!("{target}: {error}: {response}"))
}

impl Member {
    /// Connects, and waits until the client is a member of the topic.
    pub fn open(node: &Node, kind: Kind, topic: &str) -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let mut target = String::new();
        let user = format!("u{number}");
        let query = format!("topic={topic}&user={user}");
        let io = match kind {
            Kind::Sse => {
                let mut stream = node.listen(&format!("/sse?{query}&format=json"));
                assert_eq!(stream.event()[0].0, "retry");
                Io::Lines(stream)
            }
            Kind::Stream => {
                let mut stream = node.listen(&format!("/stream?{query}"));
                assert_eq!(stream.object()["type"], "welcome");
                Io::Lines(stream)
            }
            Kind::Poll => {
                let mut stream = Stream::new(node.connect());
                target = format!("/poll?{query}");
                let first = get(&mut stream, &format!("{target}&timeout=0"));
                Io::Poll(stream, first["since"].as_str().unwrap().into())
            }
            Kind::Ws => {
                let mut socket = websocket_at(node, &format!("/ws?{query}"));
                assert_eq!(text_of(&mut socket)["type"], "welcome");
                Io::Ws(Box::new(socket))
            }
            Kind::Phoenix => {
                let path = format!("/socket/websocket?vsn=2.0.0&user={user}");
                let mut socket = websocket_at(node, &path);
                let join = json!(["1", "1", topic, "phx_join", {}]).to_string();
                socket.send(tungstenite::Message::text(join)).unwrap();
                let reply = text_of(&mut socket);
                assert_eq!(reply[4]["status"], "ok", "{reply}");
                Io::Ws(Box::new(socket))
            }
            Kind::Longpoll => {
                let mut stream = Stream::new(node.connect());
                let base = format!("/socket/longpoll?vsn=2.0.0&user={user}");
                let token = get(&mut stream, &base)["token"].as_str().unwrap().to_string();
                target = format!("{base}&token={token}");
                let join = json!(["1", "1", topic, "phx_join", {}]).to_string();
                assert_eq!(post(&mut stream, &target, &join)["status"], 200);
                Io::Longpoll(stream)
            }
            Kind::Mqtt3(qos) | Kind::Mqtt5(qos) => {
                let version = if matches!(kind, Kind::Mqtt3(_)) { V3 } else { V5 };
                let connect = Connect::persistent(version, &format!("member-{number}"));
                let mut client = connect.user(&user).open(node.client);
                // A test has few topics.
                client.subscribe(&[filter(topic.to_string().leak(), qos)]);
                Io::Mqtt(Box::new(client))
            }
        };
        let (waiting, ids) = (VecDeque::new(), Vec::new());
        let mut member = Member { kind, topic: topic.into(), user, io, target, waiting, ids };
        if kind == Kind::Longpoll {
            // The reply to its join comes first.
            let reply = member.object(Instant::now() + TIMEOUT);
            assert_eq!(reply[4]["status"], "ok", "{reply}");
        }
        member
    }

    /// A member that also receives messages to its user and broadcasts; by MQTT only those to its user.
    pub fn as_user(node: &Node, kind: Kind, topic: &str) -> Self {
        let mut member = Member::open(node, kind, topic);
        let own = format!("@{}", member.user);
        for (join, topic) in [("2", own.as_str()), ("3", "*")] {
            let join = json!([join, join, topic, "phx_join", {}]).to_string();
            match &mut member.io {
                Io::Ws(socket) if kind == Kind::Phoenix => {
                    socket.send(tungstenite::Message::text(join)).unwrap();
                    let reply = text_of(socket);
                    assert_eq!(reply[4]["status"], "ok", "{reply}");
                }
                Io::Longpoll(stream) => {
                    assert_eq!(post(stream, &member.target, &join)["status"], 200);
                }
                Io::Mqtt(client) if topic != "*" => {
                    client.subscribe(&[filter(topic.to_string().leak(), 1)]);
                }
                Io::Lines(_) | Io::Poll(..) | Io::Ws(_) | Io::Mqtt(_) => {}
            }
        }
        member
    }

    /// Opens a member of each transport.
    pub fn all(node: &Node, topic: &str) -> Vec<Self> {
        let members: Vec<_> = ALL.iter().map(|kind| Member::open(node, *kind, topic)).collect();
        // A poll counts as a member only while it waits, and MQTT members count once SUBACK has arrived.
        node.until_members(&topic.replace('/', "%2F"), ALL.len() as u64 - 1);
        members
    }

    /// Returns the next object on its connection.
    fn object(&mut self, end: Instant) -> Value {
        loop {
            assert!(Instant::now() < end, "{:?} in {}: nothing comes", self.kind, self.topic);
            if let Some(object) = self.waiting.pop_front() {
                return object;
            }
            match &mut self.io {
                Io::Lines(stream) if self.kind == Kind::Stream => return stream.object(),
                Io::Lines(stream) => {
                    let event = stream.event();
                    let data = event.iter().find(|(field, _)| field == "data");
                    if let Some((_, data)) = data {
                        return serde_json::from_str(data).unwrap();
                    }
                }
                Io::Ws(socket) => return text_of(socket),
                Io::Poll(stream, since) => {
                    let response = get(stream, &format!("{}&timeout=5&since={since}", self.target));
                    assert_ne!(response["recovered"], false, "{:?}: {response}", self.kind);
                    *since = response["since"].as_str().unwrap().into();
                    self.waiting.extend(response["messages"].as_array().unwrap().iter().cloned());
                }
                Io::Longpoll(stream) => {
                    let response = get(stream, &self.target);
                    let status = response["status"].as_u64().unwrap();
                    assert!([200, 204].contains(&status), "{:?}: {response}", self.kind);
                    let messages = response["messages"].as_array().into_iter().flatten();
                    let parse = |one: &Value| serde_json::from_str(one.as_str().unwrap()).unwrap();
                    self.waiting.extend(messages.map(parse));
                }
                Io::Mqtt(_) => unreachable!("it has packets"),
            }
        }
    }

    /// Returns the text of the next message.
    pub fn next(&mut self) -> String {
        if let Io::Mqtt(client) = &mut self.io {
            let message = client.message();
            assert!(!message.dup, "{:?}: {message:?} came again", self.kind);
            return message.payload;
        }
        // Heartbeats would keep the read timeout from ever ending this.
        let end = Instant::now() + TIMEOUT;
        loop {
            let object = self.object(end);
            let data = match self.kind {
                Kind::Phoenix | Kind::Longpoll => match object[3] == "message" {
                    true => &object[4]["data"],
                    false
                        if ["phx_reply", "presence_state", "presence_diff"]
                            .contains(&object[3].as_str().unwrap()) =>
                    {
                        continue;
                    }
                    false => panic!("{:?}: {object}", self.kind),
                },
                _ => match object["type"].as_str().unwrap_or_default() {
                    "message" if object["event"] == "message" => {
                        self.ids.extend(object["id"].as_str().map(String::from));
                        &object["data"]
                    }
                    "message" | "heartbeat" | "recovery" | "reply" => continue,
                    _ => panic!("{:?}: {object}", self.kind),
                },
            };
            return data.as_str().unwrap_or_else(|| panic!("{:?}: {object}", self.kind)).into();
        }
    }

    /// Returns all texts before the last one, which is "end".
    pub fn before_end(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            let text = self.next();
            if text == "end" {
                return all;
            }
            all.push(text);
        }
    }

    /// Checks that it received these messages, with ids of one epoch in ascending order.
    pub fn check_received(&self, received: &[String], expected: &[String]) {
        let first =
            received.iter().zip(expected).position(|(received, expected)| received != expected);
        assert!(
            received == expected,
            "{:?} in {}: {} of {}; it goes wrong at {first:?}: {:?}",
            self.kind,
            self.topic,
            received.len(),
            expected.len(),
            first.map(|at| &received[at.saturating_sub(2)..received.len().min(at + 3)]),
        );
        let split = |id: &String| {
            let (epoch, rest) = id.split_once(':').unwrap();
            let offset = rest.split('/').next().unwrap().parse::<u64>().unwrap();
            (epoch.to_string(), offset)
        };
        let ids: Vec<_> = self.ids.iter().map(split).collect();
        let in_order = ids.windows(2).all(|two| two[0].0 == two[1].0 && two[0].1 < two[1].1);
        assert!(in_order, "{:?} in {}: {ids:?}", self.kind, self.topic);
    }
}

/// Publishes numbers during a test.
#[derive(Default)]
pub struct Publisher {
    count: AtomicUsize,
    stop: AtomicBool,
}

impl Publisher {
    /// The maximum number of messages in each topic: below all limits of the server, however long the test takes.
    pub const MESSAGES_MAX: usize = 2_000;

    /// Publishes 0, 1, 2 and so on to each topic until [`Publisher::meanwhile`] has ended, and then "end". Returns
    /// how many numbers.
    pub fn run(&self, node: &Node, topics: &[&str]) -> usize {
        let mut api = Api::new(node.admin);
        while !self.stop.load(Ordering::Relaxed) {
            let number = self.count.load(Ordering::Relaxed);
            if number < Publisher::MESSAGES_MAX {
                topics.iter().for_each(|topic| _ = api.publish(topic, &number.to_string()));
                self.count.store(number + 1, Ordering::Relaxed);
            }
            // Fast enough that some messages are in flight at every moment.
            std::thread::sleep(Duration::from_millis(2));
        }
        topics.iter().for_each(|topic| _ = api.publish(topic, "end"));
        self.count.load(Ordering::Relaxed)
    }

    /// Waits until it has published more messages.
    pub fn until_more(&self) {
        let expected = self.count.load(Ordering::Relaxed) + 20;
        let end = Instant::now() + TIMEOUT;
        while self.count.load(Ordering::Relaxed) < expected.min(Publisher::MESSAGES_MAX) {
            assert!(Instant::now() < end, "nothing is published");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Runs `act` while it publishes. Publishing ends afterwards, even if `act` fails.
    pub fn meanwhile(&self, act: impl FnOnce()) {
        let _guard = SetOnDrop(&self.stop);
        self.until_more();
        act();
        self.until_more();
    }
}

/// Returns the numbers of a range as texts.
pub fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}
