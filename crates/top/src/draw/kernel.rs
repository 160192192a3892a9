//! The view of the kernel of the node's host: findings and stats. The gravest finding is a line of the other views.

use kernel::{KernelStats, Pressure, TcpMemory, Usage};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::{ALARM, STRONG};
use crate::format::{bytes, compact, cut, grouped, percent, plain};
use crate::sample::KernelReport;
use crate::state::Data;
use crate::text::{ago, no_findings};

/// Columns of a name.
const NAME: usize = 21;
/// The kernel reports a limit of this size or more if it has none.
const NO_LIMIT: u64 = 1 << 60;

/// Draws the line of the other views: the gravest finding.
pub fn alarm(frame: &mut Frame<'_>, area: Rect, report: &KernelReport) {
    let [first, others @ ..] = report.findings.as_slice() else { return };
    let more = match others.len() {
        0 => String::new(),
        more => format!(" (+{more})"),
    };
    let text = format!(" ! {}{}{more}", plain(&first.what), ago(first));
    frame.render_widget(Line::styled(cut(&text, usize::from(area.width)), ALARM), area);
}

/// Draws the view.
pub fn kernel(frame: &mut Frame<'_>, area: Rect, data: &Data, scroll: usize) {
    let inner = Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area };
    let inner = inner.intersection(area);
    let report = match &data.tops {
        None => return frame.render_widget(Line::raw("Loading…"), inner),
        Some(Err(error)) => {
            let error = Paragraph::new(format!("! {error}")).wrap(Wrap { trim: true });
            return frame.render_widget(error, inner);
        }
        Some(Ok(tops)) => match &tops.kernel {
            Some(report) => report,
            None => return frame.render_widget(Line::raw("The node does not report them."), inner),
        },
    };
    let mut lines = Vec::new();
    for finding in &report.findings {
        let what = format!("! {}{}", plain(&finding.what), ago(finding));
        lines.push(Line::styled(what, ALARM));
        lines.push(Line::raw(plain(&finding.advice)));
    }
    if report.findings.is_empty() {
        lines.push(Line::raw(no_findings(report)));
    }
    lines.push(Line::raw(""));
    for (name, value) in stats(&report.stats) {
        let name = Span::styled(format!("{name:<NAME$}"), STRONG);
        lines.push(Line::from(vec![name, Span::raw(value)]));
    }
    let scroll = u16::try_from(scroll).unwrap_or(u16::MAX);
    let text = Paragraph::new(lines).wrap(Wrap { trim: false }).scroll((scroll, 0));
    frame.render_widget(text, inner);
}

/// Returns names and values of the kernel's stats. Counters are since the boot.
fn stats(stats: &KernelStats) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    let mut add = |name, value: Option<String>| rows.extend(value.map(|value| (name, value)));
    add("listener overflows", stats.listen_overflows.map(attempts));
    add("listener drops", stats.listen_drops.map(attempts));
    add("aborted for memory", stats.tcp_aborts_on_memory.map(|it| counted(it, "connections")));
    add("packets dropped", stats.softnet_dropped.map(grouped));
    add("retransmitted", retransmitted(stats));
    add("TCP memory", stats.tcp_memory.map(tcp_memory));
    add("TCP sockets", stats.tcp_sockets.map(grouped));
    add("tracked (conntrack)", stats.conntrack.map(usage));
    add("open files", stats.files.map(usage));
    for (name, known) in [
        ("wait for CPU", stats.cpu),
        ("wait for memory", stats.memory),
        ("wait for disk", stats.io),
    ] {
        add(name, known.map(waiting));
    }
    rows
}

fn counted(count: u64, of: &str) -> String {
    format!("{} {of}", grouped(count))
}

fn attempts(count: u64) -> String {
    counted(count, "attempts to connect")
}

fn retransmitted(stats: &KernelStats) -> Option<String> {
    let (again, sent) = (stats.tcp_segments_retransmitted? as f64, stats.tcp_segments_out? as f64);
    Some(format!("{} segments ({})", compact(again), percent(again, sent)))
}

fn tcp_memory(TcpMemory { used_bytes, max_bytes, .. }: TcpMemory) -> String {
    let used = bytes(used_bytes as f64);
    let Some(max) = max_bytes.map(|max| max as f64) else { return used };
    format!("{used} of {} ({})", bytes(max), percent(used_bytes as f64, max))
}

fn usage(table: Usage) -> String {
    if table.max >= NO_LIMIT {
        return grouped(table.used);
    }
    let share = percent(table.used as f64, table.max as f64);
    format!("{} of {} ({share})", grouped(table.used), grouped(table.max))
}

fn waiting(pressure: Pressure) -> String {
    let Pressure { some_percent, full_percent } = pressure;
    format!("some tasks {some_percent:.0} %, all {full_percent:.0} % of the last 10 s")
}
