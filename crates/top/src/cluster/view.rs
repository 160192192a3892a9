//! The user's view of the table, and the keys. It uses no clock, terminal or socket.

use admin::AdminError;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::poll::Poll;
use super::table::{Column, Sort, Table};
use crate::state::Away;

/// Lines that a key scrolls over.
const PAGE: isize = 10;

/// The state of the screen.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The name of the called node.
    pub name: String,
    /// The order of the rows.
    pub sort: Sort,
    /// How many rows the user has scrolled down.
    pub scroll: usize,
    /// True while the help is shown.
    pub help: bool,
    /// Set while the node can't be reached.
    pub away: Option<Away>,
    /// The time of the last poll, in milliseconds since 1970; 0 before the first poll.
    pub polled_ms: u64,
    table: Table,
    /// The table at the time when the user paused the screen.
    paused: Option<Table>,
}

impl View {
    /// Returns the view of a node without any data.
    pub fn new(name: &str, sort: Sort) -> Self {
        View { name: name.to_owned(), sort, ..View::default() }
    }

    /// Returns the table to show.
    pub fn table(&self) -> &Table {
        self.paused.as_ref().unwrap_or(&self.table)
    }

    /// Returns true while the screen is paused.
    pub fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Applies a poll, at this time in milliseconds since 1970.
    ///
    /// # Errors
    /// An error that makes further attempts pointless: the node rejects the key, or the first attempt failed.
    pub fn apply(&mut self, poll: Result<Poll, AdminError>, now_ms: u64) -> Result<(), AdminError> {
        match poll {
            Ok(poll) => {
                self.table.apply(poll);
                (self.away, self.polled_ms) = (None, now_ms);
            }
            Err(error) if self.polled_ms == 0 || matches!(error, AdminError::Forbidden(_)) => {
                return Err(error);
            }
            Err(error) => {
                let since_ms = self.away.as_ref().map_or(now_ms, |away| away.since_ms);
                self.away = Some(Away { since_ms, error });
            }
        }
        Ok(())
    }

    /// Handles a key. Returns true if the user quits.
    pub fn key(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return false;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return key.code == KeyCode::Char('c');
        }
        if std::mem::take(&mut self.help) {
            return key.code == KeyCode::Char('q');
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(-1),
            KeyCode::Char('r') => self.sort.is_reversed ^= true,
            KeyCode::Down => self.scroll(1),
            KeyCode::Up => self.scroll(-1),
            KeyCode::PageDown => self.scroll(PAGE),
            KeyCode::PageUp => self.scroll(-PAGE),
            KeyCode::Home => self.scroll = 0,
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('p' | ' ') => {
                self.paused = match self.paused {
                    Some(_) => None,
                    None => Some(self.table.clone()),
                }
            }
            _ => {}
        }
        false
    }

    /// Sorts by the column `by` places further.
    fn turn(&mut self, by: isize) {
        let at = Column::ALL.iter().position(|column| *column == self.sort.column).unwrap_or(0);
        let to = (at as isize + by).rem_euclid(Column::ALL.len() as isize);
        self.sort = Sort { column: Column::ALL[to as usize], is_reversed: false };
        self.scroll = 0;
    }

    fn scroll(&mut self, by: isize) {
        let rows = self.table().sorted(self.sort).len();
        self.scroll = self.scroll.saturating_add_signed(by).min(rows.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::poll;
    use super::*;

    fn press(view: &mut View, code: KeyCode) -> bool {
        view.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn order(view: &View) -> String {
        view.table().sorted(view.sort).into_iter().map(|row| row.label()).collect()
    }

    #[test]
    fn keys_choose_the_column_and_its_order() {
        let mut view = View::new("n", Sort::default());
        view.apply(Ok(poll(0.0)), 1).unwrap();
        assert_eq!(order(&view), "abc");
        press(&mut view, KeyCode::Char('r'));
        assert_eq!(order(&view), "cba");
        for (code, column) in [
            (KeyCode::BackTab, Column::Uptime),
            (KeyCode::Left, Column::Memory),
            (KeyCode::Tab, Column::Uptime),
            (KeyCode::Right, Column::Node),
        ] {
            assert!(!press(&mut view, code));
            assert_eq!(view.sort, Sort { column, is_reversed: false });
        }
        (0..5).for_each(|_| _ = press(&mut view, KeyCode::Down));
        assert_eq!(view.scroll, 2);
        press(&mut view, KeyCode::PageUp);
        assert_eq!(view.scroll, 0);
        press(&mut view, KeyCode::Char('?'));
        assert!(view.help);
        assert!(!press(&mut view, KeyCode::Esc));
        assert!(!view.help);
        assert!(press(&mut view, KeyCode::Char('q')) && press(&mut view, KeyCode::Esc));
        assert!(view.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    }

    #[test]
    fn a_paused_screen_does_not_change() {
        let mut view = View::new("n", Sort::default());
        view.apply(Ok(poll(0.0)), 1).unwrap();
        press(&mut view, KeyCode::Char('p'));
        let mut later = poll(2.0);
        later.cluster.nodes.clear();
        view.apply(Ok(later), 2).unwrap();
        assert_eq!((view.is_paused(), order(&view)), (true, "abc".into()));
        press(&mut view, KeyCode::Char('p'));
        assert_eq!((view.is_paused(), order(&view)), (false, "b".into()));
    }

    #[test]
    fn a_node_that_goes_away_is_an_error_only_at_the_first_attempt() {
        let away = || AdminError::Unreachable("nothing answers".into());
        assert_eq!(View::default().apply(Err(away()), 5), Err(away()));
        let mut view = View::default();
        view.apply(Ok(poll(0.0)), 6).unwrap();
        view.apply(Err(away()), 7).unwrap();
        view.apply(Err(away()), 8).unwrap();
        assert_eq!(view.away, Some(Away { since_ms: 7, error: away() }));
        view.apply(Ok(poll(1.0)), 9).unwrap();
        assert_eq!((&view.away, view.polled_ms), (&None, 9));
        let wrong_key = AdminError::Forbidden("not the key".into());
        assert!(view.apply(Err(wrong_key), 10).is_err());
    }
}
