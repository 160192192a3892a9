//! Tiles: the key figures, each with its last minutes.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::Sparkline;

use super::{ALARM, GRAPH, SPARK_SECONDS, STRONG};
use crate::format::{NONE, bytes, bytes_each, compact, cut, digits, milliseconds, percent, words};
use crate::sample::{Node, Ring, Sample};
use crate::state::Data;

/// The number of tiles.
pub const COUNT: usize = TILES.len();
/// The lines of a tile with a legible sparkline: name, number, note, two lines of sparkline, and an empty one.
pub const HEIGHT_GOOD: u16 = 6;
/// The lines of a tile above which lists make better use of the space.
pub const HEIGHT_MAX: u16 = 8;
/// The most lines of a sparkline.
const SPARK_HEIGHT_MAX: u16 = 5;
/// The fewest columns of a tile, its gap included.
const WIDTH_MIN: u16 = 25;
/// Columns between two tiles.
const GAP: u16 = 1;
/// The share of a limit at which a figure raises an alarm.
const NEAR: f64 = 0.9;

/// The content of a tile.
struct Content {
    number: String,
    note: String,
    alarm: bool,
}

impl Content {
    fn new(number: String, note: String) -> Self {
        Content { number, note, alarm: false }
    }

    fn alarm(self, alarm: bool) -> Self {
        Content { alarm, ..self }
    }
}

/// A tile: its name, the value of its sparkline, and its content for the newest sample.
struct Tile {
    name: &'static str,
    spark: fn(&Sample) -> Option<f64>,
    content: fn(&Sample, &Node, &Ring) -> Content,
}

const TILES: [Tile; 12] = [
    Tile { name: "Connections", spark: |s| Some(s.connections), content: connections },
    Tile { name: "Connects", spark: |s| Some(s.figures.opened), content: connects },
    Tile { name: "Disconnects", spark: |s| Some(s.figures.closed), content: disconnects },
    Tile {
        name: "Messages in",
        spark: |s| Some(s.figures.messages_in),
        content: |s, _, _| {
            let topics = format!("{} topics", compact(s.figures.topics));
            Content::new(rate(s.figures.messages_in), topics)
        },
    },
    Tile {
        name: "Delivered",
        spark: |s| Some(s.figures.delivered),
        content: |s, _, _| {
            let fanouts = format!("{} fan-outs under way", compact(s.figures.fanouts));
            Content::new(rate(s.figures.delivered), fanouts)
        },
    },
    Tile {
        name: "Latency p99",
        spark: |s| s.latency_ms.map(|latency| latency.p99),
        content: |s, _, _| match s.latency_ms {
            Some(at) => Content::new(
                milliseconds(at.p99),
                format!("p50 {} · p90 {}", milliseconds(at.p50), milliseconds(at.p90)),
            ),
            None => Content::new(NONE.into(), "nothing delivered".into()),
        },
    },
    Tile {
        name: "Bytes out",
        spark: |s| Some(s.figures.bytes_out),
        content: |s, _, _| {
            let note = format!("in {}/s", bytes(s.figures.bytes_in));
            Content::new(format!("{}/s", bytes(s.figures.bytes_out)), note)
        },
    },
    Tile { name: "CPU", spark: |s| Some(s.figures.cpu), content: cpu },
    Tile {
        name: "User mem/conn",
        spark: Sample::user_bytes_each,
        content: |s, _, _| {
            let each = s.user_bytes_each().map_or(NONE.into(), bytes_each);
            let all = bytes(s.figures.user_bytes);
            Content::new(each, format!("{all} in total"))
        },
    },
    Tile {
        name: "Kernel mem/conn",
        spark: |s| Some(s.figures.kernel_bytes_per_connection),
        content: |s, _, _| {
            let each = bytes_each(s.figures.kernel_bytes_per_connection);
            Content::new(each, format!("{}, estimated", bytes(s.figures.kernel_bytes)))
        },
    },
    Tile { name: "Slow consumers", spark: |s| Some(s.figures.slow), content: slow },
    Tile {
        name: "Outboxes",
        spark: |s| Some(s.figures.outboxes),
        content: |s, _, _| {
            let waiting = format!("{} waiting", bytes(s.figures.outbox_bytes));
            Content::new(compact(s.figures.outboxes), waiting)
        },
    },
];

fn rate(value: f64) -> String {
    format!("{}/s", compact(value))
}

fn connections(sample: &Sample, node: &Node, _: &Ring) -> Content {
    let (held, max) = (sample.connections, node.connections_max);
    let note = match max > 0.0 {
        true => format!("{} of {}", percent(held, max), compact(max)),
        false => String::new(),
    };
    Content::new(compact(held), note).alarm(max > 0.0 && held >= max * NEAR)
}

fn connects(sample: &Sample, _: &Node, _: &Ring) -> Content {
    let rejected = sample.figures.refused;
    let note = match rejected > 0.0 {
        true => format!("{} refused", rate(rejected)),
        false => "none refused".into(),
    };
    Content::new(rate(sample.figures.opened), note).alarm(rejected > 0.0)
}

