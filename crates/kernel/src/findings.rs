//! Compares the stats of two moments. Describes what went wrong, with advice.

use serde::{Deserialize, Serialize};

use crate::proc::{Pressure, Usage};
use crate::stats::{KernelStats, TcpMemory};

/// A table is reported from this share of its limit on, in percent.
const NEARLY_FULL_PERCENT: u64 = 90;
/// Retransmissions are reported from this share of segments on, in percent. Fewer are ordinary.
const RETRANSMITTED_PERCENT: f64 = 5.0;
/// Fewer retransmissions are never reported: their share says nothing.
const RETRANSMITTED_MIN: u64 = 100;
/// Waiting for a processor, for memory and for a disk is reported from these shares of the time on, in percent.
const CPU_PERCENT: f32 = 80.0;
const MEMORY_PERCENT: f32 = 10.0;
const IO_PERCENT: f32 = 40.0;

/// The advice when TCP's buffers take too much memory.
const TCP_MEMORY_ADVICE: &str =
    "raise net.ipv4.tcp_mem (throng tune prints the value), or lower socket.send_buffer_bytes";

/// The kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// A listener's queue was full.
    ListenOverflows,
    /// Attempts to connect were dropped for another reason.
    ListenDrops,
    /// TCP came under pressure for memory.
    TcpMemoryPressures,
    /// Connections were aborted for memory.
    TcpAbortsOnMemory,
    /// Many segments were retransmitted.
    Retransmits,
    /// Packets were dropped because a core's backlog was full.
    SoftnetDropped,
    /// TCP's buffers take so much that the kernel keeps them small.
    TcpMemory,
    /// The table of tracked connections is nearly full.
    Conntrack,
    /// The host is near its limit on open files.
    Files,
    /// Tasks wait for a processor.
    Cpu,
    /// Tasks wait for memory.
    Memory,
    /// All tasks wait for a disk.
    Io,
}

impl FindingKind {
    /// The kinds that report a counter.
    pub(crate) const COUNTERS: [FindingKind; 6] = [
        FindingKind::ListenOverflows,
        FindingKind::ListenDrops,
        FindingKind::TcpMemoryPressures,
        FindingKind::TcpAbortsOnMemory,
        FindingKind::Retransmits,
        FindingKind::SoftnetDropped,
    ];

    /// The counter that a finding of this kind reports; `None` for a condition of this moment.
    pub(crate) fn counter(self) -> Option<fn(&KernelStats) -> Option<u64>> {
        Some(match self {
            FindingKind::ListenOverflows => |stats| stats.listen_overflows,
            FindingKind::ListenDrops => other_drops,
            FindingKind::TcpMemoryPressures => |stats| stats.tcp_memory_pressures,
            FindingKind::TcpAbortsOnMemory => |stats| stats.tcp_aborts_on_memory,
            FindingKind::Retransmits => |stats| stats.tcp_segments_retransmitted,
            FindingKind::SoftnetDropped => |stats| stats.softnet_dropped,
            FindingKind::TcpMemory
            | FindingKind::Conntrack
            | FindingKind::Files
            | FindingKind::Cpu
            | FindingKind::Memory
            | FindingKind::Io => return None,
        })
    }

    /// True if tasks wait for a resource.
    pub fn is_pressure(self) -> bool {
        matches!(self, FindingKind::Cpu | FindingKind::Memory | FindingKind::Io)
    }
}

/// One thing that went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Finding {
    /// Its kind.
    pub kind: FindingKind,
    /// What happened, as a clause: `the kernel dropped 312 attempts to connect: …`.
    pub what: String,
    /// What to do, as a clause.
    pub advice: String,
    /// How long ago it happened last, in seconds; `None` for a condition of this moment.
    pub seconds_ago: Option<u64>,
}

impl Finding {
    fn new(kind: FindingKind, what: String, advice: impl Into<String>) -> Finding {
        Finding { kind, what, advice: advice.into(), seconds_ago: None }
    }
}

/// Returns what went wrong from `before` to `after`, the gravest first. Counters are compared; conditions are those
/// of `after`. A counter that fell belongs to another boot or namespace and is left out.
pub fn findings(before: &KernelStats, after: &KernelStats) -> Vec<Finding> {
    let grown = |kind: FindingKind| {
        let read = kind.counter()?;
        read(after)?.checked_sub(read(before)?).filter(|count| *count > 0)
    };
    let all = [
        grown(FindingKind::TcpAbortsOnMemory).map(aborts),
        grown(FindingKind::ListenOverflows).map(|count| overflows(count, after)),
        grown(FindingKind::ListenDrops).map(drops),
        grown(FindingKind::SoftnetDropped).map(softnet),
        after.conntrack.filter(nearly_full).map(conntrack),
        after.files.filter(nearly_full).map(files),
        after.tcp_memory.and_then(tcp_memory),
        grown(FindingKind::TcpMemoryPressures).map(pressures),
        grown(FindingKind::Retransmits).and_then(|count| retransmits(count, before, after)),
        after.memory.and_then(memory),
        after.cpu.and_then(cpu),
        after.io.and_then(io),
    ];
    all.into_iter().flatten().collect()
}

