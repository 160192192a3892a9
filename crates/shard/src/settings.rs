//! What a shard is told at its start, and what may change later.

use std::net::SocketAddr;

/// The most seconds that anything may wait for a silent peer: silence is measured in 16 bits, and
/// looked at about once a second, so that a longer one would pass unseen.
pub const SILENCE_SECONDS_MAX: u32 = 60_000;

// A shard that is held up for an hour still sees it.
const _: () = assert!(SILENCE_SECONDS_MAX + 3_600 < u16::MAX as u32);

/// Settings that may change while the shard runs: [`crate::Command::Settings`].
#[derive(Clone, Debug)]
pub struct Settings {
    /// How bytes are answered.
    pub session: wire::Settings,
    /// Connections in the whole process.
    pub connections_max: u64,
    /// Connections from one address; 0 is no limit.
    pub connections_per_address_max: u32,
    /// New connections a second in the whole process; 0 is no limit.
    pub accept_per_second_max: u32,
    /// Bytes that may wait for a connection that doesn't read.
    pub outbox_bytes_max: usize,
    /// Messages that may wait for it.
    pub outbox_messages_max: usize,
    /// Bytes that input which is not whole may take up in the whole process.
    pub input_bytes_max: usize,
    /// Bytes that all outboxes may take up in the whole process.
    pub outboxes_bytes_max: usize,
    /// Messages that a connection may publish in a second; 0 is no limit.
    pub publishes_per_second_max: u32,
    /// Topics that a connection may enter in a second; 0 is no limit.
    pub joins_per_second_max: u32,
    /// Until a request's head and body must be whole, in seconds, at most [`SILENCE_SECONDS_MAX`].
    pub head_seconds: u32,
    /// How long a connection may rest between requests, in seconds, at most
    /// [`SILENCE_SECONDS_MAX`].
    pub idle_seconds: u32,
    /// Between the comments of SSE, in seconds.
    pub sse_heartbeat_seconds: u32,
    /// Between the heartbeat lines of an HTTP stream, in seconds.
    pub stream_heartbeat_seconds: u32,
    /// Between WebSocket pings, in seconds.
    pub ws_ping_seconds: u32,
    /// A WebSocket that was silent for so many seconds, at most [`SILENCE_SECONDS_MAX`], is closed.
    pub ws_silence_seconds: u32,
    /// The same for a Phoenix WebSocket, whose client beats.
    pub phoenix_silence_seconds: u32,
    /// How long a Phoenix long poll waits, in seconds.
    pub longpoll_seconds: u32,
    /// Phoenix long-poll sessions in the whole process.
    pub longpoll_sessions_max: u64,
    /// Those of one address; 0 is no limit.
    pub longpoll_sessions_per_address_max: u32,
    /// What a member may say about itself, in bytes.
    pub presence_meta_bytes_max: usize,
}

/// How batches of messages leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderKind {
    /// io_uring where the kernel allows it, else write.
    Auto,
    /// Batched io_uring sends; an error at the start where the kernel doesn't allow them.
    IoUring,
    /// One system call for each connection.
    Write,
}

/// What can't change while the process lives.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// How many shards; 0 is as many as cores, connections and descriptors ask for.
    pub shards: usize,
    /// Bind each shard to a core.
    pub pin_cpus: bool,
    /// How batches of messages leave.
    pub sender: SenderKind,
    /// Connections that may wait to be accepted, for each shard.
    pub backlog: u32,
    /// What the kernel keeps for a connection that doesn't read, in bytes; 0 is its own choice.
    pub send_buffer_bytes: usize,
    /// A silent connection is probed after so many seconds.
    pub tcp_keepalive_seconds: u32,
    /// Sent bytes must be acknowledged within so many seconds.
    pub tcp_user_timeout_seconds: u32,
    /// Messages and commands that may wait for a shard.
    pub mailbox_messages_max: usize,
    /// 1 to 9.
    pub compression_level: u32,
    /// Smaller messages are not compressed, in bytes.
    pub compression_bytes_min: usize,
}
