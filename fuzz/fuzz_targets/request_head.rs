//! A client's first bytes: any bytes, whole and cut short, are answered without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::http::Limits;
use wire::phoenix::token;
use wire::session::{self, ConnectionId, Settings, Step};
use wire::{EventRule, JoinRule, Rule, Rules};

fuzz_target!(|bytes: &[u8]| {
    let settings = Settings {
        http: Limits {
            head_bytes_max: 512,
            uri_bytes_max: 256,
            body_bytes_max: 128,
            longpoll_body_bytes_max: 256,
        },
        cors_origins: vec!["http://a".into()],
        rules: Rules {
            rules: vec![Rule {
                pattern: "r*".into(),
                join: JoinRule::Refuse,
                events: Some(EventRule::Refuse),
                presence: true,
                ..Rule::default()
            }],
            publish_prefixes: vec!["".into()],
            ..Rules::default()
        },
        topics_per_connection_max: 4,
        message_bytes_max: 128,
        frame_bytes_max: 128,
        sse_retry_ms: 1,
        poll_seconds: 1,
        poll_seconds_max: 1,
        compression: true,
        ws_echo: true,
        status_page: true,
        longpoll_key: token::Key([0; 32]),
        files: [].into(),
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
