//! Messages that only sessions retain.

use model::Name;

use super::Windows;

/// Messages that are retained only for sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForSessions {
    /// The number of messages.
    pub messages: usize,
    /// Their bytes, as `model::Message::bytes` counts them.
    pub bytes: usize,
}

impl ForSessions {
    /// Adds a message of `bytes` bytes.
    pub(super) fn add(&mut self, bytes: usize) {
        self.messages += 1;
        self.bytes += bytes;
    }

    /// Removes a message of `bytes` bytes.
    pub(super) fn remove(&mut self, bytes: usize) {
        self.messages -= 1;
        self.bytes -= bytes;
    }
}

impl Windows {
    /// Returns the counts of messages for sessions alone.
    pub fn for_sessions(&self) -> ForSessions {
        self.for_sessions
    }

    /// Sets whether a topic's present and future messages are retained for sessions alone.
    pub fn set_for_sessions(&mut self, hash: u64, name: &Name, is: bool) {
        let found = if is { Some(self.enter(hash, name)) } else { self.find(hash, name) };
        let Some(at) = found else { return };
        let topic = &mut self.topics[at];
        if std::mem::replace(&mut topic.for_sessions, is) == is {
            return;
        }
        for (_, message) in topic.retained.after(0, &self.messages) {
            match is {
                true => self.for_sessions.add(message.bytes()),
                false => self.for_sessions.remove(message.bytes()),
            }
        }
    }
}
