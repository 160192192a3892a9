//! Returns freed memory to the system. docs/internals/connection.md has the reasons for this choice.

#![allow(unsafe_code, reason = "mallopt(3) and malloc_trim(3)")]
#![cfg_attr(not(target_env = "gnu"), allow(dead_code, unused_imports))]

use std::time::{Duration, Instant};

/// The shortest time between two trims.
const EVERY: Duration = Duration::from_secs(5);

/// Trims take at most this fraction of the time, so slow trims run rarely.
const SHARE: u32 = 1_000;

/// The longest time between two trims, so that freed memory is back within half a minute in any case.
const SELDOM: Duration = Duration::from_secs(20);

/// Larger allocations come directly from the system and return to it when they are freed. Without a
/// fixed threshold, glibc would raise it with the first large allocation that is freed, and would
/// not return later ones.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: i32 = 128 << 10;

/// Starts the thread that returns freed memory. If the thread can't start, the process does not return freed memory.
pub fn start() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the call sets a number in the allocator, which no other thread may use meanwhile: the server has
        // started none yet.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES) };
        let thread = std::thread::Builder::new().name("give-back".into());
        if let Err(error) = thread.spawn(run) {
            tracing::warn!(
                %error,
                "freed memory is not returned to the system: the thread that returns it can't start"
            );
        }
    }
}

#[cfg(target_env = "gnu")]
fn run() {
    loop {
        let begin = Instant::now();
        give_back();
        std::thread::sleep((begin.elapsed() * SHARE).clamp(EVERY, SELDOM));
    }
}

/// Returns freed memory at once. The server continues to run meanwhile.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes the allocator's own locks, one after the other, as an allocation does.
    unsafe {
        libc::malloc_trim(0);
    }
}
