//! The values with their types, for the rest of the program.

use std::fmt;
use std::net::SocketAddr;

use crate::Value;
use crate::source::Values;

/// The whole configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What clients meet.
    pub client: Client,
    /// What applications and operators meet.
    pub admin: Admin,
    /// The event loops.
    pub shards: Shards,
    /// Limits; sizes in bytes.
    pub limits: Limits,
    /// Times, in the unit that each name ends with.
    pub timeouts: Timeouts,
    /// What is asked of the kernel.
    pub socket: Socket,
    /// WebSocket compression.
    pub websocket: Websocket,
    /// What is logged, and how.
    pub log: Log,
}

/// How messages leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// io_uring where the kernel allows it, else write.
    Auto,
    /// Batched io_uring sends.
    IoUring,
    /// One system call for each connection.
    Write,
}

/// How is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// A JSON object a line.
    Json,
}

/// What clients meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Let clients connect from other machines although nothing authenticates them: any of them may read any topic and be any user.
    pub insecure: bool,
    /// Origins whose pages may connect from a browser: "*", or scheme://host[:port] each.
    pub cors_origins: Vec<String>,
    /// Clients may publish to topics that begin with one of these; "*" is every topic, and none is none.
    pub publish_prefixes: Vec<String>,
}

/// What applications and operators meet.
#[derive(Clone, PartialEq, Eq)]
pub struct Admin {
    /// Where applications and operators connect.
    pub listen: SocketAddr,
    /// The key that applications and operators send as Authorization: Bearer, at least 16 characters; needed beyond loopback.
    pub api_key: String,
    /// The largest body of an API request.
    pub body_bytes_max: u64,
}

/// The event loops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards {
    /// Event loops; 0 is as many as cores, limits.connections_max and the limit on open files ask for.
    pub count: u64,
    /// Bind each shard to a core.
    pub pin_cpus: bool,
    /// How messages leave: io_uring batches where the kernel allows them, or one write for each connection.
    pub sender: Sender,
}

/// Limits; sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections in all; more are answered 503. Shards are planned for it at the start.
    pub connections_max: u64,
    /// Connections from one address; 0 is no limit.
    pub connections_per_address_max: u64,
    /// New connections a second; more are answered 503, 0 is no limit.
    pub accept_per_second_max: u64,
    /// Topics that one connection may be in, its users included.
    pub topics_per_connection_max: u64,
    /// The payload of a message.
    pub message_bytes_max: u64,
    /// The head of a client's request.
    pub head_bytes_max: u64,
    /// The target in a client's request line.
    pub uri_bytes_max: u64,
    /// A WebSocket message from a client.
    pub frame_bytes_max: u64,
    /// What may wait for a client that doesn't read; then it is closed.
    pub outbox_bytes_max: u64,
    /// Messages that may wait for a client that doesn't read; then it is closed.
    pub outbox_messages_max: u64,
    /// Resident memory at which new connections are answered 503; 0 is 90 % of the cgroup's limit where there is one, else none.
    pub memory_bytes_max: u64,
    /// Messages that may wait for one shard; then publishing is answered 503.
    pub mailbox_messages_max: u64,
    /// Messages of all topics that a long poll which comes back can still get.
    pub recent_messages_max: u64,
    /// The memory for those messages.
    pub recent_bytes_max: u64,
    /// How long they are kept.
    pub recent_seconds_max: u64,
}

/// Times, in the unit that each name ends with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until a request must have arrived whole.
    pub head_seconds: u64,
    /// How long a connection may rest between requests.
    pub idle_seconds: u64,
    /// Between comments to an SSE client.
    pub sse_heartbeat_seconds: u64,
    /// What an EventSource waits before it comes back.
    pub sse_retry_milliseconds: u64,
    /// Between heartbeat lines of an HTTP stream.
    pub stream_heartbeat_seconds: u64,
    /// Between pings to a WebSocket.
    pub ws_ping_seconds: u64,
    /// A WebSocket that says nothing for so long is closed.
    pub ws_silence_seconds: u64,
    /// How long a poll waits when it doesn't say.
    pub poll_seconds: u64,
    /// How long a poll may wait at most.
    pub poll_seconds_max: u64,
    /// How long the end may take, once it is asked for.
    pub drain_seconds: u64,
    /// A silent connection is probed after so long; 0 is never.
    pub tcp_keepalive_seconds: u64,
    /// A connection whose peer acknowledges nothing for so long is dropped; 0 is the kernel's choice.
    pub tcp_user_timeout_seconds: u64,
}

/// What is asked of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Connections that may wait to be accepted, for each shard.
    pub backlog: u64,
    /// What the kernel keeps for a client that doesn't read, about twice; 0 is the kernel's choice.
    pub send_buffer_bytes: u64,
}

