//! Server-Sent Events (WHATWG HTML, section 9.2), the reader's side.

use memchr::memchr;

use super::{Client, Event, Fault, Goodbye, Head, Request, closing, get};

pub(super) struct Sse;

impl Client for Sse {
    fn name(&self) -> &'static str {
        "sse"
    }

    fn default_target(&self) -> &'static str {
        "/sse?user={user}&topic={topic}"
    }

    fn request(&self, request: &Request<'_>, out: &mut Vec<u8>) {
        get(request, "Accept: text/event-stream\r\n", out);
    }

    fn head(&self, head: &Head<'_>) -> Result<(), Fault> {
        head.expect(200)?;
        let kind = head.get("content-type").unwrap_or("");
        match kind.starts_with("text/event-stream") {
            true => Ok(()),
            false => Err(Fault::BadHead("the answer is no text/event-stream")),
        }
    }

    /// An event ends with an empty line. One with data is a message; one of comments alone, or of
    /// `retry` alone, is a sign of life.
    fn body(
        &self,
        body: &[u8],
        _ended: bool,
        _out: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> Result<usize, Fault> {
        let mut used = 0;
        while let Some(end) = block_end(&body[used..]) {
            let block = &body[used..used + end];
            used += end;
            let mut lines = block.split(|byte| *byte == b'\n' || *byte == b'\r');
            if lines.clone().any(|line| line.starts_with(b"data")) {
                emit(Event::Message(block));
            } else if let Some(line) = lines.find(|line| line.starts_with(b": closing")) {
                emit(Event::Goodbye(Goodbye::Named(closing(line))));
            } else if block.starts_with(b":") {
                emit(Event::Heartbeat);
            }
        }
        Ok(used)
    }
}

/// Where the first block ends, its empty line included. Lines end with LF or CRLF; a lone CR, which
/// the standard allows too, no server is known to write.
fn block_end(bytes: &[u8]) -> Option<usize> {
    let mut line = 0;
    loop {
        let at = line + memchr(b'\n', &bytes[line..])?;
        let empty = matches!(&bytes[line..at], b"" | b"\r");
        line = at + 1;
        if empty {
            return Some(line);
        }
    }
}
