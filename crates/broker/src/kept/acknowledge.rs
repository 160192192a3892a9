//! How far users have acknowledged.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{MutexGuard, PoisonError};

use wire::message::personal;
use wire::{Acknowledge, Id, Name};

use super::cursors::{Cursor, Cursors};
use super::{Kept, unix_ms, windows};

/// Where the rule has no [`Acknowledge::redelivery_seconds`], deliveries to a user within so many
/// seconds count as one: those of several connections, or of one that comes and goes.
const TRIES_APART_SECONDS: u32 = 30;

/// What stands before a topic's name in the store's table of cursors where the row says what was
/// given up, and not what was acknowledged. No topic's name has it: names have no control characters.
const GIVEN_UP: &str = "\u{1}given up\u{1}";

/// So often it is logged that messages are given up, in microseconds of the node's clock.
const GIVEN_UP_LOG_US: u64 = 10_000_000;

/// Why an acknowledgement says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcknowledgeError {
    /// Nobody acknowledges messages of this topic.
    NotAcknowledged,
    /// The id is of another numbering: of a topic without history, or from before a restart.
    Epoch,
    /// No message has this id yet.
    Ahead,
    /// The user is not the connection's, or there is none.
    NoUser,
}

impl AcknowledgeError {
    /// Its name for programs.
    pub fn code(self) -> &'static str {
        match self {
            AcknowledgeError::NotAcknowledged => "not_acknowledged",
            AcknowledgeError::Epoch => "epoch_changed",
            AcknowledgeError::Ahead => "bad_id",
            AcknowledgeError::NoUser => "no_user",
        }
    }
}

impl fmt::Display for AcknowledgeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AcknowledgeError::NotAcknowledged => {
                "messages of this topic are not acknowledged: the server's configuration has no \
                 acknowledge = true for it (for a user's own topic: offline.enabled)"
            }
            AcknowledgeError::Epoch => {
                "the id is of another numbering, from before the server's restart or of a topic \
                 without history: acknowledge the id of a message as it came"
            }
            AcknowledgeError::Ahead => "no message has this id yet",
            AcknowledgeError::NoUser => {
                "say whose messages are acknowledged: connect with user=…, and name one of the \
                 connection's users"
            }
        })
    }
}

impl std::error::Error for AcknowledgeError {}

/// What becomes of a message that nobody acknowledged in all its tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// It is in the dead-letter topic.
    DeadLettered,
    /// It is dropped.
    Dropped,
}

/// What was logged of messages that were given up.
#[derive(Default)]
pub(super) struct GivenUpLog {
    /// Not again before this time, in microseconds of the node's clock.
    after_us: AtomicU64,
    /// Those since then of which nothing was said.
    unsaid: AtomicU64,
}

impl Kept {
    pub(super) fn cursors(&self) -> MutexGuard<'_, Cursors> {
        self.0.cursors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in the cursors that the store had.
    pub fn load_cursors(&self, found: impl IntoIterator<Item = (Name, Name, u64)>) {
        let mut cursors = self.cursors();
        for (user, topic, offset) in found {
            match topic.strip_prefix(GIVEN_UP) {
                Some(topic) => cursors.give_up(&user, topic, offset),
                None => cursors.acknowledge(&user, &topic, offset),
            };
        }
    }

    /// Takes in the idempotency keys that the store had: topic, key, offset, and when it was used in
    /// milliseconds since 1970.
    pub fn load_idempotency(
        &self,
        hash: impl Fn(&str) -> u64,
        found: impl IntoIterator<Item = (Name, Name, u64, u64)>,
    ) {
        let seconds = self.0.idempotency_seconds_max.load(Ordering::Relaxed);
        let mut state = self.state();
        for (topic, key, offset, at_ms) in found {
            state.idempotency.remember(hash(&topic), &topic, &key, offset, at_ms, seconds);
        }
    }

    /// The offset from which the user is given a topic's messages: that of the last one that was
    /// acknowledged or given up. One who was never here begins with all that waits in the own topic,
    /// and elsewhere now.
    pub fn cursor(&self, user: &str, topic: &str) -> u64 {
        self.progress(user, topic).done().unwrap_or_else(|| {
            if topic == personal(user) {
                return 0;
            }
            let top = self.top().offset;
            let is_full = self.cursors().is_full();
            if is_full {
                // Maybe the store knows more of the user than fits into memory.
                self.cursors().acknowledge(user, topic, top);
            } else {
                self.move_cursor(user, topic, top);
            }
            top
        })
    }

