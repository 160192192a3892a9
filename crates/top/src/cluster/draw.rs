//! Draws the table. Nothing depends on colour alone.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::table::{Column, Row, Sort};
use super::view::View;
use crate::draw::{ALARM, FAINT, STRONG, header_line, help_box};
use crate::format::{clock_utc, cut, duration, plain};

/// The most and the fewest columns of a terminal that a node's name takes.
const NAME_MAX: usize = 32;
const NAME_MIN: usize = 8;

/// Columns that are left out, in this order, if the terminal is too narrow.
const LEFT_OUT: [Column; 4] = [Column::Version, Column::Uptime, Column::Backlog, Column::Published];

const HELP: &[(&str, &str)] = &[
    ("Tab ← →", "sort by the next column, or by the previous one"),
    ("r", "reverse the order"),
    ("↑ ↓ PgUp PgDn", "scroll a long table"),
    ("p or space", "pause or resume the display"),
    ("q Esc Ctrl-C", "quit"),
    ("?", "this help"),
    ("", ""),
    ("*", "the node that this command calls; it reports the others"),
    ("In/s", "messages that its shards received, per second"),
    ("Out/s", "messages that it sent to connections, per second"),
    ("Publ/s", "messages that were published at it, per second"),
    ("Backlog", "bytes that wait to be sent to NATS"),
    ("!", "needs attention: the node gets no messages of other nodes"),
];

/// Draws the whole screen. The time is in milliseconds since 1970.
pub fn draw(frame: &mut Frame<'_>, view: &View, now_ms: u64) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    header(frame, head, view, now_ms);
    footer(frame, foot, view);
    if view.polled_ms == 0 {
        let text = format!("Calling {} for the nodes of its cluster…", plain(&view.name));
        return frame.render_widget(Paragraph::new(text), body);
    }
    table(frame, body, view);
    if view.help {
        help_box(frame, body, HELP);
    }
}

fn header(frame: &mut Frame<'_>, area: Rect, view: &View, now_ms: u64) {
    let table = view.table();
    let text = match view.polled_ms {
        0 => format!(" throng top · {}", plain(&view.name)),
        _ => format!(" throng top · cluster {} · {}", plain(&table.cluster), table.summary()),
    };
    let (status, style) = match (&view.away, view.is_paused()) {
        (Some(away), _) => {
            let seconds = now_ms.saturating_sub(away.since_ms) / 1_000;
            (format!("! AWAY for {} ", duration(seconds)), ALARM)
        }
        (None, true) => ("‖ PAUSED (p resumes) ".into(), STRONG),
        (None, false) if view.polled_ms > 0 => {
            (format!("● {} UTC ", clock_utc(view.polled_ms)), STRONG)
        }
        (None, false) => (String::new(), STRONG),
    };
    header_line(frame, area, &text, (status, style));
}

fn footer(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let width = usize::from(area.width);
    let line = match &view.away {
        Some(away) => {
            let since = clock_utc(away.since_ms);
            let text = format!(" ! away since {since} UTC: {}; trying again", away.error);
            Line::styled(cut(&text, width), ALARM)
        }
        None => {
            let keys = " q quit   Tab sort by   r reverse   p pause   ? help   * the called node";
            Line::styled(cut(keys, width), FAINT)
        }
    };
    frame.render_widget(line, area);
}

/// Returns the columns that fit, each with its width.
fn fitting(rows: &[&Row], width: usize) -> Vec<(Column, usize)> {
    let width_of = |column: Column| {
        let cells = rows.iter().map(|row| Span::raw(column.cell(row)).width());
        let title = column.title().len().max(Span::raw(column.sum(rows)).width());
        let most = cells.chain([title]).max().unwrap_or_default();
        if column == Column::Node { most.clamp(NAME_MIN, NAME_MAX) } else { most }
    };
    let mut columns: Vec<(Column, usize)> =
        Column::ALL.into_iter().map(|column| (column, width_of(column))).collect();
    for left_out in LEFT_OUT {
        // A space at each side, and two between columns.
        if columns.iter().map(|(_, width)| width + 2).sum::<usize>() <= width {
            break;
        }
        columns.retain(|(column, _)| *column != left_out);
    }
    columns
}

/// Returns a line of the table, as pieces of a line of the terminal.
fn line(cells: impl Iterator<Item = (Column, usize, String)>) -> Vec<(Column, String)> {
    let piece = |(column, width, text): (Column, usize, String)| {
        let text = cut(&text, width);
        let padding = " ".repeat(width.saturating_sub(Span::raw(&text).width()));
        let text = match column.is_text() {
            true => format!(" {text}{padding} "),
            false => format!(" {padding}{text} "),
        };
        (column, text)
    };
    cells.map(piece).collect()
}

fn table(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let rows = view.table().sorted(view.sort);
    let columns = fitting(&rows, usize::from(area.width));
    let of = |text: &dyn Fn(Column) -> String| {
        line(columns.iter().map(|(column, width)| (*column, *width, text(*column))))
    };
    let [head, list, sum] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(u16::from(rows.len() > 1)),
    ])
    .areas(area);
    let titles = of(&|column| column.title().into()).into_iter();
    let title = |(column, text): (Column, String)| match column == view.sort.column {
        true => Span::styled(marked(&text, view.sort), STRONG.add_modifier(Modifier::REVERSED)),
        false => Span::styled(text, STRONG),
    };
    frame.render_widget(Line::from_iter(titles.map(title)), head);
    // The rows come first, and their sum below the last of them.
    let first = view.scroll.min(rows.len().saturating_sub(usize::from(list.height)));
    for (row, y) in rows.iter().skip(first).zip(list.y..list.bottom()) {
        let text: String = of(&|column| column.cell(row)).into_iter().map(|(_, it)| it).collect();
        let line = if row.is_well() { Line::raw(text) } else { Line::styled(text, ALARM) };
        frame.render_widget(line, Rect { y, height: 1, ..list });
    }
    let text: String = of(&|column| column.sum(&rows)).into_iter().map(|(_, it)| it).collect();
    let shown = (rows.len() - first).min(usize::from(list.height));
    let sum = Rect { y: (list.y + shown as u16).min(sum.y), ..sum };
    frame.render_widget(Line::styled(text, STRONG), sum);
}

