//! Server-Sent Events (WHATWG HTML, section 9.2).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use memchr::memchr2;

use crate::http::{Endpoint, Grant, Needs, Route, endless_head};
use crate::protocol::{Capabilities, Delivery, Liveness, Protocol, Read, Reader};
use crate::request::Interrupt;
use crate::{Codecs, Request, Settings, json};
use model::event::RECOVERY;
use model::{CloseReason, ConnectionId, Data, Encoding, Message, ResumeToken};

/// Server-Sent Events.
pub struct Sse {
    /// The `data` lines contain the object of the HTTP stream, which also has the topic, instead of the payload as
    /// published.
    pub json: bool,
}

/// A comment for developers who open an event stream to learn what it does; a page never sees it.
const IN_NO_TOPIC: &[u8] =
    b": this connection is in no topic and has no user: it gets only messages that are broadcast \
      to everyone. Add topic=news or user=alice to the URL, as often as you like: \
      /sse?topic=news&user=alice\n\n";

/// Appends the head of the reply, and the time that the browser should wait before it reconnects, in milliseconds.
///
/// The body ends with the connection, without chunks around events.
pub fn open(cors: &str, retry_ms: u32, out: &mut Vec<u8>) {
    head(cors, out);
    out.extend_from_slice(b"retry: ");
    out.extend_from_slice(itoa::Buffer::new().format(retry_ms).as_bytes());
    out.extend_from_slice(b"\n\n");
}

/// Returns the time that this connection's browser should wait before it reconnects, in milliseconds: 75 % to 125 %
/// of the setting, by a hash of the connection's id, so that clients that lost their connections at the same moment
/// reconnect at different moments.
pub fn retry_ms(set_ms: u32, id: ConnectionId) -> u32 {
    let mut hash = (u64::from(id.serial) << 32 | u64::from(id.slot)) ^ u64::from(id.shard) << 48;
    // The finalizer of SplitMix64: the hashes of neighbours differ in half of their bits.
    for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb)] {
        hash = (hash ^ (hash >> shift)).wrapping_mul(factor);
    }
    hash ^= hash >> 31;
    let (set_ms, width) = (u64::from(set_ms), u64::from(set_ms / 2) + 1);
    u32::try_from(set_ms - set_ms / 4 + hash % width).unwrap_or(u32::MAX)
}

fn head(cors: &str, out: &mut Vec<u8>) {
    endless_head("Content-Type: text/event-stream\r\n", "Connection: close\r\n", cors, out);
}

/// Appends an event that is not a published message. It has no `id`: a browser reconnects with that of the last
/// message.
fn own_event(name: &str, out: &mut Vec<u8>, data: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\ndata: ");
    data(out);
    out.extend_from_slice(b"\n\n");
}

impl Protocol for Sse {
    fn name(&self) -> &'static str {
        "sse"
    }

    fn encoding(&self) -> Encoding {
        Encoding(if self.json { 2 } else { 1 })
    }

    fn delivery(&self) -> Delivery {
        Delivery::Pushed
    }

    fn liveness(&self, settings: &Settings) -> Liveness {
        Liveness::ServerInSilence { seconds: settings.sse_heartbeat_seconds }
    }

    fn endpoints(&self) -> &'static [Endpoint] {
        const { &[Endpoint::new("GET", "/sse", Needs::Grants(&[Grant::Subscribe]))] }
    }

    fn route(&self, route: &Route<'_>, out: &mut Vec<u8>) -> Option<Result<Request, Interrupt>> {
        (route.request.path == "/sse").then(|| listen(route, out))
    }

    /// The server ignores input after the request.
    fn read(&self, _reader: &mut Reader<'_>, bytes: &mut [u8], _out: &mut Vec<u8>) -> Read {
        Read::ignored(bytes)
    }

    fn encode(&self, message: &Message, _codecs: &mut Codecs, out: &mut Vec<u8>) {
        event(message, self.json, &message.id, out);
    }

    fn heartbeat(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b":\n\n");
    }

    fn notice(
        &self,
        topic: &str,
        event: &str,
        json: &str,
        _codecs: &mut Codecs,
        out: &mut Vec<u8>,
    ) {
        own_event(event, out, |out| match self.json {
            true => json::notice(topic, event, json, out),
            false => out.extend_from_slice(json.as_bytes()),
        });
    }

    /// The event has the object's name, so a page without a listener for it ignores it.
    fn object(&self, name: &str, json: &[u8], _codecs: &mut Codecs, out: &mut Vec<u8>) {
        own_event(name, out, |out| out.extend_from_slice(json));
    }

    fn goodbye(&self, close: CloseReason, _retry_ms: u32, out: &mut Vec<u8>) {
        // A comment: the page would take an event for one of the application's.
        out.extend_from_slice(b": closing, ");
        out.extend_from_slice(close.name().as_bytes());
        out.extend_from_slice(b"\n\n");
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { ids_resume: true, ..Capabilities::NONE }
    }

    fn encode_with(&self, message: &Message, id: &ResumeToken, out: &mut Vec<u8>) {
        event(message, self.json, id, out);
    }

    /// A block without data sets the last event id with which a browser reconnects, and dispatches no event (WHATWG
    /// HTML, section 9.2.6).
    fn position(&self, id: &ResumeToken, out: &mut Vec<u8>) {
        out.extend_from_slice(b"id: ");
        json::push_display(id, out);
        out.extend_from_slice(b"\n\n");
    }
}

