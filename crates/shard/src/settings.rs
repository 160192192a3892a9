//! A shard's settings at its start.

use std::net::SocketAddr;

use engine::Listener;

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

/// A kind of address: what clients may speak there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// The protocols that clients may speak there.
    pub listener: Listener,
    /// True if they speak through TLS.
    pub tls: bool,
}

impl Port {
    /// A port without TLS.
    pub fn plain(listener: Listener) -> Self {
        Port { listener, tls: false }
    }

    /// A port with TLS.
    pub fn tls(listener: Listener) -> Self {
        Port { listener, tls: true }
    }
}

/// The settings that can't change while the process runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where clients connect: a few addresses, none of them twice.
    pub listen: Vec<(Port, SocketAddr)>,
    /// The number of shards; 0 derives it from cores, connections and descriptors.
    pub shards: usize,
    /// True to bind each shard to a core.
    pub pin_cpus: bool,
    /// How batches of messages leave.
    pub sender: SenderKind,
    /// Connections that may wait to be accepted, for each shard and each address.
    pub backlog: u32,
    /// The kernel's send buffer of a connection, in bytes; 0 leaves the size to the kernel.
    pub send_buffer_bytes: usize,
    /// The kernel probes a silent connection after so many seconds.
    pub tcp_keepalive_seconds: u32,
    /// Sent bytes must be acknowledged within so many seconds.
    pub tcp_user_timeout_seconds: u32,
    /// Messages and commands that may wait for a shard.
    pub mailbox_messages_max: usize,
    /// The level of permessage-deflate, 1 to 9.
    pub compression_level: u32,
    /// The server doesn't compress messages below this size, in bytes.
    pub compression_bytes_min: usize,
}
