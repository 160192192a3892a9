//! The charts of a report and their lines.

use super::axis::Unit;
use super::chart::{Chart, Line};
use super::series::{Point, rates, values};
use crate::record::{Counts, Percentiles, Sample};

/// Memory per connection is shown while at least this part of the peak's connections is open. With
/// fewer connections, the process's own memory dominates.
const OPEN_PART_MIN: f64 = 0.05;

/// Returns the chart of the open connections.
pub fn open(samples: &[Sample]) -> Chart {
    let open = values(samples, |sample| Some(sample.counts.open as f64));
    Chart {
        id: "open",
        title: "Connections open",
        axes: "connections, over time since the start",
        unit: Unit::Count,
        lines: vec![Line::with_dips("open", 1, open)],
        end_seconds: None,
        note: "",
    }
}

/// Returns the chart of how fast connections opened, and how fast the scenario closed them.
pub fn opened(samples: &[Sample]) -> Chart {
    let changed = |pair: &[Sample]| {
        let (one, next) = (pair[0].counts, pair[1].counts);
        one.opened != next.opened || one.left != next.left
    };
    let rate = |of: fn(&Counts) -> u64| count_rates(samples, of);
    let mut lines = vec![Line::new("opened", 1, rate(|counts| counts.opened))];
    lines.extend(Line::new("closed by the scenario", 4, rate(|counts| counts.left)).if_any());
    let end_seconds = early_end(samples, changed);
    Chart {
        id: "opened",
        title: "Connections opened",
        axes: match end_seconds {
            None => "connections per second, over time",
            Some(_) => "connections per second, while any were opened",
        },
        unit: Unit::Rate,
        lines,
        end_seconds,
        note: "",
    }
}

/// Returns the chart of how fast the server closed connections and attempts failed, if any did.
pub fn endings(samples: &[Sample]) -> Option<Chart> {
    let closed = count_rates(samples, |counts| counts.closed);
    let failed = count_rates(samples, |counts| counts.failed);
    let lines = [Line::new("closed by the server", 3, closed), Line::new("failed", 5, failed)];
    let lines: Vec<Line> = lines.into_iter().filter_map(Line::if_any).collect();
    (!lines.is_empty()).then_some(Chart {
        id: "endings",
        title: "Connections closed, attempts failed",
        axes: "per second, over time",
        unit: Unit::Rate,
        lines,
        end_seconds: None,
        note: "",
    })
}

/// Returns the time of the last two neighbouring samples for which `is_true` holds, if that is in
/// the first half of the run. The chart ends there, since the rest would be a flat line.
fn early_end(samples: &[Sample], is_true: impl Fn(&[Sample]) -> bool) -> Option<f64> {
    let last = samples.windows(2).rfind(|pair| is_true(pair))?[1].at_seconds;
    (last > 0.0 && last * 2.0 < samples.last()?.at_seconds).then_some(last)
}

/// Returns the charts of the memory as a whole and per connection.
pub fn memory(samples: &[Sample]) -> Vec<Chart> {
    let server = values(samples, |sample| sample.server.map(|of| of.memory_bytes as f64));
    let generator = values(samples, |sample| Some(sample.memory_bytes as f64));
    let slab = values(samples, |sample| Some(sample.slab_bytes as f64));
    let tcp = values(samples, |sample| Some(sample.tcp_bytes as f64));
    let whole = [
        Line::new("server", 1, server),
        Line::new("load generator", 2, generator),
        Line::new("kernel slab", 3, slab),
        Line::new("TCP buffers", 4, tcp),
    ];
    let each = [
        Line::new("server, user space", 1, server_each(samples)),
        Line::new("kernel slab, one end", 3, slab_each(samples)),
    ];
    vec![
        Chart {
            id: "memory",
            title: "Memory",
            axes: "bytes in use, over time",
            unit: Unit::Bytes,
            lines: whole.into_iter().filter_map(Line::if_any).collect(),
            end_seconds: None,
            note: "",
        },
        Chart {
            id: "memory-each",
            title: "Memory per connection",
            axes: "bytes for one connection, over time",
            unit: Unit::BytesEach,
            lines: each.into_iter().filter_map(Line::if_any).collect(),
            end_seconds: None,
            note: "Shown while at least 5 % of the peak's connections are open. Kernel slab: its \
                   growth on this host since the first sample, over two ends for each connection. \
                   If the server runs on another host, only one end is here: double it.",
        },
    ]
}

