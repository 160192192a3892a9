//! HTTP stream: one line for each message, the reader's side.

use super::{Client, ClientError, Event, Head, Request, emit_json, get, target};

pub(super) struct Stream;

impl Client for Stream {
    fn name(&self) -> &'static str {
        "stream"
    }

    fn default_target(&self) -> &'static str {
        "/stream?user={user}&topic={topic}"
    }

    fn request(&self, request: &Request<'_>, out: &mut Vec<u8>) {
        get(&Request { target: &target(request), ..*request }, "", out);
    }

    fn head(&self, head: &Head<'_>) -> Result<(), ClientError> {
        head.expect(200)
    }

    fn body(
        &self,
        body: &[u8],
        _ended: bool,
        _out: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> Result<usize, ClientError> {
        let mut used = 0;
        while let Some(at) = memchr::memchr(b'\n', &body[used..]) {
            let line = body[used..used + at].trim_ascii_end();
            used += at + 1;
            if !line.is_empty() {
                emit_json(line, emit);
            }
        }
        Ok(used)
    }
}
