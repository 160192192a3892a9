//! Figures of this host: memory of the kernel and of this process, and kernel settings.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kernel::{kilobytes, tcp_memory_pages};

use crate::clock::process_cpu;

/// Memory and processor time at one moment. Zero for figures that the host hides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host {
    /// The kernel's slab, in bytes.
    pub slab_bytes: u64,
    /// Buffers of TCP sockets, in bytes.
    pub tcp_bytes: u64,
    /// Memory still available, in bytes.
    pub available_bytes: u64,
    /// Memory that is free or has cached files, in bytes. Unlike what the kernel calls available it doesn't count the
    /// inodes and directory entries of open sockets, which seem reclaimable and are not.
    pub free_bytes: u64,
    /// Memory that this process has written, in bytes.
    pub own_bytes: u64,
    /// Processor time of this process.
    pub own_cpu: Duration,
}

impl Host {
    /// Reads the current figures.
    pub fn now() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let (memory, sockets) = (read("/proc/meminfo"), read("/proc/net/sockstat"));
        let page = rustix::param::page_size() as u64;
        Self {
            slab_bytes: kilobytes(&memory, "Slab:").unwrap_or(0),
            tcp_bytes: tcp_memory_pages(&sockets).unwrap_or(0) * page,
            available_bytes: kilobytes(&memory, "MemAvailable:").unwrap_or(0),
            free_bytes: ["MemFree:", "Buffers:", "Cached:"]
                .map(|name| kilobytes(&memory, name).unwrap_or(0))
                .iter()
                .sum::<u64>()
                .saturating_sub(kilobytes(&memory, "Shmem:").unwrap_or(0)),
            own_bytes: kilobytes(&read("/proc/self/status"), "RssAnon:").unwrap_or(0),
            own_cpu: process_cpu(std::process::id()).unwrap_or_default(),
        }
    }
}

/// Returns facts about the host for the report, as name and value.
pub fn facts() -> Vec<(String, String)> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("");
    let memory = kilobytes(&read("/proc/meminfo"), "MemTotal:").unwrap_or(0);
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    [
        ("kernel", read("/proc/sys/kernel/osrelease").trim().to_string()),
        ("processor", model.trim_start_matches([' ', '\t', ':']).to_string()),
        ("cores", cores.to_string()),
        ("memory", format!("{:.1} GiB", memory as f64 / (1u64 << 30) as f64)),
        ("open files of a thread", limit.current.map_or("no limit".into(), |n| n.to_string())),
    ]
    .map(|(name, value)| (name.to_string(), value))
    .to_vec()
}

/// Returns the kernel settings that affect a crowd, as name and value.
pub fn settings() -> Vec<(String, String)> {
    const NAMES: &[&str] = &[
        "fs.file-max",
        "fs.nr_open",
        "fs.epoll.max_user_watches",
        "kernel.io_uring_disabled",
        "net.core.netdev_max_backlog",
        "net.core.rmem_max",
        "net.core.somaxconn",
        "net.core.wmem_max",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_max_syn_backlog",
        "net.ipv4.tcp_max_tw_buckets",
        "net.ipv4.tcp_mem",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_tw_reuse",
        "net.ipv4.tcp_wmem",
        "vm.min_free_kbytes",
        "vm.swappiness",
    ];
    let value = |name: &&str| {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        let text = std::fs::read_to_string(path).ok()?;
        let words: Vec<&str> = text.split_whitespace().collect();
        Some((name.to_string(), words.join(" ")))
    };
    NAMES.iter().filter_map(value).collect()
}

/// Returns the current time in seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_read() {
        assert!(Host::now().own_bytes > 0);
        assert!(facts().iter().any(|(name, value)| name == "kernel" && !value.is_empty()));
    }
}
