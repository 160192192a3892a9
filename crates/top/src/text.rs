//! One sample as plain text.

use std::fmt::Write;

use crate::format::{
    NONE, bytes, bytes_each, compact, digits, duration, grouped, milliseconds, percent, plain,
    words,
};
use crate::sample::{Finding, KernelReport, Node, Sample, Tops};
use crate::shards::Shards;

/// Topics of each list.
const TOPICS: usize = 5;

/// Lines of a name and a value.
#[derive(Default)]
struct Rows(String);

impl Rows {
    fn add(&mut self, name: &str, value: String) {
        // Writing to a String can't fail.
        let _ = writeln!(self.0, "{name:<16}{value}");
    }
}

/// Returns the node, its newest sample and the top topics as text, one figure per line.
pub fn text(name: &str, node: &Node, sample: &Sample, tops: &Tops) -> String {
    let mut rows = Rows::default();
    let up = duration((sample.at / 1_000).saturating_sub(node.started_at));
    rows.add("node", format!("{} · Throng {} · up {up}", plain(name), plain(&node.version)));
    connections(&mut rows, node, sample);
    traffic(&mut rows, sample);
    resources(&mut rows, node, sample);
    if let Some(report) = &tops.kernel {
        kernel(&mut rows, report);
    }
    topics(&mut rows, tops);
    rows.0
}

fn per_second(value: f64) -> String {
    format!("{}/s", compact(value))
}

fn connections(rows: &mut Rows, node: &Node, sample: &Sample) {
    let figures = &sample.figures;
    let max = match node.connections_max > 0.0 {
        true => format!(
            " ({} of {})",
            percent(sample.connections, node.connections_max),
            grouped(node.connections_max as u64)
        ),
        false => String::new(),
    };
    rows.add("connections", format!("{}{max}", grouped(sample.connections as u64)));
    rows.add("transports", group(&sample.transports));
    if let Some(mqtt) = mqtt(sample) {
        rows.add("MQTT", mqtt);
    }
    let shards = sample.shards.iter().map(|held| grouped(*held as u64));
    rows.add("shards", shards.collect::<Vec<_>>().join(" "));
    let shards = Shards { connections: sample.shards.clone(), columns: sample.by_shard.clone() };
    if let Some(busiest) = shards.busiest() {
        rows.add("busiest shard", busiest);
    }
    let refused = per_second(figures.refused);
    rows.add("connects", format!("{} · {refused} refused", per_second(figures.opened)));
    let reasons = match sample.closed_by.is_empty() {
        true => String::new(),
        false => format!(" · {}", group(&sample.closed_by)),
    };
    rows.add("disconnects", format!("{}{reasons}", per_second(figures.closed)));
}

/// Returns the node's figures about MQTT clients; `None` if they are all 0.
pub fn mqtt(sample: &Sample) -> Option<String> {
    let clients = sample.transports.get("mqtt").copied().unwrap_or_default();
    let [away, retained] = [sample.figures.mqtt_away, sample.figures.mqtt_retained];
    let size = bytes(sample.figures.mqtt_retained_bytes);
    let [here, gone, kept] = [clients, away, retained].map(compact);
    (clients + away + retained > 0.0)
        .then(|| format!("{here} here · {gone} away · {kept} retained, {size}"))
}

fn traffic(rows: &mut Rows, sample: &Sample) {
    let figures = &sample.figures;
    rows.add("messages in", per_second(figures.messages_in));
    rows.add("delivered", per_second(figures.delivered));
    let latency = sample.latency_ms.map_or("nothing delivered".to_owned(), |at| {
        let [p50, p90, p99] = [at.p50, at.p90, at.p99].map(milliseconds);
        format!("p50 {p50} · p90 {p90} · p99 {p99}")
    });
    rows.add("latency", latency);
    let [read, written] = [figures.bytes_in, figures.bytes_out].map(bytes);
    rows.add("bytes", format!("{read}/s in · {written}/s out"));
}

fn resources(rows: &mut Rows, node: &Node, sample: &Sample) {
    let figures = &sample.figures;
    let share = percent(figures.cpu, node.cores);
    rows.add("CPU", format!("{} cores ({share} of {:.0})", digits(figures.cpu), node.cores));
    let [resident, user] = [figures.rss_bytes, figures.user_bytes].map(bytes);
    rows.add("memory", format!("{resident} resident · {user} user"));
    let user = sample.user_bytes_each().map_or(NONE.into(), bytes_each);
    let kernel = bytes_each(figures.kernel_bytes_per_connection);
    rows.add("memory each", format!("{user} user · {kernel} kernel (estimated)"));
    rows.add("slow consumers", per_second(figures.slow));
    let waiting = bytes(figures.outbox_bytes);
    rows.add("outboxes", format!("{} · {waiting} waiting", grouped(figures.outboxes as u64)));
    rows.add("topics", grouped(figures.topics as u64));
}

