//! How far a user has acknowledged a topic's messages.

/// How far a user is in a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Everything up to this offset was acknowledged, but for what was given up.
    pub acknowledged: Option<u64>,
    /// The last message that was given up: nobody acknowledged it in all its tries.
    pub given_up: Option<u64>,
}

impl Cursor {
    /// Everything up to this offset is done, in one way or the other.
    pub fn done(self) -> Option<u64> {
        self.acknowledged.max(self.given_up)
    }
}
