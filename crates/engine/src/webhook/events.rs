//! Events of connections and topics for the application.

use model::{CloseReason, ConnectionId, Name};

/// An event for the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookEvent {
    /// A lasting connection is open.
    Connected(EventSource),
    /// A connection has ended.
    Disconnected {
        /// The connection.
        source: EventSource,
        /// Why it ended.
        reason: CloseReason,
        /// How long it was open, in seconds.
        seconds: u32,
    },
    /// A connection has joined a topic.
    Joined(EventSource, Name),
    /// A connection has left a topic.
    Left(EventSource, Name),
    /// A topic has its first member on this shard.
    Occupied(Name),
    /// A topic has no member on this shard any more.
    Vacated(Name),
}

/// The connection of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSource {
    /// Its id.
    pub connection: ConnectionId,
    /// Its users; may be none.
    pub users: Vec<Name>,
    /// The name of its transport.
    pub transport: &'static str,
}

/// Which events go to the application.
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
    /// [`HookEvent::Occupied`].
    pub occupied: bool,
    /// [`HookEvent::Vacated`].
    pub vacated: bool,
}

impl HookEvents {
    /// Returns true if any of the events is about topics.
    pub(crate) fn topics(self) -> bool {
        self.joined || self.left || self.occupancy()
    }

    /// Returns true if the application gets the events that topics are occupied or vacated.
    pub(crate) fn occupancy(self) -> bool {
        self.occupied || self.vacated
    }
}