fn server_each(samples: &[Sample]) -> Vec<Point> {
    let peak = samples.iter().filter_map(|of| of.server).map(|of| of.connections).max();
    let enough = enough(peak.unwrap_or(0));
    values(samples, |sample| {
        let server = sample.server.filter(|of| of.connections >= enough)?;
        Some(server.memory_per_connection_bytes)
    })
}

fn slab_each(samples: &[Sample]) -> Vec<Point> {
    let Some(first) = samples.first().filter(|first| first.slab_bytes > 0) else {
        return Vec::new();
    };
    let more = |of: &Sample| of.counts.open.saturating_sub(first.counts.open);
    let enough = enough(samples.iter().map(more).max().unwrap_or(0));
    values(samples, |sample| {
        let open = more(sample);
        let growth = sample.slab_bytes.checked_sub(first.slab_bytes)?;
        (open >= enough).then(|| growth as f64 / open as f64 / 2.0)
    })
}

fn enough(peak: u64) -> u64 {
    (peak as f64 * OPEN_PART_MIN).ceil().max(1.0) as u64
}

/// Returns the chart of how long deliveries took.
pub fn delivery(samples: &[Sample]) -> Chart {
    Chart {
        id: "delivery",
        title: "Delivery latency",
        axes: "from the intended publish to the receipt, logarithmic, over time",
        unit: Unit::Micros,
        lines: percentile_lines(samples, |sample| sample.delivery),
        end_seconds: None,
        note: "",
    }
}

/// Returns the chart of how long connects took.
pub fn connect(samples: &[Sample]) -> Chart {
    let end_seconds = early_end(samples, |pair| pair[1].connect.count > 0);
    Chart {
        id: "connect",
        title: "Connect latency",
        axes: match end_seconds {
            None => "from the intended connect to the answer, logarithmic, over time",
            Some(_) => {
                "from the intended connect to the answer, logarithmic, while any were opened"
            }
        },
        unit: Unit::Micros,
        lines: percentile_lines(samples, |sample| sample.connect),
        end_seconds,
        note: "",
    }
}

fn percentile_lines(samples: &[Sample], of: impl Fn(&Sample) -> Percentiles) -> Vec<Line> {
    let line = |name, colour, pick: fn(&Percentiles) -> u64| {
        let points = values(samples, |sample| {
            let percentiles = of(sample);
            (percentiles.count > 0).then(|| pick(&percentiles) as f64)
        });
        Line::new(name, colour, points)
    };
    // The largest comes first, since later lines are drawn over it.
    vec![
        line("max", 5, |of| of.max_us),
        line("p99.9", 4, |of| of.p999_us),
        line("p99", 3, |of| of.p99_us),
        line("p90", 2, |of| of.p90_us),
        line("p50", 1, |of| of.p50_us),
    ]
}

/// Returns the charts of the messages received and published.
pub fn messages(samples: &[Sample]) -> Vec<Chart> {
    let received = count_rates(samples, |counts| counts.messages);
    let published = count_rates(samples, |counts| counts.published);
    let failed = count_rates(samples, |counts| counts.publish_failed);
    let mut publishes = vec![Line::new("published", 2, published)];
    publishes.extend(Line::new("failed", 5, failed).if_any());
    vec![
        Chart {
            id: "received",
            title: "Messages received",
            axes: "messages per second, all connections, over time",
            unit: Unit::Rate,
            lines: vec![Line::new("received", 1, received)],
            end_seconds: None,
            note: "",
        },
        Chart {
            id: "published",
            title: "Messages published",
            axes: "publishes per second, over time",
            unit: Unit::Rate,
            lines: publishes,
            end_seconds: None,
            note: "",
        },
    ]
}

/// Returns the chart of how much processor time both ends used.
pub fn processor(samples: &[Sample]) -> Chart {
    let server = rates(samples, false, |sample| sample.server.map(|of| of.cpu_seconds));
    let generator = rates(samples, false, |sample| Some(sample.cpu_seconds));
    let lines = [Line::new("server", 1, server), Line::new("load generator", 2, generator)];
    Chart {
        id: "processor",
        title: "Processor use",
        axes: "cores in use, over time",
        unit: Unit::Cores,
        lines: lines.into_iter().filter_map(Line::if_any).collect(),
        end_seconds: None,
        note: "",
    }
}

