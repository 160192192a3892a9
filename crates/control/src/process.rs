//! What the kernel says of this process.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// Resident memory, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    /// All of it.
    pub resident: u64,
    /// What the program itself has written: heap and stacks.
    pub anonymous: u64,
}

pub(crate) fn memory() -> Memory {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    Memory { resident: kib(&text, "VmRSS:"), anonymous: kib(&text, "RssAnon:") }
}

/// A line like `VmRSS:     1234 kB`, in bytes.
fn kib(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0) * 1024
}

/// Processor time of all threads, in seconds.
pub(crate) fn cpu_seconds() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in brackets may hold anything: fields are counted after it. utime and stime are
    // the 14th and 15th of all (proc(5)), in ticks, which Linux counts 100 of a second for users.
    let rest = text.rsplit(')').next().unwrap_or("");
    let ticks: u64 =
        rest.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}

/// When this process started, in seconds since 1970; 0 where the kernel doesn't say.
pub(crate) fn start_seconds() -> f64 {
    let own = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let kernel = fs::read_to_string("/proc/stat").unwrap_or_default();
    started(&own, &kernel).unwrap_or(0.0)
}

/// `starttime`, the 22nd field of /proc/self/stat, is in ticks after the machine's `btime`.
fn started(own: &str, kernel: &str) -> Option<f64> {
    let ticks: u64 = own.rsplit(')').next()?.split_whitespace().nth(19)?.parse().ok()?;
    let boot: u64 =
        kernel.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot as f64 + ticks as f64 / 100.0)
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The memory limit of the cgroup that this process is in, in bytes.
pub(crate) fn cgroup_limit() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let files = [
        format!("/sys/fs/cgroup{path}/memory.max"),
        "/sys/fs/cgroup/memory.max".into(),
        "/sys/fs/cgroup/memory/memory.limit_in_bytes".into(),
    ];
    let limit = files.iter().find_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())?;
    // Version 1 writes "none" as a number near 2^63.
    (limit < 1 << 60).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_understood() {
        let memory = memory();
        assert!(
            memory.resident > 1 << 20 && memory.anonymous > 0 && memory.anonymous < memory.resident
        );
        assert_eq!(kib("X: 1\nVmRSS:\t   12 kB\n", "VmRSS:"), 12 * 1024);
        assert!(cpu_seconds() < 3600.0);
        let ago = unix_seconds() as f64 - start_seconds();
        assert!((-2.0..3600.0).contains(&ago), "{ago}");
        let own = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 250 20";
        assert_eq!(started(own, "cpu 1\nbtime 1000\n"), Some(1002.5));
        assert_eq!(started("", "btime 1000"), None);
    }
}