fn disconnects(sample: &Sample, _: &Node, _: &Ring) -> Content {
    Content::new(rate(sample.figures.closed), reasons(sample).unwrap_or_else(|| "none".into()))
}

/// Returns the reasons for closed connections, the most frequent first; `None` if none was closed.
pub fn reasons(sample: &Sample) -> Option<String> {
    let mut reasons: Vec<_> = sample.closed_by.iter().filter(|(_, rate)| **rate > 0.0).collect();
    reasons.sort_by(|a, b| b.1.total_cmp(a.1));
    let texts: Vec<_> =
        reasons.iter().map(|(name, rate)| format!("{} {}", words(name), compact(**rate))).collect();
    (!texts.is_empty()).then(|| texts.join(" · "))
}

fn cpu(sample: &Sample, node: &Node, _: &Ring) -> Content {
    let (used, cores) = (sample.figures.cpu, node.cores);
    let note = match cores > 0.0 {
        true => format!("{} of {cores:.0} cores", percent(used, cores)),
        false => String::new(),
    };
    Content::new(format!("{} cores", digits(used)), note).alarm(cores > 0.0 && used >= cores * NEAR)
}

fn slow(sample: &Sample, _: &Node, ring: &Ring) -> Content {
    // Samples are a second apart, so the sum of their rates is a count.
    let sum: f64 = ring.iter().map(|sample| sample.figures.slow).sum();
    let note = format!("{} in 15 min", compact(sum.round()));
    Content::new(rate(sample.figures.slow), note).alarm(sample.figures.slow > 0.0)
}

/// Returns how many tiles fit side by side in this width.
pub fn columns(width: u16) -> u16 {
    let fits = |columns: &u16| columns * WIDTH_MIN <= width;
    [6, 4, 3, 2].into_iter().find(fits).unwrap_or(1)
}

/// Draws the tiles in this many columns, and leaves out those that don't fit.
pub fn tiles(frame: &mut Frame<'_>, area: Rect, data: &Data, columns: u16) {
    let Some(newest) = data.ring.newest() else { return };
    let unknown = Node::default();
    let node = data.node.as_ref().unwrap_or(&unknown);
    let rows = (COUNT as u16).div_ceil(columns);
    let height = (area.height / rows).max(1);
    let width = area.width / columns;
    for (index, tile) in TILES.iter().enumerate() {
        let (row, column) = (index as u16 / columns, index as u16 % columns);
        let rect = Rect {
            x: area.x + column * width + 1,
            y: area.y + row * height,
            width: width.saturating_sub(GAP),
            height,
        };
        let rect = rect.intersection(area);
        if !rect.is_empty() {
            let content = (tile.content)(newest, node, &data.ring);
            draw(frame, rect, tile, &content, &data.ring);
        }
    }
}

fn draw(frame: &mut Frame<'_>, area: Rect, tile: &Tile, content: &Content, ring: &Ring) {
    let (sign, style) = if content.alarm { ("! ", ALARM) } else { ("", STRONG) };
    let number = format!("{sign}{}", content.number);
    let line = |row: u16| Rect { y: area.y + row, height: 1, ..area };
    // A low tile has its number on the line of its name.
    let head = if area.height >= HEIGHT_GOOD { 2 } else { 1 };
    if head == 2 {
        frame.render_widget(Line::raw(tile.name), line(0));
        frame.render_widget(Line::styled(number, style), line(1));
    } else {
        let number = Line::styled(number, style).right_aligned();
        let room = usize::from(area.width).saturating_sub(number.width() + 1);
        frame.render_widget(number, line(0));
        frame
            .render_widget(Line::raw(cut(tile.name, room)), Rect { width: room as u16, ..line(0) });
    }
    if area.height > head {
        frame.render_widget(Line::raw(cut(&content.note, usize::from(area.width))), line(head));
    }
    // A line stays empty, so that sparklines don't touch the name below.
    let above = head + 1;
    let free = u16::from(area.height >= 5);
    let height = area.height.saturating_sub(above + free).min(SPARK_HEIGHT_MAX);
    if height > 0 {
        // A gap separates the sparklines of neighbours.
        let width = area.width.saturating_sub(1);
        let rect = Rect { y: area.y + above, width, height, ..area };
        spark(frame, rect, ring, tile.spark);
    }
}

/// Draws a sparkline over the last minutes, from 0 to its highest value.
pub fn spark(
    frame: &mut Frame<'_>,
    area: Rect,
    ring: &Ring,
    read: impl Fn(&Sample) -> Option<f64>,
) {
    // Sparklines take whole numbers, and the node's figures have at most three decimals.
    let whole = |value: f64| (value.max(0.0) * 1e3).round() as u64;
    let columns = ring.columns(SPARK_SECONDS, area.width, read);
    let columns = columns.into_iter().map(|column| column.map(whole));
    frame.render_widget(Sparkline::default().data(columns).style(GRAPH), area);
}
