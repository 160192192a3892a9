//! The headline figures, each with its last minutes.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::Sparkline;

use super::{ALARM, GRAPH, SPARK_SECONDS, STRONG};
use crate::format::{NONE, bytes, bytes_each, compact, cut, digits, milliseconds, percent, words};
use crate::sample::{Node, Ring, Sample};
use crate::state::Data;

/// How many there are.
pub const COUNT: usize = TILES.len();
/// Lines of a tile whose spark can be read: name, number, note, two of spark, and one of room.
pub const HEIGHT_GOOD: u16 = 6;
/// Lines of a tile above which lists have more use of them.
pub const HEIGHT_MAX: u16 = 8;
/// Lines that a spark takes at most.
const SPARK_HEIGHT_MAX: u16 = 5;
/// Columns of a tile, its gap included.
const WIDTH_MIN: u16 = 25;
/// Columns between two tiles.
const GAP: u16 = 1;
/// From this share of a limit on, a figure is near it.
const NEAR: f64 = 0.9;

/// What a tile says.
struct Said {
    number: String,
    note: String,
    alarm: bool,
}

impl Said {
    fn new(number: String, note: String) -> Self {
        Said { number, note, alarm: false }
    }

    fn alarm(self, alarm: bool) -> Self {
        Said { alarm, ..self }
    }
}

/// A tile: its name, what its spark shows, and what it says of the newest sample.
struct Tile {
    name: &'static str,
    spark: fn(&Sample) -> Option<f64>,
    say: fn(&Sample, &Node, &Ring) -> Said,
}

const TILES: [Tile; 12] = [
    Tile { name: "Connections", spark: |s| Some(s.connections), say: connections },
    Tile { name: "Connects", spark: |s| Some(s.figures.opened), say: connects },
    Tile { name: "Disconnects", spark: |s| Some(s.figures.closed), say: disconnects },
    Tile {
        name: "Messages in",
        spark: |s| Some(s.figures.messages_in),
        say: |s, _, _| {
            let topics = format!("{} topics", compact(s.figures.topics));
            Said::new(rate(s.figures.messages_in), topics)
        },
    },
    Tile {
        name: "Delivered",
        spark: |s| Some(s.figures.delivered),
        say: |s, _, _| {
            let fanouts = format!("{} fan-outs under way", compact(s.figures.fanouts));
            Said::new(rate(s.figures.delivered), fanouts)
        },
    },
    Tile {
        name: "Latency p99",
        spark: |s| s.latency_ms.map(|latency| latency.p99),
        say: |s, _, _| match s.latency_ms {
            Some(at) => Said::new(
                milliseconds(at.p99),
                format!("p50 {} · p90 {}", milliseconds(at.p50), milliseconds(at.p90)),
            ),
            None => Said::new(NONE.into(), "nothing delivered".into()),
        },
    },
    Tile {
        name: "Bytes out",
        spark: |s| Some(s.figures.bytes_out),
        say: |s, _, _| {
            let note = format!("in {}/s", bytes(s.figures.bytes_in));
            Said::new(format!("{}/s", bytes(s.figures.bytes_out)), note)
        },
    },
    Tile { name: "CPU", spark: |s| Some(s.figures.cpu), say: cpu },
    Tile {
        name: "User mem/conn",
        spark: Sample::user_bytes_each,
        say: |s, _, _| {
            let each = s.user_bytes_each().map_or(NONE.into(), bytes_each);
            let all = bytes(s.figures.user_bytes);
            Said::new(each, format!("{all} in all"))
        },
    },
    Tile {
        name: "Kernel mem/conn",
        spark: |s| Some(s.figures.kernel_bytes_per_connection),
        say: |s, _, _| {
            let each = bytes_each(s.figures.kernel_bytes_per_connection);
            Said::new(each, format!("{}, estimated", bytes(s.figures.kernel_bytes)))
        },
    },
    Tile { name: "Slow consumers", spark: |s| Some(s.figures.slow), say: slow },
    Tile {
        name: "Outboxes",
        spark: |s| Some(s.figures.outboxes),
        say: |s, _, _| {
            let waiting = format!("{} waiting", bytes(s.figures.outbox_bytes));
            Said::new(compact(s.figures.outboxes), waiting)
        },
    },
];

fn rate(value: f64) -> String {
    format!("{}/s", compact(value))
}

fn connections(sample: &Sample, node: &Node, _: &Ring) -> Said {
    let (held, max) = (sample.connections, node.connections_max);
    let note = match max > 0.0 {
        true => format!("{} of {}", percent(held, max), compact(max)),
        false => String::new(),
    };
    Said::new(compact(held), note).alarm(max > 0.0 && held >= max * NEAR)
}

