//! A client of each transport that can be cut off, and that resumes as real clients do.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

use crate::recovery::node::{is_mark, is_sentinel, mark, sentinel};
use crate::support::*;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ResumeStyle {
    /// With the last `id:` in the header Last-Event-ID.
    Sse,
    /// With `since:TOPIC=` for each topic.
    Stream,
    /// With the `since` of the response before.
    Poll,
    /// With `since` in each subscription.
    Ws,
}

pub const ALL: [ResumeStyle; 4] =
    [ResumeStyle::Sse, ResumeStyle::Stream, ResumeStyle::Poll, ResumeStyle::Ws];

enum Io {
    Away,
    Poll,
    Lines(Stream),
    Ws(Box<WebSocket>),
}

pub struct Listener {
    pub style: ResumeStyle,
    topics: Vec<String>,
    /// Further parameters of the query.
    query: String,
    /// Further fields of each subscription on a WebSocket.
    fields: Value,
    /// The positions up to which it has each topic, or all topics ("").
    pub positions: BTreeMap<String, String>,
    /// The results of its recovery since it connected last: objects with `since`, `recovered` and
    /// `reason`.
    pub recoveries: Vec<Value>,
    /// The topics whose state is complete, since it connected last.
    pub states: Vec<Value>,
    waiting: VecDeque<Value>,
    io: Io,
}

impl Listener {
    /// Returns a connected listener.
    pub fn new(server: &Server, style: ResumeStyle, topics: &[&str]) -> Self {
        Listener::with(server, style, topics, "")
    }

    /// Returns a connected listener with further parameters, like `user=al`. On a WebSocket, tags and
    /// `since` are parameters of the subscriptions.
    pub fn with(server: &Server, style: ResumeStyle, topics: &[&str], query: &str) -> Self {
        let mut listener = Listener::away(style, topics, query);
        listener.connect(server);
        listener
    }

    /// Returns a listener that is not connected yet.
    pub fn away(style: ResumeStyle, topics: &[&str], query: &str) -> Self {
        let of_each = |pair: &&str| pair.starts_with("tag=") || pair.starts_with("since=");
        let (of_each, rest): (Vec<&str>, Vec<&str>) =
            query.split('&').partition(|pair| style == ResumeStyle::Ws && of_each(pair));
        let tags: Vec<&str> = of_each.iter().filter_map(|pair| pair.strip_prefix("tag=")).collect();
        let mut fields = if tags.is_empty() { json!({}) } else { json!({"tags": tags}) };
        let since = of_each.iter().find_map(|pair| pair.strip_prefix("since="));
        since.iter().for_each(|since| fields["since"] = json!(since));
        Listener {
            style,
            topics: topics.iter().map(|topic| topic.to_string()).collect(),
            query: rest.join("&"),
            fields,
            positions: BTreeMap::new(),
            recoveries: Vec::new(),
            states: Vec::new(),
            waiting: VecDeque::new(),
            io: Io::Away,
        }
    }

    /// Sets its positions as if it had received everything up to this id.
    pub fn seen(mut self, id: &str) -> Self {
        for topic in self.topics.iter().cloned().chain([String::new()]) {
            self.positions.insert(topic, id.into());
        }
        self
    }

    fn target(&self, path: &str) -> String {
        let topics = self.topics.iter().map(|topic| format!("topic={topic}"));
        let pairs: Vec<String> = topics.chain([self.query.clone()]).collect();
        format!("/{path}?{}", pairs.join("&"))
    }

    /// Connects, and resumes from its positions.
    pub fn connect(&mut self, server: &Server) {
        self.recoveries.clear();
        self.states.clear();
        self.io = match self.style {
            ResumeStyle::Sse => {
                let last = self.positions.get("").map(|id| format!("Last-Event-ID: {id}\r\n"));
                let target = format!("{}&format=json", self.target("sse"));
                let mut stream = Stream::new(server.connect());
                let last = last.unwrap_or_default();
                stream.send(&format!("GET {target} HTTP/1.1\r\nHost: t\r\n{last}\r\n"));
                assert!(stream.head().starts_with("HTTP/1.1 200 "));
                assert_eq!(stream.event()[0].0, "retry");
                Io::Lines(stream)
            }
            ResumeStyle::Stream => {
                let positions =
                    self.topics.iter().filter_map(|topic| self.positions.get_key_value(topic));
                let since: String =
                    positions.map(|(topic, id)| format!("&since:{topic}={id}")).collect();
                let mut stream = server.listen(&(self.target("stream") + &since));
                assert_eq!(stream.object()["type"], "welcome");
                Io::Lines(stream)
            }
            ResumeStyle::Poll => Io::Poll,
            ResumeStyle::Ws => {
                self.io = Io::Ws(Box::new(websocket(server, &self.query)));
                for topic in self.topics.clone() {
                    self.subscribe(&topic);
                }
                return;
            }
        };
        if self.style == ResumeStyle::Poll && !self.positions.contains_key("") {
            // The first poll fetches the position where it begins.
            self.poll(server, 0);
        }
    }

