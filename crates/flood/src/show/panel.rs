//! A panel in a terminal: rates and sparklines, redrawn each second.

use std::collections::VecDeque;
use std::io::Stdout;

use anyhow::{Context, Result};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Gauge, Paragraph, Sparkline};
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};

use super::lines::{result, server_line};
use super::{Phase, Show, bytes, per_second, print, thousands, time};
use crate::record::{Sample, Summary};

/// Lines of the panel.
const HEIGHT: u16 = 16;
/// Seconds of a sparkline.
const HISTORY: usize = 200;

/// The panel. It uses lines at the bottom of the terminal and leaves those above alone.
pub struct Panel {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    title: String,
    opened: VecDeque<u64>,
    messages: VecDeque<u64>,
    p99: VecDeque<u64>,
}

impl Panel {
    /// Returns a panel with this title.
    ///
    /// # Errors
    /// If it can't draw on the terminal.
    pub fn new(title: String) -> Result<Self> {
        let options = TerminalOptions { viewport: Viewport::Inline(HEIGHT) };
        let backend = CrosstermBackend::new(std::io::stdout());
        let terminal =
            Terminal::with_options(backend, options).context("drawing on the terminal")?;
        let empty = VecDeque::new;
        Ok(Self { terminal, title, opened: empty(), messages: empty(), p99: empty() })
    }
}

fn push(list: &mut VecDeque<u64>, value: u64) {
    if list.len() == HISTORY {
        list.pop_front();
    }
    list.push_back(value);
}

impl Show for Panel {
    fn sample(&mut self, phase: Phase, before: &Sample, now: &Sample, planned: u32) {
        push(&mut self.opened, per_second(before, now, |s| s.counts.opened) as u64);
        push(&mut self.messages, per_second(before, now, |s| s.counts.messages) as u64);
        push(&mut self.p99, now.delivery.p99_us);
        let Self { terminal, title, opened, messages, p99 } = self;
        // The run goes on even if the terminal is closed.
        let _ = terminal.draw(|frame| {
            draw(frame, title, phase, now, planned, [opened, messages, p99]);
        });
    }

    fn end(&mut self, summary: &Summary) {
        let _ = self.terminal.clear();
        print(&result(summary));
    }
}

fn draw(
    frame: &mut Frame<'_>,
    title: &str,
    phase: Phase,
    now: &Sample,
    planned: u32,
    lists: [&VecDeque<u64>; 3],
) {
    let block =
        Block::bordered().title(format!(" {title} · {} · {:.0} s ", phase.word(), now.at_seconds));
    let area = block.inner(frame.area());
    frame.render_widget(block, frame.area());
    let [gauge, figures, lines] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(7), Constraint::Min(3)])
            .areas(area);
    let counts = &now.counts;
    let share = (counts.open as f64 / f64::from(planned.max(1))).clamp(0.0, 1.0);
    let label = format!("{} of {} open", thousands(counts.open), thousands(u64::from(planned)));
    frame.render_widget(
        Gauge::default().ratio(share).label(label).gauge_style(Style::new().fg(Color::Cyan)),
        gauge,
    );
    frame.render_widget(Paragraph::new(figure_lines(now)), figures);
    let columns: [Rect; 3] = Layout::horizontal([Constraint::Ratio(1, 3); 3]).areas(lines);
    let last = |list: &VecDeque<u64>| list.back().copied().unwrap_or(0);
    let titles = [
        format!("opened {}/s", thousands(last(lists[0]))),
        format!("messages {}/s", thousands(last(lists[1]))),
        format!("p99 {}", time(last(lists[2]))),
    ];
    for ((column, list), title) in columns.into_iter().zip(lists).zip(titles) {
        let shown: Vec<u64> = list
            .iter()
            .skip(list.len().saturating_sub(usize::from(column.width)))
            .copied()
            .collect();
        let spark = Sparkline::default().block(Block::new().title(title)).data(shown);
        frame.render_widget(spark.style(Style::new().fg(Color::Cyan)), column);
    }
}

fn figure_lines(now: &Sample) -> Vec<Line<'static>> {
    let counts = &now.counts;
    let row = |name: &'static str, value: String| {
        Line::from(vec![
            Span::styled(format!("{name:<13}"), Style::new().add_modifier(Modifier::DIM)),
            Span::raw(value),
        ])
    };
    let anomalies = counts.lost
        + counts.duplicated
        + counts.out_of_order
        + counts.strayed
        + counts.not_recovered;
    let colour =
        if anomalies + counts.closed + counts.failed == 0 { Color::Green } else { Color::Red };
    let checks = format!(
        "failed {} · closed {} · lost {} · duplicated {} · out of order {}",
        thousands(counts.failed),
        thousands(counts.closed),
        thousands(counts.lost),
        thousands(counts.duplicated),
        thousands(counts.out_of_order)
    );
    let delivery = match now.delivery.count {
        0 => "nothing this second".to_string(),
        _ => format!(
            "p50 {} · p90 {} · p99 {} · max {}",
            time(now.delivery.p50_us),
            time(now.delivery.p90_us),
            time(now.delivery.p99_us),
            time(now.delivery.max_us)
        ),
    };
    vec![
        row("opened", format!("{} · left {}", thousands(counts.opened), thousands(counts.left))),
        Line::from(vec![
            Span::styled(format!("{:<13}", "checks"), Style::new().add_modifier(Modifier::DIM)),
            Span::styled(checks, Style::new().fg(colour)),
        ]),
        row(
            "messages",
            format!(
                "{} received · {} published · {} heartbeats",
                thousands(counts.messages),
                thousands(counts.published),
                thousands(counts.heartbeats)
            ),
        ),
        row("delivery", delivery),
        row("server", server_line(now).unwrap_or_else(|| "no figures".into())),
        row(
            "host",
            format!(
                "slab {} · TCP buffers {} · available {}",
                bytes(now.slab_bytes),
                bytes(now.tcp_bytes),
                bytes(now.available_bytes)
            ),
        ),
        row(
            "this tool",
            format!("{} · {:.1} s of processor", bytes(now.memory_bytes), now.cpu_seconds),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::backend::TestBackend;

    #[test]
    fn the_panel_fits_80_columns() {
        let mut terminal = Terminal::new(TestBackend::new(80, HEIGHT)).unwrap();
        let mut now = Sample::default();
        now.counts.open = 1_000_000;
        now.counts.messages = 12_345_678;
        let list: VecDeque<u64> = (0..200).collect();
        let draw_it = |frame: &mut Frame<'_>| {
            draw(frame, "hold", Phase::Holding, &now, 1_000_000, [&list; 3])
        };
        terminal.draw(draw_it).unwrap();
        let text: String = terminal
            .backend()
            .buffer()
            .content()
            .iter()
            .map(ratatui::buffer::Cell::symbol)
            .collect();
        for want in ["1,000,000 of 1,000,000 open", "12,345,678 received", "messages 199/s"] {
            assert!(text.contains(want), "{want} in {text}");
        }
    }
}
