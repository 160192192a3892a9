//! A WebSocket client's commands: no panic, objects only, and what is published has names that every
//! transport can carry.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::command::{self, What};
use wire::events::check_event;
use wire::message::{check_topic, has_control};

fuzz_target!(|text: &str| {
    for payload in [None, Some(&b"x"[..])] {
        let Ok(command) = command::parse(text, payload) else { continue };
        assert!(text.trim_ascii_start().starts_with('{'));
        if let What::Publish(draft) = command.what {
            assert_eq!(check_topic(&draft.topic), Ok(()));
            assert!(draft.event.as_deref().is_none_or(|event| check_event(event).is_ok()));
            assert!(!draft.tags().iter().any(|tag| has_control(tag)));
        }
    }
});