/// Marks the title of the column by which rows are sorted: an arrow replaces its free space.
fn marked(text: &str, sort: Sort) -> String {
    let arrow = if sort.is_reversed { '▴' } else { '▾' };
    match sort.column.is_text() {
        true => format!("{}{arrow}", &text[..text.len() - 1]),
        false => format!("{arrow}{}", &text[1..]),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::super::poll::Poll;
    use super::super::table::tests::poll;
    use super::*;

    fn view() -> View {
        let mut view = View::new("127.0.0.1:8001", Sort::default());
        view.apply(Ok(poll(0.0)), 1_000).unwrap();
        view.apply(Ok(poll(2.0)), 3_000).unwrap();
        view
    }

    fn picture(view: &View, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, view, 10_000)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let cells: Vec<_> = buffer.content().iter().map(ratatui::buffer::Cell::symbol).collect();
        cells.chunks(width.into()).map(|line| line.concat().trim_end().to_owned()).collect()
    }

    #[test]
    fn a_wide_terminal_shows_all_of_each_node() {
        let lines = picture(&view(), 120, 8);
        let expected = [
            " throng top · cluster throng · 3 nodes: 2 up · 1 silent",
            " Node    ▾ State             Version  ▾Conns  In/s",
        ];
        assert!(
            lines[0].starts_with(expected[0]) && lines[0].ends_with("● 00:00:03 UTC"),
            "{lines:#?}"
        );
        for (line, wanted) in [
            (
                1,
                [
                    "Node", "State", "Version", "Conns", "In/s", "Out/s", "Publ/s", "Backlog",
                    "Memory", "Uptime",
                ],
            ),
            (2, ["a", "up", "0.2.0", "1,000", "10", "20 k", "5", "0 B", "50 MB", "1 min 42 s"]),
            (
                3,
                [
                    "b *",
                    "up",
                    "0.2.0",
                    "2,000",
                    "20",
                    "40 k",
                    "10",
                    "2.05 KB",
                    "100 MB",
                    "1 min 42 s",
                ],
            ),
            (4, ["c", "! silent 1 min 5 s", "0.2.0", "7", "–", "–", "–", "–", "–", "–"]),
            (5, ["all 3", "", "", "3,007", "30", "60 k", "15", "2.05 KB", "150 MB", ""]),
        ] {
            for text in wanted {
                assert!(lines[line].contains(text), "{text:?} in {:?}", lines[line]);
            }
        }
        assert!(lines[7].contains("Tab sort by"), "{lines:#?}");
    }

    #[test]
    fn a_narrow_terminal_leaves_columns_out_and_a_low_one_scrolls() {
        let mut view = view();
        let lines = picture(&view, 80, 8);
        assert!(!lines[1].contains("Version") && lines[1].contains("Publ/s"), "{lines:#?}");
        assert!(lines.iter().all(|line| line.chars().count() <= 80));
        let lines = picture(&view, 40, 5);
        assert!(lines[1].contains("Node") && lines[4].contains("q quit"), "{lines:#?}");
        assert!(lines[2].contains(" a ") && lines[3].contains("all 3"), "{lines:#?}");
        view.key(KeyEvent::new(KeyCode::End, KeyModifiers::NONE));
        (0..9).for_each(|_| _ = view.key(KeyEvent::new(KeyCode::Down, KeyModifiers::NONE)));
        assert!(picture(&view, 80, 5)[2].contains(" c "));
        for size in [(1, 1), (3, 2), (20, 3)] {
            picture(&view, size.0, size.1);
        }
    }

    #[test]
    fn the_column_of_the_order_is_marked() {
        let mut view = view();
        let mark = |view: &View| picture(view, 120, 8)[1].clone();
        assert!(mark(&view).contains('▾'));
        view.key(KeyEvent::new(KeyCode::Char('r'), KeyModifiers::NONE));
        assert!(mark(&view).contains('▴'));
        (0..3).for_each(|_| _ = view.key(KeyEvent::new(KeyCode::Tab, KeyModifiers::NONE)));
        assert!(
            mark(&view).contains("▾Conns") || mark(&view).contains("▾ Conns"),
            "{}",
            mark(&view)
        );
    }

    #[test]
    fn what_stands_in_the_way_is_shown() {
        let mut view = View::new("n", Sort::default());
        assert!(picture(&view, 80, 8)[1].contains("Calling n"));
        let mut odd = poll(0.0);
        odd.cluster.nodes[0].name = "\u{1b}[31m".into();
        view.apply(Ok(odd), 1_000).unwrap();
        assert!(!picture(&view, 80, 8).concat().contains('\u{1b}'));
        let error = admin::AdminError::Unreachable("nothing answers".into());
        view.apply(Err(error), 4_000).unwrap();
        let lines = picture(&view, 80, 8);
        assert!(lines[0].ends_with("! AWAY for 6 s") && lines[7].contains("nothing answers"));
        view.help = true;
        assert!(picture(&view, 80, 24).concat().contains("bytes that wait to be sent to NATS"));
        view.apply(Ok(Poll::default()), 5_000).unwrap();
    }
}
