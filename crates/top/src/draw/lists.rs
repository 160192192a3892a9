//! Lists: connections by transport and shard, and the top topics.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::{GRAPH, STRONG, tiles};
use crate::format::{bar, bytes, compact, cut, grouped, percent, plain, words};
use crate::sample::{Noisy, Ring, Sample, TopTopic, Tops};
use crate::state::Data;
use crate::text::mqtt;

/// The fewest lines in which lists are useful.
pub const HEIGHT_MIN: u16 = 8;
/// The lines in which lists show enough.
pub const HEIGHT_GOOD: u16 = 16;
/// The fewest columns of a list.
const WIDTH_MIN: u16 = 34;
/// Columns of a number in a list.
const NUMBER: usize = 9;
/// Columns of a transport's name.
const NAME: usize = 18;
/// The fewest and the most columns of a transport's bar.
const BAR_MIN: usize = 8;
const BAR_MAX: usize = 60;
/// Columns of a shard's number, count and bar.
const SHARD_WIDTH: u16 = 38;

/// Draws as many lists as fit side by side.
pub fn lists(frame: &mut Frame<'_>, area: Rect, data: &Data) {
    let Some(newest) = data.ring.newest() else { return };
    let count = (area.width / WIDTH_MIN).clamp(1, 5);
    let columns = Layout::horizontal(vec![Constraint::Ratio(1, u32::from(count)); count.into()]);
    for (index, column) in columns.split(area).iter().enumerate() {
        match index {
            0 => biggest(frame, *column, data, 0),
            1 => busiest(frame, *column, data, 0),
            2 => transports(frame, *column, newest, None),
            3 => shards(frame, *column, &data.shards.connections, 0),
            _ => noisiest(frame, *column, data, 0),
        }
    }
}

/// Draws the title of a list. Returns the area below it, which the list may use.
pub fn titled(frame: &mut Frame<'_>, area: Rect, title: Line<'_>) -> Rect {
    let inner = Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area };
    let inner = inner.intersection(area);
    let [head, rest] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(inner);
    frame.render_widget(title, head);
    rest
}

/// Draws the connections by transport with their share, and their last minutes if the area has space.
pub fn transports(frame: &mut Frame<'_>, area: Rect, sample: &Sample, ring: Option<&Ring>) {
    let width = usize::from(area.width.saturating_sub(2));
    // A bar that would be too short leaves its space to the names.
    let graph_width = width.saturating_sub(NAME + 2 * NUMBER + 2);
    let graph_width = if graph_width >= BAR_MIN { graph_width.min(BAR_MAX) } else { 0 };
    let name_width = width.saturating_sub(2 * NUMBER).min(NAME);
    let title = format!("{:<name_width$}{:>NUMBER$}{:>NUMBER$}", "Transport", "Conns", "Share");
    let area = titled(frame, area, Line::styled(title, STRONG));
    // Transports with the most connections come first; the sort leaves equal ones in order.
    let mut rows: Vec<_> = sample.transports.iter().collect();
    rows.sort_by(|a, b| b.1.total_cmp(a.1));
    let row = |name: &str, connections: f64| {
        format!(
            "{:<name_width$}{:>NUMBER$}{:>NUMBER$}  ",
            cut(&words(name), name_width.saturating_sub(1)),
            grouped(connections as u64),
            percent(connections, sample.connections)
        )
    };
    let sum = Line::styled(row("all", sample.connections), STRONG);
    let lines = rows.into_iter().map(|(name, connections)| {
        let graph = bar(connections / sample.connections.max(1.0), graph_width);
        Line::from(vec![Span::raw(row(name, *connections)), Span::styled(graph, GRAPH)])
    });
    let mqtt = mqtt(sample).map(|mqtt| Line::raw(cut(&format!("MQTT: {mqtt}"), width)));
    let used = sample.transports.len() as u16 + 2 + u16::from(mqtt.is_some());
    for (line, y) in lines.chain([sum]).chain(mqtt).zip(area.y..area.bottom()) {
        frame.render_widget(line, Rect { y, height: 1, ..area });
    }
    if let Some(ring) = ring
        && area.height > used + 3
    {
        let below = Rect { y: area.y + used, height: area.height - used, ..area };
        closed(frame, below, sample, ring);
    }
}

