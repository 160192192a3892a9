//! The highest costs of the node: topics by deliveries and by bytes, and the connections that read most slowly.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, Wrap};

use super::{FAINT, STRONG, lists};
use crate::format::{bytes, cut, duration, grouped, plain};
use crate::sample::{Connection, Slowest};
use crate::state::Data;

/// The fewest columns in which two lists of topics stand side by side.
const SIDE_BY_SIDE: u16 = 70;

/// Draws the costliest topics, and below them the slowest connections.
pub fn costs(frame: &mut Frame<'_>, area: Rect, data: &Data, scroll: usize) {
    // Topics have at least half of the space, and the space that few slow connections leave.
    let slow = data.tops.as_ref().and_then(|tops| tops.as_ref().ok()?.slowest.as_ref());
    let rows = slow.map_or(0, |slow| slow.connections.len()).max(1) as u16;
    let below = (rows + 3).min(area.height / 2);
    let [above, below] =
        Layout::vertical([Constraint::Min(0), Constraint::Length(below)]).areas(area);
    let halves = [Constraint::Ratio(1, 2); 2];
    let layout = match area.width >= SIDE_BY_SIDE {
        true => Layout::horizontal(halves),
        false => Layout::vertical(halves),
    };
    let [left, right] = layout.areas(above);
    lists::by_deliveries(frame, left, data, scroll);
    lists::by_bytes(frame, right, data, scroll);
    slowest(frame, below, slow, scroll);
}

fn slowest(frame: &mut Frame<'_>, area: Rect, slowest: Option<&Slowest>, scroll: usize) {
    let area = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    let area = area.intersection(frame.area());
    let title = match slowest.map(|it| it.count as u64) {
        None | Some(0) => "Slowest connections".to_owned(),
        Some(1) => "Slowest connections: bytes wait for 1".to_owned(),
        Some(count) => format!("Slowest connections: bytes wait for {}", grouped(count)),
    };
    let width = usize::from(area.width.saturating_sub(2));
    let area = lists::titled(frame, area, Line::styled(cut(&title, width), STRONG));
    let connections = slowest.map(|it| &it.connections[..]).unwrap_or_default();
    if connections.is_empty() {
        let note = match slowest {
            None => "This node does not report them.",
            Some(_) => "No connection has unsent bytes.",
        };
        frame.render_widget(Paragraph::new(note).wrap(Wrap { trim: true }), area);
        return;
    }
    let shown = usize::from(area.height).saturating_sub(1);
    let first = scroll.min(connections.len().saturating_sub(shown));
    let header = Row::new(["Waiting", "For", "Transport", "Users", "Address", "Id"]);
    let is_wide = area.width >= 120;
    let widths = [
        Constraint::Length(7),
        Constraint::Length(10),
        Constraint::Length(9),
        Constraint::Fill(1),
        // IPv6 addresses need a wide screen.
        Constraint::Length(if is_wide { 47 } else { 21 }),
        Constraint::Length(17),
    ];
    let rows = connections.iter().skip(first).take(shown).map(row);
    frame.render_widget(Table::new(rows, widths).header(header.style(FAINT)), area);
}

fn row(connection: &Connection) -> Row<'static> {
    Row::new([
        bytes(connection.outbox_bytes),
        duration(connection.outbox_age_ms as u64 / 1_000),
        plain(&connection.transport),
        plain(&connection.users.join(" ")),
        plain(connection.address.as_deref().unwrap_or("–")),
        plain(&connection.id),
    ])
}
