//! Key figures, tables and bars.

use std::fmt::Write as _;

use super::html::Escaped;
use super::number::{NONE, bytes_each, digits, grouped, micros};
use crate::record::{Agent, Named, Percentiles, Sample, Storm, Summary, TargetCounts};

/// Reasons that are shown by name, at most. The counts of the others are summed up.
const REASONS_MAX: usize = 12;

/// A key figure, with smaller ones below it.
struct Tile {
    name: &'static str,
    figure: String,
    /// Name, value, and whether the value shows an error.
    more: Vec<(&'static str, String, bool)>,
}

/// Returns the key figures of the run as HTML.
pub fn tiles(samples: &[Sample], summary: &Summary) -> String {
    let mut out = String::from("<div class=\"tiles\">\n");
    let mut tiles = crowd_tiles(summary);
    tiles.extend(cost_tiles(samples, summary));
    tiles.push(probe_tile(summary));
    tiles.extend(storm_tiles(summary));
    for tile in tiles {
        let (name, figure) = (Escaped(tile.name), Escaped(&tile.figure));
        // Writing to a String can't fail, here and in the rest of this file.
        let _ = write!(out, "<div class=\"tile\"><h3>{name}</h3><strong>{figure}</strong><dl>");
        for (name, value, is_error) in &tile.more {
            let class = if *is_error { " class=\"not\"" } else { "" };
            let _ = write!(
                out,
                "<div><dt>{}</dt><dd{class}>{}</dd></div>",
                Escaped(name),
                Escaped(value)
            );
        }
        out.push_str("</dl></div>\n");
    }
    out.push_str("</div>\n");
    out
}

fn crowd_tiles(summary: &Summary) -> Vec<Tile> {
    let counts = &summary.counts;
    let errors = |name, count: u64| (name, grouped(count), count > 0);
    let at = |of: &Percentiles, value: u64| time_of(of, value);
    let (delivery, connect) = (&summary.delivery, &summary.connect);
    let user = &summary.delivery_user;
    vec![
        Tile {
            name: "Connections opened",
            figure: grouped(counts.opened),
            more: vec![
                errors("failed", counts.failed),
                errors("closed", counts.closed),
                ("closed by the scenario", grouped(counts.left), false),
            ],
        },
        Tile {
            name: "Delivery, p99",
            figure: at(delivery, delivery.p99_us),
            more: vec![
                ("p50", at(delivery, delivery.p50_us), false),
                ("p99.9", at(delivery, delivery.p999_us), false),
                ("max", at(delivery, delivery.max_us), false),
                ("to one user, p99", at(user, user.p99_us), false),
            ],
        },
        Tile {
            name: "Connect, p99",
            figure: at(connect, connect.p99_us),
            more: vec![
                ("p50", at(connect, connect.p50_us), false),
                ("p99.9", at(connect, connect.p999_us), false),
                ("max", at(connect, connect.max_us), false),
            ],
        },
    ]
}

fn probe_tile(summary: &Summary) -> Tile {
    let (counts, probe) = (&summary.counts, &summary.probe);
    let any = counts.probes > 0 || counts.probes_failed > 0;
    let each_second = digits(counts.probes as f64 / summary.seconds);
    Tile {
        name: "Probes answered per second",
        figure: if any { each_second } else { NONE.to_owned() },
        more: vec![
            ("p50", time_of(probe, probe.p50_us), false),
            ("p99", time_of(probe, probe.p99_us), false),
            ("failed", grouped(counts.probes_failed), counts.probes_failed > 0),
        ],
    }
}

fn storm_tiles(summary: &Summary) -> Vec<Tile> {
    let tile = |storm: &Storm| Tile {
        name: "Storm: time until all have the missed messages",
        figure: format!("{:.2} s", storm.seconds),
        more: vec![
            ("connections", grouped(storm.connections), storm.recovered < storm.connections),
            ("messages each", grouped(storm.missed), false),
            ("p50 of one connection", time_of(&storm.recovery, storm.recovery.p50_us), false),
            ("p99 of one connection", time_of(&storm.recovery, storm.recovery.p99_us), false),
            (
                "server CPU",
                storm.server_cpu_seconds.map_or(NONE.to_owned(), |cpu| format!("{cpu:.2} s")),
                false,
            ),
        ],
    };
    summary.storms.iter().map(tile).collect()
}

fn cost_tiles(samples: &[Sample], summary: &Summary) -> Vec<Tile> {
    let none_if_zero = |value: f64, text: fn(f64) -> String| {
        if value > 0.0 { text(value) } else { NONE.to_owned() }
    };
    let or_none = |count: Option<u64>| count.map_or(NONE.to_owned(), grouped);
    let servers = || samples.iter().filter_map(|sample| sample.server);
    // The sample with the most connections; the last of several, when memory has settled.
    let fullest = servers().max_by_key(|server| server.connections);
    let each = fullest.map_or(0.0, |server| server.memory_per_connection_bytes);
    let generator_each = summary.memory_per_connection_bytes;
    let server_cpu = summary.server_cpu_per_message_us.unwrap_or(0.0);
    vec![
        Tile {
            name: "Server memory per connection",
            figure: none_if_zero(each, bytes_each),
            more: vec![
                ("connections", or_none(fullest.map(|server| server.connections)), false),
                ("load generator", none_if_zero(generator_each, bytes_each), false),
            ],
        },
        Tile {
            name: "Server CPU per message",
            figure: none_if_zero(server_cpu, micros),
            more: vec![
                ("delivered", or_none(servers().next_back().map(|server| server.delivered)), false),
                ("load generator", none_if_zero(summary.cpu_per_message_us, micros), false),
            ],
        },
    ]
}

/// Formats a percentile, or [`NONE`] if nothing was recorded.
fn time_of(of: &Percentiles, value: u64) -> String {
    if of.count == 0 { NONE.to_owned() } else { micros(value as f64) }
}

/// Returns the percentiles of the whole run as an HTML table.
pub fn percentiles(summary: &Summary) -> String {
    let mut out = String::from(
        "<section class=\"card\"><h3>Latency of the whole run</h3><div class=\"scroll\">\
         <table class=\"numbers\"><thead><tr><th scope=\"col\"></th>",
    );
    for name in ["count", "p50", "p90", "p99", "p99.9", "max"] {
        let _ = write!(out, "<th scope=\"col\">{name}</th>");
    }
    out.push_str("</tr></thead><tbody>");
    for (name, of) in [
        ("Delivery", &summary.delivery),
        ("Delivery to one user", &summary.delivery_user),
        ("Connect", &summary.connect),
        ("Probe", &summary.probe),
        ("Publish", &summary.publish),
        ("Longest silence", &summary.silence),
    ] {
        let _ = write!(out, "<tr><th scope=\"row\">{name}</th><td>{}</td>", grouped(of.count));
        for value in [of.p50_us, of.p90_us, of.p99_us, of.p999_us, of.max_us] {
            let _ = write!(out, "<td>{}</td>", time_of(of, value));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div></section>\n");
    out
}

/// Returns HTML tables of the targets and the agents, if the run has several.
pub fn shares(summary: &Summary) -> String {
    let target = |it: &TargetCounts| {
        let counts = [it.open, it.opened, it.failed, it.closed, it.cuts, it.lost];
        (it.target.clone(), counts.map(grouped).to_vec())
    };
    let agent = |it: &Agent| {
        let counts = [it.connections, it.open, it.messages].map(grouped);
        (it.agent.clone(), [&counts[..], &[it.lost.clone().unwrap_or_default()]].concat())
    };
    let targets = summary.targets.iter().map(target).collect();
    let agents = summary.agents.iter().map(agent).collect();
    table("Targets", &["open", "opened", "failed", "closed", "cut", "lost"], targets)
        + &table("Agents", &["connections", "open", "messages", "lost"], agents)
}

fn table(title: &str, columns: &[&str], rows: Vec<(String, Vec<String>)>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let cells = |tag: &str, cells: &[String]| -> String {
        cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", Escaped(cell))).collect()
    };
    let names: Vec<String> = columns.iter().map(|&name| name.to_owned()).collect();
    let mut out = format!(
        "<section class=\"card\"><h3>{}</h3><div class=\"scroll\"><table class=\"numbers\"><thead>\
         <tr><th></th>{}</tr></thead><tbody>",
        Escaped(title),
        cells("th", &names)
    );
    for (name, values) in rows {
        let (name, values) = (Escaped(&name), cells("td", &values));
        let _ = write!(out, "<tr><th scope=\"row\">{name}</th>{values}</tr>");
    }
    out.push_str("</tbody></table></div></section>\n");
    out
}

/// Returns an HTML table of names and values, which may come from outside.
pub fn pairs(title: &str, rows: &[(String, String)]) -> String {
    let mut out = format!("<section class=\"card\"><h3>{}</h3>", Escaped(title));
    if rows.is_empty() {
        out.push_str("<p class=\"none\">none recorded</p></section>\n");
        return out;
    }
    out.push_str("<table class=\"pairs\"><tbody>");
    for (name, value) in rows {
        let (name, value) = (Escaped(name), Escaped(value));
        let _ = write!(out, "<tr><th scope=\"row\">{name}</th><td>{value}</td></tr>");
    }
    out.push_str("</tbody></table></section>\n");
    out
}

/// Returns the counts of events by name as horizontal bars, the most frequent first.
pub fn bars(title: &str, events: &[Named]) -> String {
    let mut out = format!("<section class=\"card\"><h3>{}</h3>", Escaped(title));
    let rows = reasons(events);
    let most = rows.iter().map(|row| row.1).max().unwrap_or(0);
    if most == 0 {
        out.push_str("<p class=\"none\">none</p></section>\n");
        return out;
    }
    out.push_str("<ul class=\"bars\">");
    for (name, count) in &rows {
        let part = *count as f64 / most as f64 * 100.0;
        let _ = write!(
            out,
            "<li><div><span>{}</span><b>{}</b></div><i style=\"width:{part:.1}%\"></i></li>",
            Escaped(name),
            grouped(*count)
        );
    }
    out.push_str("</ul></section>\n");
    out
}

/// Returns at most [`REASONS_MAX`] reasons and the sum of the others. Leaves out reasons that did
/// not occur.
fn reasons(events: &[Named]) -> Vec<Named> {
    let mut rows: Vec<Named> = events.iter().filter(|row| row.1 > 0).cloned().collect();
    rows.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    if rows.len() > REASONS_MAX {
        let others = rows.split_off(REASONS_MAX);
        let sum = others.iter().fold(0_u64, |sum, row| sum.saturating_add(row.1));
        rows.push((format!("{} other reasons", others.len()), sum));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_sorted_and_limited_in_number() {
        assert!(bars("Failures", &[]).contains("none"));
        assert!(bars("Failures", &[("reset".to_owned(), 0)]).contains("none"));
        let many: Vec<Named> = (1..=20).map(|count| (format!("reason {count}"), count)).collect();
        let rows = reasons(&many);
        assert_eq!(rows.len(), REASONS_MAX + 1);
        assert_eq!(rows[0], ("reason 20".to_owned(), 20));
        assert_eq!(rows[REASONS_MAX], ("8 other reasons".to_owned(), 36));
    }

    #[test]
    fn names_from_outside_are_escaped() {
        let hostile = "<script>alert(1)</script>".to_owned();
        let html = bars("t", &[(hostile.clone(), 1)]) + &pairs("t", &[(hostile.clone(), hostile)]);
        assert!(!html.contains("<script") && html.contains("&lt;script&gt;"));
    }

    #[test]
    fn nothing_recorded_is_not_zero() {
        let html = percentiles(&Summary::default());
        assert!(html.contains("<td>–</td>") && !html.contains("0 µs"));
        assert!(!tiles(&[], &Summary::default()).contains("NaN"));
    }
}
