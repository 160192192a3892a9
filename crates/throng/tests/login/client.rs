//! A client of each transport. It skips everything but data of messages.

use std::collections::VecDeque;

use serde_json::{Value, json};
use tungstenite::Message;

use crate::support::*;

/// How a client is connected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Transport {
    Sse,
    Stream,
    Ws,
    Phoenix,
    Longpoll,
}

pub const ALL: [Transport; 5] =
    [Transport::Sse, Transport::Stream, Transport::Ws, Transport::Phoenix, Transport::Longpoll];

enum Wire {
    Sse(Stream),
    Stream(Stream),
    Ws(WebSocket),
    Phoenix(WebSocket),
    Longpoll { token: String, messages: VecDeque<Value> },
}

/// A connection of a user.
pub struct Client {
    wire: Wire,
    /// The connection's id in the API.
    pub id: String,
}

impl Client {
    /// Connects as a user that no other client has.
    pub fn new(server: &Server, transport: Transport, user: &str) -> Self {
        let wire = match transport {
            Transport::Sse => Wire::Sse(server.listen(&format!("/sse?user={user}"))),
            Transport::Stream => Wire::Stream(server.listen(&format!("/stream?user={user}"))),
            Transport::Ws => Wire::Ws(websocket(server, &format!("user={user}"))),
            Transport::Phoenix => {
                let url = format!("ws://{}/socket/websocket?vsn=2.0.0&user={user}", server.client);
                Wire::Phoenix(tungstenite::client(url, server.connect()).unwrap().0)
            }
            Transport::Longpoll => {
                let (_, reply) = server.get(&format!("/socket/longpoll?vsn=2.0.0&user={user}"));
                let token = reply["token"].as_str().unwrap().to_string();
                Wire::Longpoll { token, messages: VecDeque::new() }
            }
        };
        server.until(&format!("{user} is connected"), |server| is_here(server, user));
        let found = server.api("GET", &format!("/api/users/{user}"), None).1;
        let id = found["connections"][0]["id"].as_str().unwrap().to_string();
        Client { wire, id }
    }

    pub fn login(&self, server: &Server, user: &str) -> Value {
        server.post("/api/login", json!({"connection": self.id, "user": user}))
    }

    pub fn logout(&self, server: &Server, user: &str) -> Value {
        server.post("/api/logout", json!({"connection": self.id, "user": user}))
    }

    /// Returns the data of the next message.
    pub fn data(&mut self, server: &Server) -> Value {
        loop {
            let message = match &mut self.wire {
                Wire::Sse(stream) => return json!(stream.data()),
                Wire::Stream(stream) => stream.next_object(),
                Wire::Ws(socket) => receive(socket),
                Wire::Phoenix(socket) => match data_of(receive(socket)) {
                    Some(data) => return data,
                    None => continue,
                },
                Wire::Longpoll { token, messages } => {
                    while messages.is_empty() {
                        let target = format!("/socket/longpoll?vsn=2.0.0&token={token}");
                        let (_, reply) = server.get(&target);
                        let came = reply["messages"].as_array().cloned().unwrap_or_default();
                        messages.extend(came.iter().map(|message| match message {
                            Value::String(text) => serde_json::from_str(text).unwrap(),
                            other => other.clone(),
                        }));
                    }
                    match messages.pop_front().and_then(data_of) {
                        Some(data) => return data,
                        None => continue,
                    }
                }
            };
            if message["type"] == "message" {
                return message["data"].clone();
            }
        }
    }

    /// Sends a message of a Phoenix client.
    pub fn push(&mut self, server: &Server, message: Value) {
        match &mut self.wire {
            Wire::Phoenix(socket) => {
                socket.send(Message::text(message.to_string())).unwrap();
            }
            Wire::Longpoll { token, .. } => {
                let target = format!("/socket/longpoll?vsn=2.0.0&token={token}");
                let length = message.to_string().len();
                let mut stream = Stream::new(server.connect());
                stream.send(&format!(
                    "POST {target} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n\
                     Content-Length: {length}\r\n\r\n{message}"
                ));
                assert_eq!(stream.read_reply().0, 200);
            }
            Wire::Sse(_) | Wire::Stream(_) | Wire::Ws(_) => panic!("this is no Phoenix client"),
        }
    }
}

/// Returns the data of a Phoenix message if the application published it.
fn data_of(message: Value) -> Option<Value> {
    (message[3] == "message").then(|| message[4]["data"].clone())
}

/// Returns true if a client is connected as this user.
pub fn is_here(server: &Server, user: &str) -> bool {
    server.api("GET", &format!("/api/users/{user}"), None).1["count"] == 1
}
