//! The settings. Everything else in this crate is derived from here.

/// What values a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// A whole number within bounds.
    Number(u64, u64),
    /// A number of bytes within bounds, or a text with a unit: `"64KiB"`, `"4MiB"`, `"1GiB"`.
    Bytes(u64, u64),
    /// An address with a port: `"127.0.0.1:8000"`.
    Address,
    /// Any text.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list of texts; in a variable or a flag they are separated by commas.
    List,
}

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Section and key, with a point between.
    pub key: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// The default, as TOML.
    pub default: &'static str,
    /// One sentence that says what it does.
    pub doc: &'static str,
    /// A change takes effect on SIGHUP; others need a restart.
    pub reload: bool,
    /// Never printed.
    pub secret: bool,
}

const fn fixed(key: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Setting {
    Setting { key, kind, default, doc, reload: false, secret: false }
}

const fn live(key: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Setting {
    Setting { key, kind, default, doc, reload: true, secret: false }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const DAY: u64 = 86_400;
const MANY: u64 = u32::MAX as u64;

use Kind::{Address, Bool, Bytes, Choice, List, Number, Text};

/// All settings, section by section.
pub const SETTINGS: &[Setting] = &[
    fixed("client.listen", Address, "\"127.0.0.1:8000\"", "Where clients connect."),
    fixed(
        "client.insecure",
        Bool,
        "false",
        "Let clients connect from other machines although nothing authenticates them: any of them may read any topic and be any user.",
    ),
    live(
        "client.cors_origins",
        List,
        "[\"*\"]",
        "Origins whose pages may connect from a browser: \"*\", or scheme://host[:port] each.",
    ),
    live(
        "client.publish_prefixes",
        List,
        "[]",
        "Clients may publish to topics that begin with one of these; \"*\" is every topic, and none is none.",
    ),
    fixed(
        "admin.listen",
        Address,
        "\"127.0.0.1:8001\"",
        "Where applications and operators connect.",
    ),
    Setting {
        key: "admin.api_key",
        kind: Text,
        default: "\"\"",
        doc: "The key that applications and operators send as Authorization: Bearer, at least 16 characters; needed beyond loopback.",
        reload: true,
        secret: true,
    },
    fixed(
        "admin.body_bytes_max",
        Bytes(KIB, 1024 * MIB),
        "\"16MiB\"",
        "The largest body of an API request.",
    ),
    fixed(
        "shards.count",
        Number(0, 1000),
        "0",
        "Event loops; 0 is as many as cores, limits.connections_max and the limit on open files ask for.",
    ),
    fixed("shards.pin_cpus", Bool, "false", "Bind each shard to a core."),
    fixed(
        "shards.sender",
        Choice(&["auto", "io_uring", "write"]),
        "\"auto\"",
        "How messages leave: io_uring batches where the kernel allows them, or one write for each connection.",
    ),
    live(
        "limits.connections_max",
        Number(1, 100_000_000),
        "100000",
        "Connections in all; more are answered 503. Shards are planned for it at the start.",
    ),
    live(
        "limits.connections_per_address_max",
        Number(0, MANY),
        "0",
        "Connections from one address; 0 is no limit.",
    ),
    live(
        "limits.accept_per_second_max",
        Number(0, MANY),
        "0",
        "New connections a second; more are answered 503, 0 is no limit.",
    ),
    live(
        "limits.topics_per_connection_max",
        Number(1, 10_000),
        "100",
        "Topics that one connection may be in, its users included.",
    ),
    live("limits.message_bytes_max", Bytes(1, 64 * MIB), "\"64KiB\"", "The payload of a message."),
    live(
        "limits.head_bytes_max",
        Bytes(KIB, 64 * KIB),
        "\"8KiB\"",
        "The head of a client's request.",
    ),
    live(
        "limits.uri_bytes_max",
        Bytes(64, 64 * KIB),
        "\"4KiB\"",
        "The target in a client's request line.",
    ),
    live(
        "limits.frame_bytes_max",
        Bytes(125, 64 * MIB),
        "\"64KiB\"",
        "A WebSocket message from a client.",
    ),
    live(
        "limits.outbox_bytes_max",
        Bytes(KIB, 1024 * MIB),
        "\"256KiB\"",
        "What may wait for a client that doesn't read; then it is closed.",
    ),
    live(
        "limits.outbox_messages_max",
        Number(1, 1_000_000),
        "256",
        "Messages that may wait for a client that doesn't read; then it is closed.",
    ),
    live(
        "limits.memory_bytes_max",
        Bytes(0, u64::MAX >> 1),
        "0",
        "Resident memory at which new connections are answered 503; 0 is 90 % of the cgroup's limit where there is one, else none.",
    ),
    fixed(
        "limits.mailbox_messages_max",
        Number(16, 10_000_000),
        "65536",
        "Messages that may wait for one shard; then publishing is answered 503.",
    ),
    fixed(
        "limits.recent_messages_max",
        Number(0, 10_000_000),
        "1024",
        "Messages of all topics that a long poll which comes back can still get.",
    ),
    fixed(
        "limits.recent_bytes_max",
        Bytes(0, 1024 * MIB),
        "\"4MiB\"",
        "The memory for those messages.",
    ),
    fixed("limits.recent_seconds_max", Number(0, DAY), "60", "How long they are kept."),
    live("timeouts.head_seconds", Number(1, DAY), "10", "Until a request must have arrived whole."),
    live(
        "timeouts.idle_seconds",
        Number(1, DAY),
        "75",
        "How long a connection may rest between requests.",
    ),
    live(
        "timeouts.sse_heartbeat_seconds",
        Number(1, DAY),
        "15",
        "Between comments to an SSE client.",
    ),
    live(
        "timeouts.sse_retry_milliseconds",
        Number(0, MANY),
        "2000",
        "What an EventSource waits before it comes back.",
    ),
    live(
        "timeouts.stream_heartbeat_seconds",
        Number(1, DAY),
        "10",
        "Between heartbeat lines of an HTTP stream.",
    ),
    live("timeouts.ws_ping_seconds", Number(1, DAY), "25", "Between pings to a WebSocket."),
    live(
        "timeouts.ws_silence_seconds",
        Number(2, 60_000),
        "60",
        "A WebSocket that says nothing for so long is closed.",
    ),
    live(
        "timeouts.poll_seconds",
        Number(0, DAY),
        "25",
        "How long a poll waits when it doesn't say.",
    ),
    live("timeouts.poll_seconds_max", Number(1, DAY), "120", "How long a poll may wait at most."),
    live(
        "timeouts.drain_seconds",
        Number(0, DAY),
        "5",
        "How long the end may take, once it is asked for.",
    ),
    fixed(
        "timeouts.tcp_keepalive_seconds",
        Number(0, 32_767),
        "60",
        "A silent connection is probed after so long; 0 is never.",
    ),
    fixed(
        "timeouts.tcp_user_timeout_seconds",
        Number(0, 2_000_000),
        "30",
        "A connection whose peer acknowledges nothing for so long is dropped; 0 is the kernel's choice.",
    ),
    fixed(
        "socket.backlog",
        Number(16, 65_535),
        "4096",
        "Connections that may wait to be accepted, for each shard.",
    ),
    fixed(
        "socket.send_buffer_bytes",
        Bytes(0, 1024 * MIB),
        "\"64KiB\"",
        "What the kernel keeps for a client that doesn't read, about twice; 0 is the kernel's choice.",
    ),
    live(
        "websocket.compression",
        Bool,
        "true",
        "Agree to permessage-deflate when a client offers it.",
    ),
    fixed("websocket.compression_level", Number(1, 9), "6", "1 is fast, 9 is small."),
    fixed(
        "websocket.compression_bytes_min",
        Bytes(0, 64 * MIB),
        "64",
        "Smaller messages are not compressed.",
    ),
    live(
        "log.level",
        Text,
        "\"info\"",
        "What is logged: error, warn, info, debug, trace, or a filter like info,shard=debug.",
    ),
    fixed("log.format", Choice(&["text", "json"]), "\"text\"", "How it is logged."),
];

/// The setting with this key.
pub(crate) fn setting(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == key)
}

impl Setting {
    /// The environment variable that sets it.
    pub fn variable(&self) -> String {
        format!("THRONG_{}", self.key.replace('.', "_").to_uppercase())
    }

    /// Section and key.
    pub fn parts(&self) -> (&'static str, &'static str) {
        self.key.split_once('.').unwrap_or(("", self.key))
    }

    /// What a value must look like, for people.
    pub fn wants(&self) -> String {
        match self.kind {
            Kind::Bool => "true or false".into(),
            Kind::Number(min, max) => format!("a whole number from {min} to {max}"),
            Kind::Bytes(min, max) => {
                format!("bytes from {min} to {max}, as a number or with a unit, like \"64KiB\"")
            }
            Kind::Address => "an address with a port, like \"127.0.0.1:8000\"".into(),
            Kind::Text => "a text".into(),
            Kind::Choice(words) => format!("one of {}", words.join(", ")),
            Kind::List => "a list of texts, like [\"a\", \"b\"]".into(),
        }
    }
}
