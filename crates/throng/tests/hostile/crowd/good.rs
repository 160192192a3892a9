//! Well-behaved clients, one of each transport. Each must get every message once and in order.

use std::sync::Arc;
use std::thread::{Scope, ScopedJoinHandle};

use serde_json::Value;
use tungstenite::Message;

use super::*;

/// The topic to which only the application publishes.
pub const TOPIC: &str = "good";

/// The user of the Phoenix clients.
pub const USER: &str = "good";

/// The last message.
const END: &str = "end";

/// How many messages a listener may be behind, so that a slow machine makes no slow consumer of it.
const BEHIND_MAX: u64 = 20;

const NAMES: [&str; 6] = ["sse", "stream", "ws", "phoenix", "phoenix_longpoll", "poll"];

/// The listeners, in the order of [`NAMES`]. They run until the last message.
pub struct Clients<'scope> {
    listeners: Vec<ScopedJoinHandle<'scope, Vec<u64>>>,
    /// How many messages each has received.
    received: Arc<[AtomicU64; NAMES.len()]>,
    published: u64,
}

impl<'scope> Clients<'scope> {
    pub fn spawn<'env>(scope: &'scope Scope<'scope, 'env>, server: &'env Server) -> Self {
        let mut sse = server.listen(&format!("/sse?topic={TOPIC}"));
        let mut stream = server.listen(&format!("/stream?topic={TOPIC}"));
        let mut socket = websocket(server, &format!("topic={TOPIC}"));
        let mut phoenix = phoenix(server);
        let (token, mut since) = (longpoll(server), poll(server, "").1);
        server.until("the good ones are there", are_alone);
        let received = Arc::new([const { AtomicU64::new(0) }; NAMES.len()]);
        let count = |at: usize| {
            let received = received.clone();
            move |messages: usize| _ = received[at].fetch_add(messages as u64, Ordering::Relaxed)
        };
        let [one, two, three, four, five, six] = [0, 1, 2, 3, 4, 5].map(count);
        let listeners = vec![
            scope.spawn(move || all(one, || plain(&sse.event()))),
            scope.spawn(move || all(two, || of(&[stream.object()]))),
            scope.spawn(move || all(three, || of(&[receive(&mut socket)]))),
            scope.spawn(move || all(four, || pushed(&[receive(&mut phoenix)]))),
            scope.spawn(move || all(five, || polled(server, &token))),
            scope.spawn(move || {
                all(six, || {
                    let (messages, next) = poll(server, &format!("&since={since}"));
                    since = next;
                    of(&messages)
                })
            }),
        ];
        Clients { listeners, received, published: 0 }
    }

    /// Publishes the next message, as soon as no listener is far behind.
    pub fn publish(&mut self, server: &Server) {
        server.until("the good ones keep up", |_| {
            for (name, listener) in NAMES.iter().zip(&self.listeners) {
                assert!(!listener.is_finished(), "the client of {name} has ended");
            }
            let received = self.received.iter().map(|it| it.load(Ordering::Relaxed));
            received.min().unwrap() + BEHIND_MAX > self.published
        });
        server.publish(TOPIC, json!(self.published));
        self.published += 1;
    }

    pub fn published(&self) -> u64 {
        self.published
    }

    /// Publishes the last message, and checks the messages of each listener.
    pub fn end(self, server: &Server) {
        server.publish(TOPIC, json!(END));
        server.until("the good ones have got the last message", |_| {
            self.listeners.iter().all(ScopedJoinHandle::is_finished)
        });
        let want: Vec<u64> = (0..self.published).collect();
        for (name, listener) in NAMES.iter().zip(self.listeners) {
            assert_eq!(listener.join().unwrap(), want, "{name}");
        }
    }
}

/// Returns the server's counts: connections by transport, members of the topic, sessions, outboxes.
pub fn gauges(server: &Server) -> Vec<(&'static str, u64)> {
    let mut all: Vec<_> = NAMES
        .into_iter()
        .map(|of| (of, server.metric(&format!("throng_connections{{transport=\"{of}\"}}")) as u64))
        .collect();
    let topic = server.api("GET", &format!("/api/topics/{TOPIC}"), None).1;
    all.push(("members", topic["members"].as_u64().unwrap_or(0)));
    all.push(("sessions", server.metric("throng_longpoll_sessions") as u64));
    all.push(("outboxes", server.metric("throng_outboxes") as u64));
    all
}

