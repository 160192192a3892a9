//! A Phoenix client's messages, text and binary, of both versions: no panic, and whatever was read
//! can be answered.
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::phoenix::{Content, Incoming, Payload, Serializer, Status, longpoll};

fn answer(serializer: Serializer, incoming: &Incoming<Payload<'_>>) {
    let mut out = Vec::new();
    serializer
        .reply(incoming.address(), Status::Ok, Content::from(&incoming.payload), &mut out)
        .unwrap();
}

fuzz_target!(|bytes: &[u8]| {
    for serializer in [Serializer::V1, Serializer::V2] {
        if let Ok(incoming) = serializer.parse_binary(bytes) {
            answer(serializer, &incoming);
        }
        let text = String::from_utf8_lossy(bytes);
        if let Ok(incoming) = serializer.parse_text(&text) {
            answer(serializer, &incoming);
        }
        for line in longpoll::lines(Some(longpoll::NDJSON), bytes).unwrap_or_default() {
            let _ = line.parse(serializer);
        }
    }
});
