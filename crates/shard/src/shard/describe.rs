//! Details of connections that only their sockets have.

use std::cmp::Reverse;
use std::net::SocketAddr;

use super::Shard;
use engine::{Describe, Slowest};

impl Shard {
    /// Adds the sockets' details, and replies.
    pub(crate) fn describe(&self, describe: Describe) {
        let Describe { members, mut connections, reply } = describe;
        for info in &mut connections {
            let Some(socket) = self.sockets.get(info.id.slot) else {
                continue;
            };
            // A trusted proxy has named the address of its client.
            info.address = info
                .address
                .or_else(|| SocketAddr::try_from(rustix::net::getpeername(socket).ok()??).ok());
            // The kernel counts them anyway, so no connection has to.
            if let Some(tcp) = crate::tcp_info::of(socket) {
                (info.bytes_sent, info.bytes_received) = (tcp.bytes_acked(), tcp.bytes_received());
            }
            if let Some(outbox) = self.sockets.outbox(info.id.slot) {
                info.outbox_bytes = outbox.bytes();
                info.outbox_age_ms = outbox.age_ms(self.engine.now_us());
            }
        }
        reply((members, connections));
    }

    /// Describes the connections with the largest outboxes, and replies.
    pub(crate) fn describe_slowest(&self, slowest: Slowest) {
        let Slowest { limit, reply } = slowest;
        let outboxes = self.sockets.outboxes();
        let mut largest: Vec<_> =
            outboxes.map(|(slot, outbox)| (Reverse(outbox.bytes()), slot)).collect();
        let count = largest.len();
        if limit < count {
            largest.select_nth_unstable(limit);
            largest.truncate(limit);
        }
        largest.sort_unstable();
        let connections = self.engine.describe(largest.into_iter().map(|(_, slot)| slot));
        let members = count.try_into().unwrap_or(u32::MAX);
        self.describe(Describe { members, connections, reply });
    }
}