/// Returns the attempts to connect that were dropped for another reason than a full queue.
fn other_drops(stats: &KernelStats) -> Option<u64> {
    Some(stats.listen_drops?.saturating_sub(stats.listen_overflows?))
}

fn nearly_full(table: &Usage) -> bool {
    table.max > 0
        && u128::from(table.used) * 100 >= u128::from(table.max) * u128::from(NEARLY_FULL_PERCENT)
}

fn aborts(count: u64) -> Finding {
    let what = format!(
        "the kernel aborted {}, because TCP's memory was full or there were too many orphans",
        counted(count, "connection", "connections")
    );
    let advice = "raise net.ipv4.tcp_mem and net.ipv4.tcp_max_orphans (throng tune prints the \
                  values), or lower socket.send_buffer_bytes";
    Finding::new(FindingKind::TcpAbortsOnMemory, what, advice)
}

fn overflows(count: u64, after: &KernelStats) -> Finding {
    let what = format!(
        "the kernel dropped {}, because a listener's queue was full",
        counted(count, "attempt to connect", "attempts to connect")
    );
    let now = after.somaxconn.map_or(String::new(), |now| format!(", which is {}", grouped(now)));
    let advice = format!(
        "raise net.core.somaxconn{now}, and socket.backlog, and restart the server; if that \
         doesn't help, the server accepts too slowly: give it more cores, or let fewer clients \
         connect at once"
    );
    Finding::new(FindingKind::ListenOverflows, what, advice)
}

fn drops(count: u64) -> Finding {
    let what = format!(
        "the kernel dropped {} before they got into a listener's queue",
        counted(count, "attempt to connect", "attempts to connect")
    );
    let advice = "set net.ipv4.tcp_syncookies = 1, raise net.ipv4.tcp_max_syn_backlog, and check that the host \
                  has memory left";
    Finding::new(FindingKind::ListenDrops, what, advice)
}

fn softnet(count: u64) -> Finding {
    let what = format!(
        "the kernel dropped {}, because a core's backlog of packets was full",
        counted(count, "packet", "packets")
    );
    let advice = "raise net.core.netdev_max_backlog (throng tune prints the value), or spread \
                  packets over more cores (RPS)";
    Finding::new(FindingKind::SoftnetDropped, what, advice)
}

fn conntrack(table: Usage) -> Finding {
    let what = format!(
        "the kernel's table of tracked connections (conntrack) holds {}",
        usage_text(table)
    );
    let advice = "raise net.netfilter.nf_conntrack_max, or don't track Throng's ports (notrack): when it is \
                  full, packets of new connections are dropped";
    Finding::new(FindingKind::Conntrack, what, advice)
}

fn files(table: Usage) -> Finding {
    let what = format!("the host has {} open files", usage_text(table));
    let advice = "raise fs.file-max: at the limit no connection is accepted";
    Finding::new(FindingKind::Files, what, advice)
}

fn tcp_memory(memory: TcpMemory) -> Option<Finding> {
    let (pressure_bytes, max_bytes) = (memory.pressure_bytes?, memory.max_bytes?);
    if memory.used_bytes < pressure_bytes {
        return None;
    }
    let [used, max] =
        [memory.used_bytes, max_bytes].map(|bytes| format!("{} MiB", grouped(bytes >> 20)));
    let what = format!("TCP's buffers take {used} of {max}, so the kernel keeps them small");
    Some(Finding::new(FindingKind::TcpMemory, what, TCP_MEMORY_ADVICE))
}

fn pressures(count: u64) -> Finding {
    let what = format!(
        "TCP came under pressure for memory {}: the kernel kept buffers small",
        counted(count, "time", "times")
    );
    Finding::new(FindingKind::TcpMemoryPressures, what, TCP_MEMORY_ADVICE)
}

