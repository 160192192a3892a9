//! What is shown: the node's figures as far as they are known, and which of them are looked at.
//! No clock, no terminal and no socket: all that happens is told to it.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::admin::Trouble;
use crate::sample::{Node, Ring, Tops};
use crate::watch::{Look, News, Subject};

/// Bytes of a name that can be typed.
const TYPED_BYTES_MAX: usize = 512;
/// Lines that a key scrolls over.
const PAGE: isize = 10;

/// A way to look at the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// Tiles, and what else there is room for.
    #[default]
    Overview,
    /// Connections by transport.
    Transports,
    /// Connections by shard.
    Shards,
    /// The biggest and the busiest topics.
    Topics,
    /// One topic or user.
    Look,
}

impl View {
    /// Those that are always there, in their order.
    pub const ALWAYS: [View; 4] = [View::Overview, View::Transports, View::Shards, View::Topics];
}

/// What is known of the node.
#[derive(Clone, Debug, Default)]
pub struct Data {
    /// What it says of itself; none before the first answer.
    pub node: Option<Node>,
    /// Its last 15 minutes.
    pub ring: Ring,
    /// Connections by shard.
    pub shards: Vec<f64>,
    /// The topics on top; none before the first answer.
    pub tops: Option<Result<Tops, Trouble>>,
    /// The topic or user that is looked at, and what is known of it.
    pub look: Option<(Subject, Option<Result<Look, Trouble>>)>,
}

/// That the node can't be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Away {
    /// Since when, in milliseconds since 1970.
    pub since_ms: u64,
    /// Why, as of the last try.
    pub trouble: Trouble,
}

/// What the one at the keyboard wants done outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing.
    Nothing,
    /// The end.
    Quit,
    /// Ask about this topic or user from now on, or about none.
    Look(Option<Subject>),
}

/// What is shown, and how.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The node's name.
    pub name: String,
    /// The view.
    pub view: View,
    /// Set while the node can't be reached.
    pub away: Option<Away>,
    /// What is being typed: a topic or a user.
    pub typed: Option<String>,
    /// Whether the keys are explained.
    pub help: bool,
    /// Lines of a list that are scrolled over.
    pub scroll: usize,
    data: Data,
    /// The figures as they were when the picture was stopped.
    stopped: Option<Box<Data>>,
}

impl State {
    /// Of a node about which nothing is known yet.
    pub fn new(name: &str) -> Self {
        State { name: name.to_owned(), ..State::default() }
    }

    /// What is to be shown.
    pub fn data(&self) -> &Data {
        self.stopped.as_deref().unwrap_or(&self.data)
    }

    /// True while the picture stands still.
    pub fn is_paused(&self) -> bool {
        self.stopped.is_some()
    }

    /// Takes what came from the node, at this time in milliseconds since 1970.
    ///
    /// # Errors
    /// What makes it senseless to go on: the node refuses the key, or what answers at the first try
    /// can't be watched.
    pub fn take(&mut self, news: News, now_ms: u64) -> Result<(), Trouble> {
        match news {
            News::Past(past) => {
                self.data.node = Some(past.node);
                self.data.ring.extend(past.samples);
            }
            News::Sample(sample) => {
                self.away = None;
                // A reload may change it.
                if let (Some(node), Some(max)) = (&mut self.data.node, sample.connections_max) {
                    node.connections_max = max;
                }
                self.data.shards.clone_from(&sample.shards);
                self.data.ring.push(*sample);
            }
            News::Away(trouble) => {
                if self.data.node.is_none() || matches!(trouble, Trouble::Forbidden(_)) {
                    return Err(trouble);
                }
                let since_ms = self.away.as_ref().map_or(now_ms, |away| away.since_ms);
                self.away = Some(Away { since_ms, trouble });
            }
            News::Tops(tops) => self.data.tops = Some(tops),
            News::Look(subject, found) => {
                // An answer to what is no longer asked is passed over.
                if let Some((wanted, look)) = &mut self.data.look
                    && *wanted == subject
                {
                    *look = Some(found);
                }
            }
        }
        Ok(())
    }

    /// Takes a key.
    pub fn key(&mut self, key: KeyEvent) -> Wish {
        if key.kind == KeyEventKind::Release {
            return Wish::Nothing;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && key.code == KeyCode::Char('c') {
            return Wish::Quit;
        }
        if self.typed.is_some() {
            return self.type_key(key.code, control);
        }
        if self.help {
            self.help = false;
            return if key.code == KeyCode::Char('q') { Wish::Quit } else { Wish::Nothing };
        }
        if control {
            return Wish::Nothing;
        }
        match key.code {
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Esc if self.view == View::Look => return self.leave(),
            KeyCode::Esc => return Wish::Quit,
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(-1),
            KeyCode::Down => self.scroll(1),
            KeyCode::Up => self.scroll(-1),
            KeyCode::PageDown => self.scroll(PAGE),
            KeyCode::PageUp => self.scroll(-PAGE),
            KeyCode::Home => self.scroll = 0,
            KeyCode::Char('t' | '/') => self.typed = Some(String::new()),
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('p' | ' ') => {
                self.stopped = match self.stopped {
                    Some(_) => None,
                    None => Some(Box::new(self.data.clone())),
                }
            }
            _ => {}
        }
        Wish::Nothing
    }

    /// The views that can be turned to.
    pub fn views(&self) -> Vec<View> {
        let look = self.data.look.is_some().then_some(View::Look);
        View::ALWAYS.into_iter().chain(look).collect()
    }

    fn scroll(&mut self, by: isize) {
        let data = self.data();
        let lines = match (self.view, &data.tops, &data.look) {
            (View::Shards, _, _) => data.shards.len(),
            (View::Topics, Some(Ok(tops)), _) => tops.biggest.len().max(tops.busiest.len()),
            (View::Look, _, Some((_, Some(Ok(look))))) => look.members.connections.len(),
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

    fn leave(&mut self) -> Wish {
        self.view = View::Overview;
        self.scroll = 0;
        self.data.look = None;
        Wish::Look(None)
    }

    fn type_key(&mut self, code: KeyCode, control: bool) -> Wish {
        let Some(typed) = &mut self.typed else { return Wish::Nothing };
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
                    return self.look(Subject(name));
                }
            }
            _ => {}
        }
        Wish::Nothing
    }

