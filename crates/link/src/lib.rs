//! A node's connection to the others of its cluster, by NATS.
//!
//! The rest of the node calls [`Link`]: the broker gives it messages and reports which topics have members
//! ([`broker::Relay`]). One thread ([`spawn`]) drives a [`cluster::Node`], which decides everything, and the client
//! of NATS (async-nats), and passes the messages of other nodes to the broker. It also passes presence entries from
//! and to the registry of this process ([`Registry`]).

#![forbid(unsafe_code)]
#![warn(clippy::match_wildcard_for_single_variants, clippy::wildcard_enum_match_arm)]

mod calls;
mod clients;
mod credentials;
mod deliveries;
mod driver;
mod entries;
mod groups;
mod handover;
mod link;
mod lock;
mod login;
mod orders;
mod status;
mod thread;
mod writer;

pub use clients::MqttClients;
pub use cluster::{Call, CallReply, Description, PeerState};
pub use credentials::{Credentials, CredentialsError};
pub use entries::Registry;
pub use handover::ClusterPart;
pub use link::{Link, Settings};
pub use login::Login;
pub use orders::PendingOrder;
pub use status::{Connection, LinkStatus};
pub use thread::{Running, Runtime, Servers, ServersError, spawn};
