//! Attacks on the client port of a running server. The server responds to each kind of attack or rejects it, and
//! other clients are not affected. The parsers have their own unit tests.

mod browser;
mod crowd;
mod injection;
mod siege;
mod slow;
mod smuggling;
mod text;
mod tokens;
mod websocket;

use crate::support::*;
use serde_json::json;

/// Sends bytes after which the server closes. Returns the statuses of all responses.
fn statuses(server: &Server, bytes: &[u8]) -> Vec<u16> {
    let replies = server.exchange(bytes);
    let heads = replies.split("HTTP/1.1 ").skip(1);
    // The text of an error may hold "HTTP/1.1" as well.
    heads.filter_map(|head| head.split(' ').next()?.parse().ok()).collect()
}

/// A client that listens while others attack.
struct Witness(Stream);

impl Witness {
    fn new(server: &Server) -> Self {
        let witness = Witness(server.listen("/sse?topic=witness"));
        server.until_members("witness", 1);
        witness
    }

    /// Checks that it still receives its message and nothing else.
    fn assert_receives(&mut self, server: &Server) {
        server.publish("witness", json!("all is well"));
        let event = self.0.event();
        let names: Vec<&str> = event.iter().map(|(field, _)| field.as_str()).collect();
        let begins = usize::from(names[0] == "retry");
        let fields = if begins == 1 { self.0.event() } else { event };
        let names: Vec<&str> = fields.iter().map(|(field, _)| field.as_str()).collect();
        assert_eq!(names, ["id", "data"], "{fields:?}");
        assert_eq!(fields[1].1, "all is well");
    }
}

/// Returns a WebSocket handshake for this target.
fn upgrade(target: &str, headers: &str) -> String {
    format!(
        "GET {target} HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    )
}
