//! Draws the state and the time into a frame. Colours are the terminal's own and a few named ones.
//! Nothing depends on colour alone.

mod costs;
mod details;
mod kernel;
mod lists;
mod shards;
mod tiles;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph};

use crate::format::{clock_utc, cut, duration, plain};
use crate::sample::Upgrade;
use crate::state::{State, View};

/// The seconds that sparklines cover.
const SPARK_SECONDS: u64 = 300;

/// The style of sparklines and bars.
pub(crate) const GRAPH: Style = Style::new().fg(Color::Cyan);
/// The style of alarms. A sign goes with it.
pub(crate) const ALARM: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
pub(crate) const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
pub(crate) const FAINT: Style = Style::new().add_modifier(Modifier::DIM);

const HELP: &[(&str, &str)] = &[
    ("Tab ← →", "the next view, or the previous one"),
    ("t or /", "show a topic, or a user as @name"),
    ("c", "the costliest topics, and the slowest connections"),
    ("↑ ↓ PgUp PgDn", "scroll a long list"),
    ("s S r", "sort the shards by another column; reverse the order"),
    ("p or space", "pause or resume the display"),
    ("Esc", "close what is open, or quit"),
    ("q Ctrl-C", "quit"),
    ("?", "this help"),
    ("sparklines", "the last 5 minutes, from 0 to the maximum; a column"),
    ("", "shows the highest value of its share of the time"),
    ("/s", "per second, over the last second"),
    ("latency", "from publish to the kernel; upper bounds that double"),
    ("mem/conn", "user: growth of the process, divided by connections;"),
    ("", "kernel: an estimate from the host's TCP buffers"),
    ("outboxes", "connections with unsent bytes"),
    ("Shards", "bulk: long fan-outs; wait: for a CPU; see docs/operations.md"),
    ("Kernel", "counters of the whole host, since its boot"),
    ("!", "needs attention: near or above a limit"),
];

/// Draws the whole screen. The time is in milliseconds since 1970.
pub fn draw(frame: &mut Frame<'_>, state: &State, now_ms: u64) {
    // Only findings take a line of the other views.
    let report = state.kernel().filter(|it| !it.findings.is_empty() && state.view != View::Kernel);
    let [head, tabs, body, alarm, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(u16::from(report.is_some())),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    if let Some(report) = report {
        kernel::alarm(frame, alarm, report);
    }
    header(frame, head, state, now_ms);
    frame.render_widget(tab_line(state), tabs);
    footer(frame, foot, state, now_ms);
    let data = state.data();
    let Some(newest) = data.ring.newest() else {
        let text = format!("Waiting for the first sample of {}…", plain(&state.name));
        frame.render_widget(Paragraph::new(text), body);
        return;
    };
    match state.view {
        View::Overview => overview(frame, body, state),
        View::Transports => lists::transports(frame, body, newest, Some(&data.ring)),
        View::Shards => shards::shards(frame, body, state),
        View::Topics => lists::topics(frame, body, data, state.scroll),
        View::Costs => costs::costs(frame, body, data, state.scroll),
        View::Kernel => kernel::kernel(frame, body, data, state.scroll),
        View::Details => details::details(frame, body, data, state.scroll),
    }
    if state.help {
        help_box(frame, body, HELP);
    }
}

fn header(frame: &mut Frame<'_>, area: Rect, state: &State, now_ms: u64) {
    let data = state.data();
    let now = data.ring.newest();
    let mut text = format!(" throng top · {}", plain(&state.name));
    if let Some(node) = &data.node {
        text += &format!(" · Throng {}", plain(&node.version));
        if let Some(sample) = now {
            let up = (sample.at / 1_000).saturating_sub(node.started_at);
            text += &format!(" · up {}", duration(up));
        }
        if area.width >= 100 {
            let topics = now.map_or(0.0, |sample| sample.figures.topics);
            let rss = now.map_or(0.0, |sample| sample.figures.rss_bytes);
            text += &format!(
                " · {:.0} cores · {} topics · {} resident",
                node.cores,
                crate::format::compact(topics),
                crate::format::bytes(rss)
            );
        }
    }
    let (status, style) = match (&state.away, state.is_paused()) {
        (Some(away), _) => {
            let seconds = now_ms.saturating_sub(away.since_ms) / 1_000;
            (format!("! AWAY for {} ", duration(seconds)), ALARM)
        }
        (None, true) => ("‖ PAUSED (p resumes) ".into(), STRONG),
        (None, false) => match now {
            Some(sample) => (format!("● {} UTC ", clock_utc(sample.at)), STRONG),
            None => (String::new(), STRONG),
        },
    };
    header_line(frame, area, &text, (status, style));
}

/// Draws the top line: a text, cut to fit, and the status at its right.
pub(crate) fn header_line(
    frame: &mut Frame<'_>,
    area: Rect,
    text: &str,
    (status, style): (String, Style),
) {
    let width = Span::raw(&status).width() as u16;
    let [left, right] =
        Layout::horizontal([Constraint::Min(0), Constraint::Length(width)]).areas(area);
    let text = cut(text, usize::from(left.width.saturating_sub(1)));
    frame.render_widget(Line::styled(text, STRONG), left);
    frame.render_widget(Line::styled(status, style), right);
}

fn tab_line(state: &State) -> Line<'static> {
    let name = |view| match (view, &state.data().details) {
        (View::Overview, _) => "Overview".to_owned(),
        (View::Transports, _) => "Transports".to_owned(),
        (View::Shards, _) => "Shards".to_owned(),
        (View::Topics, _) => "Topics".to_owned(),
        (View::Costs, _) => "Costs".to_owned(),
        (View::Kernel, _) => "Kernel".to_owned(),
        (View::Details, Some((subject, _))) => cut(&plain(&subject.0), 24),
        (View::Details, None) => String::new(),
    };
    let tab = |view| match view == state.view {
        true => Span::styled(format!("[{}]", name(view)), STRONG.add_modifier(Modifier::REVERSED)),
        false => Span::raw(format!(" {} ", name(view))),
    };
    Line::from_iter(state.views().into_iter().map(tab))
}