fn kernel(rows: &mut Rows, report: &KernelReport) {
    if report.findings.is_empty() {
        rows.add("kernel", no_findings(report));
    }
    for (at, finding) in report.findings.iter().enumerate() {
        let text =
            format!("! {}{}: {}", plain(&finding.what), ago(finding), plain(&finding.advice));
        rows.add(if at == 0 { "kernel" } else { "" }, text);
    }
}

/// Returns the text in place of findings if the report has none.
pub fn no_findings(report: &KernelReport) -> String {
    format!("nothing dropped and no shortage in the last {}", duration(report.seconds))
}

/// Returns the time since a finding happened last, to follow it.
pub fn ago(finding: &Finding) -> String {
    finding.seconds_ago.map_or(String::new(), |ago| format!(" ({} ago)", duration(ago)))
}

fn topics(rows: &mut Rows, tops: &Tops) {
    for (title, topics) in [("biggest", &tops.biggest), ("busiest", &tops.busiest)] {
        for (at, topic) in topics.iter().take(TOPICS).enumerate() {
            let value = format!(
                "{} · {} members · {} messages/min",
                plain(&topic.topic),
                grouped(topic.members as u64),
                compact(topic.messages_per_minute)
            );
            rows.add(if at == 0 { title } else { "" }, value);
        }
    }
    for (at, topic) in tops.by_deliveries.iter().take(TOPICS).enumerate() {
        let value = format!(
            "{} · {} deliveries/min · {}/min",
            plain(&topic.topic),
            compact(topic.deliveries_per_minute),
            bytes(topic.bytes_per_minute)
        );
        rows.add(if at == 0 { "costliest" } else { "" }, value);
    }
    let slowest = tops.slowest.as_ref().map(|it| &it.connections[..]).unwrap_or_default();
    for (at, connection) in slowest.iter().take(TOPICS).enumerate() {
        let value = format!(
            "{} · {} waiting for {} · {} · {} · {}",
            plain(&connection.id),
            bytes(connection.outbox_bytes),
            duration(connection.outbox_age_ms as u64 / 1_000),
            plain(&connection.transport),
            plain(connection.address.as_deref().unwrap_or("–")),
            plain(&connection.users.join(" "))
        );
        rows.add(if at == 0 { "slowest" } else { "" }, value);
    }
}

/// Lists the values that are not 0, the largest first.
fn group(group: &std::collections::BTreeMap<String, f64>) -> String {
    let mut items: Vec<_> = group.iter().filter(|(_, value)| **value > 0.0).collect();
    items.sort_by(|a, b| b.1.total_cmp(a.1));
    if items.is_empty() {
        return "none".into();
    }
    let items = items.iter().map(|(name, value)| format!("{} {}", words(name), compact(**value)));
    items.collect::<Vec<_>>().join(" · ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mqtt_is_shown_where_there_is_any() {
        let mut sample = Sample::default();
        assert_eq!(mqtt(&sample), None);
        sample.figures.mqtt_away = 3.0;
        assert_eq!(mqtt(&sample).as_deref(), Some("0 here · 3 away · 0 retained, 0 B"));
        sample.transports.insert("mqtt".into(), 12.0);
        (sample.figures.mqtt_retained, sample.figures.mqtt_retained_bytes) = (7.0, 1_200.0);
        let text = text("n", &Node::default(), &sample, &Tops::default());
        assert!(text.contains("\nMQTT            12 here · 3 away · 7 retained, 1."), "{text}");
    }

    #[test]
    fn findings_about_the_kernel_are_shown_with_what_to_do() {
        let lines = |kernel: Option<KernelReport>| {
            let kernel = kernel.map(Box::new);
            let tops = Tops { kernel, ..Tops::default() };
            let text = text("n", &Node::default(), &Sample::default(), &tops);
            let lines = text.lines().skip_while(|line| !line.starts_with("kernel"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(lines(None), [""; 0]);
        let report = KernelReport { seconds: 125, ..KernelReport::default() };
        let want = "kernel          nothing dropped and no shortage in the last 2 min 5 s";
        assert_eq!(lines(Some(report.clone())), [want]);
        let finding = |what: &str, seconds_ago| Finding {
            what: what.into(),
            advice: "do\u{1b}this".into(),
            seconds_ago,
        };
        let findings = vec![finding("it dropped 3", Some(61)), finding("tasks wait", None)];
        let found = lines(Some(KernelReport { findings, ..report }));
        let want = "kernel          ! it dropped 3 (1 min 1 s ago): do\u{fffd}this";
        assert_eq!(found, [want, "                ! tasks wait: do\u{fffd}this"]);
    }

    #[test]
    fn memory_per_connection_is_shown_from_100_connections_on() {
        let line = |connections: f64| {
            let mut sample = Sample { connections, ..Sample::default() };
            sample.figures.user_bytes_per_connection = 1_000.0;
            let text = text("n", &Node::default(), &sample, &Tops::default());
            text.lines().find(|line| line.starts_with("memory each")).map(str::to_owned)
        };
        let few = format!("memory each     {NONE} user · 0 B kernel (estimated)");
        assert_eq!(line(7.0), Some(few));
        assert!(line(100.0).is_some_and(|line| line.contains("1,000 B user")), "{:?}", line(100.0));
    }
}