fn connects(sample: &Sample, _: &Node, _: &Ring) -> Said {
    let refused = sample.figures.refused;
    let note = match refused > 0.0 {
        true => format!("{} refused", rate(refused)),
        false => "none refused".into(),
    };
    Said::new(rate(sample.figures.opened), note).alarm(refused > 0.0)
}

fn disconnects(sample: &Sample, _: &Node, _: &Ring) -> Said {
    Said::new(rate(sample.figures.closed), reasons(sample).unwrap_or_else(|| "none".into()))
}

/// Why connections were closed, the most frequent reason first; none when there were none.
pub fn reasons(sample: &Sample) -> Option<String> {
    let mut reasons: Vec<_> = sample.closed_by.iter().filter(|(_, rate)| **rate > 0.0).collect();
    reasons.sort_by(|a, b| b.1.total_cmp(a.1));
    let texts: Vec<_> =
        reasons.iter().map(|(name, rate)| format!("{} {}", words(name), compact(**rate))).collect();
    (!texts.is_empty()).then(|| texts.join(" · "))
}

fn cpu(sample: &Sample, node: &Node, _: &Ring) -> Said {
    let (used, cores) = (sample.figures.cpu, node.cores);
    let note = match cores > 0.0 {
        true => format!("{} of {cores:.0} cores", percent(used, cores)),
        false => String::new(),
    };
    Said::new(format!("{} cores", digits(used)), note).alarm(cores > 0.0 && used >= cores * NEAR)
}

fn slow(sample: &Sample, _: &Node, ring: &Ring) -> Said {
    // Samples are a second apart, so their rates are numbers.
    let sum: f64 = ring.iter().map(|sample| sample.figures.slow).sum();
    let note = format!("{} in 15 min", compact(sum.round()));
    Said::new(rate(sample.figures.slow), note).alarm(sample.figures.slow > 0.0)
}

/// Tiles side by side in this width.
pub fn columns(width: u16) -> u16 {
    let fits = |columns: &u16| columns * WIDTH_MIN <= width;
    [6, 4, 3, 2].into_iter().find(fits).unwrap_or(1)
}

/// Draws them all, in so many columns; those that have no room are left out.
pub fn tiles(frame: &mut Frame<'_>, area: Rect, data: &Data, columns: u16) {
    let Some(newest) = data.ring.newest() else { return };
    let unknown = Node::default();
    let node = data.node.as_ref().unwrap_or(&unknown);
    let rows = (COUNT as u16).div_ceil(columns);
    let height = (area.height / rows).max(1);
    let width = area.width / columns;
    for (index, tile) in TILES.iter().enumerate() {
        let (row, column) = (index as u16 / columns, index as u16 % columns);
        let place = Rect {
            x: area.x + column * width + 1,
            y: area.y + row * height,
            width: width.saturating_sub(GAP),
            height,
        };
        let place = place.intersection(area);
        if !place.is_empty() {
            let said = (tile.say)(newest, node, &data.ring);
            draw(frame, place, tile, &said, &data.ring);
        }
    }
}

fn draw(frame: &mut Frame<'_>, area: Rect, tile: &Tile, said: &Said, ring: &Ring) {
    let (sign, style) = if said.alarm { ("! ", ALARM) } else { ("", STRONG) };
    let number = format!("{sign}{}", said.number);
    let line = |row: u16| Rect { y: area.y + row, height: 1, ..area };
    // With little room the number stands on the name's line.
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
        frame.render_widget(Line::raw(cut(&said.note, usize::from(area.width))), line(head));
    }
    // A line stays free, so that sparks don't touch the name below.
    let above = head + 1;
    let free = u16::from(area.height >= 5);
    let height = area.height.saturating_sub(above + free).min(SPARK_HEIGHT_MAX);
    if height > 0 {
        // Sparks of neighbours would run together where notes don't.
        let width = area.width.saturating_sub(1);
        let place = Rect { y: area.y + above, width, height, ..area };
        spark(frame, place, ring, tile.spark);
    }
}

/// A line of columns from 0 to their highest, over the last minutes.
pub fn spark(
    frame: &mut Frame<'_>,
    area: Rect,
    ring: &Ring,
    read: impl Fn(&Sample) -> Option<f64>,
) {
    // Sparks are whole numbers; a thousandth is the least that the node tells.
    let whole = |value: f64| (value.max(0.0) * 1e3).round() as u64;
    let columns = ring.columns(SPARK_SECONDS, area.width, read);
    let columns = columns.into_iter().map(|column| column.map(whole));
    frame.render_widget(Sparkline::default().data(columns).style(GRAPH), area);
}
