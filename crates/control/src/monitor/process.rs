//! This process as the kernel knows it: memory, processor time, sockets.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use kernel::{KernelStats, kilobytes};

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
    let bytes = |name| kilobytes(&text, name).unwrap_or(0);
    Memory { resident: bytes("VmRSS:"), anonymous: bytes("RssAnon:") }
}

/// Returns the processor time of all threads, in seconds.
pub(crate) fn cpu_seconds() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

/// The kernel's slab for one end of an established connection, in bytes: measured with idle ones over loopback, as is
/// the advice on memory of `throng tune`.
const SLAB_BYTES: u64 = 4_170;

/// Estimates the kernel's memory for connections of this process, in bytes, for Linux accounts for sockets by host
/// only: the slab of idle connections, and their share, by number, of the buffers of all TCP sockets.
pub(crate) fn kernel_bytes(stats: &KernelStats, connections: u64) -> u64 {
    let sockets = stats.tcp_sockets.unwrap_or(0).max(connections).max(1);
    let buffers = stats.tcp_memory.map_or(0, |memory| memory.used_bytes);
    let share = connections as f64 / sockets as f64;
    connections * SLAB_BYTES + (buffers as f64 * share) as u64
}

/// Returns when this process started, in seconds since 1970, or 0 if the kernel doesn't report it.
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

/// Returns milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Returns microseconds since 1970.
pub fn unix_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// Returns seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns the memory limit of this process's cgroup, in bytes: the least of its own and of those around it, which
/// all count.
pub(crate) fn cgroup_limit() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    // Without a limit version 2 writes "max", and version 1 a number near 2^63.
    let limit = |file: String| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    limit_files(&own).into_iter().filter_map(limit).filter(|limit| *limit < 1 << 60).min()
}

/// Returns the files with the limits, by the lines of /proc/self/cgroup (cgroups(7)): `hierarchy:controllers:path`,
/// where version 2 is hierarchy 0 and names no controllers.
fn limit_files(own: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (root, name) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            some if some.split(',').any(|controller| controller == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        // In a container the path may be the host's, and only the root is visible.
        let around = Path::new(path.trim_start_matches('/')).ancestors();
        files
            .extend(around.map(|path| Path::new(root).join(path).join(name).display().to_string()));
    }
    files
}

#[cfg(test)]
mod tests {
    use kernel::TcpMemory;

    use super::*;

    #[test]
    fn the_kernels_figures_are_read() {
        let memory = memory();
        assert!(
            memory.resident > 1 << 20 && memory.anonymous > 0 && memory.anonymous < memory.resident
        );
        assert!((0.0001..3600.0).contains(&cpu_seconds()));
        let ago = unix_seconds() as f64 - start_seconds();
        assert!((-2.0..3600.0).contains(&ago), "{ago}");
        let own = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 250 20";
        assert_eq!(started(own, "cpu 1\nbtime 1000\n"), Some(1002.5));
        assert_eq!(started("", "btime 1000"), None);
    }

    #[test]
    fn the_kernels_part_is_slab_and_a_share_of_the_buffers() {
        let tcp_memory = TcpMemory { used_bytes: 5 * 4096, ..TcpMemory::default() };
        let stats = KernelStats {
            tcp_sockets: Some(4),
            tcp_memory: Some(tcp_memory),
            ..KernelStats::default()
        };
        assert_eq!(kernel_bytes(&stats, 0), 0);
        assert_eq!(kernel_bytes(&stats, 2), 2 * 4170 + 5 * 4096 / 2);
        assert_eq!(kernel_bytes(&stats, 8), 8 * 4170 + 5 * 4096);
        assert_eq!(kernel_bytes(&KernelStats::default(), 1), 4170);
    }

    #[test]
    fn a_limit_is_sought_in_all_groups_around() {
        let own = "9:name=systemd:/x\n4:cpu,memory:/a:b/c\n0::/user.slice/d\n?\n";
        let want = [
            "/sys/fs/cgroup/memory/a:b/c/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/a:b/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/user.slice/d/memory.max",
            "/sys/fs/cgroup/user.slice/memory.max",
            "/sys/fs/cgroup/memory.max",
        ];
        assert_eq!(limit_files(own), want);
        assert_eq!(limit_files("0::/\n"), ["/sys/fs/cgroup/memory.max"]);
    }
}
