//! The event loops that serve the connections: one thread each, nothing shared on the hot path.
//!
//! [`prepare`] binds the ports and gives a [`Handle`] to each shard, from which the broker is made;
//! [`Prepared::start`] runs them.

#![warn(clippy::match_wildcard_for_single_variants, clippy::wildcard_enum_match_arm)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod handover;
mod listen;
mod permits;
mod poller;
mod records;
mod sender;
mod settings;
mod shard;
mod socket;
mod start;
mod tcp_info;
mod tls;
mod wake;

pub use engine::{
    COUNTED_TOPICS, Changes, Command, Connecting, ConnectionInfo, Cost, Costliest, Counter,
    EventSource, Expiry, ForwardRequest, ForwardRule, Forwards, Handle, HandshakeResult, Histogram,
    HookEvent, HookEvents, HookRefusal, Limited, Listener, LoggedIn, LoginError, Metrics, MqttInfo,
    NotDelivered, PendingHook, PresenceQuery, QueueFull, RECORD_VERSION, Refusal, Reply,
    ReplyTarget, RequestDetails, Revocation, SILENCE_SECONDS_MAX, Settings, Shared, SharedHook,
    TRACES_MAX, Target, TopicInfo, TraceEvent, TraceKind, TraceSink, TracedConnection,
    TracedMessage, Webhook, WebhookKind, WebhookRequest, WebhookResponse,
};
pub use handover::{
    Channel, DESCRIPTORS_MAX, Frame, Give, Giver, GiverStage, TakeError, TakenShard, Taker,
};
pub use settings::{Options, Port, SenderKind};
pub use start::{PrepareError, Prepared, Running, Services, capacity, prepare, prepare_to_take};
pub use tls::{TlsContext, TlsSettings};
