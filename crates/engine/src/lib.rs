//! All that one shard does, without a socket, a clock, a thread or a descriptor: connections, their
//! topics, recovery and acknowledgement, Phoenix channels and long-poll sessions, timers.
//!
//! A driver gives an [`Engine`] its inputs (a connection was opened, bytes came, all bytes have left, a
//! command, the time) and does what it finds in the engine's [`Outputs`] after each of them. Other
//! threads reach an engine by its [`Handle`].
//!
//! Inside of it, `Core` is what every part uses (connections, topics, services, outputs). `Recovery`,
//! `Rates` and `PresenceEntries` hold their own state and take the core. `Connections` holds all of
//! these, and lists what is forgotten of a connection and what is carried to another engine. Channels,
//! polls and what peers ask for see the connections only; the engine has the inputs, the timers, the
//! fan-out and the hand-over. A part that causes
//! something in another part leaves an effect, which is performed as soon as the part has returned.

#![forbid(unsafe_code)]
#![warn(
    clippy::cast_lossless,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]
#![warn(clippy::match_wildcard_for_single_variants, clippy::wildcard_enum_match_arm)]

mod actions;
mod answers;
mod ask;
mod badge;
mod cbor;
mod chosen;
mod command;
mod conflation;
mod connection;
mod connections;
mod core;
mod count;
mod credentials;
mod deliver;
mod engine;
mod entries;
mod flow;
mod forward;
mod forwarding;
mod full;
mod handle;
mod hold;
mod hook_events;
mod input;
mod joins;
mod lines;
mod listening;
mod lists;
mod log;
mod login;
mod longpoll;
mod metrics;
mod mqtt;
mod outbox;
mod output;
mod over;
mod overlaps;
mod page_reads;
mod pages;
mod peers;
mod pending_hook;
mod phoenix;
mod poll;
mod presence;
mod principal;
mod proxied;
mod publish;
mod quota;
mod record;
mod recovery;
mod refresh;
mod refuse;
mod reply;
mod roomy;
mod settings;
mod subscribe;
#[cfg(test)]
mod testing;
mod tokens;
mod told;
mod users;
mod waiting;
mod webhook;

pub use cbor::{ImportError, VERSION as RECORD_VERSION};
pub use command::{
    Answer, Command, ConnectionInfo, LoggedIn, LoginError, PendingHook, PresenceQuery, Revocation,
    SessionAnswer, SessionRequest, Target, TopicInfo,
};
pub use credentials::Expiry;
pub use engine::{Config, Engine, Owed, OwedMember};
pub use forward::{ForwardRequest, ForwardRule, Forwards};
pub use handle::{Addresses, Handle, Queue, Shared};
pub use hook_events::{HookEvent, HookEvents, Whose};
pub use metrics::{Counter, Histogram, Limited, Metrics, Refusal};
pub use mqtt::MqttInfo;
pub use outbox::{Chunk, Outbox, Piece, Room};
pub use output::{Describe, Output, Outputs};
pub use peers::Arrival;
pub use protocol::Listener;
pub use refuse::{Refused, refuse};
pub use reply::Reply;
pub use roomy::Roomy;
pub use settings::{SILENCE_SECONDS_MAX, Settings};
pub use waiting::{FULL_US_MAX, SCAN_ITEMS, SCAN_US, SHORTAGE_US, Waiting};
pub use webhook::{
    Changes, Connecting, Full, HookPlace, Question, Refusal as HookRefusal, Webhook, WebhookKind,
    WebhookRequest, WebhookResponse,
};
