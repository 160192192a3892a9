//! The details of one topic or user: its connections and its messages.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table, Wrap};

use super::{FAINT, STRONG};
use crate::format::{bytes, clock_utc, cut, duration, grouped, plain};
use crate::sample::{Connection, Published};
use crate::state::Data;
use crate::watch::{Details, Subject};
use model::name::BROADCAST;

/// Lines that are reserved for messages, unless a third of all is more.
const MESSAGES_HEIGHT: u16 = 8;

/// Draws the details that are known.
pub fn details(frame: &mut Frame<'_>, area: Rect, data: &Data, scroll: usize) {
    let Some((subject, found)) = &data.details else { return };
    let area = Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area };
    match found {
        None => frame.render_widget(Line::styled("Loading…", FAINT), area),
        Some(Err(error)) => {
            let text = format!("! {error}");
            frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
        }
        Some(Ok(details)) => both(frame, area, subject, details, scroll),
    }
}

fn both(frame: &mut Frame<'_>, area: Rect, subject: &Subject, details: &Details, scroll: usize) {
    let below = (details.messages.messages.len() as u16).clamp(1, area.height / 2) + 2;
    // A short list of members leaves its space to the messages.
    let members = details.members.connections.len() as u16 + 3;
    let share = MESSAGES_HEIGHT.max(area.height / 3);
    let below = below.min(share.max(area.height.saturating_sub(members)));
    let [above, below] =
        Layout::vertical([Constraint::Min(0), Constraint::Length(below)]).areas(area);
    connections(frame, above, subject, details, scroll);
    messages(frame, below, &details.messages.messages);
}

fn connections(
    frame: &mut Frame<'_>,
    area: Rect,
    subject: &Subject,
    details: &Details,
    scroll: usize,
) {
    let listed = &details.members.connections;
    let all = details.members.members.unwrap_or(listed.len() as f64) as u64;
    let is_user = subject.user().is_some();
    if subject.0 == BROADCAST {
        let note = "Broadcasts reach every connection, whatever its topics are.";
        frame.render_widget(Line::styled(note, STRONG), area);
        return;
    }
    let what = match (is_user, all) {
        (_, 1) => "1 connection".to_owned(),
        (_, all) => format!("{} connections", grouped(all)),
    };
    let mut title = format!("{what} {} {}", if is_user { "of" } else { "in" }, plain(&subject.0));
    if all > listed.len() as u64 {
        title += &format!(", {} of them listed", listed.len());
    }
    let [head, rest] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    frame.render_widget(Line::styled(cut(&title, area.width.into()), STRONG), head);
    if listed.is_empty() {
        let note = "No connections on this node.";
        frame.render_widget(Line::styled(note, FAINT), rest);
        return;
    }
    let shown = usize::from(rest.height).saturating_sub(1);
    let first = scroll.min(listed.len().saturating_sub(shown));
    let others = if is_user { "Topics" } else { "Users" };
    let header = Row::new(["Transport", others, "Age", "Sent", "Waiting", "Address", "Id"]);
    let is_wide = area.width >= 120;
    let widths = [
        Constraint::Length(9),
        Constraint::Fill(1),
        Constraint::Length(10),
        Constraint::Length(8),
        Constraint::Length(8),
        // IPv6 addresses need a wide screen.
        Constraint::Length(if is_wide { 47 } else { 21 }),
        Constraint::Length(if is_wide { 16 } else { 0 }),
    ];
    let rows = listed.iter().skip(first).take(shown).map(|connection| row(connection, is_user));
    frame.render_widget(Table::new(rows, widths).header(header.style(FAINT)), rest);
}

fn row(connection: &Connection, is_user: bool) -> Row<'static> {
    let others = if is_user { &connection.topics } else { &connection.users };
    Row::new([
        plain(&connection.transport),
        plain(&others.join(" ")),
        duration(connection.age_seconds as u64),
        bytes(connection.bytes_sent),
        bytes(connection.outbox_bytes),
        plain(connection.address.as_deref().unwrap_or("–")),
        plain(&connection.id),
    ])
}

fn messages(frame: &mut Frame<'_>, area: Rect, messages: &[Published]) {
    let Rect { width, .. } = area;
    let head = match messages.len() {
        0 => "No recent messages",
        _ => "Last messages (UTC)",
    };
    // The line above stays empty.
    for (row, y) in (area.y.saturating_add(1)..area.bottom()).enumerate() {
        let line = match row.checked_sub(1).map(|at| messages.get(at)) {
            None => Line::styled(head, STRONG),
            Some(Some(message)) => message_line(message, width.into()),
            Some(None) => break,
        };
        frame.render_widget(line, Rect { y, height: 1, ..area });
    }
}

fn message_line(message: &Published, width: usize) -> Line<'static> {
    let event =
        format!("{} {}  ", clock_utc(message.published_at), cut(&plain(&message.event), 16));
    let room = width.saturating_sub(Span::raw(&event).width());
    // The cut comes first, so that a long message does not cost a check of each of its characters.
    let data: String = message.data.get().chars().take(room).collect();
    let is_whole = data.len() == message.data.get().len();
    let data = plain(&data) + if is_whole { "" } else { "…" };
    Line::from(vec![Span::styled(event, FAINT), Span::raw(cut(&data, room))])
}