/// Draws the connections over time and the reasons of their ends, below the transports.
fn closed(frame: &mut Frame<'_>, area: Rect, sample: &Sample, ring: &Ring) {
    let reasons = tiles::reasons(sample).unwrap_or_else(|| "none".into());
    let [head, graph, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Max(12), Constraint::Min(1)])
            .areas(area);
    frame.render_widget(Line::styled("Connections, last 5 minutes", STRONG), head);
    tiles::spark(frame, graph, ring, |sample| Some(sample.connections));
    let text = format!("Disconnects a second by reason: {reasons}");
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), foot);
}

/// Returns the number of shards, with the fewest and the most connections.
pub fn shards_title(shards: &[f64]) -> String {
    match shards.len() {
        0 => "Shards".to_owned(),
        1 => "1 shard".to_owned(),
        count => {
            let least = shards.iter().copied().fold(f64::INFINITY, f64::min);
            let most = shards.iter().copied().fold(0.0, f64::max);
            format!("{count} shards: {} to {} conns", compact(least), compact(most))
        }
    }
}

/// Draws a bar for each shard, in as many columns as fit.
pub fn shards(frame: &mut Frame<'_>, area: Rect, shards: &[f64], scroll: usize) {
    let area = titled(frame, area, Line::styled(shards_title(shards), STRONG));
    let (height, columns) = (usize::from(area.height), (area.width / SHARD_WIDTH).max(1));
    if height == 0 {
        return;
    }
    let needed = shards.len().div_ceil(height).clamp(1, usize::from(columns));
    let width = area.width / needed as u16;
    let most = shards.iter().copied().fold(1.0, f64::max);
    let digits = shards.len().saturating_sub(1).to_string().len();
    let shown = height * needed;
    let first = scroll.min(shards.len().saturating_sub(shown));
    for (at, connections) in shards.iter().enumerate().skip(first).take(shown) {
        let index = at - first;
        let cell = Rect {
            x: area.x + (index / height) as u16 * width,
            y: area.y + (index % height) as u16,
            width,
            height: 1,
        };
        let text = format!("{at:>digits$} {:>NUMBER$} ", grouped(*connections as u64));
        let right = usize::from(width).saturating_sub(text.len() + 1);
        let graph = Span::styled(bar(connections / most, right.min(BAR_MAX)), GRAPH);
        frame.render_widget(Line::from(vec![Span::raw(text), graph]), cell);
    }
}

/// Draws the lists of topics, and the noisiest users, addresses and keys.
pub fn topics(frame: &mut Frame<'_>, area: Rect, data: &Data, scroll: usize) {
    // Without space for three lists, the topics come first.
    let count = if area.width >= 3 * WIDTH_MIN { 3 } else { 2 };
    let parts = vec![Constraint::Ratio(1, count); count as usize];
    let layout = match area.width >= 2 * WIDTH_MIN {
        true => Layout::horizontal(parts),
        false => Layout::vertical(parts),
    };
    for (index, part) in layout.split(area).iter().enumerate() {
        match index {
            0 => biggest(frame, *part, data, scroll),
            1 => busiest(frame, *part, data, scroll),
            _ => noisiest(frame, *part, data, scroll),
        }
    }
}

fn noisiest(frame: &mut Frame<'_>, area: Rect, data: &Data, scroll: usize) {
    let rows = data.tops.as_ref().map(|tops| match tops {
        Ok(tops) => Ok(tops.noisiest.iter().map(row).collect()),
        Err(error) => Err(format!("! {error}")),
    });
    fn row(noisy: &Noisy) -> Row {
        let name = match noisy.kind.as_str() {
            "user" => noisy.name.clone(),
            kind => format!("{kind} {}", noisy.name),
        };
        let numbers = [noisy.commands_per_second, noisy.refusals_per_second].map(compact);
        Row { name, numbers }
    }
    let titles = ["Noisiest", "Cmds/s", "Refused", "No user has sent commands."];
    list(frame, area, titles, rows.unwrap_or_else(|| Err("Loading…".into())), scroll);
}

