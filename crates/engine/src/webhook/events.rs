//! What the application may hear of connections and topics.

use model::{CloseReason, ConnectionId, Name};

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookEvent {
    /// A connection has come that lasts.
    Connected(Whose),
    /// It is gone.
    Disconnected {
        /// Which.
        whose: Whose,
        /// Why.
        reason: CloseReason,
        /// How long it was there, in seconds.
        seconds: u32,
    },
    /// A connection has entered a topic.
    Joined(Whose, Name),
    /// It has left it.
    Left(Whose, Name),
    /// A topic has its first member on this shard.
    Occupied(Name),
    /// It has none any more.
    Vacated(Name),
}

/// A connection, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whose {
    /// Which.
    pub connection: ConnectionId,
    /// Its users; may be none.
    pub users: Vec<Name>,
    /// The name of its transport.
    pub transport: &'static str,
}

/// Which events the application wants to hear.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HookEvents {
    /// [`HookEvent::Connected`].
    pub connected: bool,
    /// [`HookEvent::Disconnected`].
    pub disconnected: bool,
    /// [`HookEvent::Joined`].
    pub joined: bool,
    /// [`HookEvent::Left`].
    pub left: bool,
    /// That a topic is occupied.
    pub occupied: bool,
    /// That a topic is vacated.
    pub vacated: bool,
}

impl HookEvents {
    /// Whether anything of it is about topics.
    pub(crate) fn topics(self) -> bool {
        self.joined || self.left || self.occupancy()
    }

    /// Whether it is heard that topics are occupied or vacated.
    pub(crate) fn occupancy(self) -> bool {
        self.occupied || self.vacated
    }
}