    fn subscribe(&mut self, topic: &str) {
        let mut command = json!({"type": "subscribe", "id": topic, "topic": topic});
        command.as_object_mut().unwrap().extend(self.fields.as_object().unwrap().clone());
        if let Some(position) = self.positions.get(topic) {
            command["since"] = json!(position);
        }
        let reply = self.command(command);
        assert_eq!(reply["ok"]["topic"], topic, "{reply}");
        self.note_recovery(&reply["ok"], Some(topic));
    }

    /// Sends a command on its WebSocket and returns the reply. Queues messages that arrive in between.
    pub fn command(&mut self, command: Value) -> Value {
        let Io::Ws(socket) = &mut self.io else { panic!("not a WebSocket") };
        socket.send(tungstenite::Message::text(command.to_string())).unwrap();
        loop {
            let response = receive(socket);
            match response["type"] == "reply" {
                true => return response,
                false => self.waiting.push_back(response),
            }
        }
    }

    /// Records the result of a recovery from a line, an event or a reply. Topics without a position get its position.
    fn note_recovery(&mut self, object: &Value, topic: Option<&str>) {
        self.recoveries.push(object.clone());
        let Some(since) = object["since"].as_str() else { return };
        if self.style == ResumeStyle::Sse {
            return;
        }
        let topics = match topic {
            Some(topic) => vec![topic.to_string()],
            None => self.topics.clone(),
        };
        for topic in topics {
            self.positions.entry(topic).or_insert_with(|| since.into());
        }
    }

    /// Cuts the connection. A poll keeps the messages of its responses.
    pub fn cut(&mut self) {
        if self.style != ResumeStyle::Poll {
            self.io = Io::Away;
            self.waiting.clear();
        }
    }

    fn poll(&mut self, server: &Server, seconds: u32) {
        let since = self.positions.get("").map(|since| format!("&since={since}"));
        let target = format!("{}&timeout={seconds}", self.target("poll"));
        let (status, response) = server.get(&(target + &since.unwrap_or_default()));
        assert_eq!(status, 200, "{response}");
        self.positions.insert(String::new(), response["since"].as_str().unwrap().into());
        self.waiting.extend(response["messages"].as_array().unwrap().iter().cloned());
        let states = response["state_complete"].as_array().into_iter().flatten();
        let complete = |topic| json!({"type": "state_complete", "topic": topic});
        self.waiting.extend(states.map(complete));
        self.recoveries.push(response);
    }

    /// Returns the next message.
    pub fn next(&mut self, server: &Server) -> Value {
        loop {
            match self.next_or_state(server) {
                Ok(message) => return message,
                Err(topic) => self.states.push(topic),
            }
        }
    }

    /// Returns the next message, or the next topic whose state is complete as an error.
    pub fn next_or_state(&mut self, server: &Server) -> Result<Value, Value> {
        let end = std::time::Instant::now() + TIMEOUT;
        loop {
            assert!(std::time::Instant::now() < end, "{:?}: nothing comes", self.style);
            let object = self.object(server);
            match object["type"].as_str() {
                // A presence snapshot is no message of the topic: it has no id.
                Some("message") if object["event"] == "presence_state" => {}
                Some("message") => {
                    let (topic, id) = (&object["topic"], &object["id"]);
                    let topic = topic.as_str().unwrap();
                    if matches!(self.style, ResumeStyle::Stream | ResumeStyle::Ws)
                        && self.topics.iter().any(|own| own == topic)
                    {
                        // A message with `no_history` has no id.
                        let id = id.as_str().map(String::from);
                        id.map(|id| self.positions.insert(topic.into(), id));
                    }
                    return Ok(object);
                }
                Some("recovery") => self.note_recovery(&object, None),
                Some("state_complete") => return Err(object["topic"].clone()),
                Some("heartbeat") | None => {}
                _ => panic!("{:?}: {object}", self.style),
            }
        }
    }

