//! A client of each transport that can be cut off, and comes back as its transport's users do.

use std::collections::{BTreeMap, VecDeque};
use std::io::BufRead;

use serde_json::{Value, json};

use crate::home::{is_mark, mark};
use crate::support::*;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Idiom {
    /// The last `id:` in the header Last-Event-ID.
    Sse,
    /// `since:TOPIC=` for each topic.
    Stream,
    /// `since` of the answer before.
    Poll,
    /// `since` with each subscription.
    Ws,
}

pub const ALL: [Idiom; 4] = [Idiom::Sse, Idiom::Stream, Idiom::Poll, Idiom::Ws];

enum Io {
    Away,
    Poll,
    Lines(Stream),
    Ws(Box<WebSocket>),
}

pub struct Listener {
    pub idiom: Idiom,
    topics: Vec<String>,
    /// Further parameters of the query.
    query: String,
    /// Further fields of each subscription on a WebSocket.
    fields: Value,
    /// How far it has what: of each topic, or of all ("").
    pub places: BTreeMap<String, String>,
    /// What it was told about its recovery since it came last: objects with `since`, `recovered`
    /// and `reason`.
    pub told: Vec<Value>,
    waiting: VecDeque<Value>,
    io: Io,
}

impl Listener {
    /// One that is there.
    pub fn new(server: &Server, idiom: Idiom, topics: &[&str]) -> Self {
        Listener::with(server, idiom, topics, "")
    }

    /// With further parameters, like `user=al`; with tags on a WebSocket they are the
    /// subscriptions'.
    pub fn with(server: &Server, idiom: Idiom, topics: &[&str], query: &str) -> Self {
        let mut listener = Listener::away(idiom, topics, query);
        listener.come(server);
        listener
    }

    /// One that comes later.
    pub fn away(idiom: Idiom, topics: &[&str], query: &str) -> Self {
        let (tags, rest): (Vec<&str>, Vec<&str>) =
            query.split('&').partition(|pair| idiom == Idiom::Ws && pair.starts_with("tag="));
        let tags: Vec<&str> = tags.iter().map(|pair| &pair["tag=".len()..]).collect();
        Listener {
            idiom,
            topics: topics.iter().map(|topic| topic.to_string()).collect(),
            query: rest.join("&"),
            fields: if tags.is_empty() { json!({}) } else { json!({"tags": tags}) },
            places: BTreeMap::new(),
            told: Vec::new(),
            waiting: VecDeque::new(),
            io: Io::Away,
        }
    }

    /// As if it had seen everything up to this id.
    pub fn seen(mut self, id: &str) -> Self {
        for topic in self.topics.iter().cloned().chain([String::new()]) {
            self.places.insert(topic, id.into());
        }
        self
    }

    fn target(&self, path: &str) -> String {
        let topics = self.topics.iter().map(|topic| format!("topic={topic}"));
        let pairs: Vec<String> = topics.chain([self.query.clone()]).collect();
        format!("/{path}?{}", pairs.join("&"))
    }

    /// Connects from where it was.
    pub fn come(&mut self, server: &Server) {
        self.told.clear();
        self.io = match self.idiom {
            Idiom::Sse => {
                let last = self.places.get("").map(|id| format!("Last-Event-ID: {id}\r\n"));
                let target = format!("{}&format=json", self.target("sse"));
                let mut stream = Stream::new(server.connect());
                let last = last.unwrap_or_default();
                stream.send(&format!("GET {target} HTTP/1.1\r\nHost: t\r\n{last}\r\n"));
                assert!(stream.head().starts_with("HTTP/1.1 200 "));
                assert_eq!(stream.event()[0].0, "retry");
                Io::Lines(stream)
            }
            Idiom::Stream => {
                let places =
                    self.topics.iter().filter_map(|topic| self.places.get_key_value(topic));
                let since: String =
                    places.map(|(topic, id)| format!("&since:{topic}={id}")).collect();
                let mut stream = server.listen(&(self.target("stream") + &since));
                assert_eq!(stream.object()["type"], "welcome");
                Io::Lines(stream)
            }
            Idiom::Poll => Io::Poll,
            Idiom::Ws => {
                self.io = Io::Ws(Box::new(websocket(server, &self.query)));
                for topic in self.topics.clone() {
                    self.subscribe(&topic);
                }
                return;
            }
        };
        if self.idiom == Idiom::Poll && !self.places.contains_key("") {
            // Where it begins, for there is nobody before the first answer.
            self.poll(server, 0);
        }
    }

