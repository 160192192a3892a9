//! What the allocator does with freed memory: it goes back to the system. ARCHITECTURE.md says how
//! this was chosen.

#![cfg_attr(not(target_env = "gnu"), allow(dead_code, unused_imports))]

use std::time::{Duration, Instant};

/// Between two looks for freed memory, at the least.
const EVERY: Duration = Duration::from_secs(5);

/// A look is at most this part of the time: one that takes long comes seldom.
const SHARE: u32 = 1_000;

/// The longest time between two looks: what is freed is back within half a minute all the same.
const SELDOM: Duration = Duration::from_secs(20);

/// What is larger than this comes from the system and goes back there when it is freed. By itself
/// glibc would raise the bound with the first large request that is freed, and keep the others.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: i32 = 128 << 10;

/// Starts the thread that gives freed memory back. Where it can't be had memory is kept, no more.
pub fn start() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: sets a number in the allocator, which any thread may do at any time.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES) };
        let thread = std::thread::Builder::new().name("give-back".into());
        if let Err(error) = thread.spawn(run) {
            tracing::warn!("freed memory is kept, for the thread that returns it failed: {error}");
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

/// Gives back at once what is kept of freed memory. The server goes on meanwhile.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the allocator's own locks, one after the other, as an allocation does.
    unsafe {
        libc::malloc_trim(0);
    }
}
