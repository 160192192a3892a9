//! The events of a trace.

use std::sync::Arc;

use model::{CloseReason, ConnectionId, Message, Name, Position};

/// Receives the events of a trace.
pub trait TraceSink: Send + Sync {
    /// Takes an event, in order, on the shard's thread. Must not block.
    fn push(&self, event: TraceEvent);
}

/// An event for a sink.
pub struct Traced {
    /// Where the event goes.
    pub sink: Arc<dyn TraceSink>,
    /// The connection's slot: the driver adds its queued bytes.
    pub slot: Option<u32>,
    /// The event.
    pub event: TraceEvent,
}

/// Something that has happened to a traced connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// The time, in milliseconds since 1970.
    pub at_ms: u64,
    /// The connection; `None` if the event is of the trace itself.
    pub connection: Option<ConnectionId>,
    /// Bytes that were queued for the connection at that time, before those of this event.
    pub outbox_bytes: usize,
    /// What has happened.
    pub kind: TraceKind,
}

/// A kind of event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceKind {
    /// The connection was open when the trace began.
    Open(Box<TracedConnection>),
    /// The connection has come, or has logged the user in.
    Connected(Box<TracedConnection>),
    /// The connection has logged in one more user.
    LoggedIn(Name),
    /// The connection has logged out a user.
    LoggedOut(Name),
    /// The connection ends.
    Disconnected {
        /// The reason.
        reason: CloseReason,
        /// How long the connection was open, in seconds.
        age_seconds: u32,
    },
    /// The connection has entered a topic.
    Subscribed(Name),
    /// The connection has left a topic.
    Unsubscribed(Name),
    /// The client publishes; limits and the application may still reject it.
    Published {
        /// The topic.
        topic: Name,
        /// The payload, in bytes.
        bytes: usize,
    },
    /// A message goes to the connection: into its socket, or behind its queued bytes.
    Delivered(TracedMessage),
    /// A message of one of its topics does not go to the connection now.
    NotDelivered(TracedMessage, NotDelivered),
    /// A user of the connection has acknowledged a topic up to this message.
    Acknowledged {
        /// The topic.
        topic: Name,
        /// The message.
        id: Position,
    },
    /// The kernel takes no more bytes for the connection: from now on they wait in its outbox.
    Blocked,
    /// All queued bytes of the connection have left.
    Drained,
    /// So many events were left out, because they exceeded
    /// [`EVENTS_PER_SECOND_MAX`](super::state::EVENTS_PER_SECOND_MAX).
    LeftOut(u64),
}

impl TraceKind {
    /// True for kinds that may be frequent: they leave a part of the limit to the others.
    pub(crate) fn is_of_message(&self) -> bool {
        match self {
            TraceKind::Published { .. }
            | TraceKind::Delivered(_)
            | TraceKind::NotDelivered(..)
            | TraceKind::Acknowledged { .. } => true,
            TraceKind::Open(_)
            | TraceKind::Connected(_)
            | TraceKind::LoggedIn(_)
            | TraceKind::LoggedOut(_)
            | TraceKind::Disconnected { .. }
            | TraceKind::Subscribed(_)
            | TraceKind::Unsubscribed(_)
            | TraceKind::Blocked
            | TraceKind::Drained
            | TraceKind::LeftOut(_) => false,
        }
    }
}

/// A connection in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedConnection {
    /// The name of its transport.
    pub transport: &'static str,
    /// How long it has been open, in seconds.
    pub age_seconds: u32,
    /// Its users.
    pub users: Vec<Name>,
    /// How many topics it is in, without users' own.
    pub topics: usize,
}

/// A message in a trace: never its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedMessage {
    /// Its id.
    pub id: Position,
    /// Its topic.
    pub topic: Name,
    /// The name of its event.
    pub event: Name,
    /// Its payload, in bytes.
    pub bytes: usize,
    /// The time since publication, in microseconds; in steps of a millisecond if the topic has history.
    pub age_us: u64,
}

impl TracedMessage {
    /// Describes a message at this time: in microseconds of the node's clock, and in milliseconds since 1970.
    pub(crate) fn of(message: &Message, now_us: u64, now_ms: u64) -> Self {
        let publication = &message.publication;
        TracedMessage {
            id: message.id,
            topic: publication.topic.clone(),
            event: message.event().into(),
            bytes: publication.bytes(),
            // The history may be from another process, which had another clock.
            age_us: match message.at_ms {
                0 => now_us.saturating_sub(message.published_us),
                at_ms => now_ms.saturating_sub(at_ms) * 1_000,
            },
        }
    }
}

/// Why a message does not go to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotDelivered {
    /// The connection has published it itself.
    Own,
    /// The connection catches up: the message comes from the history later.
    CatchingUp,
    /// The client's tags don't match the message's.
    Tags,
    /// Another of the client's filters brings it.
    Duplicate,
    /// The client doesn't keep up: when it does, it gets the newest message of each key.
    Conflated,
    /// The MQTT client's window of unacknowledged messages is full: the message waits.
    Queued,
    /// The queue of the MQTT client is full.
    QueueFull,
    /// The message is larger than the MQTT client accepts.
    TooLarge,
    /// The message has expired.
    Expired,
    /// No member has acknowledged the message, and its delivery count is at the limit: the engine gives it up.
    GivenUp,
}

impl NotDelivered {
    /// Returns the reason's name.
    pub fn name(self) -> &'static str {
        match self {
            NotDelivered::Own => "own",
            NotDelivered::CatchingUp => "catching_up",
            NotDelivered::Tags => "tags",
            NotDelivered::Duplicate => "duplicate",
            NotDelivered::Conflated => "conflated",
            NotDelivered::Queued => "queued",
            NotDelivered::QueueFull => "queue_full",
            NotDelivered::TooLarge => "too_large",
            NotDelivered::Expired => "expired",
            NotDelivered::GivenUp => "given_up",
        }
    }
}
