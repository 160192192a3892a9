//! Collects the facts about a host, without evaluating them.

use std::collections::BTreeMap;
use std::path::Path;

use kernel::{kilobytes, softnet_dropped};
use serde::{Deserialize, Serialize};

use crate::cgroup::{self, Cgroup};
use crate::probe::{self, IoUring};
use crate::read::read;

/// The sysctl names of the settings to read.
const SYSCTLS: &[&str] = &[
    "fs.epoll.max_user_watches",
    "fs.file-max",
    "fs.file-nr",
    "fs.nr_open",
    "kernel.io_uring_disabled",
    "net.core.netdev_max_backlog",
    "net.core.rmem_default",
    "net.core.rmem_max",
    "net.core.somaxconn",
    "net.core.wmem_default",
    "net.core.wmem_max",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_ehash_entries",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_low_latency",
    "net.ipv4.tcp_max_orphans",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_max_tw_buckets",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_tw_recycle",
    "net.ipv4.tcp_tw_reuse",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_wmem",
    "net.netfilter.nf_conntrack_buckets",
    "net.netfilter.nf_conntrack_count",
    "net.netfilter.nf_conntrack_max",
    "vm.max_map_count",
    "vm.min_free_kbytes",
    "vm.swappiness",
];

/// Facts about a host and about the process that read them. A fact that can't be read is absent.
/// That is no error, because containers hide many facts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    /// The kernel's release: `6.1.0-18-amd64`.
    pub kernel: Option<String>,
    /// Cores that this process may use, according to its affinity and its cgroup's quota.
    pub cpus: Option<u64>,
    /// The kind of container: `docker`, `podman`, `kubernetes`, `lxc`.
    pub container: Option<String>,
    /// True if /proc/sys is mounted read-only, as it is in containers.
    pub sysctl_read_only: Option<bool>,
    /// `MemTotal`.
    pub memory_total_bytes: Option<u64>,
    /// `MemAvailable`: the memory that programs can still get without swapping.
    pub memory_available_bytes: Option<u64>,
    /// `SwapTotal`.
    pub swap_total_bytes: Option<u64>,
    /// The cgroup among this process's own and its ancestors that leaves the least memory, in bytes.
    pub cgroup_memory: Option<Cgroup>,
    /// The cgroup among this process's own and its ancestors that leaves the fewest threads.
    pub cgroup_pids: Option<Cgroup>,
    /// The soft limit on open files; "unlimited" is `u64::MAX`.
    pub nofile_soft: Option<u64>,
    /// The hard limit on open files; "unlimited" is `u64::MAX`.
    pub nofile_hard: Option<u64>,
    /// True if a thread may have a descriptor table of its own.
    pub private_tables: Option<bool>,
    /// The kernel's response to a ring like the server's.
    pub io_uring: Option<IoUring>,
    /// The active word in /sys/kernel/mm/transparent_hugepage/enabled.
    pub transparent_hugepage: Option<String>,
    /// Packets dropped so far because a core's backlog queue was full.
    pub softnet_dropped: Option<u64>,
    /// Values of /proc/sys by their sysctl names, with single blanks between numbers.
    pub sysctls: BTreeMap<String, String>,
}

impl Host {
    /// Reads this host. It takes a few milliseconds, needs no privileges and changes nothing.
    pub fn read() -> Host {
        let mut host = Host::read_from(Path::new("/"));
        (host.nofile_soft, host.nofile_hard) = probe::descriptor_limits();
        host.cpus = std::thread::available_parallelism().ok().map(|cpus| cpus.get() as u64);
        host.private_tables = probe::private_tables();
        host.io_uring = probe::io_uring();
        host
    }