/// Returns the chart of the probes, if the run made any.
pub fn probes(samples: &[Sample]) -> Option<Chart> {
    let succeeded = Line::new("answered", 2, count_rates(samples, |counts| counts.probes));
    let failed = Line::new("failed", 5, count_rates(samples, |counts| counts.probes_failed));
    let lines: Vec<Line> = [succeeded, failed].into_iter().filter_map(Line::if_any).collect();
    (!lines.is_empty()).then_some(Chart {
        id: "probes",
        title: "Probes",
        axes: "ordinary requests during the run, per second, over time",
        unit: Unit::Rate,
        lines,
        end_seconds: None,
        note: "",
    })
}

/// Returns the chart of the messages lost, duplicated, out of order, or strayed to another
/// connection, if any were.
pub fn anomalies(samples: &[Sample]) -> Option<Chart> {
    let line = |name, colour, of: fn(&Counts) -> u64| {
        let points = values(samples, |sample| Some(of(&sample.counts) as f64));
        Line::new(name, colour, points).if_any()
    };
    let lines: Vec<Line> = [
        line("lost", 5, |of| of.lost),
        line("duplicated", 4, |of| of.duplicated),
        line("out of order", 3, |of| of.out_of_order),
        line("strayed", 1, |of| of.strayed),
    ]
    .into_iter()
    .flatten()
    .collect();
    (!lines.is_empty()).then_some(Chart {
        id: "faults",
        title: "Messages lost, duplicated, out of order, strayed",
        axes: "messages since the start, over time",
        unit: Unit::Count,
        lines,
        end_seconds: None,
        note: "",
    })
}

fn count_rates(samples: &[Sample], of: fn(&Counts) -> u64) -> Vec<Point> {
    rates(samples, true, |sample| Some(of(&sample.counts) as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Server;

    fn with_open(at_seconds: f64, open: u64, slab_bytes: u64) -> Sample {
        let counts = Counts { open, ..Counts::default() };
        let server =
            Server { connections: open, memory_per_connection_bytes: 400.0, ..Server::default() };
        Sample { at_seconds, counts, slab_bytes, server: Some(server), ..Sample::default() }
    }

    #[test]
    fn memory_per_connection_is_shown_only_while_many_are_open() {
        let samples = [with_open(0.0, 0, 1_000), with_open(1.0, 10, 9_000)];
        let samples = [samples[0], samples[1], with_open(2.0, 1_000, 4_001_000)];
        assert_eq!(slab_each(&samples), [(0.0, None), (1.0, None), (2.0, Some(2_000.0))]);
        assert_eq!(server_each(&samples), [(0.0, None), (1.0, None), (2.0, Some(400.0))]);
        assert_eq!(slab_each(&[]), []);
    }

    #[test]
    fn the_charts_of_opening_end_when_the_last_connection_opens() {
        let at = |at_seconds, opened| {
            let counts = Counts { opened, ..Counts::default() };
            Sample { at_seconds, counts, ..Sample::default() }
        };
        let samples = [at(1.0, 5), at(2.0, 9), at(3.0, 9), at(9.0, 9)];
        assert_eq!(opened(&samples).end_seconds, Some(2.0));
        assert_eq!(opened(&samples[..3]).end_seconds, None);
        assert_eq!(opened(&samples[..1]).end_seconds, None);
        assert_eq!(opened(&[]).end_seconds, None);
        assert_eq!(connect(&samples).end_seconds, None);
    }

    #[test]
    fn percentiles_of_nothing_are_gaps() {
        let html = delivery(&[with_open(1.0, 1, 1), with_open(2.0, 1, 1)]).html(2.0);
        assert!(html.contains("Nothing recorded"));
    }

    #[test]
    fn a_server_without_a_response_has_no_lines() {
        let sample = |at_seconds| Sample { at_seconds, memory_bytes: 5, ..Sample::default() };
        let html = memory(&[sample(1.0), sample(2.0)])[0].html(2.0);
        assert!(html.contains("load generator") && !html.contains("server"));
    }

    #[test]
    fn charts_of_anomalies_and_probes_exist_only_if_there_were_any() {
        let mut sample = with_open(1.0, 1, 1);
        assert!(anomalies(&[sample]).is_none() && probes(&[sample]).is_none());
        sample.counts.lost = 2;
        sample.counts.probes = 1;
        assert!(anomalies(&[sample]).is_some() && probes(&[sample]).is_some());
    }
}
