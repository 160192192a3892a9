//! Packets that no client library writes, and the server's reaction.

use protocol::mqtt::Version;
pub use tungstenite::Message as Frame;
use tungstenite::client::IntoClientRequest as _;
use tungstenite::http::HeaderValue;

use crate::mqtt::client::*;
use crate::support::{Server, WebSocket};

pub const BOTH: [Version; 2] = [V3, V5];

/// Sends bytes on an open connection, and checks that the server ends it: in version 5 with one of these reasons.
pub fn ends(server: &Server, version: Version, packet: &[u8], reasons: &[u8]) {
    let mut client = Connect::new(version, "breaks").open(server.client);
    client.send(packet);
    match client.next() {
        Event::Disconnect(reason, _) if version == V5 => {
            assert!(reasons.contains(&reason), "{reason:#x} for {packet:02x?}");
            client.expect_events(&[Event::Closed]);
        }
        event => assert_eq!((event, version), (Event::Closed, V3), "{packet:02x?}"),
    }
}

/// Sends bytes in place of CONNECT, and checks that the server ends the connection without accepting the client.
pub fn is_not_let_in(server: &Server, version: Version, packet: &[u8]) -> Option<u8> {
    let mut client = Client::new(server.client, version);
    client.send(packet);
    match client.next() {
        Event::Closed => None,
        Event::Connack(_, code, _) => {
            assert_ne!(code, 0, "{packet:02x?}");
            client.expect_events(&[Event::Closed]);
            Some(code)
        }
        other => panic!("{other:?} for {packet:02x?}"),
    }
}

/// Returns a packet with this first byte and body.
pub fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    [&[first, u8::try_from(body.len()).unwrap()], body].concat()
}

/// Returns a body, with an empty list of properties at this place in version 5.
pub fn body(version: Version, before: &[u8], after: &[u8]) -> Vec<u8> {
    let properties: &[u8] = if version == V5 { &[0] } else { &[] };
    [before, properties, after].concat()
}

/// Returns a text with its length before it.
pub fn text(bytes: &[u8]) -> Vec<u8> {
    [&u16::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
}

/// Opens a WebSocket for MQTT packets.
pub fn websocket(server: &Server) -> WebSocket {
    let mut request = format!("ws://{}/mqtt", server.client).into_client_request().unwrap();
    let protocols = HeaderValue::from_static("mqttv3.1, mqtt");
    request.headers_mut().insert("sec-websocket-protocol", protocols);
    let (socket, reply) = tungstenite::client(request, server.connect()).unwrap();
    let chosen = reply.headers()["sec-websocket-protocol"].to_str().unwrap();
    assert_eq!(chosen, "mqtt", "the name of the standard comes before that of 3.1 [MQTT-6.0.0-4]");
    socket
}

/// Returns the code of the next close frame. Skips other frames.
pub fn closes(socket: &mut WebSocket) -> u16 {
    loop {
        match socket.read() {
            Ok(Frame::Close(close)) => return close.unwrap().code.into(),
            Ok(_) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Returns true if nothing arrived in time and the connection is open.
pub fn is_timeout(error: &tungstenite::Error) -> bool {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    matches!(error, tungstenite::Error::Io(it) if [TimedOut, WouldBlock].contains(&it.kind()))
}
