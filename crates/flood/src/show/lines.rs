//! Plain lines: one every few seconds, and the result.

use std::fmt::Write;

use super::{Phase, Show, bytes, per_second, print, thousands, time};
use crate::record::{Agent, Percentiles, Sample, Storm, Summary};

/// Seconds between two lines of the same phase.
const EVERY_SECONDS: f64 = 5.0;

/// Prints a line every five seconds, and the result.
#[derive(Debug, Default)]
pub struct Lines {
    last: Option<(Phase, Sample)>,
}

impl Show for Lines {
    fn sample(&mut self, phase: Phase, before: &Sample, now: &Sample, planned: u32) {
        let (shown, last) = self.last.unwrap_or((phase, *before));
        let due = now.at_seconds - last.at_seconds >= EVERY_SECONDS;
        if self.last.is_some() && !due && shown == phase {
            return;
        }
        print(&format!("{}\n", line(phase, &last, now, planned)));
        self.last = Some((phase, *now));
    }

    fn end(&mut self, summary: &Summary) {
        print(&format!("\n{}", result(summary)));
    }
}

/// Prints the result only.
#[derive(Debug, Default)]
pub struct Quiet;

impl Show for Quiet {
    fn sample(&mut self, _phase: Phase, _before: &Sample, _now: &Sample, _planned: u32) {}

    fn end(&mut self, summary: &Summary) {
        print(&result(summary));
    }
}

fn line(phase: Phase, before: &Sample, now: &Sample, planned: u32) -> String {
    let counts = &now.counts;
    let rate = |count: fn(&Sample) -> u64| thousands(per_second(before, now, count) as u64);
    let mut text = format!(
        "{:7.1} s  {:<8}  active {} of {}  opened {}/s  closed {}  messages {} ({}/s)",
        now.at_seconds,
        phase.word(),
        thousands(counts.open),
        thousands(u64::from(planned)),
        rate(|s| s.counts.opened),
        thousands(counts.closed),
        thousands(counts.messages),
        rate(|s| s.counts.messages),
    );
    if now.delivery.count > 0 {
        let _ =
            write!(text, "  p50 {}  p99 {}", time(now.delivery.p50_us), time(now.delivery.p99_us));
    }
    for (name, count) in anomalies(now) {
        let _ = write!(text, "  {name} {}", thousands(count));
    }
    text
}

/// Returns the counts that should be zero and are not.
fn anomalies(sample: &Sample) -> impl Iterator<Item = (&'static str, u64)> {
    let counts = sample.counts;
    [
        ("failed", counts.failed),
        ("lost", counts.lost),
        ("duplicated", counts.duplicated),
        ("out of order", counts.out_of_order),
        ("strayed", counts.strayed),
        ("not recovered", counts.not_recovered),
        ("acks failed", counts.ack_failed),
        ("publishes failed", counts.publish_failed),
        ("probes failed", counts.probes_failed),
    ]
    .into_iter()
    .filter(|(_, count)| *count > 0)
}

