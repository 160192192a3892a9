//! The state of the screen: the node's known figures, and which of them the user views. It uses no
//! clock, terminal or socket; its methods apply updates and keys.

use admin::AdminError;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::sample::{KernelReport, Node, Ring, Sample, Tops};
use crate::shards::{Shards, Sort};
use crate::watch::{Details, Subject, Update};

/// The limit on the bytes of a name that the user types.
const TYPED_BYTES_MAX: usize = 512;
/// Lines that a key scrolls over.
const PAGE: isize = 10;

/// A view of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// Tiles, and lists if the screen has space.
    #[default]
    Overview,
    /// Connections by transport.
    Transports,
    /// Connections by shard, with its time and its queues.
    Shards,
    /// The biggest and the busiest topics.
    Topics,
    /// The topics that cost most, and the slowest connections.
    Costs,
    /// The kernel of the node's host.
    Kernel,
    /// The details of one topic or user.
    Details,
}

impl View {
    /// The views that always exist, in order.
    pub const ALWAYS: [View; 6] =
        [View::Overview, View::Transports, View::Shards, View::Topics, View::Costs, View::Kernel];
}

/// The known data of the node.
#[derive(Clone, Debug, Default)]
pub struct Data {
    /// The node itself; `None` before the first response.
    pub node: Option<Node>,
    /// Its last 15 minutes.
    pub ring: Ring,
    /// The shards.
    pub shards: Shards,
    /// The top topics; `None` before the first response.
    pub tops: Option<Result<Tops, AdminError>>,
    /// The topic or user that the user inspects, and its details once they are known.
    pub details: Option<(Subject, Option<Result<Details, AdminError>>)>,
}

/// The node can't be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Away {
    /// When it became unreachable, in milliseconds since 1970.
    pub since_ms: u64,
    /// The error of the last attempt.
    pub error: AdminError,
}

/// An action for the screen's loop, after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// No action.
    Nothing,
    /// Quit.
    Quit,
    /// Poll the details of this topic or user from now on, or of none.
    Inspect(Option<Subject>),
}

/// The state of the screen.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The node's name.
    pub name: String,
    /// The view.
    pub view: View,
    /// Set while the node can't be reached.
    pub away: Option<Away>,
    /// The name of a topic or user that the user is typing.
    pub typed: Option<String>,
    /// True while the help is shown.
    pub help: bool,
    /// How many lines the user has scrolled down.
    pub scroll: usize,
    /// The order of the shards.
    pub sort: Sort,
    data: Data,
    /// The data at the time when the user paused the screen.
    paused: Option<Box<Data>>,
}

impl State {
    /// Returns the state for a node without any data.
    pub fn new(name: &str) -> Self {
        State { name: name.to_owned(), ..State::default() }
    }

    /// Returns the data to show.
    pub fn data(&self) -> &Data {
        self.paused.as_deref().unwrap_or(&self.data)
    }

    /// Returns the kernel's report, if it is known.
    pub fn kernel(&self) -> Option<&KernelReport> {
        self.data().tops.as_ref()?.as_ref().ok()?.kernel.as_deref()
    }

    /// Returns true while the screen is paused.
    pub fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Applies an update from the node, at this time in milliseconds since 1970.
    ///
    /// # Errors
    /// An error that makes further attempts pointless: the node rejects the key, or the first attempt
    /// failed.
    pub fn apply(&mut self, update: Update, now_ms: u64) -> Result<(), AdminError> {
        match update {
            Update::History(history) => {
                self.data.node = Some(history.node);
                self.data.ring.extend(history.samples);
            }
            Update::Sample(sample) => {
                self.away = None;
                // A reload may change the limit.
                if let (Some(node), Some(max)) = (&mut self.data.node, sample.connections_max) {
                    node.connections_max = max;
                }
                self.data.shards =
                    Shards { connections: sample.shards.clone(), columns: sample.by_shard.clone() };
                self.data.ring.push(Sample { by_shard: None, ..*sample });
            }
            Update::Away(error) => {
                if self.data.node.is_none() || matches!(error, AdminError::Forbidden(_)) {
                    return Err(error);
                }
                let since_ms = self.away.as_ref().map_or(now_ms, |away| away.since_ms);
                self.away = Some(Away { since_ms, error });
            }
            Update::Tops(tops) => self.data.tops = Some(tops),
            Update::Details(subject, found) => {
                // The user may inspect another topic by now; then the response is ignored.
                if let Some((current, details)) = &mut self.data.details
                    && *current == subject
                {
                    *details = Some(found);
                }
            }
        }
        Ok(())
    }

