//! The samples as CSV: a header line, then a row for each sample.

use std::fmt::Write as _;

use crate::record::{Counts, Percentiles, Sample, Server};

const COUNTS: [&str; 22] = [
    "open",
    "opened",
    "failed",
    "closed",
    "left",
    "messages",
    "heartbeats",
    "received_bytes",
    "lost",
    "duplicated",
    "out_of_order",
    "strayed",
    "cuts",
    "caught_up",
    "not_recovered",
    "redelivered",
    "acked",
    "ack_failed",
    "published",
    "publish_failed",
    "probes",
    "probes_failed",
];
const PERCENTILES: [&str; 6] = ["count", "p50_us", "p90_us", "p99_us", "p999_us", "max_us"];
const HOST: [&str; 5] =
    ["memory_bytes", "cpu_seconds", "slab_bytes", "tcp_bytes", "available_bytes"];
const SERVER: [&str; 5] = [
    "server_connections",
    "server_memory_bytes",
    "server_memory_per_connection_bytes",
    "server_cpu_seconds",
    "server_delivered",
];

/// Returns `samples` as CSV. Fields of the server are empty where it did not respond. Lines end with
/// a line feed.
pub fn text(samples: &[Sample]) -> String {
    let mut out = header();
    for sample in samples {
        row(&mut out, sample);
    }
    out
}

fn header() -> String {
    let mut names = vec!["at_seconds".to_owned()];
    names.extend(COUNTS.map(str::to_owned));
    for of in ["delivery", "delivery_user", "connect"] {
        names.extend(PERCENTILES.map(|name| format!("{of}_{name}")));
    }
    names.extend(HOST.map(str::to_owned));
    names.extend(SERVER.map(str::to_owned));
    names.join(",") + "\n"
}

fn row(out: &mut String, sample: &Sample) {
    // Writing to a String can't fail, here and in the rest of this file.
    let _ = write!(out, "{:.3}", sample.at_seconds);
    for value in counts(&sample.counts) {
        let _ = write!(out, ",{value}");
    }
    for of in [&sample.delivery, &sample.delivery_user, &sample.connect] {
        for value in percentiles(of) {
            let _ = write!(out, ",{value}");
        }
    }
    let _ = write!(out, ",{},{:.3}", sample.memory_bytes, sample.cpu_seconds);
    let _ = write!(out, ",{},{}", sample.slab_bytes, sample.tcp_bytes);
    let _ = write!(out, ",{}", sample.available_bytes);
    match &sample.server {
        Some(server) => server_fields(out, server),
        None => out.push_str(&",".repeat(SERVER.len())),
    }
    out.push('\n');
}

fn counts(of: &Counts) -> [u64; COUNTS.len()] {
    [
        of.open,
        of.opened,
        of.failed,
        of.closed,
        of.left,
        of.messages,
        of.heartbeats,
        of.bytes,
        of.lost,
        of.duplicated,
        of.out_of_order,
        of.strayed,
        of.cuts,
        of.caught_up,
        of.not_recovered,
        of.redelivered,
        of.acked,
        of.ack_failed,
        of.published,
        of.publish_failed,
        of.probes,
        of.probes_failed,
    ]
}

fn percentiles(of: &Percentiles) -> [u64; PERCENTILES.len()] {
    [of.count, of.p50_us, of.p90_us, of.p99_us, of.p999_us, of.max_us]
}

fn server_fields(out: &mut String, server: &Server) {
    let _ = write!(out, ",{},{}", server.connections, server.memory_bytes);
    let _ = write!(out, ",{:.1}", server.memory_per_connection_bytes);
    let _ = write!(out, ",{:.3},{}", server.cpu_seconds, server.delivered);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(value: &serde_json::Value) -> usize {
        value.as_object().map_or(1, |fields| fields.values().map(leaves).sum())
    }

    #[test]
    fn each_row_has_a_column_for_each_name() {
        let with = Sample { server: Some(Server::default()), ..Sample::default() };
        let csv = text(&[Sample::default(), with]);
        let widths: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
        assert_eq!(widths.len(), 3);
        assert!(widths.iter().all(|width| *width == widths[0]), "{widths:?}");
    }

    /// Fails when a field is added to `Sample` and not to the CSV.
    #[test]
    fn every_field_of_a_sample_has_a_column() {
        let sample = Sample { server: Some(Server::default()), ..Sample::default() };
        let fields = leaves(&serde_json::to_value(sample).unwrap());
        assert_eq!(header().trim_end().split(',').count(), fields);
    }

    #[test]
    fn values_are_in_the_columns_of_their_names() {
        let counts = Counts { open: 7, bytes: 9, probes_failed: 11, ..Counts::default() };
        let delivery = Percentiles { max_us: 13, ..Percentiles::default() };
        let server = Some(Server { delivered: 15, ..Server::default() });
        let sample = Sample { at_seconds: 1.5, counts, delivery, server, ..Sample::default() };
        let csv = text(&[sample]);
        let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
        let of = |name| values[names.iter().position(|other| *other == name).unwrap()];
        assert_eq!(of("at_seconds"), "1.500");
        assert_eq!(of("open"), "7");
        assert_eq!(of("received_bytes"), "9");
        assert_eq!(of("probes_failed"), "11");
        assert_eq!(of("delivery_max_us"), "13");
        assert_eq!(of("server_delivered"), "15");
    }
}
