//! Reads the facts that need a system call.

#![expect(unsafe_code, reason = "io_uring_setup(2), unshare(2) and close_range(2)")]

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use rustix::process::{Resource, getrlimit};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use serde::{Deserialize, Serialize};

/// The result of io_uring_setup(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IoUring {
    /// The kernel created a ring.
    Allowed,
    /// The call returned this errno.
    Refused(i32),
}

/// `IORING_SETUP_CLAMP | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN`. The server's rings
/// have these flags, so it can't use a kernel that lacks one of them.
const RING_FLAGS: u32 = 1 << 4 | 1 << 12 | 1 << 13;

/// `struct io_uring_params`; only its flags matter here.
#[repr(C)]
#[derive(Default)]
struct RingParameters {
    sizes: [u32; 2],
    flags: u32,
    rest: [u32; 27],
}

const _: () = assert!(size_of::<RingParameters>() == 120);

/// Returns the soft and hard limit on open files; `u64::MAX` is no limit.
pub(crate) fn descriptor_limits() -> (Option<u64>, Option<u64>) {
    let limit = getrlimit(Resource::Nofile);
    (Some(limit.current.unwrap_or(u64::MAX)), Some(limit.maximum.unwrap_or(u64::MAX)))
}

/// Tries to create a small ring, and closes it.
pub(crate) fn io_uring() -> Option<IoUring> {
    let mut parameters = RingParameters { flags: RING_FLAGS, ..Default::default() };
    // SAFETY: the second argument points to a struct of the size that the kernel reads and writes,
    // which lives through the call; the kernel retains no pointer to it.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 2, &raw mut parameters) };
    if fd < 0 {
        return Some(IoUring::Refused(std::io::Error::last_os_error().raw_os_error()?));
    }
    // SAFETY: the kernel has just given us this descriptor, and nothing else owns it.
    drop(unsafe { OwnedFd::from_raw_fd(RawFd::try_from(fd).ok()?) });
    Some(IoUring::Allowed)
}

/// Tries a shard's own call: a thread that ends at once unshares the descriptor table.
pub(crate) fn private_tables() -> Option<bool> {
    let thread = std::thread::Builder::new().spawn(|| {
        // SAFETY: this thread opens, closes and owns no descriptor in its copy of the table.
        let unshared = unsafe { unshare_unsafe(UnshareFlags::FILES) }.is_ok();
        // The server falls back to this call, which Docker's default filter allows.
        // SAFETY: no descriptor has that number, so the call closes nothing.
        unshared
            || unsafe { libc::close_range(u32::MAX, u32::MAX, libc::CLOSE_RANGE_UNSHARE as i32) }
                == 0
    });
    thread.ok()?.join().ok()
}
