//! Many small sends at once: io_uring where the kernel allows it, one system call each elsewhere.

#![expect(unsafe_code, reason = "io_uring reads the bytes after the call that queues them")]

use std::io;
use std::os::fd::BorrowedFd;

use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::settings::SenderKind;

/// The most sends in one system call. A kernel that does not preempt its own work does nothing else on this core during
/// the call: about 4 µs a send.
pub(crate) const BATCH: usize = 128;

/// One send. The bytes stay where they are until [`Sender::send`] returns.
pub(crate) struct Send<'a, T> {
    pub fd: BorrowedFd<'a>,
    pub bytes: &'a [u8],
    /// The slot of its connection. The kernel returns it with the result, so nothing can take one
    /// connection's result for another's.
    pub of: T,
}

pub(crate) enum Sender {
    IoUring(Box<IoUring>),
    Write,
}

impl Sender {
    /// Makes a sender. Call it on the thread that will use it.
    pub fn new(kind: SenderKind) -> io::Result<Self> {
        match (kind, ring()) {
            (SenderKind::Write, _) | (SenderKind::Auto, Err(_)) => Ok(Sender::Write),
            (_, Ok(ring)) => Ok(Sender::IoUring(Box::new(ring))),
            (SenderKind::IoUring, Err(error)) => Err(error),
        }
    }

    /// The name in the log.
    pub fn name(&self) -> &'static str {
        match self {
            Sender::IoUring(_) => "io_uring",
            Sender::Write => "write",
        }
    }

    /// Sends all of them without waiting for capacity. `done` gets each send's slot, with the bytes that the kernel
    /// took or the error. The list must not name a socket twice: a second send could overtake a first one that found no
    /// capacity.
    pub fn send<T: Copy>(
        &mut self,
        sends: &[Send<'_, T>],
        mut done: impl FnMut(T, Result<usize, Errno>),
    ) {
        match self {
            Sender::IoUring(ring) => {
                for sends in sends.chunks(BATCH) {
                    send_ring(ring, sends, &mut done);
                }
            }
            Sender::Write => {
                for one in sends {
                    done(one.of, send_one(one.fd, one.bytes));
                }
            }
        }
    }
}

/// Sends without waiting for capacity.
pub(crate) fn send_one(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    send(fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

/// Completions run when this thread requests them, not in the middle of something else: no
/// interrupts between cores, and the whole batch is done when the submitting call returns.
fn ring() -> io::Result<IoUring> {
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_clamp().build(BATCH as u32)
}

fn send_ring<T: Copy>(
    ring: &mut IoUring,
    sends: &[Send<'_, T>],
    done: &mut impl FnMut(T, Result<usize, Errno>),
) {
    {
        let mut queue = ring.submission();
        for (at, one) in sends.iter().enumerate() {
            let fd = types::Fd(std::os::fd::AsRawFd::as_raw_fd(&one.fd));
            let flags = (SendFlags::DONTWAIT | SendFlags::NOSIGNAL).bits() as i32;
            let entry = opcode::Send::new(fd, one.bytes.as_ptr(), one.bytes.len() as u32)
                .flags(flags)
                .build()
                .user_data(at as u64);
            // SAFETY: the descriptor and the bytes are borrowed until this function returns, and
            // it returns only when the kernel has completed every entry.
            let pushed = unsafe { queue.push(&entry) };
            debug_assert!(pushed.is_ok(), "a chunk is no longer than the ring");
        }
    }
    let mut left = sends.len();
    while left > 0 {
        match ring.submit_and_wait(left) {
            Ok(_) => {}
            // Interrupted, or the completion queue must be emptied first.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)
                ) => {}
            Err(error) => {
                // The kernel may still use the buffers: nothing safe is left to do.
                tracing::error!(%error, "io_uring failed: restart with --sender write");
                std::process::abort();
            }
        }
        for entry in ring.completion() {
            left -= 1;
            let result = entry.result();
            // The kernel returns the value that the entry got above.
            if let Some(one) = sends.get(entry.user_data() as usize) {
                let result = match result {
                    ..0 => Err(Errno::from_raw_os_error(-result)),
                    sent => Ok(sent as usize),
                };
                done(one.of, result);
            }
        }
    }
}
