//! Clocks: one monotonic clock for both ends, and the CPU clock of another process.

#![expect(unsafe_code, reason = "clock_getcpuclockid(3) and clock_gettime(2)")]

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Returns nanoseconds since a fixed point that all processes of this host share. So a message can
/// carry the time at which it was due.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the CPU time that all threads of a process have used, ended threads included.
///
/// `/proc/PID/stat` counts in ticks of 10 ms, and `/proc/PID/task/*/schedstat` lags for a thread
/// that runs right now. The process's CPU clock counts nanoseconds and doesn't lag.
///
/// # Errors
/// If no such process exists.
pub fn process_cpu(pid: u32) -> Result<Duration> {
    let pid = libc::pid_t::try_from(pid).context("a process id too large")?;
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` outlives the call, which writes it and retains no pointer.
    let error = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if error != 0 {
        return Err(std::io::Error::from_raw_os_error(error)).context("no CPU clock of the server");
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call, which writes it and retains no pointer.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(std::io::Error::last_os_error()).context("reading the server's CPU clock");
    }
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_cpu_clock_advances_with_work() {
        let before = process_cpu(std::process::id()).expect("own process");
        let mut sum = 0u64;
        for i in 0..3_000_000u64 {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(i));
        }
        let after = process_cpu(std::process::id()).expect("own process");
        assert!(after > before);
    }

    #[test]
    fn an_impossible_process_id_is_an_error() {
        assert!(process_cpu(u32::MAX).is_err());
        // Above the kernel's PID_MAX_LIMIT of 2^22.
        assert!(process_cpu((1 << 22) + 1).is_err());
    }
}
