//! A Phoenix client's messages.

use protocol::phoenix::{Content, Incoming, Payload, ReplyStatus, Serializer, longpoll};

fn reply(serializer: Serializer, incoming: &Incoming<Payload<'_>>) {
    let mut out = Vec::new();
    let content = Content::from(&incoming.payload);
    serializer.reply(incoming.address(), ReplyStatus::Ok, content, &mut out).unwrap();
}

/// Parses a message as text, as binary and as the body of a long poll, with both serializers: a reply to a
/// message that is parsed can be written.
pub fn phoenix(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for serializer in [Serializer::V1, Serializer::V2] {
        if let Ok(incoming) = serializer.parse_binary(data) {
            reply(serializer, &incoming);
        }
        if let Ok(incoming) = serializer.parse_text(&text) {
            reply(serializer, &incoming);
        }
        for line in longpoll::lines(Some(longpoll::NDJSON), data).unwrap_or_default() {
            let _ = line.parse(serializer);
        }
    }
}
