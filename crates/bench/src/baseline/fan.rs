//! Sends one message to many sockets, with a `write` each or with batched `io_uring` sends.

#![expect(unsafe_code, reason = "io_uring reads the bytes after the call that queues them")]

use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result};
use io_uring::{IoUring, opcode, types};

use super::{FanoutResult, Sender};
use crate::marker::{Kind, payload};
use flood::clock::now_ns;

/// Sends in one batch, and entries of the submission queue.
const BATCH: usize = 512;

/// Returns an event of this many bytes in all, or of the fewest that contain the marker.
pub(super) fn message(bytes: usize) -> Vec<u8> {
    const AROUND: usize = "data: \n\n".len();
    let payload = payload(Kind::Counted, now_ns(), bytes.saturating_sub(AROUND));
    format!("data: {payload}\n\n").into_bytes()
}

/// The sender of a thread.
pub(super) enum Fan {
    Write,
    IoUring(Box<IoUring>),
}

impl Fan {
    /// Creates a sender. The thread that will send must call this, because the ring belongs to it alone.
    pub(super) fn new(sender: Sender) -> Result<Self> {
        Ok(match sender {
            Sender::Write => Self::Write,
            Sender::IoUring => Self::IoUring(Box::new(
                IoUring::builder()
                    .setup_single_issuer()
                    .setup_defer_taskrun()
                    .setup_submit_all()
                    .build(BATCH as u32)
                    .context("io_uring is not available here")?,
            )),
        })
    }

    /// Sends the message to each socket.
    pub(super) fn out(&mut self, sockets: &[OwnedFd], message: &[u8]) -> Result<FanoutResult> {
        let sent = match self {
            Self::Write => write_each(sockets, message),
            Self::IoUring(ring) => sockets
                .chunks(BATCH)
                .map(|batch| send_batch(ring, batch, message))
                .sum::<Result<u64>>()?,
        };
        Ok(FanoutResult { sent, rejected: sockets.len() as u64 - sent })
    }
}

/// Returns the number of sockets that accepted the whole message.
fn write_each(sockets: &[OwnedFd], message: &[u8]) -> u64 {
    sockets.iter().filter(|socket| rustix::io::write(socket, message) == Ok(message.len())).count()
        as u64
}

/// Sends to up to [`BATCH`] sockets with one system call. Returns how many accepted the whole message.
fn send_batch(ring: &mut IoUring, sockets: &[OwnedFd], message: &[u8]) -> Result<u64> {
    {
        let mut queue = ring.submission();
        for socket in sockets {
            let send = opcode::Send::new(
                types::Fd(socket.as_raw_fd()),
                message.as_ptr(),
                message.len() as u32,
            )
            .flags(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
            .build();
            // SAFETY: the sockets and the message outlive the batch: this function returns once
            // each send has completed. If the kernel rejects the batch, each of its non-blocking
            // sends is either done or was never begun.
            unsafe { queue.push(&send) }.context("a full submission queue")?;
        }
    }
    let (mut done, mut sent) = (0, 0);
    while done < sockets.len() {
        match ring.submit_and_wait(sockets.len() - done) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("submitting sends"),
        }
        for completion in ring.completion() {
            done += 1;
            sent += u64::from(completion.result() == message.len() as i32);
        }
    }
    Ok(sent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::marker::{PAYLOAD_BYTES_MIN, Scanner};
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn message_has_the_requested_bytes_and_one_marker() {
        let message = message(120);
        assert_eq!(message.len(), 120);
        assert_eq!(Scanner::default().scan(&message, &mut 0, |_| ()), 1);
        assert_eq!(super::message(0).len(), PAYLOAD_BYTES_MIN + 8);
    }

    /// More sockets than a batch, one of them closed at its far end.
    fn fans_out_with(sender: Sender) {
        let (near, mut far): (Vec<_>, Vec<_>) = (0..BATCH + 3)
            .map(|_| UnixStream::pair().expect("a pair"))
            .map(|(near, far)| (OwnedFd::from(near), far))
            .unzip();
        drop(far.pop());
        let fanned = Fan::new(sender).expect("a sender").out(&near, b"message").expect("a fan-out");
        assert_eq!(fanned.sent, BATCH as u64 + 2);
        assert_eq!(fanned.rejected, 1);
        drop(near);
        for mut far in far {
            let mut bytes = Vec::new();
            far.read_to_end(&mut bytes).expect("the stream");
            assert_eq!(bytes, b"message");
        }
    }

    #[test]
    fn write_reaches_all() {
        fans_out_with(Sender::Write);
    }

    #[test]
    fn io_uring_reaches_all() {
        fans_out_with(Sender::IoUring);
    }
}
