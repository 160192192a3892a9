//! A publisher that keeps one connection as long as the server lets it, like HTTP clients.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Stream, connect, header};

/// A connection that was idle for longer is not used again: after an upgrade the old server closes an idle connection
/// after 10 s, and a request must not race with that.
const IDLE_MAX: Duration = Duration::from_secs(5);

pub struct Api {
    address: SocketAddr,
    /// A connection, and the time of the last response.
    stream: Option<(Stream, Instant)>,
    calls: u64,
    connects: u64,
}

impl Api {
    pub fn new(address: SocketAddr) -> Self {
        Api { address, stream: None, calls: 0, connects: 0 }
    }

    /// Makes one call. It must succeed unless the server has announced that it closes the connection.
    pub fn call(&mut self, method: &str, target: &str, body: &Value) -> (u16, Value) {
        // A server may close a connection without a request.
        let is_open = |(stream, last): &(Stream, Instant)| {
            let socket = stream.reader.get_ref();
            socket.set_nonblocking(true).unwrap();
            let peeked = socket.peek(&mut [0]);
            socket.set_nonblocking(false).unwrap();
            let waits = |error: std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
            last.elapsed() < IDLE_MAX && peeked.is_err_and(waits)
        };
        let open = self.stream.take().filter(is_open).map(|(stream, _)| stream);
        let mut stream = open.unwrap_or_else(|| {
            self.connects += 1;
            Stream::new(connect(self.address))
        });
        let body = if body.is_null() { String::new() } else { body.to_string() };
        stream.send(&format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        let head = stream.head_if_any();
        assert!(
            head.ends_with("\r\n\r\n"),
            "{method} {target} got no answer, call {} on connection {}: {head:?}",
            self.calls,
            self.connects
        );
        let length = header(&head, "content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        std::io::Read::read_exact(&mut stream.reader, &mut body).unwrap();
        if !header(&head, "connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
            self.stream = Some((stream, Instant::now()));
        }
        self.calls += 1;
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let text = String::from_utf8(body).unwrap();
        let value = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{target}: {error}: {head}{text}"));
        (status, value)
    }

    /// Makes a call that must succeed.
    pub fn post(&mut self, target: &str, body: &Value) -> Value {
        let (status, reply) = self.call("POST", target, body);
        assert_eq!(status, 200, "{target}: {reply}");
        reply
    }

    /// Publishes. Returns the id.
    pub fn publish(&mut self, topic: &str, text: &str) -> String {
        let reply = self.post("/api/publish", &json!({"topic": topic, "data": text}));
        reply["id"].as_str().unwrap_or_default().into()
    }

    /// Returns all texts of a topic's history, read in pages.
    pub fn history(&mut self, topic: &str) -> Vec<String> {
        let (mut all, mut since) = (Vec::new(), String::new());
        loop {
            let target = format!("/api/history/{topic}?limit=1000{since}");
            let (status, page) = self.call("GET", &target, &Value::Null);
            assert_eq!(status, 200, "{page}");
            let messages = page["messages"].as_array().unwrap();
            all.extend(messages.iter().map(|one| one["data"].as_str().unwrap_or_default().into()));
            match page["next"].as_str() {
                Some(next) if page["more"] == true && !messages.is_empty() => {
                    since = format!("&since={next}");
                }
                _ => return all,
            }
        }
    }
}
