//! HTTP stream: an endless chunked answer (RFC 9112, section 7.1), one JSON object a line.

use super::{Tools, Transport, json};
use crate::http::status_line;
use crate::{Close, ConnectionId, Message, Name};

pub(super) struct Stream;

const HEARTBEAT: &[u8] = b"{\"type\":\"heartbeat\"}\n";

/// Appends the head of the answer and the first line, which greets the users by name.
pub fn welcome(cors: &str, id: ConnectionId, users: &[Name], topics: &[Name], out: &mut Vec<u8>) {
    status_line(200, out);
    head(cors, out);
    out.extend_from_slice(b"\r\n");
    chunk(out, |out| {
        json::welcome(id, users, topics, true, out);
        out.push(b'\n');
    });
}

/// Appends the header lines of a stream, without the empty line.
pub fn head(cors: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(
        b"Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\
          Cache-Control: no-cache, no-transform\r\nX-Accel-Buffering: no\r\n",
    );
    out.extend_from_slice(cors.as_bytes());
}

/// Appends one chunk: its size in hexadecimal, what `fill` appends, and the line ends.
fn chunk(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    // Room for the size is left in front and filled when it is known: leading zeros are allowed.
    let at = out.len();
    out.extend_from_slice(b"00000000\r\n");
    let from = out.len();
    fill(out);
    let size = format!("{:08x}", out.len() - from);
    out[at..at + 8].copy_from_slice(size.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends one chunk with this JSON text, a line.
pub fn line(json_text: &[u8], out: &mut Vec<u8>) {
    chunk(out, |out| {
        out.extend_from_slice(json_text);
        out.push(b'\n');
    });
}

impl Transport for Stream {
    fn name(&self) -> &'static str {
        "stream"
    }

    fn encode(&self, message: &Message, _tools: &mut Tools, out: &mut Vec<u8>) {
        chunk(out, |out| {
            json::message(message, out);
            out.push(b'\n');
        });
    }

    fn heartbeat(&self, out: &mut Vec<u8>) {
        chunk(out, |out| out.extend_from_slice(HEARTBEAT));
    }

    fn goodbye(&self, close: Close, retry_ms: u32, out: &mut Vec<u8>) {
        chunk(out, |out| {
            out.extend_from_slice(b"{\"type\":\"close\",\"reason\":\"");
            out.extend_from_slice(close.name().as_bytes());
            out.extend_from_slice(b"\",\"retry_ms\":");
            out.extend_from_slice(itoa::Buffer::new().format(retry_ms).as_bytes());
            out.extend_from_slice(b"}\n");
        });
        out.extend_from_slice(b"0\r\n\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_welcome_greets_and_each_line_is_a_chunk() {
        let mut out = Vec::new();
        let id = ConnectionId { shard: 1, slot: 20, serial: 3 };
        welcome("", id, &["foo".into()], &["a\"b".into()], &mut out);
        let text = String::from_utf8(out).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        let line = "{\"type\":\"welcome\",\"text\":\"Hello, foo\",\"connection\":\"1-20-3\",\"users\":[\"foo\"],\"topics\":[\"a\\\"b\"]}\n";
        assert_eq!(body, format!("{:08x}\r\n{line}\r\n", line.len()));
        let mut out = Vec::new();
        Stream.heartbeat(&mut out);
        Stream.goodbye(Close::Drain, 1700, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "00000015\r\n{\"type\":\"heartbeat\"}\n\r\n00000032\r\n{\"type\":\"close\",\"reason\":\"drain\",\"retry_ms\":1700}\n\r\n0\r\n\r\n"
        );
    }
}