    /// Handles a key.
    pub fn key(&mut self, key: KeyEvent) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::Nothing;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && key.code == KeyCode::Char('c') {
            return Action::Quit;
        }
        if self.typed.is_some() {
            return self.type_key(key.code, control);
        }
        if self.help {
            self.help = false;
            return if key.code == KeyCode::Char('q') { Action::Quit } else { Action::Nothing };
        }
        if control {
            return Action::Nothing;
        }
        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Esc if self.view == View::Details => return self.leave(),
            KeyCode::Esc => return Action::Quit,
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(-1),
            KeyCode::Down => self.scroll(1),
            KeyCode::Up => self.scroll(-1),
            KeyCode::PageDown => self.scroll(PAGE),
            KeyCode::PageUp => self.scroll(-PAGE),
            KeyCode::Home => self.scroll = 0,
            KeyCode::Char('c') => {
                self.view = View::Costs;
                self.scroll = 0;
            }
            KeyCode::Char('t' | '/') => self.typed = Some(String::new()),
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('s') if self.view == View::Shards => self.sort.turn(1),
            KeyCode::Char('S') if self.view == View::Shards => self.sort.turn(-1),
            KeyCode::Char('r') if self.view == View::Shards => self.sort.is_reversed ^= true,
            KeyCode::Char('p' | ' ') => {
                self.paused = match self.paused {
                    Some(_) => None,
                    None => Some(Box::new(self.data.clone())),
                }
            }
            _ => {}
        }
        Action::Nothing
    }

    /// Returns the views that the user can choose.
    pub fn views(&self) -> Vec<View> {
        let details = self.data.details.is_some().then_some(View::Details);
        View::ALWAYS.into_iter().chain(details).collect()
    }

    fn scroll(&mut self, by: isize) {
        let data = self.data();
        let lines = match (self.view, &data.tops, &data.details) {
            (View::Shards, _, _) => data.shards.connections.len(),
            (View::Topics, Some(Ok(tops)), _) => {
                tops.biggest.len().max(tops.busiest.len()).max(tops.noisiest.len())
            }
            (View::Costs, Some(Ok(tops)), _) => {
                let slowest = tops.slowest.as_ref().map_or(0, |it| it.connections.len());
                tops.by_deliveries.len().max(tops.by_bytes.len()).max(slowest)
            }
            (View::Kernel, Some(Ok(tops)), _) => tops.kernel.as_deref().map_or(0, kernel_lines),
            (View::Details, _, Some((_, Some(Ok(details))))) => details.members.connections.len(),
            _ => 0,
        };
        self.scroll = self.scroll.saturating_add_signed(by).min(lines.saturating_sub(1));
    }

    fn turn(&mut self, by: isize) {
        let views = self.views();
        let at = views.iter().position(|view| *view == self.view).unwrap_or(0);
        let to = (at as isize + by).rem_euclid(views.len() as isize);
        self.view = views[to as usize];
        self.scroll = 0;
    }

    fn leave(&mut self) -> Action {
        self.view = View::Overview;
        self.scroll = 0;
        self.data.details = None;
        Action::Inspect(None)
    }

    fn type_key(&mut self, code: KeyCode, control: bool) -> Action {
        let Some(typed) = &mut self.typed else { return Action::Nothing };
        match code {
            KeyCode::Esc => self.typed = None,
            KeyCode::Backspace => drop(typed.pop()),
            KeyCode::Char('u') if control => typed.clear(),
            KeyCode::Char(c) if !control && typed.len() + c.len_utf8() <= TYPED_BYTES_MAX => {
                typed.push(c);
            }
            KeyCode::Enter => {
                let name = self.typed.take().unwrap_or_default().trim().to_owned();
                if !name.is_empty() && name != "@" {
                    return self.inspect(Subject(name));
                }
            }
            _ => {}
        }
        Action::Nothing
    }

    fn inspect(&mut self, subject: Subject) -> Action {
        // A paused screen would not show the new details.
        self.paused = None;
        self.data.details = Some((subject.clone(), None));
        self.view = View::Details;
        self.scroll = 0;
        Action::Inspect(Some(subject))
    }
}

