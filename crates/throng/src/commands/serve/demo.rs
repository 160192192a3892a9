//! `--demo`: serves the chat of `examples/chat`, with the rules that it needs.

use std::borrow::Cow;
use std::net::SocketAddr;

use model::{HistoryRule, PublishRule, Rule};
use protocol::File;

/// The files of the folder, each under its own name.
macro_rules! files {
    ($($name:literal: $content_type:literal,)*) => {
        vec![$(File {
            path: concat!("/", $name),
            content_type: $content_type,
            body: Cow::Borrowed(include_bytes!(concat!("../../../../../examples/chat/", $name))),
        },)*]
    };
}

/// Returns the chat's files, for the root of the client port. The page links to `admin` to show how an application
/// publishes.
pub(super) fn files(admin: SocketAddr) -> Vec<File> {
    let mut files = files! {
        "chat.css": "text/css; charset=utf-8",
        "chat.js": "text/javascript; charset=utf-8",
        "log.js": "text/javascript; charset=utf-8",
        "rooms.js": "text/javascript; charset=utf-8",
        "store.js": "text/javascript; charset=utf-8",
        "text.js": "text/javascript; charset=utf-8",
        "phoenix.js": "text/javascript; charset=utf-8",
        "phoenix.LICENSE.md": "text/plain; charset=utf-8",
    };
    let mut page = include_str!("../../../../../examples/chat/index.html").to_string();
    if admin.ip().is_loopback() && admin.port() != 0 {
        let empty = "<meta name=\"throng-api\" content=\"\">";
        let filled = format!("<meta name=\"throng-api\" content=\"{admin}\">");
        page = page.replace(empty, &filled);
    }
    let body = page.into_bytes().into();
    files.push(File { path: "/", content_type: "text/html; charset=utf-8", body });
    files
}

/// Returns the rules for the chat's rooms: members publish, see each other, and get the earlier messages. Typing
/// notices go to present members only. A room's history has capacity for one of the largest messages at least.
pub(super) fn rules(message_bytes_max: u64) -> [Rule; 2] {
    let history = HistoryRule {
        messages_max: 200,
        bytes_max: message_bytes_max.max(1 << 20),
        seconds_max: 86_400,
        durable: false,
        compact: false,
        acknowledge: None,
    };
    let chat =
        Rule { pattern: "room:*".into(), publish: Some(PublishRule::Allow), ..Rule::default() };
    [
        Rule { presence: true, history: Some(history.into()), ..chat.clone() },
        Rule { pattern: "typing:*".into(), ..chat },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_serves_every_file_of_its_folder() {
        let files = files("127.0.0.1:8051".parse().unwrap());
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/chat");
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let known = files.iter().any(|file| file.path == format!("/{name}"));
            assert!(known || ["index.html", "README.md"].contains(&name.as_str()), "{name}");
        }
        let page = files.iter().find(|file| file.path == "/").unwrap();
        let page = std::str::from_utf8(&page.body).unwrap();
        assert!(page.contains("content=\"127.0.0.1:8051\""));
    }
}
