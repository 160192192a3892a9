//! Server-Sent Events (WHATWG HTML, section 9.2).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use memchr::memchr2;

use super::{Tools, Transport, json};
use crate::http::status_line;
use crate::{Close, Data, Message};

/// The `data` lines hold the payload as published, or (`json`) the object of the HTTP stream,
/// which also names the topic.
pub(super) struct Sse {
    pub json: bool,
}

/// Appends the head of the answer, and how long the browser should wait before it comes back.
///
/// The body ends with the connection: there is no chunk to frame around each event.
pub fn open(cors: &str, retry_ms: u32, out: &mut Vec<u8>) {
    status_line(200, out);
    head(cors, out);
    out.extend_from_slice(b"\r\nretry: ");
    out.extend_from_slice(itoa::Buffer::new().format(retry_ms).as_bytes());
    out.extend_from_slice(b"\n\n");
}

/// Appends the header lines of an event stream, without the empty line.
pub fn head(cors: &str, out: &mut Vec<u8>) {
    // X-Accel-Buffering tells nginx in front not to hold events back.
    out.extend_from_slice(
        b"Content-Type: text/event-stream\r\nCache-Control: no-cache, no-transform\r\n\
          X-Accel-Buffering: no\r\nConnection: close\r\n",
    );
    out.extend_from_slice(cors.as_bytes());
}

impl Transport for Sse {
    fn name(&self) -> &'static str {
        "sse"
    }

    fn encode(&self, message: &Message, _tools: &mut Tools, out: &mut Vec<u8>) {
        out.extend_from_slice(b"id: ");
        json::push_display(&message.id, out);
        if let Some(event) = &message.draft.event {
            out.extend_from_slice(b"\nevent: ");
            out.extend_from_slice(event.as_bytes());
        }
        out.push(b'\n');
        if self.json {
            out.extend_from_slice(b"data: ");
            json::message(message, out);
            out.push(b'\n');
        } else {
            match &message.draft.data {
                Data::Json(text) | Data::Text(text) => data_lines(text, out),
                Data::Binary(bytes) => data_lines(&STANDARD.encode(bytes), out),
            }
        }
        out.push(b'\n');
    }

    fn heartbeat(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b":\n\n");
    }

    fn goodbye(&self, close: Close, out: &mut Vec<u8>) {
        // A comment: an event would reach the page as if the application had sent it.
        out.extend_from_slice(b": closing, ");
        out.extend_from_slice(close.name().as_bytes());
        out.extend_from_slice(b"\n\n");
    }
}

/// One `data:` line for each line of the text. CR, LF and CRLF all end a line in the standard, so
/// that each must be split at; the receiver joins them with LF.
fn data_lines(text: &str, out: &mut Vec<u8>) {
    let mut rest = text.as_bytes();
    loop {
        out.extend_from_slice(b"data: ");
        let Some(at) = memchr2(b'\r', b'\n', rest) else {
            out.extend_from_slice(rest);
            out.push(b'\n');
            return;
        };
        out.extend_from_slice(&rest[..at]);
        out.push(b'\n');
        let crlf = rest[at..].starts_with(b"\r\n");
        rest = &rest[at + 1 + usize::from(crlf)..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Draft, Epoch, Id, Variant};

    fn encode(event: Option<&str>, data: Data) -> String {
        let draft = Draft { topic: "t".into(), event: event.map(Into::into), data, except: None };
        let message = Message::new(draft, Id { epoch: Epoch(10), offset: 7 }, 0, 0);
        let bytes = message.encoded(Variant::Sse, &mut Tools::new(6, 64));
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    /// The standard's own way to read an event stream, for what we write.
    fn read_data(stream: &str) -> String {
        let lines = stream.split('\n').filter_map(|line| line.strip_prefix("data: "));
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn an_event_has_its_id_name_and_a_data_line_for_each_line() {
        assert_eq!(
            encode(None, Data::Json("{\"a\":1}".into())),
            "id: 0000000a:7\ndata: {\"a\":1}\n\n"
        );
        assert_eq!(
            encode(Some("tick"), Data::Text("a\nb\r\nc\rd\n".into())),
            "id: 0000000a:7\nevent: tick\ndata: a\ndata: b\ndata: c\ndata: d\ndata: \n\n"
        );
        assert_eq!(encode(None, Data::Binary([0, 255].into())), "id: 0000000a:7\ndata: AP8=\n\n");
        assert_eq!(encode(None, Data::Text("".into())), "id: 0000000a:7\ndata: \n\n");
    }

    proptest::proptest! {
        #[test]
        fn any_text_arrives_with_its_line_ends_as_lf(text in "[ -~é\r\n]{0,60}") {
            let want = text.replace("\r\n", "\n").replace('\r', "\n");
            let got = encode(None, Data::Text(text.into()));
            proptest::prop_assert_eq!(read_data(&got), want);
        }
    }
}
