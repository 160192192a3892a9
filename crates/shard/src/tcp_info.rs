//! The kernel's figures of a TCP socket: `tcp_info` in linux/tcp.h.

#![expect(unsafe_code, reason = "getsockopt(2) for TCP_INFO")]

use std::os::fd::{AsFd, AsRawFd};

/// Offsets of the fields, in bytes.
const UNACKED: usize = 24;
const BYTES_ACKED: usize = 120;
const BYTES_RECEIVED: usize = 128;
/// Bytes up to the end of the last field. Every kernel since 4.1 has them.
const BYTES: usize = 136;

/// The figures of one socket.
pub(crate) struct TcpInfo([u8; BYTES]);

/// Reads the figures of a socket; `None` if it is no TCP socket.
pub(crate) fn of(socket: impl AsFd) -> Option<TcpInfo> {
    let mut info = [0u8; BYTES];
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
    (result == 0 && length as usize >= BYTES).then_some(TcpInfo(info))
}

impl TcpInfo {
    /// Bytes that the peer has acknowledged.
    pub fn bytes_acked(&self) -> u64 {
        u64::from_ne_bytes(self.field(BYTES_ACKED))
    }

    /// Bytes that the peer has sent.
    pub fn bytes_received(&self) -> u64 {
        u64::from_ne_bytes(self.field(BYTES_RECEIVED))
    }

    /// For a listener: how many connections wait to be accepted. The kernel stores that number in the field of
    /// unacknowledged segments, which a listener does not have.
    pub fn listen_queue(&self) -> u32 {
        u32::from_ne_bytes(self.field(UNACKED))
    }

    fn field<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.0[at..at + N]);
        bytes
    }
}
