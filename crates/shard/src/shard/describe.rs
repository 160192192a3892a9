//! Details of a connection that only its socket has.

use std::net::SocketAddr;

use super::Shard;
use engine::Describe;

impl Shard {
    /// Adds the sockets' details, and answers.
    pub(crate) fn describe(&self, describe: Describe) {
        let Describe { members, mut connections, reply } = describe;
        for info in &mut connections {
            let Some(socket) = self.sockets.get(info.id.slot) else {
                continue;
            };
            // A connection through a trusted proxy comes from where that says.
            info.address = info
                .address
                .or_else(|| SocketAddr::try_from(rustix::net::getpeername(socket).ok()??).ok());
            // The kernel counts them anyway, so no connection has to.
            if let Some(tcp) = crate::tcp_info::of(socket) {
                (info.bytes_sent, info.bytes_received) = (tcp.bytes_acked(), tcp.bytes_received());
            }
            info.outbox_bytes =
                self.sockets.outbox(info.id.slot).map_or(0, |outbox| outbox.bytes());
        }
        reply((members, connections));
    }
}
