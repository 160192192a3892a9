//! Sessions of MQTT clients: what a client has subscribed to, and what is under way to it and from it.
//! They may outlive its connections, and the process.
//!
//! A [`Flow`] is the state of all messages that are confirmed, by packet identifier; a [`Session`] has
//! one, beside its subscriptions and its position. Messages themselves are not in it: it names them by
//! their offsets in the history. [`Sessions`] is what the rest of the server calls; [`Local`] implements
//! it for one process.
//!
//! [`Retained`] are the last messages of topics that were published to be retained.
//!
//! Nothing here knows a clock, a thread or a socket. Times are seconds since 1970.

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
    Keep, LocalRetained, RETAINED, Retained, RetainedPage, RetainedPart, RetainedStats,
};
pub use session::{
    Author, Backlog, ProgressRecord, Replay, Session, SessionRecord, Subscription,
    SubscriptionOptions, Token, WITHOUT_END, Will, session_mark,
};
pub use session_key::{Listing, SessionKey};

/// Sessions and retained messages that end with the process.
pub fn in_memory(node: NodeId) -> (Arc<dyn Sessions>, Arc<dyn Retained>) {
    let sessions = Local::new(node, Arc::default(), None);
    (Arc::new(sessions), Arc::new(LocalRetained::new(None)))
}