    fn look(&mut self, subject: Subject) -> Wish {
        // Who asks for something else wants to see it: a picture that stands still would not.
        self.stopped = None;
        self.data.look = Some((subject.clone(), None));
        self.view = View::Look;
        self.scroll = 0;
        Wish::Look(Some(subject))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    fn press(state: &mut State, code: KeyCode) -> Wish {
        state.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn write(state: &mut State, text: &str) {
        text.chars().for_each(|c| assert_eq!(press(state, KeyCode::Char(c)), Wish::Nothing));
    }

    fn sample(seconds: u64) -> News {
        News::Sample(Box::new(Sample { at: seconds * 1_000, ..Sample::default() }))
    }

    fn newest(state: &State) -> u64 {
        state.data().ring.newest().map_or(0, |sample| sample.at / 1_000)
    }

    #[test]
    fn keys_turn_the_views() {
        let mut state = State::new("n");
        let mut seen = Vec::new();
        for code in [KeyCode::Tab, KeyCode::Right, KeyCode::Tab, KeyCode::Tab, KeyCode::BackTab] {
            assert_eq!(press(&mut state, code), Wish::Nothing);
            seen.push(state.view);
        }
        use View::*;
        assert_eq!(seen, [Transports, Shards, Topics, Overview, Topics]);
        assert_eq!(press(&mut state, KeyCode::Char('q')), Wish::Quit);
        assert_eq!(press(&mut state, KeyCode::Esc), Wish::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(state.key(interrupt), Wish::Quit);
        press(&mut state, KeyCode::Char('?'));
        assert!(state.help);
        assert_eq!(press(&mut state, KeyCode::Esc), Wish::Nothing);
        assert!(!state.help);
    }

    #[test]
    fn a_name_is_typed_and_looked_at() {
        let mut state = State::new("n");
        press(&mut state, KeyCode::Char('t'));
        write(&mut state, "@alicq");
        press(&mut state, KeyCode::Backspace);
        write(&mut state, "e");
        let alice = Subject("@alice".into());
        assert_eq!(alice.user(), Some("alice"));
        assert_eq!(press(&mut state, KeyCode::Enter), Wish::Look(Some(alice.clone())));
        assert_eq!((state.view, state.views().len()), (View::Look, 5));
        // What was asked before comes late.
        state.take(News::Look(Subject("x".into()), Ok(Look::default())), 0).unwrap();
        assert!(matches!(&state.data().look, Some((_, None))));
        state.take(News::Look(alice, Ok(Look::default())), 0).unwrap();
        assert!(matches!(&state.data().look, Some((_, Some(Ok(_))))));
        assert_eq!(press(&mut state, KeyCode::Esc), Wish::Look(None));
        assert_eq!((state.view, state.views().len()), (View::Overview, 4));
        // Escape and an empty name ask nothing.
        for end in [KeyCode::Esc, KeyCode::Enter] {
            press(&mut state, KeyCode::Char('t'));
            assert_eq!(press(&mut state, end), Wish::Nothing);
            assert_eq!(state.typed, None);
        }
    }

    #[test]
    fn a_limit_that_was_changed_is_known() {
        let mut state = State::new("n");
        state.take(News::Past(Box::default()), 0).unwrap();
        let max = |state: &State| state.data().node.as_ref().map(|node| node.connections_max);
        let sample = Sample { connections_max: Some(7.0), ..Sample::default() };
        state.take(News::Sample(Box::new(sample)), 0).unwrap();
        state.take(News::Sample(Box::default()), 0).unwrap();
        assert_eq!(max(&state), Some(7.0));
    }

    #[test]
    fn a_paused_picture_stands_still() {
        let mut state = State::new("n");
        state.take(sample(1), 0).unwrap();
        press(&mut state, KeyCode::Char('p'));
        state.take(sample(2), 0).unwrap();
        assert_eq!((state.is_paused(), newest(&state)), (true, 1));
        press(&mut state, KeyCode::Char('p'));
        assert_eq!((state.is_paused(), newest(&state)), (false, 2));
    }

    #[test]
    fn a_node_that_goes_away_is_waited_for_if_it_was_there() {
        let trouble = || Trouble::Away("nothing answers".into());
        let mut state = State::new("n");
        assert_eq!(state.take(News::Away(trouble()), 5), Err(trouble()));
        state.take(News::Past(Box::default()), 6).unwrap();
        state.take(sample(1), 6).unwrap();
        state.take(News::Away(trouble()), 7).unwrap();
        let other = Trouble::NotThrong("a proxy's page".into());
        state.take(News::Away(other.clone()), 8).unwrap();
        assert_eq!(state.away, Some(Away { since_ms: 7, trouble: other }));
        state.take(sample(2), 9).unwrap();
        assert_eq!(state.away, None);
        let wrong_key = Trouble::Forbidden("not the key".into());
        assert!(state.take(News::Away(wrong_key), 10).is_err());
    }
}
