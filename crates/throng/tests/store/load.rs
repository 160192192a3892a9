//! Publishers that run until the server is gone.

use std::io::{Error, Result};
use std::net::SocketAddr;
use std::time::Instant;

use serde_json::{Value, json};

use crate::store::folder::Caller;
use crate::support::TIMEOUT;

/// The publishes that one WebSocket or one batch has in flight.
const AT_ONCE: usize = 8;

/// The interface that a publisher uses.
#[derive(Clone, Copy, Debug)]
pub enum Door {
    /// `POST /api/publish`.
    Api,
    /// `POST /api/publish` with an idempotency key each.
    Keys,
    /// `POST /api/batch`.
    Batch,
    /// `POST /publish` on the client port.
    Client,
    /// `/ws`, with several publishes before the first reply.
    Ws,
}

/// One publisher, with numbered messages.
#[derive(Clone, Debug)]
pub struct Publisher {
    pub door: Door,
    pub topic: &'static str,
    /// A text that is unique for each publisher of each round.
    pub name: String,
}

/// A message that a publisher sent.
#[derive(Clone, Debug)]
pub struct Sent {
    pub topic: &'static str,
    pub data: String,
    pub key: Option<String>,
    /// Its id, if the publish got a response.
    pub reply: Option<String>,
}

impl Publisher {
    /// Publishes until the connection ends. Returns all messages that it sent, in order.
    pub fn run(&self, client: SocketAddr, admin: SocketAddr) -> Vec<Sent> {
        let mut sent = Vec::new();
        let end = Instant::now() + TIMEOUT;
        // An error means that the server was killed.
        let _ = match self.door {
            Door::Ws => self.ws(client, end, &mut sent),
            Door::Client => self.http(client, end, &mut sent),
            Door::Api | Door::Keys | Door::Batch => self.http(admin, end, &mut sent),
        };
        sent
    }

    fn next(&self, sent: &mut Vec<Sent>) -> usize {
        let number = sent.len();
        // Some are long enough for pages of their own in the store.
        let padding = if number % 50 == 49 { 20_000 } else { number * 37 % 400 };
        let data = format!("{}.{number} .{}", self.name, "x".repeat(padding));
        let key = matches!(self.door, Door::Keys).then(|| format!("{}.{number}", self.name));
        sent.push(Sent { topic: self.topic, data, key, reply: None });
        number
    }

    fn http(&self, address: SocketAddr, end: Instant, sent: &mut Vec<Sent>) -> Result<()> {
        let mut caller = Caller::new(address)?;
        while Instant::now() < end {
            let first = self.next(sent);
            let response = match self.door {
                Door::Client => {
                    let target = format!("/publish?topic={}", self.topic);
                    caller.call("POST", &target, "text/plain", &sent[first].data)?
                }
                Door::Batch => {
                    (1..AT_ONCE).for_each(|_| _ = self.next(sent));
                    let command = |sent: &Sent| json!({"publish": sent.body()});
                    let commands: Vec<Value> = sent[first..].iter().map(command).collect();
                    caller.post("/api/batch", &json!({"commands": commands}))?
                }
                _ => caller.post("/api/publish", &sent[first].body())?,
            };
            assert_eq!(response.status, 200, "{self:?}: {}", response.body);
            for (at, sent) in sent[first..].iter_mut().enumerate() {
                let ok = match self.door {
                    Door::Batch => &response.body["results"][at]["ok"],
                    _ => &response.body,
                };
                sent.on_reply(ok, &response.body);
            }
        }
        Ok(())
    }

    fn ws(&self, address: SocketAddr, end: Instant, sent: &mut Vec<Sent>) -> Result<()> {
        let socket = std::net::TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        let (mut socket, _) = tungstenite::client(format!("ws://{address}/ws"), socket)
            .map_err(|error| Error::other(error.to_string()))?;
        while Instant::now() < end {
            let first = sent.len();
            for _ in 0..AT_ONCE {
                let number = self.next(sent);
                let (topic, data) = (self.topic, &sent[number].data);
                let command =
                    json!({"type": "publish", "id": number, "topic": topic, "data": data});
                socket
                    .send(tungstenite::Message::text(command.to_string()))
                    .map_err(Error::other)?;
            }
            while sent[first..].iter().any(|sent| sent.reply.is_none()) {
                let tungstenite::Message::Text(text) = socket.read().map_err(Error::other)? else {
                    continue;
                };
                let reply: Value = serde_json::from_str(&text).unwrap();
                if reply["type"] == "reply" {
                    let number = reply["id"].as_u64().unwrap() as usize;
                    sent[number].on_reply(&reply["ok"], &reply);
                }
            }
        }
        Ok(())
    }
}

impl Sent {
    pub fn body(&self) -> Value {
        let mut body = json!({"topic": self.topic, "data": self.data});
        if let Some(key) = &self.key {
            body["idempotency_key"] = key.as_str().into();
        }
        body
    }

    fn on_reply(&mut self, ok: &Value, whole: &Value) {
        let id = ok["id"].as_str().unwrap_or_else(|| panic!("refused: {whole}"));
        assert!(self.reply.replace(id.into()).is_none(), "answered twice: {whole}");
    }
}
