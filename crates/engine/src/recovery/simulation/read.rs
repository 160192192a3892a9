//! How clients of each transport read the bytes that come.

use serde_json::Value;

/// A transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Sse,
    SseJson,
    Stream,
    Poll,
    Ws,
    Phoenix,
}

impl Kind {
    pub const ALL: [Kind; 6] =
        [Kind::Sse, Kind::SseJson, Kind::Stream, Kind::Poll, Kind::Ws, Kind::Phoenix];

    pub fn is_sse(self) -> bool {
        matches!(self, Kind::Sse | Kind::SseJson)
    }

    pub fn is_socket(self) -> bool {
        matches!(self, Kind::Ws | Kind::Phoenix)
    }
}

/// A received message: the number of its topic, its number in the topic, its id and its key. A message without a
/// payload can be identified by its id only.
#[derive(Debug)]
pub(super) struct ReadMessage {
    pub topic_and_number: Option<(usize, usize)>,
    pub id: Option<String>,
    pub key: Option<String>,
}

/// One complete item from the server.
#[derive(Debug)]
pub(super) enum Unit {
    /// A message.
    Message(ReadMessage),
    /// The position of an event stream, without a message.
    Position(String),
    /// The position from which topics are followed, and the topics that have lost messages.
    Recovery { since: String, recovered: Option<bool>, lost: Vec<(String, String)> },
    /// The reply to a command.
    Reply { id: u64, ok: bool, since: Option<String>, recovered: Option<bool>, why: String },
    /// The reply to a poll.
    Poll {
        messages: Vec<ReadMessage>,
        since: String,
        recovered: Option<bool>,
        why: String,
        states: Vec<String>,
    },
    /// The state of this topic is complete.
    State(String),
}

/// The received bytes of one connection that are not read yet.
#[derive(Default)]
pub(super) struct Reader {
    bytes: Vec<u8>,
    /// The head of an endless response has been read.
    body: bool,
    /// The content of chunks.
    text: Vec<u8>,
}

impl Reader {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next complete item. Skips items without messages.
    pub fn next(&mut self, kind: Kind) -> Option<Unit> {
        loop {
            if !self.body {
                let head = self.head()?;
                if kind == Kind::Poll {
                    return self.poll(&head);
                }
                self.bytes.drain(..head.len());
                self.body = true;
            }
            let found = match kind {
                Kind::Sse | Kind::SseJson => self.block()?,
                Kind::Stream => json_unit(&self.line()?),
                Kind::Ws => self.frame()?.and_then(|text| json_unit(&text)),
                Kind::Phoenix => self.frame()?.and_then(|text| phoenix_unit(&text)),
                Kind::Poll => None,
            };
            if found.is_some() {
                return found;
            }
        }
    }

    fn head(&self) -> Option<String> {
        let end = find(&self.bytes, b"\r\n\r\n")? + 4;
        let head = String::from_utf8(self.bytes[..end].to_vec()).unwrap();
        let status = &head[9..12];
        assert!(["200", "101", "503"].contains(&status), "{head}");
        Some(head)
    }

    fn poll(&mut self, head: &str) -> Option<Unit> {
        let length = head.split("Content-Length: ").nth(1).unwrap().split("\r\n").next().unwrap();
        let length: usize = length.parse().unwrap();
        let body = self.bytes.get(head.len()..head.len() + length)?.to_vec();
        self.bytes.drain(..head.len() + length);
        if !head.starts_with("HTTP/1.1 200") {
            return None;
        }
        let json: Value = serde_json::from_slice(&body).unwrap();
        let messages = json["messages"].as_array().unwrap();
        let states = json["state_complete"].as_array().into_iter().flatten();
        let messages = messages.iter().map(|it| object(it).unwrap());
        Some(Unit::Poll {
            messages: messages.collect(),
            since: text(&json["since"]).unwrap(),
            recovered: json["recovered"].as_bool(),
            why: text(&json["reason"]).unwrap_or_default(),
            states: states.map(|topic| text(topic).unwrap()).collect(),
        })
    }

    /// Takes one block of an event stream.
    fn block(&mut self) -> Option<Option<Unit>> {
        let end = find(&self.bytes, b"\n\n")? + 2;
        let block: Vec<u8> = self.bytes.drain(..end).collect();
        let block = String::from_utf8(block).unwrap();
        let id = block.strip_prefix("id: ").map(|rest| rest.lines().next().unwrap().to_string());
        let data = block.lines().find_map(|line| line.strip_prefix("data: "));
        Some(match (data, id) {
            (Some(data), None) if data.starts_with('{') => json_unit(data.as_bytes()),
            (Some(data), id) if data.starts_with('{') => {
                let json: Value = serde_json::from_str(data).unwrap();
                object(&json).map(|message| Unit::Message(ReadMessage { id, ..message }))
            }
            (Some(data), id) => message(data, id, None).map(Unit::Message),
            (None, id) => id.map(Unit::Position),
        })
    }