/// The lines of the kernel's view: up to four for a finding on a narrow screen, and one for each value.
fn kernel_lines(report: &KernelReport) -> usize {
    4 * report.findings.len() + 12
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shards::Column;

    fn press(state: &mut State, code: KeyCode) -> Action {
        state.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn write(state: &mut State, text: &str) {
        text.chars().for_each(|c| assert_eq!(press(state, KeyCode::Char(c)), Action::Nothing));
    }

    fn sample(seconds: u64) -> Update {
        Update::Sample(Box::new(Sample { at: seconds * 1_000, ..Sample::default() }))
    }

    fn newest(state: &State) -> u64 {
        state.data().ring.newest().map_or(0, |sample| sample.at / 1_000)
    }

    #[test]
    fn keys_switch_between_views() {
        let mut state = State::new("n");
        let mut seen = Vec::new();
        let tabs = [KeyCode::Tab; 4];
        for code in [&[KeyCode::Tab, KeyCode::Right], &tabs[..], &[KeyCode::BackTab]].concat() {
            assert_eq!(press(&mut state, code), Action::Nothing);
            seen.push(state.view);
        }
        use View::*;
        assert_eq!(seen, [Transports, Shards, Topics, Costs, Kernel, Overview, Kernel]);
        press(&mut state, KeyCode::Char('c'));
        assert_eq!(state.view, Costs);
        assert_eq!(press(&mut state, KeyCode::Char('q')), Action::Quit);
        assert_eq!(press(&mut state, KeyCode::Esc), Action::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(state.key(interrupt), Action::Quit);
        press(&mut state, KeyCode::Char('?'));
        assert!(state.help);
        assert_eq!(press(&mut state, KeyCode::Esc), Action::Nothing);
        assert!(!state.help);
    }

    #[test]
    fn shards_are_sorted_in_their_view_only() {
        let mut state = State::new("n");
        press(&mut state, KeyCode::Char('s'));
        assert_eq!(state.sort, Sort::default());
        state.view = View::Shards;
        press(&mut state, KeyCode::Char('s'));
        press(&mut state, KeyCode::Char('r'));
        assert_eq!(state.sort, Sort { column: Column::Connections, is_reversed: true });
        press(&mut state, KeyCode::Char('S'));
        assert_eq!(state.sort, Sort::default());
    }

    #[test]
    fn a_typed_name_shows_its_details() {
        let mut state = State::new("n");
        press(&mut state, KeyCode::Char('t'));
        write(&mut state, "@alicq");
        press(&mut state, KeyCode::Backspace);
        write(&mut state, "e");
        let alice = Subject("@alice".into());
        assert_eq!(alice.user(), Some("alice"));
        assert_eq!(press(&mut state, KeyCode::Enter), Action::Inspect(Some(alice.clone())));
        assert_eq!((state.view, state.views().len()), (View::Details, 7));
        // A late response for another topic is ignored.
        state.apply(Update::Details(Subject("x".into()), Ok(Details::default())), 0).unwrap();
        assert!(matches!(&state.data().details, Some((_, None))));
        state.apply(Update::Details(alice, Ok(Details::default())), 0).unwrap();
        assert!(matches!(&state.data().details, Some((_, Some(Ok(_))))));
        assert_eq!(press(&mut state, KeyCode::Esc), Action::Inspect(None));
        assert_eq!((state.view, state.views().len()), (View::Overview, 6));
        // Escape and an empty name cause no action.
        for end in [KeyCode::Esc, KeyCode::Enter] {
            press(&mut state, KeyCode::Char('t'));
            assert_eq!(press(&mut state, end), Action::Nothing);
            assert_eq!(state.typed, None);
        }
    }

    #[test]
    fn a_sample_updates_the_limit_on_connections() {
        let mut state = State::new("n");
        state.apply(Update::History(Box::default()), 0).unwrap();
        let max = |state: &State| state.data().node.as_ref().map(|node| node.connections_max);
        let sample = Sample { connections_max: Some(7.0), ..Sample::default() };
        state.apply(Update::Sample(Box::new(sample)), 0).unwrap();
        state.apply(Update::Sample(Box::default()), 0).unwrap();
        assert_eq!(max(&state), Some(7.0));
    }

    #[test]
    fn a_paused_screen_does_not_change() {
        let mut state = State::new("n");
        state.apply(sample(1), 0).unwrap();
        press(&mut state, KeyCode::Char('p'));
        state.apply(sample(2), 0).unwrap();
        assert_eq!((state.is_paused(), newest(&state)), (true, 1));
        press(&mut state, KeyCode::Char('p'));
        assert_eq!((state.is_paused(), newest(&state)), (false, 2));
    }

    #[test]
    fn an_unreachable_node_is_an_error_only_at_the_first_attempt() {
        let error = || AdminError::Unreachable("nothing answers".into());
        let mut state = State::new("n");
        assert_eq!(state.apply(Update::Away(error()), 5), Err(error()));
        state.apply(Update::History(Box::default()), 6).unwrap();
        state.apply(sample(1), 6).unwrap();
        state.apply(Update::Away(error()), 7).unwrap();
        let other = AdminError::NotThrong("a proxy's page".into());
        state.apply(Update::Away(other.clone()), 8).unwrap();
        assert_eq!(state.away, Some(Away { since_ms: 7, error: other }));
        state.apply(sample(2), 9).unwrap();
        assert_eq!(state.away, None);
        let wrong_key = AdminError::Forbidden("not the key".into());
        assert!(state.apply(Update::Away(wrong_key), 10).is_err());
    }
}