fn retransmits(count: u64, before: &KernelStats, after: &KernelStats) -> Option<Finding> {
    let sent = after.tcp_segments_out?.checked_sub(before.tcp_segments_out?)?;
    let percent = count as f64 * 100.0 / sent.max(1) as f64;
    if count < RETRANSMITTED_MIN || percent < RETRANSMITTED_PERCENT {
        return None;
    }
    let what = format!(
        "the kernel retransmitted {}, {} for each 100 that it sent",
        counted(count, "TCP segment", "TCP segments"),
        percent.round()
    );
    let advice = "look for packet loss on the way to the clients: full links, queues of routers";
    Some(Finding::new(FindingKind::Retransmits, what, advice))
}

fn cpu(pressure: Pressure) -> Option<Finding> {
    let percent = pressure.some_percent;
    let what = format!(
        "at least one task of the host waited for a processor in {percent:.0} % of the last 10 s"
    );
    let advice = "give the host more cores, or move other work to another host";
    (percent >= CPU_PERCENT).then(|| Finding::new(FindingKind::Cpu, what, advice))
}

fn memory(pressure: Pressure) -> Option<Finding> {
    let percent = pressure.some_percent;
    let what = format!(
        "at least one task of the host waited for memory in {percent:.0} % of the last 10 s"
    );
    let advice = "give the host more memory, or set limits.memory_bytes_max and limits.connections_max lower";
    (percent >= MEMORY_PERCENT).then(|| Finding::new(FindingKind::Memory, what, advice))
}

fn io(pressure: Pressure) -> Option<Finding> {
    let percent = pressure.full_percent;
    let what =
        format!("all tasks that had work waited for a disk in {percent:.0} % of the last 10 s");
    let advice = "put the store on a faster disk, or find what else uses this one";
    (percent >= IO_PERCENT).then(|| Finding::new(FindingKind::Io, what, advice))
}

/// `62,000 of 65,536 (94 %)`.
fn usage_text(table: Usage) -> String {
    let percent = table.used as f64 * 100.0 / table.max.max(1) as f64;
    format!("{} of {} ({percent:.0} %)", grouped(table.used), grouped(table.max))
}

/// `1 packet`, `1,234 packets`.
fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(count), if count == 1 { one } else { many })
}

