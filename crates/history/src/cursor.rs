//! How far a user has acknowledged a topic's messages.

/// The position of a user in a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The user has acknowledged all messages up to this offset, except those that were given up.
    pub acknowledged: Option<u64>,
    /// The last message that was given up: the user acknowledged none of its deliveries.
    pub given_up: Option<u64>,
}

impl Cursor {
    /// Returns the offset up to which each message is acknowledged or given up.
    pub fn done(self) -> Option<u64> {
        self.acknowledged.max(self.given_up)
    }
}
