//! The table of shards: how each spends its time, and its queues.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

use super::{STRONG, lists};
use crate::format::cut;
use crate::shards::{Column, Shard, Sort};
use crate::state::State;

/// Draws the table, or bars of the connections if the node does not have more.
pub fn shards(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let shards = &state.data().shards;
    let rows = shards.sorted(state.sort);
    if rows.is_empty() {
        return lists::shards(frame, area, &shards.connections, state.scroll);
    }
    let width = usize::from(area.width.saturating_sub(2));
    let title = format!(
        "{} · {} · s S r: sort",
        lists::shards_title(&shards.connections),
        state.sort.words()
    );
    let area = lists::titled(frame, area, Line::styled(cut(&title, width), STRONG));
    if area.height == 0 {
        return;
    }
    frame.render_widget(head(width, state.sort), Rect { height: 1, ..area });
    let body = Rect { y: area.y + 1, height: area.height - 1, ..area };
    let first = state.scroll.min(rows.len().saturating_sub(usize::from(body.height)));
    for (shard, y) in rows.iter().skip(first).zip(body.y..body.bottom()) {
        frame.render_widget(line(shard, width), Rect { y, height: 1, ..body });
    }
}

/// Returns the heads of the columns; the one by which the shards are sorted is reversed.
fn head(width: usize, sort: Sort) -> Line<'static> {
    let head = |column: Column| {
        let (name, width) = column.head();
        let space = Span::raw(" ".repeat(width.saturating_sub(name.len())));
        let is_chosen = column == sort.column;
        let style = if is_chosen { STRONG.add_modifier(Modifier::REVERSED) } else { STRONG };
        [space, Span::styled(name, style)]
    };
    Column::fitting(width).flat_map(head).collect()
}

fn line(shard: &Shard<'_>, width: usize) -> Line<'static> {
    let text = |column: Column| format!("{:>1$}", shard.text(column), column.head().1);
    Line::raw(Column::fitting(width).map(text).collect::<String>())
}
