//! The kernel's counters and tables at one moment, and the files they are read from.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::proc::{self, Pressure, Usage};

/// What the kernel reports at one moment. Counters run since the boot, or since the network namespace was made.
/// Counters of TCP and the table of tracked connections belong to the process's network namespace; all
/// others to the whole host. `None` is what this kernel does not report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct KernelStats {
    /// Attempts to connect that were dropped because a listener's queue was full (ListenOverflows).
    pub listen_overflows: Option<u64>,
    /// All attempts to connect that were dropped at a listener, overflows included (ListenDrops).
    pub listen_drops: Option<u64>,
    /// How often TCP came under pressure for memory (TCPMemoryPressures).
    pub tcp_memory_pressures: Option<u64>,
    /// Connections that were aborted because TCP had no memory, or too many were orphans (TCPAbortOnMemory).
    pub tcp_aborts_on_memory: Option<u64>,
    /// Segments sent, without retransmissions (OutSegs).
    pub tcp_segments_out: Option<u64>,
    /// Segments retransmitted (RetransSegs).
    pub tcp_segments_retransmitted: Option<u64>,
    /// Packets dropped because a core's backlog was full (/proc/net/softnet_stat).
    pub softnet_dropped: Option<u64>,
    /// The limit on connections that wait in a listener's queue (net.core.somaxconn).
    pub somaxconn: Option<u64>,
    /// TCP sockets in use, of IPv4 and IPv6.
    pub tcp_sockets: Option<u64>,
    /// Memory of TCP's buffers.
    pub tcp_memory: Option<TcpMemory>,
    /// Connections that the packet filter tracks (conntrack).
    pub conntrack: Option<Usage>,
    /// Open files of the host (fs.file-nr).
    pub files: Option<Usage>,
    /// Tasks that waited for a processor.
    pub cpu: Option<Pressure>,
    /// Tasks that waited for memory.
    pub memory: Option<Pressure>,
    /// Tasks that waited for a disk.
    pub io: Option<Pressure>,
}

/// The buffers of all TCP sockets of the host, and their limits (net.ipv4.tcp_mem), in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct TcpMemory {
    /// The memory in use.
    pub used_bytes: u64,
    /// The kernel keeps buffers small from here on. `None` in a container, where the limits are hidden.
    pub pressure_bytes: Option<u64>,
    /// The kernel drops segments and aborts connections from here on.
    pub max_bytes: Option<u64>,
}

impl KernelStats {
    /// Reads the stats of this host and of this process's network namespace. It takes well below a
    /// millisecond, however many connections there are, and needs no privilege.
    pub fn read() -> KernelStats {
        KernelStats::read_from(Path::new("/proc"), rustix::param::page_size() as u64)
    }

    /// Reads the stats from files below `proc`. `page_bytes` is the size of a page of memory.
    pub fn read_from(proc: &Path, page_bytes: u64) -> KernelStats {
        let text = |path: &str| fs::read_to_string(proc.join(path)).unwrap_or_default();
        let number = |path: &str| proc::numbers::<1>(&text(path)).map(|[number]| number);
        let (netstat, snmp) = (text("net/netstat"), text("net/snmp"));
        let (sockstat, sockstat6) = (text("net/sockstat"), text("net/sockstat6"));
        let extended = |name| proc::counter(&netstat, "TcpExt", name);
        let bytes = |pages: u64| pages.saturating_mul(page_bytes);
        let tcp_limits = proc::numbers::<3>(&text("sys/net/ipv4/tcp_mem"));
        let tcp_memory = proc::tcp_memory_pages(&sockstat).map(|used| TcpMemory {
            used_bytes: bytes(used),
            pressure_bytes: tcp_limits.map(|[_, pressure, _]| bytes(pressure)),
            max_bytes: tcp_limits.map(|[_, _, max]| bytes(max)),
        });
        let conntrack = || {
            let used = number("sys/net/netfilter/nf_conntrack_count")?;
            Some(Usage { used, max: number("sys/net/netfilter/nf_conntrack_max")? })
        };
        let sockets = proc::number_after(&sockstat, "TCP:", "inuse");
        let sockets6 = proc::number_after(&sockstat6, "TCP6:", "inuse");
        KernelStats {
            listen_overflows: extended("ListenOverflows"),
            listen_drops: extended("ListenDrops"),
            tcp_memory_pressures: extended("TCPMemoryPressures"),
            tcp_aborts_on_memory: extended("TCPAbortOnMemory"),
            tcp_segments_out: proc::counter(&snmp, "Tcp", "OutSegs"),
            tcp_segments_retransmitted: proc::counter(&snmp, "Tcp", "RetransSegs"),
            softnet_dropped: proc::softnet_dropped(&text("net/softnet_stat")),
            somaxconn: number("sys/net/core/somaxconn"),
            tcp_sockets: sockets.map(|sockets| sockets.saturating_add(sockets6.unwrap_or(0))),
            tcp_memory,
            conntrack: conntrack(),
            files: proc::files(&text("sys/fs/file-nr")),
            cpu: proc::pressure(&text("pressure/cpu")),
            memory: proc::pressure(&text("pressure/memory")),
            io: proc::pressure(&text("pressure/io")),
        }
    }
}

