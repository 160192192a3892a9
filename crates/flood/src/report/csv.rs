//! The samples as CSV: a header line, then a row for each sample.

use csv::Writer;

use crate::record::{Counts, Percentiles, Sample, Server};

const COUNTS: [&str; 23] = [
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
    "publish_unsure",
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

/// Returns `samples` as CSV. Fields of the server are empty if it did not respond. Lines end with a line feed.
///
/// # Errors
/// If the rows are not all as long as the header.
pub fn text(samples: &[Sample]) -> Result<Vec<u8>, csv::Error> {
    let mut writer = Writer::from_writer(Vec::new());
    writer.write_record(header())?;
    for sample in samples {
        writer.write_record(row(sample))?;
    }
    writer.into_inner().map_err(|error| error.into_error().into())
}

fn header() -> Vec<String> {
    let mut names = vec!["at_seconds".to_owned()];
    names.extend(COUNTS.map(str::to_owned));
    for of in ["delivery", "delivery_user", "connect"] {
        names.extend(PERCENTILES.map(|name| format!("{of}_{name}")));
    }
    names.extend(HOST.map(str::to_owned));
    names.extend(SERVER.map(str::to_owned));
    names
}

fn row(sample: &Sample) -> Vec<String> {
    let mut fields = vec![format!("{:.3}", sample.at_seconds)];
    fields.extend(counts(&sample.counts).map(|count| count.to_string()));
    for of in [&sample.delivery, &sample.delivery_user, &sample.connect] {
        fields.extend(percentiles(of).map(|value| value.to_string()));
    }
    fields.extend([
        sample.memory_bytes.to_string(),
        format!("{:.3}", sample.cpu_seconds),
        sample.slab_bytes.to_string(),
        sample.tcp_bytes.to_string(),
        sample.available_bytes.to_string(),
    ]);
    fields.extend(server(sample.server.as_ref()));
    fields
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
        of.publish_unsure,
        of.probes,
        of.probes_failed,
    ]
}

fn percentiles(of: &Percentiles) -> [u64; PERCENTILES.len()] {
    [of.count, of.p50_us, of.p90_us, of.p99_us, of.p999_us, of.max_us]
}

fn server(of: Option<&Server>) -> [String; SERVER.len()] {
    let Some(of) = of else { return std::array::from_fn(|_| String::new()) };
    [
        of.connections.to_string(),
        of.memory_bytes.to_string(),
        format!("{:.1}", of.memory_per_connection_bytes),
        format!("{:.3}", of.cpu_seconds),
        of.delivered.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(value: &serde_json::Value) -> usize {
        value.as_object().map_or(1, |fields| fields.values().map(leaves).sum())
    }

    fn rows(samples: &[Sample]) -> Vec<csv::StringRecord> {
        let text = text(samples).unwrap();
        let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(&*text);
        reader.records().collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn each_row_has_a_column_for_each_name() {
        let with = Sample { server: Some(Server::default()), ..Sample::default() };
        // The reader and the writer both reject rows of another length than the first.
        let rows = rows(&[Sample::default(), with]);
        assert_eq!(rows.len(), 3);
        assert_eq!(&rows[1][rows[1].len() - 1], "");
        assert_eq!(&rows[2][rows[2].len() - 1], "0");
    }

    /// Fails when a field is added to `Sample` and not to the CSV.
    #[test]
    fn every_field_of_a_sample_has_a_column() {
        let sample = Sample { server: Some(Server::default()), ..Sample::default() };
        let fields = leaves(&serde_json::to_value(sample).unwrap());
        assert_eq!(header().len(), fields);
    }

    #[test]
    fn values_are_in_the_columns_of_their_names() {
        let counts = Counts { open: 7, bytes: 9, probes_failed: 11, ..Counts::default() };
        let delivery = Percentiles { max_us: 13, ..Percentiles::default() };
        let server = Some(Server { delivered: 15, ..Server::default() });
        let sample = Sample { at_seconds: 1.5, counts, delivery, server, ..Sample::default() };
        let rows = rows(&[sample]);
        let of = |name| &rows[1][rows[0].iter().position(|other| other == name).unwrap()];
        assert_eq!(of("at_seconds"), "1.500");
        assert_eq!(of("open"), "7");
        assert_eq!(of("received_bytes"), "9");
        assert_eq!(of("probes_failed"), "11");
        assert_eq!(of("delivery_max_us"), "13");
        assert_eq!(of("server_delivered"), "15");
    }
}
