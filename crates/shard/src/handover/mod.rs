//! Passes a shard's connections to the shard of a new process that replaces it.
//!
//! [`give`] is the old shard's side and [`take`] the new one's; between them is a [`Channel`] of their own, made by
//! each in its own descriptor table. While the old shard serves, it sends each connection's record and descriptor,
//! a piece a turn. When all shards stand still, it sends what has changed since. The descriptors are copies: until
//! the new process goes on, the old one serves the connections.

pub(crate) mod channel;
pub(crate) mod give;
mod giver;
pub(crate) mod take;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

pub use channel::{Channel, DESCRIPTORS_MAX, Frame};
pub use giver::{Give, Giver, GiverStage};
pub(crate) use take::Going;
pub use take::{TakeError, TakenShard, Taker};