/// Returns an id of the running kernel and this process's network namespace. Processes with the same id see
/// the same counters. `None` where /proc hides it.
pub fn kernel_id() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/net").ok()?;
    let number: String = namespace.to_str()?.chars().filter(char::is_ascii_digit).collect();
    Some(format!("{}:{number}", boot.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with these files; removed at the end of the test.
    struct Proc(std::path::PathBuf);

    impl Proc {
        fn with(name: &str, files: &[(&str, &str)]) -> Proc {
            let folder =
                std::env::temp_dir().join(format!("throng-kernel-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = folder.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Proc(folder)
        }
    }

    impl Drop for Proc {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn each_value_is_read_from_its_file() {
        let proc = Proc::with(
            "all",
            &[
                (
                    "net/netstat",
                    "TcpExt: ListenOverflows ListenDrops TCPAbortOnMemory TCPMemoryPressures\nTcpExt: 1 2 4 3\n",
                ),
                ("net/snmp", "Tcp: OutSegs RetransSegs\nTcp: 5 6\n"),
                ("net/sockstat", "TCP: inuse 5 orphan 0 tw 0 alloc 6 mem 3\n"),
                ("net/sockstat6", "TCP6: inuse 2\n"),
                ("net/softnet_stat", "0 7\n"),
                ("sys/net/core/somaxconn", "4096\n"),
                ("sys/net/ipv4/tcp_mem", "10\t20\t30\n"),
                ("sys/net/netfilter/nf_conntrack_count", "8\n"),
                ("sys/net/netfilter/nf_conntrack_max", "9\n"),
                ("sys/fs/file-nr", "10\t0\t11\n"),
                ("pressure/cpu", "some avg10=1.00 \nfull avg10=0.00 \n"),
                ("pressure/memory", "some avg10=2.00 \nfull avg10=1.50 \n"),
                ("pressure/io", "some avg10=3.00 \nfull avg10=2.50 \n"),
            ],
        );
        let pressure = |some_percent, full_percent| Some(Pressure { some_percent, full_percent });
        let want = KernelStats {
            listen_overflows: Some(1),
            listen_drops: Some(2),
            tcp_memory_pressures: Some(3),
            tcp_aborts_on_memory: Some(4),
            tcp_segments_out: Some(5),
            tcp_segments_retransmitted: Some(6),
            softnet_dropped: Some(7),
            somaxconn: Some(4_096),
            tcp_sockets: Some(7),
            tcp_memory: Some(TcpMemory {
                used_bytes: 12_288,
                pressure_bytes: Some(81_920),
                max_bytes: Some(122_880),
            }),
            conntrack: Some(Usage { used: 8, max: 9 }),
            files: Some(Usage { used: 10, max: 11 }),
            cpu: pressure(1.0, 0.0),
            memory: pressure(2.0, 1.5),
            io: pressure(3.0, 2.5),
        };
        let stats = KernelStats::read_from(&proc.0, 4_096);
        assert_eq!(stats, want);
        let text = serde_json::to_string(&stats).unwrap();
        assert_eq!(serde_json::from_str::<KernelStats>(&text).unwrap(), stats);
    }

    #[test]
    fn missing_and_malformed_values_are_none() {
        let proc = Proc::with(
            "strange",
            &[
                ("net/netstat", "TcpExt: ListenDrops\nTcpExt: many\n"),
                ("net/sockstat", "TCP: inuse 5 mem 3\n"),
                ("sys/net/ipv4/tcp_mem", "10 20\n"),
                ("sys/net/netfilter/nf_conntrack_count", "8\n"),
                ("sys/fs/file-nr", ""),
                ("pressure/cpu", "\u{0}"),
            ],
        );
        let tcp_memory = Some(TcpMemory { used_bytes: 12_288, ..TcpMemory::default() });
        let want = KernelStats { tcp_sockets: Some(5), tcp_memory, ..KernelStats::default() };
        assert_eq!(KernelStats::read_from(&proc.0, 4_096), want);
        assert_eq!(KernelStats::read_from(Path::new("/nowhere"), 4_096), KernelStats::default());
        // Another version may leave fields out.
        assert_eq!(
            serde_json::from_str::<KernelStats>("{\"more\":1}").unwrap(),
            KernelStats::default()
        );
    }

    #[test]
    fn this_kernel_reports_its_counters_and_its_id() {
        let stats = KernelStats::read();
        assert!(stats.listen_overflows.is_some() && stats.listen_drops.is_some());
        assert!(stats.files.is_some_and(|files| files.used > 0));
        assert!(kernel_id().is_some_and(|id| id.ends_with(|last: char| last.is_ascii_digit())));
    }
}
