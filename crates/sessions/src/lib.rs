//! Sessions of MQTT clients: a client's subscriptions, and its messages in flight. They may outlive its connections,
//! and the process.
//!
//! A [`Flow`] is the state of all messages with acknowledgements, by packet identifier; a [`Session`] has one, beside
//! its subscriptions and its position. It does not contain messages themselves: it names them by their offsets in the
//! history. The rest of the server calls [`Sessions`]; [`Local`] implements it for one process.
//!
//! [`Retained`] are the last messages of topics that were published to be retained.
//!
//! This crate has no clock, thread or socket. Times are seconds since 1970.

#![forbid(unsafe_code)]
#![warn(
    clippy::cast_lossless,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]
#![warn(clippy::match_wildcard_for_single_variants, clippy::wildcard_enum_match_arm)]

mod away;
mod connected;
mod contract;
mod flow;
mod interests;
mod owners;
pub mod record;
mod records;
mod redispatch;
mod registry;
mod retained;
mod session;
mod session_key;
mod unstored;

use std::sync::Arc;

use model::NodeId;

pub use contract::{
    Claim, ClaimOutcome, Done, Ended, Found, Limits, NodeConnect, Now, Part, RedispatchOutcome,
    Released, SessionInfo, Sessions, Stats, Storage, WaitOutcome,
};
pub use flow::{Confirmed, Flow, FlowRecord, Incoming, Outgoing, Source, State};
pub use interests::Interests;
pub use registry::Local;
pub use retained::{
    DamagedRecord, LocalRetained, RETAINED, Retained, RetainedPage, RetainedPart, RetainedQueue,
    RetainedRow, RetainedStats, RetainedWrite, RetainedWriter, SyncPage, Wake,
};
pub use session::{
    Author, Backlog, CurrentLog, ProgressRecord, Replay, Session, SessionRecord, Subscription,
    SubscriptionOptions, Token, WITHOUT_END, Will, session_mark,
};
pub use session_key::{Listing, SessionKey};

/// Makes sessions and retained messages that end with the process.
pub fn in_memory(node: NodeId) -> (Arc<dyn Sessions>, Arc<dyn Retained>) {
    let sessions = Local::new(node, Arc::default(), None);
    (Arc::new(sessions), Arc::new(LocalRetained::new(None)))
}
