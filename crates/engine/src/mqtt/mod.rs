//! MQTT clients: their sessions, what they publish and subscribe to, and what is under way to them.
//!
//! A client that is connected has a row of 32 bytes ([`state`]); its topics are in the hub as those of any
//! connection. What few clients need (a will, messages under way, a session that outlives the connection,
//! several subscriptions) is in its details. Sessions of clients that are away are in the registry
//! (crate `sessions`), which also says who has which.

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
