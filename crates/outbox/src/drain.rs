//! Drains the outbox: decides which rows are fetched, published and deleted, and when.
//!
//! The caller performs what [`Drain::poll`] returns and reports the result by `on_*`. A `Drain` has no socket, clock
//! or thread. It lives as long as its node has the lock: what it knows of rows is void without the lock, except for
//! those that it has published and not deleted.

use std::collections::{BTreeMap, HashSet, VecDeque};

use throttle::Backoff;

use crate::floor::Floor;
use crate::row::{Outcome, Reason, Row};

/// The delay before a poll of an empty outbox, in milliseconds: the first one, and the longest.
pub(crate) const IDLE_MS: (u64, u64) = (5, 50);

/// The delay before a retry of rows that must wait, in milliseconds: the first one, and the longest.
const BLOCKED_MS: (u64, u64) = (20, 2_000);

/// A node that has published no row for so long, though some wait, gives its turn to another, in milliseconds.
const TURN_MS: u64 = 5_000;

/// What the caller does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Fetch rows above this id, and call [`Drain::on_rows`].
    Fetch(i64),
    /// Publish a row, and call [`Drain::on_outcome`] when it is done; poll again meanwhile.
    Publish(Row),
    /// Wait for an outcome.
    Await,
    /// Delete these rows in one transaction, and call [`Drain::on_finished`].
    Finish(Finished),
    /// Wait until this time, in milliseconds.
    Sleep(u64),
    /// Give the lock back, so that another node may try: this one can't publish. No row is in flight.
    Release,
}

/// Rows that are done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Finished {
    /// Rows that are published.
    pub published: Vec<i64>,
    /// Rows that can't be published.
    pub refused: Vec<(i64, Reason)>,
}

impl Finished {
    fn is_empty(&self) -> bool {
        self.published.is_empty() && self.refused.is_empty()
    }
}

/// Rows of earlier sessions that are published, but perhaps not deleted, by their uids.
pub(crate) type Unfinished = HashSet<Box<str>>;

/// Rows of earlier sessions that a node remembers; it publishes further ones again.
const UNFINISHED_MAX: usize = 100_000;

/// Drains the outbox.
#[derive(Debug)]
pub(crate) struct Drain {
    unfinished: Unfinished,
    state: State,
    floor: Floor,
    idle: Backoff,
    blocked: Backoff,
    /// The time since which rows wait and none was published.
    stuck_since_ms: Option<u64>,
    /// True if no more rows are published.
    is_ending: bool,
}

#[derive(Debug)]
enum State {
    /// The next fetch is due at this time.
    Idle(u64),
    Fetching,
    /// The rows are published, then deleted.
    Publishing(Batch),
}

/// Rows that were fetched together.
#[derive(Debug)]
struct Batch {
    waiting: VecDeque<Row>,
    /// The uids of rows that are being published.
    in_flight: BTreeMap<i64, Box<str>>,
    finished: Finished,
    /// The uids of the published rows.
    published: Vec<Box<str>>,
    /// The highest id.
    last: i64,
    /// Why rows must wait, if they must.
    blocked: Option<Box<str>>,
}

impl Batch {
    /// Marks this row as published.
    fn finish(&mut self, id: i64, uid: Box<str>) {
        self.finished.published.push(id);
        self.published.push(uid);
    }
}

impl Drain {
    /// Begins with a fetch.
    pub fn new(unfinished: Unfinished) -> Self {
        Drain {
            unfinished,
            state: State::Idle(0),
            floor: Floor::default(),
            idle: Backoff::new(IDLE_MS.0, IDLE_MS.1),
            blocked: Backoff::new(BLOCKED_MS.0, BLOCKED_MS.1),
            stuck_since_ms: None,
            is_ending: false,
        }
    }

    /// Ends the session, and returns the rows that the next one must not publish again.
    pub fn into_unfinished(self) -> Unfinished {
        let mut unfinished = self.unfinished;
        if let State::Publishing(batch) = self.state {
            unfinished.extend(batch.published);
        }
        if unfinished.len() > UNFINISHED_MAX {
            unfinished.clear();
        }
        unfinished
    }

    /// Publishes nothing more: rows in flight are finished and deleted.
    pub fn end(&mut self) {
        self.is_ending = true;
    }