/// A number with a comma at each thousand.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A host without findings.
    fn healthy() -> KernelStats {
        KernelStats {
            listen_overflows: Some(10),
            listen_drops: Some(12),
            tcp_memory_pressures: Some(1),
            tcp_aborts_on_memory: Some(1),
            tcp_segments_out: Some(1_000_000),
            tcp_segments_retransmitted: Some(1_000),
            softnet_dropped: Some(3),
            somaxconn: Some(4_096),
            tcp_sockets: Some(100),
            tcp_memory: Some(TcpMemory {
                used_bytes: 1 << 20,
                pressure_bytes: Some(2 << 20),
                max_bytes: Some(3 << 20),
            }),
            conntrack: Some(Usage { used: 10, max: 100 }),
            files: Some(Usage { used: 10, max: 100 }),
            cpu: Some(Pressure { some_percent: 30.0, full_percent: 0.0 }),
            memory: Some(Pressure::default()),
            io: Some(Pressure { some_percent: 90.0, full_percent: 5.0 }),
        }
    }

    fn only(after: KernelStats) -> Finding {
        let found = findings(&healthy(), &after);
        assert_eq!(found.len(), 1, "{found:?}");
        found.into_iter().next().unwrap()
    }

    #[test]
    fn a_healthy_host_and_an_unknown_one_have_no_findings() {
        assert_eq!(findings(&healthy(), &healthy()), []);
        assert_eq!(findings(&healthy(), &KernelStats::default()), []);
        assert_eq!(findings(&KernelStats::default(), &healthy()), []);
        // The counters of another boot.
        let lower = KernelStats { listen_drops: Some(0), softnet_dropped: Some(0), ..healthy() };
        assert_eq!(findings(&healthy(), &lower), []);
    }

    #[test]
    fn a_full_queue_is_one_finding_though_two_counters_grow() {
        let after =
            KernelStats { listen_overflows: Some(322), listen_drops: Some(324), ..healthy() };
        let found = only(after);
        assert_eq!(found.kind, FindingKind::ListenOverflows);
        let want =
            "the kernel dropped 312 attempts to connect, because a listener's queue was full";
        assert_eq!(found.what, want);
        assert!(
            found.advice.starts_with("raise net.core.somaxconn, which is 4,096, and"),
            "{found:?}"
        );
        let found = only(KernelStats { listen_drops: Some(13), ..healthy() });
        assert_eq!(found.kind, FindingKind::ListenDrops);
        assert!(found.what.contains("dropped 1 attempt to connect before"), "{found:?}");
    }

    #[test]
    fn each_counter_and_each_limit_has_its_finding() {
        let nearly_full = Some(Usage { used: 90, max: 100 });
        let pressed = |percent| Some(Pressure { some_percent: percent, full_percent: percent });
        let full = TcpMemory { used_bytes: 2 << 20, ..healthy().tcp_memory.unwrap() };
        for (after, kind, what) in [
            (
                KernelStats { tcp_aborts_on_memory: Some(1_235), ..healthy() },
                FindingKind::TcpAbortsOnMemory,
                "aborted 1,234 connections",
            ),
            (
                KernelStats { tcp_memory_pressures: Some(2), ..healthy() },
                FindingKind::TcpMemoryPressures,
                "for memory 1 time:",
            ),
            (
                KernelStats { softnet_dropped: Some(4), ..healthy() },
                FindingKind::SoftnetDropped,
                "dropped 1 packet, because",
            ),
            (
                KernelStats { conntrack: nearly_full, ..healthy() },
                FindingKind::Conntrack,
                "holds 90 of 100 (90 %)",
            ),
            (
                KernelStats { files: nearly_full, ..healthy() },
                FindingKind::Files,
                "has 90 of 100 (90 %) open files",
            ),
            (
                KernelStats { tcp_memory: Some(full), ..healthy() },
                FindingKind::TcpMemory,
                "take 2 MiB of 3 MiB",
            ),
            (
                KernelStats { cpu: pressed(80.0), ..healthy() },
                FindingKind::Cpu,
                "a processor in 80 % of",
            ),
            (
                KernelStats { memory: pressed(10.0), ..healthy() },
                FindingKind::Memory,
                "for memory in 10 % of",
            ),
            (
                KernelStats { io: pressed(40.0), ..healthy() },
                FindingKind::Io,
                "for a disk in 40 % of",
            ),
        ] {
            let found = only(after);
            assert_eq!(found.kind, kind);
            assert!(found.what.contains(what), "{what} in {found:?}");
        }
    }

    #[test]
    fn ordinary_loss_of_networks_is_no_finding() {
        let sent = |out: u64, again: u64| KernelStats {
            tcp_segments_out: Some(1_000_000 + out),
            tcp_segments_retransmitted: Some(1_000 + again),
            ..healthy()
        };
        assert_eq!(findings(&healthy(), &sent(100_000, 4_900)), []);
        assert_eq!(findings(&healthy(), &sent(10, 99)), []);
        let found = only(sent(100_000, 5_000));
        assert!(
            found.what.contains("retransmitted 5,000 TCP segments, 5 for each 100"),
            "{found:?}"
        );
    }

    proptest! {
        #[test]
        fn any_stats_give_findings_of_grown_counters_only(
            counts in proptest::collection::vec(proptest::option::of(any::<u64>()), 26),
            shares in proptest::collection::vec(proptest::option::of(0_f32..=100.0), 6),
        ) {
            let stats = |counts: &[Option<u64>], shares: &[Option<f32>]| {
                let usage = |at: usize| Some(Usage { used: counts[at]?, max: counts[at + 1]? });
                let pressure = |at: usize| {
                    Some(Pressure { some_percent: shares[at]?, full_percent: shares[at]? / 2.0 })
                };
                let memory = || Some(TcpMemory {
                    used_bytes: counts[9]?, pressure_bytes: counts[10], max_bytes: counts[11],
                });
                KernelStats {
                    listen_overflows: counts[0], listen_drops: counts[1], tcp_memory_pressures: counts[2],
                    tcp_aborts_on_memory: counts[3], tcp_segments_out: counts[4],
                    tcp_segments_retransmitted: counts[5], softnet_dropped: counts[6], somaxconn: counts[7],
                    tcp_sockets: counts[8], tcp_memory: memory(), conntrack: usage(11), files: usage(10),
                    cpu: pressure(0), memory: pressure(1), io: pressure(2),
                }
            };
            let (before, after) = (stats(&counts[..13], &shares[..3]), stats(&counts[13..], &shares[3..]));
            for found in findings(&before, &after) {
                prop_assert!(!found.what.is_empty() && !found.advice.is_empty());
                let counts = FindingKind::COUNTERS.contains(&found.kind);
                prop_assert_eq!(counts, found.kind.counter().is_some());
                // A finding about a counter has a counter that grew.
                if let Some(read) = found.kind.counter() {
                    prop_assert!(read(&after) > read(&before), "{:?}", found);
                }
            }
            let still = findings(&after, &after);
            prop_assert!(still.iter().all(|found| found.kind.counter().is_none()), "{:?}", still);
        }
    }
}