fn biggest(frame: &mut Frame<'_>, area: Rect, data: &Data, scroll: usize) {
    let texts = ["Biggest topics", "Members", "Msg/min", "No topic has members."];
    list(frame, area, texts, found(data, |tops| &tops.biggest), scroll);
}

fn busiest(frame: &mut Frame<'_>, area: Rect, data: &Data, scroll: usize) {
    let texts = ["Busiest topics", "Members", "Msg/min", "No recent messages."];
    list(frame, area, texts, found(data, |tops| &tops.busiest), scroll);
}

/// Draws the topics with the most deliveries in the last minute.
pub fn by_deliveries(frame: &mut Frame<'_>, area: Rect, data: &Data, scroll: usize) {
    let texts = ["By deliveries", "A minute", "Msg/min", "No recent deliveries."];
    let rows = found_with(
        data,
        |tops| &tops.by_deliveries,
        |topic| [topic.deliveries_per_minute, topic.messages_per_minute].map(compact),
    );
    list(frame, area, texts, rows, scroll);
}

/// Draws the topics with the most bytes to members in the last minute.
pub fn by_bytes(frame: &mut Frame<'_>, area: Rect, data: &Data, scroll: usize) {
    let texts = ["By bytes", "A minute", "Members", "No recent deliveries."];
    let rows = found_with(
        data,
        |tops| &tops.by_bytes,
        |topic| [bytes(topic.bytes_per_minute), compact(topic.members)],
    );
    list(frame, area, texts, rows, scroll);
}

/// A row of a list.
struct Row {
    name: String,
    numbers: [String; 2],
}

/// Returns the rows of one of the lists of topics, or the text to show instead.
fn found(data: &Data, list: fn(&Tops) -> &Vec<TopTopic>) -> Result<Vec<Row>, String> {
    found_with(data, list, |topic| [topic.members, topic.messages_per_minute].map(compact))
}

fn found_with(
    data: &Data,
    list: fn(&Tops) -> &Vec<TopTopic>,
    numbers: impl Fn(&TopTopic) -> [String; 2],
) -> Result<Vec<Row>, String> {
    let row = |topic: &TopTopic| Row { name: topic.topic.clone(), numbers: numbers(topic) };
    match &data.tops {
        None => Err("Loading…".into()),
        Some(Err(error)) => Err(format!("! {error}")),
        Some(Ok(tops)) => Ok(list(tops).iter().map(row).collect()),
    }
}

fn list(
    frame: &mut Frame<'_>,
    area: Rect,
    [title, first_head, second_head, empty]: [&str; 4],
    found: Result<Vec<Row>, String>,
    scroll: usize,
) {
    let name_width = usize::from(area.width).saturating_sub(2 * NUMBER + 2);
    let title = cut(title, name_width);
    let title = format!("{title:<name_width$}{first_head:>NUMBER$}{second_head:>NUMBER$}");
    let area = titled(frame, area, Line::styled(title, STRONG));
    let rows = match found {
        Ok(rows) if !rows.is_empty() => rows,
        other => {
            let note = other.err().unwrap_or_else(|| empty.to_owned());
            frame.render_widget(Paragraph::new(note).wrap(Wrap { trim: true }), area);
            return;
        }
    };
    let first = scroll.min(rows.len().saturating_sub(usize::from(area.height)));
    for (row, y) in rows.iter().skip(first).zip(area.y..area.bottom()) {
        let name = cut(&plain(&row.name), name_width.saturating_sub(1));
        let padding = " ".repeat(name_width.saturating_sub(Span::raw(&name).width()));
        let [first, second] = &row.numbers;
        let numbers = format!("{padding}{first:>NUMBER$}{second:>NUMBER$}");
        frame.render_widget(Line::raw(name + &numbers), Rect { y, height: 1, ..area });
    }
}
