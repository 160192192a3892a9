//! Details of a connection that only its socket has.

#![expect(unsafe_code, reason = "getsockopt(2) for TCP_INFO")]

use std::net::SocketAddr;
use std::os::fd::AsFd;

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
            (info.bytes_sent, info.bytes_received) = traffic(socket);
            info.outbox_bytes =
                self.sockets.outbox(info.id.slot).map_or(0, |outbox| outbox.bytes());
        }
        reply((members, connections));
    }
}

/// Bytes that the peer acknowledged and bytes that it sent. The kernel counts them anyway
/// (`tcp_info` in linux/tcp.h), so no connection has to.
fn traffic(socket: impl AsFd) -> (u64, u64) {
    use std::os::fd::AsRawFd;
    const ACKED: usize = 120;
    const RECEIVED: usize = 128;
    let mut info = [0u8; 136];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`, which is that long.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&info[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    if result == 0 && length as usize >= info.len() {
        (word(ACKED), word(RECEIVED))
    } else {
        (0, 0)
    }
}