/// WebSocket compression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Websocket {
    /// Agree to permessage-deflate when a client offers it.
    pub compression: bool,
    /// 1 is fast, 9 is small.
    pub compression_level: u64,
    /// Smaller messages are not compressed.
    pub compression_bytes_min: u64,
}

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// What is logged: error, warn, info, debug, trace, or a filter like info,shard=debug.
    pub level: String,
    /// How it is logged.
    pub format: LogFormat,
}

impl fmt::Debug for Admin {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin")
            .field("listen", &self.listen)
            .field("api_key", &if self.api_key.is_empty() { "" } else { "(set)" })
            .field("body_bytes_max", &self.body_bytes_max)
            .finish()
    }
}

/// Every setting has a value of its kind by now: the fallbacks are never met.
pub(crate) fn typed(values: &Values) -> Config {
    let value = |key: &str| values.get(key).map(|(value, _)| value);
    let flag = |key: &str| matches!(value(key), Some(Value::Bool(true)));
    let number = |key: &str| match value(key) {
        Some(Value::Number(number)) => *number,
        _ => 0,
    };
    let text = |key: &str| match value(key) {
        Some(Value::Text(text)) => text.clone(),
        _ => String::new(),
    };
    let list = |key: &str| match value(key) {
        Some(Value::List(items)) => items.clone(),
        _ => Vec::new(),
    };
    let address =
        |key: &str| text(key).parse().unwrap_or_else(|_| SocketAddr::from(([127, 0, 0, 1], 0)));
    Config {
        client: Client {
            listen: address("client.listen"),
            insecure: flag("client.insecure"),
            cors_origins: list("client.cors_origins"),
            publish_prefixes: list("client.publish_prefixes"),
        },
        admin: Admin {
            listen: address("admin.listen"),
            api_key: text("admin.api_key"),
            body_bytes_max: number("admin.body_bytes_max"),
        },
        shards: Shards {
            count: number("shards.count"),
            pin_cpus: flag("shards.pin_cpus"),
            sender: match text("shards.sender").as_str() {
                "io_uring" => Sender::IoUring,
                "write" => Sender::Write,
                _ => Sender::Auto,
            },
        },
        limits: Limits {
            connections_max: number("limits.connections_max"),
            connections_per_address_max: number("limits.connections_per_address_max"),
            accept_per_second_max: number("limits.accept_per_second_max"),
            topics_per_connection_max: number("limits.topics_per_connection_max"),
            message_bytes_max: number("limits.message_bytes_max"),
            head_bytes_max: number("limits.head_bytes_max"),
            uri_bytes_max: number("limits.uri_bytes_max"),
            frame_bytes_max: number("limits.frame_bytes_max"),
            outbox_bytes_max: number("limits.outbox_bytes_max"),
            outbox_messages_max: number("limits.outbox_messages_max"),
            memory_bytes_max: number("limits.memory_bytes_max"),
            mailbox_messages_max: number("limits.mailbox_messages_max"),
            recent_messages_max: number("limits.recent_messages_max"),
            recent_bytes_max: number("limits.recent_bytes_max"),
            recent_seconds_max: number("limits.recent_seconds_max"),
        },
        timeouts: Timeouts {
            head_seconds: number("timeouts.head_seconds"),
            idle_seconds: number("timeouts.idle_seconds"),
            sse_heartbeat_seconds: number("timeouts.sse_heartbeat_seconds"),
            sse_retry_milliseconds: number("timeouts.sse_retry_milliseconds"),
            stream_heartbeat_seconds: number("timeouts.stream_heartbeat_seconds"),
            ws_ping_seconds: number("timeouts.ws_ping_seconds"),
            ws_silence_seconds: number("timeouts.ws_silence_seconds"),
            poll_seconds: number("timeouts.poll_seconds"),
            poll_seconds_max: number("timeouts.poll_seconds_max"),
            drain_seconds: number("timeouts.drain_seconds"),
            tcp_keepalive_seconds: number("timeouts.tcp_keepalive_seconds"),
            tcp_user_timeout_seconds: number("timeouts.tcp_user_timeout_seconds"),
        },
        socket: Socket {
            backlog: number("socket.backlog"),
            send_buffer_bytes: number("socket.send_buffer_bytes"),
        },
        websocket: Websocket {
            compression: flag("websocket.compression"),
            compression_level: number("websocket.compression_level"),
            compression_bytes_min: number("websocket.compression_bytes_min"),
        },
        log: Log {
            level: text("log.level"),
            format: if text("log.format") == "json" { LogFormat::Json } else { LogFormat::Text },
        },
    }
}