fn listen(route: &Route<'_>, out: &mut Vec<u8>) -> Result<Request, Interrupt> {
    route.get()?;
    route.listen(out, head, |listener, out| {
        open(route.cors, retry_ms(route.settings.sse_retry_ms, route.id), out);
        if listener.principal.users.is_empty() && listener.topics.is_empty() {
            out.extend_from_slice(IN_NO_TOPIC);
        }
        Sse { json: listener.query.json }.encoding()
    })
}

fn event(message: &Message, json: bool, id: &impl std::fmt::Display, out: &mut Vec<u8>) {
    if message.is_gap() {
        return own_event(RECOVERY, out, |out| json::gap(message, out));
    }
    // Without an id here, a browser reconnects with the last one before.
    if message.has_position() {
        out.extend_from_slice(b"id: ");
        json::push_display(id, out);
        out.push(b'\n');
    }
    if let Some(event) = &message.publication.event {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(event.as_bytes());
        out.push(b'\n');
    }
    if json {
        out.extend_from_slice(b"data: ");
        json::message(message, out);
        out.push(b'\n');
    } else {
        match &message.publication.data {
            Data::Json(text) | Data::Text(text) => data_lines(text, out),
            Data::Binary(bytes) => data_lines(&STANDARD.encode(bytes), out),
        }
    }
    out.push(b'\n');
}

/// Appends one `data:` line for each line of the text. CR, LF and CRLF all end a line in the standard, so the text is
/// split at each; the receiver joins the lines with LF.
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
    use model::{Epoch, Position, Publication};

    fn encode(event: Option<&str>, data: Data) -> String {
        let event = event.map(Into::into);
        let publication = Publication { event, ..Publication::new("t", data) };
        let message = model::Envelope::from(Message::new(
            publication,
            Position { epoch: Epoch(10), offset: 7 },
            0,
            0,
        ));
        let bytes = crate::encoded(&message, &Sse { json: false }, &mut Codecs::new(6, 64));
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[test]
    fn an_event_that_passes_by_a_history_has_no_id() {
        let id = Position { epoch: Epoch(10), offset: 7 };
        let mut publication = Publication::new("t", Data::Text("x".into()));
        publication.event = Some("tick".into());
        let message = Message::new(publication, id, 0, 0).passing();
        let mut out = Vec::new();
        Sse { json: false }.encode_with(&message, &token(), &mut out);
        assert_eq!(out, b"event: tick\ndata: x\n\n");
        out.clear();
        Sse { json: true }.encode(&message, &mut Codecs::new(6, 64), &mut out);
        let want = r#"{"type":"message","topic":"t","event":"tick","data":"x"}"#;
        assert_eq!(String::from_utf8(out).unwrap(), format!("event: tick\ndata: {want}\n\n"));
    }

    /// Reads our event streams as the standard does.
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

    fn token() -> ResumeToken {
        "0000000a:7/9-0000000b.8".parse().unwrap()
    }

    #[test]
    fn positions_and_recoveries_are_blocks_of_their_own() {
        let mut out = Vec::new();
        let sse = Sse { json: false };
        sse.position(&token(), &mut out);
        sse.recovery(b"{}", &mut Codecs::new(6, 64), &mut out);
        assert_eq!(out, b"id: 0000000a:7/9-0000000b.8\n\nevent: recovery\ndata: {}\n\n");
        out.clear();
        sse.state_complete("state:\"lamp\"", &mut Codecs::new(6, 64), &mut out);
        let want = concat!(
            "event: state_complete\n",
            r#"data: {"type":"state_complete","topic":"state:\"lamp\""}"#,
            "\n\n"
        );
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }

    #[test]
    fn those_who_leave_together_come_back_apart() {
        let id = |serial| ConnectionId { node: model::NodeId(9), shard: 1, slot: serial, serial };
        let waits: Vec<u32> = (0..10_000).map(|serial| retry_ms(2000, id(serial))).collect();
        assert!(waits.iter().all(|wait| (1500..=2500).contains(wait)));
        for from in (1500..2500).step_by(100) {
            let here = waits.iter().filter(|wait| (from..from + 100).contains(*wait)).count();
            assert!((800..1200).contains(&here), "{here} of 10,000 from {from} ms");
        }
        assert_eq!((retry_ms(0, id(1)), retry_ms(1, id(1))), (0, 1));
        assert!(retry_ms(u32::MAX, id(3)) >= u32::MAX / 4 * 3);
    }

    proptest::proptest! {
        /// Only the id differs.
        #[test]
        fn an_id_replaces_the_messages_own(
            text in "[ -~\r\n]{0,40}", event in proptest::option::of("[a-z]{1,5}"),
        ) {
            let mut publication = Publication::new("t", Data::Text(text.into()));
            publication.event = event.map(Into::into);
            let message = model::Envelope::from(Message::new(publication, Position { epoch: Epoch(10), offset: 7 }, 0, 0));
            for sse in [&Sse { json: false }, &Sse { json: true }] {
                let plain = crate::encoded(&message, sse, &mut Codecs::new(6, 64));
                let mut out = Vec::new();
                sse.encode_with(&message, &message.id.into(), &mut out);
                proptest::prop_assert_eq!(&out[..], &plain[..]);
                out.clear();
                sse.encode_with(&message, &token(), &mut out);
                let rest = out.strip_prefix(b"id: 0000000a:7/9-0000000b.8").unwrap();
                proptest::prop_assert_eq!(rest, plain.strip_prefix(b"id: 0000000a:7").unwrap());
            }
        }

        #[test]
        fn any_text_arrives_with_its_line_ends_as_lf(text in "[ -~é\r\n]{0,60}") {
            let want = text.replace("\r\n", "\n").replace('\r', "\n");
            let got = encode(None, Data::Text(text.into()));
            proptest::prop_assert_eq!(read_data(&got), want);
        }
    }
}
