//! One sample as plain text.

use std::fmt::Write;

use crate::format::{
    bytes, bytes_each, compact, digits, duration, grouped, milliseconds, percent, plain, words,
};
use crate::sample::{Node, Sample, Tops};

/// Topics of each list.
const TOPICS: usize = 5;

/// The node, its newest sample and the topics on top, a figure a line.
pub fn text(name: &str, node: &Node, sample: &Sample, tops: &Tops) -> String {
    let figures = &sample.figures;
    let per_second = |value: f64| format!("{}/s", compact(value));
    let up = (sample.at / 1_000).saturating_sub(node.started_at);
    let mut out = String::new();
    let mut row = |name: &str, value: String| {
        // Writing to a string doesn't fail.
        let _ = writeln!(out, "{name:<16}{value}");
    };
    row("node", format!("{} · Throng {} · up {}", plain(name), plain(&node.version), duration(up)));
    let max = match node.connections_max > 0.0 {
        true => format!(
            " ({} of {})",
            percent(sample.connections, node.connections_max),
            grouped(node.connections_max as u64)
        ),
        false => String::new(),
    };
    row("connections", format!("{}{max}", grouped(sample.connections as u64)));
    row("transports", group(&sample.transports));
    row(
        "shards",
        sample.shards.iter().map(|held| grouped(*held as u64)).collect::<Vec<_>>().join(" "),
    );
    row(
        "connects",
        format!("{} · {} refused", per_second(figures.opened), per_second(figures.refused)),
    );
    let reasons = match sample.closed_by.is_empty() {
        true => String::new(),
        false => format!(" · {}", group(&sample.closed_by)),
    };
    row("disconnects", format!("{}{reasons}", per_second(figures.closed)));
    row("messages in", per_second(figures.messages_in));
    row("delivered", per_second(figures.delivered));
    let latency = sample.latency_ms.map_or("nothing delivered".to_owned(), |at| {
        let [p50, p90, p99] = [at.p50, at.p90, at.p99].map(milliseconds);
        format!("p50 {p50} · p90 {p90} · p99 {p99}")
    });
    row("latency", latency);
    row("bytes", format!("{}/s in · {}/s out", bytes(figures.bytes_in), bytes(figures.bytes_out)));
    row(
        "CPU",
        format!(
            "{} cores ({} of {:.0})",
            digits(figures.cpu),
            percent(figures.cpu, node.cores),
            node.cores
        ),
    );
    row(
        "memory",
        format!("{} resident · {} user", bytes(figures.rss_bytes), bytes(figures.user_bytes)),
    );
    row(
        "memory each",
        format!(
            "{} user · {} kernel (estimated)",
            bytes_each(figures.user_bytes_per_connection),
            bytes_each(figures.kernel_bytes_per_connection)
        ),
    );
    row("slow consumers", per_second(figures.slow));
    row(
        "outboxes",
        format!("{} · {} waiting", grouped(figures.outboxes as u64), bytes(figures.outbox_bytes)),
    );
    row("topics", grouped(figures.topics as u64));
    for (title, topics) in [("biggest", &tops.biggest), ("busiest", &tops.busiest)] {
        for (at, topic) in topics.iter().take(TOPICS).enumerate() {
            let value = format!(
                "{} · {} members · {} messages/min",
                plain(&topic.topic),
                grouped(topic.members as u64),
                compact(topic.messages_per_minute)
            );
            row(if at == 0 { title } else { "" }, value);
        }
    }
    out
}

/// What is not 0, the most first.
fn group(group: &std::collections::BTreeMap<String, f64>) -> String {
    let mut items: Vec<_> = group.iter().filter(|(_, value)| **value > 0.0).collect();
    items.sort_by(|a, b| b.1.total_cmp(a.1));
    if items.is_empty() {
        return "none".into();
    }
    let items = items.iter().map(|(name, value)| format!("{} {}", words(name), compact(**value)));
    items.collect::<Vec<_>>().join(" · ")
}
