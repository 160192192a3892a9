//! The time of one thread of this process as the kernel's scheduler counts it.

use std::fs;

/// The kernel's clock ticks in a second, in which /proc counts (`USER_HZ`): the same on every architecture of Rust.
const TICKS_PER_SECOND: u64 = 100;

/// The time of a thread since it was started, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadTime {
    /// On a processor.
    pub cpu_us: u64,
    /// On a processor and in the kernel, which is in system calls; in steps of 10 ms.
    pub system_us: u64,
    /// Ready to run while no processor was free.
    pub cpu_wait_us: u64,
}

impl ThreadTime {
    /// Reads the time of a thread by the number that the kernel gives it. Returns `None` if the kernel does not
    /// report it, as in some containers.
    pub fn read(thread: u64) -> Option<Self> {
        let file = |name| fs::read_to_string(format!("/proc/self/task/{thread}/{name}")).ok();
        ThreadTime::parse(&file("schedstat")?, &file("stat")?)
    }

    /// `schedstat` has nanoseconds on a processor, nanoseconds in its queue, and a count; `stime` is the 15th field of
    /// `stat`, whose second one is a name in brackets (proc_pid_stat(5)).
    fn parse(schedstat: &str, stat: &str) -> Option<Self> {
        let mut nanoseconds = schedstat.split_whitespace().map(str::parse::<u64>);
        let (cpu, wait) = (nanoseconds.next()?.ok()?, nanoseconds.next()?.ok()?);
        let ticks: u64 = stat.rsplit(')').next()?.split_whitespace().nth(12)?.parse().ok()?;
        Some(ThreadTime {
            cpu_us: cpu / 1_000,
            system_us: ticks * (1_000_000 / TICKS_PER_SECOND),
            cpu_wait_us: wait / 1_000,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_are_read() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 250 31 0 0 20";
        let want = ThreadTime { cpu_us: 3_000, system_us: 310_000, cpu_wait_us: 12 };
        assert_eq!(ThreadTime::parse("3000999 12345 7\n", stat), Some(want));
        assert_eq!(ThreadTime::parse("", stat), None);
        assert_eq!(ThreadTime::parse("3000999 12345 7\n", "7 (a) S 1"), None);
        assert_eq!(ThreadTime::read(0), None);
    }

    #[test]
    fn the_time_of_this_thread_grows() {
        let thread = u64::from(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        // The host may not report it.
        if let Some(before) = ThreadTime::read(thread) {
            let began = std::time::Instant::now();
            let mut sum = 0u64;
            while ThreadTime::read(thread).unwrap().cpu_us <= before.cpu_us {
                (0..10_000).for_each(|n| sum = std::hint::black_box(sum.wrapping_add(n)));
                assert!(began.elapsed().as_secs() < 60, "it stands still");
            }
        }
    }
}
