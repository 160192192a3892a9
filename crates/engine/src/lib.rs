//! One shard without a socket, a clock, a thread or a descriptor: connections, their topics, recovery and
//! acknowledgement, Phoenix channels and long-poll sessions, timers.
//!
//! A driver gives an [`Engine`] its inputs (an opened connection, received bytes, the end of all queued bytes, a
//! command, the time) and carries out what it finds in the engine's [`Outputs`] after each of them. Other threads
//! reach an engine through its [`Handle`].
//!
//! One struct, [`Engine`], owns everything. Every part uses its field `Core`: connections, topics, services, outputs.
//! The parts (`Recovery`, `Rates`, `ExplicitTopics`, `Pages`) hold their own state by slot and take the core. A
//! folder is a concern: a file of its own has the state, and the behaviour is methods of `Core`, or of `Engine` where
//! they need several parts. A part that causes something in another part leaves an effect, which the engine performs
//! as soon as the part has returned.

#![forbid(unsafe_code)]
#![warn(
    clippy::cast_lossless,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]
#![warn(clippy::match_wildcard_for_single_variants, clippy::wildcard_enum_match_arm)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod auth;
mod connection;
mod core;
mod delivery;
mod engine;
mod handover;
mod limits;
mod mqtt;
mod phoenix;
mod poll;
mod presence;
mod recovery;
#[cfg(test)]
mod testing;
mod topics;
mod trace;
mod webhook;

pub use auth::credentials::Expiry;
pub use connection::peers::Arrival;
pub use connection::reject::{RefusalReply, refuse};
pub use core::command::{
    Command, ConnectionInfo, LoggedIn, LoginError, PresenceQuery, Revocation, SessionReply,
    SessionRequest, Target, TopicInfo,
};
pub use core::handle::{Addresses, Handle, Queue, Shared};
pub use core::metrics::{Counter, HandshakeResult, Histogram, Limited, Metrics, Refusal};
pub use core::output::{Describe, ObservedDelivery, Output, Outputs, Slowest};
pub use core::reply::Reply;
pub use core::reply_target::ReplyTarget;
pub use core::settings::{SILENCE_SECONDS_MAX, Settings};
pub use core::shrink::Shrink;
pub use delivery::backpressure::{FULL_US_MAX, SCAN_ITEMS, SCAN_US, SHORTAGE_US, ShardBacklog};
pub use delivery::costs::{COUNTED_TOPICS, Cost, Costliest};
pub use delivery::outbox::{Capacity, Chunk, Outbox, Piece};
pub use engine::{Config, Engine};
pub use handover::fanouts::{Owed, OwedMember};
pub use handover::value::{ImportError, VERSION as RECORD_VERSION};
pub use mqtt::MqttInfo;
pub use protocol::Listener;
pub use trace::event::{
    NotDelivered, TraceEvent, TraceKind, TraceSink, Traced, TracedConnection, TracedMessage,
};
pub use trace::state::{EVENTS_PER_SECOND_MAX as TRACE_EVENTS_PER_SECOND_MAX, TRACES_MAX};
pub use webhook::events::{EventSource, HookEvent, HookEvents};
pub use webhook::forward_rule::{ForwardRequest, ForwardRule, Forwards};
pub use webhook::pending_hook::PendingHook;
pub use webhook::{
    Changes, Connecting, QueueFull, Refusal as HookRefusal, RequestDetails, SharedHook, Webhook,
    WebhookKind, WebhookRequest, WebhookResponse,
};
