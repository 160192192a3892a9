//! Settings that old articles recommend and that are useless or harmful with today's kernels.

use serde::{Deserialize, Serialize};

use crate::host::Host;
use crate::want::Want;

/// A recommendation not to follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Useless {
    /// The recommended setting.
    pub setting: String,
    /// The reason why it is useless or harmful.
    pub why: String,
    /// The value on this host, if the host follows the recommendation.
    pub here: Option<String>,
}

/// The setting that shows whether a host follows the recommendation, the recommendation, and the reason not to follow
/// it.
type Line = (&'static str, &'static str, &'static str);

const OLD_ADVICE: &[Line] = &[
    (
        "net.ipv4.tcp_tw_recycle",
        "net.ipv4.tcp_tw_recycle = 1",
        "removed in Linux 4.12; before, it locked out clients behind NAT",
    ),
    (
        "net.ipv4.tcp_tw_reuse",
        "net.ipv4.tcp_tw_reuse = 1",
        "only for outgoing connections; the default, 2, is for loopback",
    ),
    (
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_fin_timeout lowered",
        "it does not affect TIME_WAIT, which is always 60 s",
    ),
    (
        "net.ipv4.tcp_max_tw_buckets",
        "net.ipv4.tcp_max_tw_buckets lowered",
        "a place in TIME_WAIT is cheap, and it protects new connections",
    ),
    (
        "net.ipv4.tcp_max_orphans",
        "net.ipv4.tcp_max_orphans raised",
        "for closed connections with unsent data; open ones don't count",
    ),
    (
        "net.ipv4.tcp_timestamps",
        "net.ipv4.tcp_timestamps = 0",
        "saves 12 bytes a segment, loses exact round trips and safe reuse of ports",
    ),
    (
        "net.ipv4.tcp_sack",
        "net.ipv4.tcp_sack = 0",
        "makes each lost segment more expensive; the vulnerabilities of 2019 are long fixed",
    ),
    (
        "net.ipv4.tcp_window_scaling",
        "net.ipv4.tcp_window_scaling = 0",
        "holds every connection below 64 KiB a round trip",
    ),
    (
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_syncookies = 0",
        "cookies are used only when the queue is full; without them, connections are refused",
    ),
    (
        "net.ipv4.tcp_max_syn_backlog",
        "net.ipv4.tcp_max_syn_backlog raised",
        "without effect while SYN cookies are on",
    ),
    (
        "net.core.somaxconn",
        "net.core.somaxconn = 65535",
        "the queue is the lower of this and the server's own backlog",
    ),
    (
        "net.core.netdev_max_backlog",
        "net.core.netdev_max_backlog = 250000",
        "network cards don't use it; raise it only if softnet_stat counts drops",
    ),
    (
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_rmem, tcp_wmem with large defaults",
        "lets each connection fill that much memory; the kernel grows buffers on demand",
    ),
    (
        "net.core.rmem_default",
        "net.core.rmem_default, wmem_default raised",
        "TCP takes its defaults from tcp_rmem and tcp_wmem",
    ),
    (
        "net.ipv4.tcp_mem",
        "net.ipv4.tcp_mem copied from an article",
        "counted in pages, not bytes, and scaled to the memory by the kernel",
    ),
    (
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_port_range = 1024 65535",
        "a server needs one port; a wide range can take the ports of services",
    ),
    (
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_keepalive_* lowered",
        "only for programs that enable keepalive and set no time; Throng sets its own",
    ),
    (
        "net.ipv4.tcp_slow_start_after_idle",
        "net.ipv4.tcp_slow_start_after_idle = 0",
        "the first burst of 10 segments is enough for any push message",
    ),
    (
        "net.ipv4.tcp_low_latency",
        "net.ipv4.tcp_low_latency = 1, tcp_fack = 1",
        "without effect since Linux 4.14 and 4.15",
    ),
    (
        "vm.swappiness",
        "vm.swappiness = 0",
        "sockets are never swapped, and 0 makes the OOM killer act earlier",
    ),
    ("", "vm.max_map_count raised", "for programs with many mappings; connections have none"),
    (
        "",
        "fs.file-max in sysctl.conf",
        "systemd sets it to 2^63 - 1 at boot: a line there can only lower it",
    ),
    (
        "",
        "fs.epoll.max_user_watches raised",
        "the default is 4 % of memory, millions: raise it only if a finding says so",
    ),
    (
        "",
        "net.netfilter.nf_conntrack_max raised",
        "only if a firewall rule tracks connections; it is better not to track the server's port",
    ),
    (
        "",
        "ulimit -n = the number of connections",
        "each shard has its own table, so it bounds a shard, not the process",
    ),
];

pub(crate) fn all(host: &Host, want: &Want) -> Vec<Useless> {
    let lines = OLD_ADVICE.iter().map(|(key, setting, why)| Useless {
        setting: (*setting).to_owned(),
        why: (*why).to_owned(),
        here: host.sysctl(key).filter(|_| followed(host, want, key)).map(str::to_owned),
    });
    lines.collect()
}

/// Returns whether the host's value is the recommended one rather than the kernel's default.
fn followed(host: &Host, want: &Want, key: &str) -> bool {
    let Some(now) = host.number(key) else { return false };
    let default_of = |key| host.triple(key).map_or(0, |[_, default, _]| default);
    match key {
        "net.ipv4.tcp_tw_recycle" => now > 0,
        "net.ipv4.tcp_tw_reuse" | "net.ipv4.tcp_low_latency" => now == 1,
        "net.ipv4.tcp_fin_timeout" => now < 60,
        "net.ipv4.tcp_max_tw_buckets" => now < 4_096,
        "net.ipv4.tcp_max_orphans" => now >= 1_000_000,
        "net.ipv4.tcp_timestamps"
        | "net.ipv4.tcp_sack"
        | "net.ipv4.tcp_window_scaling"
        | "net.ipv4.tcp_syncookies"
        | "net.ipv4.tcp_slow_start_after_idle"
        | "vm.swappiness" => now == 0,
        "net.ipv4.tcp_max_syn_backlog" => {
            now >= 16_384 && host.number("net.ipv4.tcp_syncookies") != Some(0)
        }
        "net.core.somaxconn" => now > u64::from(want.backlog).max(4_096),
        "net.core.netdev_max_backlog" => now >= 30_000,
        "net.ipv4.tcp_rmem" => default_of(key).max(default_of("net.ipv4.tcp_wmem")) > 1 << 20,
        "net.core.rmem_default" => now > 1 << 20,
        // More pages than the machine has: the administrator took them for bytes.
        "net.ipv4.tcp_mem" => match (host.triple(key), host.memory_total_bytes) {
            (Some([_, _, most]), Some(total)) => most > total / 4_096,
            _ => false,
        },
        "net.ipv4.ip_local_port_range" => now < 10_000 && !want.both_ends,
        "net.ipv4.tcp_keepalive_time" => now < 7_200,
        _ => false,
    }
}
