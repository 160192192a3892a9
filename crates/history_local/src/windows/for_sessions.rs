//! What is retained for sessions alone.

use model::Name;

use super::Windows;

/// Messages that are retained only for sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForSessions {
    /// How many.
    pub messages: usize,
    /// Their bytes, as `model::Message::bytes` counts them.
    pub bytes: usize,
}

impl ForSessions {
    /// One more message of so many bytes is here.
    pub(super) fn add(&mut self, bytes: usize) {
        self.messages += 1;
        self.bytes += bytes;
    }

    /// It is gone.
    pub(super) fn remove(&mut self, bytes: usize) {
        self.messages -= 1;
        self.bytes -= bytes;
    }
}

impl Windows {
    /// What of them is here only for sessions.
    pub fn for_sessions(&self) -> ForSessions {
        self.for_sessions
    }

    /// Says whether what is retained of a topic is so for sessions alone: what is here, and what comes.
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