    /// Returns the next object, or null in place of another listener's mark.
    fn object(&mut self, server: &Server) -> Value {
        let object = self.any_object(server);
        if is_mark(&object["data"]) { Value::Null } else { object }
    }

    fn any_object(&mut self, server: &Server) -> Value {
        if let Some(object) = self.waiting.pop_front() {
            return object;
        }
        match &mut self.io {
            Io::Away => panic!("it is away"),
            Io::Poll => {
                self.poll(server, 5);
                Value::Null
            }
            Io::Ws(socket) => receive(socket),
            Io::Lines(stream) if self.style == ResumeStyle::Stream => stream.object(),
            Io::Lines(stream) => {
                let mut data = None;
                for (field, value) in stream.event() {
                    match field.as_str() {
                        "id" => _ = self.positions.insert(String::new(), value),
                        "data" => data = Some(value),
                        _ => {}
                    }
                }
                data.map_or(Value::Null, |data| serde_json::from_str(&data).unwrap())
            }
        }
    }

    /// Publishes a sentinel to its first topic. Returns the data of all messages before it.
    pub fn rest(&mut self, server: &Server) -> Vec<Value> {
        let topic = self.topics[0].clone();
        self.rest_before(server, &topic)
    }

    /// Like [`Self::rest`], with a sentinel to another topic of the listener.
    pub fn rest_before(&mut self, server: &Server, topic: &str) -> Vec<Value> {
        let sentinel = sentinel();
        match topic.strip_prefix('@') {
            // In a compacted topic each sentinel needs its own key.
            None if topic.starts_with('c') => {
                let body = json!({"topic": topic, "data": sentinel, "key": sentinel});
                server.post("/api/publish", body)
            }
            None => server.publish(topic, sentinel.clone()),
            Some(user) => server.post("/api/send", json!({"user": user, "data": sentinel})),
        };
        self.before(server, &sentinel)
    }

    /// Returns the data of all messages before this sentinel, without other sentinels.
    pub fn before(&mut self, server: &Server, sentinel: &Value) -> Vec<Value> {
        let mut all = Vec::new();
        loop {
            let data = self.next(server)["data"].clone();
            if data == *sentinel {
                return all;
            }
            if !is_sentinel(&data) {
                all.push(data);
            }
        }
    }

    /// Returns the data of the next `count` messages.
    pub fn take(&mut self, server: &Server, count: usize) -> Vec<Value> {
        (0..count).map(|_| self.next(server)["data"].clone()).collect()
    }

    /// Waits for the result of the recovery of all topics, or of the first topic. Returns `recovered` and `reason`.
    pub fn recovered(&mut self, server: &Server) -> (Value, Value) {
        loop {
            if let Some(object) =
                self.recoveries.iter().find(|object| !object["recovered"].is_null())
            {
                return (object["recovered"].clone(), object["reason"].clone());
            }
            let object = self.object(server);
            match object["type"].as_str() {
                Some("recovery") => self.note_recovery(&object, None),
                Some("state_complete") => self.states.push(object["topic"].clone()),
                Some("message") => panic!("{:?}: a message before: {object}", self.style),
                _ => {}
            }
        }
    }

    /// Checks that no message has come. On a lasting connection a broadcast marks the end of everything that the
    /// server has sent before. The first mark may overtake messages that the store still reads, so there are two.
    pub fn is_quiet(&mut self, server: &Server) {
        if self.style == ResumeStyle::Poll {
            self.poll(server, 0);
            self.waiting.retain(|object| !is_mark(&object["data"]));
            assert!(self.waiting.is_empty(), "{:?}", self.waiting);
            return;
        }
        for _ in 0..2 {
            let mark = mark();
            server.post("/api/broadcast", json!({"data": mark}));
            loop {
                let object = self.any_object(server);
                if object["data"] == mark {
                    break;
                }
                let is_message = object["type"] == "message" && !is_mark(&object["data"]);
                assert!(!is_message, "{:?}: {object}", self.style);
            }
        }
    }
}
