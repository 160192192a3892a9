//! Server-Sent Events (WHATWG HTML, section 9.2), the reader's side.

use memchr::memchr;

use super::{
    Client, ClientError, Event, Goodbye, Head, RECOVERY, Request, STATE_COMPLETE, closing, get,
    recovery,
};

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
        match request.token {
            Some(token) => get(request, &format!("{accept}Last-Event-ID: {token}\r\n"), out),
            None => get(request, accept, out),
        }
    }

    fn head(&self, head: &Head<'_>) -> Result<(), ClientError> {
        head.expect(200)?;
        let kind = head.get("content-type").unwrap_or("");
        match kind.starts_with("text/event-stream") {
            true => Ok(()),
            false => Err(ClientError::InvalidHead("the response is not text/event-stream")),
        }
    }

    fn has_one_token(&self) -> bool {
        true
    }

    /// An event ends with an empty line. An event with data is a message, except for Throng's own about recovery and
    /// states; an event with only comments is a heartbeat.
    fn body(
        &self,
        body: &[u8],
        _ended: bool,
        _out: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> Result<usize, ClientError> {
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
        Some(line) if line.starts_with(RECOVERY) && block.starts_with(b"event: recovery") => {
            recovery(line, None, emit);
        }
        Some(line)
            if line.starts_with(STATE_COMPLETE) && block.starts_with(b"event: state_complete") => {}
        Some(_) => emit(Event::Message(block)),
        None if block.starts_with(b":") => emit(Event::Heartbeat),
        None => {}
    }
    // An empty id counts too: it makes the client return without a token.
    id.into_iter().for_each(|id| emit(Event::Token(id)));
}

/// Returns the end of the first block, its empty line included. Lines end with LF or CRLF. The standard also allows a
/// lone CR, but no known server writes it.
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