    fn subscribe(&mut self, topic: &str) {
        let mut command = json!({"type": "subscribe", "id": topic, "topic": topic});
        command.as_object_mut().unwrap().extend(self.fields.as_object().unwrap().clone());
        if let Some(place) = self.places.get(topic) {
            command["since"] = json!(place);
        }
        let reply = self.command(command);
        assert_eq!(reply["ok"]["topic"], topic, "{reply}");
        self.hear_place(&reply["ok"], Some(topic));
    }

    /// A command on its WebSocket, and the reply; what comes between waits.
    pub fn command(&mut self, command: Value) -> Value {
        let Io::Ws(socket) = &mut self.io else { panic!("not a WebSocket") };
        socket.send(tungstenite::Message::text(command.to_string())).unwrap();
        loop {
            let answer = receive(socket);
            match answer["type"] == "reply" {
                true => return answer,
                false => self.waiting.push_back(answer),
            }
        }
    }

    /// What a line, an event or a reply says about the recovery. Who has no place has one now.
    fn hear_place(&mut self, told: &Value, topic: Option<&str>) {
        self.told.push(told.clone());
        let Some(since) = told["since"].as_str() else { return };
        if self.idiom == Idiom::Sse {
            return;
        }
        let topics = match topic {
            Some(topic) => vec![topic.to_string()],
            None => self.topics.clone(),
        };
        for topic in topics {
            self.places.entry(topic).or_insert_with(|| since.into());
        }
    }

    /// Cuts the connection. What a poll was answered it has.
    pub fn cut(&mut self) {
        if self.idiom != Idiom::Poll {
            self.io = Io::Away;
            self.waiting.clear();
        }
    }

    fn poll(&mut self, server: &Server, seconds: u32) {
        let since = self.places.get("").map(|since| format!("&since={since}"));
        let target = format!("{}&timeout={seconds}", self.target("poll"));
        let (status, answer) = server.get(&(target + &since.unwrap_or_default()));
        assert_eq!(status, 200, "{answer}");
        self.places.insert(String::new(), answer["since"].as_str().unwrap().into());
        self.waiting.extend(answer["messages"].as_array().unwrap().iter().cloned());
        self.told.push(answer);
    }