    /// Returns true if no row is in flight.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle(_))
    }

    /// Returns why rows must wait, if they must.
    pub fn blocked(&self) -> Option<&str> {
        match &self.state {
            State::Publishing(batch) => batch.blocked.as_deref(),
            State::Idle(_) | State::Fetching => None,
        }
    }

    /// Returns what to do at this time, in milliseconds of any clock that does not go back. After [`Action::Release`]
    /// the `Drain` has no further use.
    pub fn poll(&mut self, now_ms: u64) -> Action {
        let is_stuck = self.stuck_since_ms.is_some_and(|since_ms| now_ms >= since_ms + TURN_MS);
        let batch = match &mut self.state {
            State::Idle(_) if is_stuck => return Action::Release,
            State::Idle(due_ms) if *due_ms > now_ms => return Action::Sleep(*due_ms),
            State::Idle(_) | State::Fetching => {
                self.state = State::Fetching;
                return Action::Fetch(self.floor.id());
            }
            State::Publishing(batch) => batch,
        };
        if batch.blocked.is_some() || self.is_ending {
            batch.waiting.clear();
        }
        while let Some(row) = batch.waiting.pop_front() {
            if self.unfinished.contains(&row.uid) {
                batch.finish(row.id, row.uid);
                continue;
            }
            batch.in_flight.insert(row.id, row.uid.clone());
            return Action::Publish(row);
        }
        if !batch.in_flight.is_empty() {
            return Action::Await;
        }
        if batch.finished.is_empty() {
            self.stuck_since_ms.get_or_insert(now_ms);
            let delay_ms = self.blocked.delay_ms();
            self.state = State::Idle(now_ms + delay_ms);
            return Action::Sleep(now_ms + delay_ms);
        }
        Action::Finish(batch.finished.clone())
    }

    /// Takes the rows that a fetch has found, in the order of their ids. No transaction below `oldest` ran then.
    pub fn on_rows(&mut self, now_ms: u64, oldest: i64, rows: Vec<Row>) {
        self.floor.on_rows(oldest, rows.first().map(|row| row.id));
        let Some(last) = rows.last().map(|row| row.id) else {
            // Another node has deleted the others.
            self.stuck_since_ms = None;
            self.unfinished.clear();
            self.state = State::Idle(now_ms + self.idle.delay_ms());
            return;
        };
        self.idle.reset();
        self.state = State::Publishing(Batch {
            waiting: rows.into(),
            in_flight: BTreeMap::new(),
            finished: Finished::default(),
            published: Vec::new(),
            last,
            blocked: None,
        });
    }

    /// Takes the outcome of a row.
    pub fn on_outcome(&mut self, id: i64, outcome: Outcome) {
        let State::Publishing(batch) = &mut self.state else { return };
        let Some(uid) = batch.in_flight.remove(&id) else { return };
        match outcome {
            Outcome::Published => batch.finish(id, uid),
            Outcome::Refused(reason) => batch.finished.refused.push((id, reason)),
            Outcome::Wait(why) => batch.blocked = Some(why),
        }
    }

    /// Records that this transaction has deleted the rows.
    pub fn on_finished(&mut self, now_ms: u64, transaction: i64) {
        let State::Publishing(batch) = &self.state else { return };
        for uid in &batch.published {
            self.unfinished.remove(uid);
        }
        self.floor.on_finished(batch.last, transaction);
        let is_blocked = batch.blocked.is_some();
        // The batch has published some rows.
        self.blocked.reset();
        self.stuck_since_ms = None;
        let delay_ms = if is_blocked { self.blocked.delay_ms() } else { 0 };
        self.state = State::Idle(now_ms + delay_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: i64) -> Row {
        Row { id, uid: id.to_string().into(), message: Some("{}".into()), bytes: 2 }
    }

    fn reason() -> Reason {
        Reason { code: "bad".into(), text: "no topic".into() }
    }

    #[test]
    fn an_empty_outbox_is_polled_ever_more_rarely() {
        let mut drain = Drain::new(Unfinished::new());
        let mut now_ms = 0;
        let delays = (0..6).map(|_| {
            assert_eq!(drain.poll(now_ms), Action::Fetch(0));
            drain.on_rows(now_ms, 1, vec![]);
            let Action::Sleep(due_ms) = drain.poll(now_ms) else { panic!("no sleep") };
            let delay_ms = due_ms - now_ms;
            now_ms = due_ms;
            delay_ms
        });
        assert_eq!(delays.collect::<Vec<_>>(), [5, 10, 20, 40, 50, 50]);
    }

    #[test]
    fn rows_are_deleted_when_all_are_done_and_the_next_are_fetched_at_once() {
        let mut drain = Drain::new(Unfinished::new());
        drain.poll(0);
        drain.on_rows(0, 1, vec![row(1), row(2), row(3)]);
        for id in 1..=3 {
            assert_eq!(drain.poll(0), Action::Publish(row(id)));
        }
        drain.on_outcome(3, Outcome::Published);
        drain.on_outcome(1, Outcome::Published);
        assert_eq!(drain.poll(0), Action::Await);
        drain.on_outcome(2, Outcome::Refused(reason()));
        let finished = Finished { published: vec![3, 1], refused: vec![(2, reason())] };
        assert_eq!(drain.poll(0), Action::Finish(finished));
        drain.on_finished(7, 40);
        assert_eq!(drain.poll(7), Action::Fetch(0));
        drain.on_rows(7, 41, vec![]);
        assert_eq!(drain.poll(12), Action::Fetch(3), "no row up to 3 can appear");
    }

    #[test]
    fn a_row_that_must_wait_stops_those_behind_it() {
        let mut drain = Drain::new(Unfinished::new());
        drain.poll(0);
        drain.on_rows(0, 1, vec![row(1), row(2), row(3)]);
        drain.poll(0);
        drain.on_outcome(1, Outcome::Published);
        drain.poll(0);
        drain.on_outcome(2, Outcome::Wait("behind".into()));
        let finished = Finished { published: vec![1], refused: vec![] };
        assert_eq!(drain.poll(0), Action::Finish(finished));
        assert_eq!(drain.blocked(), Some("behind"));
        drain.on_finished(0, 40);
        assert_eq!(drain.poll(0), Action::Sleep(20));
        let mut now_ms = 20;
        for delay_ms in [40, 80, 160, 320, 640, 1_280, 2_000, 2_000] {
            assert_eq!(drain.poll(now_ms), Action::Fetch(0));
            drain.on_rows(now_ms, 1, vec![row(2), row(3)]);
            assert_eq!(drain.poll(now_ms), Action::Publish(row(2)));
            drain.on_outcome(2, Outcome::Wait("behind".into()));
            assert_eq!(drain.poll(now_ms), Action::Sleep(now_ms + delay_ms));
            now_ms += delay_ms;
        }
        assert_eq!(drain.poll(now_ms), Action::Release, "another node may be able to");
    }

    #[test]
    fn a_turn_begins_anew_with_each_row_that_is_published() {
        let mut drain = Drain::new(Unfinished::new());
        for now_ms in (0..4 * TURN_MS).step_by(TURN_MS as usize / 2) {
            assert_eq!(drain.poll(now_ms), Action::Fetch(0));
            drain.on_rows(now_ms, 1, vec![row(1), row(2)]);
            drain.poll(now_ms);
            drain.on_outcome(1, Outcome::Published);
            drain.poll(now_ms);
            drain.on_outcome(2, Outcome::Wait("behind".into()));
            assert!(matches!(drain.poll(now_ms), Action::Finish(_)));
            drain.on_finished(now_ms, 40);
        }
    }

    #[test]
    fn an_end_waits_for_what_is_under_way_and_deletes_it() {
        let mut drain = Drain::new(Unfinished::new());
        drain.poll(0);
        drain.on_rows(0, 1, vec![row(1), row(2)]);
        assert_eq!(drain.poll(0), Action::Publish(row(1)));
        drain.end();
        assert_eq!(drain.poll(0), Action::Await);
        drain.on_outcome(1, Outcome::Published);
        assert!(matches!(drain.poll(0), Action::Finish(_)));
        assert!(!drain.is_idle());
        drain.on_finished(0, 40);
        assert!(drain.is_idle());
    }

    #[test]
    fn what_is_published_and_not_deleted_is_not_published_by_the_next_session() {
        let mut drain = Drain::new(Unfinished::new());
        drain.poll(0);
        drain.on_rows(0, 1, vec![row(1), row(2)]);
        for id in [1, 2] {
            assert_eq!(drain.poll(0), Action::Publish(row(id)));
            drain.on_outcome(id, Outcome::Published);
        }
        assert!(matches!(drain.poll(0), Action::Finish(_)));
        // The connection breaks.
        let mut drain = Drain::new(drain.into_unfinished());
        drain.poll(0);
        drain.on_rows(0, 1, vec![row(1), row(2), row(3)]);
        assert_eq!(drain.poll(0), Action::Publish(row(3)));
        drain.on_outcome(3, Outcome::Published);
        let finished = Finished { published: vec![1, 2, 3], refused: vec![] };
        assert_eq!(drain.poll(0), Action::Finish(finished));
        drain.on_finished(0, 40);
        assert_eq!(drain.into_unfinished(), Unfinished::new());
    }
}
