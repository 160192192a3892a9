//! The cursors in memory, and their moves that wait to be written.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use history::Cursor;
use history_local::cursors::Cursors;
use model::{AcknowledgeRule, Name};
use tokio::sync::{Notify, watch};

/// The capacity for moves that stays after many have waited.
const MOVES_RETAINED: usize = 1_024;

/// A user, and a topic.
pub(crate) type CursorKey = (Name, Name);

/// A move that the database does not have yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Move {
    /// Where the cursor begins, if the database has none.
    pub begin: Option<u64>,
    /// The user has acknowledged all messages up to this offset.
    pub acknowledged: Option<u64>,
    /// The last message that was given up; 0 is none.
    pub given_up: u64,
}

impl Move {
    fn add(&mut self, other: Move) {
        self.begin = match (self.begin, other.begin) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        self.acknowledged = self.acknowledged.max(other.acknowledged);
        self.given_up = self.given_up.max(other.given_up);
    }

    /// Returns the offset up to which the user needs no message.
    fn done(&self) -> Option<u64> {
        let given_up = Some(self.given_up).filter(|offset| *offset > 0);
        self.acknowledged.max(given_up).max(self.begin)
    }
}

/// How a user's cursor moved in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CursorMove {
    /// The user has acknowledged all messages up to this offset at another node.
    Acknowledged(u64),
    /// It is certain now where the user begins.
    Begun,
    /// The user began here behind the cursor, and lacks the messages after this offset.
    Back(u64),
}

/// A cursor that is elsewhere in the database than it was in memory, or certain now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MovedCursor {
    pub user: Name,
    pub topic: Name,
    pub to: CursorMove,
}

/// The cursors that the calls of the history share with their driver.
pub(crate) struct SharedCursors {
    state: Mutex<State>,
    /// Wakes the driver: a cursor moved here, or at another node.
    pub moved: Arc<Notify>,
    /// The number of moves that wait.
    waiting: watch::Sender<usize>,
    moves_max: usize,
}

struct State {
    cursors: Cursors,
    /// Moves that wait to be written.
    moves: HashMap<CursorKey, Move>,
    /// The order in which the driver takes them. Some of these moves may be gone.
    order: Vec<CursorKey>,
    /// Moves that the driver writes now.
    writing: HashMap<CursorKey, Move>,
    /// The number of the last change in the database that memory has.
    change: u64,
    /// True while moves are lost, because too many wait.
    is_full: bool,
}

impl State {
    /// Returns true if a move of this cursor is not written yet that is more than its begin.
    fn has_moved(&self, key: &CursorKey) -> bool {
        let moves = [self.moves.get(key), self.writing.get(key)];
        moves.into_iter().flatten().any(|it| it.acknowledged.is_some() || it.given_up > 0)
    }

    /// Sets a cursor as the database has it, unless a later move waits. `former` is the move that is written now, or that
    /// does not count any more.
    fn set(&mut self, key: CursorKey, cursor: Cursor, former: Option<Move>) -> Option<MovedCursor> {
        if self.has_moved(&key) {
            return None;
        }
        let known = self.cursors.get(&key.0, &key.1);
        let begins = former.is_some_and(|it| it.begin.is_some());
        if known == Some(cursor) && !begins {
            return None;
        }
        self.cursors.set(&key.0, &key.1, cursor);
        let before = known.and_then(Cursor::done).max(former.and_then(|it| it.done()));
        let offset = cursor.done().unwrap_or(0);
        let to = match begins {
            _ if before > cursor.done() => CursorMove::Back(offset),
            true => CursorMove::Begun,
            false => CursorMove::Acknowledged(offset),
        };
        Some(MovedCursor { user: key.0, topic: key.1, to })
    }
}

