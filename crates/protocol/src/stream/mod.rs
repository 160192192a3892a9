//! HTTP stream: an endless chunked reply (RFC 9112, section 7.1) with one JSON object a line.

use crate::http::{Endpoint, Grant, Needs, Rejection, Route, endless_head};
use crate::protocol::{Delivery, Liveness, Protocol, Read, Reader};
use crate::request::{Entry, Interrupt};
use crate::{Codecs, Request, Settings, json};
use model::{CloseReason, ConnectionId, Encoding, ErrorCode, Message, Name};

/// The HTTP stream.
pub struct Stream;

/// Appends the head of the reply and the first line, which greets the users by name.
pub fn welcome(cors: &str, id: ConnectionId, users: &[Name], topics: &[Entry], out: &mut Vec<u8>) {
    head(cors, out);
    line(out, |out| json::welcome(id, users, topics, true, out));
}

fn head(cors: &str, out: &mut Vec<u8>) {
    let kind = "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n";
    endless_head(kind, "", cors, out);
}

/// Appends a chunk with one line: its size in hexadecimal, the output of `fill`, and the line ends.
fn line(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    // The size precedes the line, so its digits are overwritten at the end: leading zeros are allowed.
    let at = out.len();
    out.extend_from_slice(b"00000000\r\n");
    let from = out.len();
    fill(out);
    out.push(b'\n');
    let size = format!("{:08x}", out.len() - from);
    out[at..at + 8].copy_from_slice(size.as_bytes());
    out.extend_from_slice(b"\r\n");
}

impl Protocol for Stream {
    fn name(&self) -> &'static str {
        "stream"
    }

    fn encoding(&self) -> Encoding {
        Encoding(3)
    }

    fn delivery(&self) -> Delivery {
        Delivery::Pushed
    }

    fn liveness(&self, settings: &Settings) -> Liveness {
        Liveness::ServerInSilence { seconds: settings.stream_heartbeat_seconds }
    }

    fn endpoints(&self) -> &'static [Endpoint] {
        const { &[Endpoint::new("GET", "/stream", Needs::Grants(&[Grant::Subscribe]))] }
    }

    fn route(&self, route: &Route<'_>, out: &mut Vec<u8>) -> Option<Result<Request, Interrupt>> {
        (route.request.path == "/stream").then(|| listen(route, out))
    }

    /// The server ignores input after the request.
    fn read(&self, _reader: &mut Reader<'_>, bytes: &mut [u8], _out: &mut Vec<u8>) -> Read {
        Read::ignored(bytes)
    }

    fn encode(&self, message: &Message, _codecs: &mut Codecs, out: &mut Vec<u8>) {
        line(out, |out| json::message(message, out));
    }

    fn heartbeat(&self, out: &mut Vec<u8>) {
        line(out, |out| out.extend_from_slice(b"{\"type\":\"heartbeat\"}"));
    }

    fn notice(
        &self,
        topic: &str,
        event: &str,
        json: &str,
        _codecs: &mut Codecs,
        out: &mut Vec<u8>,
    ) {
        line(out, |out| json::notice(topic, event, json, out));
    }

    fn object(&self, _name: &str, json: &[u8], _codecs: &mut Codecs, out: &mut Vec<u8>) {
        line(out, |out| out.extend_from_slice(json));
    }

    fn goodbye(&self, close: CloseReason, retry_ms: u32, out: &mut Vec<u8>) {
        line(out, |out| {
            out.extend_from_slice(b"{\"type\":\"close\",\"reason\":\"");
            out.extend_from_slice(close.name().as_bytes());
            out.extend_from_slice(b"\",\"retry_ms\":");
            out.extend_from_slice(itoa::Buffer::new().format(retry_ms).as_bytes());
            out.push(b'}');
        });
        out.extend_from_slice(b"0\r\n\r\n");
    }
}

fn listen(route: &Route<'_>, out: &mut Vec<u8>) -> Result<Request, Interrupt> {
    route.get()?;
    if route.request.minor == 0 {
        let message = "an endless response requires HTTP/1.1: use /sse or /poll, or configure the \
                       proxy for HTTP/1.1 (nginx: proxy_http_version 1.1)";
        return Err(Rejection::with_status(505, ErrorCode::BadVersion, message).into());
    }
    route.listen(out, head, |listener, out| {
        welcome(route.cors, route.id, &listener.principal.users, &listener.topics, out);
        Stream.encoding()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_welcome_greets_and_each_line_is_a_chunk() {
        let mut out = Vec::new();
        let id = ConnectionId { node: model::NodeId(9), shard: 1, slot: 20, serial: 3 };
        let topics = [Entry { topic: "a\"b".into(), permit: Default::default(), meta: None }];
        welcome("", id, &["foo".into()], &topics, &mut out);
        let text = String::from_utf8(out).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        let line = "{\"type\":\"welcome\",\"text\":\"Hello, foo\",\"connection\":\"00000009-1-20-3\",\"users\":[\"foo\"],\"topics\":[\"a\\\"b\"]}\n";
        assert_eq!(body, format!("{:08x}\r\n{line}\r\n", line.len()));
        let mut out = Vec::new();
        Stream.heartbeat(&mut out);
        Stream.goodbye(CloseReason::Drain, 1700, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "00000015\r\n{\"type\":\"heartbeat\"}\n\r\n00000032\r\n{\"type\":\"close\",\"reason\":\"drain\",\"retry_ms\":1700}\n\r\n0\r\n\r\n"
        );
    }
}
