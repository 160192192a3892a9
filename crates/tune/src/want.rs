//! The connections that a host must serve.

use serde::{Deserialize, Serialize};

/// The requirements for the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    /// Connections at a time.
    pub connections: u64,
    /// The load generator runs on this host too. Then the kernel has both ends of each connection, and the generator
    /// needs source ports.
    pub both_ends: bool,
    /// The server's `socket.backlog`: how many connections may wait to be accepted by each shard.
    pub backlog: u32,
    /// The server's `socket.send_buffer_bytes`; 0 is the kernel's choice.
    pub send_buffer_bytes: u64,
}

impl Want {
    /// Returns the requirement of this many connections from other hosts, to a server with default settings.
    pub fn new(connections: u64) -> Want {
        Want { connections, both_ends: false, backlog: 4_096, send_buffer_bytes: 64 << 10 }
    }

    /// Returns how many ends of each connection are on this host.
    pub(crate) fn ends(&self) -> u64 {
        if self.both_ends { 2 } else { 1 }
    }
}
