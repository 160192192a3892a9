//! A WebSocket client's command.

use model::event::check_event;
use model::name::{check_topic, has_control};
use protocol::websocket::command::{self, CommandKind};

/// Parses a command, with a binary payload and without: only a JSON object is a command, and a publication has names
/// that every transport can carry.
pub fn command(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for payload in [None, Some(&b"x"[..])] {
        let Ok(command) = command::parse(&text, payload) else { continue };
        assert!(text.trim_ascii_start().starts_with('{'), "a command that is no object");
        if let CommandKind::Publish(publication) = command.kind {
            assert_eq!(check_topic(&publication.topic), Ok(()));
            assert!(publication.event.as_deref().is_none_or(|event| check_event(event).is_ok()));
            assert!(!publication.tags().iter().any(|tag| has_control(tag)));
        }
    }
}