    /// What the user has acknowledged, or was taken to have, and what was given up; nothing of
    /// either for one who was never here. Unlike [`Kept::cursor`] it changes nothing.
    pub fn progress(&self, user: &str, topic: &str) -> Cursor {
        self.cursors().get(user, topic).unwrap_or_default()
    }

    /// The user has all of the topic's messages up to this one. Gives the cursor's offset.
    pub fn acknowledge(&self, user: &str, topic: &str, id: Id) -> Result<u64, AcknowledgeError> {
        let keep = self.rule(topic);
        if keep.is_none_or(|keep| keep.acknowledge.is_none()) {
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
        // A cursor that is not written is an acknowledgement lost, and its messages come again.
        if let Err(error) = store.cursor(&user.into(), row, offset) {
            tracing::warn!("a cursor was not stored: {error}");
        }
    }

    /// Counts a delivery of a message that the user has not acknowledged; gives how many there were
    /// of this one, and 0 when it is done.
    ///
    /// A user's connections get it together, and those that come and go get it again: within
    /// [`Acknowledge::redelivery_seconds`], or 30 where that is 0, it counts once, as of `now_s`.
    pub fn delivered(
        &self,
        user: &str,
        topic: &str,
        offset: u64,
        now_s: u32,
        rule: &Acknowledge,
    ) -> u32 {
        let apart_s = match rule.redelivery_seconds {
            0 => TRIES_APART_SECONDS,
            seconds => seconds,
        };
        self.cursors().delivered(user, topic, offset, now_s, apart_s)
    }

    /// Counts that a message was delivered again to a connection that had it.
    pub fn delivered_again(&self) {
        self.0.counts.redelivered.fetch_add(1, Ordering::Relaxed);
    }

    /// Nobody acknowledged the message in all its tries, and all before it is done: it is done for
    /// this user, and not acknowledged.
    pub fn give_up(&self, user: &str, topic: &str, offset: u64, given_up: GivenUp) {
        if !self.cursors().give_up(user, topic, offset) {
            return;
        }
        self.store_cursor(user, &format!("{GIVEN_UP}{topic}").into(), offset);
        let (count, what) = match given_up {
            GivenUp::DeadLettered => {
                (&self.0.counts.dead_lettered, "went to the dead-letter topic")
            }
            GivenUp::Dropped => (&self.0.counts.dropped, "was dropped"),
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.log_given_up(user, topic, offset, what);
    }

    /// Says that a message was given up, not more often than every so many seconds.
    fn log_given_up(&self, user: &str, topic: &str, offset: u64, what: &str) {
        let log = &self.0.given_up;
        let now_us = self.0.started.elapsed().as_micros() as u64;
        let after_us = log.after_us.load(Ordering::Relaxed);
        let next_us = now_us + GIVEN_UP_LOG_US;
        let says = now_us >= after_us
            && log
                .after_us
                .compare_exchange(after_us, next_us, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if !says {
            log.unsaid.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let (id, others) = (self.id(offset), log.unsaid.swap(0, Ordering::Relaxed));
        tracing::warn!(
            user,
            topic,
            %id,
            others,
            "a message {what}: it was not acknowledged in all its deliveries; others: so many more \
             since this was last said"
        );
    }

    /// Of these offsets of a topic, in order, those whose messages may still be in memory.
    pub fn retain_kept(&self, hash: u64, topic: &str, offsets: &[u64]) -> Vec<u64> {
        let (Some(first), Some(last)) = (offsets.first(), offsets.last()) else {
            return Vec::new();
        };
        let wanted = windows::Wanted { hash, topic, after: first - 1 };
        // There may be others between them.
        let messages_max = offsets.len() * 2;
        let found = self.state().windows.collect(&[wanted], messages_max, usize::MAX, unix_ms());
        let through = found.through.unwrap_or(*last);
        let kept: Vec<u64> = found.messages.iter().map(|message| message.id.offset).collect();
        let is_kept = |offset: &u64| *offset > through || kept.binary_search(offset).is_ok();
        offsets.iter().copied().filter(is_kept).collect()
    }
}