    /// Takes one line of a chunked response.
    fn line(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = find(&self.text, b"\n") {
                return Some(self.text.drain(..=end).collect());
            }
            let end = find(&self.bytes, b"\r\n")?;
            let size = std::str::from_utf8(&self.bytes[..end]).unwrap();
            let size = usize::from_str_radix(size, 16).unwrap();
            let chunk = self.bytes.get(end + 2..end + 2 + size + 2)?;
            self.text.extend_from_slice(&chunk[..size]);
            self.bytes.drain(..end + 2 + size + 2);
        }
    }

    /// Takes one frame of a WebSocket, if it is text.
    fn frame(&mut self) -> Option<Option<Vec<u8>>> {
        let [first, second, ..] = self.bytes[..] else { return None };
        let (from, length) = match second {
            126 => (4, u16::from_be_bytes(self.bytes.get(2..4)?.try_into().unwrap()).into()),
            127 => (
                10,
                usize::try_from(u64::from_be_bytes(self.bytes.get(2..10)?.try_into().unwrap()))
                    .unwrap(),
            ),
            length => (2, usize::from(length)),
        };
        let text = self.bytes.get(from..from + length)?.to_vec();
        self.bytes.drain(..from + length);
        Some((first == 0x81).then_some(text))
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_string)
}

/// Parses `<topic.number>` in a payload. A message that removes a key has none.
fn message(payload: &str, id: Option<String>, key: Option<String>) -> Option<ReadMessage> {
    if payload == "null" {
        return Some(ReadMessage { topic_and_number: None, id, key });
    }
    let (topic, number) = payload.split('<').nth(1)?.split('>').next()?.split_once('.')?;
    let topic_and_number = Some((topic.parse().ok()?, number.parse().ok()?));
    Some(ReadMessage { topic_and_number, id, key })
}

/// Parses a message in the form of an object.
fn object(json: &Value) -> Option<ReadMessage> {
    let payload = json["data"].as_str().unwrap_or("null");
    message(payload, text(&json["id"]), text(&json["key"]))
}

fn json_unit(line: &[u8]) -> Option<Unit> {
    let json: Value = serde_json::from_slice(line).unwrap();
    match json["type"].as_str() {
        Some("message") => object(&json).map(Unit::Message),
        Some("state_complete") => text(&json["topic"]).map(Unit::State),
        Some("recovery") => Some(Unit::Recovery {
            since: text(&json["since"]).unwrap(),
            recovered: json["recovered"].as_bool(),
            lost: json["topics"].as_object().map_or_else(Vec::new, |lost| {
                lost.iter().map(|(name, why)| (name.clone(), text(why).unwrap())).collect()
            }),
        }),
        Some("reply") => Some(Unit::Reply {
            id: json["id"].as_u64().unwrap(),
            ok: json.get("ok").is_some(),
            since: text(&json["ok"]["since"]),
            recovered: json["ok"]["recovered"].as_bool(),
            why: text(&json["ok"]["reason"]).unwrap_or_else(|| json["error"].to_string()),
        }),
        _ => None,
    }
}

/// `[join_ref, ref, topic, event, payload]`
fn phoenix_unit(frame: &[u8]) -> Option<Unit> {
    let json: Value = serde_json::from_slice(frame).unwrap();
    match json[3].as_str().unwrap() {
        "phx_reply" => Some(Unit::Reply {
            id: json[1].as_str().unwrap().parse().unwrap(),
            ok: json[4]["status"] == "ok",
            since: text(&json[4]["response"]["since"]),
            recovered: json[4]["response"]["recovered"].as_bool(),
            why: json[4]["response"].to_string(),
        }),
        "message" | "presence_diff" => {
            let payload = json[4]["data"].as_str().unwrap_or("null");
            message(payload, text(&json[1]), text(&json[4]["phx_key"])).map(Unit::Message)
        }
        "state_complete" => {
            assert_eq!(
                (&json[0], &json[1], &json[2]),
                (&Value::Null, &Value::Null, &json[4]["topic"])
            );
            text(&json[2]).map(Unit::State)
        }
        _ => None,
    }
}
