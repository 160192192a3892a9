//! What the kernel reports, as metrics. Each metric has its help on every host; a metric that the kernel does not
//! report has no value.

use std::fmt;

use kernel::{KernelStats, Pressure, Usage};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// Writes all metrics of the kernel.
pub(crate) fn encode(encoder: &mut DescriptorEncoder, stats: &KernelStats) -> fmt::Result {
    let counters = [
        (
            "kernel_listen_overflows",
            "Attempts to connect that the kernel dropped because a listener's queue was full",
            stats.listen_overflows,
        ),
        (
            "kernel_listen_drops",
            "All attempts to connect that the kernel dropped at listeners, overflows included",
            stats.listen_drops,
        ),
        (
            "kernel_tcp_memory_pressures",
            "Times that TCP came under memory pressure",
            stats.tcp_memory_pressures,
        ),
        (
            "kernel_tcp_aborts_on_memory",
            "Connections that the kernel aborted because TCP was out of memory, or there were too \
             many orphaned sockets",
            stats.tcp_aborts_on_memory,
        ),
        (
            "kernel_tcp_segments_out",
            "TCP segments sent, without retransmissions",
            stats.tcp_segments_out,
        ),
        (
            "kernel_tcp_segments_retransmitted",
            "TCP segments retransmitted",
            stats.tcp_segments_retransmitted,
        ),
        (
            "kernel_softnet_dropped",
            "Packets that the kernel dropped because a core's backlog was full",
            stats.softnet_dropped,
        ),
    ];
    for (name, help, value) in counters {
        let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        if let Some(value) = value {
            ConstCounter::new(value as f64).encode(metric)?;
        }
    }
    let memory = stats.tcp_memory;
    let bytes = || Some(Unit::Bytes);
    let used = |table: Option<Usage>| table.map(|it| it.used);
    let max = |table: Option<Usage>| table.map(|it| it.max);
    let gauges = [
        (
            "kernel_tcp_memory",
            "Memory of all TCP socket buffers",
            bytes(),
            memory.map(|it| it.used_bytes),
        ),
        (
            "kernel_tcp_memory_pressure",
            "Threshold above which the kernel limits TCP socket buffers",
            bytes(),
            memory.and_then(|it| it.pressure_bytes),
        ),
        (
            "kernel_tcp_memory_max",
            "Threshold above which the kernel drops segments and aborts connections",
            bytes(),
            memory.and_then(|it| it.max_bytes),
        ),
        (
            "kernel_conntrack_entries",
            "Connections that the packet filter tracks (conntrack)",
            None,
            used(stats.conntrack),
        ),
        (
            "kernel_conntrack_entries_max",
            "Limit on tracked connections",
            None,
            max(stats.conntrack),
        ),
        ("kernel_files", "Open files on the host", None, used(stats.files)),
        ("kernel_files_max", "Limit on open files on the host", None, max(stats.files)),
    ];
    for (name, help, unit, value) in gauges {
        let metric = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        if let Some(value) = value {
            ConstGauge::new(value as f64).encode(metric)?;
        }
    }
    pressure(encoder, stats)
}

fn pressure(encoder: &mut DescriptorEncoder, stats: &KernelStats) -> fmt::Result {
    let help = "Share of the last 10 s in which some tasks of the host (some), or all tasks with \
                work (full), waited for a resource";
    let name = "kernel_pressure_ratio";
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (resource, known) in [("cpu", stats.cpu), ("memory", stats.memory), ("io", stats.io)] {
        let Some(Pressure { some_percent, full_percent }) = known else { continue };
        for (tasks, percent) in [("some", some_percent), ("full", full_percent)] {
            let labels = [("resource", resource), ("tasks", tasks)];
            // The kernel reports two decimals.
            let value = (f64::from(percent) * 100.0).round() / 10_000.0;
            ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
        }
    }
    Ok(())
}