    /// Reads the facts from files below `root`. Facts that need a system call are absent.
    pub fn read_from(root: &Path) -> Host {
        let meminfo = read(root, "proc/meminfo").unwrap_or_default();
        let groups = read(root, "proc/self/cgroup").unwrap_or_default();
        let sysctls = SYSCTLS.iter().filter_map(|key| {
            let text = read(root, &format!("proc/sys/{}", key.replace('.', "/")))?;
            Some(((*key).to_owned(), text.split_whitespace().collect::<Vec<_>>().join(" ")))
        });
        Host {
            kernel: read(root, "proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()),
            container: container(root, &groups),
            sysctl_read_only: read(root, "proc/self/mountinfo").map(|text| sysctl_read_only(&text)),
            memory_total_bytes: kilobytes(&meminfo, "MemTotal:"),
            memory_available_bytes: kilobytes(&meminfo, "MemAvailable:"),
            swap_total_bytes: kilobytes(&meminfo, "SwapTotal:"),
            cgroup_memory: cgroup::memory(root, &groups),
            cgroup_pids: cgroup::pids(root, &groups),
            transparent_hugepage: read(root, "sys/kernel/mm/transparent_hugepage/enabled")
                .and_then(|text| Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())),
            softnet_dropped: read(root, "proc/net/softnet_stat")
                .and_then(|text| softnet_dropped(&text)),
            sysctls: sysctls.collect(),
            ..Host::default()
        }
    }

    /// Returns a sysctl's value as text.
    pub fn sysctl(&self, key: &str) -> Option<&str> {
        self.sysctls.get(key).map(String::as_str)
    }

    /// Returns a sysctl's first number; `None` also if it is not a number.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.sysctl(key)?.split_whitespace().next()?.parse().ok()
    }

    /// Returns a count of objects in use; `None` also if no machine could have this many.
    pub(crate) fn in_use(&self, key: &str) -> Option<u64> {
        self.number(key).filter(|count| *count < 1 << 40)
    }

    /// Returns a sysctl of three numbers: minimum, default or pressure, maximum.
    pub fn triple(&self, key: &str) -> Option<[u64; 3]> {
        let numbers = self.sysctl(key)?.split_whitespace().map(str::parse);
        let numbers: Vec<u64> = numbers.collect::<Result<_, _>>().ok()?;
        numbers.try_into().ok()
    }

    /// Returns the kernel's version, for example (6, 1).
    pub fn kernel_version(&self) -> Option<(u64, u64)> {
        let mut parts = self.kernel.as_deref()?.split(|c: char| !c.is_ascii_digit());
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }
}

fn container(root: &Path, groups: &str) -> Option<String> {
    let named = |words: &[&str]| words.iter().any(|word| groups.contains(word));
    let kind = if named(&["kubepods"]) || root.join("var/run/secrets/kubernetes.io").exists() {
        "kubernetes"
    } else if root.join("run/.containerenv").exists() || named(&["libpod"]) {
        "podman"
    } else if root.join(".dockerenv").exists() || named(&["docker"]) {
        "docker"
    } else if named(&["/lxc/", "/lxc.payload"]) {
        "lxc"
    } else {
        return None;
    };
    Some(kind.to_owned())
}

/// Returns whether /proc/sys is read-only. Of the mounts that cover it, the one with the longest path
/// decides, and of several with one path the last line.
fn sysctl_read_only(mountinfo: &str) -> bool {
    let mounts = mountinfo.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(4);
        Some((fields.next()?, fields.next()?))
    });
    let covering = mounts.filter(|(path, _)| ["/", "/proc", "/proc/sys"].contains(path));
    covering
        .max_by_key(|(path, _)| path.len())
        .is_some_and(|(_, options)| options.split(',').any(|option| option == "ro"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_with_the_longest_path_decides_whether_settings_are_writable() {
        let docker = "1 0 0:1 / / rw,relatime - overlay o rw\n2 1 0:2 / /proc rw,nosuid - proc proc rw\n3 2 0:2 /sys /proc/sys ro,nosuid - proc proc rw\n";
        assert!(sysctl_read_only(docker));
        assert!(!sysctl_read_only(docker.lines().next().unwrap()));
        assert!(!sysctl_read_only("nonsense\n\n"));
    }

    #[test]
    fn kernel_versions_are_parsed() {
        let version =
            |text: &str| Host { kernel: Some(text.to_owned()), ..Host::default() }.kernel_version();
        assert_eq!(version("6.18.44-fc-v445"), Some((6, 18)));
        assert_eq!(version("4.9"), Some((4, 9)));
        assert_eq!(version("strange"), None);
    }

    #[test]
    fn this_host_has_a_kernel_memory_and_limits() {
        let host = Host::read();
        assert!(host.kernel_version().is_some());
        assert!(host.memory_total_bytes > Some(0));
        assert!(host.nofile_hard >= host.nofile_soft);
        let copy: Host = serde_json::from_str(&serde_json::to_string(&host).unwrap()).unwrap();
        assert_eq!(copy, host);
    }
}
