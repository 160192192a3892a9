//! What attackers try on the client port, kept as tests: each shape of an attack is answered or
//! refused, and others don't notice. The parsers have their own tests beside them; here it is the
//! running server.

#[path = "hostile/browser.rs"]
mod browser;
#[path = "hostile/crowd/mod.rs"]
mod crowd;
#[path = "hostile/injection.rs"]
mod injection;
#[path = "hostile/slow.rs"]
mod slow;
#[path = "hostile/smuggling.rs"]
mod smuggling;
mod support;
#[path = "hostile/text.rs"]
mod text;
#[path = "hostile/tokens.rs"]
mod tokens;
#[path = "hostile/websocket.rs"]
mod websocket;

use serde_json::json;
use support::*;

/// The statuses of all answers to bytes after which the server closes.
fn statuses(server: &Server, bytes: &[u8]) -> Vec<u16> {
    let answers = server.exchange(bytes);
    let heads = answers.split("HTTP/1.1 ").skip(1);
    // Errors may speak of HTTP/1.1, too.
    heads.filter_map(|head| head.split(' ').next()?.parse().ok()).collect()
}

/// Somebody who listens while others attack.
struct Witness(Stream);

impl Witness {
    fn new(server: &Server) -> Self {
        let witness = Witness(server.listen("/sse?topic=witness"));
        server.until_members("witness", 1);
        witness
    }

    /// It is still there, and hears what it should and nothing else.
    fn hears(&mut self, server: &Server) {
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

/// A WebSocket handshake for this target.
fn upgrade(target: &str, headers: &str) -> String {
    format!(
        "GET {target} HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    )
}
