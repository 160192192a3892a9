//! How far users have acknowledged.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use wire::message::personal;
use wire::{Id, Name};

use super::Kept;
use super::cursors::Cursors;

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

impl Kept {
    pub(super) fn cursors(&self) -> MutexGuard<'_, Cursors> {
        self.0.cursors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in the cursors that the store had.
    pub fn load_cursors(&self, found: impl IntoIterator<Item = (Name, Name, u64)>) {
        let mut cursors = self.cursors();
        for (user, topic, offset) in found {
            cursors.acknowledge(&user, &topic, offset);
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

    /// The offset from which the user is given a topic's messages: that of the last acknowledged
    /// one. One who was never here begins with all that waits in the own topic, and elsewhere now.
    pub fn cursor(&self, user: &str, topic: &str) -> u64 {
        let found = self.cursors().get(user, topic);
        found.unwrap_or_else(|| {
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

    /// The offset of the last message that the user has acknowledged, or was taken to have; `None`
    /// for one who was never here. Unlike [`Kept::cursor`] it changes nothing.
    pub fn acknowledged(&self, user: &str, topic: &str) -> Option<u64> {
        self.cursors().get(user, topic)
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
        Ok(self.cursors().get(user, topic).unwrap_or(id.offset))
    }

    fn move_cursor(&self, user: &str, topic: &str, offset: u64) -> bool {
        let moved = self.cursors().acknowledge(user, topic, offset);
        if moved && let Some(store) = &self.0.store {
            // A cursor that is not written is an acknowledgement lost, and its messages come again.
            if let Err(error) = store.cursor(&user.into(), &topic.into(), offset) {
                tracing::warn!("a cursor was not stored: {error}");
            }
        }
        moved
    }

    /// Counts a delivery of the first message that the user has not acknowledged; gives how many
    /// there were.
    ///
    /// A user's connections get it together, and those that come and go get it again: it counts
    /// once in `seconds`, as of `now_s`.
    pub fn tried(&self, user: &str, topic: &str, offset: u64, now_s: u32, seconds: u32) -> u32 {
        self.cursors().tried(user, topic, offset, now_s, seconds)
    }

    /// Counts that messages are delivered again.
    pub fn delivers_again(&self) {
        self.0.counts.redelivered.fetch_add(1, Ordering::Relaxed);
    }

    /// Nobody acknowledged the message in all its tries: it is done for this user.
    pub fn give_up(&self, user: &str, topic: &str, offset: u64) {
        self.0.counts.dead.fetch_add(1, Ordering::Relaxed);
        self.move_cursor(user, topic, offset);
    }
}