fn footer(frame: &mut Frame<'_>, area: Rect, state: &State, now_ms: u64) {
    let width = usize::from(area.width);
    let line = match (&state.typed, &state.away) {
        (Some(typed), _) => {
            let ask = " topic or @user: ";
            let typed = plain(typed);
            // A long name shows its end, where the user types.
            let room = width.saturating_sub(ask.len() + 2);
            let hidden = typed.chars().count().saturating_sub(room);
            let shown: String = typed.chars().skip(hidden).collect();
            Line::from(vec![Span::styled(ask, STRONG), Span::raw(shown), Span::styled("█", STRONG)])
        }
        (None, Some(away)) => {
            let seconds = now_ms.saturating_sub(away.since_ms) / 1_000;
            let text = format!(
                " ! away since {} UTC ({}): {}; trying again",
                clock_utc(away.since_ms),
                duration(seconds),
                away.error
            );
            Line::styled(cut(&text, width), ALARM)
        }
        (None, None) => {
            let keys = " q quit   Tab next view   t topic or @user   c costs   p pause   ? help   sparks: 5 min";
            let newest = state.data().ring.newest();
            match newest.and_then(|sample| sample.upgrade.as_ref()) {
                Some(upgrade) => Line::styled(cut(&upgrade_line(upgrade), width), STRONG),
                None => Line::styled(cut(keys, width), FAINT),
            }
        }
    };
    frame.render_widget(line, area);
}

/// Returns the line for an upgrade, which replaces most keys.
fn upgrade_line(upgrade: &Upgrade) -> String {
    let text = plain(&upgrade.text);
    match upgrade.result.as_deref() {
        None => format!(" upgrade: {text}"),
        Some("done" | "possible") => format!(" q quit   ? help   {text}"),
        Some(_) => format!(" q quit   ? help   ! {text}"),
    }
}

fn overview(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let data = state.data();
    let columns = tiles::columns(area.width);
    let rows = (tiles::COUNT as u16).div_ceil(columns);
    // Space goes to the tiles' sparklines first, then to the lists, then to larger sparklines.
    let height = area.height.saturating_sub(lists::HEIGHT_GOOD) / rows;
    let height = height.clamp(tiles::HEIGHT_GOOD, tiles::HEIGHT_MAX);
    let spare = area.height.saturating_sub(rows * height);
    let lists_height = if spare >= lists::HEIGHT_MIN { spare } else { 0 };
    let [above, below] =
        Layout::vertical([Constraint::Min(0), Constraint::Length(lists_height)]).areas(area);
    tiles::tiles(frame, above, data, columns);
    if lists_height > 0 {
        lists::lists(frame, below, data);
    }
}

/// Draws a box with keys and words, and the meaning of each.
pub(crate) fn help_box(frame: &mut Frame<'_>, area: Rect, help: &[(&'static str, &'static str)]) {
    let width = area.width.min(72);
    let height = area.height.min(help.len() as u16 + 2);
    let area = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    let line = |(key, what): &(&'static str, &'static str)| {
        Line::from(vec![Span::styled(format!(" {key:<14}"), STRONG), Span::raw(*what)])
    };
    let text: Vec<Line<'_>> = help.iter().map(line).collect();
    frame.render_widget(Clear, area);
    let block = ratatui::widgets::Block::bordered().title(" Help: any key closes it ");
    frame.render_widget(Paragraph::new(text).block(block), area);
}

#[cfg(test)]
mod tests;
