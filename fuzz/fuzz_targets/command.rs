//! A WebSocket client's commands: no panic, objects only, and what is published has names that every
//! transport can carry.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::event::check_event;
use model::name::{check_topic, has_control};
use protocol::websocket::command::{self, CommandKind};

fuzz_target!(|text: &str| {
    for payload in [None, Some(&b"x"[..])] {
        let Ok(command) = command::parse(text, payload) else { continue };
        assert!(text.trim_ascii_start().starts_with('{'));
        if let CommandKind::Publish(publication) = command.kind {
            assert_eq!(check_topic(&publication.topic), Ok(()));
            assert!(publication.event.as_deref().is_none_or(|event| check_event(event).is_ok()));
            assert!(!publication.tags().iter().any(|tag| has_control(tag)));
        }
    }
});
