//! `--demo`: the chat of `examples/chat`, and the rule that lets it talk.

use wire::session::File;
use wire::{EventRule, Rule};

/// A file of the chat; `$path` is where it is served, `$name` its name in the folder.
macro_rules! file {
    ($path:literal, $name:literal, $content_type:literal) => {
        File {
            path: $path,
            content_type: $content_type,
            body: include_bytes!(concat!("../../../../../examples/chat/", $name)),
        }
    };
}

/// The chat, at the root of the client port.
pub(super) const FILES: [File; 8] = [
    file!("/", "index.html", "text/html; charset=utf-8"),
    file!("/chat.css", "chat.css", "text/css; charset=utf-8"),
    file!("/chat.js", "chat.js", "text/javascript; charset=utf-8"),
    file!("/log.js", "log.js", "text/javascript; charset=utf-8"),
    file!("/rooms.js", "rooms.js", "text/javascript; charset=utf-8"),
    file!("/store.js", "store.js", "text/javascript; charset=utf-8"),
    file!("/text.js", "text.js", "text/javascript; charset=utf-8"),
    file!("/phoenix.js", "phoenix.js", "text/javascript; charset=utf-8"),
];

/// Rooms of the chat: whoever is in one may talk, and sees who else is there.
pub(super) fn rule() -> Rule {
    Rule {
        pattern: "room:*".into(),
        events: Some(EventRule::Broadcast),
        presence: true,
        ..Rule::default()
    }
}
