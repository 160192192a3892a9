//! Users' acknowledgements, in memory and in the store.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use broker::HistoryLog;
use model::name::personal;
use model::{AcknowledgeRule, Name, Position};

use super::{Local, unix_ms};
use crate::cursors::Cursors;
use crate::windows;
use history::{AcknowledgeError, Cursor, GivenUp, History};

/// The prefix of a topic's name in the store's table of cursors if the row is about messages that were given up, not
/// acknowledged. No topic's name has it: names have no control characters.
const GIVEN_UP: &str = "\u{1}given up\u{1}";

/// Makes the cursors of users (user and topic) of the rows in a store: user, topic as the row names it, and offset.
pub fn cursors_of_rows(
    rows: impl IntoIterator<Item = (Name, Name, u64)>,
) -> HashMap<(Name, Name), Cursor> {
    let mut cursors = HashMap::<(Name, Name), Cursor>::new();
    for (user, topic, offset) in rows {
        match topic.strip_prefix(GIVEN_UP) {
            Some(topic) => {
                cursors.entry((user, topic.into())).or_default().given_up = Some(offset);
            }
            None => cursors.entry((user, topic)).or_default().acknowledged = Some(offset),
        }
    }
    cursors
}

/// Makes the rows of a user's cursor in a store: topic as the row names it, and offset.
pub fn rows_of_cursor(topic: &Name, cursor: Cursor) -> impl Iterator<Item = (Name, u64)> {
    let acknowledged = cursor.acknowledged.map(|offset| (topic.clone(), offset));
    let given_up = cursor.given_up.map(|offset| (format!("{GIVEN_UP}{topic}").into(), offset));
    acknowledged.into_iter().chain(given_up)
}

impl Local {
    pub(super) fn cursors(&self) -> MutexGuard<'_, Cursors> {
        self.0.cursors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads the cursors of the store.
    pub fn load_cursors(&self, found: impl IntoIterator<Item = (Name, Name, u64)>) {
        let mut cursors = self.cursors();
        for (user, topic, offset) in found {
            match topic.strip_prefix(GIVEN_UP) {
                Some(topic) => cursors.give_up(&user, topic, offset),
                None => cursors.acknowledge(&user, &topic, offset),
            };
        }
    }

    /// Loads the idempotency keys of the store: topic, key, offset, and when it was used in milliseconds since 1970.
    pub fn load_idempotency(
        &self,
        hash: impl Fn(&str) -> u64,
        found: impl IntoIterator<Item = (Name, Name, u64, u64)>,
    ) {
        let seconds = self.0.idempotency_seconds_max.load(Ordering::Relaxed);
        let mut state = self.state();
        let (age_ms, unix_ms) = (self.0.clock.now_ms(), unix_ms());
        state.idempotency.set_time(age_ms, unix_ms);
        for (topic, key, offset, at_ms) in found {
            // The key's real age is unknown: it counts from now on.
            let at_ms = if at_ms > age_ms { unix_ms } else { at_ms };
            state.idempotency.remember_at(hash(&topic), &topic, &key, offset, at_ms, seconds);
        }
    }

    /// Returns the user's cursor, and makes one for a new user.
    pub(super) fn cursor_or_begin(&self, user: &str, topic: &str) -> u64 {
        self.progress(user, topic).done().unwrap_or_else(|| {
            if topic == personal(user) {
                return 0;
            }
            let top = self.top().offset;
            let is_full = self.cursors().is_full();
            if is_full {
                // The store may know more of the user than fits into memory.
                self.cursors().acknowledge(user, topic, top);
            } else {
                self.move_cursor(user, topic, top);
            }
            top
        })
    }

    /// Moves the user's cursor, and returns it.
    pub(super) fn acknowledge_through(
        &self,
        user: &str,
        topic: &str,
        id: Position,
    ) -> Result<u64, AcknowledgeError> {
        let rule = self.rule(topic);
        if rule.is_none_or(|rule| rule.acknowledge.is_none()) {
            return Err(AcknowledgeError::NotAcknowledged);
        }
        if id.epoch != self.epoch() {
            return Err(AcknowledgeError::Epoch);
        }
        if id.offset > self.state().last {
            return Err(AcknowledgeError::Ahead);
        }
        if self.move_cursor(user, topic, id.offset) {
            self.0.counts.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        Ok(self.progress(user, topic).acknowledged.unwrap_or(id.offset))
    }

    fn move_cursor(&self, user: &str, topic: &str, offset: u64) -> bool {
        let moved = self.cursors().acknowledge(user, topic, offset);
        if moved {
            self.store_cursor(user, &topic.into(), offset);
        }
        moved
    }

    fn store_cursor(&self, user: &str, row: &Name, offset: u64) {
        let Some(store) = &self.0.store else { return };
        // If the store does not write a cursor, its acknowledgement is lost and its messages come again.
        if let Err(error) = store.put_cursor(&user.into(), row, offset) {
            self.0.log.lost_cursor(user, row.strip_prefix(GIVEN_UP).unwrap_or(row), error);
        }
    }

    /// Counts a delivery, unless it belongs to the last one.
    pub(super) fn count_delivery(
        &self,
        user: &str,
        topic: &str,
        offset: u64,
        now_s: u32,
        rule: &AcknowledgeRule,
    ) -> u32 {
        let apart_s = rule.deliveries_apart_seconds();
        self.cursors().delivered(user, topic, offset, now_s, apart_s)
    }

    /// Moves the user's cursor past a message without an acknowledgement.
    pub(super) fn give_up_message(&self, user: &str, topic: &str, offset: u64, given_up: GivenUp) {
        if !self.cursors().give_up(user, topic, offset) {
            return;
        }
        self.store_cursor(user, &format!("{GIVEN_UP}{topic}").into(), offset);
        let count = match given_up {
            GivenUp::DeadLettered => &self.0.counts.dead_lettered,
            GivenUp::Dropped => &self.0.counts.dropped,
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.0.log.given_up(user, topic, self.id(offset), given_up);
    }

    /// Returns those of these offsets of a topic, in order, whose messages may still exist; `None` if only the store
    /// can tell.
    pub(super) fn retained_of(&self, hash: u64, topic: &str, offsets: &[u64]) -> Option<Vec<u64>> {
        let (Some(first), Some(last)) = (offsets.first(), offsets.last()) else {
            return Some(Vec::new());
        };
        let state = self.state();
        let is_here = state.windows.reaches(hash, topic, first - 1);
        if self.0.store.is_some() && !is_here && state.windows.may_be_elsewhere(hash, topic) {
            return None;
        }
        let cursor = windows::TopicCursor { hash, topic, after: first - 1, state_top: 0 };
        // Other messages may be between them.
        let messages_max = offsets.len() * 2;
        let found = state.windows.collect(&[cursor], messages_max, usize::MAX, unix_ms());
        let through = found.through.unwrap_or(*last);
        let here: Vec<u64> = found.messages.iter().map(|message| message.id.offset).collect();
        let is_here = |offset: &u64| *offset > through || here.binary_search(offset).is_ok();
        Some(offsets.iter().copied().filter(is_here).collect())
    }
}
