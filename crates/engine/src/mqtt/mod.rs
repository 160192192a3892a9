//! MQTT clients: their sessions, publications, subscriptions and messages in flight.
//!
//! A connected client has a row of 32 bytes ([`state`]); the hub has its topics, as those of any connection. The
//! client's details hold what few clients need: a will, messages in flight, a session that outlives the connection,
//! several subscriptions. The registry (crate `sessions`) holds the sessions of clients that are away, and says which
//! connection has which session.

mod ack;
mod catchup;
mod connect;
mod deliver;
mod detached;
mod disconnect;
mod info;
mod packets;
mod publish_replies;
mod record;
mod shared_groups;
#[cfg(test)]
mod simulation;
mod state;
mod subscribe;
mod take_over;

pub use ack::MqttAck;
pub(crate) use connect::author;
pub use info::MqttInfo;
pub(crate) use record::MqttRecord;
pub use state::Found as MqttFound;
pub(crate) use state::{Clients, Row};