/// Returns whether only one client of each transport is connected. Polls come and go, and a session
/// has an outbox.
pub fn are_alone(server: &Server) -> bool {
    gauges(server).iter().all(|(of, count)| match *of {
        "poll" | "outboxes" => *count <= 1,
        "members" => matches!(count, 5 | 6),
        _ => *count == 1,
    })
}

/// Collects numbers until the last message, and counts them.
fn all(count: impl Fn(usize), mut next: impl FnMut() -> Vec<Value>) -> Vec<u64> {
    let mut all = Vec::new();
    loop {
        let values = next();
        count(values.len());
        for value in values {
            if value == END {
                return all;
            }
            all.push(value.as_u64().unwrap_or_else(|| panic!("{value} was not published")));
        }
    }
}

/// Returns the data of an event without a name. Events with a name are about presence.
fn plain(event: &[(String, String)]) -> Vec<Value> {
    let of = |field: &str| event.iter().find(|(name, _)| name == field).map(|(_, text)| text);
    let data = of("data").filter(|_| of("event").is_none());
    data.map(|text| serde_json::from_str(text).unwrap_or_else(|_| json!(text)))
        .into_iter()
        .collect()
}

/// Returns the data of messages. Skips other objects and messages about presence.
fn of(objects: &[Value]) -> Vec<Value> {
    let messages = objects.iter().filter(|it| it["type"] == "message" && it["event"] == "message");
    messages.map(|object| object["data"].clone()).collect()
}

/// Returns the data of Phoenix broadcasts.
fn pushed(messages: &[Value]) -> Vec<Value> {
    let ours = messages.iter().filter(|it| it[2] == TOPIC && it[3] == "message");
    ours.map(|it| it[4]["data"].clone()).collect()
}

fn poll(server: &Server, since: &str) -> (Vec<Value>, String) {
    let timeout = if since.is_empty() { 0 } else { 5 };
    let (status, reply) = server.get(&format!("/poll?topic={TOPIC}&timeout={timeout}{since}"));
    assert_eq!(status, 200, "{reply}");
    assert_ne!(reply["recovered"], json!(false), "{reply}");
    (reply["messages"].as_array().unwrap().clone(), reply["since"].as_str().unwrap().into())
}

fn phoenix(server: &Server) -> WebSocket {
    let url = format!("ws://{}/socket/websocket?vsn=2.0.0&user={USER}", server.client);
    let (mut socket, _) = tungstenite::client(url, server.connect()).unwrap();
    socket.send(Message::text(format!(r#"["1","1","{TOPIC}","phx_join",{{}}]"#))).unwrap();
    assert_eq!(receive(&mut socket)[4]["status"], "ok");
    socket
}

const LONGPOLL: &str = "/socket/longpoll?vsn=2.0.0&user=good";

/// Returns the token of a session that has joined and was polled. One that was never polled ends after ten seconds.
fn longpoll(server: &Server) -> String {
    let token = server.get(LONGPOLL).1["token"].as_str().unwrap().to_string();
    let join = format!(r#"["1","1","{TOPIC}","phx_join",{{}}]"#);
    let request = format!(
        "POST {LONGPOLL}&token={token} HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{join}",
        join.len()
    );
    assert!(server.exchange(request.as_bytes()).ends_with("{\"status\":200}"));
    let (_, joined) = server.get(&format!("{LONGPOLL}&token={token}"));
    assert!(joined.to_string().contains("phx_reply"), "{joined}");
    token
}

fn polled(server: &Server, token: &str) -> Vec<Value> {
    let (_, reply) = server.get(&format!("{LONGPOLL}&token={token}"));
    assert!(reply["status"] == 200 || reply["status"] == 204, "{reply}");
    let texts = reply["messages"].as_array().unwrap().iter().map(|text| text.as_str().unwrap());
    pushed(&texts.map(|text| serde_json::from_str(text).unwrap()).collect::<Vec<_>>())
}