impl SharedCursors {
    /// Makes an empty table of at most `cursors_max` cursors.
    pub fn new(cursors_max: usize) -> Self {
        let state = State {
            cursors: Cursors::new(cursors_max),
            moves: HashMap::new(),
            order: Vec::new(),
            writing: HashMap::new(),
            change: 0,
            is_full: false,
        };
        SharedCursors {
            state: Mutex::new(state),
            moved: Arc::default(),
            waiting: watch::Sender::new(0),
            moves_max: cursors_max,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic under the lock leaves a good value.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of cursors in memory.
    pub fn count(&self) -> usize {
        self.state().cursors.count()
    }

    /// Returns the user's cursor. The cursor of a new user begins at `begin`.
    pub fn get_or_begin(&self, user: &str, topic: &str, begin: u64) -> u64 {
        let mut state = self.state();
        if let Some(done) = state.cursors.get(user, topic).and_then(Cursor::done) {
            return done;
        }
        // Memory may have forgotten a cursor whose move waits.
        let key = (Name::from(user), Name::from(topic));
        let moves = [state.moves.get(&key), state.writing.get(&key)];
        if let Some(done) = moves.into_iter().flatten().filter_map(Move::done).max() {
            state.cursors.acknowledge(user, topic, done);
            return done;
        }
        state.cursors.acknowledge(user, topic, begin);
        self.note(&mut state, user, topic, Move { begin: Some(begin), ..Move::default() });
        begin
    }

    /// Returns true while the user's begin waits to be written.
    pub fn begins(&self, user: &str, topic: &str) -> bool {
        let (state, key) = (self.state(), (Name::from(user), Name::from(topic)));
        let moves = [state.moves.get(&key), state.writing.get(&key)];
        moves.into_iter().flatten().any(|it| it.begin.is_some())
    }

    /// Returns the user's cursor, if there is one.
    pub fn get(&self, user: &str, topic: &str) -> Option<Cursor> {
        self.state().cursors.get(user, topic)
    }

    /// Moves the user's cursor. Returns the offset, and true if the cursor was not there already.
    pub fn acknowledge(&self, user: &str, topic: &str, offset: u64) -> (u64, bool) {
        let mut state = self.state();
        let moved = state.cursors.acknowledge(user, topic, offset);
        if moved {
            let acknowledged = Some(offset);
            self.note(&mut state, user, topic, Move { acknowledged, ..Move::default() });
        }
        let cursor = state.cursors.get(user, topic).and_then(|cursor| cursor.acknowledged);
        (cursor.unwrap_or(offset), moved)
    }

    /// Moves the user's cursor past a message without an acknowledgement. Returns false if it was past it already.
    pub fn give_up(&self, user: &str, topic: &str, offset: u64) -> bool {
        let mut state = self.state();
        let moved = state.cursors.give_up(user, topic, offset);
        if moved {
            self.note(&mut state, user, topic, Move { given_up: offset, ..Move::default() });
        }
        moved
    }

    /// Counts a delivery on this node, unless it belongs to the last one.
    pub fn delivered(
        &self,
        user: &str,
        topic: &str,
        offset: u64,
        now_s: u32,
        rule: &AcknowledgeRule,
    ) -> u32 {
        let apart_s = rule.deliveries_apart_seconds();
        self.state().cursors.delivered(user, topic, offset, now_s, apart_s)
    }

    /// Adds a move for the driver. Beyond as many moves as memory has cursors, it is lost.
    fn note(&self, state: &mut State, user: &str, topic: &str, mut added: Move) {
        let key = (Name::from(user), Name::from(topic));
        if state.moves.len() >= self.moves_max && !state.moves.contains_key(&key) {
            if !std::mem::replace(&mut state.is_full, true) {
                tracing::error!(
                    moves_max = self.moves_max,
                    "cursors are not written, because too many wait until PostgreSQL can be used: after a restart \
                     their users get messages once more, or begin anew (history.cursors_max)"
                );
            }
            return;
        }
        // If the user begins elsewhere, the database must know that this move comes after a later begin.
        added.begin = added.begin.or(state.writing.get(&key).and_then(|it| it.begin));
        state.moves.entry(key).or_default().add(added);
        self.update_waiting(state);
        self.moved.notify_one();
    }

    fn update_waiting(&self, state: &State) {
        self.waiting.send_replace(state.moves.len() + state.writing.len());
    }

    /// Takes at most `max` moves to write them. Each call is followed by [`SharedCursors::written`] or
    /// [`SharedCursors::put_back`].
    pub fn take(&self, max: usize) -> Vec<(CursorKey, Move)> {
        let mut guard = self.state();
        let state = &mut *guard;
        if state.order.is_empty() {
            state.order.extend(state.moves.keys().cloned());
        }
        let mut taken: Vec<(CursorKey, Move)> = Vec::new();
        while taken.len() < max
            && let Some(key) = state.order.pop()
        {
            taken.extend(state.moves.remove_entry(&key));
        }
        if state.moves.is_empty() {
            state.moves.shrink_to(MOVES_RETAINED);
        }
        state.writing.extend(taken.iter().cloned());
        state.is_full = false;
        taken
    }

    /// Puts moves back that were not written, or maybe.
    pub fn put_back(&self) {
        let mut state = self.state();
        for (key, former) in std::mem::take(&mut state.writing) {
            state.moves.entry(key).or_default().add(former);
        }
        self.update_waiting(&state);
    }

    /// Called when the taken moves are written. `cursors` are those of the database. Returns those that memory had
    /// elsewhere.
    pub fn written(
        &self,
        cursors: impl IntoIterator<Item = (CursorKey, Cursor)>,
    ) -> Vec<MovedCursor> {
        let mut state = self.state();
        let mut written = std::mem::take(&mut state.writing);
        let moved = cursors.into_iter().filter_map(|(key, cursor)| {
            let former = written.remove(&key);
            state.set(key, cursor, former)
        });
        let moved = moved.collect();
        self.update_waiting(&state);
        moved
    }

    /// Returns the number of the last change in the database that memory has.
    pub fn change(&self) -> u64 {
        self.state().change
    }

    /// Takes cursors as the database has them up to a change. Returns those that memory had elsewhere.
    pub fn follow(
        &self,
        change: u64,
        cursors: impl IntoIterator<Item = (CursorKey, Cursor)>,
    ) -> Vec<MovedCursor> {
        let mut state = self.state();
        state.change = change;
        let mut moved = Vec::new();
        for (key, cursor) in cursors {
            // Another node knew the user first.
            let former = match state.has_moved(&key) {
                true => None,
                false => state.moves.remove(&key),
            };
            moved.extend(state.set(key, cursor, former));
        }
        self.update_waiting(&state);
        moved
    }

    /// Returns the number of moves that wait.
    pub fn pending(&self) -> usize {
        *self.waiting.borrow()
    }

    /// Returns true if no move waits.
    pub fn is_idle(&self) -> bool {
        self.pending() == 0
    }

    /// Waits until no move waits.
    pub async fn until_idle(&self) {
        let _ = self.waiting.subscribe().wait_for(|waiting| *waiting == 0).await;
    }
}

#[cfg(test)]
mod tests {
    use super::CursorMove::{Acknowledged, Back, Begun};
    use super::*;

    fn key(user: &str) -> CursorKey {
        (user.into(), "jobs".into())
    }

    fn moved(user: &str, to: CursorMove) -> MovedCursor {
        MovedCursor { user: user.into(), topic: "jobs".into(), to }
    }

    fn at(offset: u64) -> Cursor {
        Cursor { acknowledged: Some(offset), given_up: None }
    }

    #[test]
    fn moves_wait_as_one_and_are_put_back_where_they_were_not_written() {
        let cursors = SharedCursors::new(10);
        assert_eq!(cursors.get_or_begin("bob", "jobs", 5), 5);
        assert_eq!(cursors.get_or_begin("bob", "jobs", 9), 5, "it is known");
        assert_eq!(cursors.acknowledge("bob", "jobs", 7), (7, true));
        assert_eq!(cursors.acknowledge("bob", "jobs", 6), (7, false));
        assert!(cursors.give_up("bob", "jobs", 8) && !cursors.give_up("bob", "jobs", 8));
        let expected = Move { begin: Some(5), acknowledged: Some(7), given_up: 8 };
        assert_eq!(cursors.take(10), [(key("bob"), expected)]);
        assert!(!cursors.is_idle() && cursors.take(10).is_empty());
        cursors.acknowledge("bob", "jobs", 9);
        cursors.put_back();
        let expected = Move { acknowledged: Some(9), ..expected };
        assert_eq!(cursors.take(10), [(key("bob"), expected)]);
        let cursor = Cursor { acknowledged: Some(9), given_up: Some(8) };
        assert_eq!(cursors.written([(key("bob"), cursor)]), [moved("bob", Begun)]);
        assert!(cursors.is_idle());
    }

    #[test]
    fn the_database_decides_but_for_what_it_does_not_have_yet() {
        let cursors = SharedCursors::new(10);
        assert_eq!(cursors.get_or_begin("bob", "jobs", 5), 5);
        // Another node knew the user first.
        assert!(cursors.begins("bob", "jobs"));
        assert_eq!(cursors.follow(3, [(key("bob"), at(2))]), [moved("bob", Back(2))]);
        assert!(!cursors.begins("bob", "jobs"));
        assert_eq!((cursors.get_or_begin("bob", "jobs", 5), cursors.change()), (2, 3));
        assert!(cursors.is_idle(), "the begin is not written any more");
        cursors.acknowledge("bob", "jobs", 7);
        assert_eq!(cursors.follow(4, [(key("bob"), at(6))]), [], "the one here is later");
        assert_eq!(cursors.get("bob", "jobs"), Some(at(7)));
        cursors.take(10);
        assert_eq!(cursors.follow(5, [(key("bob"), at(6))]), [], "it is on its way");
        // The log ends before the offset that a client has acknowledged.
        assert_eq!(cursors.written([(key("bob"), at(6))]), [moved("bob", Back(6))]);
        assert_eq!(cursors.get("bob", "jobs"), Some(at(6)));
        assert_eq!(cursors.get_or_begin("cy", "jobs", 8), 8);
        cursors.take(10);
        cursors.acknowledge("cy", "jobs", 9);
        assert_eq!(cursors.written([(key("cy"), at(4))]), [], "a later move waits");
        let expected = Move { begin: Some(8), acknowledged: Some(9), given_up: 0 };
        assert_eq!(cursors.take(10), [(key("cy"), expected)], "with its begin");
        let back = [moved("cy", Back(4))];
        assert_eq!(cursors.written([(key("cy"), at(4))]), back, "it began earlier elsewhere");
        cursors.acknowledge("cy", "jobs", 5);
        cursors.take(10);
        assert_eq!(
            cursors.written([(key("cy"), at(7))]),
            [moved("cy", Acknowledged(7))],
            "and elsewhere"
        );
        assert_eq!(cursors.get_or_begin("di", "jobs", 3), 3);
        cursors.take(10);
        assert!(cursors.begins("di", "jobs"));
        let begun = [moved("di", Begun)];
        assert_eq!(cursors.written([(key("di"), at(3))]), begun, "connections wait for it");
        assert!(!cursors.begins("di", "jobs"));
    }

    #[test]
    fn a_cursor_that_memory_forgets_stays_where_its_move_is() {
        let cursors = SharedCursors::new(1);
        cursors.acknowledge("bob", "jobs", 5);
        cursors.take(10);
        assert_eq!(cursors.get_or_begin("cy", "jobs", 9), 9, "bob's cursor leaves memory");
        assert_eq!(cursors.get_or_begin("bob", "jobs", 9), 5);
        cursors.put_back();
        assert_eq!(cursors.get_or_begin("bob", "jobs", 9), 5);
        let begins = [Some(9), Some(5), None].map(|begin| Move { begin, ..Move::default() });
        let mut all = Move::default();
        begins.into_iter().for_each(|begin| all.add(begin));
        assert_eq!(all.done(), Some(5));
    }

    #[test]
    fn moves_are_bounded() {
        let cursors = SharedCursors::new(2);
        for user in ["a", "b", "c"] {
            cursors.acknowledge(user, "jobs", 1);
        }
        assert_eq!(cursors.take(10).len(), 2);
    }
}
