//! A client's first bytes: any bytes, whole and cut short, are answered without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::http::Limits;
use wire::session::{self, ConnectionId, Settings, Step};

fuzz_target!(|bytes: &[u8]| {
    let settings = Settings {
        http: Limits { head_bytes_max: 512, uri_bytes_max: 256, body_bytes_max: 128 },
        cors_origins: vec!["http://a".into()],
        publish_prefixes: vec!["".into()],
        topics_per_connection_max: 4,
        message_bytes_max: 128,
        frame_bytes_max: 128,
        sse_retry_ms: 1,
        poll_seconds: 1,
        poll_seconds_max: 1,
        compression: true,
        ws_echo: true,
    };
    let id = ConnectionId { shard: 0, slot: 1, serial: 2 };
    for end in [bytes.len(), bytes.len() / 2] {
        let (mut at, mut out) = (0, Vec::new());
        while let Step::Request { taken, .. } =
            session::request(&settings, id, &bytes[at..end], &mut out)
        {
            assert!(taken > 0);
            at += taken;
        }
    }
});