/// Returns the result as a block of lines.
pub fn result(summary: &Summary) -> String {
    let counts = &summary.counts;
    let mut out = String::new();
    let mut row = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<14}{value}");
    };
    let stopped = if summary.interrupted { ", stopped before its end" } else { "" };
    let tls = summary.tls.map_or(String::new(), |tls| format!(", {}", tls.phrase()));
    row("run", format!("{}, {:.0} s{tls}{stopped}", summary.scenario, summary.seconds));
    row(
        "connections",
        format!(
            "{} open of {}; {} opened, {} failed, {} closed by the server, {} left",
            thousands(counts.open),
            thousands(summary.connections),
            thousands(counts.opened),
            thousands(counts.failed),
            thousands(counts.closed),
            thousands(counts.left)
        ),
    );
    for target in &summary.targets {
        row(
            "  target",
            format!(
                "{}: {} open; {} opened, {} failed, {} closed, {} cut; {} messages lost",
                target.target,
                thousands(target.open),
                thousands(target.opened),
                thousands(target.failed),
                thousands(target.closed),
                thousands(target.cuts),
                thousands(target.lost)
            ),
        );
    }
    for agent in &summary.agents {
        row("  agent", self::agent(agent, summary.connections));
    }
    if summary.full {
        row("  full", "no more connections were opened, for lack of memory (--keep-memory)".into());
    }
    for (name, list) in [("  failed", &summary.failures), ("  closed", &summary.closes)] {
        for (reason, count) in list {
            row(name, format!("{} × {reason}", thousands(*count)));
        }
    }
    row(
        "messages",
        format!(
            "{} received of {} published ({} failed); {} lost, {} duplicated, {} out of order, {} strayed",
            thousands(counts.messages),
            thousands(counts.published),
            thousands(counts.publish_failed),
            thousands(counts.lost),
            thousands(counts.duplicated),
            thousands(counts.out_of_order),
            thousands(counts.strayed)
        ),
    );
    if counts.publish_unsure > 0 {
        let unsure = thousands(counts.publish_unsure);
        row("  unsure", format!("{unsure} publishes have no result, because their node ended"));
    }
    if summary.recover {
        row(
            "recovery",
            format!(
                "{} cut; {} messages caught up, {} times not recovered",
                thousands(counts.cuts),
                thousands(counts.caught_up),
                thousands(counts.not_recovered)
            ),
        );
    }
    for storm in &summary.storms {
        row("  storm", self::storm(storm));
    }
    if counts.acked + counts.redelivered + counts.ack_failed > 0 {
        row(
            "acks",
            format!(
                "{} messages to users acknowledged, {} arrived again; {} acknowledgements failed",
                thousands(counts.acked),
                thousands(counts.redelivered),
                thousands(counts.ack_failed)
            ),
        );
    }
    for fault in &summary.faults {
        row("  fault", fault.clone());
    }
    for sentence in summary.kernels.iter().flat_map(|host| host.sentences()) {
        row("kernel", sentence);
    }
    row("heartbeats", thousands(counts.heartbeats));
    row("connect", percentiles(&summary.connect));
    row("delivery", percentiles(&summary.delivery));
    if summary.delivery_user.count > 0 {
        row("  to one user", percentiles(&summary.delivery_user));
    }
    if counts.probes + counts.probes_failed > 0 {
        let per_second = counts.probes as f64 / summary.seconds.max(0.001);
        let failed = thousands(counts.probes_failed);
        let times = percentiles(&summary.probe);
        row("probes", format!("{per_second:.1} answered a second, {failed} failed; {times}"));
    }
    if summary.publish.count > 0 {
        row("publish", percentiles(&summary.publish));
    }
    if summary.silence.count > 0 {
        row("silence", percentiles(&summary.silence));
    }
    let server = match summary.server_cpu_per_message_us {
        Some(us) if us > 0.0 => format!(", the server {us:.2} µs"),
        _ => String::new(),
    };
    row(
        "this tool",
        format!(
            "{:.0} B of memory a connection; {:.2} µs of processor time a message or heartbeat{server}",
            summary.memory_per_connection_bytes, summary.cpu_per_message_us
        ),
    );
    out
}

fn agent(agent: &Agent, connections: u64) -> String {
    let share = 100.0 * agent.connections as f64 / connections.max(1) as f64;
    let whose =
        format!("{}: {} connections ({share:.0} %)", agent.agent, thousands(agent.connections));
    match &agent.lost {
        Some(why) => format!("{whose} lost: {why}"),
        None => format!(
            "{whose}, {} open, {} messages; clock error at most {}",
            thousands(agent.open),
            thousands(agent.messages),
            time(agent.clock_error_us)
        ),
    }
}

fn storm(storm: &Storm) -> String {
    let cpu = match storm.server_cpu_seconds {
        Some(seconds) => format!("; {seconds:.2} s of the server's processor time"),
        None => String::new(),
    };
    format!(
        "{} of {} got the {} messages that they missed, the last after {:.2} s; each {}{cpu}",
        thousands(storm.recovered),
        thousands(storm.connections),
        thousands(storm.missed),
        storm.seconds,
        percentiles(&storm.recovery)
    )
}

fn percentiles(times: &Percentiles) -> String {
    if times.count == 0 {
        return "nothing measured".into();
    }
    format!(
        "p50 {}, p90 {}, p99 {}, p99.9 {}, max {}",
        time(times.p50_us),
        time(times.p90_us),
        time(times.p99_us),
        time(times.p999_us),
        time(times.max_us)
    )
}

/// Returns a line on the server's memory, if the sample has the server's figures.
pub fn server_line(sample: &Sample) -> Option<String> {
    let server = sample.server?;
    Some(format!(
        "{} for {} connections, {:.1} B each",
        bytes(server.memory_bytes),
        thousands(server.connections),
        server.memory_per_connection_bytes
    ))
}

#[cfg(test)]
mod tests {
    use kernel::{Finding, FindingKind};

    use super::*;
    use crate::kernels::HostFindings;

    #[test]
    fn each_finding_of_a_kernel_is_shown_once() {
        let (what, advice) = ("the kernel dropped 312 attempts to connect", "raise it");
        let finding = Finding {
            kind: FindingKind::ListenOverflows,
            what: what.into(),
            advice: advice.into(),
            seconds_ago: None,
        };
        let host = HostFindings { host: "a".into(), kernel_id: None, findings: vec![finding] };
        let summary = Summary { kernels: vec![host], ..Summary::default() };
        assert_eq!(result(&summary).matches(&format!("a: {what}: {advice}")).count(), 1);
    }
}
