//! Server-Sent Events (WHATWG HTML, section 9.2), the reader's side.

use memchr::memchr;

use super::{Client, Event, Fault, Goodbye, Head, RECOVERY, Request, closing, get, recovery};

pub(super) struct Sse;

impl Client for Sse {
    fn name(&self) -> &'static str {
        "sse"
    }

    fn default_target(&self) -> &'static str {
        "/sse?user={user}&topic={topic}"
    }

    fn request(&self, request: &Request<'_>, out: &mut Vec<u8>) {
        let accept = "Accept: text/event-stream\r\n";
        match request.since {
            Some(since) => get(request, &format!("{accept}Last-Event-ID: {since}\r\n"), out),
            None => get(request, accept, out),
        }
    }

    fn head(&self, head: &Head<'_>) -> Result<(), Fault> {
        head.expect(200)?;
        let kind = head.get("content-type").unwrap_or("");
        match kind.starts_with("text/event-stream") {
            true => Ok(()),
            false => Err(Fault::BadHead("the answer is no text/event-stream")),
        }
    }

    fn has_one_place(&self) -> bool {
        true
    }

    /// An event ends with an empty line. One with data is a message, but for what Throng itself says
    /// of what was missed; one of comments alone is a sign of life.
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
            self::block(block, emit);
        }
        Ok(used)
    }
}

fn block(block: &[u8], emit: &mut dyn FnMut(Event<'_>)) {
    let (mut id, mut data) = (None, None);
    let mut rest = block;
    while let Some(end) = memchr(b'\n', rest) {
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        rest = &rest[end + 1..];
        if line.starts_with(b"data") {
            data = data.or(Some(line));
        } else if let Some(text) = line.strip_prefix(b"id:") {
            id = std::str::from_utf8(text.strip_prefix(b" ").unwrap_or(text)).ok();
        } else if data.is_none() && line.starts_with(b": closing") {
            emit(Event::Goodbye(Goodbye::Named(closing(line))));
            return;
        }
    }
    match data.map(|line| line.strip_prefix(b"data: ").unwrap_or(line)) {
        Some(told) if told.starts_with(RECOVERY) && block.starts_with(b"event: recovery") => {
            recovery(told, None, emit);
        }
        Some(_) => emit(Event::Message(block)),
        None if block.starts_with(b":") => emit(Event::Heartbeat),
        None => {}
    }
    // An empty id is one too: it says to come back with none.
    id.into_iter().for_each(|id| emit(Event::Place(id)));
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