    /// The next message.
    pub fn next(&mut self, server: &Server) -> Value {
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            assert!(std::time::Instant::now() < end, "{:?}: nothing comes", self.idiom);
            let object = self.object(server);
            match object["type"].as_str() {
                Some("message") => {
                    let (topic, id) = (&object["topic"], &object["id"]);
                    let topic = topic.as_str().unwrap();
                    if matches!(self.idiom, Idiom::Stream | Idiom::Ws)
                        && self.topics.iter().any(|own| own == topic)
                    {
                        self.places.insert(topic.into(), id.as_str().unwrap().into());
                    }
                    return object;
                }
                Some("recovery") => self.hear_place(&object, None),
                Some("heartbeat") | None => {}
                _ => panic!("{:?}: {object}", self.idiom),
            }
        }
    }

    fn object(&mut self, server: &Server) -> Value {
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
            Io::Lines(stream) if self.idiom == Idiom::Stream => stream.object(),
            Io::Lines(stream) => {
                let mut data = None;
                for (field, value) in stream.event() {
                    match field.as_str() {
                        "id" => _ = self.places.insert(String::new(), value),
                        "data" => data = Some(value),
                        _ => {}
                    }
                }
                data.map_or(Value::Null, |data| serde_json::from_str(&data).unwrap())
            }
        }
    }

    /// The data of all that comes before a mark, which is published now to its first topic.
    pub fn rest(&mut self, server: &Server) -> Vec<Value> {
        let topic = self.topics[0].clone();
        self.rest_before(server, &topic)
    }

    /// The same with a mark to another topic that it is in.
    pub fn rest_before(&mut self, server: &Server, topic: &str) -> Vec<Value> {
        let mark = mark();
        match topic.strip_prefix('@') {
            None => server.publish(topic, mark.clone()),
            Some(user) => server.post("/api/send", json!({"user": user, "data": mark})),
        };
        self.before(server, &mark)
    }

    /// The data of all that comes before this, without other marks.
    pub fn before(&mut self, server: &Server, mark: &Value) -> Vec<Value> {
        let mut all = Vec::new();
        loop {
            let data = self.next(server)["data"].clone();
            if data == *mark {
                return all;
            }
            if !is_mark(&data) {
                all.push(data);
            }
        }
    }

    /// The data of the next messages, so many.
    pub fn take(&mut self, server: &Server, count: usize) -> Vec<Value> {
        (0..count).map(|_| self.next(server)["data"].clone()).collect()
    }

    /// What it was told of its recovery when it came: of all its topics at once, or of the first.
    /// Waits for it.
    pub fn recovered(&mut self, server: &Server) -> (Value, Value) {
        loop {
            if let Some(told) = self.told.iter().find(|told| !told["recovered"].is_null()) {
                return (told["recovered"].clone(), told["reason"].clone());
            }
            let object = self.object(server);
            match object["type"].as_str() {
                Some("recovery") => self.hear_place(&object, None),
                Some("message") => panic!("{:?}: a message before: {object}", self.idiom),
                _ => {}
            }
        }
    }

    /// Nothing comes in this time, on a connection that stays open.
    pub fn is_quiet(&mut self, server: &Server, milliseconds: u64) {
        if let Idiom::Poll = self.idiom {
            self.poll(server, 0);
            assert!(self.waiting.is_empty(), "{:?}", self.waiting);
            return;
        }
        assert!(self.waiting.is_empty(), "{:?}", self.waiting);
        let end = std::time::Instant::now() + std::time::Duration::from_millis(milliseconds);
        loop {
            let left = end.saturating_duration_since(std::time::Instant::now());
            let object = match left.is_zero() {
                true => None,
                false => self.object_within(server, left),
            };
            let Some(object) = object else { break };
            assert_ne!(object["type"], "message", "{:?}: {object}", self.idiom);
        }
    }

    fn patience(&mut self, patience: std::time::Duration) {
        match &mut self.io {
            Io::Lines(stream) => stream.reader.get_ref().set_read_timeout(Some(patience)).unwrap(),
            Io::Ws(socket) => socket.get_ref().set_read_timeout(Some(patience)).unwrap(),
            Io::Away | Io::Poll => {}
        }
    }

    /// What comes in this time, or nothing.
    fn object_within(&mut self, server: &Server, left: std::time::Duration) -> Option<Value> {
        self.patience(left);
        let object = match &mut self.io {
            Io::Away | Io::Poll => None,
            Io::Lines(stream) => match stream.reader.fill_buf() {
                Ok(bytes) if !bytes.is_empty() => {
                    self.patience(PATIENCE);
                    Some(self.object(server))
                }
                _ => None,
            },
            Io::Ws(socket) => match socket.read() {
                Ok(tungstenite::Message::Text(text)) => Some(serde_json::from_str(&text).unwrap()),
                // A ping.
                Ok(_) => Some(Value::Null),
                Err(_) => None,
            },
        };
        self.patience(PATIENCE);
        object
    }
}
